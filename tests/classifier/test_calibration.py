"""Calibration of confidence and of the known threshold."""

import math

import pytest
import torch

from sightline import FewShotClassifier
from sightline.classifier import FewShotPrediction, calibration
from sightline.classifier.calibration import classify, encode, held_out_logits, unknown_logits
from sightline.classifier.support import SupportSet
from sightline.metrics import auroc
from sightline.models.few_shot import FewShot, nearest_mean_model
from sightline.models.few_shot_config import FewShotConfig
from sightline.models.support_state import SupportState

M = 5


def make_support(*counts: int) -> SupportSet:
    """Classes along the axes, with these numbers of examples."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    embeddings = torch.eye(max(M, len(counts)))[labels] + 0.01 * torch.rand(len(labels), 1)
    classes, names = tuple(f"c{i}" for i in range(len(counts))), tuple(map(str, range(len(labels))))
    return SupportSet(embeddings[:, None], labels, classes, names)


@pytest.mark.parametrize("counts", [(4, 3, 2, 1), (1, 1, 9), (13, 2)])
def test_every_example_of_a_larger_class_is_held_out_once(counts, monkeypatch):
    support, head, masks = make_support(*counts), nearest_mean_model(M).head, []
    state = encode(head, support)

    def recorded_encode(head, support, mask):
        masks.append(mask)
        return encode(head, support, mask)

    monkeypatch.setattr(calibration, "encode", recorded_encode)
    held_out = []
    for (_, labels, indices), mask in zip(held_out_logits(head, support, state), masks, strict=False):
        assert not mask[indices].any()
        assert set(support.labels[mask].tolist()) == set(range(len(counts)))  # no class becomes empty
        assert labels.tolist() == support.labels[indices].tolist()
        held_out += indices.tolist()
    assert sorted(held_out) == [i for i, label in enumerate(support.labels.tolist()) if counts[label] > 1]


def test_unknown_logits_are_without_the_class_of_the_example():
    """The logit of the class itself is 10, a cosine of 1 over the temperature 0.1; other classes are orthogonal."""
    for counts in ((3, 3, 3), (2, 1), (2,) * 23):
        head, support = nearest_mean_model(max(M, len(counts))).head, make_support(*counts)
        logits = torch.cat(list(unknown_logits(head, support, encode(head, support))))
        assert len(logits) == sum(counts)
        assert logits.max() < 2


def test_number_of_held_out_examples_is_limited(monkeypatch):
    monkeypatch.setattr(calibration, "MAX_HELD_OUT", 17)
    support, head = make_support(*[2] * 40), nearest_mean_model(40).head
    state = encode(head, support)
    assert sum(len(indices) for _, _, indices in held_out_logits(head, support, state)) == 17
    assert sum(len(logits) for logits in unknown_logits(head, support, state)) == 17


def test_large_support_sets_are_not_encoded_again(monkeypatch):
    """Without blocks, the encoding of an example does not depend on the others, so the logits are equal."""
    support, head = make_support(4, 3, 5), nearest_mean_model(M).head
    state = encode(head, support)

    def logits():
        held_out = torch.cat([logits for logits, _, _ in held_out_logits(head, support, state)])
        return held_out, torch.cat(list(unknown_logits(head, support, state)))

    expected = logits()
    monkeypatch.setattr(calibration, "MAX_REENCODED_TOKENS", 11)
    monkeypatch.setattr(calibration, "encode", None)
    torch.testing.assert_close(logits(), expected)


def test_unknown_images_are_detected(fitted, drawn):
    known = [prediction for name in fitted.classes for prediction in fitted.predict(drawn[name][3:])]
    unknown = [prediction for images in list(drawn.values())[5:] for prediction in fitted.predict(images)]
    accepted, false_accepted = (sum(p.known for p in part) / len(part) for part in (known, unknown))
    assert accepted > 0.65
    assert false_accepted < 0.5
    assert accepted - false_accepted > 0.4
    scores = [torch.tensor([prediction.known_score for prediction in part]) for part in (known, unknown)]
    assert auroc(*scores) > 0.8
    assert all(prediction.known == (prediction.known_score >= 0.5) for prediction in known + unknown)
    assert any(str(prediction).startswith("unknown (closest ") for prediction in unknown)
    assert all(set(prediction.scores) == set(fitted.classes) for prediction in unknown)


@pytest.mark.parametrize(("images", "source"), [(1, "image sets of many kinds"), (2, "held-out images")])
def test_summary_names_the_source_of_the_calibration(images, source):
    classifier = FewShotClassifier().fit({"a": torch.randn(images, 11) + 3, "b": torch.randn(images, 11) - 3})
    scale = classifier.calibration.scale
    assert f"confidence  logits scaled by {scale:.2f}, calibrated on {source}\n" in classifier.summary()


def test_text_of_known_and_unknown_predictions():
    known = FewShotPrediction("a", 0.7, True, {"a": 0.7, "b": 0.3}, 0.9)
    assert (str(known), known.summary(), known.summary(2)) == ("a 70.0%", "a 70.0%", "a 70.0%, b 30.0%")
    unknown = FewShotPrediction("a", 0.7, False, {"a": 0.7, "b": 0.3}, 0.1)
    assert (str(unknown), unknown.summary(2)) == ("unknown (closest a)", "unknown (closest a, b)")


def test_calibration_with_one_image_per_class(run, drawn):
    examples = {name: images[:1] for name, images in list(drawn.items())[:5]}
    classifier = FewShotClassifier.pretrained(run).fit(examples)
    known = [p.known for name in classifier.classes for p in classifier.predict(drawn[name][1:])]
    unknown = [p.known for images in list(drawn.values())[5:] for p in classifier.predict(images)]
    assert sum(known) / len(known) - sum(unknown) / len(unknown) > 0.25
    assert FewShotClassifier.pretrained(run).fit(examples).calibration == classifier.calibration


def test_threshold_is_a_fraction_of_the_distance_from_known_to_unknown():
    """Held-out examples have logit 10, a cosine of 1 over the temperature 0.1; those of held-out classes have 0."""
    examples = {f"c{i}": torch.eye(M)[[i, i, i]] for i in range(M)}
    classifier = FewShotClassifier().fit(examples, method="prototypes")
    fraction = calibration.THRESHOLD_FRACTION
    assert classifier.calibration.threshold == pytest.approx(10 * (1 - fraction), abs=1e-4)
    assert classifier.calibration.threshold_scale == pytest.approx(5 * fraction, abs=1e-4)
    assert classifier.calibration.auroc == 1


def test_threshold_of_one_image_per_class_is_farther_from_known_images():
    examples = {f"c{i}": torch.eye(M)[[i]] for i in range(M)}
    classifier = FewShotClassifier().fit(examples, method="prototypes")
    near, far = 1 - calibration.INTERPOLATION, calibration.INTERPOLATION  # of a copy: to its own image, to the next one
    expected = 10 * near / math.hypot(near, far) * (1 - calibration.SINGLE_THRESHOLD_FRACTION)
    assert classifier.calibration.threshold == pytest.approx(expected, abs=1e-3)


def test_threshold_of_one_larger_class_is_that_of_held_out_images(monkeypatch):
    random = torch.Generator().manual_seed(0)
    spread = torch.tensor([0.1] * 21 + [1.0] * 9)[:, None]  # some of its images differ from the others
    examples = {"a": torch.eye(M)[[0] * 30] + spread * torch.randn(30, M, generator=random)}
    examples |= {f"c{i}": torch.eye(M)[[i]] for i in range(1, M)}
    monkeypatch.setattr(calibration, "SINGLE_THRESHOLD_FRACTION", 9.0)  # of copies only
    classifier = FewShotClassifier().fit(examples, method="prototypes")
    assert 0.05 < classifier.calibration.rejected_known < 0.15
    assert "estimate the rates: two classes or more need a second image" in classifier.summary()


@pytest.mark.parametrize("method", ["prototypes", "ridge"])
def test_about_a_tenth_of_known_images_is_rejected_at_most(method, monkeypatch):
    random = torch.Generator().manual_seed(0)
    means = 2 * torch.randn(6, 16, generator=random)
    spread = torch.tensor([0.3] * 14 + [2.5] * 6)[:, None]  # some images of each class differ from the others
    examples = {f"c{i}": mean + spread * torch.randn(20, 16, generator=random) for i, mean in enumerate(means)}
    rate = FewShotClassifier().fit(examples, method=method).calibration.rejected_known
    monkeypatch.setattr(calibration, "MAX_REJECTED", 0.99)
    without = FewShotClassifier().fit(examples, method=method).calibration.rejected_known
    assert 0.05 < rate < 0.13 < without


@pytest.mark.parametrize("angle", [0.0, 0.1, 1.0])
def test_two_classes_of_one_image_accept_their_images(angle):
    first, second = torch.tensor([1.0, 0, 0]), torch.tensor([math.cos(angle), math.sin(angle), 0])
    classifier = FewShotClassifier().fit({"a": first[None], "b": second[None]})
    c = classifier.calibration
    assert all(math.isfinite(value) for value in (c.threshold, c.scale, c.threshold_scale))
    assert all(prediction.known for prediction in classifier.predict([first, second]))
    assert not classifier.predict(-first - second).known


@pytest.mark.parametrize("shared", [0.0, 1.0])
def test_threshold_for_one_image_per_class_rejects_images_of_other_kinds(shared):
    """Of dissimilar classes, unless embeddings have no statistics or a rate is given."""
    random = torch.Generator().manual_seed(0)
    vectors, others = shared + torch.randn(5, 307, generator=random), torch.randn(100, 307, generator=random)
    vectors = vectors / vectors.norm(dim=1, keepdim=True)
    examples, rates, thresholds = {f"c{i}": x[None] for i, x in enumerate(vectors)}, [], []
    options = {"backbone": "none", "embed_dim": 307, "depth": 0, "readout": "ridge"}
    for power, reject in ((1.0, None), (1.0, calibration.MAX_REJECTED), (None, None)):
        model = FewShot(FewShotConfig(**options, power=power)).eval()
        classifier = FewShotClassifier(model).fit(examples, method="ridge", reject=reject)
        rates.append(sum(prediction.known for prediction in classifier.predict(others)) / len(others))
        thresholds.append(classifier.calibration.threshold)
        assert all(prediction.known for prediction in classifier.predict(vectors))
    assert thresholds[1] == pytest.approx(thresholds[2], abs=1e-4)
    if shared:
        assert thresholds[0] == thresholds[1]
        assert max(rates) == 0
    else:
        assert thresholds[0] > thresholds[1]
        assert rates[0] < 0.1 < 0.6 < rates[1]


def test_most_known_images_are_accepted_if_unknown_ones_look_the_same():
    """Both classes have the same distribution, so holding one out changes nothing."""
    random = torch.Generator().manual_seed(0)
    cluster = torch.tensor([3.0, 0, 0, 0, 0, 0, 0]) + torch.randn(130, 7, generator=random)
    classifier = FewShotClassifier().fit({"a": cluster[:15], "b": cluster[15:30]})
    assert classifier.calibration.auroc < 0.8
    assert sum(prediction.known for prediction in classifier.predict(cluster[30:])) > 60


def test_confidence_of_a_head_without_parameters_is_calibrated():
    random = torch.Generator().manual_seed(0)
    means = 2.0 + torch.randn(6, 1, 11, generator=random)
    clusters = means + 0.1 * torch.randn(6, 12, 11, generator=random)
    examples = {f"c{i}": cluster[:6] for i, cluster in enumerate(clusters)}
    classifier = FewShotClassifier().fit(examples, method="prototypes")
    assert classifier.calibration.scale > 1.5
    pairs = [(i, p) for i, cluster in enumerate(clusters) for p in classifier.predict(cluster[6:])]
    accuracy = sum(prediction.label == f"c{i}" for i, prediction in pairs) / len(pairs)
    confidence = sum(prediction.confidence for _, prediction in pairs) / len(pairs)
    assert math.isclose(accuracy, confidence, abs_tol=0.05)


def test_queries_are_classified_in_batches_of_limited_tokens(monkeypatch):
    sizes = []

    class Head:
        def classify(self, state, query):
            sizes.append(query.shape[1])
            return query.sum((2, 3))[..., None].expand(-1, -1, 2)

    state = SupportState(torch.zeros(1, 2, M), torch.zeros(1, 2, dtype=torch.bool), torch.zeros(1, 0, M))
    monkeypatch.setattr(calibration, "MAX_TOKENS_PER_BATCH", 10)
    query = torch.randn(7, 3, M)
    torch.testing.assert_close(classify(Head(), state, query)[:, 0], query.sum((1, 2)))
    assert sizes == [3, 3, 1]
    classify(Head(), state, torch.randn(2, 11, M))
    assert sizes[3:] == [1, 1]


@pytest.mark.parametrize("method", ["ridge", "logistic"])
def test_confidence_with_one_image_per_class_is_about_the_accuracy(method):
    random = torch.Generator().manual_seed(0)
    means = torch.randn(5, 67, generator=random)
    confidences, correct = [], []
    for _ in range(20):
        examples = {f"c{i}": mean + torch.randn(1, 67, generator=random) for i, mean in enumerate(means)}
        queries = means + 1.2 * torch.randn(5, 67, generator=random)
        for i, prediction in enumerate(FewShotClassifier().fit(examples, method=method).predict(list(queries))):
            confidences.append(prediction.confidence)
            correct.append(prediction.label == f"c{i}")
    assert 0.5 < sum(correct) / len(correct) < 1
    assert sum(confidences) / len(confidences) == pytest.approx(sum(correct) / len(correct), abs=0.2)
