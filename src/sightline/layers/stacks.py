"""Blocks in stacks: the encoder, the decoder, and the Transformer made of both.

Legend for all shapes: B batch, N tokens, T target tokens, S source tokens, M model embed_dim.
"""

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from ..attention import Mask
from ..attention.masks import Causal
from ..errors import SightlineError, check_int, one_of
from ..kernels.packing import Packing
from .blocks import DecoderBlock, DecoderCache, EncoderBlock


@dataclass(frozen=True, kw_only=True)
class Size:
    """The dimensions of a stack."""

    embed_dim: int
    ffn_dim: int
    num_heads: int
    depth: int


SIZES: dict[str, Size] = {
    "tiny": Size(embed_dim=128, ffn_dim=256, num_heads=4, depth=4),
    "small": Size(embed_dim=256, ffn_dim=1024, num_heads=4, depth=3),
    "base": Size(embed_dim=512, ffn_dim=2048, num_heads=8, depth=6),
}
"""`base` is the paper's; `tiny` is for some ten thousand sentences."""


CAUSAL = Causal()
"""It has no sizes, so one serves all."""


class Encoder(nn.Module):
    """Encoder blocks, one upon the other. Options are those of `EncoderBlock`."""

    def __init__(
        self, embed_dim: int, num_heads: int, ffn_dim: int, depth: int, *, final_norm: bool | None = None, **block: Any
    ):
        super().__init__()
        check_int(1, depth=depth)
        self.layers = nn.ModuleList(EncoderBlock(embed_dim, num_heads, ffn_dim, **block) for _ in range(depth))
        self.norm = _final_norm(embed_dim, final_norm, block)

    def forward(self, x: Tensor, *, mask: Mask | None = None, packing: Packing | None = None) -> Tensor:
        """x (B, N, M) -> (B, N, M), or both packed"""
        for layer in self.layers:
            x = layer(x, mask=mask, packing=packing)
        return self.norm(x)


class Decoder(nn.Module):
    """Decoder blocks, one upon the other. Options are those of `DecoderBlock`."""

    def __init__(
        self, embed_dim: int, num_heads: int, ffn_dim: int, depth: int, *, final_norm: bool | None = None, **block: Any
    ):
        super().__init__()
        check_int(1, depth=depth)
        self.layers = nn.ModuleList(DecoderBlock(embed_dim, num_heads, ffn_dim, **block) for _ in range(depth))
        self.norm = _final_norm(embed_dim, final_norm, block)

    def forward(
        self,
        x: Tensor,
        source: Tensor,
        *,
        mask: Mask | None = None,
        cross_mask: Mask | None = None,
        cache: list[DecoderCache] | None = None,
        packing: Packing | None = None,
        source_packing: Packing | None = None,
    ) -> Tensor:
        """x (B, T, M), source (B, S, M) -> (B, T, M); `mask` comes beside the causal one; given its packing, x or the
        source comes packed"""
        mask = CAUSAL if mask is None else CAUSAL & mask
        if cache is not None and len(cache) != len(self.layers):
            raise SightlineError(f"cache must have one entry per layer, {len(self.layers)}, got {len(cache)}")
        for i, layer in enumerate(self.layers):
            own = None if cache is None else cache[i]
            packed = {"packing": packing, "source_packing": source_packing}
            x = layer(x, source, mask=mask, cross_mask=cross_mask, cache=own, **packed)
        return self.norm(x)

    def new_cache(self, source: Tensor | None = None) -> list[DecoderCache]:
        """A cache to decode one batch of sentences with; given the source (B, S, M), it knows that already."""
        return [layer.new_cache(source) for layer in self.layers if isinstance(layer, DecoderBlock)]


class Transformer(nn.Module):
    """Encoder and decoder over vectors; `Transformer.from_size("base")` is the paper's."""

    def __init__(self, embed_dim: int, num_heads: int, ffn_dim: int, depth: int, **options: Any):
        super().__init__()
        self.encoder = Encoder(embed_dim, num_heads, ffn_dim, depth, **options)
        self.decoder = Decoder(embed_dim, num_heads, ffn_dim, depth, **options)

    @classmethod
    def from_size(cls, name: str, **options: Any) -> "Transformer":
        """By the name of its size; options may change it."""
        if name not in SIZES:
            raise SightlineError(f"size must be {one_of(str(name), SIZES)}")
        return cls(**{**asdict(SIZES[name]), **options})

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        encoder_mask: Mask | None = None,
        decoder_mask: Mask | None = None,
        cross_mask: Mask | None = None,
    ) -> Tensor:
        """source (B, S, M), target (B, T, M) -> (B, T, M)

        The masks are (S, S), (T, T) and (T, S); padding of the source goes into the first and the last. The target
        never sees its own future.
        """
        return self.decoder(target, self.encoder(source, mask=encoder_mask), mask=decoder_mask, cross_mask=cross_mask)


def _final_norm(embed_dim: int, wanted: bool | None, block: dict[str, Any]) -> nn.Module:
    """Pre-norm blocks leave their sum unnormalized, so a last norm follows; post-norm blocks need none."""
    wanted = block.get("norm") == "pre" if wanted is None else wanted
    return nn.LayerNorm(embed_dim) if wanted else nn.Identity()
