"""A trained text classifier: class, confidence and attention for a text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ... import config
from ...attention import Record, record_attention
from ...data.images.datasets import check_class_names
from ...data.text.labeled import LabeledText
from ...data.text.tokenized import encode_sentences
from ...data.text.tokenizers import Tokenizer
from ...errors import check, check_page_size
from ...files import CONFIG, read_json
from ...models.text_classifier import TextClassifier
from ...names import printable, shortened
from ...predictor import InputToken, Progress
from ...view.inspection import Inspection
from ...weights import read_weights
from ..figures import FigureFiles, training_curves
from ..text_data import TOKENIZER, read_tokenizers
from ..text_predictor import (
    TextPredictor,
    attention_figure,
    input_batch,
    inspection,
    padded,
    sentence_tokens,
    without_padding,
    without_positions,
)
from .config import TextClassificationTaskConfig
from .evaluate import TextEvaluation, evaluate, label_indices, logits_of
from .task import CLASSES

if TYPE_CHECKING:
    from ...view.page import Page

DEFAULT_TOP = 3


@dataclass(frozen=True)
class TextPrediction:
    """The classes predicted for one text."""

    label: str
    confidence: float
    scores: dict[str, float]
    """The probability of each class, the most likely first."""
    tokens: tuple[str, ...] = ()
    """Tokens of the text, with the start and end token."""
    attention: Record | None = None
    """Recorded attention, if requested; one row and column per token."""
    error: None = None

    def to_dict(self) -> dict[str, Any]:
        values = {"label": self.label, "confidence": self.confidence, "scores": self.scores}
        return {**values, "tokens": list(self.tokens), "error": self.error}

    def summary(self, top: int | None = None) -> str:
        best = list(self.scores.items())[: top or DEFAULT_TOP]
        return ", ".join(f"{printable(name)} {score:.1%}" for name, score in best)

    def __str__(self) -> str:
        return f"{printable(self.label)} ({self.confidence:.1%})"


class TextClassificationPredictor(TextPredictor):
    """A trained text classifier."""

    config: TextClassificationTaskConfig
    model: TextClassifier

    def __init__(
        self,
        folder: Path,
        config: TextClassificationTaskConfig,
        tokenizer: Tokenizer,
        classes: Sequence[str],
        model: TextClassifier,
    ):
        self.folder, self.config, self.tokenizer, self.classes = folder, config, tokenizer, tuple(classes)
        self.model, self.device = model.eval(), torch.device("cpu")

    @classmethod
    def load(cls, path: str | Path) -> "TextClassificationPredictor":
        folder = Path(path)
        task_config = config.build(TextClassificationTaskConfig, config.read(folder / CONFIG))
        [tokenizer] = read_tokenizers(folder, task_config.tokenizer, [TOKENIZER])
        classes = read_json(folder / CLASSES)
        check(isinstance(classes, list), f"{folder / CLASSES} must be a list of names, got {type(classes).__name__}")
        check_class_names(classes)
        model_config = config.for_data(task_config.model, vocab_size=len(tokenizer), num_classes=len(classes))
        model = read_weights(folder, lambda: TextClassifier(model_config), depth=model_config.dimensions["depth"])
        return cls(folder, task_config, tokenizer, classes, model)

    def prepare(self, item: Any) -> list[int]:
        """Tokenize one text; token ids with the start and end token."""
        item = self.check_text(item, fix="classify its parts")
        [ids] = self.tokenizer.encode([item])
        check(ids, f"text must have at least one word, got {item[:20]!r}")
        special, max_tokens = self.tokenizer.special_tokens, self.config.data.max_tokens
        return [special.id("bos"), *ids[: max_tokens - 2], special.id("eos")]  # cut as in training

    def predict_batch(
        self, prepared: list[list[int]], *, top_k: int | None = None, attention: bool = False
    ) -> list[TextPrediction]:
        """The classes of prepared texts. `attention` records the attention."""
        if not attention:
            return self._predictions(prepared, self._logits(prepared))
        logits, record = self._recorded(prepared)
        predictions = self._predictions(prepared, logits)
        return [
            replace(prediction, attention=without_padding(record, i, len(prepared[i])))
            for i, prediction in enumerate(predictions)
        ]

    def _logits(self, prepared: list[list[int]]) -> Tensor:
        """(B, C) on the CPU"""
        pad_id = self.tokenizer.special_tokens.id("pad")
        with torch.inference_mode():
            logits: Tensor = self.model(*input_batch(prepared, pad_id, self.device))
        return logits.float().cpu()

    def _recorded(self, prepared: list[list[int]]) -> tuple[Tensor, Record]:
        with record_attention(self.model, cpu=True) as record:
            logits = self._logits(prepared)
        return logits, record

    def _predictions(self, prepared: list[list[int]], logits: Tensor) -> list[TextPrediction]:
        predictions = []
        for ids, row in zip(prepared, logits.softmax(-1), strict=True):
            order = row.argsort(descending=True, stable=True).tolist()
            scores = {self.classes[i]: float(row[i]) for i in order}
            label = self.classes[order[0]]
            predictions.append(TextPrediction(label, scores[label], scores, tuple(self.tokenizer.tokens(ids))))
        return predictions

    def explain_batch(
        self,
        prepared: list[list[int]],
        inputs: list[Any],
        *,
        progress: Progress | None = None,
        top_k: int | None = None,
    ) -> "tuple[list[TextPrediction], Page]":
        logits, record = self._recorded(prepared)
        predictions = self._predictions(prepared, logits)
        return predictions, self._page(inputs, predictions, record)

    def inspect_batch(
        self, prepared: list[list[int]], *, top_k: int | None = None, **options: Any
    ) -> list[tuple[TextPrediction, Inspection]]:
        predictions, special = self.predict_batch(prepared, top_k=top_k, attention=True), self.tokenizer.special_tokens
        return [(p, inspection(p.attention, {"source": p.tokens}, special)) for p in predictions]

    def input_tokens(self, prepared: list[int]) -> list[InputToken]:
        return sentence_tokens(self.tokenizer, prepared)

    def _without_tokens(self, prepared: list[int], positions: frozenset[int]) -> list[int]:
        return without_positions(prepared, positions)

    def _page(self, texts: Sequence[str], predictions: Sequence[TextPrediction], record: Record) -> "Page":
        """The viewer with one example per text; the token that the classifier reads has the name of the prediction."""
        special, length = self.tokenizer.special_tokens, max(len(prediction.tokens) for prediction in predictions)
        reads_first = self.config.model.pool == "first"
        names = [shortened(f"{text}: {prediction}", 100) for text, prediction in zip(texts, predictions, strict=True)]
        tokens = [[str(p) if reads_first else p.tokens[0], *p.tokens[1:]] for p in predictions]
        return record.view(
            [padded(row, length) for row in tokens],
            batch=list(range(len(predictions))),
            special_tokens={special.tokens[i] for i in special.control_ids},
            title=names[0] if len(names) == 1 else f"{len(names)} texts",
            names=names,
        )

    def show(self, inputs: Sequence[str] = (), out: str | Path | None = None, *, format: str = "png") -> FigureFiles:
        """Write figures of the training curves, and of the attention on these texts, to a folder."""
        files = FigureFiles.create(self.folder, out, format)
        if inputs:
            check_page_size(inputs=len(inputs))
        prepared = [self.prepare(text) for text in inputs]
        files.add("training", training_curves, self.folder, "accuracy")
        if inputs:
            predictions = self.predict_batch(prepared, attention=True)
            for i, prediction in enumerate(predictions, start=1):
                files.add(f"text-{i}", attention_figure, prediction.attention, prediction.tokens, str(prediction))
            files.add_page(self.explain_batch(prepared, [*inputs])[1])
        return files

    def details(self) -> dict[str, Any]:
        return {"vocabulary": len(self.tokenizer), "classes": list(self.classes)}

    def columns(self, top: int | None = None) -> list[str]:
        return ["label", "confidence", *(f"scores.{name}" for name in self.classes)]

    def evaluate(self, data: Any = None, *, progress: Progress | None = None) -> TextEvaluation:
        """Accuracy on the run's test set, or its validation set if it has none.

        For other data: on its test set, or on all of it if it has none.
        """
        text, split = self.evaluation_corpus(data)
        sums = evaluate(*self.logits_and_labels(text, progress))
        return TextEvaluation.from_sums(split, sums, self.classes)

    def logits_and_labels(self, text: LabeledText, progress: Progress | None = None) -> tuple[Tensor, Tensor]:
        """Logits (N, C) and labels (N,) of labeled texts, on the CPU. Long texts are cut."""
        labels = label_indices(text, self.classes)
        encoded = encode_sentences(text.texts, self.tokenizer, self.config.data.max_tokens).to(self.device)
        with torch.inference_mode():
            return logits_of(self.model, encoded, progress=progress).cpu(), labels
