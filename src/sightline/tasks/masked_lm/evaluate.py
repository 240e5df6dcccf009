"""Evaluation of a masked language model: masked accuracy and pseudo-perplexity.

Shapes: B batch, T tokens, N masked positions of a row.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ... import seeds
from ...data.text.batching import PackedSequences
from ...data.text.corpora import MonolingualText
from ...data.text.masking import TokenMasker
from ...data.text.tokenized import encode_sentences
from ...errors import check
from ...kernels.cross_entropy import IGNORE_INDEX
from ...metrics import wilson_interval
from ...predictor import SPLIT_NOTES, Progress
from ...training.task import BatchSlice

TOKENS_PER_BATCH = {"cpu": 1 << 13, "cuda": 1 << 15}
"""Tokens that are evaluated together, padding included."""
SENTENCES_PER_MASKING = 256
"""Sentences that are masked together; batches of another size would mask other tokens."""
MAX_SCORED_SENTENCES = 1000
"""Sentences whose pseudo-perplexity is computed: each takes as many forward passes as it has tokens."""
MAX_ACCURACY_DIFFERENCE = 0.005
"""Largest difference that `compare_precision` accepts."""


@dataclass(frozen=True)
class MaskedLMEvaluation:
    """Metrics of a masked language model on a set of sentences."""

    split: str
    lines: int
    masked_tokens: int
    accuracy: float
    """Fraction of masked tokens that are predicted correctly. The config's fraction of the tokens is masked."""
    interval: tuple[float, float]
    """95% Wilson interval of the accuracy."""
    loss: float
    """Mean cross entropy at masked tokens, in nats."""
    pseudo_perplexity: float
    """exp of the mean negative log-probability of each token when only this token is masked."""
    word_pseudo_perplexity: float
    """The same sum divided by the number of words, which does not depend on the tokenizer."""
    scored_lines: int
    """Lines of which the pseudo-perplexity was computed: the first ones."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def summary(self) -> str:
        low, high = self.interval
        return (
            f"On the {self.split} set ({self.lines:,} lines{SPLIT_NOTES.get(self.split, '')}): masked accuracy "
            f"{self.accuracy:.2%} (95% interval {low:.2%} to {high:.2%}), pseudo-perplexity "
            f"{self.pseudo_perplexity:.2f} over {self.scored_lines:,} lines."
        )

    def __str__(self) -> str:
        low, high = self.interval
        note = f"  ({self.word_pseudo_perplexity:.2f} per word; {self.scored_lines:,} lines)"
        return "\n".join(
            [
                f"{self.split} set, {self.lines:,} lines{SPLIT_NOTES.get(self.split, '')}",
                f"masked accuracy    {self.accuracy:.2%}  (95% interval {low:.2%} to {high:.2%}; "
                f"{self.masked_tokens:,} tokens)",
                f"masked loss        {self.loss:.4f}",
                f"pseudo-perplexity  {self.pseudo_perplexity:.2f}{note}",
            ]
        )


def masked_sums(
    model: Any,
    masker: TokenMasker,
    encoded: PackedSequences,
    *,
    batch_slice: BatchSlice | None = None,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Sums of loss, correct predictions and masked tokens over this process's share of the sentences.

    All chosen tokens are replaced by the mask token. The same tokens are chosen in every evaluation.
    """
    share, device = batch_slice or BatchSlice(), encoded.ids.device
    sums = {name: torch.zeros((), dtype=torch.float64, device=device) for name in ("loss", "correct", "tokens")}
    order = sorted(range(len(encoded)), key=lambda i: (encoded.lengths[i], i))
    chunks = [order[i : i + SENTENCES_PER_MASKING] for i in range(0, len(order), SENTENCES_PER_MASKING)]
    rounds = -(-len(chunks) // share.world_size)
    for i in range(rounds):  # all processes make the same number of forward passes
        number = i * share.world_size + share.rank
        chunk = chunks[min(number, len(chunks) - 1)]
        generator = torch.Generator().manual_seed(seeds.derive_seed(0, seeds.MASKING, number))
        indices = torch.tensor(chunk, device=device)
        batch = masker.mask(*encoded.take(indices, int(encoded.lengths[chunk].max())), generator, only_masks=True)
        logits = model(batch.tokens, batch.attention_mask, positions=batch.positions).float()
        labels = batch.labels if number < len(chunks) else torch.full_like(batch.labels, IGNORE_INDEX)
        sums["loss"] += F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        sums["correct"] += (logits.argmax(-1) == labels).sum()
        sums["tokens"] += (labels != IGNORE_INDEX).sum()
        if progress is not None:
            progress(i + 1, rounds)
    return sums


def pseudo_log_likelihoods(
    model: Any, encoded: PackedSequences, mask_id: int, progress: Progress | None = None
) -> Tensor:
    """The sum of the log-probabilities of the tokens of each sentence, each masked alone, as float64 (sentences,).

    The first and the last token, `bos` and `eos`, are not masked.
    """
    device, result = encoded.ids.device, torch.zeros(len(encoded), dtype=torch.float64)
    for done, (batch, length) in enumerate(_batches(encoded.lengths, TOKENS_PER_BATCH[device.type])):
        rows, positions = (torch.tensor(column, device=device) for column in zip(*batch, strict=True))
        tokens, attention_mask = encoded.take(rows, length)
        labels = tokens.gather(1, positions[:, None])
        masked = tokens.scatter(1, positions[:, None], mask_id)
        logits = model(masked, attention_mask, positions=positions[:, None])[:, 0].float()
        scores = logits.log_softmax(-1).gather(1, labels)[:, 0].double()
        result.index_add_(0, rows.cpu(), scores.cpu())
        if progress is not None:
            progress(done, done + 1)
    return result


def _batches(lengths: Any, max_tokens: int) -> Iterator[tuple[list[tuple[int, int]], int]]:
    """Sentence and position of every token to mask, in batches of similar length, and the length of each batch."""
    batch: list[tuple[int, int]] = []
    longest = 0
    for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        for position in range(1, int(lengths[i]) - 1):
            if batch and (len(batch) + 1) * int(lengths[i]) > max_tokens:
                yield batch, longest
                batch = []
            batch.append((i, position))
            longest = int(lengths[i])
    if batch:
        yield batch, longest


def evaluate(predictor: Any, text: MonolingualText, split: str, progress: Progress | None = None) -> MaskedLMEvaluation:
    """Masked accuracy of all sentences, which are cut if long, and pseudo-perplexity of the first whole sentences."""
    encoded = encode_sentences(text.sentences, predictor.tokenizer, predictor.config.data.max_tokens)
    indices = scored_indices([predictor], text)
    scored = text.take(indices)
    with torch.inference_mode():
        sums = masked_sums(predictor.model, predictor.masker, encoded.to(predictor.device), progress=progress)
        log_likelihoods = scored_sentences(predictor, scored)
    tokens, correct = float(sums["tokens"]), float(sums["correct"])
    check(tokens > 0, f"data must have known words to mask, got none in {len(text):,} lines")
    num_tokens = int((encoded.lengths[indices] - 2).sum())
    total = -float(log_likelihoods.sum())
    return MaskedLMEvaluation(
        split=split,
        lines=len(text),
        masked_tokens=int(tokens),
        accuracy=correct / tokens,
        interval=wilson_interval(correct, tokens),
        loss=float(sums["loss"]) / tokens,
        pseudo_perplexity=math.exp(min(100.0, total / num_tokens)),
        word_pseudo_perplexity=math.exp(min(100.0, total / int(count_words(scored).sum()))),
        scored_lines=len(scored),
    )


def scored_indices(predictors: Sequence[Any], text: MonolingualText) -> list[int]:
    """The first sentences that no predictor cuts, or the first ones if there are none."""
    fits = np.ones(len(text), dtype=bool)
    for predictor in predictors:
        lengths = np.array([len(ids) for ids in predictor.tokenizer.encode(text.sentences)])
        fits &= (lengths > 0) & (lengths <= predictor.config.data.max_tokens - 2)
    whole = np.flatnonzero(fits)[:MAX_SCORED_SENTENCES].tolist()
    return whole or list(range(min(MAX_SCORED_SENTENCES, len(text))))


def scored_sentences(predictor: Any, text: MonolingualText, progress: Progress | None = None) -> Tensor:
    """The pseudo-log-likelihood of each sentence by a predictor: float64 (sentences,)"""
    encoded = encode_sentences(text.sentences, predictor.tokenizer, predictor.config.data.max_tokens)
    with torch.inference_mode():
        mask_id = predictor.masker.mask_id
        return pseudo_log_likelihoods(predictor.model, encoded.to(predictor.device), mask_id, progress)


def count_words(text: MonolingualText) -> Tensor:
    """Words of each sentence, separated by spaces: float64 (sentences,)"""
    return torch.tensor([len(sentence.split()) for sentence in text.sentences], dtype=torch.float64)


def compare_precision(before: Any, after: Any, data: Any, progress: Progress | None = None) -> str:
    """Compare the masked accuracy before and after a conversion to half precision; raises SightlineError if it differs
    too much.
    """
    text, split = before.evaluation_corpus(data)
    old, new = (evaluate(predictor, text, split, progress).accuracy for predictor in (before, after))
    rule = f"masked accuracy in half precision must differ by at most {MAX_ACCURACY_DIFFERENCE}"
    check(abs(new - old) <= MAX_ACCURACY_DIFFERENCE, f"{rule}, got {old:.4f} before and {new:.4f} after")
    return f"masked accuracy {old:.4f} before and {new:.4f} after, over {len(text):,} lines of the {split} set"
