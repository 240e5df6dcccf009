"""Attention as a function: score, mask, normalize, and average the values.

Without a recording, scores that are dot products run on torch's fused attention, which never stores the weights.

Shapes: B batch, H heads, Q queries, K keys, D head dimension, M embedding dimension, T tokens.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal, Protocol, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import SightlineError, check_fraction
from ..kernels import cosine_attention as cosine
from ..kernels.episode_attention import episode_attention, is_applicable, is_faster
from ..kernels.head_chunks import chunked_attention, reference_attention
from ..kernels.window_attention import is_applicable as is_window_applicable
from ..kernels.window_attention import window_attention
from .masks import And, Causal, Episode, Mask, MaskTerms, Padding, Window, broadcasts, resolve_mask
from .normalizers import Normalizer, Softmax, make_normalizer
from .scores import CosineScore, DotProductScore, DotScore, Score, score_class

Kind = Literal["encoder", "decoder", "cross"]
QKV = tuple[Tensor, Tensor, Tensor]


class Observer(Protocol):
    """Receives attention weights. `attend` computes them only for observers."""

    def is_interested(self) -> bool:
        """Called before each attention: whether to compute its weights."""

    def on_attention(self, weights: Tensor, scores: Tensor, *, kind: Kind | None, causal: bool) -> Tensor:
        """weights (B, H, Q, K) without dropout; scores (B, H, Q, K) before the normalizer, -inf where masked

        Returns the weights to use: the same, or changed ones.
        """


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
    k and v may have fewer heads than q, whose number they divide; consecutive heads of q then share one of theirs.
    `dropout` is the probability of dropping a weight; pass 0 outside training. `kind` labels this attention in a
    record (default: inferred from the mask and the module's name).
    """
    ndim = q.dim()
    q, k, v = _to_4d(q, k, v)
    score, normalizer = _resolve_names(score, normalizer, q.device)
    check_fraction(dropout=dropout)
    observers = [observer for observer in _observers if observer.is_interested()]
    out = None
    is_fused = not observers and isinstance(normalizer, Softmax)
    if is_fused and _is_cosine(score) and cosine.is_applicable(q, k, v):
        out = _attend_cosine((q, k, v), score, mask, dropout)
    if out is None and k.shape[1] < q.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    if out is None and is_fused and isinstance(score, DotProductScore):
        out = _attend_fused((q, k, v), score, mask, dropout)
    if out is None:
        terms = resolve_mask(mask, (*q.shape[:3], k.shape[2]), q.device)
        scores = terms.apply_bias(score(q, k))
        weights = normalizer(scores, terms.allowed)
        if observers:
            masked = scores if terms.allowed is None else scores.masked_fill(~terms.allowed, float("-inf"))
            for observer in observers:
                causal = mask is not None and mask.causal
                weights = observer.on_attention(weights, masked, kind=kind, causal=causal)
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
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1) if k.shape[1] < q.shape[1] else k
    score, normalizer = _resolve_names(score, normalizer, q.device)
    terms = resolve_mask(mask, (*q.shape[:3], k.shape[2]), q.device)
    return _from_4d(normalizer(terms.apply_bias(score(q, k)), terms.allowed), ndim)


def self_attention(x: Tensor) -> Tensor:
    """Self-attention without parameters, softmax(x x^T) x: x (B, T, M) -> (B, T, M)"""
    return attend(x, x, x, score=DotScore(scaled=False))


def _attend_fused(qkv: QKV, score: DotProductScore, mask: Mask | None, dropout: float) -> Tensor | None:
    """`attend` with a softmax, on torch's fused attention; None if the mask multiplies scores."""
    q, k, v = qkv
    queries, keys, is_causal = q.shape[2], k.shape[2], type(mask) is Causal
    if mask is None or (is_causal and queries == 1 and keys > 0):  # the last token attends to all
        return _sdpa(qkv, score, None, dropout)
    if is_causal and queries == keys:
        return _sdpa(qkv, score, None, dropout, is_causal=True)
    if type(mask) is Padding and mask.has_no_empty_rows:
        if broadcasts(mask.attention_mask.shape, (q.shape[0], 1, 1, keys)):
            return _sdpa(qkv, score, mask.as_bias(q), dropout)
    elif torch.compiler.is_exporting():
        pass  # the choice between kernels would fix the sizes
    elif (
        type(mask) is Episode
        and is_faster(q, keys, dropout)
        and is_applicable(queries, keys, mask.support, mask.query_size)
    ):
        q, k, scale = score.to_dot_product(q, k)
        sizes = {"support": mask.support, "query_size": mask.query_size}
        return episode_attention(q, k, v, **sizes, scale=scale, dropout=dropout)
    elif (out := _attend_window(qkv, score, mask, dropout)) is not None:
        return out
    terms = resolve_mask(mask, (*q.shape[:3], keys), q.device)
    return None if terms.factor is not None else _sdpa_with_terms(qkv, score, terms, dropout)


def _attend_window(qkv: QKV, score: DotProductScore, mask: Mask, dropout: float) -> Tensor | None:
    """`attend` under a window, alone or with `Causal` and `Padding`; None for other masks and for short sequences."""
    (q, k, v), parts = qkv, _parts(mask)
    radii = [part.radius for part in parts if type(part) is Window]
    padding = [part.attention_mask for part in parts if type(part) is Padding]
    is_known = len(padding) <= 1 and all(type(part) in (Window, Causal, Padding) for part in parts)
    if not radii or not is_known or not is_window_applicable(q.shape[2], k.shape[2], min(radii)):
        return None
    if padding and not broadcasts(padding[0].shape, (q.shape[0], 1, 1, k.shape[2])):
        return None
    attention_mask = padding[0].to(q.device)[:, 0, 0] if padding else None
    causal = any(type(part) is Causal for part in parts)
    q, k, scale = score.to_dot_product(q, k)
    return window_attention(
        q, k, v, radius=min(radii), scale=scale, causal=causal, attention_mask=attention_mask, dropout=dropout
    )


def _is_cosine(score: Score) -> TypeGuard[CosineScore]:
    """Whether the kernels compute this score: a `CosineScore`, or a subclass that computes the same."""
    methods = ("to_dot_product", "temperature", "kernel_temperature", "forward")
    return isinstance(score, CosineScore) and all(
        getattr(type(score), name) is getattr(CosineScore, name) for name in methods
    )


def _attend_cosine(qkv: QKV, score: CosineScore, mask: Mask | None, dropout: float) -> Tensor | None:
    """`attend` with a softmax of cosine scores in one kernel; None if the mask multiplies scores."""
    q, k, v = qkv
    rule = _mask_rule(mask, (*q.shape[:3], k.shape[2]), q.device)
    return None if rule is None else cosine.cosine_attention(q, k, v, score.kernel_temperature(q, k), rule, dropout)


def _mask_rule(mask: Mask | None, shape: tuple[int, int, int, int], device: torch.device) -> cosine.MaskRule | None:
    """The mask for the kernels of cosine attention; None if it multiplies scores."""
    rule, queries, keys = cosine.NO_MASK, *shape[2:]
    others: Mask | None = None
    for part in [] if mask is None else _parts(mask):
        if type(part) is Causal and queries <= keys:
            rule = rule._replace(causal=True)
        elif type(part) is Window and queries <= keys and rule.window < 0:
            rule = rule._replace(window=part.radius)
        elif type(part) is Episode and queries <= keys and keys >= part.support and not rule.support:
            rule = rule._replace(support=part.support, query_size=part.query_size)
        else:
            others = part if others is None else others & part
    terms = resolve_mask(others, shape, device)
    bias = None if terms.bias is None else as_4d(terms.bias)
    allowed = None if terms.allowed is None else as_4d(terms.allowed)
    return None if terms.factor is not None else rule._replace(allowed=allowed, bias=bias)


def _parts(mask: Mask) -> list[Mask]:
    """The masks that `&` combines."""
    return [*_parts(mask.left), *_parts(mask.right)] if type(mask) is And else [mask]


def _sdpa_with_terms(qkv: QKV, score: DotProductScore, terms: MaskTerms, dropout: float) -> Tensor:
    allowed, bias = terms.allowed, None if terms.bias is None else as_4d(terms.bias.to(qkv[0].dtype))
    if allowed is None:
        return _sdpa(qkv, score, bias, dropout)
    # torch returns NaN for a fully masked row: unmask such rows, then zero their output
    has_key = allowed.any(-1, keepdim=True)
    on_cpu = allowed.device.type == "cpu" and not torch.compiler.is_compiling()  # elsewhere the check would synchronize
    all_have_keys = on_cpu and bool(has_key.all())
    allowed = allowed if all_have_keys else allowed | ~has_key
    out = _sdpa(qkv, score, as_4d(allowed if bias is None else bias.masked_fill(~allowed, float("-inf"))), dropout)
    return out if all_have_keys else torch.where(has_key, out, 0.0)


def _sdpa(
    qkv: QKV, score: DotProductScore, attn_mask: Tensor | None, dropout: float, is_causal: bool = False
) -> Tensor:
    """`scaled_dot_product_attention` with a score; attn_mask broadcasts to (B, H, Q, K)."""
    attention = reference_attention if isinstance(score, DotScore) else chunked_attention  # DotScore makes no copies
    return attention(score.to_dot_product, *qkv, attn_mask, dropout, is_causal)


def _resolve_names(score: str | Score, normalizer: str | Normalizer, device: torch.device) -> tuple[Score, Normalizer]:
    """Instances for names. An instance by name has no learned parameters and does not sample."""
    return (
        score if isinstance(score, Score) else _named_score(str(score), device),  # a cache accepts no lists
        normalizer if isinstance(normalizer, Normalizer) else _named_normalizer(str(normalizer)),
    )


@cache
def _named_score(name: str, device: torch.device) -> Score:
    return score_class(name).without_parameters().to(device)


@cache
def _named_normalizer(name: str) -> Normalizer:
    return make_normalizer(name).eval()


def as_4d(x: Tensor) -> Tensor:
    """Add leading dimensions of size 1 up to four dimensions."""
    return x if x.dim() == 4 else x[(None,) * (4 - x.dim())]


def _to_4d(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(T, D) or (B, T, D) or (B, H, T, D) -> (B, H, T, D)"""
    ndim, k_shape = q.dim(), k.shape
    if not ndim == len(k_shape) == v.dim() or ndim not in (2, 3, 4):
        raise SightlineError(f"q, k and v must all have 2, 3 or 4 dimensions, got {_shapes(q, k, v)}")
    has_same_batch = q.shape[:-3] == k_shape[:-3] and (ndim != 3 or q.shape[0] == k.shape[0])
    if not has_same_batch or k_shape[:-1] != v.shape[:-1] or (ndim == 4 and q.shape[1] % max(1, k_shape[1])):
        raise SightlineError(
            f"q, k and v must have the same batch and heads, k and v the same length, got {_shapes(q, k, v)}"
        )
    if ndim == 4:
        return q, k, v
    index = (None, None) if ndim == 2 else (slice(None), None)
    return q[index], k[index], v[index]


def _from_4d(x: Tensor, ndim: int) -> Tensor:
    return x if ndim == 4 else x.squeeze(1) if ndim == 3 else x[0, 0]


def _shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
