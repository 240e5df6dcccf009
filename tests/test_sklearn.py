"""FewShotEstimator in scikit-learn."""

import datetime
import pickle
import sys

import joblib
import numpy as np
import pytest
import torch
from PIL import Image

import sightline.classifier
from sightline.errors import MissingDependencyError, SightlineError
from sightline.models.embedders import CustomEmbedder

pytest.importorskip("sklearn", reason="the extra sklearn is not installed")
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer
from sklearn.utils.estimator_checks import parametrize_with_checks

from sightline.sklearn import FewShotEstimator

SIZE, SHADES = 5, (30, 120, 220)


@parametrize_with_checks([FewShotEstimator()])
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


def make_clusters(labels, per_class=6):
    """Embeddings around one axis per class, in random order, and their labels."""
    random = np.random.default_rng(0)
    indices = random.permutation(np.repeat(np.arange(len(labels)), per_class))
    X = np.eye(7)[indices] + 0.1 * random.normal(size=(len(indices), 7))
    return X, [labels[i] for i in indices]


def shade(images):
    """Two numbers that tell how bright images are."""
    level = images.mean((1, 2, 3))
    return torch.stack((level, 1 - level), 1)


EMBEDDER = CustomEmbedder(shade, image_size=SIZE, mean=0, std=1)


def make_images(per_class=3):
    images = [Image.new("L", (SIZE + i, SIZE), level + i) for level in SHADES for i in range(per_class)]
    return images, [f"level {level}" for level in SHADES for _ in range(per_class)]


@pytest.mark.parametrize(
    "labels",
    [
        ["b", "a", "ç"],
        [7, -3, 5],
        [True, False],
        [2.0, 1.0],
        [("a", 1), ("a", 2), ("b",)],
        ["a", 1, None],
        [datetime.date(2001, 2, 3), datetime.date(2000, 2, 3)],
        [frozenset("ab"), frozenset("c")],
        [" ", "", "\n"],  # no names for classes of a classifier
        ["x" * 300, "y" * 300],
        [1 << 80, 3],
    ],
)
def test_labels_of_any_hashable_type_come_back(labels):
    X, y = make_clusters(labels)
    estimator = pickle.loads(pickle.dumps(FewShotEstimator().fit(X, y)))  # noqa: S301
    assert set(estimator.classes_) == set(labels)
    predicted = estimator.predict(X).tolist()
    assert predicted == y
    assert {type(label) for label in predicted} == {type(label) for label in labels}
    assert estimator.score(X, y) == 1
    wrong = [*y[1:], y[0]]
    expected = np.mean([a == b for a, b in zip(y, wrong, strict=True)])
    assert estimator.score(X, wrong) == pytest.approx(expected)
    assert estimator.score(X, wrong, sample_weight=[a == b for a, b in zip(y, wrong, strict=True)]) == 1


def test_classes_are_sorted_and_probabilities_in_their_order():
    X, y = make_clusters([("b", 2), ("b", 1), ("a", 9)])
    estimator = FewShotEstimator().fit(X, y)
    assert estimator.classes_.tolist() == [("a", 9), ("b", 1), ("b", 2)]
    probabilities = estimator.predict_proba(X)
    assert [estimator.classes_[i] for i in probabilities.argmax(1)] == y
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert estimator.classifier_.classes == ("('a', 9)", "('b', 1)", "('b', 2)")
    scores = estimator.classifier_.predict(X[0]).scores
    assert probabilities[0].tolist() == [scores[name] for name in estimator.classifier_.classes]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([[1, 2]] * 3, "y should be a 1d array"),
        ([float("nan"), "a", "a"], "labels must be equal to themselves, got NaN"),
        ([float("nan"), 1.0, 2.0], "y contains NaN"),
        (["a"] * 3, "y must have at least 2 classes, got 1 class"),
        (["a", "b"], "inconsistent numbers of samples"),
    ],
)
def test_invalid_labels_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        FewShotEstimator().fit(np.eye(3), y)


def test_labels_that_are_not_hashable_are_refused():
    y = np.empty(3, dtype=object)
    y[:] = [[1], [2, 3], [1]]
    with pytest.raises(SightlineError, match="labels must be hashable"):
        FewShotEstimator().fit(np.eye(3), y)


def test_embeddings_as_lists_tensors_and_tokens():
    X, y = make_clusters("abc")
    expected = FewShotEstimator().fit(X, y).predict_proba(X)
    tensor = torch.from_numpy(X)
    for samples in (X.tolist(), tensor, list(tensor), X[:, None], tensor[:, None]):
        np.testing.assert_allclose(FewShotEstimator().fit(samples, y).predict_proba(samples), expected)
    assert FewShotEstimator().fit(X, torch.arange(len(y)) % 2).classes_.tolist() == [0, 1]


def test_paths_images_and_arrays(tmp_path):
    images, y = make_images()
    paths = [tmp_path / f"{i}.png" for i in range(len(images))]
    for image, path in zip(images, paths, strict=True):
        image.save(path)
    cropped = np.stack([np.array(image.crop((0, 0, SIZE, SIZE))) for image in images])
    expected = FewShotEstimator(embedder=EMBEDDER).fit(images, y).predict_proba(images)
    column = np.array([[str(path)] for path in paths])
    for samples in (paths, list(map(str, paths)), tuple(paths), np.array(paths), column, cropped, list(cropped)):
        estimator = FewShotEstimator(embedder=EMBEDDER).fit(samples, y)
        np.testing.assert_allclose(estimator.predict_proba(samples), expected, atol=1e-6)
        assert estimator.predict(samples).tolist() == y
    assert estimator.predict_proba([]).shape == (0, 3)
    with pytest.raises(SightlineError, match=r"^X\[1\]: an image must be a file, got 'none.png'"):
        estimator.predict([paths[0], "none.png"])
    with pytest.raises(SightlineError, match=r"^class 'level 30': an image must be a file"):
        FewShotEstimator(embedder=EMBEDDER).fit(["none.png", *paths[1:]], y)


def test_named_model(monkeypatch):
    names = []

    def pretrained(name):
        names.append(name)
        return sightline.classifier.FewShotClassifier(embedder=EMBEDDER)

    monkeypatch.setattr("sightline.sklearn.FewShotClassifier.pretrained", pretrained)
    images, y = make_images()
    assert FewShotEstimator("photos").fit(images, y).score(images, y) == 1
    assert names == ["photos"]


def test_invalid_samples_and_parameters_are_refused():
    images, y = make_images()
    for samples, message in (
        (images, "X must be embeddings if model is None, got Image; give model='auto'"),
        (["a.png"] * len(y), "X must be embeddings if model is None, got str"),
        ("images", r"X must be a list of samples, got one str; write \[sample\]"),
        (images[0], "X must be a list of samples, got one Image"),
    ):
        with pytest.raises(SightlineError, match=message):
            FewShotEstimator().fit(samples, y)
    with pytest.raises(SightlineError, match="model must be left out if an embedder is given, got 'photos'"):
        FewShotEstimator("photos", embedder=EMBEDDER).fit(images, y)
    with pytest.raises(SightlineError, match="device must be"):
        FewShotEstimator(embedder=EMBEDDER, device="gpu").fit(images, y)
    with pytest.raises(NotFittedError):
        FewShotEstimator(embedder=EMBEDDER).predict(images)


def test_clone_has_the_parameters_and_is_not_fitted():
    images, y = make_images()
    estimator = FewShotEstimator(embedder=EMBEDDER).fit(images, y)
    cloned = clone(estimator)
    assert cloned.get_params().keys() == {"model", "embedder", "method", "reject", "device"}
    assert not hasattr(cloned, "classes_")
    assert cloned.fit(images, y).predict(images).tolist() == y


def test_method_and_rejection_can_be_searched():
    X, y = make_clusters([3, 5, 7])
    search = GridSearchCV(FewShotEstimator(reject=0.2), {"method": ["prototypes", "logistic"]}, cv=2).fit(X, y)
    assert search.best_estimator_.classifier_.fitted.choice.method == search.best_params_["method"]
    assert search.best_estimator_.classifier_.fitted.calibration.reject == 0.2
    with pytest.raises(SightlineError, match="method must be one of"):
        FewShotEstimator(method="knn").fit(X, y)


def test_pipelines_and_grid_search():
    X, y = make_clusters([3, 5, 7])
    assert (
        cross_val_score(make_pipeline(Normalizer(), FewShotEstimator()), X, y, error_score="raise").tolist() == [1] * 5
    )
    search = GridSearchCV(make_pipeline(Normalizer(), FewShotEstimator()), {"normalizer__norm": ["l1", "l2"]}, cv=2)
    assert search.fit(X, y).predict_proba(X).shape == (18, 3)
    images, y = make_images()
    mirrored = FunctionTransformer(lambda images: [image.rotate(180) for image in images])
    assert make_pipeline(mirrored, FewShotEstimator(embedder=EMBEDDER)).fit(images, y).score(images, y) == 1


@pytest.mark.parametrize("backend", ["threading", "multiprocessing"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_cross_validation_with_two_jobs(backend):
    X, labels = make_clusters([("a", 1), ("b", 2)])
    images, levels = make_images(4)
    options = {"cv": KFold(2, shuffle=True, random_state=0), "n_jobs": 2, "error_score": "raise"}
    with joblib.parallel_config(backend):
        assert cross_val_score(FewShotEstimator(), X, labels, **options).tolist() == [1, 1]
        assert cross_val_score(FewShotEstimator(embedder=EMBEDDER), images, levels, **options).tolist() == [1, 1]


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "sightline.sklearn")
    with pytest.raises(
        MissingDependencyError, match=r"scikit-learn 1.6 or later, got none; pip install 'sightline\[skl"
    ):
        import sightline.sklearn  # noqa: F401
