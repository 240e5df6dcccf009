"""One hypothesis at a time for each row: the likeliest tokens, or tokens drawn by chance.

Legend for all shapes: B sentences, A sentences still running, R rows of the model's state, K beams, N candidates,
V vocabulary, T tokens.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import limits
from ..errors import SightlineError, check_int, check_max
from .hypotheses import NOTHING, WORTH, Hypothesis, Memory, Stepper, as_ids, check_ready


@torch.inference_mode()
def greedy(
    model: Stepper,
    memory: Memory,
    *,
    max_tokens: int = 256,
    begin: int = 1,
    end: int = 2,
    never: Sequence[int] = (0, 1),
) -> list[list[Hypothesis]]:
    """The likeliest token at every step: of each sentence one hypothesis, in a list as `beam` returns them.

    `begin` and `end` are the tokens a sentence begins and ends with; those in `never` are not written.
    """
    check_ready(model, max_tokens)
    forbidden = as_ids(never, memory.device)

    def choose(logits: Tensor) -> tuple[Tensor, Tensor]:
        gains, tokens = logits.log_softmax(-1).index_fill_(-1, forbidden, NOTHING).max(-1)
        return tokens, gains

    alone = torch.arange(len(memory), device=memory.device)
    return _follow(model, model.start(memory), alone, choose, max_tokens, begin, end)


@torch.inference_mode()
def sample(
    model: Stepper,
    memory: Memory,
    *,
    samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
    max_tokens: int = 256,
    begin: int = 1,
    end: int = 2,
    never: Sequence[int] = (0, 1),
) -> list[list[Hypothesis]]:
    """Tokens drawn by chance: of each sentence `samples` hypotheses, the best first.

    A temperature below 1 favors likely tokens. `top_k` leaves only so many of the likeliest; `top_p` the fewest whose
    probabilities, at this temperature, sum to so much. Scores are those of the model as it is, with neither.
    """
    check_ready(model, max_tokens)
    check_int(1, samples=samples)
    check_max(limits.MAX_DECODING_BEAMS, samples=samples)
    if not 0 < temperature < float("inf"):
        raise SightlineError(f"temperature must be above 0 and finite, got {temperature}; greedy is what 0 would mean")
    if top_k is not None:
        check_int(1, top_k=top_k)
    if top_p is not None and not 0 < top_p <= 1:
        raise SightlineError(f"top_p must be above 0 and at most 1, got {top_p}")

    forbidden, heat = as_ids(never, memory.device), max(temperature, torch.finfo(torch.float32).tiny)

    def draw(logits: Tensor) -> tuple[Tensor, Tensor]:
        possible = logits.index_fill(-1, forbidden, NOTHING)
        possible = (possible - possible.amax(-1, keepdim=True)) / heat  # however cold, the best stays finite
        chances, ids = truncated(possible, top_k=top_k, top_p=top_p)
        tokens = ids.gather(1, torch.multinomial(chances, 1, generator=generator))
        return tokens[:, 0], logits.log_softmax(-1).gather(1, tokens)[:, 0]

    owners = torch.arange(len(memory), device=memory.device).repeat_interleave(samples)
    state = model.start(memory)
    state = state if samples == 1 else model.reorder(state, owners)
    return _follow(model, state, owners, draw, max_tokens, begin, end)


def truncated(logits: Tensor, *, top_k: int | None = None, top_p: float | None = None) -> tuple[Tensor, Tensor]:
    """What may be drawn: logits (R, V) -> chances (R, N), greatest first, 0 where cut off, and their ids (R, N)"""
    count = logits.shape[-1] if top_k is None else min(top_k, logits.shape[-1])
    best, ids = logits.topk(count, -1)
    chances = best.softmax(-1)
    if top_p is not None:
        chances = chances.masked_fill(chances.cumsum(-1) - chances >= top_p, 0.0)  # the first is always left
    return chances, ids


def _follow(
    model: Stepper,
    state: Any,
    owners: Tensor,
    choose: Callable[[Tensor], tuple[Tensor, Tensor]],
    max_tokens: int,
    begin: int,
    end: int,
) -> list[list[Hypothesis]]:
    """One token after the other for each row; `choose` takes logits (R, V) to tokens and log-probabilities (R,)."""
    count, device = len(owners), owners.device
    rows, tokens = list(range(count)), torch.full((count,), begin, device=device)
    written: list[list[int]] = [[] for _ in rows]
    scores, ended = [0.0] * count, set[int]()
    for _ in range(max_tokens if count else 0):
        logits, state = model.step(state, tokens)
        tokens, gains = choose(logits.float())
        for row, token, gain in zip(rows, tokens.tolist(), gains.tolist(), strict=True):
            if row in ended:
                continue
            scores[row] += gain
            if token == end:
                ended.add(row)
            else:
                written[row].append(token)
        left = [i for i, row in enumerate(rows) if row not in ended]
        if not left:
            break
        if len(left) <= (1 - WORTH) * len(rows):
            kept = torch.tensor(left, device=device)
            state = model.reorder(state, kept)
            rows, tokens = [rows[i] for i in left], tokens[kept]
    found: list[list[Hypothesis]] = [[] for _ in range(int(owners[-1]) + 1 if count else 0)]
    for row, owner in enumerate(owners.tolist()):
        finished = row in ended
        mean = scores[row] / (len(written[row]) + finished)  # the end is a token too
        found[owner].append(Hypothesis(tuple(written[row]), scores[row], mean, finished))
    return [sorted(ones, key=lambda one: (one.finished, one.normalized), reverse=True) for ones in found]
