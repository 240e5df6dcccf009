"""Normalization of the embeddings of a fixed encoder by statistics of its training images.

Shapes: N images, T tokens per image, M embedding dimension, K whitened directions.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .few_shot_config import FewShotConfig

SHRINKAGE = 0.25
"""Added to the within-class variances before whitening, as a multiple of their mean over all directions."""
WHITENING_EXPONENT = 0.25
"""Power of the variances by which directions are divided; 0.5 is complete whitening, 0 is none. The smallest whose mean
accuracy on image sets of many kinds is within one standard error of the best (`benchmarks.domain_constants`):
in a set of another kind, classes may differ in the directions that are scaled down."""

MIN_VALUE = 1e-6
"""Absolute values below it are raised to it before the power transform, whose gradient is then finite."""


class EmbeddingNormalization(nn.Module):
    """Power transform, centering, and partial whitening of the directions in which images of one class differ most.

    The result has unit variance per dimension: its length is the square root of M. Without statistics, only the power
    transform is applied.

    Args:
        embed_dim: M.
        power: Exponent of the absolute values.
        whitening_dim: K, the number of directions that are whitened; 0 for none.
    """

    mean: Tensor
    basis: Tensor
    scales: Tensor

    def __init__(self, embed_dim: int, *, power: float = 0.5, whitening_dim: int = 0):
        super().__init__()
        self.power = power
        self.register_buffer("mean", torch.zeros(embed_dim))
        self.register_buffer("basis", torch.zeros(embed_dim, whitening_dim))
        self.register_buffer("scales", torch.ones(whitening_dim))

    def forward(self, x: Tensor) -> Tensor:
        """x (..., M) -> (..., M)"""
        x = self.transform(x) - self.mean.to(x.dtype)
        basis, scales = self.basis.to(x.dtype), self.scales.to(x.dtype)
        x = x + (x @ basis) * (scales - 1) @ basis.mT
        return F.normalize(x, dim=-1) * x.shape[-1] ** 0.5

    def transform(self, x: Tensor) -> Tensor:
        """The power transform, to unit length."""
        return F.normalize(x.sign() * x.abs().clamp_min(MIN_VALUE).pow(self.power), dim=-1)

    def without_whitening(self) -> "EmbeddingNormalization":
        """The same transform without whitening."""
        plain = EmbeddingNormalization(len(self.mean), power=self.power).to(self.mean.device)
        plain.mean.copy_(self.mean)
        return plain.requires_grad_(False)

    @torch.no_grad()
    def set_statistics(self, sources: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Set the statistics from embeddings (N, T, M) and labels (N,) of several data sets, which count equally."""
        mean, covariance = self.statistics(sources)
        self.mean.copy_(mean)
        if len(self.scales):
            self.set_whitening(*torch.linalg.eigh(covariance))

    def statistics(self, sources: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """The mean (M,) of transformed embeddings and their covariance (M, M) within classes, see `set_statistics`."""
        means, covariances = [], []
        for embeddings, labels in sources:
            x = self.transform(embeddings.float().mean(1)).double().cpu()
            means.append(x.mean(0))
            counts = labels.cpu().bincount()
            sums = x.new_zeros(len(counts), x.shape[1]).index_add(0, labels.cpu(), x)
            residuals = x - (sums / counts.clamp_min(1)[:, None])[labels.cpu()]
            covariances.append(residuals.mT @ residuals / (counts - 1).clamp_min(0).sum().clamp_min(1))
        return torch.stack(means).mean(0), torch.stack(covariances).mean(0)

    def set_whitening(self, variances: Tensor, directions: Tensor) -> None:
        """Set the whitened directions from the variances (M,) within classes, in ascending order, along (M, M)."""
        count = len(self.scales)
        rest = variances[:-count].mean() if count < len(variances) else variances[0]
        added = SHRINKAGE * variances.mean()
        self.basis.copy_(directions[:, -count:])
        self.scales.copy_(((rest + added) / (variances[-count:] + added)).pow(WHITENING_EXPONENT))


class SpatialNormalization(nn.Module):
    """Normalization of pooled features and of the feature map that follows them, each by its own statistics.

    All positions of the map share the statistics of its channels. The squared length of the result is M, of which the
    map has the fraction `weight`.

    Args:
        pooled: The normalization of the pooled features.
        positions: The normalization of the features at one position of the map.
        weight: From 0 to 1; with 0, the result is that of the pooled features alone.
    """

    def __init__(self, pooled: EmbeddingNormalization, positions: EmbeddingNormalization, weight: float):
        super().__init__()
        self.pooled, self.positions, self.weight = pooled, positions, weight

    def forward(self, x: Tensor) -> Tensor:
        """x (..., M) -> (..., M), or with a weight of 0 the pooled features (..., P)"""
        pooled, positions = self._split(x)
        pooled = self.pooled(pooled)
        if not self.weight:
            return pooled
        positions = self.positions(positions).flatten(-2)
        scales = ((1 - self.weight) / pooled.shape[-1], self.weight / positions.shape[-1])
        parts = zip((pooled, positions), scales, strict=True)
        return torch.cat([part * (x.shape[-1] * scale) ** 0.5 for part, scale in parts], -1)

    def with_weight(self, weight: float) -> "SpatialNormalization":
        """The same statistics with another weight of the map."""
        return SpatialNormalization(self.pooled, self.positions, weight)

    def without_whitening(self) -> "SpatialNormalization":
        """The transform of the pooled features alone, without whitening."""
        return SpatialNormalization(self.pooled.without_whitening(), self.positions, 0.0)

    @torch.no_grad()
    def set_statistics(self, sources: Sequence[tuple[Tensor, Tensor]]) -> None:
        """See `EmbeddingNormalization.set_statistics`. Images of a class are compared position by position."""
        pooled, positions = list[tuple[Tensor, Tensor]](), list[tuple[Tensor, Tensor]]()
        for x, labels in sources:
            own, cells = self._split(x.mean(1))
            pooled.append((own[:, None], labels))
            cell_labels = labels.cpu()[:, None] * cells.shape[1] + torch.arange(cells.shape[1])
            positions.append((cells.flatten(0, 1)[:, None], cell_labels.flatten()))
        self.pooled.set_statistics(pooled)
        self.positions.set_statistics(positions)

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (..., M) -> pooled features (..., P), and the map (..., positions, channels)"""
        size, channels = len(self.pooled.mean), len(self.positions.mean)
        return x[..., :size], x[..., size:].unflatten(-1, (-1, channels))


def make_normalization(config: FewShotConfig) -> EmbeddingNormalization | SpatialNormalization | None:
    """The normalization of the embeddings of a few-shot model, without statistics; None for embeddings as they are."""
    c = config
    if c.power is None:
        return None
    pooled = EmbeddingNormalization(c.pooled_dim, power=c.power, whitening_dim=c.whitening_dim or 0)
    if c.feature_map_channels is None:
        return pooled
    whitening_dim = c.feature_map_channels if c.whitening_dim else 0
    positions = EmbeddingNormalization(c.feature_map_channels, power=c.power, whitening_dim=whitening_dim)
    return SpatialNormalization(pooled, positions, c.feature_map_weight)
