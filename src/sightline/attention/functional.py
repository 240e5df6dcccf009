"""Score -> mask -> normalize -> mix, in one function; on torch's fused kernels when nobody watches.

Legend for all shapes: B batch, H heads, Q queries, K keys, D head width.
"""

from functools import cache
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import SightlineError, check_fraction
from .masks import Causal, Episode, Mask, Padding, resolve
from .normalizers import Normalizer, Softmax, make_normalizer
from .rules import Rules, broadcasts
from .scores import DotProductScore, DotScore, Score, find_score

Kind = Literal["encoder", "decoder", "cross"]


class Observer(Protocol):
    """Whoever wants to see weights while attention runs."""

    def wants(self) -> bool:
        """Asked before each attention: should its weights be made?"""

    def see(self, weights: Tensor, scores: Tensor, *, kind: Kind | None, causal: bool) -> None:
        """weights (B, H, Q, K), without dropout; scores (B, H, Q, K) before the normalizer, -inf where none may look"""


OBSERVERS: list[Observer] = []
"""Those who watch now; while it is empty no weights are made."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score: str | Score = "dot",
    normalize: str | Normalizer = "softmax",
    mask: Mask | None = None,
    dropout: float = 0.0,
    kind: Kind | None = None,
) -> Tensor:
    """Mix the values v by how well each query q fits each key k.

    q (B, H, Q, D), k (B, H, K, D), v (B, H, K, D) -> (B, H, Q, D); the heads, or heads and batch, may be left out.
    `dropout` is the share of weights set to 0 (pass 0 outside training). `kind` is what a recording calls this
    attention; left out, it is told from the mask and the module's name.
    """
    dims = q.dim()
    q, k, v = _four_dims(q, k, v)
    score, normalize = _ready(score, normalize, q.device)
    check_fraction(dropout=dropout)
    watchers = [watcher for watcher in OBSERVERS if watcher.wants()]
    fused = score if not watchers and isinstance(score, DotProductScore) and isinstance(normalize, Softmax) else None
    queries, keys, causal = q.shape[2], k.shape[2], type(mask) is Causal
    if fused and causal and queries == keys:  # the one mask torch needs no table for
        return _as_given(_fused(q, k, v, fused, None, dropout, is_causal=True), dims)
    if fused and (mask is None or (causal and queries == 1 and keys > 0)):  # the last token sees all the others
        return _as_given(_fused(q, k, v, fused, None, dropout), dims)
    if (
        fused
        and type(mask) is Padding
        and mask.has_no_empty_rows
        and broadcasts(mask.attention_mask.shape, (len(q), 1, 1, keys))
    ):
        return _as_given(_fused(q, k, v, fused, mask.table(q), dropout), dims)
    if fused and type(mask) is Episode and mask.mostly_queries(queries, keys):
        return _as_given(_each_query_alone(q, k, v, fused, mask, dropout), dims)

    rules = resolve(mask, (*q.shape[:3], k.shape[2]), q.device)
    if fused and rules.factor is None:
        return _as_given(_fused_masked(q, k, v, fused, rules, dropout), dims)

    scores = rules.bend(score(q, k))
    weights = normalize(scores, rules.allowed)
    if watchers:
        shown = scores if rules.allowed is None else scores.masked_fill(~rules.allowed, float("-inf"))
        for watcher in watchers:
            watcher.see(weights, shown, kind=kind, causal=mask is not None and mask.causal)
    return _as_given(F.dropout(weights, dropout).to(v.dtype) @ v, dims)


def weigh(
    q: Tensor,
    k: Tensor,
    *,
    score: str | Score = "dot",
    normalize: str | Normalizer = "softmax",
    mask: Mask | None = None,
) -> Tensor:
    """How much each query looks at each key. q (B, H, Q, D), k (B, H, K, D) -> weights (B, H, Q, K)"""
    dims = q.dim()
    q, k, _ = _four_dims(q, k, k)
    score, normalize = _ready(score, normalize, q.device)
    rules = resolve(mask, (*q.shape[:3], k.shape[2]), q.device)
    return _as_given(normalize(rules.bend(score(q, k)), rules.allowed), dims)


def self_attend(x: Tensor) -> Tensor:
    """Self-attention without a single parameter: softmax(X X^T) X. x (B, N, M) -> (B, N, M)"""
    return attend(x, x, x, score=DotScore(scaled=False))


def _fused_masked(q: Tensor, k: Tensor, v: Tensor, score: DotProductScore, rules: Rules, dropout: float) -> Tensor:
    allowed, bias = rules.allowed, rules.bias
    if allowed is None:
        return _fused(q, k, v, score, None if bias is None else as_4d(bias.to(q.dtype)), dropout)
    looks = allowed.any(-1, keepdim=True)  # torch makes NaN of a row that sees nothing: let it see all, then blank it
    all_look = allowed.device.type == "cpu" and not torch.compiler.is_compiling() and bool(looks.all())  # free to ask
    allowed = allowed if all_look else allowed | ~looks
    table = allowed if bias is None else bias.to(q.dtype).masked_fill(~allowed, float("-inf"))
    mixed = _fused(q, k, v, score, as_4d(table), dropout)
    return mixed if all_look else torch.where(looks, mixed, 0.0)


def as_4d(table: Tensor) -> Tensor:
    """With all four dimensions."""
    return table if table.dim() == 4 else table[(None,) * (4 - table.dim())]


def _each_query_alone(q: Tensor, k: Tensor, v: Tensor, score: DotProductScore, mask: Episode, dropout: float) -> Tensor:
    """The support looks at itself, each query at the support and at itself: of all other pairs no score is made."""
    known, size, asked = mask.support, mask.size, k.shape[2] - mask.support
    q, k, scale = score.to_dot_product(q, k)
    seen_k, seen_v = k[:, :, :known], v[:, :, :known]
    alone = q[:, :, -asked:]
    own = (alone if scale == 1 else alone * scale, k[:, :, -asked:], v[:, :, -asked:])  # half precision ends at 65,504
    own_q, own_k, own_v = (x.unflatten(2, (-1, size)) for x in own)

    def run(part: slice) -> Tensor:
        mine = own_q[:, :, part]
        of_support = (mine.flatten(2, 3) @ seen_k.mT).unflatten(2, (-1, size))
        weights = torch.cat((of_support, mine @ own_k[:, :, part].mT), -1).softmax(-1)
        weights = F.dropout(weights, dropout).to(v.dtype)
        of_itself = weights[..., known:] @ own_v[:, :, part]
        return weights[..., :known].flatten(2, 3) @ seen_v + of_itself.flatten(2, 3)

    if torch.is_grad_enabled() or torch.compiler.is_compiling():  # the way back needs all weights
        mixed = run(slice(None))
    else:
        some = max(1, SCORES_AT_ONCE // max(1, q.shape[0] * q.shape[1] * size * (known + size)))
        parts = [run(slice(start, start + some)) for start in range(0, asked // size, some)]
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    if q.shape[2] == asked:
        return mixed
    of_others = F.scaled_dot_product_attention(q[:, :, :known], seen_k, seen_v, dropout_p=dropout, scale=scale)
    return torch.cat((of_others, mixed), 2)


def _fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score: DotProductScore,
    table: Tensor | None,
    dropout: float,
    is_causal: bool = False,
) -> Tensor:
    """Torch's fused attention on folded vectors; table is a mask in its terms, (B, H, Q, K) with sizes of 1 for all."""
    heads = q.shape[1]
    if isinstance(score, DotScore) or q.shape[2] < LONG or heads < GROUPS or torch.is_grad_enabled():
        q, k, scale = score.to_dot_product(q, k)
        return F.scaled_dot_product_attention(q, k, v, table, dropout, is_causal, scale=scale)

    def run(part: slice) -> Tensor:
        folded_q, folded_k, scale = score.to_dot_product(q[:, part], k[:, part], part)
        mask = table if table is None or table.shape[1] == 1 else table[:, part]
        return F.scaled_dot_product_attention(folded_q, folded_k, v[:, part], mask, dropout, is_causal, scale=scale)

    size = -(-heads // GROUPS)
    first = run(slice(0, size))
    mixed = first.new_empty(*q.shape[:3], v.shape[-1])
    mixed[:, :size] = first
    del first
    for start in range(size, heads, size):
        part = slice(start, start + size)
        mixed[:, part] = run(part)
    return mixed


LONG = 1024
"""Every score but the dot product folds into copies of q and k. From this many queries on, where no gradient needs the
copies kept, they are made for some heads at a time, so that memory stays near that of the dot product."""
GROUPS = 4
"""Into how many groups the heads are divided for it."""
SCORES_AT_ONCE = 1 << 25
"""Scores that are made together for queries that look alone, where no gradient needs them kept."""

_SOFTMAX = Softmax()


def _ready(score: str | Score, normalize: str | Normalizer, device: torch.device) -> tuple[Score, Normalizer]:
    """Names to parts. A part by name has no owner, so it has nothing to learn and does not sample."""
    if not isinstance(score, Score):
        score = _fixed(score, device)
    if normalize == "softmax":
        return score, _SOFTMAX
    part = make_normalizer(normalize)
    return score, part if part is normalize else part.eval()


@cache
def _fixed(name: str, device: torch.device) -> Score:
    return find_score(name).fixed().to(device)


def _four_dims(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(N, D) or (B, N, D) or (B, H, N, D) -> (B, H, N, D)"""
    dims, keys = q.dim(), k.shape
    if not dims == len(keys) == v.dim() or dims not in (2, 3, 4):
        raise SightlineError(f"q, k and v must all have 2, 3 or 4 dimensions, got {_shapes(q, k, v)}")
    if q.shape[:-2] != keys[:-2] or keys[:-1] != v.shape[:-1]:
        raise SightlineError(
            f"q, k and v must have the same batch and heads, k and v the same length, got {_shapes(q, k, v)}"
        )
    if dims == 2:
        return q[None, None], k[None, None], v[None, None]
    if dims == 3:
        return q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)
    return q, k, v


def _shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"


def _as_given(x: Tensor, dims: int) -> Tensor:
    return x if dims == 4 else x.squeeze(1) if dims == 3 else x[0, 0]
