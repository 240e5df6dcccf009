"""Stacks of Transformer blocks: encoder, decoder, and the Transformer of both.

Shapes: B batch, T tokens (target tokens in a decoder), S source tokens, M embedding dimension.
"""

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from ..attention import Mask
from ..attention.masks import Causal
from ..errors import SightlineError, check_choice, check_int
from ..kernels.packing import Packing
from .blocks import DecoderBlock, DecoderCache, EncoderBlock


@dataclass(frozen=True, kw_only=True)
class TransformerSize:
    """The dimensions of an encoder or decoder."""

    embed_dim: int
    ffn_dim: int
    num_heads: int
    depth: int


SIZES: dict[str, TransformerSize] = {
    "tiny": TransformerSize(embed_dim=128, ffn_dim=256, num_heads=4, depth=4),
    "small": TransformerSize(embed_dim=256, ffn_dim=1024, num_heads=4, depth=3),
    "base": TransformerSize(embed_dim=512, ffn_dim=2048, num_heads=8, depth=6),
}
"""Sizes by name. `base` is that of the original paper; `tiny` suits about ten thousand sentences."""

CAUSAL = Causal()


class Encoder(nn.Module):
    """A stack of `depth` encoder blocks. Further options are those of `EncoderBlock`.

    `final_norm` adds a layer norm after the last block (default: if the blocks are pre-norm).
    """

    block_class: type[EncoderBlock] = EncoderBlock

    def __init__(
        self, embed_dim: int, num_heads: int, ffn_dim: int, depth: int, *, final_norm: bool | None = None, **block: Any
    ):
        super().__init__()
        check_int(1, depth=depth)
        self.layers = nn.ModuleList(self.block_class(embed_dim, num_heads, ffn_dim, **block) for _ in range(depth))
        final_norm = block.get("norm") == "pre" if final_norm is None else final_norm
        self.norm = nn.LayerNorm(embed_dim, block.get("norm_eps", 1e-5)) if final_norm else nn.Identity()

    def forward(self, x: Tensor, *, mask: Mask | None = None, packing: Packing | None = None) -> Tensor:
        """x (B, T, M) -> (B, T, M); with `packing`, both are packed"""
        for layer in self.layers:
            x = layer(x, mask=mask, packing=packing)
        return self.norm(x)


class Decoder(Encoder):
    """A stack of decoder blocks with causal self-attention. Takes the options of `Encoder`."""

    block_class = DecoderBlock

    def forward(  # type: ignore[override]
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
        """x (B, T, M), source (B, S, M) -> (B, T, M)

        `mask` (T, T) applies in addition to the causal mask. With `packing`, x and the output are packed; with
        `source_packing`, the source is.
        """
        mask = CAUSAL if mask is None else CAUSAL & mask
        if cache is not None and len(cache) != len(self.layers):
            raise SightlineError(f"cache must have one entry per layer, {len(self.layers)}, got {len(cache)}")
        options = {"mask": mask, "cross_mask": cross_mask, "packing": packing, "source_packing": source_packing}
        for i, layer in enumerate(self.layers):
            x = layer(x, source, cache=None if cache is None else cache[i], **options)
        return self.norm(x)

    def new_cache(self, source: Tensor | None = None) -> list[DecoderCache]:
        """A cache for each layer, empty or holding the keys and values of the source (B, S, M)."""
        return [layer.new_cache(source) for layer in self.layers if isinstance(layer, DecoderBlock)]


class Transformer(nn.Module):
    """Encoder and decoder over vectors. `Transformer.from_size("base")` has the size of the original paper."""

    def __init__(self, embed_dim: int, num_heads: int, ffn_dim: int, depth: int, **options: Any):
        super().__init__()
        self.encoder = Encoder(embed_dim, num_heads, ffn_dim, depth, **options)
        self.decoder = Decoder(embed_dim, num_heads, ffn_dim, depth, **options)

    @classmethod
    def from_size(cls, name: str, **options: Any) -> "Transformer":
        """A Transformer of a size in `SIZES`; options override its dimensions."""
        check_choice("size", name, SIZES)
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

        The masks are (S, S), (T, T) and (T, S). Pass the padding of the source as `encoder_mask` and `cross_mask`.
        """
        return self.decoder(target, self.encoder(source, mask=encoder_mask), mask=decoder_mask, cross_mask=cross_mask)
