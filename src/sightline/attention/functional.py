"""Attention as a function: score, mask, normalize, and average the values.

Without a recording, scores that are dot products run on torch's fused attention, which never stores the weights.

Shapes: B batch, H heads, Q queries, K keys, D head dimension, M embedding dimension, T tokens.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import SightlineError, check_fraction
from ..kernels import episode_attention
from .masks import Causal, Episode, Mask, MaskTerms, Padding, broadcasts, resolve_mask
from .normalizers import Normalizer, Softmax, make_normalizer
from .scores import DotProductScore, DotScore, Score, score_class

Kind = Literal["encoder", "decoder", "cross"]

CHUNKED_QUERIES = 1024
"""Queries from which on scores other than the dot product transform a part of the heads at a time, if no gradient is
needed. The transformed copies of q and k then take little memory."""
HEAD_CHUNKS = 4
"""Number of those parts."""


class Observer(Protocol):
    """Receives attention weights. `attend` computes them only for observers."""

    def is_interested(self) -> bool:
        """Called before each attention: whether to compute its weights."""

    def on_attention(self, weights: Tensor, scores: Tensor, *, kind: Kind | None, causal: bool) -> None:
        """weights (B, H, Q, K) without dropout; scores (B, H, Q, K) before the normalizer, -inf where masked"""


_observers: tuple[Observer, ...] = ()  # replaced as a whole, so threads can iterate over it without the lock
_observers_lock = threading.Lock()


@contextmanager
def observe(observer: Observer) -> Iterator[None]:
    """Call the observer for each attention in any thread."""
    global _observers
    with _observers_lock:
        _observers = (*_observers, observer)
    try:
        yield
    finally:
        with _observers_lock:
            _observers = tuple(other for other in _observers if other is not observer)


def has_observers() -> bool:
    """Whether any thread observes attention."""
    return bool(_observers)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score: str | Score = "dot",
    normalizer: str | Normalizer = "softmax",
    mask: Mask | None = None,
    dropout: float = 0.0,
    kind: Kind | None = None,
) -> Tensor:
    """Average the values v, weighted by how well each query q matches each key k.

    q (B, H, Q, D), k (B, H, K, D), v (B, H, K, D) -> (B, H, Q, D). Inputs may also be (B, T, D) or (T, D).
    `dropout` is the probability of dropping a weight; pass 0 outside training. `kind` labels this attention in a
    record (default: inferred from the mask and the module's name).
    """
    ndim = q.dim()
    q, k, v = _to_4d(q, k, v)
    score, normalizer = _resolve_names(score, normalizer, q.device)
    check_fraction(dropout=dropout)
    observers = [observer for observer in _observers if observer.is_interested()]
    out = None
    if not observers and isinstance(score, DotProductScore) and isinstance(normalizer, Softmax):
        out = _attend_fused(q, k, v, score, mask, dropout)
    if out is None:
        terms = resolve_mask(mask, (*q.shape[:3], k.shape[2]), q.device)
        scores = terms.apply_bias(score(q, k))
        weights = normalizer(scores, terms.allowed)
        if observers:
            masked = scores if terms.allowed is None else scores.masked_fill(~terms.allowed, float("-inf"))
            for observer in observers:
                observer.on_attention(weights, masked, kind=kind, causal=mask is not None and mask.causal)
        out = F.dropout(weights, dropout).to(v.dtype) @ v
    return _from_4d(out, ndim)


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    score: str | Score = "dot",
    normalizer: str | Normalizer = "softmax",
    mask: Mask | None = None,
) -> Tensor:
    """The weights that `attend` uses: q (B, H, Q, D), k (B, H, K, D) -> (B, H, Q, K)"""
    ndim = q.dim()
    q, k, _ = _to_4d(q, k, k)
    score, normalizer = _resolve_names(score, normalizer, q.device)
    terms = resolve_mask(mask, (*q.shape[:3], k.shape[2]), q.device)
    return _from_4d(normalizer(terms.apply_bias(score(q, k)), terms.allowed), ndim)


def self_attention(x: Tensor) -> Tensor:
    """Self-attention without parameters, softmax(x x^T) x: x (B, T, M) -> (B, T, M)"""
    return attend(x, x, x, score=DotScore(scaled=False))


def _attend_fused(
    q: Tensor, k: Tensor, v: Tensor, score: DotProductScore, mask: Mask | None, dropout: float
) -> Tensor | None:
    """`attend` with a softmax, on torch's fused attention; None if the mask multiplies scores."""
    queries, keys = q.shape[2], k.shape[2]
    is_causal = type(mask) is Causal
    if mask is None or (is_causal and queries == 1 and keys > 0):  # the last token attends to all
        return _sdpa(q, k, v, score, None, dropout)
    if is_causal and queries == keys:
        return _sdpa(q, k, v, score, None, dropout, is_causal=True)
    if type(mask) is Padding and mask.has_no_empty_rows:
        if broadcasts(mask.attention_mask.shape, (len(q), 1, 1, keys)):
            return _sdpa(q, k, v, score, mask.as_bias(q), dropout)
    elif type(mask) is Episode:
        sizes = {"support": mask.support, "query_size": mask.query_size}
        if episode_attention.is_applicable(queries, keys, **sizes):
            q, k, scale = score.to_dot_product(q, k)
            return episode_attention.episode_attention(q, k, v, **sizes, scale=scale, dropout=dropout)
    terms = resolve_mask(mask, (*q.shape[:3], keys), q.device)
    return None if terms.factor is not None else _sdpa_with_terms(q, k, v, score, terms, dropout)


def _sdpa_with_terms(
    q: Tensor, k: Tensor, v: Tensor, score: DotProductScore, terms: MaskTerms, dropout: float
) -> Tensor:
    allowed, bias = terms.allowed, terms.bias
    if allowed is None:
        return _sdpa(q, k, v, score, None if bias is None else as_4d(bias.to(q.dtype)), dropout)
    # torch returns NaN for a fully masked row: unmask such rows, then zero their output
    has_key = allowed.any(-1, keepdim=True)
    on_cpu = allowed.device.type == "cpu" and not torch.compiler.is_compiling()  # elsewhere the check would synchronize
    all_have_keys = on_cpu and bool(has_key.all())
    allowed = allowed if all_have_keys else allowed | ~has_key
    attn_mask = allowed if bias is None else bias.to(q.dtype).masked_fill(~allowed, float("-inf"))
    out = _sdpa(q, k, v, score, as_4d(attn_mask), dropout)
    return out if all_have_keys else torch.where(has_key, out, 0.0)


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score: DotProductScore,
    attn_mask: Tensor | None,
    dropout: float,
    is_causal: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention` with a score; attn_mask broadcasts to (B, H, Q, K)."""
    heads = q.shape[1]
    is_short = q.shape[2] < CHUNKED_QUERIES or heads < HEAD_CHUNKS
    if isinstance(score, DotScore) or is_short or torch.is_grad_enabled():
        q, k, scale = score.to_dot_product(q, k)
        return F.scaled_dot_product_attention(q, k, v, attn_mask, dropout, is_causal, scale=scale)

    def attend_heads(chunk: slice) -> Tensor:
        chunk_q, chunk_k, scale = score.to_dot_product(q[:, chunk], k[:, chunk], chunk)
        chunk_mask = attn_mask if attn_mask is None or attn_mask.shape[1] == 1 else attn_mask[:, chunk]
        return F.scaled_dot_product_attention(
            chunk_q, chunk_k, v[:, chunk], chunk_mask, dropout, is_causal, scale=scale
        )

    size = -(-heads // HEAD_CHUNKS)
    first = attend_heads(slice(0, size))
    out = first.new_empty(*q.shape[:3], v.shape[-1])
    out[:, :size] = first
    del first
    for start in range(size, heads, size):
        chunk = slice(start, start + size)
        out[:, chunk] = attend_heads(chunk)
    return out


_SOFTMAX = Softmax()


def _resolve_names(score: str | Score, normalizer: str | Normalizer, device: torch.device) -> tuple[Score, Normalizer]:
    """Instances for names. An instance by name has no learned parameters and does not sample."""
    if not isinstance(score, Score):
        score = _parameter_free_score(score, device)
    if normalizer == "softmax":
        return score, _SOFTMAX
    instance = make_normalizer(normalizer)
    return score, instance if instance is normalizer else instance.eval()


@cache
def _parameter_free_score(name: str, device: torch.device) -> Score:
    return score_class(name).without_parameters().to(device)


def as_4d(x: Tensor) -> Tensor:
    """Add leading dimensions of size 1 up to four dimensions."""
    return x if x.dim() == 4 else x[(None,) * (4 - x.dim())]


def _to_4d(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(T, D) or (B, T, D) or (B, H, T, D) -> (B, H, T, D)"""
    ndim, k_shape = q.dim(), k.shape
    if not ndim == len(k_shape) == v.dim() or ndim not in (2, 3, 4):
        raise SightlineError(f"q, k and v must all have 2, 3 or 4 dimensions, got {_shapes(q, k, v)}")
    if q.shape[:-2] != k_shape[:-2] or k_shape[:-1] != v.shape[:-1]:
        raise SightlineError(
            f"q, k and v must have the same batch and heads, k and v the same length, got {_shapes(q, k, v)}"
        )
    if ndim == 2:
        return q[None, None], k[None, None], v[None, None]
    if ndim == 3:
        return q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)
    return q, k, v


def _from_4d(x: Tensor, ndim: int) -> Tensor:
    return x if ndim == 4 else x.squeeze(1) if ndim == 3 else x[0, 0]


def _shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
