"""Beam search: many hypotheses of every sentence grow side by side.

Legend for all shapes: B sentences, A sentences still running, R rows of the model's state, K beams, N candidates,
V vocabulary, T tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .. import limits
from ..errors import SightlineError, check_int, check_max
from .hypotheses import NOTHING, WORTH, Hypothesis, Memory, Stepper, as_ids, check_ready


@torch.inference_mode()
def beam(
    model: Stepper,
    memory: Memory,
    *,
    beams: int = 5,
    n_best: int = 1,
    length_penalty: float = 1.0,
    early: bool = True,
    max_tokens: int = 256,
    begin: int = 1,
    end: int = 2,
    never: Sequence[int] = (0, 1),
) -> list[list[Hypothesis]]:
    """The best of many ways: of each sentence the `n_best` best hypotheses, the best first.

    `beams` hypotheses grow side by side; one that ends is set aside. `early` stops once as many have ended as there are
    beams; otherwise the search goes on while one that runs could still come among the best. A `length_penalty` of 0
    compares sums, which favors the short; 1 compares means over tokens. Finished ones come before those cut off.
    """
    check_ready(model, max_tokens)
    check_int(1, beams=beams, n_best=n_best)
    check_max(limits.MAX_DECODING_BEAMS, beams=beams)
    if n_best > beams:
        raise SightlineError(f"n_best must be at most beams={beams}, got {n_best}; widen the search")
    if not 0 <= length_penalty < float("inf"):
        raise SightlineError(f"length_penalty must be at least 0 and finite, got {length_penalty}")
    search, forbidden = _Beams(len(memory), beams, length_penalty), as_ids(never, memory.device)
    state, tokens = model.start(memory), torch.full((len(memory),), begin, device=memory.device)
    while search.running:
        logits, state = model.step(state, tokens)
        grown = search.grow(logits.float().log_softmax(-1).index_fill_(-1, forbidden, NOTHING), end)
        search.finish(*(beams, None) if early else (n_best, max_tokens))
        if search.place == max_tokens:
            break
        left = search.drop()
        within = left is None and search.place > 1  # after the first step, one beam becomes many
        tokens, rows = (grown if left is None else grown[:, left]).flatten(1).to(memory.device)
        state = model.reorder(state, rows, within=within) if search.running else state
    return search.hypotheses(n_best)


class _Ended(NamedTuple):
    normalized: float
    score: float
    length: int
    """Tokens, without the end."""
    parent: int
    """The beam that wrote the last of them."""
    finished: bool


class _Beams:
    """What a beam search knows: how far its hypotheses have come, and which have ended.

    Who wrote what is kept as one token and one parent for each place and beam; sentences are read off at the end.
    """

    def __init__(self, sentences: int, beams: int, penalty: float):
        self.beams, self.penalty, self.place = beams, penalty, 0
        self.scores = torch.zeros(sentences, 1)
        """Of the hypotheses that run: (A, K), at first one for each sentence."""
        self.running = list(range(sentences))
        """Which sentences those are."""
        self.done: set[int] = set()
        """Sentences that have all they need; they wait to be dropped."""
        self.ended: list[list[_Ended]] = [[] for _ in range(sentences)]
        self.rows = {sentence: sentence for sentence in range(sentences)}
        """In which of the rows each of them stands."""
        self.written: list[tuple[dict[int, int], np.ndarray, np.ndarray]] = []
        """Place by place: the rows of the sentences, the tokens (A, K) and the parents (A, K) of their beams."""

    def grow(self, gains: Tensor, end: int) -> Tensor:
        """One token more: gains (A * K, V) -> the tokens, and the rows of the state they go on from (2, A, K)"""
        (sentences, beams), words, most = self.scores.shape, gains.shape[1], 2 * self.beams
        totals = gains.add_(self.scores.view(-1, 1).to(gains.device)).view(sentences, beams * words)
        best = totals.topk(min(most, beams * words))
        scores, picks = best.values.cpu(), best.indices.cpu()  # a GPU is waited for; what follows is too little for one
        if scores.shape[1] < most:  # a small vocabulary has not as many words
            rest = (0, most - scores.shape[1])
            scores, picks = F.pad(scores, rest, value=NOTHING), F.pad(picks, rest)
        ids, parents = picks % words, picks // words
        ends = (ids == end) & (scores > NOTHING)
        self._set_aside(ends[:, : self.beams], scores, parents)
        # of each beam at most one ends, so of twice as many there are enough that go on
        going = ends.argsort(stable=True)[:, : self.beams]
        self.scores, ids, parents = scores.gather(1, going), ids.gather(1, going), parents.gather(1, going)
        self.written.append((self.rows, ids.numpy(), parents.numpy()))
        self.place += 1
        return torch.stack((ids, parents + beams * torch.arange(sentences).unsqueeze(1)))

    def _set_aside(self, ends: Tensor, scores: Tensor, parents: Tensor) -> None:
        """Those that end here, but none of a sentence that is done: what came with it must not matter."""
        for row, column in ends.nonzero().tolist():
            sentence = self.running[row]
            if sentence not in self.done:
                score, beam = scores[row, column].item(), int(parents[row, column])
                normalized = score / (self.place + 1) ** self.penalty
                self.ended[sentence].append(_Ended(normalized, score, self.place, beam, True))

    def finish(self, enough: int, max_tokens: int | None) -> None:
        """Note what is done: `enough` have ended and, given `max_tokens`, none that runs can still be better."""
        hopes = [0.0] * len(self.running) if max_tokens is None else self.scores.amax(1).tolist()
        for sentence, hope in zip(self.running, hopes, strict=True):
            if len(self.ended[sentence]) < enough:
                continue
            if max_tokens is None or hope / max_tokens**self.penalty <= self.best(sentence)[enough - 1].normalized:
                self.done.add(sentence)

    def drop(self) -> Tensor | None:
        """Forget sentences that are done, where it pays; the places of those that are left (A',)"""
        left = [i for i, sentence in enumerate(self.running) if sentence not in self.done]
        if left and len(left) > (1 - WORTH) * len(self.running):
            return None
        places = torch.tensor(left, dtype=torch.int64)
        self.running, self.scores = [self.running[i] for i in left], self.scores[places]
        self.rows = {sentence: row for row, sentence in enumerate(self.running)}
        return places

    def best(self, sentence: int) -> list[_Ended]:
        """What has ended, the best first."""
        return sorted(self.ended[sentence], key=lambda one: (one.finished, one.normalized), reverse=True)

    def hypotheses(self, n_best: int) -> list[list[Hypothesis]]:
        """The best of every sentence; those that were cut off fill up what is missing."""
        for sentence, scores in zip(self.running, self.scores.tolist(), strict=True):
            if sentence not in self.done:
                length = max(self.place, 1) ** self.penalty
                self.ended[sentence] += [
                    _Ended(score / length, score, self.place, beam, False)
                    for beam, score in enumerate(scores)
                    if beam == 0 or score > NOTHING  # one there must be, whatever the model says
                ]
        return [
            [
                Hypothesis(self._chain(sentence, one), one.score, one.normalized, one.finished)
                for one in self.best(sentence)[:n_best]
            ]
            for sentence in range(len(self.ended))
        ]

    def _chain(self, sentence: int, one: _Ended) -> tuple[int, ...]:
        """Its tokens, read from the end backwards."""
        tokens, beam = [], one.parent
        for rows, ids, parents in reversed(self.written[: one.length]):
            where = rows[sentence], beam
            tokens.append(int(ids[where]))
            beam = int(parents[where])
        return tuple(reversed(tokens))
