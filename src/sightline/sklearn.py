"""A few-shot classifier as a scikit-learn estimator."""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from PIL import Image
from torch import Tensor

from .classifier import FewShotClassifier
from .classifier.support import check_labels
from .errors import MissingDependencyError, SightlineError, check
from .training.device import choose_device

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        assert_all_finite,
        check_consistent_length,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ImportError as error:
    raise MissingDependencyError(
        "sightline.sklearn must have scikit-learn 1.6 or later, got none; pip install 'sightline[sklearn]'"
    ) from error

Array = np.ndarray[Any, Any]


class FewShotEstimator(ClassifierMixin, BaseEstimator):
    """A `FewShotClassifier` with the interface of scikit-learn.

    Without `model` and `embedder`, X are embeddings (n_samples, n_features) or (n_samples, tokens, n_features). With
    one of them, X is a list of paths, PIL images, arrays or tensors, an array of images, or a list of embeddings.
    Labels are of any hashable type. `classes_` is sorted if the labels can be compared.

    Fitted attributes are `classes_` and `classifier_`, the `FewShotClassifier`, which also detects unknown images and
    explains predictions. A fitted estimator is pickled with the content of its classifier file. Unpickle only what you
    trust: Sightline itself never reads pickles, and `classifier_.save(path)` writes a file that is safe to read.

    Args:
        model: A model for `FewShotClassifier.pretrained`, such as `photos`, or `auto`, which chooses one by the images.
        embedder: A torch module, another callable, or a `CustomEmbedder`, in place of `model`.
        method: How `FewShotClassifier.fit` classifies: `head`, `prototypes`, `ridge`, `spatial`, `logistic`,
            `blend`, or `auto`.
        reject: The fraction of samples of known classes that may be rejected as unknown; None for the default.
        device: `cpu`, `cuda` or `auto`.
    """

    classes_: Array
    classifier_: FewShotClassifier

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        embedder: Any = None,
        method: str = "auto",
        reject: float | None = None,
        device: str = "cpu",
    ):
        self.model = model
        self.embedder = embedder
        self.method = method
        self.reject = reject
        self.device = device

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803 - the names of scikit-learn
        """Fit to samples and their labels. No weights are trained."""
        samples, labels = self._samples(X, reset=True), _as_labels(y)
        check_consistent_length(samples, labels)
        classes, indices = _unique(labels)
        check(len(classes) > 1, f"y must have at least 2 classes, got {len(classes)} class; add samples of another")
        examples = {
            name: [samples[i] for i in np.flatnonzero(indices == index)]
            for index, name in enumerate(_class_names(classes))
        }
        classifier = self._new_classifier().to(choose_device(self.device))
        self.classifier_ = classifier.fit(examples, method=self.method, reject=self.reject)
        self.classes_ = classes
        return self

    def predict(self, X: Any) -> Array:  # noqa: N803
        """The most likely label of each sample, also if it is unknown: (n_samples,)"""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """The calibrated probability of each class of `classes_`: (n_samples, n_classes)"""
        check_is_fitted(self)
        names, rows = self.classifier_.classes, []
        for i, prediction in enumerate(self.classifier_.stream(self._samples(X, reset=False))):
            if prediction.error is not None:
                raise SightlineError(f"X[{i}]: {prediction.error}")
            scores = prediction.to_dict()["scores"]
            rows.append([scores[name] for name in names])
        return np.array(rows).reshape(len(rows), len(names))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """The accuracy."""
        predicted, labels = self.predict(X), _as_labels(y)
        check_consistent_length(predicted, labels, sample_weight)
        is_correct = [bool(label == truth) for label, truth in zip(predicted.tolist(), labels.tolist(), strict=True)]
        return float(np.average(is_correct, weights=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = tags.input_tags.three_d_array = self._takes_embeddings()
        return tags

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "classifier_" in state:
            self.classifier_.to(choose_device(self.device))

    def _takes_embeddings(self) -> bool:
        return self.model is None and self.embedder is None

    def _new_classifier(self) -> FewShotClassifier:
        is_single = self.model is None or self.embedder is None
        check(is_single, f"model must be left out if an embedder is given, got {str(self.model)!r}")
        if self.model is None:
            return FewShotClassifier(embedder=self.embedder)
        return FewShotClassifier.pretrained(self.model)

    def _samples(self, X: Any, *, reset: bool) -> Any:  # noqa: N803
        """An array of embeddings, or a list of images or embeddings."""
        is_single = isinstance(X, str | bytes | Path | Image.Image)
        check(not is_single, f"X must be a list of samples, got one {type(X).__name__}; write [sample]")
        if not self._takes_embeddings():
            if isinstance(X, list | tuple | Tensor):
                return list(X)
            samples = np.asarray(X)
            is_column = samples.dtype.kind in "OU" and samples.shape[1:] == (1,)  # of a data frame
            return list(samples[:, 0] if is_column else samples)
        is_list = isinstance(X, Sequence) and len(X) > 0
        if is_list and isinstance(X[0], str | bytes | Path | Image.Image):
            fix = "give model='auto' or another model to classify images"
            raise SightlineError(f"X must be embeddings if model is None, got {type(X[0]).__name__}; {fix}")
        if is_list and isinstance(X[0], Tensor):
            X = [vector.detach().cpu().numpy() for vector in X]  # noqa: N806
        X = X.detach().cpu().numpy() if isinstance(X, Tensor) else X  # noqa: N806
        return validate_data(self, X, reset=reset, dtype=(np.float32, np.float64), allow_nd=True)


def _as_labels(y: Any) -> Array:
    """Labels as an array (n,): of objects unless all are text or all are numbers of one type."""
    y = y.detach().cpu().numpy() if isinstance(y, Tensor) else y
    if isinstance(y, list | tuple) and all(isinstance(label, Hashable) for label in y):
        is_plain = len(set(map(type, y))) == 1 and isinstance(y[0], str | bool | int | float | np.generic)
        if y and not is_plain:
            labels = np.empty(len(y), dtype=object)
            for i, label in enumerate(y):  # a slice would unpack labels that are tuples
                labels[i] = label
            y = labels
    y = column_or_1d(y, warn=True)
    if y.dtype.kind == "O":
        check(all(isinstance(label, Hashable) for label in y), "labels must be hashable, got others, such as lists")
        check(all(label == label for label in y), "labels must be equal to themselves, got NaN")
    else:
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
    return y


def _unique(labels: Array) -> tuple[Array, Array]:
    """The different labels, sorted if they can be compared, and the index of each label among them."""
    if labels.dtype.kind != "O":
        return np.unique(labels, return_inverse=True)
    unique = list(dict.fromkeys(labels.tolist()))
    try:
        unique.sort()
    except TypeError:
        unique = list(dict.fromkeys(labels.tolist()))
    classes = np.empty(len(unique), dtype=object)
    for i, label in enumerate(unique):
        classes[i] = label
    index = {label: i for i, label in enumerate(unique)}
    return classes, np.array([index[label] for label in labels.tolist()], dtype=np.int64)


def _class_names(classes: Array) -> list[str]:
    """Names of the classes for a classifier: the labels as text, or numbers if that is not possible."""
    names = [str(label) for label in classes.tolist()]
    try:
        check_labels(names)
    except SightlineError:
        return [f"class {i}" for i in range(len(names))]
    return names
