"""The choice of a method and of a pretrained model, and rejection at a given rate."""

import numpy as np
import pytest
import torch

from sightline import FewShotClassifier, config
from sightline.classifier import model_choice
from sightline.classifier.choice import (
    EVIDENCE_WEIGHT,
    LOG_PRIOR,
    Choice,
    compared_accuracies,
    fit_scales,
    log_likelihood,
    method_weights,
)
from sightline.classifier.methods import METHODS, SPATIAL
from sightline.classifier.model_choice import are_drawings
from sightline.errors import MissingDependencyError, SightlineError
from sightline.metrics import wilson_interval
from sightline.models.few_shot import FewShot
from sightline.models.few_shot_config import FewShotConfig

M = 11


def make_clusters(classes: int, count: int, std: float = 0.5, seed: int = 0) -> dict[str, torch.Tensor]:
    means = torch.randn(classes, 1, M, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(classes, count, M, generator=torch.Generator().manual_seed(seed))
    return {f"class {i}": cluster for i, cluster in enumerate(means + std * noise)}


def spatial_classifier() -> FewShotClassifier:
    """A classifier of embeddings of 3 pooled features and a feature map of 2 x 2 positions of 2 channels."""
    options = {"feature_map_size": 2, "feature_map_channels": 2, "power": 1.0, "readout": "ridge"}
    return FewShotClassifier(FewShot(FewShotConfig(backbone="none", embed_dim=M, depth=0, **options)).eval())


@pytest.mark.parametrize("method", [name for name in METHODS if name != "head"])
def test_every_method_predicts_explains_and_is_stored(method, tmp_path):
    classifier = spatial_classifier() if method == SPATIAL else FewShotClassifier()
    classifier.fit(make_clusters(3, 4), method=method)
    query = make_clusters(3, 5, seed=1)
    predictions = [p for x in query.values() for p in classifier.predict(x)]
    labels = [name for name in query for _ in range(5)]
    assert np.mean([p.label == label for p, label in zip(predictions, labels, strict=True)]) > 0.8
    assert predictions[0].explain().support[0].contribution != 0
    loaded = FewShotClassifier.load(classifier.save(tmp_path / "a.sightline"))
    assert loaded.fitted.choice == classifier.fitted.choice
    assert loaded.fitted.choice.method == method
    assert [p.scores for x in query.values() for p in loaded.predict(x)] == [p.scores for p in predictions]
    assert loaded.add("new", torch.ones(2, M)).fitted.choice.method == method


def test_map_has_more_weight_if_held_out_images_show_that_it_tells_more():
    torch.manual_seed(0)
    noise, means = torch.randn(5, 6, M), 1.4 * torch.randn(5, 1, M)
    in_the_map = noise + means * (torch.arange(M) >= 3)
    pooled = noise + means * (torch.arange(M) < 3) * 2
    chosen = [spatial_classifier().fit(dict(enumerate(x))).fitted.choice for x in (in_the_map, pooled)]
    assert [choice.method == SPATIAL for choice in chosen] == [True, False]
    accuracies = dict(chosen[0].accuracies)
    assert accuracies[SPATIAL] > accuracies["ridge"]


def test_spatial_is_refused_without_a_feature_map():
    match = "for a model without a feature map, got 'spatial', which --model photos has"
    with pytest.raises(SightlineError, match=match):
        FewShotClassifier().fit(make_clusters(3, 4), method=SPATIAL)


def test_auto_chooses_the_model_with_the_method(drawn, monkeypatch):
    fitted, examples = [], {name: images[:2] for name, images in list(drawn.items())[:2]}
    classifier = FewShotClassifier.pretrained("auto")
    classifier._pretrain = lambda name: fitted.append(name) or FewShotClassifier.pretrained(name)
    classifier.fit(examples, method=SPATIAL)
    assert fitted == ["photos"]
    assert (classifier.model_name, classifier.fitted.choice.method) == ("photos", SPATIAL)
    assert str(classifier.model_choice) == "photos, the model with the method spatial"


def test_weights_follow_the_log_likelihood_and_the_prior():
    labels = torch.arange(3).repeat(2, 4)
    right, members = 3 * torch.nn.functional.one_hot(labels, 3).double(), ("head", "logistic")
    equal = {"head": right, "logistic": right, "prototypes": right.roll(1, -1)}
    weights = method_weights(equal, labels, members, has_prior=False)
    torch.testing.assert_close(weights["head"], torch.full((2,), 0.5, dtype=torch.float64))
    weights = method_weights(equal, labels, members, has_prior=True)
    assert {name: x.tolist() for name, x in weights.items()} == {
        "head": [1, 1],
        "logistic": [0, 0],  # by the prior it has less than MIN_WEIGHT
        "prototypes": [0, 0],
    }
    better = equal | {"head": torch.cat((right[:, :2].roll(1, -1), right[:, 2:]), 1)}  # two images are wrong
    weights = method_weights(better, labels, members, has_prior=True)
    head, logistic = (log_likelihood(x, labels, fit_scales(x, labels)) for x in (better["head"], right))
    expected = (LOG_PRIOR["logistic"] + EVIDENCE_WEIGHT * (logistic - head)).sigmoid()
    torch.testing.assert_close(weights["logistic"], expected)
    assert ((expected > 0.05) & (expected < 0.95)).all()
    logits = {
        name: torch.stack((x[0], right[1].roll(1, -1) if name != "logistic" else x[1])) for name, x in equal.items()
    }
    assert method_weights(logits, labels, members, has_prior=True)["logistic"][1] == 1
    logits = {"head": right.roll(1, -1), "logistic": right.roll(1, -1), "prototypes": right}
    weights = method_weights(logits, labels, members, has_prior=True)
    assert {name: x.tolist() for name, x in weights.items()} == {
        "head": [0, 0],
        "logistic": [0, 0],
        "prototypes": [1, 1],
    }


def test_method_is_chosen_by_held_out_examples():
    classifier = FewShotClassifier().fit(make_clusters(4, 5, std=1.0))
    choice = classifier.fitted.choice
    assert choice.is_automatic
    assert choice.images == 20
    assert choice.describe(classifier.fitted.support).startswith("blend, accuracy ")
    assert {name for name, _ in choice.accuracies} == {"prototypes", "ridge", "logistic", "blend"}
    assert all(factor > 0 for factor in choice.scales)


def test_methods_are_not_compared_for_many_examples(monkeypatch):
    monkeypatch.setattr("sightline.classifier.choice.MAX_CHOICE_EXAMPLES", 19)
    fitted = FewShotClassifier().fit(make_clusters(4, 5)).fitted
    assert fitted.choice.describe(fitted.support, "text") == (
        f"{fitted.choice.method}, the default: too many texts to compare methods, 20 of 4 classes"
    )


def test_default_for_one_example_per_class():
    classifier = FewShotClassifier().fit(make_clusters(5, 1))
    text = "logistic, the default: comparing methods needs two images of two classes or more"
    assert classifier.fitted.choice.describe(classifier.fitted.support) == text
    assert "too few images to estimate the rates: two classes or more need a second image" in classifier.summary()
    assert FewShotClassifier().fit(make_clusters(5, 1), method="ridge").fitted.choice.method == "ridge"
    classifier = FewShotClassifier().fit(make_clusters(5, 2), method="head")
    assert classifier.fitted.choice.method == "prototypes"
    assert "method      prototypes, as requested: it is what the head consists of\n" in classifier.summary()
    low_dimension = {label: vectors[:, :7] for label, vectors in make_clusters(5, 1).items()}
    assert FewShotClassifier().fit(low_dimension).fitted.choice.method == "prototypes"
    options = {"backbone": "none", "depth": 0, "readout": "ridge", "power": 1.0}  # with statistics
    model = FewShot(FewShotConfig(**options, embed_dim=next(iter(make_clusters(5, 1).values())).shape[-1])).eval()
    assert FewShotClassifier(model).fit(make_clusters(5, 1)).fitted.choice.method == "ridge"


@pytest.mark.parametrize("method", ["ridge", "prototypes"])
def test_rejection_rate_is_met_on_new_images(method):
    examples, known = make_clusters(5, 10, std=0.7), make_clusters(5, 100, std=0.7, seed=1)
    rates = []
    for reject in (0.02, 0.2):
        classifier = FewShotClassifier().fit(examples, method=method, reject=reject)
        assert classifier.calibration.reject == reject
        predictions = [p for x in known.values() for p in classifier.predict(x)]
        rates.append(np.mean([not p.known for p in predictions]))
        assert all(p.to_dict()["label"] is None for p in predictions if not p.known)
    assert rates[0] < 0.1 < rates[1] < 0.35
    rate = classifier.calibration.rejected_known
    low, high = wilson_interval(50 * rate, 50)
    line = f"rejection   about {rate:.0%} of known images are rejected (95% interval {low:.0%} to {high:.0%} on 50 "
    assert line in classifier.summary()


def test_invalid_options_are_refused():
    for options, message in (
        ({"reject": 0}, "reject must be a rate above 0 and below 1, got 0"),
        ({"reject": 1.5}, "reject must be a rate above 0 and below 1, got 1.5"),
        ({"reject": "0.1"}, "reject must be a rate above 0 and below 1, got '0.1'"),
        ({"method": "svm"}, "method must be"),
    ):
        with pytest.raises(SightlineError, match=message):
            FewShotClassifier().fit(make_clusters(3, 2), **options)


def is_refused(classifier: FewShotClassifier) -> bool:
    try:
        classifier.check_above_chance()
    except SightlineError as error:
        return "standard errors above chance" in str(error)
    return False


def test_classifier_at_chance_is_refused():
    refused, random = 0, torch.Generator().manual_seed(3)
    for classes, count in ((4, 6), (3, 5), (2, 10), (5, 3)) * 5:
        classifier = FewShotClassifier().fit({str(i): torch.randn(count, M, generator=random) for i in range(classes)})
        refused += is_refused(classifier)
    assert refused >= 18  # of 20
    FewShotClassifier().fit(make_clusters(2, 2)).check_above_chance()  # all four are right
    FewShotClassifier().fit(make_clusters(4, 6)).check_above_chance()
    FewShotClassifier().fit(make_clusters(4, 1)).check_above_chance()  # nothing is known about it


def test_drawings_are_told_from_photos(drawn):
    assert are_drawings({name: images[:1] for name, images in drawn.items()})
    random = np.random.default_rng(0)
    photos = {name: [random.integers(0, 256, (40, 40, 3), dtype=np.uint8)] for name in "ab"}
    assert not are_drawings(photos)
    paper = np.full((40, 40), 200, dtype=np.uint8)
    inked, lit = paper.copy(), paper.copy()
    inked[10:14, 5:35] = 20
    lit[8:14, 5:35], lit[20:26, 5:35] = 20, 255  # shadow and light: a gray photo of an even surface
    assert are_drawings({"a": [inked], "b": [255 - inked]})
    assert not are_drawings({"a": [lit], "b": [lit]})
    colored = np.full((40, 40, 3), (240, 230, 190), dtype=np.uint8)
    colored[10:14, 5:35] = (30, 60, 160)
    assert are_drawings({"a": [colored], "b": [inked]})
    filled = np.full((40, 40), 255, dtype=np.uint8)
    filled[2:38, 2:34] = 90  # mostly ink, with a second gray level in it
    filled[10:30, 10:30] = 160
    assert are_drawings({"a": [inked], "b": [filled], "c": [inked]})
    assert not are_drawings({"a": [filled], "b": [filled], "c": [inked]})
    flag = colored.copy()
    flag[20:24, 5:35] = (200, 30, 30)  # a second ink
    assert not are_drawings({"a": [flag], "b": [flag]})
    with pytest.raises(SightlineError, match="examples must be images if the model is auto"):
        are_drawings({"a": ["no such file"], "b": ["none"]})


def test_color_that_the_model_of_drawings_ignores_makes_a_photo():
    blank = np.full((40, 40, 3), 255, dtype=np.uint8)
    y, x = np.mgrid[:40, :40] - 19.5
    radius = np.hypot(y, x)
    red, green = (200, 20, 20), (20, 160, 20)
    discs = {str(color): [np.where(radius[..., None] < 12, np.uint8(color), blank)] for color in (red, green)}
    shade = np.clip(1 - radius / 14, 0, 1)[..., None]
    ball = (255 - shade * (255 - np.array(red))).astype(np.uint8)
    equal = np.full((40, 40, 3), (230, 100, 100), dtype=np.uint8)
    equal[10:14, 5:35] = (60, 178, 192)  # the same gray level
    swatches = {str(color): [np.full((40, 40, 3), color, dtype=np.uint8)] for color in (red, green)}
    for photos in (discs, {"a": [ball], "b": [ball]}, {"a": [equal], "b": [equal]}, swatches):
        assert not are_drawings(photos)


def test_auto_chooses_an_installed_model(run, drawn, monkeypatch):
    """Two models: one that separates the drawings, and one that is not installed."""
    real = FewShotClassifier.pretrained.__func__

    def pretrained(cls, name, **options):
        if name == "photos":
            raise MissingDependencyError("pip install weights")
        return real(cls, run if name == "glyphs" else name, **options)

    monkeypatch.setattr(FewShotClassifier, "pretrained", classmethod(pretrained))
    examples = {name: images[:3] for name, images in list(drawn.items())[:4]}
    classifier = FewShotClassifier.pretrained("auto").fit(examples)
    assert classifier.model_choice.model == "glyphs"
    assert classifier.model_choice.hint is None
    assert "model       glyphs, accuracy " in classifier.summary()
    assert classifier.predict(next(iter(drawn.values()))[5]).label in examples
    colors = {
        name: [np.random.default_rng(i).integers(0, 256, (40, 40, 3), dtype=np.uint8)] for i, name in enumerate("ab")
    }

    def fit_auto(examples):
        return FewShotClassifier.pretrained("auto").fit(examples).model_choice

    choice = fit_auto(colors)
    assert choice.model == "glyphs"
    assert choice.hint == "these images look like photos, whose model is not installed: pip install weights"
    one_each = {name: images[:1] for name, images in examples.items()}
    assert fit_auto(one_each).hint.endswith("several images in two classes or more; add images, or try --model photos")
    monkeypatch.setattr(model_choice, "few_shot_models", lambda: ["photos"])
    with pytest.raises(MissingDependencyError, match="pip install weights"):
        FewShotClassifier.pretrained("auto").fit(colors)


def test_a_stored_choice_is_checked():
    for values in (
        {"method": "blend", "scales": []},
        {"method": "head", "scales": [1.0]},
        {"method": "ridge", "accuracies": [["head", 0.5]]},
        {"method": "ridge", "accuracies": [["ridge", float("nan")]]},
    ):
        with pytest.raises(SightlineError):
            config.build(Choice, values)


def test_unequal_classes_are_compared_with_a_balanced_accuracy():
    torch.manual_seed(0)
    common, rare = torch.randn(2, 16) * 5
    examples = {"common": common + torch.randn(10, 16), "rare": rare + torch.randn(2, 16)}
    FewShotClassifier().fit(examples).check_above_chance()


def test_several_images_of_one_class_alone_estimate_nothing():
    random = torch.Generator().manual_seed(0)
    counts = {"a": 30, "b": 1, "c": 1}
    classifier = FewShotClassifier().fit({name: torch.randn(n, M, generator=random) for name, n in counts.items()})
    assert classifier.fitted.choice == Choice("logistic")
    summary = classifier.summary()
    assert "accuracy unknown: only one class has several images" in summary
    assert "rejection   too few images to estimate the rates" in summary
    classifier.check_above_chance()  # nothing is known
    with pytest.raises(SightlineError, match="two classes must have 2 images each for an estimate, got 1 such class"):
        classifier.estimate()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("readout", ["prototypes", "ridge", "logistic"])
def test_every_readout_of_a_model_can_be_fitted(readout, depth):
    torch.manual_seed(0)
    options = {"backbone": "none", "embed_dim": 12, "num_heads": 4, "depth": depth, "patch_matching": depth == 0}
    model = FewShot(FewShotConfig(**options, readout=readout)).eval()
    means = 5 * torch.randn(3, 1, 12)
    classifier = FewShotClassifier(model).fit({str(i): mean + torch.randn(4, 12) for i, mean in enumerate(means)})
    assert {name for name, _ in classifier.fitted.choice.accuracies} >= {"head", "logistic"}
    assert classifier.predict(means[1, 0]).label == "1"


def test_many_examples_are_not_compared():
    random = torch.Generator().manual_seed(0)
    few = {str(i): torch.randn(3, M, generator=random) for i in range(100)}
    many = {str(i): torch.randn(8, M, generator=random) for i in range(100)}
    assert FewShotClassifier().fit(few).fitted.choice.accuracies
    assert not FewShotClassifier().fit(many).fitted.choice.accuracies


def test_rates_of_numpy_and_changed_classes(run, drawn, monkeypatch):
    calibration = FewShotClassifier().fit(make_clusters(3, 2), reject=np.float32(0.1)).calibration
    assert calibration.reject == pytest.approx(0.1)
    monkeypatch.setattr(model_choice, "few_shot_models", lambda: [str(run)])
    monkeypatch.setattr(model_choice, "likely_model", lambda examples: str(run))
    monkeypatch.setattr(model_choice, "KINDS", {str(run): "drawings"})
    examples = {name: images[:3] for name, images in list(drawn.items())[:4]}
    classifier = FewShotClassifier.pretrained("auto").fit(examples)
    assert "model       " in classifier.summary()
    classifier.remove(next(iter(examples)))
    assert "model       " not in classifier.summary()  # its accuracies were those of other classes
    assert classifier.model_name == str(run)


@pytest.mark.parametrize("reject", [0.5, 0.6])
def test_a_high_rate_of_rejection_with_one_image_per_class(reject):
    torch.manual_seed(0)
    classifier = FewShotClassifier().fit({"a": torch.randn(1, 16), "b": torch.randn(1, 16)}, reject=reject)
    assert classifier.calibration.threshold_scale > 0


def test_a_choice_of_lower_accuracy_says_by_what_it_was_made():
    accuracies = {"head": 0.5, "prototypes": 0.75}
    assert compared_accuracies(accuracies, "prototypes", "12 held-out images") == (
        "accuracy 75.0% on 12 held-out images (head 50.0%)"
    )
    text = compared_accuracies(accuracies, "head", "12 held-out images")
    assert text.endswith("(prototypes 75.0%); chosen by likelihood and a prior, not by accuracy alone")
