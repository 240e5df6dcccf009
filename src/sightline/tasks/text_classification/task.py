"""Training of a text classifier: its data, batches, loss and validation metrics."""

import json
from collections.abc import Generator
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import for_data
from ...data.images.datasets import check_class_names
from ...data.text.batching import LengthBuckets
from ...data.text.corpora import TextSplits
from ...data.text.labeled import LabeledText
from ...data.text.tokenized import TokenizedSentences
from ...errors import check
from ...metrics import classification_metrics, fit_calibration_scale
from ...models.text_classifier import TextClassifier
from ...predictor import Progress
from ...training.task import BatchSlice, Task
from ..text_data import TOKENIZER, data_fingerprint, earlier_tokenizer
from .config import TextClassificationTaskConfig
from .evaluate import evaluate, label_indices, logits_of

CLASSES = "classes.json"


class TextClassificationTask(Task):
    """A text classifier and the texts it is trained on."""

    monitor, higher_is_better, unit = "accuracy", True, "tokens"

    def __init__(
        self,
        config: TextClassificationTaskConfig,
        data: TextSplits[LabeledText],
        progress: Progress | None = None,
    ):
        self.classes = data.train.classes
        check_class_names(self.classes)
        check(len(self.classes) > 1, f"data must have texts of at least 2 classes, got {self.classes!r:.200}")
        trained = earlier_tokenizer(config)
        text = TokenizedSentences.of(data, config.tokenizer, config.data.max_tokens, trained)
        self.tokenizer, self.train, self.validation = text.tokenizer, text.train, text.validation
        self.notes = text.notes(config.data.max_tokens)
        self.train_labels = label_indices(data.train, self.classes)
        self.validation_labels = None if data.validation is None else label_indices(data.validation, self.classes)
        sizes = {"vocab_size": len(self.tokenizer), "num_classes": len(self.classes)}
        self.config = replace(config, model=for_data(config.model, **sizes))
        self.model = TextClassifier(self.config.model)
        self.data_fingerprint = data_fingerprint(data, "texts")
        self.device = torch.device("cpu")
        self._buckets = cache(lambda batch_size: LengthBuckets(self.train.shapes(), batch_size))

    @staticmethod
    def load_data(config: TextClassificationTaskConfig, progress: Progress | None = None) -> TextSplits[LabeledText]:
        """Read the config's labeled texts."""
        return config.data.load(config.seed)

    def new_parameters(self, predictor: Any) -> tuple[str, ...]:
        return () if getattr(predictor, "classes", None) == self.classes else ("classifier.",)

    def files(self) -> dict[str, bytes]:
        classes = json.dumps(list(self.classes), ensure_ascii=False, indent=1)
        return {TOKENIZER: self.tokenizer.to_json().encode(), CLASSES: classes.encode()}

    def steps_per_epoch(self, batch_size: int) -> int:
        return len(self._buckets(batch_size))

    def to(self, device: torch.device) -> None:
        self.device = device
        self.model.to(device)
        self.train, self.train_labels = self.train.to(device), self.train_labels.to(device)
        if self.validation is not None and self.validation_labels is not None:
            self.validation = self.validation.to(device)
            self.validation_labels = self.validation_labels.to(device)

    def batches(
        self, first_step: int, batch_size: int, batch_slice: BatchSlice
    ) -> Generator[list[tuple[Tensor, Tensor, Tensor, float]], None, None]:
        for _, rows, indices, (length,) in self._buckets(batch_size).steps(first_step, self.config.seed, self.device):
            yield [self._micro_batch(indices, part, length) for part in batch_slice.indices(len(rows))]

    def _micro_batch(self, indices: Tensor, part: slice, length: int) -> tuple[Tensor, Tensor, Tensor, float]:
        """Tokens, mask, labels and weight of each text of a part of a batch.

        An empty part gets one text of weight 0, so every process makes the same number of forward passes.
        """
        is_empty = part.start >= len(indices)
        chosen = indices[:1] if is_empty else indices[part]
        return *self.train.take(chosen, length), self.train_labels[chosen], 0.0 if is_empty else 1 / len(indices)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor, Tensor, float]) -> Tensor:
        tokens, attention_mask, labels, weight = batch
        logits, smoothing = model(tokens, attention_mask).float(), self.config.label_smoothing
        return weight * F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")

    def evaluate(self, model: nn.Module, batch_slice: BatchSlice) -> dict[str, Tensor]:
        if self.validation is None or self.validation_labels is None:
            return {}
        logits, labels = logits_of(model, self.validation, batch_slice), self.validation_labels
        return evaluate(logits, labels, batch_slice)

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        return classification_metrics(sums) if sums else {}

    @torch.no_grad()
    def finish(self, weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Calibrate the confidence on the validation set."""
        labels = self.validation_labels
        if self.validation is None or labels is None or not self.can_calibrate(len(labels)):
            return weights, {}
        model = TextClassifier(self.config.model).to(self.device).eval()
        model.load_state_dict(weights)
        logits = logits_of(model, self.validation)
        scale = fit_calibration_scale([(logits.double(), labels)])
        model.calibration_scale.fill_(scale)
        metrics = classification_metrics(evaluate(scale * logits, labels))
        state: dict[str, Any] = model.state_dict()
        return {name: tensor.cpu() for name, tensor in state.items()}, metrics
