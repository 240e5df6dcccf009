"""Greedy decoding and sampling: each row grows by one token per step.

Shapes: R rows (hypotheses in progress), V vocabulary, N candidate tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import limits
from ..errors import check, check_int, check_max
from .hypotheses import MIN_FINISHED, DecodingModel, DecodingOptions, EncodedSources, Hypothesis, check_mode, ranked

Choose = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Logits (R, V) -> the next tokens (R,) and their log-probabilities (R,)"""


@torch.inference_mode()
def greedy(model: DecodingModel, encoder_output: EncodedSources, options: DecodingOptions) -> list[list[Hypothesis]]:
    """The most probable token at every step: a list with one hypothesis for each source."""
    check_mode(model)
    suppressed = torch.tensor(options.suppress_tokens, dtype=torch.int64, device=encoder_output.device)

    def choose(logits: Tensor) -> tuple[Tensor, Tensor]:
        log_probs, tokens = logits.log_softmax(-1).index_fill_(-1, suppressed, float("-inf")).max(-1)
        return tokens, log_probs

    sources = torch.arange(len(encoder_output), device=encoder_output.device)
    return _decode(model, model.start(encoder_output), sources, choose, options)


@torch.inference_mode()
def sample(
    model: DecodingModel,
    encoder_output: EncodedSources,
    options: DecodingOptions,
    *,
    num_samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> list[list[Hypothesis]]:
    """Random tokens by their probabilities: `num_samples` hypotheses for each source, the best first.

    A temperature below 1 favors probable tokens. `top_k` keeps the k most probable tokens; `top_p` the fewest whose
    probabilities at this temperature sum to p. Scores are log-probabilities of the model, without these options.
    """
    check_mode(model)
    check_int(1, num_samples=num_samples, **({} if top_k is None else {"top_k": top_k}))
    check_max(limits.MAX_DECODING_BEAMS, num_samples=num_samples)
    is_finite = 0 < temperature < float("inf")
    check(is_finite, f"temperature must be above 0 and finite, got {temperature}; use greedy instead of 0")
    check(top_p is None or 0 < top_p <= 1, f"top_p must be above 0 and at most 1, got {top_p}")

    suppressed = torch.tensor(options.suppress_tokens, dtype=torch.int64, device=encoder_output.device)
    temperature = max(temperature, torch.finfo(torch.float32).tiny)

    def choose(logits: Tensor) -> tuple[Tensor, Tensor]:
        scaled = logits.index_fill(-1, suppressed, float("-inf"))
        scaled = (scaled - scaled.amax(-1, keepdim=True)) / temperature  # the maximum stays finite
        probs, ids = candidates(scaled, top_k=top_k, top_p=top_p)
        tokens = ids.gather(1, torch.multinomial(probs, 1, generator=generator))
        return tokens[:, 0], logits.log_softmax(-1).gather(1, tokens)[:, 0]

    sources = torch.arange(len(encoder_output), device=encoder_output.device).repeat_interleave(num_samples)
    state = model.start(encoder_output)
    state = state if num_samples == 1 else model.reorder(state, sources)
    return _decode(model, state, sources, choose, options)


def candidates(logits: Tensor, *, top_k: int | None = None, top_p: float | None = None) -> tuple[Tensor, Tensor]:
    """Tokens to sample from: logits (R, V) -> probabilities (R, N), 0 if excluded, and token ids (R, N)

    With `top_k` or `top_p` the probabilities are descending. Without both, all tokens are in their own order.
    """
    if top_k is None and top_p is None:
        return logits.softmax(-1), torch.arange(logits.shape[-1], device=logits.device).expand_as(logits)
    count = logits.shape[-1] if top_k is None else min(top_k, logits.shape[-1])
    best, ids = logits.topk(count, -1)
    probs = best.softmax(-1)
    if top_p is not None:
        probs = probs.masked_fill(probs.cumsum(-1) - probs >= top_p, 0.0)  # keeps at least the first
    return probs, ids


def _decode(
    model: DecodingModel, state: Any, sources: Tensor, choose: Choose, options: DecodingOptions
) -> list[list[Hypothesis]]:
    """Extend each row until EOS. sources (R,): source of each row"""
    count, device = len(sources), sources.device
    rows, tokens = list(range(count)), torch.full((count,), options.bos, device=device)
    sequences: list[list[int]] = [[] for _ in rows]
    scores, finished = [0.0] * count, set[int]()
    for _ in range(options.max_tokens if count else 0):
        logits, state = model.step(state, tokens)
        tokens, log_probs = choose(logits.float())
        for row, token, log_prob in zip(rows, tokens.tolist(), log_probs.tolist(), strict=True):
            if row in finished:
                continue
            scores[row] += log_prob
            if token == options.eos:
                finished.add(row)
            else:
                sequences[row].append(token)
        unfinished = [i for i, row in enumerate(rows) if row not in finished]
        if not unfinished:
            break
        if len(unfinished) <= (1 - MIN_FINISHED) * len(rows):
            indices = torch.tensor(unfinished, device=device)
            state = model.reorder(state, indices)
            rows, tokens = [rows[i] for i in unfinished], tokens[indices]
    hypotheses: list[list[Hypothesis]] = [[] for _ in range(int(sources[-1]) + 1 if count else 0)]
    for row, source in enumerate(sources.tolist()):
        mean = scores[row] / (len(sequences[row]) + (row in finished))  # EOS counts toward the length
        hypotheses[source].append(Hypothesis(tuple(sequences[row]), scores[row], mean, row in finished))
    return list(map(ranked, hypotheses))
