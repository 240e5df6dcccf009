"""A trained text classifier: class, confidence and attention for a text."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import config
from ...attention import Record
from ...data.images.datasets import check_class_names
from ...data.text.labeled import LabeledText
from ...data.text.tokenized import encode_sentences
from ...data.text.tokenizers import Tokenizer
from ...errors import SightlineWarning, check
from ...files import CONFIG, read_json
from ...models.text_classifier import TextClassifier
from ...names import shortened
from ...predictor import Progress
from ...weights import read_weights
from ..classification import ClassPrediction
from ..encoder_predictor import CutTokens, EncoderPredictor
from ..text_data import TOKENIZER, read_tokenizers
from ..text_predictor import MAX_NAME_CHARS
from .config import TextClassificationTaskConfig
from .evaluate import TextEvaluation, evaluate, label_indices, logits_of
from .task import CLASSES


@dataclass(frozen=True)
class TextPrediction(ClassPrediction):
    """The classes predicted for one text."""

    tokens: tuple[str, ...] = ()
    """Tokens of the text, with the start and end token."""
    attention: Record | None = None
    """Recorded attention, if requested; one row and column per token."""
    cut_tokens: int = 0
    """Tokens at the end of the text that the model does not read, because the text is too long."""
    unknown_tokens: int = 0
    """Tokens outside the vocabulary: unknown words, or single bytes."""
    error: None = None

    def to_dict(self) -> dict[str, Any]:
        values = {"label": self.label, "confidence": self.confidence, "scores": self.scores}
        counts = {"cut_tokens": self.cut_tokens, "unknown_tokens": self.unknown_tokens}
        return {**values, "tokens": list(self.tokens), **counts, "error": self.error}


class TextClassificationPredictor(EncoderPredictor):
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
        self.model, self.device, self._has_reported_cut = model.eval(), torch.device("cpu"), False

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
        special, limit = self.tokenizer.special_tokens, self.max_input_tokens
        prepared = [special.id("bos"), *ids[:limit], special.id("eos")]  # cut as in training
        if len(ids) <= limit:
            return prepared
        if not self._has_reported_cut:
            self._has_reported_cut = True
            rule = f"a text of {len(ids):,} tokens is cut to {limit:,}, as in training (data.max_tokens)"
            warnings.warn(f"{rule}; further ones are not reported", SightlineWarning, stacklevel=2)
        return CutTokens(prepared, len(ids) - limit)

    def predictions(self, prepared: list[list[int]], logits: Tensor, top_k: int | None) -> list[TextPrediction]:
        """The classes of prepared texts."""
        predictions = []
        for ids, row in zip(prepared, logits.softmax(-1), strict=True):
            tokens, cut = tuple(self.tokenizer.tokens(ids)), ids.num_cut if isinstance(ids, CutTokens) else 0
            counts = {"cut_tokens": cut, "unknown_tokens": self.tokenizer.count_unknown(ids)}
            predictions.append(TextPrediction.from_probabilities(self.classes, row, tokens=tokens, **counts))
        return predictions

    def shown_tokens(self, prediction: TextPrediction) -> list[str]:
        """The token that the classifier reads has the name of the prediction."""
        first, *rest = prediction.tokens
        return [str(prediction) if self.config.model.pool == "first" else first, *rest]

    def page_name(self, text: str, prediction: TextPrediction) -> str:
        return shortened(f"{text}: {prediction}", MAX_NAME_CHARS)

    def page_scores(self, prediction: TextPrediction) -> dict[str, float]:
        return prediction.scores

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
