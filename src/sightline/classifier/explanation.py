"""Explanation of a prediction by ablation: support images are removed and image regions are occluded.

Attention weights are not used. The contribution of a support image or of a region is the decrease of the
predicted class's logit without it.

Shapes: B batch, S support images, C channels, T tokens per image, M embedding dimension, G cells of the occlusion grid.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .. import limits
from ..errors import check_int, check_max
from ..view.explanations import Array, ExplainedImage
from .fitted import Fitted
from .predictions import Explanation, FewShotPrediction
from .support import SupportSet

MAX_CANDIDATES, MAX_CANDIDATE_VALUES = 128, 1 << 16
"""Support images whose contribution is computed, and the numbers of their embeddings; of more, the nearest are used."""
MIN_RELATIVE_CONTRIBUTION = 0.02
"""Contribution of a support image that is shown, relative to the largest."""
MAX_VALUES_PER_BATCH = 1 << 22
"""Numbers in the support embeddings of one forward pass."""


@torch.no_grad()
def explain(
    fitted: Fitted, embedding: Tensor, pixels: Tensor | None, prediction: FewShotPrediction, *, images: int, grid: int
) -> Explanation:
    """Explain the prediction for an embedding (T, M) of an image, uint8 (C, side, side); pixels are None without one.

    See `FewShotPrediction.explain`.
    """
    check_int(1, images=images, grid=grid)
    check_max(limits.MAX_EXPLANATION_IMAGES, images=images)
    check_max(limits.MAX_OCCLUSION_CELLS, grid=grid)
    support = fitted.support.select(_candidates(fitted.support, embedding, prediction.label))
    ablation = _Ablation(fitted, embedding, support, prediction.label)
    contributions = ablation.contributions()
    best = contributions.argsort(descending=True, stable=True)[:images]
    best = best[(contributions[best] > MIN_RELATIVE_CONTRIBUTION * contributions.max()) | (best == best[0])]
    explained = []
    for i in best.tolist():
        image = None if support.images is None else support.images[i]
        label, contribution = support.classes[int(support.labels[i])], float(contributions[i])
        occlusion = ablation.occlusion(image, grid, i)
        explained.append(ExplainedImage(support.names[i], _as_array(image), occlusion, label, contribution))
    name = "embedding" if pixels is None else "image"
    return Explanation(
        prediction=prediction,
        logit=ablation.logit,
        image=ExplainedImage(name, _as_array(pixels), ablation.occlusion(pixels, grid)),
        support=tuple(explained),
        num_candidates=len(support),
        is_complete=len(support) == len(fitted.support),
    )


class _Ablation:
    """Classifies a query with parts of the support set or of an image removed."""

    def __init__(self, fitted: Fitted, embedding: Tensor, support: SupportSet, label: str):
        self.fitted, self.support, self.class_index = fitted, support, support.classes.index(label)
        self.embedding = embedding[None, None]
        self.batch_size = max(1, MAX_VALUES_PER_BATCH // support.embeddings.numel())
        self.logit = float(self._logits(support.embeddings[None], support.labels[None], self.embedding)[0])

    def _logits(self, support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
        """support (B, S, T, M), labels (B, S), query (B, 1, T, M) -> logit of the predicted class (B,)"""
        head = self.fitted.model.head
        state = head.encode_support(support.to(head.device), labels.to(head.device), way=len(self.support.classes))
        logits = head.classify(state, query.to(head.device))[:, 0, self.class_index]
        return self.fitted.calibration.scale * logits.cpu()

    def contributions(self) -> Tensor:
        """Decrease of the logit without each support image: (S,)"""
        count = len(self.support)
        others = torch.arange(count).expand(count, -1)[~torch.eye(count, dtype=torch.bool)].view(count, -1)
        decreases = []
        for rows in others.split(self.batch_size):
            query = self.embedding.expand(len(rows), -1, -1, -1)
            logits = self._logits(self.support.embeddings[rows], self.support.labels[rows], query)
            decreases.append(self.logit - logits)
        return torch.cat(decreases)

    def occlusion(self, pixels: Tensor | None, grid: int, support_index: int | None = None) -> Array | None:
        """Decrease of the logit without each cell of the query image, or of a support image: (grid, grid)"""
        embedder = self.fitted.embedder
        if pixels is None or embedder is None or pixels.shape[-1] != embedder.image_size:
            return None
        occluded, is_changed = occlude_cells(pixels, grid)
        decrease = torch.zeros(len(occluded), dtype=torch.float64)
        for cells in is_changed.nonzero().flatten().split(self.batch_size):
            new = embedder.embed(occluded[cells]).cpu()
            support = self.support.embeddings.expand(len(cells), -1, -1, -1)
            query = self.embedding.expand(len(cells), -1, -1, -1)
            if support_index is None:
                query = new[:, None]
            else:
                support = support.clone()
                support[:, support_index] = new
            decrease[cells] = self.logit - self._logits(support, self.support.labels.expand(len(cells), -1), query)
        array: Array = decrease.view(grid, grid).numpy()
        return array


def occlude_cells(pixels: Tensor, grid: int) -> tuple[Tensor, Tensor]:
    """The image with each cell of a grid occluded, and whether that changes a pixel.

    pixels uint8 (C, side, side) -> uint8 (G, C, side, side), bool (G,)
    """
    occluded = torch.where(cell_masks(pixels.shape[-1], grid)[:, None], occlusion_color(pixels), pixels)
    return occluded, (occluded != pixels).flatten(1).any(1)


def cell_masks(side: int, grid: int) -> Tensor:
    """The pixels of each cell of a grid: bool (G, side, side), row by row"""
    cells = torch.arange(side) * grid // side
    is_in_cell = cells == torch.arange(grid)[:, None]
    return (is_in_cell[:, None, :, None] & is_in_cell[None, :, None, :]).flatten(0, 1)


def occlusion_color(pixels: Tensor) -> Tensor:
    """The median of each channel, (C, 1, 1): of a drawing, the paper"""
    return pixels.flatten(1).median(1).values[:, None, None]


def _candidates(support: SupportSet, embedding: Tensor, label: str) -> Tensor:
    """Sorted indices of all support images, or of those of the predicted class and the nearest others."""
    maximum = min(MAX_CANDIDATES, max(4, MAX_CANDIDATE_VALUES // embedding.numel()))
    if len(support) <= maximum:
        return torch.arange(len(support))
    cosines = F.cosine_similarity(support.embeddings.mean(1), embedding.mean(0)[None])
    is_predicted = support.labels == support.classes.index(label)
    order = (cosines + 4.0 * is_predicted).argsort(descending=True, stable=True)
    predicted = order[: min(int(is_predicted.sum()), maximum // 2)]
    others = order[int(is_predicted.sum()) :][: maximum - len(predicted)]
    return torch.cat((predicted, others)).sort().values


def _as_array(pixels: Tensor | None) -> Array | None:
    """uint8 (C, H, W) -> (H, W) or (H, W, 3)"""
    if pixels is None:
        return None
    array: Array = np.ascontiguousarray(pixels.permute(1, 2, 0).squeeze(-1).cpu().numpy())
    return array
