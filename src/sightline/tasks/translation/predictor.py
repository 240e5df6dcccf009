"""A trained translator: translations, their scores and the attention behind them."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ... import config, limits
from ...attention import Record, record_attention
from ...data.text.batching import EncodedPairs
from ...data.text.corpora import ParallelText, TextSplits
from ...data.text.tokenizers import Tokenizer
from ...decoding import Hypothesis
from ...errors import check, check_int, check_max, one_of
from ...files import CONFIG, read_json
from ...models.seq2seq import Seq2Seq
from ...names import shortened
from ...predictor import InputToken, Progress
from ...results import Prediction
from ...view.inspection import Inspection
from ...weights import read_weights
from ..figures import FigureFiles, training_curves
from ..text_data import read_tokenizers
from ..text_predictor import MAX_NAME_CHARS, TextPredictor, inspection, padded, sentence_tokens, without_positions
from . import quality
from .config import TranslationTaskConfig
from .evaluate import TranslationEvaluation, evaluate, translate
from .quality import Quality, mean_log_probability
from .task import tokenizer_files
from .translation import Translation, alignment_figure, with_attention

if TYPE_CHECKING:
    from ...view.page import Page

ENTITY = re.compile(r"&#?\w+;")
RECORDING_BATCH = 64
"""Translations whose attention is recorded together."""


@dataclass(frozen=True)
class SourceText:
    """A text that is ready to be translated."""

    text: str
    ids: list[int]
    unknown_tokens: int
    skipped_symbols: str


class TranslationPredictor(TextPredictor):
    """A trained translator."""

    predict_options = frozenset({"num_beams"})
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
        self.has_attention = config.model.kind != "rnn"

    @classmethod
    def load(cls, path: str | Path) -> "TranslationPredictor":
        folder = Path(path)
        task_config = config.build(TranslationTaskConfig, config.read(folder / CONFIG))
        tokenizers = read_tokenizers(folder, task_config.tokenizer, tokenizer_files(task_config.tokenizer))
        source, target = tokenizers[0], tokenizers[-1]
        model_config = task_config.model.with_vocab_sizes(len(source), len(target)).chosen
        model = read_weights(folder, lambda: Seq2Seq(model_config), depth=model_config.depth)
        path = folder / quality.FILE
        estimate = Quality.from_json(read_json(path), str(path)) if path.is_file() else None
        return cls(folder, task_config, (source, target), model, estimate)

    @property
    def max_input_tokens(self) -> int:
        return self.config.data.max_tokens - 1  # and the end token

    def prepare(self, item: Any) -> SourceText:
        """Tokenize one text."""
        item = self.check_text(item, fix="translate it in parts")
        max_tokens, tokenizer = self.max_input_tokens, self.tokenizers[0]
        text, skipped_symbols = tokenizer.remove_unknown_symbols(item)
        [ids] = tokenizer.encode([text])
        check(ids, f"text must have at least one word, got {item[:20]!r}")
        unknown, shown, language = tokenizer.count_unknown(ids), shortened(item, 40), self.config.data.languages[0]
        rule = f"text must be at most {max_tokens} tokens, the limit in training"
        fix = "translate its sentences one by one"
        check(len(ids) <= max_tokens, f"{rule}, got {len(ids)} in {shown!r}; {fix}")
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
        names = [field.name for field in fields(self.config.search)]
        for name in given:
            check(name in names, f"options must be {one_of(name, names)}")
        given = {"num_beams": max(self.config.search.num_beams, top_k or 1), **given}
        search = replace(self.config.search, **given)
        top_k = search.num_beams if top_k is None else top_k
        rule = f"top_k (--top) must be at most num_beams (--beams), {search.num_beams}"
        check(top_k <= search.num_beams, f"{rule}, got {top_k}")
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
        translations, record = self._recorded(prepared, **options)
        return translations, self._page(inputs, translations, record)

    def _recorded(self, prepared: list[SourceText], **options: Any) -> tuple[list[Translation], Record]:
        """Translations with the attention of the best one of each text, and the record of all."""
        hypotheses = self._search(prepared, **options)
        record = self._record(prepared, [best for best, *_ in hypotheses])
        translations = []
        for i, (text, found) in enumerate(zip(prepared, hypotheses, strict=True)):
            best, *rest = self._translations(text, found)
            translations.append(replace(with_attention(best, record, i), alternatives=tuple(rest)))
        return translations, record

    def inspect_batch(self, prepared: list[SourceText], **options: Any) -> list[tuple[Translation, Inspection]]:
        translations = self._recorded(prepared, **options)[0]
        special, results = self.tokenizers[1].special_tokens, []
        for translation in translations:
            read = (special.bos, *translation.tokens)[: len(translation.tokens)]
            tokens = {"source": translation.source_tokens, "target": read, "generated": translation.tokens}
            results.append((translation, inspection(translation.attention, tokens, special)))
        return results

    def input_tokens(self, prepared: SourceText) -> list[InputToken]:
        tokenizer = self.tokenizers[0]
        return sentence_tokens(tokenizer, [*prepared.ids, tokenizer.special_tokens.id("eos")])

    def _without_tokens(self, prepared: SourceText, positions: frozenset[int]) -> SourceText:
        ids, tokenizer = without_positions(prepared.ids, positions), self.tokenizers[0]
        return replace(prepared, text=tokenizer.decode(ids), ids=ids, unknown_tokens=tokenizer.count_unknown(ids))

    def _page(self, texts: Sequence[str], translations: Sequence[Translation], record: Record) -> "Page":
        """The viewer with one example per text."""
        special = self.tokenizers[1].special_tokens
        num_source = max(len(translation.source_tokens) for translation in translations)
        num_target = max(len(translation.tokens) for translation in translations)
        names = [
            f"{shortened(f'{text} → {translation}', MAX_NAME_CHARS)} · {translation.rating()}"
            for text, translation in zip(texts, translations, strict=True)
        ]
        return record.view(
            source=[padded(t.source_tokens, num_source) for t in translations],
            target=[padded((special.bos, *t.tokens)[: len(t.tokens)], num_target) for t in translations],
            generated=[padded(t.tokens, num_target) for t in translations],
            batch=list(range(len(translations))),
            special_tokens={special.tokens[i] for i in special.control_ids},
            scores=[translation.ratings() for translation in translations],
            title=names[0] if len(names) == 1 else f"{len(names)} sentences",
            names=names,
        )

    def show(self, inputs: Sequence[str] = (), out: str | Path | None = None, *, format: str = "png") -> FigureFiles:
        """Write figures of the training curves, and of the attention on these texts, to a folder."""
        files = FigureFiles.create(self.folder, out, format)
        prepared, inputs = files.usable(self, inputs)
        explained = self.explain_batch(prepared, inputs) if prepared else None
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
        return self.evaluation_corpus(data)
