"""Training of a translator: its data, batches, loss and validation metrics."""

import itertools
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import seeds
from ...data.text.batching import Batch, EncodedPairs, LengthBuckets
from ...data.text.corpora import ParallelText, TextSplits
from ...data.text.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer
from ...errors import SightlineError
from ...training.task import BatchSlice
from .config import TranslationTaskConfig, divide
from .evaluate import metrics, tally

SHARED, APART = ("tokenizer.json",), ("tokenizer.source.json", "tokenizer.target.json")
"""Files of the tokenizers."""


class TranslationTask:
    """Sentences to learn from, and the model that learns."""

    monitor, higher_is_better = "bleu", True

    def __init__(self, config: TranslationTaskConfig, data: TextSplits[ParallelText], progress: Any = None):
        splits = data
        self.splits = splits
        self.tokenizers = learn_both(config.tokenizer, splits.train)
        self.train, long = self._encoded(splits.train, config.data.max_tokens)
        self.validation = None if splits.validation is None else evaluate_on(splits.validation, self.tokenizers, config)
        self.config = replace(config, model=config.model.of_data(*map(len, self.tokenizers)))
        self.model = self.config.model.build()
        self.data_fingerprint = data_fingerprint(splits, long)
        """What the data hold, in few words: a run goes on with the same."""
        self.device = torch.device("cpu")
        self._buckets: dict[int, LengthBuckets] = {}

    @staticmethod
    def load_data(config: TranslationTaskConfig, progress: Any = None) -> TextSplits[ParallelText]:
        """Read the config's corpus."""
        return divide(config.data, config.seed)

    def files(self) -> dict[str, bytes]:
        names = SHARED if self.config.tokenizer.shared_vocab else APART
        return {name: tokenizer.to_json().encode() for name, tokenizer in zip(names, self.tokenizers, strict=False)}

    def finish(self, weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, float]]:
        return weights, {}

    def _encoded(self, pairs: ParallelText, most: int) -> tuple[EncodedPairs, int]:
        """Pairs that are short enough to learn from, and how many are not."""
        source, target = (
            one.encode(side) for one, side in zip(self.tokenizers, (pairs.source, pairs.target), strict=True)
        )
        kept = [i for i in range(len(pairs)) if 0 < len(source[i]) < most and 0 < len(target[i]) < most]
        if not kept:
            raise SightlineError(f"data must have a pair of at most {most} tokens, data.max_tokens, got none")
        special_tokens = self.tokenizers[0].special_tokens
        encoded = EncodedPairs([source[i] for i in kept], [target[i] for i in kept], special_tokens)
        return encoded, len(pairs) - len(kept)

    def steps_per_epoch(self, batch_size: int) -> int:
        return len(self._cut(batch_size))

    def _cut(self, batch_size: int) -> LengthBuckets:
        if batch_size not in self._buckets:
            self._buckets[batch_size] = LengthBuckets(self.train.shapes(), batch_size)
        return self._buckets[batch_size]

    def to(self, device: torch.device) -> None:
        self.device = device
        self.model.to(device)
        self.train.to(device)
        if self.validation is not None:
            self.validation.to(device)

    def batches(self, first: int, batch_size: int, part: BatchSlice) -> Generator[list[Any], None, None]:
        buckets, parts, epoch = self._cut(batch_size), part.world_size * part.micro_batches, -1
        order, cuts, rows = np.empty(0), np.empty(0), torch.empty(0)
        for step in itertools.count(first):
            if step // len(buckets) != epoch:
                epoch = step // len(buckets)
                order, cuts = buckets.epoch(seeds.generator(self.config.seed, seeds.ORDER, epoch))
                rows = torch.from_numpy(order).to(self.device)
            places, shape = buckets.batches[cuts[step % len(buckets)]]
            total = int(self.train.target.lengths[order[places]].sum()) - (places.stop - places.start)  # less the BOS
            share = -(-(places.stop - places.start) // parts)
            yield [self._piece(rows[places], one, shape, total) for one in part.indices(share * parts)]

    def _piece(self, rows: Tensor, own: slice, shape: tuple[int, ...], total: int) -> tuple[Batch, int]:
        """A part of a batch, and the tokens labels in the whole; where too few rows are left, one that wants none."""
        some = rows[own]
        if len(some):
            return self.train.batch(some, shape), total
        blank = torch.ones(1, dtype=torch.bool, device=rows.device)
        return self.train.batch(rows[:1], shape, blank), total

    def loss(self, model: nn.Module, piece: tuple[Batch, int]) -> Tensor:
        """The mean over all tokens that are labels in the whole batch, as far as they are in this piece."""
        batch, total = piece
        label_smoothing = self.config.label_smoothing
        cost: Tensor = model(
            batch.source, batch.attention_mask, batch.target, labels=batch.labels, label_smoothing=label_smoothing
        )
        return cost / total

    def evaluate(self, model: nn.Module, part: BatchSlice) -> dict[str, Tensor]:
        if self.validation is None or self.splits.validation is None:
            return {}
        texts = self.splits.validation.target
        return tally(model, self.validation, texts, self.tokenizers[1], part, self.config.data.max_tokens)

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        return metrics(sums) if sums else {}


def learn_both(config: TokenizerConfig, pairs: ParallelText) -> tuple[Tokenizer, Tokenizer]:
    """A tokenizer for each language, or one for both, from the training pairs alone."""
    if config.shared_vocab:
        both = train_tokenizer(config, [*pairs.source, *pairs.target])
        return both, both
    return train_tokenizer(config, pairs.source), train_tokenizer(config, pairs.target)


def evaluate_on(pairs: ParallelText, tokenizers: tuple[Tokenizer, Tokenizer], config: TranslationTaskConfig) -> EncodedPairs:
    """All pairs, in their order, to be evaluate_on by; what is too long is cut."""
    most = config.data.max_tokens - 1
    source, target = tokenizers[0].encode(pairs.source), tokenizers[1].encode(pairs.target)
    return EncodedPairs([one[:most] for one in source], [one[:most] for one in target], tokenizers[0].special_tokens)


def data_fingerprint(splits: TextSplits[ParallelText], long: int) -> dict[str, Any]:
    """Counts and digests of what a corpus holds; `long` pairs of it were too long to learn from."""
    facts: dict[str, Any] = {}
    for name in ("train", "validation", "test"):
        pairs: ParallelText | None = getattr(splits, name)
        facts[name] = {"pairs": 0} if pairs is None else {"pairs": len(pairs), "sentences": pairs.digest()}
    facts["train"] |= {"left_out_empty": splits.train.num_dropped, "left_out_long": long}
    return facts
