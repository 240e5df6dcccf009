"""Training of a translator: its data, batches, loss and validation metrics."""

import itertools
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import seeds
from ...data.text.batching import LengthBuckets, PairBatch
from ...data.text.corpora import ParallelText, TextSplits
from ...data.text.tokenized import TokenizedText
from ...data.text.tokenizers import TokenizerConfig
from ...models.seq2seq import Seq2Seq
from ...predictor import Progress
from ...training.task import BatchSlice, Task
from .config import TranslationTaskConfig
from .evaluate import evaluation_sums, metrics


class TranslationTask(Task):
    """A translator and the sentence pairs it is trained on."""

    monitor, higher_is_better, unit = "bleu", True, "tokens"

    def __init__(self, config: TranslationTaskConfig, data: TextSplits[ParallelText], progress: Progress | None = None):
        text = TokenizedText.of(data, config.tokenizer, config.data.max_tokens)
        self.tokenizers, self.train, self.validation = text.tokenizers, text.train, text.validation
        self.references = () if data.validation is None else data.validation.target
        self.config = replace(config, model=config.model.with_vocab_sizes(*map(len, self.tokenizers)))
        self.model = Seq2Seq(self.config.model.chosen)
        self.data_fingerprint = data_fingerprint(data, num_long=len(data.train) - len(text.train))
        self.device = torch.device("cpu")
        self._buckets: dict[int, LengthBuckets] = {}

    @staticmethod
    def load_data(config: TranslationTaskConfig, progress: Progress | None = None) -> TextSplits[ParallelText]:
        """Read the config's corpus."""
        return config.data.load(config.seed)

    def files(self) -> dict[str, bytes]:
        names = tokenizer_files(self.config.tokenizer)
        return {name: tokenizer.to_json().encode() for name, tokenizer in zip(names, self.tokenizers, strict=False)}

    def steps_per_epoch(self, batch_size: int) -> int:
        return len(self._buckets_of(batch_size))

    def _buckets_of(self, batch_size: int) -> LengthBuckets:
        if batch_size not in self._buckets:
            self._buckets[batch_size] = LengthBuckets(self.train.shapes(), batch_size)
        return self._buckets[batch_size]

    def to(self, device: torch.device) -> None:
        self.device = device
        self.model.to(device)
        self.train = self.train.to(device)
        self.validation = None if self.validation is None else self.validation.to(device)

    def batches(
        self, first_step: int, batch_size: int, batch_slice: BatchSlice
    ) -> Generator[list[tuple[PairBatch, int]], None, None]:
        buckets, shares, epoch = self._buckets_of(batch_size), batch_slice.world_size * batch_slice.micro_batches, -1
        order, batch_order, indices = np.empty(0), np.empty(0), torch.empty(0)
        for step in itertools.count(first_step):
            if step // len(buckets) != epoch:
                epoch = step // len(buckets)
                order, batch_order = buckets.epoch(seeds.make_generator(self.config.seed, seeds.ORDER, epoch))
                indices = torch.from_numpy(order).to(self.device)
            rows, shape = buckets.batches[batch_order[step % len(buckets)]]
            count = rows.stop - rows.start
            num_labels = int(self.train.target.lengths[order[rows]].sum()) - count  # without BOS
            slices = batch_slice.indices(-(-count // shares) * shares)
            yield [self._micro_batch(indices[rows], part, shape, num_labels) for part in slices]

    def _micro_batch(
        self, indices: Tensor, part: slice, shape: tuple[int, ...], num_labels: int
    ) -> tuple[PairBatch, int]:
        """A part of a batch, and the number of labels in the whole batch.

        An empty part gets one pair without labels, so every process makes the same number of forward passes.
        """
        if len(indices[part]):
            return self.train.batch(indices[part], shape), num_labels
        return self.train.batch(indices[:1], shape, labeled=False), num_labels

    def loss(self, model: nn.Module, micro_batch: tuple[PairBatch, int]) -> Tensor:
        batch, num_labels = micro_batch
        smoothing = self.config.label_smoothing
        arguments = batch.source, batch.attention_mask, batch.target
        loss: Tensor = model(*arguments, labels=batch.labels, label_smoothing=smoothing)
        return loss / num_labels

    def evaluate(self, model: Any, batch_slice: BatchSlice) -> dict[str, Tensor]:
        if self.validation is None:
            return {}
        options: dict[str, Any] = {"max_tokens": self.config.data.max_tokens, "batch_slice": batch_slice}
        return evaluation_sums(model, self.validation, self.references, self.tokenizers[1], **options)

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        return metrics(sums) if sums else {}


def tokenizer_files(config: TokenizerConfig) -> tuple[str, ...]:
    """Names of the tokenizer files in a run."""
    return ("tokenizer.json",) if config.shared_vocab else ("tokenizer.source.json", "tokenizer.target.json")


def data_fingerprint(splits: TextSplits[ParallelText], num_long: int) -> dict[str, Any]:
    """Counts and digests of a corpus; `num_long` training pairs are longer than data.max_tokens."""
    result: dict[str, Any] = {}
    for name in ("train", "validation", "test"):
        pairs: ParallelText | None = getattr(splits, name)
        result[name] = {"pairs": 0} if pairs is None else {"pairs": len(pairs), "sentences": pairs.digest()}
    result["train"] |= {"dropped_empty": splits.train.num_dropped, "dropped_long": num_long}
    return result
