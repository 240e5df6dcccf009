"""Patch embeddings of images.

Shapes: B batch, C channels, T patches, M embedding dimension.
"""

from torch import Tensor, nn

from ..errors import SightlineError, check_int


class PatchEmbedding(nn.Module):
    """Split images into square patches and map each linearly to a vector, by a convolution with kernel = stride."""

    def __init__(self, channels: int, patch_size: int, embed_dim: int, *, bias: bool = True):
        super().__init__()
        check_int(1, channels=channels, patch_size=patch_size, embed_dim=embed_dim)
        self.channels, self.patch_size = channels, patch_size
        self.proj = nn.Conv2d(channels, embed_dim, patch_size, patch_size, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        """images (B, C, height, width) -> (B, T, M), patches in row-major order"""
        shape = tuple(images.shape)
        if len(shape) != 4 or shape[1] != self.channels:
            raise SightlineError(f"images must have shape (batch, {self.channels}, height, width), got {shape}")
        if shape[2] % self.patch_size or shape[3] % self.patch_size:
            rule = f"images must have sides that are multiples of patch_size={self.patch_size}"
            raise SightlineError(f"{rule}, got {shape[2]} x {shape[3]}")
        return self.proj(images).flatten(2).mT
