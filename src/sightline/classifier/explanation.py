"""Explanation of predictions by ablation: support examples are left out and regions of the image are occluded.

Attention weights are not used. An effect is the decrease of log probabilities without a part. A head is used through
`Fitted.scores` and `Fitted.scores_without` alone. Regions are searched coarse to fine: all cells are occluded at half
the size of the image, and those with the largest effects at its full size.

Shapes: N queries, S support examples, C channels, T tokens per image, M embedding dimension, G cells of the occlusion
grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import limits
from ..data.images.datasets import as_array
from ..data.images.occlusion import cell_pixels, occlusion_color
from ..errors import SightlineError, check, check_int, check_max, one_of
from ..models.text_embedders import TextEmbedder, split_words, without_each_word
from ..view.explanations import Array, Evidence, Example
from .fitted import Fitted
from .predictions import CELLS, GRID, IMAGES, Explanation, FewShotPrediction

MIN_CANDIDATES, MAX_CANDIDATES, MAX_OPERATIONS = 8, 128, 1 << 32
"""Support examples that are left out in turn, and the multiplications of all class means; of more examples, the nearest
are used."""
REFIT_STEPS = 500
"""Matrix products of a regression that is fitted again without an example."""
AGAINST_FRACTION = 0.2
"""Of the occluded cells, those with the lowest estimates: they may speak against the class."""


@dataclass(frozen=True)
class Question:
    """Why this class and not another one; `other` is None for all other classes."""

    label: str
    other: str | None = None

    def check(self, classes: Sequence[str]) -> None:
        """Both must be classes of the classifier, and different."""
        for name, value in (("label", self.label), ("other", self.other)):
            if value is not None and value not in classes:
                raise SightlineError(f"{name} must be {one_of(str(value), classes)}")
        check(self.label != self.other, f"other must differ from label, got {self.other!r} for both")

    def log_odds(self, scores: Tensor, classes: Sequence[str]) -> Tensor:
        """Logits or log probabilities (..., way) -> (...)"""
        index = classes.index(self.label)
        if self.other is not None:
            return scores[..., index] - scores[..., classes.index(self.other)]
        return scores[..., index] - scores[..., torch.arange(len(classes)) != index].logsumexp(-1)


@torch.no_grad()
def explain(
    fitted: Fitted,
    query: Tensor,
    inputs: Any,
    predictions: Sequence[FewShotPrediction],
    *,
    label: str | None = None,
    other: str | None = None,
    images: int = IMAGES,
    grid: int = GRID,
    cells: int = CELLS,
) -> list[Explanation]:
    """Explain predictions for query embeddings (N, T, M) of images, uint8 (N, C, side, side), of texts, or None.

    See `FewShotPrediction.explain`.
    """
    check_int(1, images=images, grid=grid, cells=cells)
    check_max(limits.MAX_EXPLANATION_IMAGES, images=images)
    check_max(limits.MAX_OCCLUSION_CELLS, grid=grid)
    support, log_p = fitted.support, fitted.scores(query).log_softmax(-1)
    questions = [Question(prediction.label if label is None else label, other) for prediction in predictions]
    for question in questions:
        question.check(support.classes)
    candidates = [_candidates(fitted, x, question.label) for x, question in zip(query, questions, strict=True)]
    left_out = _leave_out(fitted, query, candidates, log_p)
    pixels = inputs if isinstance(inputs, Tensor) else None
    texts = inputs if isinstance(fitted.embedder, TextEmbedder) else None
    words = None if texts is None else _leave_out_words(fitted, texts, log_p)
    regions = None if pixels is None else _occlude(fitted, query, pixels, questions, grid, cells, log_p)
    used = sorted({i for indices in candidates for i in indices.tolist()})
    arrays = {} if support.images is None else {i: as_array(support.images[i]) for i in used}
    explanations = []
    for n, question in enumerate(questions):
        examples = [
            Example(support.names[i], support.classes[int(support.labels[i])], arrays.get(i), decreases.numpy())
            for i, decreases in zip(candidates[n].tolist(), left_out[n], strict=True)
        ]
        evidence = Evidence(
            classes=support.classes,
            log_probabilities=log_p[n].numpy(),
            name=texts[n] if texts else "embedding" if pixels is None else "image",
            pixels=None if pixels is None else as_array(pixels[n]),
            decreases=words[n] if words else None if regions is None else regions[n].numpy(),
            examples=examples,
            words=None if texts is None else split_words(texts[n]),
        )
        shown = evidence.strongest(question.label, question.other, images)
        shares = _region_shares(fitted, query[n], [int(candidates[n][i]) for i in shown])
        for i in shown:
            examples[i] = replace(examples[i], shares=shares.get(int(candidates[n][i])))
        explanations.append(
            Explanation(predictions[n], question.label, question.other, images, evidence, num_examples=len(support))
        )
    return explanations


def _leave_out(fitted: Fitted, query: Tensor, candidates: Sequence[Tensor], log_p: Tensor) -> list[Tensor]:
    """Decreases of log probabilities (N, way) without each candidate, for each query: (candidates, way)"""
    used = torch.cat(list(candidates)).unique()
    without = fitted.scores_without(query, used).log_softmax(-1)
    rows = (torch.searchsorted(used, indices) for indices in candidates)
    return [log_p[n] - without[own, n] for n, own in enumerate(rows)]


def _leave_out_words(fitted: Fitted, texts: Sequence[str], log_p: Tensor) -> list[Array]:
    """Decreases of log probabilities (N, way) without each word of each text: (1, words, way)"""
    assert fitted.embedder is not None
    decreases = []
    for text, own in zip(texts, log_p, strict=True):
        shortened = [words if words.strip() else text for words in without_each_word(text)]
        without = fitted.scores(fitted.embedder.embed(shortened).cpu()).log_softmax(-1)  # type: ignore[arg-type]
        decreases.append((own - without)[None].numpy())
    return decreases


def _occlude(
    fitted: Fitted, query: Tensor, pixels: Tensor, questions: Sequence[Question], grid: int, cells: int, log_p: Tensor
) -> Tensor | None:
    """Decreases of log probabilities (N, way) with cells occluded: (N, grid, grid, way), 0 in all other cells

    Cells are occluded in the first view of an image. The change of its embedding is taken for that of all views.
    """
    embedder = fitted.embedder
    if embedder is None or pixels.shape[-1] != embedder.image_size:
        return None
    masks = cell_masks(pixels.shape[-1], grid)
    has_views = embedder.num_views > 1
    other_views = query - embedder.embed_view(pixels).cpu() if has_views else torch.zeros_like(query)
    decreases = log_p.new_zeros(len(pixels), len(masks), log_p.shape[1])
    for n, image in enumerate(pixels):
        blank = occlusion_color(image).expand_as(image)
        indices = (masks & (image != blank).any(0)).flatten(1).any(1).nonzero().flatten()
        occluded = torch.where(masks[indices, None], blank, image)
        if len(indices) > cells:
            estimates = _estimated_decreases(fitted, query[n], image, occluded, questions[n])
            if estimates is not None:
                chosen = _extremes(estimates, cells)
                indices, occluded = indices[chosen], occluded[chosen]
        if len(indices):
            embeddings = embedder.embed_view(occluded).cpu() + other_views[n]
            decreases[n, indices] = log_p[n] - fitted.scores(embeddings).log_softmax(-1)
    return decreases.unflatten(1, (grid, grid))


def _estimated_decreases(
    fitted: Fitted, query: Tensor, image: Tensor, occluded: Tensor, question: Question
) -> Tensor | None:
    """Decreases of the log odds from an image to each of its occluded versions, estimated at half their size: (G,)

    query (T, M) are the embeddings of the image, occluded (G, C, side, side). None if the embedder has no estimate.
    """
    assert fitted.embedder is not None
    small = fitted.embedder.embed_small(torch.cat((image[None], occluded)))
    if small is None:
        return None
    log_odds = question.log_odds(fitted.scores(query + (small - small[:1]).cpu()), fitted.support.classes)
    return log_odds[0] - log_odds[1:]


def _extremes(values: Tensor, count: int) -> Tensor:
    """Indices of the largest values and of some of the lowest, `count` in all."""
    order = values.argsort(descending=True, stable=True)
    if len(order) <= count:
        return order
    lowest = int(AGAINST_FRACTION * count)
    return torch.cat((order[: count - lowest], order[len(order) - lowest :]))


def _region_shares(fitted: Fitted, query: Tensor, indices: Sequence[int]) -> dict[int, Array]:
    """The similarity of the query (T, M) to the regions of support examples, from 0 to 1 for the most similar one.

    It is the decrease of the cosine similarity of query and example without the region, relative to the largest.
    Embeddings are centered by the mean of the support set; a feature map at their end is left out. Regions without
    content have none.
    """
    images = fitted.support.images
    if images is None:
        return {}
    center = fitted.support.embeddings.mean((0, 1))
    target, shares = query.mean(0) - center, {}
    for i, features in fitted.feature_maps(indices).items():
        if features.shape[:2].numel() == 1:
            continue
        flat = features.flatten(0, 1) - center[: features.shape[-1]]
        without = (flat.sum(0) - flat) / (len(flat) - 1)
        own_target = target[: features.shape[-1]]
        cosine, without = (F.cosine_similarity(x, own_target, -1) for x in (flat.mean(0), without))
        has_content = (images[i] != occlusion_color(images[i])).any(0, keepdim=True).float()
        has_content = F.adaptive_max_pool2d(has_content, features.shape[:2])
        decrease = (cosine - without).clamp_min(0) * has_content.flatten()
        share = (decrease / decrease.max().clamp_min(1e-12)).unflatten(0, features.shape[:2])
        shares[i] = share.numpy()
    return shares


def cell_masks(side: int, grid: int) -> Tensor:
    """The pixels of each cell of a grid: bool (G, side, side), row by row"""
    return cell_pixels(torch.eye(grid * grid, dtype=torch.bool).view(-1, grid, grid), (side, side))


def _candidates(fitted: Fitted, embedding: Tensor, label: str) -> Tensor:
    """Sorted indices of all support examples, or of those of the class and the nearest others."""
    support = fitted.support
    operations = support.embeddings.numel() * len(support.classes)
    if fitted.head.has_regression:  # it is fitted again without each example, in the subspace of the embeddings
        operations = min(operations, len(support) ** 2 * len(support.classes))
        operations += len(support) ** 2 * (len(support) + REFIT_STEPS * len(support.classes))
    maximum = min(MAX_CANDIDATES, max(MIN_CANDIDATES, MAX_OPERATIONS // operations))
    if len(support) <= maximum:
        return torch.arange(len(support))
    cosines = F.cosine_similarity(support.embeddings.mean(1), embedding.mean(0)[None])
    is_predicted = support.labels == support.classes.index(label)
    order = (cosines + 4.0 * is_predicted).argsort(descending=True, stable=True)
    predicted = order[: min(int(is_predicted.sum()), maximum // 2)]
    others = order[int(is_predicted.sum()) :][: maximum - len(predicted)]
    return torch.cat((predicted, others)).sort().values
