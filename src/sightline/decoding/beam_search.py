"""Beam search.

Shapes: A sources in progress, R rows of the model's state, K beams, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .. import limits
from ..errors import SightlineError, check_int, check_max
from .hypotheses import MIN_FINISHED, DecodingModel, EncoderOutput, Hypothesis, as_ids, check_decoding, rank_key

NEG_INF = float("-inf")


@torch.inference_mode()
def beam_search(
    model: DecodingModel,
    encoder_output: EncoderOutput,
    *,
    num_beams: int = 5,
    n_best: int = 1,
    length_penalty: float = 1.0,
    early_stopping: bool = True,
    max_tokens: int = 256,
    bos: int = 1,
    eos: int = 2,
    suppress_tokens: Sequence[int] = (0, 1),
) -> list[list[Hypothesis]]:
    """The `n_best` best hypotheses for each source, the best first.

    Hypotheses are ranked by score / length ** length_penalty: 0 compares sums of log-probabilities, which favors short
    sequences; 1 compares means. Finished hypotheses come before unfinished ones. `early_stopping` ends the search of a
    source after `num_beams` finished hypotheses; otherwise it goes on while an unfinished one can still be among the
    best. `bos` and `eos` are the ids of the first and the last token. Tokens in `suppress_tokens` are never predicted.
    """
    check_decoding(model, max_tokens)
    check_int(1, num_beams=num_beams, n_best=n_best)
    check_max(limits.MAX_DECODING_BEAMS, num_beams=num_beams)
    if n_best > num_beams:
        raise SightlineError(f"n_best must be at most num_beams={num_beams}, got {n_best}; raise num_beams")
    if not 0 <= length_penalty < float("inf"):
        raise SightlineError(f"length_penalty must be at least 0 and finite, got {length_penalty}")
    device = encoder_output.device
    search, suppressed = _Search(len(encoder_output), num_beams, length_penalty), as_ids(suppress_tokens, device)
    state, tokens = model.start(encoder_output), torch.full((len(encoder_output),), bos, device=device)
    while search.active:
        logits, state = model.step(state, tokens)
        extended = search.extend(logits.float().log_softmax(-1).index_fill_(-1, suppressed, NEG_INF), eos)
        search.mark_done(*(num_beams, None) if early_stopping else (n_best, max_tokens))
        if search.length == max_tokens:
            break
        remaining = search.drop_done()
        same_source = remaining is None and search.length > 1  # the first step turns one row into K beams
        tokens, indices = (extended if remaining is None else extended[:, remaining]).flatten(1).to(device)
        state = model.reorder(state, indices, same_source=same_source) if search.active else state
    return search.hypotheses(n_best)


class _Candidate(NamedTuple):
    """A hypothesis that is complete, before its tokens are read back."""

    normalized_score: float
    score: float
    length: int
    """Number of tokens, without EOS."""
    beam: int
    """The beam that holds its last token."""
    finished: bool


class _Step(NamedTuple):
    """The tokens added at one position."""

    rows: dict[int, int]
    """Row of each source in the arrays."""
    tokens: np.ndarray
    """(A, K)"""
    parents: np.ndarray
    """Beam at the previous position that each beam continues: (A, K)"""


class _Search:
    """The state of a beam search. Tokens are stored with back pointers and read back at the end."""

    def __init__(self, num_sources: int, num_beams: int, length_penalty: float):
        self.num_beams, self.length_penalty, self.length = num_beams, length_penalty, 0
        self.scores = torch.zeros(num_sources, 1)
        """Scores of the beams, (A, K); before the first step, one for each source."""
        self.active = list(range(num_sources))
        """Sources of the rows of `scores`."""
        self.done: set[int] = set()
        """Sources whose search has ended, until `drop_done` removes them."""
        self.completed: list[list[_Candidate]] = [[] for _ in range(num_sources)]
        self.rows = {source: source for source in range(num_sources)}
        """Row of each active source."""
        self.steps: list[_Step] = []

    def extend(self, log_probs: Tensor, eos: int) -> Tensor:
        """Extend every beam by a token: log_probs (A * K, V) -> tokens and the rows they continue (2, A, K)"""
        (sources, beams), vocab_size, count = self.scores.shape, log_probs.shape[1], 2 * self.num_beams
        totals = log_probs.add_(self.scores.view(-1, 1).to(log_probs.device)).view(sources, beams * vocab_size)
        best = totals.topk(min(count, beams * vocab_size))
        scores, choices = best.values.cpu(), best.indices.cpu()  # the rest is too little work for a GPU
        if scores.shape[1] < count:  # a small vocabulary
            padding = (0, count - scores.shape[1])
            scores, choices = F.pad(scores, padding, value=NEG_INF), F.pad(choices, padding)
        tokens, parents = choices % vocab_size, choices // vocab_size
        is_eos = (tokens == eos) & (scores > NEG_INF)
        self._complete(is_eos[:, : self.num_beams], scores, parents)
        # each beam ends at most once, so of 2 K candidates at least K continue
        continuing = is_eos.argsort(stable=True)[:, : self.num_beams]
        self.scores, tokens, parents = (x.gather(1, continuing) for x in (scores, tokens, parents))
        self.steps.append(_Step(self.rows, tokens.numpy(), parents.numpy()))
        self.length += 1
        return torch.stack((tokens, parents + beams * torch.arange(sources).unsqueeze(1)))

    def _complete(self, is_eos: Tensor, scores: Tensor, parents: Tensor) -> None:
        """Store hypotheses that end now, except of sources that are done: results must not depend on the batch."""
        for row, column in is_eos.nonzero().tolist():
            source = self.active[row]
            if source not in self.done:
                score, beam = scores[row, column].item(), int(parents[row, column])
                normalized_score = score / (self.length + 1) ** self.length_penalty
                self.completed[source].append(_Candidate(normalized_score, score, self.length, beam, True))

    def mark_done(self, required: int, max_tokens: int | None) -> None:
        """Mark sources with `required` complete hypotheses that, given `max_tokens`, no beam can still surpass."""
        best_scores = [0.0] * len(self.active) if max_tokens is None else self.scores.amax(1).tolist()
        for source, best in zip(self.active, best_scores, strict=True):
            if len(self.completed[source]) < required:
                continue
            worst_kept = self._ranked(source)[required - 1].normalized_score
            if max_tokens is None or best / max_tokens**self.length_penalty <= worst_kept:
                self.done.add(source)

    def drop_done(self) -> Tensor | None:
        """Drop sources that are done if they are many enough: the remaining rows (A',), or None if none is dropped."""
        remaining = [row for row, source in enumerate(self.active) if source not in self.done]
        if remaining and len(remaining) > (1 - MIN_FINISHED) * len(self.active):
            return None
        rows = torch.tensor(remaining, dtype=torch.int64)
        self.active, self.scores = [self.active[row] for row in remaining], self.scores[rows]
        self.rows = {source: row for row, source in enumerate(self.active)}
        return rows

    def hypotheses(self, n_best: int) -> list[list[Hypothesis]]:
        """The best hypotheses of every source, with unfinished ones where finished ones are too few."""
        for source, scores in zip(self.active, self.scores.tolist(), strict=True):
            if source not in self.done:
                divisor = max(self.length, 1) ** self.length_penalty
                self.completed[source] += [
                    _Candidate(score / divisor, score, self.length, beam, False)
                    for beam, score in enumerate(scores)
                    if beam == 0 or score > NEG_INF  # at least one, even if all scores are NaN
                ]
        return [
            [
                Hypothesis(self._tokens(source, best), best.score, best.normalized_score, best.finished)
                for best in self._ranked(source)[:n_best]
            ]
            for source in range(len(self.completed))
        ]

    def _ranked(self, source: int) -> list[_Candidate]:
        return sorted(self.completed[source], key=rank_key, reverse=True)

    def _tokens(self, source: int, candidate: _Candidate) -> tuple[int, ...]:
        """Follow the back pointers from the last token."""
        tokens, beam = [], candidate.beam
        for step in reversed(self.steps[: candidate.length]):
            index = step.rows[source], beam
            tokens.append(int(step.tokens[index]))
            beam = int(step.parents[index])
        return tuple(reversed(tokens))
