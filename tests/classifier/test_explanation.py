"""Explanation of predictions by ablation."""

import time

import numpy as np
import pytest
import torch

from sightline import FewShotClassifier
from sightline.classifier import FewShotPrediction, explanation, predictions
from sightline.classifier.explanation import cell_masks, occlude_cells, occlusion_color
from sightline.errors import SightlineError
from sightline.models.embedders import BackboneEmbedder

GRID = 6


def predicted_logits(classifier, pixels, label):
    """The logit of a class for each image, computed by the classifier itself."""
    fitted, index = classifier._current(), classifier.classes.index(label)
    with torch.no_grad():
        query = BackboneEmbedder(fitted.model).embed(pixels)
        return fitted.calibration.scale * fitted.model.head.classify(fitted.state, query[None])[0, :, index]


def test_occluding_the_named_cells_costs_more_than_occluding_random_ones(fitted, drawn):
    random = np.random.default_rng(0)
    named, others = [], []
    for name in fitted.classes:
        for image in drawn[name][3:6]:
            prediction = fitted.predict(image)
            result = prediction.explain(images=1)
            changed = occlude_cells(image, GRID)[1].numpy().nonzero()[0]
            best = np.argsort(-result.image.occlusion.flatten(), kind="stable")[:3]
            groups = [best, *(random.choice(changed, 3, replace=False) for _ in range(8))]
            masks = torch.stack([cell_masks(28, GRID)[torch.from_numpy(group)].any(0) for group in groups])
            occluded = torch.where(masks[:, None], occlusion_color(image), image)
            decrease = (result.logit - predicted_logits(fitted, occluded, prediction.label)).numpy()
            named.append(decrease[0])
            others.append(decrease[1:].mean())
    assert np.mean(named) > 1.5 * np.mean(others)
    assert np.mean(np.array(named) > np.array(others)) > 0.8


def test_contribution_is_the_decrease_of_the_logit_without_the_image(fitted, drawn):
    image = drawn[fitted.classes[2]][4]
    prediction = fitted.predict(image)
    result = prediction.explain(images=16, grid=2)
    assert 1 <= len(result.support) < 15
    assert (result.num_candidates, result.is_complete) == (15, True)
    assert result.logit == pytest.approx(float(predicted_logits(fitted, image[None], prediction.label)), abs=1e-3)
    contributions = [image.contribution for image in result.support]
    assert contributions == sorted(contributions, reverse=True)
    assert min(contributions) > 0.02 * max(contributions)
    first, state = result.support[0], fitted._current()
    support, head = state.support, state.model.head
    index = next(
        i
        for i, name in enumerate(support.names)
        if (support.classes[support.labels[i]], name) == (first.label, first.name)
    )
    rest = torch.arange(len(support)) != index
    encoded = head.encode_support(support.embeddings[rest][None], support.labels[rest][None], way=5)
    query = BackboneEmbedder(state.model).embed(image[None])
    logit = head.classify(encoded, query[None])[0, 0, support.classes.index(prediction.label)]
    expected = fitted.calibration.scale * float(logit)
    assert result.logit - first.contribution == pytest.approx(expected, abs=1e-3)


def test_occlusion_of_a_support_image(run):
    """The classes differ in the position of a black square."""
    left = torch.full((1, 28, 28), 255, dtype=torch.uint8)
    left[:, 8:20, 2:10] = 0
    classifier = FewShotClassifier.pretrained(run).fit({"left": [left], "right": [left.flip(-1)]})
    result = classifier.predict(left).explain(grid=2, images=1)
    example = result.support[0]
    assert (result.prediction.label, example.label) == ("left", "left")
    assert example.occlusion[:, 0].sum() > abs(example.occlusion[:, 1]).sum()
    assert result.image.occlusion[:, 0].sum() > abs(result.image.occlusion[:, 1]).sum()
    assert not result.image.occlusion[:, 1].any()  # occluding paper changes nothing


def test_explanation_takes_less_than_a_second(fitted, drawn):
    prediction = fitted.predict(drawn[fitted.classes[0]][5])
    start = time.process_time()
    prediction.explain()
    assert time.process_time() - start < 1


def test_nearest_candidates_of_a_large_support_set(monkeypatch, fitted, drawn):
    monkeypatch.setattr(explanation, "MAX_CANDIDATES", 7)
    prediction = fitted.predict(drawn[fitted.classes[3]][4])
    result = prediction.explain(grid=2)
    assert (result.num_candidates, result.is_complete) == (7, False)
    assert result.support[0].label == prediction.label
    assert "Computed for the 7 nearest support images." in result.card().notes


def test_explanation_of_an_embedding_has_no_images():
    classifier = FewShotClassifier().fit({"a": torch.eye(3)[:2], "b": -torch.eye(3)})
    result = classifier.predict(torch.tensor([1.0, 0.1, 0])).explain()
    assert result.image.occlusion is None
    assert result.image.pixels is None
    assert (result.support[0].label, result.support[0].name) == ("a", "example 1")
    assert all(image.occlusion is None for image in result.support)
    assert {image.label for image in result.support} == {"a"}  # by cosine, other classes have no contribution
    html = result.page().html
    assert "example 1" in html
    assert not any(text in html for text in ("<img", 'class="asked"', 'id="heat"', ">image<"))


def test_cells_partition_the_image():
    for side, grid in ((28, 7), (29, 5), (8, 8)):
        masks = cell_masks(side, grid)
        assert masks.shape == (grid * grid, side, side)
        assert (masks.sum(0) == 1).all()
    image = torch.full((1, 4, 4), 200, dtype=torch.uint8)
    image[0, 0, 0] = 3
    occluded, is_changed = occlude_cells(image, 2)
    assert is_changed.tolist() == [True, False, False, False]
    assert (occluded[0] == 200).all()


def test_explanation_is_saved_as_figure_and_page(fitted, drawn, tmp_path, monkeypatch):
    result = fitted.predict(drawn[fitted.classes[0]][4]).explain()
    assert result.save(tmp_path / "why.png").read_bytes().startswith(b"\x89PNG")
    assert "<!doctype html>" in result.save(tmp_path / "why.html").read_text()
    monkeypatch.setattr(predictions, "explanation_figure", None)  # the path is checked first
    with pytest.raises(SightlineError, match=r"path must end in .png, .svg or .html, got 'why.pdf'"):
        result.save(tmp_path / "why.pdf")


def test_page_of_several_images(fitted, drawn, tmp_path):
    (tmp_path / "torn.png").write_bytes(b"not an image")
    images = drawn[fitted.classes[0]][4:6]
    calls = []
    explanations = fitted.explain(
        [images[0], tmp_path / "torn.png", images[1]], progress=lambda *count: calls.append(count)
    )
    assert [prediction.error is None for prediction in explanations.predictions] == [True, False, True]
    assert explanations.page.html.count("<article") == 2
    assert calls == [(1, 2), (2, 2)]
    assert fitted.explain([tmp_path / "torn.png"]).page is None


def test_invalid_explanations_are_refused(fitted, drawn):
    with pytest.raises(SightlineError, match="a prediction must come from `predict` to be explained"):
        FewShotPrediction("a", 1.0, True, {"a": 1.0}, 1.0).explain()
    prediction = fitted.predict(drawn[fitted.classes[0]][4])
    for options, message in (
        ({"images": 0}, "images must be an integer of at least 1, got 0"),
        ({"images": 17}, "images must be at most 16, got 17"),
        ({"grid": 33}, "grid must be at most 32, got 33"),
    ):
        with pytest.raises(SightlineError, match=message):
            prediction.explain(**options)
