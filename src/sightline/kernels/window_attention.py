"""Attention under a window mask whose cost grows with tokens × radius, not with the square of the tokens.

Queries are divided into blocks. Each block attends to its own keys and to `radius` keys on either side, so the masked
pairs far from the diagonal are never computed.

Shapes: B batch, H heads, Q queries, K keys, D head dimension, N number of blocks, L keys of a block.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_BLOCK = 64
"""Queries of a block, if the radius is smaller."""
MIN_SAVING = 2.5
"""All pairs of a query and a key, relative to those in blocks, from which on blocks are faster."""


def is_applicable(queries: int, keys: int, radius: int) -> bool:
    """Whether `window_attention` takes these sizes and saves work."""
    if not 0 < queries <= keys:
        return False
    block = _block_size(radius)
    pairs = -(-queries // block) * block * (block + 2 * radius)
    return MIN_SAVING * pairs <= queries * keys


def window_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    radius: int,
    scale: float,
    causal: bool = False,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(scale * q k^T) v: q (B, H, Q, D), k (B, H, K, D), v (B, H, K, D) -> (B, H, Q, D)

    The queries are the last of the keys and attend to keys at a distance of up to `radius`, with `causal` only to
    earlier ones. attention_mask (B or 1, K) is False for padding. A query without any allowed key gets zeros.
    """
    queries, block = q.shape[2], _block_size(radius)
    num_blocks = -(-queries // block)
    before, after = radius, 0 if causal else radius
    first = max(0, k.shape[2] - queries - before)  # earlier keys are outside of every window
    padding = (before - (k.shape[2] - queries - first), num_blocks * block - queries + after)

    def key_blocks(x: Tensor) -> Tensor:
        """(B, H, K, D) -> (B N, H, L, D)"""
        x = F.pad(x[:, :, first:], (0, 0, *padding))
        return x.unfold(2, before + block + after, block).permute(0, 2, 1, 4, 3).flatten(0, 1)

    q_blocks = F.pad(q, (0, 0, 0, num_blocks * block - queries))
    q_blocks = q_blocks.unflatten(2, (num_blocks, block)).transpose(1, 2).flatten(0, 1)  # (B N, H, block, D)
    allowed = _allowed(num_blocks, block, (before, after), queries, k.shape[2] - first, q.device)
    if attention_mask is not None:
        is_token = F.pad(attention_mask[:, first:], padding, value=True).unfold(1, before + block + after, block)
        allowed = allowed & is_token[:, :, None]  # (B or 1, N, block, L)
    has_key = allowed.any(-1, keepdim=True)
    allowed = (allowed | ~has_key).expand(q.shape[0], -1, -1, -1).flatten(0, 1)[:, None]
    out = F.scaled_dot_product_attention(
        q_blocks, key_blocks(k), key_blocks(v), allowed, dropout_p=dropout, scale=scale
    )
    out = out.unflatten(0, (q.shape[0], num_blocks))
    out = out if attention_mask is None else torch.where(has_key[:, :, None], out, 0.0)
    return out.transpose(1, 2).flatten(2, 3)[:, :, :queries]


def reference_window_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    radius: int,
    scale: float,
    causal: bool = False,
    attention_mask: Tensor | None = None,
) -> Tensor:
    """`window_attention` by the full matrix of scores and a mask, without dropout."""
    keys = torch.arange(k.shape[2], device=k.device)
    distance = keys - keys[k.shape[2] - q.shape[2] :, None]
    allowed = (distance >= -radius) & (distance <= (0 if causal else radius))
    if attention_mask is not None:
        allowed = allowed & attention_mask[:, None, None]
    weights = (scale * q @ k.mT).masked_fill(~allowed, float("-inf")).softmax(-1)
    return weights.nan_to_num(0.0) @ v


def _block_size(radius: int) -> int:
    return max(MIN_BLOCK, radius)


def _allowed(
    num_blocks: int, block: int, sides: tuple[int, int], queries: int, keys: int, device: torch.device
) -> Tensor:
    """Whether a query may attend to a key, by block: (1, N, block, L). Positions start at the first query.

    Queries of the last block that fill it up attend to keys that fill it up, so that no row is empty.
    """
    before, after = sides
    starts = block * torch.arange(num_blocks, device=device)[:, None, None]
    query = torch.arange(block, device=device)[:, None]
    key = torch.arange(-before, block + after, device=device)
    in_window = (key >= query - before) & (key <= query + after)
    is_key = (starts + key >= queries - keys) & ((starts + key < queries) | (starts + query >= queries))
    return (in_window & is_key)[None]
