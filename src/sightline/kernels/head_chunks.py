"""Attention of transformed queries and keys, a part of the heads at a time.

The transformed copies of q and k then take a fraction of the memory.

Shapes: B batch, H heads, Q queries, K keys, D head dimension.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_QUERIES = 1024
"""Number of queries from which on the heads are divided."""
CHUNKS = 4
"""Number of parts."""

Transform = Callable[[Tensor, Tensor, slice], tuple[Tensor, Tensor, float]]
"""q, k and the heads they hold -> transformed q, transformed k, scale"""


def chunked_attention(
    transform: Transform, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, is_causal: bool
) -> Tensor:
    """softmax(scale * q k^T) v of transformed q and k: q (B, H, Q, D), k (B, H, K, D), v (B, H, K, D) -> (B, H, Q, D)

    The mask broadcasts to (B, H, Q, K). With gradients the heads are not divided: the backward pass needs the copies.
    """
    num_heads = q.shape[1]
    is_whole = torch.is_grad_enabled() or torch.compiler.is_exporting() or num_heads < CHUNKS
    if is_whole or q.shape[2] < MIN_QUERIES:
        return reference_attention(transform, q, k, v, mask, dropout, is_causal)
    size, out = -(-num_heads // CHUNKS), q.new_empty(0)
    for start in range(0, num_heads, size):
        heads = slice(start, start + size)
        qkv, chunk_mask = (q[:, heads], k[:, heads], v[:, heads]), mask
        if mask is not None and mask.shape[1] > 1:
            chunk_mask = mask[:, heads]
        chunk = reference_attention(transform, *qkv, chunk_mask, dropout, is_causal, heads)
        out = out if start else chunk.new_empty(*q.shape[:3], v.shape[3])
        out[:, heads] = chunk
        del chunk  # before the next one is computed
    return out


def reference_attention(
    transform: Transform,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    is_causal: bool,
    heads: slice = slice(None),
) -> Tensor:
    """`chunked_attention` at once. `heads` are those that q, k and v hold."""
    q, k, scale = transform(q, k, heads)
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal, scale=scale)
