"""Attention with several num_heads, and the cache that makes step-by-step decoding cheap.

Legend for all shapes: B batch, H num_heads, Q queries, K keys, D head embed_dim, M model embed_dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import SightlineError, check_fraction, check_int
from ..kernels.packing import Packing
from .functional import attend
from .masks import Bias, Mask, check_mask
from .normalizers import Normalizer, make_normalizer
from .scores import Score, make_score


class MultiHeadAttention(nn.Module):
    """Several num_heads look at once, each with its own projection of `head_dim` channels, by default embed_dim/num_heads.

    One fused projection makes queries, keys and values. Given a `context`, keys and values come from it instead
    (cross-attention). `mask` holds at every call, beside the one a call brings. `in_context_bias` adds b = W x to the
    scores of each key, one number per head made from the token itself.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        score: str | Score = "dot",
        normalize: str | Normalizer = "softmax",
        mask: Mask | None = None,
        bias: bool = True,
        in_context_bias: bool = False,
        dropout: float = 0.0,
        head_dim: int | None = None,
    ):
        super().__init__()
        check_int(1, embed_dim=embed_dim, num_heads=num_heads)
        check_fraction(dropout=dropout)
        if head_dim is None:
            if embed_dim % num_heads:
                raise SightlineError(f"num_heads must divide embed_dim={embed_dim}, got {num_heads}; or give head_dim")
            head_dim = embed_dim // num_heads
        check_int(1, head_dim=head_dim)
        self.embed_dim, self.num_heads, self.dropout, self.head_dim = embed_dim, num_heads, dropout, head_dim
        self.score = make_score(score, head_dim=head_dim, num_heads=num_heads)
        self.normalize = make_normalizer(normalize)
        self.mask = None if mask is None else check_mask(mask, "mask")
        self.qkv = nn.Linear(embed_dim, 3 * num_heads * head_dim, bias=bias)
        self.key_bias = nn.Linear(embed_dim, num_heads, bias=False) if in_context_bias else None
        self.out_proj = nn.Linear(num_heads * head_dim, embed_dim, bias=bias)
        nn.init.xavier_uniform_(self.qkv.weight)
        if bias:
            nn.init.zeros_(self.qkv.bias)
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | None = None,
        cache: "Cache | None" = None,
        packing: Packing | None = None,
        context_packing: Packing | None = None,
    ) -> Tensor:
        """x (B, Q, M), context (B, K, M) -> (B, Q, M)

        Given its packing, x or the context comes packed; what comes back is packed as x is.
        """
        self._check_width("x", x)
        if context is None:
            q, k, v, *biases = self._project_all(x, cache, packing)
        else:
            self._check_width("context", context)
            if context.shape[0] != x.shape[0]:
                raise SightlineError(f"context must have the batch of x, {x.shape[0]}, got {context.shape[0]}")
            q, k, v, *biases = self._project_both(x, context, cache, packing, context_packing)
        if self.mask is not None:
            mask = self.mask if mask is None else self.mask & mask
        if biases:
            bias = Bias(biases[0].mT, finite=True)
            mask = bias if mask is None else bias & mask
        mixed = attend(
            q,
            k,
            v,
            score=self.score,
            normalize=self.normalize,
            mask=mask,
            dropout=self.dropout if self.training else 0.0,
            kind=None if context is None else "cross",
        )
        mixed = mixed.transpose(1, 2).flatten(2)
        return self.out_proj(mixed if packing is None else packing.pack(mixed))

    def remember(self, context: Tensor) -> "Cache":
        """A cache of this context, filled before the first look at it. context (B, K, M)"""
        self._check_width("context", context)
        cache = Cache()
        cache.parts = self._project_context(context, self._maps()[1])
        return cache

    def _project_all(self, x: Tensor, cache: "Cache | None", packing: Packing | None) -> list[Tensor]:
        """Queries, keys, values and key biases of the same tokens, by one product: x (B, N, M) -> (B, H, N, D) each"""
        made, biases = self._divided(self.qkv(x), packing), self._biases(x, packing)
        if cache is None:
            return [*_apart(made, 3), *biases]
        q, new = made.transpose(1, 2).split_with_sizes([self.num_heads, 2 * self.num_heads], 1)
        pairs, *biases = cache.extend([new, *biases])
        return [q, *pairs.chunk(2, 1), *biases]

    def _project_both(
        self, x: Tensor, context: Tensor, cache: "Cache | None", packing: Packing | None, other: Packing | None
    ) -> list[Tensor]:
        """Queries of x, and keys, values and key biases of the context, which a cache may have ready."""
        if cache is not None and cache.parts:
            size, maps = self.num_heads * self.head_dim, self.qkv
            made = F.linear(x, maps.weight[:size], None if maps.bias is None else maps.bias[:size])
            return [self._divided(made, packing).transpose(1, 2), *cache.parts]
        for_query, for_context = self._maps()
        seen = self._project_context(context, for_context, other)
        if cache is not None:
            cache.parts = seen
        return [self._divided(F.linear(x, *for_query), packing).transpose(1, 2), *seen]

    def _project_context(self, context: Tensor, maps: "Maps", packing: Packing | None = None) -> list[Tensor]:
        """Keys, values and key biases: context (B, K, M) -> (B, H, K, D), (B, H, K, D), (B, H, K, 1)"""
        return [*_apart(self._divided(F.linear(context, *maps), packing), 2), *self._biases(context, packing)]

    def _maps(self) -> "tuple[Maps, Maps]":
        """The weights and biases for queries, and those for keys and values; cut once, so their gradient is one."""
        sizes = [self.num_heads * self.head_dim, 2 * self.num_heads * self.head_dim]
        weight, both = _lowered(self.qkv.weight), None if self.qkv.bias is None else _lowered(self.qkv.bias)
        of_query, of_context = weight.split_with_sizes(sizes)
        bias, context_bias = (None, None) if both is None else both.split_with_sizes(sizes)
        return (of_query, bias), (of_context, context_bias)

    def _biases(self, x: Tensor, packing: Packing | None) -> list[Tensor]:
        if self.key_bias is None:
            return []
        biases = self.key_bias(x) if packing is None else packing.fill(self.key_bias(x))
        return [biases.mT.unsqueeze(-1)]

    def _divided(self, x: Tensor, packing: Packing | None) -> Tensor:
        """(B, N, any * D) -> (B, N, any, D)"""
        x = x if packing is None else packing.fill(x)
        rows, tokens, channels = x.shape
        return x.view(rows, tokens, channels // self.head_dim, self.head_dim)

    def _check_width(self, name: str, x: Tensor) -> None:
        if x.dim() != 3 or x.shape[-1] != self.embed_dim:
            raise SightlineError(f"{name} must have shape (batch, tokens, {self.embed_dim}), got {tuple(x.shape)}")

    def extra_repr(self) -> str:
        return (
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, head_dim={self.head_dim}, dropout={self.dropout}"
        )


def _apart(x: Tensor, parts: int) -> list[Tensor]:
    """(B, N, parts * H, D) -> (B, H, N, D) for each; cut first, so that the gradient is joined as it was cut"""
    return [part.transpose(1, 2) for part in x.chunk(parts, 2)]


def _lowered(weight: Tensor) -> Tensor:
    """In the precision autocast will want it in: lowered before it is cut, for afterwards each part would be."""
    kind = weight.device.type
    lowered = torch.is_autocast_enabled(kind) and weight.dtype is not torch.float64  # which autocast leaves alone
    return weight.to(torch.get_autocast_dtype(kind)) if lowered else weight


Maps = tuple[Tensor, Tensor | None]
"""A weight and its bias."""


class Cache:
    """What an attention has seen so far: keys, values and whatever belongs to them, each (B, any, K, channels).

    Make one for each attention and sentence, and pass it at every step. Self-attention adds each step's tokens to it,
    cross-attention fills it once. Room is doubled when it runs out, so a step costs one token's copy.
    """

    def __init__(self) -> None:
        self.parts: list[Tensor] = []
        """Keys, values and the rest, all tokens so far."""
        self._room: list[Tensor] = []
        self._spare: list[Tensor] = []
        """Room of the same size, into which rows are copied when they change places."""

    def __len__(self) -> int:
        return self.parts[0].shape[2] if self.parts else 0

    def extend(self, new: list[Tensor]) -> list[Tensor]:
        """Add tokens at the end and return all there are."""
        if not self.parts:
            self.parts, self._room, self._spare = new, [], []
            return new
        for part, added in zip(self.parts, new, strict=True):
            if part.shape[:2] != added.shape[:2]:
                raise SightlineError(
                    f"cache must be used with the batch it began with, and its num_heads of keys and values, "
                    f"{tuple(part.shape[:2])}, got {tuple(added.shape[:2])}"
                )
        if torch.is_grad_enabled():  # what was handed out may be needed on the way back, so nothing is overwritten
            self.parts = [torch.cat(pair, 2) for pair in zip(self.parts, new, strict=True)]
            self._room, self._spare = [], []
        else:
            self.parts = self._written(new)
        return self.parts

    def reorder(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order; a row may come twice (as beams do). rows (B',)"""
        count, end = len(rows), len(self)
        if not self._usable(count, end):
            self.parts = [part.index_select(0, rows) for part in self.parts]
            self._room, self._spare = [], []
            return
        self._spare = self._spare or [torch.empty_like(room) for room in self._room]
        self._room, self._spare = (
            [room[:count] for room in self._spare],
            [room[:count] for room in self._room],
        )
        for part, room in zip(self.parts, self._room, strict=True):
            torch.index_select(part, 0, rows, out=room[:, :, :end])
        self.parts = [room[:, :, :end] for room in self._room]

    def _written(self, new: list[Tensor]) -> list[Tensor]:
        rows, _, start, _ = self.parts[0].shape
        end = start + new[0].shape[2]
        if not self._usable(rows, end):
            self._room = [part.new_empty(*part.shape[:2], 2 * end, part.shape[3]) for part in self.parts]
            self._spare = []
            for room, part in zip(self._room, self.parts, strict=True):
                room[:, :, :start] = part
        for room, part in zip(self._room, new, strict=True):
            room.narrow(2, start, end - start).copy_(part)
        return [room.narrow(2, 0, end) for room in self._room]

    def _usable(self, rows: int, end: int) -> bool:
        """Whether there is room for this much that may be written to: what inference mode made, it alone may change."""
        if not self._room or torch.is_grad_enabled():
            return False
        room = self._room[0]
        return len(room) >= rows and room.shape[2] >= end and room.is_inference() == torch.is_inference_mode_enabled()
