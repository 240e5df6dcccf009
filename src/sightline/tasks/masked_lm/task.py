"""Training of a masked language model: its data, batches, loss and validation metrics."""

import math
from collections.abc import Generator
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ... import seeds
from ...config import for_data
from ...data.text.batching import LengthBuckets
from ...data.text.corpora import MonolingualText, TextSplits
from ...data.text.masking import MaskedBatch, TokenMasker
from ...data.text.tokenized import TokenizedSentences
from ...kernels.cross_entropy import IGNORE_INDEX
from ...models.masked_lm import MaskedLM
from ...predictor import Progress
from ...training.task import BatchSlice, Task
from ..text_data import TOKENIZER, data_fingerprint, earlier_tokenizer
from .config import MaskedLMTaskConfig
from .evaluate import masked_sums


class MaskedLMTask(Task):
    """A masked language model and the sentences it is trained on."""

    monitor, higher_is_better, unit = "accuracy", True, "tokens"

    def __init__(self, config: MaskedLMTaskConfig, data: TextSplits[MonolingualText], progress: Progress | None = None):
        trained = earlier_tokenizer(config)
        text = TokenizedSentences.of(data, config.tokenizer, config.data.max_tokens, trained)
        self.tokenizer, self.train, self.validation = text.tokenizer, text.train, text.validation
        self.notes = text.notes(config.data.max_tokens)
        self.config = replace(config, model=for_data(config.model, vocab_size=len(self.tokenizer)))
        self.model = MaskedLM(self.config.model)
        masking = config.masking
        self.masker = TokenMasker(self.tokenizer, fraction=masking.fraction, whole_words=masking.whole_words)
        self.data_fingerprint = data_fingerprint(data, "lines")
        self.device = torch.device("cpu")
        self._buckets = cache(lambda batch_size: LengthBuckets(self.train.shapes(), batch_size))

    @staticmethod
    def load_data(config: MaskedLMTaskConfig, progress: Progress | None = None) -> TextSplits[MonolingualText]:
        """Read the config's corpus."""
        return config.data.load(config.seed)

    def files(self) -> dict[str, bytes]:
        return {TOKENIZER: self.tokenizer.to_json().encode()}

    def steps_per_epoch(self, batch_size: int) -> int:
        return len(self._buckets(batch_size))

    def to(self, device: torch.device) -> None:
        self.device = device
        self.model.to(device)
        self.masker.to(device)
        self.train = self.train.to(device)
        self.validation = None if self.validation is None else self.validation.to(device)

    def batches(
        self, first_step: int, batch_size: int, batch_slice: BatchSlice
    ) -> Generator[list[tuple[MaskedBatch, Tensor]], None, None]:
        generator = torch.Generator(self.device)
        for step, _, indices, (length,) in self._buckets(batch_size).steps(first_step, self.config.seed, self.device):
            generator.manual_seed(seeds.derive_seed(self.config.seed, seeds.MASKING, step))
            masked = self.masker.mask(*self.train.take(indices, length), generator)
            num_labels = (masked.labels != IGNORE_INDEX).sum().clamp_min(1)
            yield [(self._micro_batch(masked, part), num_labels) for part in batch_slice.indices(len(indices))]

    def _micro_batch(self, masked: MaskedBatch, part: slice) -> MaskedBatch:
        """Some rows of a batch.

        An empty part gets one row without labels, so every process makes the same number of forward passes.
        """
        if part.start < len(masked.tokens):
            return masked.take(part)
        row = masked.take(slice(1))
        return replace(row, labels=torch.full_like(row.labels, IGNORE_INDEX))

    def loss(self, model: nn.Module, micro_batch: tuple[MaskedBatch, Tensor]) -> Tensor:
        batch, num_labels = micro_batch
        loss: Tensor = model(batch.tokens, batch.attention_mask, positions=batch.positions, labels=batch.labels)
        return loss / num_labels

    def evaluate(self, model: Any, batch_slice: BatchSlice) -> dict[str, Tensor]:
        """Sums of the loss and of correct predictions at masked tokens."""
        if self.validation is None:
            return {}
        return masked_sums(model, self.masker, self.validation, batch_slice=batch_slice)

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """Masked accuracy, loss and perplexity at masked tokens."""
        if not sums:
            return {}
        total = max(1.0, float(sums["tokens"]))
        loss = float(sums["loss"]) / total
        return {"accuracy": float(sums["correct"]) / total, "loss": loss, "perplexity": math.exp(min(loss, 100))}
