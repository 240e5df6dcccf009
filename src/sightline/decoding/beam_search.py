"""Beam search.

Shapes: A sources in progress, R rows of the model's state, K beams, V vocabulary, T tokens.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import limits
from ..errors import check, check_int, check_max
from .hypotheses import MIN_FINISHED, DecodingModel, DecodingOptions, EncodedSources, Hypothesis, check_mode, ranked
from .sampling import greedy

NEG_INF = float("-inf")


def decode(
    model: DecodingModel, encoder_output: EncodedSources, options: DecodingOptions, *, num_beams: int = 1, **search: Any
) -> list[list[Hypothesis]]:
    """Beam search with the options `search`; greedy decoding, which is faster, if there is one beam and no limit."""
    if num_beams == 1 and not search.get("no_repeat_ngram_size"):
        return greedy(model, encoder_output, options)
    return beam_search(model, encoder_output, options, num_beams=num_beams, **search)


@torch.inference_mode()
def beam_search(
    model: DecodingModel,
    encoder_output: EncodedSources,
    options: DecodingOptions,
    *,
    num_beams: int = 5,
    n_best: int = 1,
    length_penalty: float = 1.0,
    no_repeat_ngram_size: int = 0,
    early_stopping: bool = True,
) -> list[list[Hypothesis]]:
    """The `n_best` best hypotheses for each source, the best first.

    Hypotheses are ranked by score / length ** length_penalty: 0 compares sums of log-probabilities, which favors short
    sequences; 1 compares means. Finished hypotheses come before unfinished ones. No sequence of `no_repeat_ngram_size`
    tokens occurs twice in a hypothesis; 0 for no such limit. `early_stopping` ends the search of a source after
    `num_beams` finished hypotheses; otherwise it goes on while an unfinished one can still be among the best.
    """
    check_mode(model)
    check_int(1, num_beams=num_beams, n_best=n_best)
    check_int(0, no_repeat_ngram_size=no_repeat_ngram_size)
    check_max(limits.MAX_DECODING_BEAMS, num_beams=num_beams)
    check(n_best <= num_beams, f"n_best must be at most num_beams={num_beams}, got {n_best}; raise num_beams")
    is_finite = 0 <= length_penalty < float("inf")
    check(is_finite, f"length_penalty must be at least 0 and finite, got {length_penalty}")
    count, device = len(encoder_output), encoder_output.device
    suppressed = torch.tensor(options.suppress_tokens, dtype=torch.int64, device=device)
    search, state = _Search(count, num_beams, length_penalty), model.start(encoder_output)
    tokens = torch.full((count,), options.bos, device=device)
    while search.active:
        logits, state = model.step(state, tokens)
        log_probs = logits.float().log_softmax(-1).index_fill_(-1, suppressed, NEG_INF)
        if no_repeat_ngram_size:
            log_probs[repeating_tokens(search.tokens.flatten(0, 1), no_repeat_ngram_size)] = NEG_INF
        extended = search.extend(log_probs, options.eos)
        search.mark_done(*(num_beams, None) if early_stopping else (n_best, options.max_tokens))
        length = search.tokens.shape[2]
        if length == options.max_tokens:
            break
        remaining = search.drop_done()
        same_source = remaining is None and length > 1  # the first step turns one row into K beams
        tokens, indices = (extended if remaining is None else extended[:, remaining]).flatten(1).to(device)
        state = model.reorder(state, indices, same_source=same_source) if search.active else state
    return search.hypotheses(n_best)


def repeating_tokens(tokens: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Tokens that would repeat a sequence of `size` tokens: (R, T) -> rows and token ids"""
    if size > tokens.shape[1]:
        return tokens.new_zeros(0), tokens.new_zeros(0)
    ngrams, last = tokens.unfold(1, size, 1), tokens[:, tokens.shape[1] - size + 1 :]
    rows, places = (ngrams[..., :-1] == last[:, None]).all(-1).nonzero(as_tuple=True)
    return rows, ngrams[rows, places, -1]


class _Search:
    """The state of a beam search."""

    def __init__(self, num_sources: int, num_beams: int, length_penalty: float):
        self.num_beams, self.length_penalty = num_beams, length_penalty
        self.scores, self.tokens = torch.zeros(num_sources, 1), torch.zeros(num_sources, 1, 0, dtype=torch.int64)
        """Scores (A, K) and tokens (A, K, T) of the beams; before the first step, there is one for each source."""
        self.active = list(range(num_sources))
        """Sources of the rows of `scores` and `tokens`."""
        self.done: set[int] = set()
        """Sources whose search has ended, until `drop_done` removes them."""
        self.completed: list[list[Hypothesis]] = [[] for _ in range(num_sources)]

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
        for row, column in is_eos[:, : self.num_beams].nonzero().tolist():
            if self.active[row] not in self.done:  # results must not depend on the batch
                self._complete(row, int(parents[row, column]), float(scores[row, column]), finished=True)
        # each beam ends at most once, so of 2 K candidates at least K continue
        continuing = is_eos.argsort(stable=True)[:, : self.num_beams]
        self.scores, tokens, parents = (x.gather(1, continuing) for x in (scores, tokens, parents))
        rows = torch.arange(sources).unsqueeze(1)
        self.tokens = torch.cat((self.tokens[rows, parents], tokens.unsqueeze(2)), 2)
        return torch.stack((tokens, parents + beams * rows))

    def _complete(self, row: int, beam: int, score: float, *, finished: bool) -> None:
        """Store a hypothesis. EOS counts toward its length."""
        tokens = tuple(self.tokens[row, beam].tolist())
        normalized_score = score / max(len(tokens) + finished, 1) ** self.length_penalty
        self.completed[self.active[row]].append(Hypothesis(tokens, score, normalized_score, finished))

    def mark_done(self, required: int, max_tokens: int | None) -> None:
        """Mark sources with `required` complete hypotheses that, given `max_tokens`, no beam can still surpass."""
        best_scores = [0.0] * len(self.active) if max_tokens is None else self.scores.amax(1).tolist()
        for source, best in zip(self.active, best_scores, strict=True):
            if len(self.completed[source]) < required:
                continue
            worst_kept = ranked(self.completed[source])[required - 1].normalized_score
            if max_tokens is None or best / max_tokens**self.length_penalty <= worst_kept:
                self.done.add(source)

    def drop_done(self) -> Tensor | None:
        """Drop sources that are done if they are many enough: the remaining rows (A',), or None if none is dropped."""
        remaining = [row for row, source in enumerate(self.active) if source not in self.done]
        if remaining and len(remaining) > (1 - MIN_FINISHED) * len(self.active):
            return None
        rows = torch.tensor(remaining, dtype=torch.int64)
        self.active = [self.active[row] for row in remaining]
        self.scores, self.tokens = self.scores[rows], self.tokens[rows]
        return rows

    def hypotheses(self, n_best: int) -> list[list[Hypothesis]]:
        """The best hypotheses of every source, with unfinished ones where finished ones are too few."""
        for row, source in enumerate(self.active):
            for beam, score in enumerate([] if source in self.done else self.scores[row].tolist()):
                if beam == 0 or score > NEG_INF:  # at least one, even if all scores are NaN
                    self._complete(row, beam, score, finished=False)
        return [ranked(completed)[:n_best] for completed in self.completed]
