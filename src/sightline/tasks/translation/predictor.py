"""A trained translator: translations, their scores and the attention behind them."""

import html
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from ... import config, limits, zoo
from ...attention import Record, record_attention
from ...data.sources import same_source
from ...data.text.batching import EncodedPairs
from ...data.text.corpora import ParallelText, TextSplits, source_files
from ...data.text.reading import STDIN, stream_lines
from ...data.text.tokenizers import Tokenizer
from ...decoding import Hypothesis
from ...errors import SightlineError, check, check_int, check_max, check_page_size
from ...files import CONFIG, read_json, stored_fingerprint
from ...models.seq2seq import Seq2Seq
from ...names import display_path, shortened
from ...predictor import Prediction, Predictor, Progress
from ...weights import read_weights
from ..figures import FigureFiles, training_curves
from . import quality
from .config import TranslationTaskConfig
from .evaluate import TranslationEvaluation, evaluate, translate
from .quality import Quality, mean_log_probability
from .task import tokenizer_files
from .translation import Translation, alignment_figure, with_attention

if TYPE_CHECKING:
    from ...view.page import Page

ENTITY = re.compile(r"&#?\w+;")
PATH = re.compile(r"[^\s\0]{1,255}\.txt|[^\s\0]*/[^\s\0]*\.\w{1,5}")
"""Arguments of the command line that are paths, not sentences."""
RECORDING_BATCH = 64
"""Translations whose attention is recorded together."""


@dataclass(frozen=True)
class SourceText:
    """A text that is ready to be translated."""

    text: str
    ids: list[int]
    unknown_tokens: int
    skipped_symbols: str


class TranslationPredictor(Predictor):
    """A trained translator."""

    batch_size = 512
    predict_options = frozenset({"num_beams"})
    needs_data_fingerprint = True
    config: TranslationTaskConfig

    def __init__(
        self,
        folder: Path,
        config: TranslationTaskConfig,
        tokenizers: tuple[Tokenizer, Tokenizer],
        model: Any,
        quality: Quality | None = None,
    ):
        self.folder, self.config, self.tokenizers, self.quality = folder, config, tokenizers, quality
        self.model, self.device = model.eval(), torch.device("cpu")

    @classmethod
    def load(cls, path: str | Path) -> "TranslationPredictor":
        folder = Path(path)
        task_config = config.build(TranslationTaskConfig, config.read(folder / CONFIG))
        tokenizers = [
            Tokenizer.from_json(task_config.tokenizer, read_json(folder / name), str(folder / name))
            for name in tokenizer_files(task_config.tokenizer)
        ]
        source, target = tokenizers[0], tokenizers[-1]
        model_config = task_config.model.with_vocab_sizes(len(source), len(target)).chosen
        model = read_weights(folder, lambda: Seq2Seq(model_config), depth=model_config.depth)
        path = folder / quality.FILE
        estimate = Quality.from_json(read_json(path), str(path)) if path.is_file() else None
        return cls(folder, task_config, (source, target), model, estimate)

    def parse_inputs(self, arguments: Sequence[str]) -> Iterator[str | Path]:
        """Texts from arguments: text, the path of a .txt file with one text per line, or - for standard input.

        Files are read lazily. Empty lines are skipped. A path that is no .txt file is yielded as it is.
        """
        for argument in arguments:
            if argument == "-":
                yield from _texts(sys.stdin.buffer, STDIN)
            elif argument.endswith(".txt") and os.path.isfile(argument):  # noqa: PTH113 - false for an invalid path
                with Path(argument).open("rb") as file:
                    yield from _texts(file, argument)
            elif PATH.fullmatch(argument) or os.path.isdir(argument):  # noqa: PTH112 - false for an invalid path
                yield Path(argument)
            else:
                lines = [line for line in argument.split("\n") if line.strip()]
                yield from lines or [argument]

    def prepare(self, item: Any) -> SourceText:
        """Tokenize one text."""
        if isinstance(item, Path):
            state = "is a folder" if item.is_dir() else "is another file" if item.exists() else "does not exist"
            raise SightlineError(f"a file of sentences must be a .txt file, got {display_path(item)!r}, which {state}")
        check(isinstance(item, str), f"text must be a string, got {type(item).__name__}")
        limit, max_tokens, tokenizer = limits.MAX_LINE_CHARS, self.config.data.max_tokens, self.tokenizers[0]
        fix = "translate it in parts"
        check(len(item) <= limit, f"text must be at most {limit:,} characters, got {len(item):,}; {fix}")
        text, skipped_symbols = tokenizer.remove_unknown_symbols(item)
        [ids] = tokenizer.encode([text])
        check(ids, f"text must have at least one word, got {item[:20]!r}")
        unknown, shown, language = tokenizer.count_unknown(ids), shortened(item, 40), self.config.data.languages[0]
        rule = f"text must be less than {max_tokens} tokens, the limit in training"
        fix = "translate its sentences one by one"
        check(len(ids) < max_tokens, f"{rule}, got {len(ids)} in {shown!r}; {fix}")
        is_known = self.config.tokenizer.kind == "word" or 2 * unknown <= len(ids)  # words can be unknown
        rule = f"text must be in the source language {language!r}"
        check(is_known, f"{rule}, got {unknown} unknown of {len(ids)} tokens in {shown!r}")
        return SourceText(text, ids, unknown, skipped_symbols)

    def predict_batch(
        self, prepared: list[SourceText], *, attention: bool = False, **options: Any
    ) -> list[Translation]:
        """Translations of prepared texts.

        `top_k` is the number of translations of each text (default: one per beam). `num_beams` and `length_penalty`
        default to the config's. `attention` records the attention of every translation in a further forward pass.
        """
        hypotheses = self._search(prepared, **options)
        translations = [self._translations(text, found) for text, found in zip(prepared, hypotheses, strict=True)]
        if attention:
            rows = [(i, j) for i, found in enumerate(hypotheses) for j in range(len(found))]
            for start in range(0, len(rows), RECORDING_BATCH):
                chunk = rows[start : start + RECORDING_BATCH]
                record = self._record([prepared[i] for i, _ in chunk], [hypotheses[i][j] for i, j in chunk])
                for row, (i, j) in enumerate(chunk):
                    translations[i][j] = with_attention(translations[i][j], record, row)
        return [replace(best, alternatives=tuple(rest)) for best, *rest in translations]

    def _search(
        self, prepared: list[SourceText], *, top_k: int | None = None, **changes: float | None
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each text; `changes` are changes of the config's search."""
        if top_k is not None:
            check_int(1, top_k=top_k)
            check_max(limits.MAX_BEAMS, top_k=top_k)
        given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        given = {"num_beams": max(self.config.search.num_beams, top_k or 1), **given}
        search = replace(self.config.search, **given)
        top_k = search.num_beams if top_k is None else top_k
        check(top_k <= search.num_beams, f"top_k must be at most num_beams={search.num_beams}, got {top_k}")
        encoded = self._encoded([text.ids for text in prepared], [()] * len(prepared))
        options = {"n_best": top_k, **config.plain(search)}
        with torch.inference_mode():
            batches = translate(self.model, encoded, range(len(prepared)), self.config.data.max_tokens, **options)
            hypotheses = {i: found for batch, results in batches for i, found in zip(batch, results, strict=True)}
        return [hypotheses[i] for i in range(len(prepared))]

    def _translations(self, text: SourceText, hypotheses: list[Hypothesis]) -> list[Translation]:
        source, target = self.tokenizers
        source_tokens, end = (*source.tokens(text.ids), source.special_tokens.eos), (target.special_tokens.eos,)
        table, estimate = (None, None) if self.quality is None else (self.quality.table, self.quality.estimate)
        return [
            Translation(
                text=ENTITY.sub(lambda entity: html.unescape(entity[0]), target.decode(hypothesis.tokens)),
                score=hypothesis.normalized_score,
                tokens=(*target.tokens(hypothesis.tokens), *(end if hypothesis.finished else ())),
                source_tokens=source_tokens,
                unknown_tokens=text.unknown_tokens,
                quality=None if estimate is None else estimate(text.text, mean_log_probability(hypothesis)),
                unfamiliar_words=() if table is None else table.unfamiliar_words(text.text),
                skipped_symbols=text.skipped_symbols,
                finished=hypothesis.finished,
            )
            for hypothesis in hypotheses
        ]

    def _encoded(self, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]) -> EncodedPairs:
        return EncodedPairs(source, target, self.tokenizers[0].special_tokens).to(self.device)

    def _record(self, texts: Sequence[SourceText], hypotheses: Sequence[Hypothesis]) -> Record:
        """The attention of one forward pass over each text and hypothesis; equal to that of decoding up to rounding."""
        check(self.config.model.kind != "rnn", "model.kind must be one with attention to show it, got 'rnn'")
        encoded = self._encoded([text.ids for text in texts], [hypothesis.tokens for hypothesis in hypotheses])
        num_target = max(len(hypothesis.tokens) + hypothesis.finished for hypothesis in hypotheses)
        shape = int(encoded.source.lengths.max()), num_target
        batch = encoded.batch(torch.arange(len(texts), device=self.device), shape)
        with torch.inference_mode(), record_attention(self.model, cpu=True) as record:
            self.model(batch.source, batch.attention_mask, batch.target)
        return record

    def explain_batch(
        self, prepared: list[SourceText], inputs: list[Any], *, progress: Progress | None = None, **options: Any
    ) -> "tuple[list[Translation], Page]":
        hypotheses = self._search(prepared, **options)
        record = self._record(prepared, [best for best, *_ in hypotheses])
        translations = []
        for i, (text, found) in enumerate(zip(prepared, hypotheses, strict=True)):
            best, *rest = self._translations(text, found)
            translations.append(replace(with_attention(best, record, i), alternatives=tuple(rest)))
        return translations, self._page(inputs, translations, record)

    def _page(self, texts: Sequence[str], translations: Sequence[Translation], record: Record) -> "Page":
        """The viewer with one example per text."""
        special = self.tokenizers[1].special_tokens
        num_source = max(len(translation.source_tokens) for translation in translations)
        num_target = max(len(translation.tokens) for translation in translations)
        names = [
            f"{shortened(f'{text} → {translation}', 60)} · {translation.rating()}"
            for text, translation in zip(texts, translations, strict=True)
        ]
        return record.view(
            source=[_padded(t.source_tokens, num_source) for t in translations],
            target=[_padded((special.bos, *t.tokens)[: len(t.tokens)], num_target) for t in translations],
            generated=[_padded(t.tokens, num_target) for t in translations],
            batch=list(range(len(translations))),
            special_tokens={special.tokens[i] for i in special.control_ids},
            scores=[
                [(t.text, t.score) for t in (translation, *translation.alternatives)] for translation in translations
            ],
            title=names[0] if len(names) == 1 else f"{len(names)} sentences",
            names=names,
        )

    def show(self, inputs: Sequence[str] = (), out: str | Path | None = None, *, format: str = "png") -> FigureFiles:
        """Write figures of the training curves, and of the attention on these texts, to a folder."""
        files = FigureFiles.create(self.folder, out, format)
        if inputs:
            check_page_size(inputs=len(inputs))
        prepared = [self.prepare(text) for text in inputs]
        explained = self.explain_batch(prepared, [*inputs]) if inputs else None
        files.add("training", training_curves, self.folder, "bleu")
        if explained is not None:
            for i, translation in enumerate(explained[0], start=1):
                files.add(f"sentence-{i}", alignment_figure, translation)
            files.add_page(explained[1])
        return files

    def details(self) -> dict[str, Any]:
        source, target = self.config.data.languages
        sizes = [len(tokenizer) for tokenizer in self.tokenizers]
        values = {"model": self.config.model.kind, "languages": f"{source} to {target}", "vocabulary": sizes}
        return values if self.quality is None else {**values, "quality": config.plain(self.quality.model)}

    def columns(self, top: int | None = None) -> list[str]:
        further = (f"{name}.{i}" for i in range(2, (top or 1) + 1) for name in ("text", "quality", "score"))
        names = ["text", "quality", "score", "finished", "unknown_tokens", "unfamiliar_words", "skipped_symbols"]
        return [*names, *further]

    def csv_values(self, prediction: Prediction) -> dict[str, Any]:
        values = prediction.to_dict()
        for i, alternative in enumerate(values.pop("alternatives", ()), start=2):
            values |= {f"{name}.{i}": value for name, value in alternative.items()}
        return values

    def evaluate(
        self, data: str | Path | TextSplits[ParallelText] | None = None, *, progress: Progress | None = None
    ) -> TranslationEvaluation:
        """BLEU and chrF on the run's test set, or its validation set if it has none.

        For other data: on its test set, or on all of it if it has none.
        """
        return evaluate(self, *self.evaluation_pairs(data), progress)

    def evaluation_pairs(self, data: str | Path | TextSplits[ParallelText] | None = None) -> tuple[ParallelText, str]:
        """The pairs that `evaluate` uses, and the name of their split."""
        own, run = self.config.data, zoo.display_name(self.folder)
        if isinstance(data, TextSplits):
            splits, is_own, name = data, False, "loaded data"
        else:
            source = own.source if data is None else str(data)
            self.check_data(source, data is not None or any(self._files(source).values()))
            splits, is_own, name = own.read(source), same_source(source, own.source), repr(source)
        held_out = self._held_out(splits, is_own)
        if held_out is not None:
            pairs, split = (held_out.validation, "validation") if held_out.test is None else (held_out.test, "test")
            if pairs is None:
                raise SightlineError(f"data must have a test or validation set, got neither in {own.source!r}")
            return pairs, split
        pairs, split = (splits.train, "full") if splits.test is None else (splits.test, "test")
        trained_on = frozenset().union(*(self._files(source)["train"] for source in (own.source, *own.extra_sources)))
        files = [] if isinstance(data, TextSplits) else self._files(str(data))["train" if split == "full" else split]
        is_new = trained_on.isdisjoint(files) and pairs.digest() != self._digest("train")
        check(is_new, f"data must not be the training data of {run}, got {name}; pass a test set")
        return pairs, split

    def _held_out(self, splits: TextSplits[ParallelText], is_own: bool) -> TextSplits[ParallelText] | None:
        """The splits with the run's held-out sets if the data is the run's own, by source or by digest; else None."""
        digests = [self._digest(name) for name in ("test", "validation")]
        try:
            held_out = self.config.data.hold_out(splits, self.config.seed)
        except SightlineError:  # too few pairs to split
            if is_own:
                raise
            return None
        sets = (held_out.test, held_out.validation)
        return held_out if is_own or any(pairs and pairs.digest() in digests for pairs in sets) else None

    def _digest(self, split: str) -> Any:
        """The digest of a split of the run's data."""
        return stored_fingerprint(self.folder, split, "sentences")

    def _files(self, source: str) -> dict[str, frozenset[Path]]:
        """The files of each split of a source; without files, there is no such split."""
        return defaultdict(frozenset, source_files(source, self.config.data.languages))


def _texts(file: IO[bytes], name: str) -> Iterator[str]:
    """Lines of a UTF-8 file that are not blank, one at a time."""
    is_empty = True
    for line in stream_lines(file, name):
        if line.strip():
            is_empty = False
            yield line
    if is_empty:
        raise SightlineError(f"{name} must have at least one line of text, got none")


def _padded(tokens: Sequence[str], size: int) -> list[str | None]:
    """Tokens followed by None up to this size."""
    return [*tokens, *[None] * (size - len(tokens))]
