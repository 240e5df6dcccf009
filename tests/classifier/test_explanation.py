"""Explanation of predictions by ablation."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sightline import FewShotClassifier
from sightline.classifier import FewShotPrediction, calibration, explanation, predictions
from sightline.classifier import fitted as fitting
from sightline.classifier.explanation import Question, cell_masks
from sightline.data.images.occlusion import occlusion_color
from sightline.errors import SightlineError
from sightline.models.embedders import BackboneEmbedder
from sightline.models.few_shot import FewShot
from sightline.models.few_shot_config import FewShotConfig
from sightline.models.support_state import SupportState

GRID = 6


@pytest.fixture
def prediction(fitted, drawn):
    return fitted.predict(drawn[fitted.classes[2]][4])


def log_odds(classifier, pixels, label, other=None):
    """The log odds of a class for each image, computed from the scores of the classifier."""
    fitted = classifier._current()
    scores = fitted.scores(BackboneEmbedder(fitted.model).embed(pixels))
    return Question(label, other).log_odds(scores, classifier.classes).numpy()


def test_occluding_the_named_cells_costs_more_than_occluding_random_ones(fitted, drawn):
    random = np.random.default_rng(0)
    named, others = [], []
    for name in fitted.classes:
        for image in drawn[name][3:6]:
            prediction = fitted.predict(image)
            result = prediction.explain(images=1, grid=GRID)
            masks, color = cell_masks(28, GRID), occlusion_color(image)
            has_ink = (masks & (image != color)[0]).flatten(1).any(1).numpy().nonzero()[0]
            best = np.argsort(-result.image.regions.flatten(), kind="stable")[:3]
            groups = [best, *(random.choice(has_ink, 3, replace=False) for _ in range(8))]
            occluded = [torch.where(masks[torch.from_numpy(group)].any(0), color, image) for group in groups]
            decrease = result.log_odds - log_odds(fitted, torch.stack(occluded), prediction.label)
            named.append(decrease[0])
            others.append(decrease[1:].mean())
    assert np.mean(named) > 1.5 * np.mean(others)
    assert np.mean(np.array(named) > np.array(others)) > 0.8


@pytest.mark.parametrize("with_other", [False, True])
def test_regions_are_the_decrease_of_the_log_odds(fitted, drawn, prediction, with_other):
    image, label = drawn[fitted.classes[2]][4], prediction.label
    other = list(prediction.scores)[1] if with_other else None
    result = prediction.explain(other=other, grid=4, cells=16)
    masks = cell_masks(28, 4)
    expected = result.log_odds - log_odds(
        fitted, torch.where(masks[:, None], occlusion_color(image), image), label, other
    )
    assert result.log_odds == pytest.approx(log_odds(fitted, image[None], label, other)[0], abs=1e-3)
    assert result.image.regions.flatten() == pytest.approx(expected, abs=1e-3)
    few = prediction.explain(other=other, grid=4, cells=5).image.regions
    occluded = few != 0
    assert 1 <= occluded.sum() <= 5
    assert few[occluded] == pytest.approx(result.image.regions[occluded], abs=1e-3)
    assert few.max() > 0.5 * result.image.regions.max()  # of 16 cells, those of the largest effects are found


def test_contribution_is_the_decrease_of_the_log_odds_without_the_example(fitted, drawn, prediction):
    result = prediction.explain(images=16, grid=2)
    contributions = [example.contribution for example in result.support]
    assert contributions == sorted(contributions, reverse=True)
    assert contributions[0] > 0 > contributions[-1]  # evidence for the class and against it
    assert min(map(abs, contributions)) > 0.02 * max(map(abs, contributions))
    assert result.is_complete
    state = fitted._current()
    support = state.support
    for example in (result.support[0], result.support[-1]):
        names = [(support.classes[label], name) for label, name in zip(support.labels, support.names, strict=True)]
        index = torch.tensor([names.index((example.label, example.name))])
        query = BackboneEmbedder(state.model).embed(drawn[fitted.classes[2]][4][None])
        without = Question(prediction.label).log_odds(state.scores_without(query, index), fitted.classes)
        assert result.log_odds - example.contribution == pytest.approx(float(without), abs=1e-3)


@pytest.mark.parametrize("method", ["head", "prototypes", "ridge", "logistic", "blend"])
def test_scores_without_examples_are_those_of_single_refits(monkeypatch, method):
    """In batches of all examples and of two, for classes of unequal size, one of a single example."""
    torch.manual_seed(0)
    labels, directions = [0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3], torch.randn(4, 13)
    vectors, query = directions[labels] + 0.7 * torch.randn(len(labels), 13), torch.randn(5, 1, 13)
    examples = {str(c): vectors[[label == c for label in labels]] for c in range(4)} | {"lone": torch.randn(1, 13)}
    fitted = FewShotClassifier().fit(examples, method=method).fitted
    size, expected = len(fitted.support), []
    for i in range(size):
        state = calibration.encode(fitted.head, fitted.support, torch.arange(size) != i)
        expected.append(fitted.calibration.scale * calibration.classify(fitted.head, state, query))
    assert all((logits - fitted.scores(query)).abs().max() > 1e-2 for logits in expected)
    for maximum in (10_000, 2 * fitted.support.embeddings.numel()):
        monkeypatch.setattr(fitting, "MAX_SUBSET_VALUES", maximum)
        scores = fitted.scores_without(query, torch.arange(size))
        torch.testing.assert_close(scores, torch.stack(expected), rtol=0, atol=1e-4)


def test_memory_of_left_out_examples_is_limited_for_many_classes(monkeypatch):
    """A subset has a membership of each class for each example, here far more values than the embeddings."""
    sizes, select = [], SupportState.select
    monkeypatch.setattr(
        SupportState,
        "select",
        lambda self, subsets, labels: sizes.append(subsets.shape) or select(self, subsets, labels),
    )
    examples = {str(c): torch.randn(2, 5) for c in range(20)}
    fitted = FewShotClassifier().fit(examples, method="prototypes").fitted
    sizes.clear()
    monkeypatch.setattr(fitting, "MAX_SUBSET_VALUES", 3000)
    assert fitted.scores_without(torch.randn(1, 1, 5), torch.arange(40)).shape == (40, 1, 20)
    assert max(count * examples * 20 for count, examples in sizes) <= 3000
    assert sum(count for count, _ in sizes) == 40


@pytest.mark.parametrize("method", ["ridge", "logistic", "prototypes"])
def test_effects_of_the_only_example_of_a_class_are_of_the_size_of_the_log_odds(method):
    torch.manual_seed(0)
    means = torch.randn(5, 1, 32)
    classifier = FewShotClassifier().fit({str(i): mean for i, mean in enumerate(means)}, method=method)
    explanation = classifier.predict(means[2, 0] + 0.5 * torch.randn(32)).explain()
    contributions = {example.label: example.contribution for example in explanation.support}
    assert contributions["2"] == max(contributions.values())
    assert len(contributions) > 2  # its own effect does not hide those of the others
    assert contributions["2"] < 10 * abs(explanation.log_odds) + 5


def test_a_class_without_images_is_not_predicted_by_the_similarity_term():
    """Of two classes one is held out: the similarity is that to the class that is left."""
    torch.manual_seed(0)
    examples = {"a": torch.randn(6, 32) + 1, "b": torch.randn(6, 32) + 1}
    fitted = FewShotClassifier().fit(examples, method="ridge").fitted
    query = torch.randn(40, 1, 32)
    state = calibration.encode(fitted.head, fitted.support, fitted.support.labels == 0)
    logits = calibration.classify(fitted.head, state, query)
    head = fitted.head
    raw = (state.readout(head.normalize(query).double().mean(1)[None]) / head.similarity.temperature())[0]
    assert (raw.argmax(-1) == 1).any()
    similarity = head.similarity(query.double().mean(1)[None, None], state.class_means[:, None])[0, 0, :, 0]
    torch.testing.assert_close(logits[:, 0] - raw[:, 0], similarity, check_dtype=False)


def test_reasons_for_one_class_are_reasons_against_the_other(fitted, prediction):
    first, second = list(prediction.scores)[:2]
    reasons = prediction.explain(label=first, other=second, images=1, cells=36)
    opposite = prediction.explain(label=second, other=first, images=1, cells=36)
    assert reasons.log_odds == -opposite.log_odds > 0
    assert reasons.image.regions == pytest.approx(-opposite.image.regions)
    assert reasons.support[0].name == opposite.support[-1].name


def test_blank_regions_have_no_effect(run):
    """The classes differ in the position of a black square."""
    left = torch.full((1, 28, 28), 255, dtype=torch.uint8)
    left[:, 8:20, 2:10] = 0
    classifier = FewShotClassifier.pretrained(run).fit({"left": [left], "right": [left.flip(-1)]})
    result = classifier.predict(left).explain(grid=2)
    example = result.support[0]
    assert (result.prediction.label, example.label) == ("left", "left")
    assert example.contribution > 0
    assert example.regions is None  # the feature map has one position
    assert result.image.regions[:, 0].sum() > 0
    assert not result.image.regions[:, 1].any()  # occluding paper changes nothing


def test_regions_of_an_example_are_those_like_the_query():
    query, background = torch.tensor([[1.0, 0, 0]]), torch.tensor([0, 1.0, 0])
    features = background.expand(2, 3, 3).clone()
    features[1, 2] = query[0]
    features[0, 0] = torch.tensor([0, 0, 1.0])
    images = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8).repeat(4, 1, 1, 1)
    support = SimpleNamespace(embeddings=background.expand(4, 1, 3), images=images)
    fitted = SimpleNamespace(support=support, feature_maps=lambda indices: dict.fromkeys(indices, features))
    [shares] = explanation._region_shares(fitted, query, [3]).values()
    assert shares.shape == (2, 3)
    assert shares[1, 2] == 1
    assert shares[0, 0] == 0
    support.images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    [shares] = explanation._region_shares(fitted, query, [3]).values()
    assert not shares.any()  # blank regions


def test_explanation_embeds_fewer_images_than_there_are_cells(monkeypatch, prediction):
    counts, embed = [], BackboneEmbedder.embed_view
    monkeypatch.setattr(BackboneEmbedder, "embed_view", lambda self, x: counts.append(len(x)) or embed(self, x))
    prediction.explain()
    assert 0 < sum(counts) <= predictions.CELLS < GRID * GRID


def test_cells_are_occluded_in_one_of_several_views(monkeypatch, drawn):
    torch.manual_seed(0)
    options = {"image_size": 28, "channels": 1, "backbone_channels": (4, 8, 8, 8), "num_heads": 2}
    model = FewShot(FewShotConfig(**options, normalize_drawings=True, views=3)).eval()
    classifier = FewShotClassifier(model).fit({name: images[:2] for name, images in drawn.items()})
    prediction = classifier.predict(next(iter(drawn.values()))[4])
    monkeypatch.delattr(FewShot, "embed_views")  # not called
    result = prediction.explain(grid=2)
    assert result.image.regions.shape == (2, 2)
    assert np.abs(result.image.regions).max() > 0


def test_nearest_candidates_of_a_large_support_set(monkeypatch, prediction):
    monkeypatch.setattr(explanation, "MAX_CANDIDATES", 7)
    result = prediction.explain(grid=2)
    assert len(result.evidence.examples) == 7
    assert not result.is_complete
    assert result.support[0].label == prediction.label
    assert "Computed for the 7 nearest support examples." in result.card().notes


def test_explanation_of_an_embedding_has_no_images():
    classifier = FewShotClassifier().fit({"a": torch.eye(3)[:2], "b": -torch.eye(3)})
    result = classifier.predict(torch.tensor([1.0, 0.1, 0])).explain()
    assert result.image.regions is None
    assert result.card().notes == []
    unknown = replace(result, prediction=replace(result.prediction, known=False, known_score=0.234))
    assert unknown.card().notes == ["Known score 0.23, below the threshold of 0.5."]
    assert result.image.pixels is None
    assert (result.support[0].label, result.support[0].name) == ("a", "example 1")
    assert all(image.regions is None for image in result.support)
    html = result.page().html
    assert "example 1" in html
    assert "data:image" not in html


def test_cells_partition_the_image():
    for side, grid in ((28, 7), (29, 5), (8, 8)):
        masks = cell_masks(side, grid)
        assert masks.shape == (grid * grid, side, side)
        assert (masks.sum(0) == 1).all()


def test_explanation_is_saved_as_figure_and_page(prediction, tmp_path, monkeypatch):
    result = prediction.explain()
    assert result.save(tmp_path / "why.png").read_bytes().startswith(b"\x89PNG")
    assert "<!doctype html>" in result.save(tmp_path / "why.html").read_text()
    monkeypatch.setattr(predictions, "explanation_figure", None)  # the path is checked first
    with pytest.raises(SightlineError, match=r"path must end in .png, .svg or .html, got 'why.pdf'"):
        result.save(tmp_path / "why.pdf")


def test_page_of_several_images(fitted, drawn, tmp_path, monkeypatch):
    (tmp_path / "torn.png").write_bytes(b"not an image")
    images = drawn[fitted.classes[0]][4:7]
    calls = []
    monkeypatch.setattr(FewShotClassifier, "batch_size", 2)
    explanations = fitted.explain([images[0], tmp_path / "torn.png", *images[1:]], progress=lambda *c: calls.append(c))
    assert [prediction.error is None for prediction in explanations.predictions] == [True, False, True, True]
    assert explanations.page.html.count('"logProbabilities"') == 3
    assert calls == [(2, 3), (3, 3)]
    assert fitted.explain([tmp_path / "torn.png"]).page is None


def test_predictions_explained_together_and_alone_are_equal(fitted, drawn):
    images = torch.stack([drawn[name][4] for name in fitted.classes])
    alone = [fitted.predict(image).explain() for image in images]
    query = BackboneEmbedder(fitted.model).embed(images)
    together = explanation.explain(fitted._ready(), query, images, [result.prediction for result in alone])
    for first, second in zip(alone, together, strict=True):
        assert first.image.regions == pytest.approx(second.image.regions, abs=1e-3)
        names = [[(example.label, example.name) for example in result.support] for result in (first, second)]
        assert names[0] == names[1]


def test_invalid_explanations_are_refused(prediction):
    with pytest.raises(SightlineError, match="a prediction must come from `predict` to be explained"):
        FewShotPrediction("a", 1.0, True, {"a": 1.0}, 1.0).explain()
    label = prediction.label
    for options, message in (
        ({"images": 0}, "images must be an integer of at least 1, got 0"),
        ({"images": 17}, "images must be at most 16, got 17"),
        ({"grid": 33}, "grid must be at most 32, got 33"),
        ({"cells": 0}, "cells must be an integer of at least 1, got 0"),
        ({"label": "none"}, "label must be"),
        ({"other": "none"}, "other must be"),
        ({"other": label}, f"other must differ from label, got '{label}' for both"),
    ):
        with pytest.raises(SightlineError, match=message):
            prediction.explain(**options)
