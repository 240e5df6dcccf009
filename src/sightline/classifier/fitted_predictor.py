"""The predictor of a fitted model: predictions, explanations and evaluations, in threads and forked processes."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import RLock
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import Tensor

from .. import limits
from ..data.images.paths import expand_image_paths
from ..errors import SightlineError, check, check_max
from ..models.embedders import ExternalEmbedder, ImageEmbedder
from ..models.text_embedders import TextEmbedder
from ..names import printable
from ..predictor import Predictor, Progress
from ..tasks.text_predictor import parse_texts
from ..view.explanations import ExplanationCard, explanation_data, explanation_page
from ..view.inspection import Inspection
from ..view.page import Page
from ..view.page import check_path as check_page_path
from . import inference, summary
from .calibration import Calibration
from .evaluate import evaluate
from .evaluation import ClassifierEvaluation
from .fitted import Fitted
from .model_choice import ModelChoice
from .predictions import Estimate, FewShotPrediction


class FittedPredictor(Predictor):
    """Base class: a predictor of a model that is fitted to a support set. A subclass sets and replaces `_fitted`.

    Several threads can predict while `add` and `remove` replace it: a batch is predicted by one `Fitted`. Inputs that
    were prepared before `fit` replaces the model are refused if the new one takes others.
    """

    evaluate_options = frozenset({"show"})

    def __init__(self, embedder: ImageEmbedder | None):
        self.device = torch.device("cpu")
        self.model_choice: ModelChoice | None = None
        """The pretrained model that was chosen in place of `auto`, and why."""
        self.model_name: str | None = None
        """The name that `pretrained` was called with; that of the chosen model in place of `auto`."""
        self._embedder = embedder
        self._fitted: Fitted | None = None
        self._lock = RLock()
        _predictors.add(self)

    def _current(self) -> Fitted:
        fitted = self._fitted
        if fitted is None:
            raise SightlineError("a classifier must be fitted first, got one without classes; call fit(folder)")
        return fitted

    def _ready(self) -> Fitted:
        """The current state with its encoding and calibration, which one thread computes at a time."""
        with self._lock:
            fitted = self._current()
            fitted.state, fitted.calibration  # noqa: B018 - computed on first use
        return fitted

    @property
    def image_embedder(self) -> ImageEmbedder:
        """What embeds images; an error for a classifier of texts or of embeddings."""
        embedder = self._embedder
        if embedder is None or isinstance(embedder, TextEmbedder):
            raise SightlineError("a classifier must embed images here, got one that does not")
        return embedder

    @property
    def fitted(self) -> Fitted:
        """The model with its support set, encoding and calibration."""
        return self._ready()

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(self.counts)

    @property
    def counts(self) -> dict[str, int]:
        """The number of examples of each class."""
        fitted = self._fitted
        if fitted is None:
            return {}
        return dict(zip(fitted.support.classes, fitted.support.counts.tolist(), strict=True))

    @property
    def kind(self) -> str:
        return "a fitted classifier"

    @property
    def data_source(self) -> str:
        return ""

    @property
    def folder(self) -> Path:  # type: ignore[override]
        """Raises SightlineError: a classifier is one file."""
        raise SightlineError("a model must be a run to be shared as a folder, got a fitted classifier; use save(path)")

    @property
    def calibration(self) -> Calibration:
        """The calibration of the confidence and of the known threshold."""
        return self._ready().calibration

    def estimate(self) -> Estimate:
        """The expected accuracy on new images of the classes, by cross-validation on the support set."""
        with self._lock:
            return self._current().estimate()

    def check_above_chance(self, fix: str = "or try another model") -> None:
        """Raise SightlineError if held-out images are not classified better than by chance."""
        fitted, estimate = self._estimated()
        if estimate is not None:
            summary.check_above_chance(estimate, len(fitted.support.classes), self.input_kind, fix)

    def summary(self) -> str:
        """A few lines: the classes, the expected accuracy and the calibration."""
        return summary.summarize(*self._estimated(), self.input_kind, self.model_choice)

    def _estimated(self) -> tuple[Fitted, Estimate | None]:
        """The current state, and its estimated accuracy; None if at most one class has several examples."""
        fitted = self._ready()
        with self._lock:
            return fitted, fitted.estimate() if fitted.support.has_estimate else None

    @property
    def max_page_inputs(self) -> int:
        return limits.MAX_EXPLAINED_IMAGES

    def parse_inputs(self, arguments: Sequence[str]) -> Iterable[Any]:
        return parse_texts(arguments) if isinstance(self._embedder, TextEmbedder) else expand_image_paths(arguments)

    def prepare(self, item: Any) -> Any:
        """An image -> uint8 (C, image_size, image_size), an embedding -> float32 (T, M), or a text itself"""
        return inference.prepare(item, self._current())

    def predict(
        self, inputs: Any, *, progress: Progress | None = None, transductive: bool = False, **options: Any
    ) -> Any:
        """A prediction for one image or embedding, or a list for a list or an array with a batch dimension.

        Predictions do not depend on each other, unless `transductive` is set, for a head that was trained for it.
        """
        items = inference.as_list(inputs, self._current().support)
        if not transductive:
            return super().predict(inputs if items is None else items, progress=progress, **options)
        rule = "transductive must be False for a head that was not trained with model.transductive=true"
        check(self._current().model.config.transductive, f"{rule}, got True")
        method, fix = self._ready().choice.method, "call fit(..., method='head')"
        check(method == "head", f"method must be head for transductive predictions, got {method!r}; {fix}")
        if not items:
            raise SightlineError("inputs of a transductive prediction must be a list of images, got one image or none")
        check_max(limits.MAX_TRANSDUCTIVE_IMAGES, inputs=len(items))
        self.check_ready()
        return self.predict_together(items, transductive=True)

    def predict_batch(
        self, prepared: list[Any], *, top_k: int | None = None, transductive: bool = False
    ) -> list[FewShotPrediction]:
        return inference.predict(self._ready(), prepared, transductive=transductive)

    @property
    def input_kind(self) -> Literal["text", "image"]:  # type: ignore[override]
        """What one input is."""
        return "text" if isinstance(self._embedder, TextEmbedder) else "image"

    def inspect_batch(
        self, prepared: list[Any], *, top_k: int | None = None, **options: Any
    ) -> list[tuple[FewShotPrediction, Inspection]]:
        """Predictions with their explanations; `options` are those of `FewShotPrediction.explain`."""
        predictions, results = self.predict_batch(prepared), list[tuple[FewShotPrediction, Inspection]]()
        for prediction in predictions:
            explanation = explanation_data([prediction.explain(**options).card()])
            results.append((prediction, Inspection(values={"explanation": explanation})))
        return results

    def explain_batch(
        self, prepared: list[Tensor], inputs: list[Any], *, progress: Progress | None = None, top_k: int | None = None
    ) -> tuple[list[FewShotPrediction], Page]:
        fitted, predictions, cards = self._ready(), list[FewShotPrediction](), list[ExplanationCard]()
        for start in range(0, len(prepared), self.batch_size):
            batch = slice(start, start + self.batch_size)
            new, new_cards = inference.predict_with_cards(fitted, prepared[batch], inputs[batch])
            predictions, cards = predictions + new, cards + new_cards
            if progress is not None:
                progress(len(cards), len(prepared))
        return predictions, explanation_page(cards, title=str(predictions[0]))

    def details(self) -> dict[str, Any]:
        """The model and its embedder, the classes with their numbers of examples, the rejection, and the calibration.

        `rejection` says in words what the threshold means. Rates that are estimated on fewer than `MIN_ESTIMATE_IMAGES`
        held-out examples are None.
        """
        fitted = self._ready()
        name = None if fitted.embedder is None else getattr(fitted.embedder, "name", None)
        model = None if self.model_name is None else printable(self.model_name)
        values = {"model": model, "embedder": name, "method": fitted.choice.describe(fitted.support, self.input_kind)}
        values |= {"examples": len(fitted.support), "classes": self.counts}
        if fitted.calibration.rejected_known is not None:  # None in files of earlier versions
            values["rejection"] = fitted.calibration.rejection(fitted.num_held_out, self.input_kind)
        return values | {"calibration": summary.plain_calibration(fitted)}

    def columns(self, top: int | None = None) -> list[str]:
        return ["label", "closest", "confidence", "known", "known_score", *(f"scores.{name}" for name in self.classes)]

    def evaluate(
        self, data: Any = None, *, progress: Progress | None = None, show: str | Path | None = None
    ) -> ClassifierEvaluation:
        """Accuracy, calibration, rejection and mistakes on labeled images.

        `data` is a folder with one folder of images per class (or any data set that `sightline data` reads), or
        {label: images or embeddings}; of texts, a tab-separated file or {label: texts}. Images of classes that the
        classifier does not have are unknown images. `show` is the path of a page to write.
        """
        noun, source = self.input_kind, "file" if self.input_kind == "text" else "folder"
        rule = f"data must be a {source} of labeled {noun}s for a fitted classifier"
        fix = (
            f"pass data= (--data {source.upper()}); estimate() returns the accuracy estimated from the support {noun}s"
        )
        check(data is not None, f"{rule}, got none; {fix}")
        page = None if show is None else check_page_path(Path(show))
        evaluation = evaluate(self, self._ready().support, self._embedder, data, progress)
        if page is not None:
            evaluation.page().save(page)
        return evaluation

    def show(self, *args: Any, **options: Any) -> Any:
        """Raises SightlineError: predictions of a classifier are explained on a page."""
        fix = "sightline predict FILE IMAGE --show page.html explains its predictions"
        raise SightlineError(f"run must be the folder of a run to draw figures of, got a fitted classifier; {fix}")

    def check_ready(self) -> None:
        """Raise errors that concern all inputs before any input is read."""
        if self._current().has_inputs and isinstance(self._embedder, ExternalEmbedder):
            self._embedder.encoder  # noqa: B018 - loads it


_predictors: WeakSet[FittedPredictor] = WeakSet()


def _repair_after_fork() -> None:
    """Make predictors usable in a forked process, in which the other threads of its parent do not exist.

    Locks that such a thread held are replaced. Torch would wait forever for its own threads, so it gets one only.
    """
    for predictor in _predictors:
        predictor._lock = RLock()
        if isinstance(predictor._embedder, ExternalEmbedder):
            predictor._embedder.renew_lock()
    if _predictors:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_repair_after_fork)
