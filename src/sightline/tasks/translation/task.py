"""Training of a translator: its data, batches, loss and validation metrics."""

import math
from collections.abc import Generator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from ...data.text.batching import LengthBuckets, PairBatch
from ...data.text.corpora import ParallelText, TextSplits
from ...data.text.tokenized import TokenizedText
from ...data.text.tokenizers import TokenizerConfig
from ...kernels.cross_entropy import IGNORE_INDEX
from ...models.seq2seq import Seq2Seq
from ...predictor import Progress
from ...training.task import MIN_CALIBRATION_EXAMPLES, BatchSlice, Task
from ..text_data import TOKENIZER, data_fingerprint, earlier_tokenizers
from . import quality
from .config import TranslationTaskConfig
from .evaluate import bleu, translate
from .quality import Quality


class TranslationTask(Task):
    """A translator and the sentence pairs it is trained on."""

    monitor, higher_is_better, unit = "bleu", True, "tokens"

    def __init__(self, config: TranslationTaskConfig, data: TextSplits[ParallelText], progress: Progress | None = None):
        trained = earlier_tokenizers(config, tokenizer_files(config.tokenizer))
        text = TokenizedText.of(data, config.tokenizer, config.data.max_tokens, trained)
        self.tokenizers, self.train, self.validation = text.tokenizers, text.train, text.validation
        self.references = () if data.validation is None else data.validation.target
        self._data = data
        self.quality: Quality | None = None
        self.config = replace(config, model=config.model.with_vocab_sizes(*map(len, self.tokenizers)))
        self.model = Seq2Seq(self.config.model.chosen)
        self.data_fingerprint = data_fingerprint(data, "pairs", dropped_long=len(data.train) - len(text.train))
        self.device = torch.device("cpu")
        self._buckets = cache(lambda batch_size: LengthBuckets(self.train.shapes(), batch_size))

    @staticmethod
    def load_data(config: TranslationTaskConfig, progress: Progress | None = None) -> TextSplits[ParallelText]:
        """Read the config's corpus."""
        return config.data.load(config.seed)

    def files(self) -> dict[str, bytes]:
        names = tokenizer_files(self.config.tokenizer)
        files = {name: tokenizer.to_json().encode() for name, tokenizer in zip(names, self.tokenizers, strict=False)}
        return files if self.quality is None else {**files, quality.FILE: self.quality.to_bytes()}

    def steps_per_epoch(self, batch_size: int) -> int:
        return len(self._buckets(batch_size))

    def to(self, device: torch.device) -> None:
        self.device = device
        self.model.to(device)
        self.train = self.train.to(device)
        self.validation = None if self.validation is None else self.validation.to(device)

    def batches(
        self, first_step: int, batch_size: int, batch_slice: BatchSlice
    ) -> Generator[list[tuple[PairBatch, int]], None, None]:
        for _, rows, indices, shape in self._buckets(batch_size).steps(first_step, self.config.seed, self.device):
            count = len(rows)
            num_labels = int(self.train.target.lengths[rows].sum()) - count  # without BOS
            slices = batch_slice.indices(count)
            yield [self._micro_batch(indices, part, shape, num_labels) for part in slices]

    def _micro_batch(
        self, indices: Tensor, part: slice, shape: tuple[int, ...], num_labels: int
    ) -> tuple[PairBatch, int]:
        """A part of a batch, and the number of labels in the whole batch.

        An empty part gets one pair without labels, so every process makes the same number of forward passes.
        """
        has_pairs = len(indices[part]) > 0
        return self.train.batch(indices[part] if has_pairs else indices[:1], shape, labeled=has_pairs), num_labels

    def loss(self, model: nn.Module, micro_batch: tuple[PairBatch, int]) -> Tensor:
        batch, num_labels = micro_batch
        smoothing = self.config.label_smoothing
        arguments = batch.source, batch.attention_mask, batch.target
        loss: Tensor = model(*arguments, labels=batch.labels, label_smoothing=smoothing)
        return loss / num_labels

    def evaluate(self, model: Any, batch_slice: BatchSlice) -> dict[str, Tensor]:
        """Sums of the loss and of BLEU's counts, decoded greedily."""
        if self.validation is None:
            return {}
        encoded, tokenizer, max_tokens = self.validation, self.tokenizers[1], self.config.data.max_tokens
        indices = range(batch_slice.rank, len(encoded), batch_slice.world_size)
        zeros = partial(torch.zeros, dtype=torch.float64, device=self.device)
        sums = {"loss": zeros(()), "tokens": zeros(()), "bleu": zeros(10)}
        translations: dict[int, str] = {}
        for translated, hypotheses in translate(model, encoded, indices, max_tokens):
            num_source, num_target = (int(side.lengths[translated].max()) for side in (encoded.source, encoded.target))
            batch = encoded.batch(torch.tensor(translated, device=self.device), (num_source, num_target - 1))
            sums["loss"] += model(batch.source, batch.attention_mask, batch.target, labels=batch.labels)
            sums["tokens"] += (batch.labels != IGNORE_INDEX).sum()
            for i, (best, *_) in zip(translated, hypotheses, strict=True):
                translations[i] = tokenizer.decode(best.tokens)
        if indices:
            pairs = [(translations[i], self.references[i]) for i in indices]
            score = bleu(*zip(*pairs, strict=True), lowercase=tokenizer.config.lowercase)
            counts = [*score.counts, *score.totals, score.sys_len, score.ref_len]
            sums["bleu"] += torch.tensor(counts, device=self.device)
        return sums

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """BLEU, loss and perplexity."""
        from sacrebleu import BLEU

        if not sums:
            return {}
        loss = float(sums["loss"]) / float(sums["tokens"])
        counts = [int(count) for count in sums["bleu"].round().tolist()]
        score = BLEU.compute_bleu(counts[:4], counts[4:8], sys_len=counts[8], ref_len=counts[9])
        return {"bleu": score.score, "loss": loss, "perplexity": math.exp(min(loss, 100))}

    @torch.no_grad()
    def finish(self, weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Calibrate the estimated quality on the validation sentences; the weights do not change."""
        validation = self._data.validation
        if validation is None or len(validation) < MIN_CALIBRATION_EXAMPLES:
            return weights, {}
        model = Seq2Seq(self.config.model.chosen).to(self.device).eval()
        model.load_state_dict(weights)
        sources = self._data.train.source
        self.quality = quality.measure_quality(model, self.tokenizers, self.config, sources, validation)
        return weights, {}


def tokenizer_files(config: TokenizerConfig) -> tuple[str, ...]:
    """Names of the tokenizer files in a run."""
    return (TOKENIZER,) if config.shared_vocab else ("tokenizer.source.json", "tokenizer.target.json")
