"""Inference with a fitted model: inputs are prepared, embedded, classified and explained.

Shapes: N inputs, C channels, T tokens per input, M embedding dimension.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import SightlineError, check
from ..models.text_embedders import TextEmbedder, check_text
from ..view.explanations import ExplanationCard
from .calibration import classify
from .explanation import explain
from .fitted import Fitted
from .predictions import FewShotPrediction
from .support import SupportSet, check_embeddings, read_pixels


def as_list(inputs: Any, support: SupportSet) -> list[Any] | None:
    """The items of a list, a tuple or an array with a batch dimension; None for a single item."""
    if isinstance(inputs, list | tuple):
        return list(inputs)
    if isinstance(inputs, np.ndarray | Tensor):
        item_dimensions = 3 if support.images is not None else 1 if support.embeddings.shape[1] == 1 else 2
        return list(inputs) if inputs.ndim > item_dimensions else None
    if isinstance(inputs, Mapping | set):
        raise SightlineError(f"inputs must be one image or a list of images, got {type(inputs).__name__}")
    return None


def prepare(item: Any, fitted: Fitted) -> Any:
    """An image -> uint8 (C, image_size, image_size), an embedding -> float32 (T, M), or a text itself"""
    support = fitted.support
    if isinstance(fitted.embedder, TextEmbedder):
        return check_text(item)
    if support.images is not None:
        assert fitted.embedder is not None
        return read_pixels([item], fitted.embedder)[0]
    num_tokens, embed_dim = support.embeddings.shape[1:]
    try:
        embedding = torch.as_tensor(item).detach().cpu()[None]
    except (TypeError, ValueError, RuntimeError) as error:
        kind = "a path" if isinstance(item, str | Path) else type(item).__name__
        rule = f"inputs must be embeddings of dimension {embed_dim}, as the classifier was fitted to"
        raise SightlineError(f"{rule}, got {kind}") from error
    embedding = check_embeddings(embedding, embed_dim, "the input")[0]
    count = len(embedding)
    check(count == num_tokens, f"embeddings must have {num_tokens} tokens, as the examples, got {count}")
    return embedding


@torch.no_grad()
def predict(fitted: Fitted, prepared: list[Any], *, transductive: bool = False) -> list[FewShotPrediction]:
    """Predictions for prepared inputs, in order."""
    return _predict(fitted, *_embed(fitted, prepared), transductive=transductive)


def predict_with_cards(
    fitted: Fitted, prepared: list[Any], inputs: list[Any]
) -> tuple[list[FewShotPrediction], list[ExplanationCard]]:
    """Predictions for prepared inputs, and their explanations; `inputs` are what they were prepared from."""
    query, pixels = _embed(fitted, prepared)
    predictions, is_text = _predict(fitted, query, pixels), isinstance(fitted.embedder, TextEmbedder)
    cards = []
    for explanation, item in zip(explain(fitted, query, pixels, predictions), inputs, strict=True):
        is_path = isinstance(item, str | Path) and not is_text
        folder = Path(item).parent.name if is_path else ""  # folders often have files of the same names
        file_name = "/".join(filter(None, (folder, Path(item).name))) if is_path else None
        cards.append(explanation.card(name=str(item) if is_text else file_name))
    return predictions, cards


def _embed(fitted: Fitted, prepared: list[Any]) -> tuple[Tensor, Any]:
    """Embeddings (N, T, M) of prepared inputs, and their pixels (N, C, side, side) or texts; None if none."""
    if isinstance(fitted.embedder, TextEmbedder):
        return fitted.embedder.embed(prepared).cpu(), prepared
    example = fitted.support.embeddings if fitted.support.images is None else fitted.support.images
    is_same = all(item.shape == example.shape[1:] for item in prepared)
    check(
        is_same, "inputs must be prepared by the model that predicts them, got those of another; was fit called again?"
    )
    stacked = torch.stack(prepared)
    if fitted.support.images is None:
        return stacked, None
    assert fitted.embedder is not None
    return fitted.embedder.embed(stacked).cpu(), stacked


def _predict(fitted: Fitted, query: Tensor, pixels: Any, *, transductive: bool = False) -> list[FewShotPrediction]:
    """Predictions for embeddings (N, T, M) and the pixels or texts of the queries."""
    head, support, calibration = fitted.model.head, fitted.support, fitted.calibration
    if transductive:
        episode = (x[None].to(head.device) for x in (support.embeddings, support.labels, query))
        logits = head(*episode, way=len(support.classes))[0].cpu()
    else:
        logits = classify(fitted.head, fitted.state, query)
    probabilities = (calibration.scale * logits.double()).softmax(-1)
    order = probabilities.argsort(dim=-1, descending=True, stable=True).tolist()
    known_scores = calibration.known_score(logits).tolist()
    predictions = []
    for i, row in enumerate(probabilities.tolist()):
        best, image = order[i][0], None if pixels is None else pixels[i : i + 1]
        predictions.append(
            FewShotPrediction(
                label=support.classes[best],
                confidence=row[best],
                known=known_scores[i] >= 0.5,
                scores={support.classes[j]: row[j] for j in order[i]},
                known_score=known_scores[i],
                transductive=transductive,
                _explain=partial(explain, fitted, query[i : i + 1], image),
            )
        )
    return predictions
