"""Attention under a few-shot episode mask without the scores between queries.

The first `support` keys are visible to all. The rest belong to queries of `query_size` tokens each, which attend to the
support and to themselves. With many queries, most pairs of the full score matrix are masked.

Shapes: B batch, H heads, K keys, D head dimension, S support tokens, L tokens of all queries, N number of queries.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_SCORES = 1 << 25
"""Scores computed at a time where no gradient is needed."""
MIN_CPU_KEYS = 256
"""Keys from which on this is faster on a CPU than torch's fused attention with a mask."""


def is_applicable(queries: int, keys: int, support: int, query_size: int) -> bool:
    """Whether `episode_attention` takes these sizes and saves work: whole queries that outnumber the support.

    The support tokens may be among the attending tokens or, with a key-value cache, only among the keys.
    """
    query_tokens = keys - support
    return query_tokens > support and query_tokens % query_size == 0 and queries in (query_tokens, keys)


def is_faster(q: Tensor, keys: int, dropout: float) -> bool:
    """Whether `episode_attention` is faster than torch's attention with a mask, which is not fused with dropout."""
    return not q.is_cpu or dropout > 0 or keys >= MIN_CPU_KEYS


def episode_attention(
    q: Tensor, k: Tensor, v: Tensor, *, support: int, query_size: int, scale: float, dropout: float = 0.0
) -> Tensor:
    """softmax(scale * q k^T) v under the episode mask: q (B, H, L or K, D), k (B, H, K, D), v (B, H, K, D) -> like q"""
    query_tokens = k.shape[2] - support
    support_k, support_v = k[:, :, :support], v[:, :, :support]
    own_q = q[:, :, -query_tokens:]
    own_q = own_q if scale == 1 else own_q * scale  # scaled first: unscaled products overflow float16
    own_q, own_k, own_v = (
        x.unflatten(2, (-1, query_size)) for x in (own_q, k[:, :, -query_tokens:], v[:, :, -query_tokens:])
    )  # (B, H, N, query_size, D)

    def attend(chunk: slice) -> Tensor:
        chunk_q = own_q[:, :, chunk]
        to_support = (chunk_q.flatten(2, 3) @ support_k.mT).unflatten(2, (-1, query_size))
        to_itself = chunk_q @ own_k[:, :, chunk].mT
        weights = torch.cat((to_support, to_itself), -1).softmax(-1)
        weights = F.dropout(weights, dropout).to(v.dtype)
        from_itself = weights[..., support:] @ own_v[:, :, chunk]
        return weights[..., :support].flatten(2, 3) @ support_v + from_itself.flatten(2, 3)

    if torch.is_grad_enabled() or torch.compiler.is_compiling():  # the backward pass needs all weights
        out = attend(slice(None))
    else:
        step = max(1, MAX_SCORES // max(1, q.shape[0] * q.shape[1] * query_size * (support + query_size)))
        starts = range(0, query_tokens // query_size, step)
        chunks = [attend(slice(start, start + step)) for start in starts]
        out = chunks[0] if len(chunks) == 1 else torch.cat(chunks, 2)
    if q.shape[2] == query_tokens:
        return out
    support_out = F.scaled_dot_product_attention(
        q[:, :, :support], support_k, support_v, dropout_p=dropout, scale=scale
    )
    return torch.cat((support_out, out), 2)


def reference_episode_attention(
    q: Tensor, k: Tensor, v: Tensor, *, support: int, query_size: int, scale: float
) -> Tensor:
    """`episode_attention` by the full matrix of scores and a mask."""
    positions = torch.arange(k.shape[2], device=k.device)
    owner = (positions - support) // query_size  # number of the query, negative for the support
    allowed = (positions < support) | (owner[-q.shape[2] :, None] == owner)
    return F.scaled_dot_product_attention(q, k, v, allowed, scale=scale)
