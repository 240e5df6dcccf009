"""A trained translator at work: a sentence in another language, how likely, and where it looked."""

import html
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ... import config, limits, zoo
from ...attention import Record, record_attention
from ...data.text.batching import EncodedPairs
from ...data.text.corpora import NUMBERS, ParallelText, source_files
from ...data.text.reading import parse_lines, read_lines
from ...data.text.tokenizers import Tokenizer
from ...decoding import Hypothesis
from ...errors import SightlineError, check_page_size
from ...files import CONFIG, DATA, read_json
from ...names import shortened
from ...predictor import Predictor
from ...weights import read_weights
from .evaluate import Progress, Score, scored, translate
from .predictions import Answer, Look
from .task import Recipe, Search, TextData, TranslationTask, divide, evaluate_on

if TYPE_CHECKING:
    from ...view.page import Page
    from ..figures import Drawn

ENTITY = re.compile(r"&#?\w+;")
SHARED, APART = ("tokenizer.json",), ("tokenizer.source.json", "tokenizer.target.json")
"""The files of tokenizers in a run."""


class TranslationPredictor(Predictor):
    """What `sightline.load(run)` gives for a translator."""

    def __init__(self, folder: Path, recipe: Recipe, tokenizers: tuple[Tokenizer, Tokenizer], model: Any):
        self.folder, self.recipe, self.tokenizers = folder, recipe, tokenizers
        self.model = model.eval()
        self.device = torch.device("cpu")

    @staticmethod
    def files(task: TranslationTask) -> dict[str, bytes]:
        """What a run of this task keeps beside its weights."""
        names = SHARED if task.recipe.tokenizer.shared_vocab else APART
        return {name: one.to_json().encode() for name, one in zip(names, task.tokenizers, strict=False)}

    @classmethod
    def open(cls, folder: Path) -> "TranslationPredictor":
        recipe = config.build(Recipe, config.read(folder / CONFIG))
        names = SHARED if recipe.tokenizer.shared_vocab else APART
        read = [Tokenizer.from_json(recipe.tokenizer, read_json(folder / name), str(folder / name)) for name in names]
        tokenizers = read[0], read[-1]
        chosen = recipe.model.of_data(*map(len, tokenizers))
        return cls(folder, recipe, tokenizers, read_weights(folder, chosen.build, depth=chosen.depth))

    @classmethod
    def finish(cls, folder: Path, task: TranslationTask) -> dict[str, float]:
        """There is nothing left to do."""
        return {}

    def to(self, device: str | torch.device) -> "TranslationPredictor":
        """Work there from now on."""
        self.device = torch.device(device)
        self.model.to(self.device)
        return self

    @staticmethod
    def read(words: Sequence[str]) -> list[str]:
        """What was typed, as sentences; the name of a text file (.txt) stands for its lines, and so does - for what
        comes in."""
        texts = []
        for word in words:
            if word == "-":
                whose, lines = "what comes in", parse_lines(sys.stdin.buffer.read(limits.MAX_TEXT_BYTES + 1), "-")
            elif _is_text_file(word):
                whose, lines = word, read_lines(Path(word))
            else:
                whose, lines = "", word.split("\n")
            found = [line for line in lines if line.strip()]
            if whose and not found:
                raise SightlineError(f"{whose} must hold at least one sentence, got none")
            texts += found or [word]
        return texts

    def predict(
        self,
        texts: Any,
        *,
        beams: int | None = None,
        n_best: int | None = None,
        length_penalty: float | None = None,
        attention: bool = False,
    ) -> Any:
        """An `Answer` for a sentence, or a list of them for a list or tuple.

        beams and length_penalty are those of the recipe if not told; n_best: how many translations
        of each to give, as many as there are beams if not told; more widen the search;
        attention: also where the model looked, in `answer.attention`.
        """
        if not isinstance(texts, list | tuple):
            return self.predict(
                [texts], beams=beams, n_best=n_best, length_penalty=length_penalty, attention=attention
            )[0]
        if attention:
            return self.look(texts, beams=beams, n_best=n_best, length_penalty=length_penalty).answers
        return self._answers(texts, beams, n_best, length_penalty)[0]

    def _answers(
        self, texts: Sequence[Any], beams: int | None, n_best: int | None, length_penalty: float | None
    ) -> tuple[list[Answer], list[list[int]], list[list[Hypothesis]]]:
        """The answers, the ids they were read as, and the hypotheses they are."""
        if not texts:
            return [], [], []
        texts, signs = zip(*map(self._without_signs, texts), strict=True)
        ids = self._read(texts)
        encoded = self._encoded(ids, [()] * len(ids))
        found: dict[int, list[Hypothesis]] = {}
        how = self._search(beams, n_best, length_penalty)
        with torch.inference_mode():
            for some, hypotheses in translate(self.model, encoded, range(len(ids)), **how):
                found |= dict(zip(some, hypotheses, strict=True))
        every = [found[i] for i in range(len(ids))]
        answers = [self._answer(one, own, left) for one, own, left in zip(ids, every, signs, strict=True)]
        return answers, ids, every

    def _without_signs(self, text: Any) -> tuple[Any, str]:
        """What is no text, or too long, is refused later."""
        readable = isinstance(text, str) and len(text) <= limits.MAX_LINE_CHARS
        return self.tokenizers[0].remove_unknown_symbols(text) if readable else (text, "")

    def _encoded(self, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]) -> EncodedPairs:
        encoded = EncodedPairs(source, target, self.tokenizers[0].special_tokens)
        encoded.to(self.device)
        return encoded

    def _search(self, beams: int | None, n_best: int | None, length_penalty: float | None) -> dict[str, Any]:
        """As the recipe says, or as was told; wide enough for so many translations."""
        own = self.recipe.search
        if n_best is not None and n_best > limits.MAX_BEAMS:
            raise SightlineError(
                f"translations of a sentence must be at most {limits.MAX_BEAMS}, got {n_best}; ask for fewer"
            )
        beams = max(own.beams, n_best or 1) if beams is None else beams
        chosen = Search(beams=beams, length_penalty=own.length_penalty if length_penalty is None else length_penalty)
        most = self.recipe.data.max_tokens
        return config.plain(chosen) | {"n_best": beams if n_best is None else n_best, "max_tokens": most}

    def _answer(self, ids: list[int], found: list[Hypothesis], left_out: str) -> Answer:
        """The best hypothesis, and with it the others; & and its like as they are read, however the data had them."""
        source, target = self.tokenizers
        best, *others = found
        return Answer(
            text=ENTITY.sub(lambda found: html.unescape(found[0]), target.decode(best.tokens)),
            score=best.normalized,
            tokens=(*target.tokens(best.tokens), *((target.special_tokens.eos,) if best.finished else ())),
            source_tokens=(*source.tokens(ids), source.special_tokens.eos),
            others=tuple(self._answer(ids, [one], left_out) for one in others),
            unknown=source.count_unknown(ids),
            left_out=left_out,
            problem=self._problem(ids),
            finished=best.finished,
        )

    def _problem(self, ids: list[int]) -> str | None:
        """Of another script; that words are unknown says nothing of their language."""
        unknown, language = self.tokenizers[0].count_unknown(ids), self.recipe.data.languages[0]
        if self.recipe.tokenizer.kind == "word" or 2 * unknown <= len(ids):
            return None
        return f"text must be of the language the model reads, {language!r}, got {unknown} of {len(ids)} tokens unknown"

    def _read(self, texts: Sequence[Any]) -> list[list[int]]:
        """Sentences as ids; what is no sentence is refused."""
        for text in texts:
            if not isinstance(text, str):
                raise SightlineError(f"text must be a string, got {type(text).__name__}")
            if len(text) > limits.MAX_LINE_CHARS:
                raise SightlineError(
                    f"text must be at most {limits.MAX_LINE_CHARS:,} characters, got {len(text):,}; cut it up"
                )
        ids = self.tokenizers[0].encode(texts)
        most = self.recipe.data.max_tokens
        for text, one in zip(texts, ids, strict=True):
            if not one:
                raise SightlineError(f"text must hold at least one word, got {text[:20]!r}")
            if len(one) >= most:
                raise SightlineError(
                    f"text must be less than {most} tokens, as the model has learned from, got {len(one)} in "
                    f"{shortened(text, 40)!r}; translate its sentences one by one"
                )
        return ids

    def look(
        self,
        texts: Sequence[str],
        *,
        beams: int | None = None,
        n_best: int | None = None,
        length_penalty: float | None = None,
    ) -> Look:
        """At a few sentences: their translations, and where the model looked when it wrote them.

        The attention is that of one more pass over each translation, which is the same to rounding.
        """
        check_page_size(texts=len(texts))
        if self.recipe.model.kind == "rnn":
            raise SightlineError("model.kind must be one with attention for it to be shown, got 'rnn'")
        answers, ids, found = self._answers(texts, beams, n_best, length_penalty)
        record, kept = self._watched(ids, [one[0] for one in found], answers)
        for place in range(1, max(map(len, found))):
            rows = [i for i, one in enumerate(found) if len(one) > place]
            others = [answers[i].others[place - 1] for i in rows]
            seen = self._watched([ids[i] for i in rows], [found[i][place] for i in rows], others)[1]
            for i, one in zip(rows, seen, strict=True):
                before, after = kept[i].others[: place - 1], kept[i].others[place:]
                kept[i] = replace(kept[i], others=(*before, one, *after))
        return Look(list(texts), kept, record)

    def _watched(
        self, ids: list[list[int]], hypotheses: list[Hypothesis], answers: list[Answer]
    ) -> tuple[Record, list[Answer]]:
        """One hypothesis of each sentence read again: what was seen, and the answers, each with its own."""
        encoded = self._encoded(ids, [one.tokens for one in hypotheses])
        places = [len(one.tokens) for one in answers]
        batch = encoded.batch(
            torch.arange(len(ids), device=self.device), (int(encoded.source.lengths.max()), max(places))
        )
        with torch.inference_mode(), record_attention(self.model, cpu=True) as record:
            self.model(batch.source, batch.attention_mask, batch.target)
        return record, [
            replace(one, attention=_of_sentence(record, i, len(one.source_tokens), places[i]))
            for i, one in enumerate(answers)
        ]

    def page(self, texts: Sequence[str] | Look, *, title: str | None = None) -> "Page":
        """The viewer on these sentences, an example each."""
        look = texts if isinstance(texts, Look) else self.look(texts)
        sizes = len(max((one.source_tokens for one in look.answers), key=len)), max(len(o.tokens) for o in look.answers)
        pairs = zip(look.texts, look.answers, strict=True)
        told = f"{len(look.texts)} sentences"
        names = [shortened(f"{text} → {answer}", 60) for text, answer in pairs]
        return look.record.view(
            source=[_filled(one.source_tokens, sizes[0]) for one in look.answers],
            target=[_filled((self.tokenizers[1].special_tokens.bos, *one.tokens[: len(one.tokens) - 1]), sizes[1]) for one in look.answers],
            written=[_filled(one.tokens, sizes[1]) for one in look.answers],
            batch=list(range(len(look.answers))),
            special=set(self.tokenizers[1].special_tokens.control_tokens),
            title=(names[0] if len(names) == 1 else told) if title is None else title,
            names=names,
        )

    def show(self, texts: Sequence[str] = (), out: str | Path | None = None, *, format: str = "png") -> "Drawn":
        """How training went, and where it looked on these sentences, as pictures in a folder: `pictures/` in the run's.

        `format` is png or svg. What comes back says which files were written.
        """
        from .figures import show

        return show(self, texts, out, format=format)

    def evaluate(self, pairs: ParallelText, split: str, progress: Progress | None = None) -> Score:
        """How near its translations are to those of a set."""
        encoded = evaluate_on(pairs, self.tokenizers, self.recipe)
        encoded.to(self.device)
        wrote: dict[int, str] = {}
        how, most = config.plain(self.recipe.search), self.recipe.data.max_tokens
        with torch.inference_mode():
            for some, hypotheses in translate(self.model, encoded, range(len(pairs)), max_tokens=most, **how):
                decoded = [self.tokenizers[1].decode(one[0].tokens) for one in hypotheses]
                wrote |= dict(zip(some, decoded, strict=True))
                if progress:
                    progress(len(wrote), len(pairs))
        texts, small = [wrote[i] for i in range(len(pairs))], self.recipe.tokenizer.lowercase
        return scored(split, pairs.source, pairs.target, texts, lowercase=small, **how)

    def evaluation_split(self, source: str | None = None) -> tuple[ParallelText, str]:
        """The test set of its data, or its validation set where there is none; or of other data of the same form: the
        test set of that, or all of it where it brings none. And what it is called."""
        data = self.recipe.data
        if source is None and data.source != NUMBERS and not any(source_files(data.source, data.languages).values()):
            raise SightlineError(
                f"the data of {zoo.display_name(self.folder)} must be there to judge by, got {data.source!r}, which is not; "
                f"name their place, or other data, with --data PATH"
            )
        own = replace(data, source=source or data.source, more=())
        ours = source is None or self._same(source, data.source) or self._held_out(own)
        splits = divide(own, self.recipe.seed) if ours else data.load(source)
        if not ours:
            self._check_unseen(str(source), "train" if splits.test is None else "test")
        if splits.test is not None:
            return splits.test, "test"
        if not ours:
            return splits.train, "whole"
        if splits.validation is None:
            raise SightlineError(f"data must have a test or validation set to judge by, got neither in {data.source!r}")
        return splits.validation, "validation"

    def _same(self, a: str, b: str) -> bool:
        """Whether two sources are one."""
        first, second = (source_files(one, self.recipe.data.languages) for one in (a, b))
        return a == b or (first == second and any(first.values()))

    def _held_out(self, data: TextData) -> bool:
        """Whether of these the run would hold out what it did: they are its own, wherever they lie now."""
        path = self.folder / DATA
        kept = read_json(path) if path.is_file() else None
        facts = [kept.get(name) for name in ("test", "validation")] if isinstance(kept, dict) else []
        digests = {one.get("sentences") for one in facts if isinstance(one, dict)} - {None}
        if not digests:
            return False
        try:
            splits = divide(data, self.recipe.seed)
        except ValueError:  # too few to be divided
            return False
        return any(one is not None and one.digest() in digests for one in (splits.test, splits.validation))

    def _check_unseen(self, source: str, part: str) -> None:
        """It has not learned from this part."""
        data = self.recipe.data
        learned = [source_files(one, data.languages).get("train", frozenset()) for one in (data.source, *data.more)]
        if not source_files(source, data.languages).get(part, frozenset()).isdisjoint(frozenset().union(*learned)):
            run = zoo.display_name(self.folder)
            raise SightlineError(
                f"data must be other than what {run} has learned from, got {source!r}; name a test set"
            )

    def evaluate_on(self, source: str | None = None, progress: Progress | None = None) -> Score:
        """How it does on these."""
        return self.evaluate(*self.evaluation_split(source), progress)


def _of_sentence(record: Record, row: int, source: int, target: int) -> Record:
    """One row without filling."""
    sizes = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    seen = []
    for one in record:
        queries, keys = sizes[one.kind]
        seen.append(replace(one, weights=one.weights[row : row + 1, :, :queries, :keys].clone()))
    return Record(record.model, seen)


def _is_text_file(word: str) -> bool:
    try:
        return word.endswith(".txt") and Path(word).is_file()
    except (OSError, ValueError):  # too long for a name, or with a zero in it: no file, so a sentence
        return False


def _filled(tokens: Sequence[str], size: int) -> list[str | None]:
    """With None, which the page leaves out, up to this size."""
    return [*tokens, *[None] * (size - len(tokens))]
