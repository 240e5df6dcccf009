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
from ...data.text.tokenized import encode_sentences, pack_sentences
from ...errors import check
from ...kernels.cross_entropy import IGNORE_INDEX
from ...metrics import wilson_interval
from ...predictor import SELECTION_NOTES, Progress
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
    pseudo_perplexity: float | None
    """exp of the mean negative log-probability of each known token when only this token is masked; None if no line
    fits `data.max_tokens`."""
    word_pseudo_perplexity: float | None
    """The same per word, over the scored lines without unknown tokens: it does not depend on the tokenizer. None
    without such lines."""
    scored_lines: int
    """Lines of which the pseudo-perplexity was computed: the first ones that fit `data.max_tokens`."""
    long_lines: int
    """Lines that do not fit `data.max_tokens`. They are cut for the masked accuracy."""
    unknown_tokens: int
    """Tokens of the scored lines that are outside the vocabulary. They are not scored, as they are never masked in
    training."""
    known_lines: int
    """Scored lines without unknown tokens."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def summary(self) -> str:
        low, high = self.interval
        return (
            f"On the {self.split} set ({self.lines:,} lines{SELECTION_NOTES.get(self.split, '')}): masked accuracy "
            f"{self.accuracy:.2%} (95% interval {low:.2%} to {high:.2%}), pseudo-perplexity "
            f"{shown(self.pseudo_perplexity)} over {self._scored()}."
        )

    def __str__(self) -> str:
        (low, high), unknown = self.interval, self.unknown_tokens
        notes = f"{self._scored()}{f'; {unknown:,} unknown tokens are not scored' if unknown else ''}"
        return "\n".join(
            [
                f"{self.split} set, {self.lines:,} lines{SELECTION_NOTES.get(self.split, '')}",
                f"masked accuracy    {self.accuracy:.2%}  (95% interval {low:.2%} to {high:.2%}; "
                f"{self.masked_tokens:,} tokens)",
                f"masked loss        {self.loss:.4f}",
                f"pseudo-perplexity  {shown(self.pseudo_perplexity)}  ({notes})",
                f"  per word         {shown(self.word_pseudo_perplexity)}  ({self.known_lines:,} lines"
                f"{' without unknown tokens' if unknown else ''})",
            ]
        )

    def _scored(self) -> str:
        """How many lines the pseudo-perplexity is of, and why others are left out."""
        count = f"{self.scored_lines:,}{'' if self.scored_lines == self.lines else f' of {self.lines:,}'} lines"
        longer = f"; {self.long_lines:,} {'is' if self.long_lines == 1 else 'are'} longer than data.max_tokens"
        return f"{count}{longer if self.long_lines else ''}"


@dataclass(frozen=True, eq=False)
class LineScores:
    """Scores of each line, as float64 (lines,)."""

    log_likelihoods: Tensor
    """The sum of the log-probabilities of the known tokens, each masked alone."""
    known_tokens: Tensor
    unknown_tokens: Tensor
    words: Tensor
    """Words, separated by spaces."""

    def perplexity(self) -> float | None:
        """Per known token; None without one."""
        return _perplexity(self.log_likelihoods, self.known_tokens)

    def word_perplexity(self) -> float | None:
        """Per word, over the lines without unknown tokens; None without such lines."""
        is_known = self.unknown_tokens == 0
        return _perplexity(self.log_likelihoods[is_known], self.words[is_known])


def _perplexity(log_likelihoods: Tensor, counts: Tensor) -> float | None:
    count = float(counts.sum())
    return math.exp(min(100.0, -float(log_likelihoods.sum()) / count)) if count else None


def shown(perplexity: float | None) -> str:
    """A perplexity for a terminal."""
    return "none" if perplexity is None else f"{perplexity:.2f}"


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
    model: Any, encoded: PackedSequences, masker: TokenMasker, progress: Progress | None = None
) -> tuple[Tensor, Tensor]:
    """The sum of the log-probabilities of the known tokens of each sentence, each masked alone, and their number.

    Both are float64 (sentences,). The first and the last token, `bos` and `eos`, are not masked.
    """
    device = encoded.ids.device
    sums, counts = (torch.zeros(len(encoded), dtype=torch.float64) for _ in range(2))
    batches = list(_batches(encoded.lengths, TOKENS_PER_BATCH[device.type]))
    for done, (batch, length) in enumerate(batches, start=1):
        rows, positions = (torch.tensor(column, device=device) for column in zip(*batch, strict=True))
        tokens, attention_mask = encoded.take(rows, length)
        labels = tokens.gather(1, positions[:, None])
        masked = tokens.scatter(1, positions[:, None], masker.mask_id)
        logits = model(masked, attention_mask, positions=positions[:, None])[:, 0].float()
        is_known = (labels[:, 0] >= masker.num_special).double()
        scores = logits.log_softmax(-1).gather(1, labels)[:, 0].double() * is_known
        sums.index_add_(0, rows.cpu(), scores.cpu())
        counts.index_add_(0, rows.cpu(), is_known.cpu())
        if progress is not None:
            progress(done, len(batches))
    return sums, counts


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


def evaluate(
    predictor: Any,
    text: MonolingualText,
    split: str,
    progress: Progress | None = None,
    scores: LineScores | None = None,
) -> MaskedLMEvaluation:
    """Masked accuracy of all lines, which are cut if long, and pseudo-perplexity of the first lines that fit.

    `scores` are those of other lines, which are then used.
    """
    ids = predictor.tokenizer.encode(text.sentences)
    encoded = pack_sentences(ids, predictor.tokenizer, predictor.config.data.max_tokens)
    with torch.inference_mode():
        sums = masked_sums(predictor.model, predictor.masker, encoded.to(predictor.device), progress=progress)
    tokens, correct = float(sums["tokens"]), float(sums["correct"])
    check(tokens > 0, f"data must have known words to mask, got none in {len(text):,} lines")
    if scores is None:
        scores = score_lines(predictor, text, _first(_fits(predictor, ids)), progress)
    return MaskedLMEvaluation(
        split=split,
        lines=len(text),
        masked_tokens=int(tokens),
        accuracy=correct / tokens,
        interval=wilson_interval(correct, tokens),
        loss=float(sums["loss"]) / tokens,
        pseudo_perplexity=scores.perplexity(),
        word_pseudo_perplexity=scores.word_perplexity(),
        scored_lines=len(scores.words),
        long_lines=sum(len(line) > predictor.max_input_tokens for line in ids),
        unknown_tokens=int(scores.unknown_tokens.sum()),
        known_lines=int((scores.unknown_tokens == 0).sum()),
    )


def shared_indices(predictors: Sequence[Any], text: MonolingualText) -> list[int]:
    """The first lines that no predictor cuts and whose tokens all of them know."""
    fits = np.ones(len(text), dtype=bool)
    for predictor in predictors:
        ids = predictor.tokenizer.encode(text.sentences)
        fits &= _fits(predictor, ids) & [min(line, default=0) >= predictor.masker.num_special for line in ids]
    return _first(fits)


def _fits(predictor: Any, ids: Sequence[Sequence[int]]) -> Any:
    """Whether each line has tokens and is not cut: bool (lines,)"""
    return np.array([0 < len(line) <= predictor.max_input_tokens for line in ids])


def _first(fits: Any) -> list[int]:
    return [int(i) for i in np.flatnonzero(fits)[:MAX_SCORED_SENTENCES]]


def score_lines(
    predictor: Any, text: MonolingualText, indices: Sequence[int], progress: Progress | None = None
) -> LineScores:
    """Scores of the lines at some indices, of which none is cut."""
    lines = [text.sentences[i] for i in indices]
    encoded = encode_sentences(lines, predictor.tokenizer, predictor.config.data.max_tokens)
    with torch.inference_mode():
        model, moved = predictor.model, encoded.to(predictor.device)
        log_likelihoods, known = pseudo_log_likelihoods(model, moved, predictor.masker, progress)
    unknown = torch.from_numpy(encoded.lengths - 2) - known
    words = torch.tensor([len(line.split()) for line in lines], dtype=torch.float64)
    return LineScores(log_likelihoods, known, unknown, words)


def compare_precision(before: Any, after: Any, data: Any, progress: Progress | None = None) -> str:
    """Compare the masked accuracy before and after a conversion to half precision; raises SightlineError if it differs
    too much.
    """
    text, split = before.evaluation_corpus(data)
    old, new = (evaluate(predictor, text, split, progress).accuracy for predictor in (before, after))
    rule = f"masked accuracy in half precision must differ by at most {MAX_ACCURACY_DIFFERENCE}"
    check(abs(new - old) <= MAX_ACCURACY_DIFFERENCE, f"{rule}, got {old:.4f} before and {new:.4f} after")
    return f"masked accuracy {old:.4f} before and {new:.4f} after, over {len(text):,} lines of the {split} set"
