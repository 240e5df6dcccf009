import math

import pytest
import torch

from sightline import FewShotClassifier
from sightline.classifier import Answer
from sightline.classifier import calibration as confidence
from sightline.classifier.calibration import Confidence, fit_calibration_scale, held_out, strangers
from sightline.classifier.embedding import prototypes
from sightline.classifier.support import Support
from sightline.models.few_shot import Memory
from sightline.models.few_shot_answers import Known
from sightline.tasks.few_shot.evaluate import auroc

M = 5


def support(*counts: int) -> Support:
    """Classes along axes of their own, so many examples each, told apart by their second number."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    embeddings = torch.eye(max(M, len(counts)))[labels] + 0.01 * torch.rand(len(labels), 1)
    return Support(
        embeddings[:, None], labels, tuple(f"c{i}" for i in range(len(counts))), tuple(map(str, range(len(labels))))
    )


def all_of(head, examples):
    """What a head keeps of all of them."""
    return confidence.remembered(head, examples, torch.ones(len(examples), dtype=torch.bool))


@pytest.mark.parametrize("counts", [(4, 3, 2, 1), (1, 1, 9), (13, 2)])
def test_every_example_with_others_is_left_out_once_while_it_is_asked(counts, monkeypatch):
    examples, head = support(*counts), prototypes(M).head
    left, memory = [], all_of(head, examples)
    plain = confidence.remembered
    monkeypatch.setattr(confidence, "remembered", lambda h, s, rows: left.append(rows) or plain(h, s, rows))
    seen = []
    for (_, labels, rows), kept in zip(held_out(head, examples, memory), left, strict=False):
        assert not kept[rows].any()
        assert set(examples.labels[kept].tolist()) == set(range(len(counts)))  # no class is ever left empty
        assert labels.tolist() == examples.labels[rows].tolist()
        seen += rows.tolist()
    assert sorted(seen) == [i for i, label in enumerate(examples.labels.tolist()) if counts[label] > 1]


def test_strangers_do_not_see_their_class():
    """Their own class would answer 10, the cosine of 1 over the temperature of 0.1; another is at a right angle."""
    for counts in ((3, 3, 3), (2, 1), (2,) * 23):
        head, examples = prototypes(max(M, len(counts))).head, support(*counts)
        found = torch.cat(list(strangers(head, examples, all_of(head, examples))))
        assert len(found) == sum(counts)
        assert found.max() < 2


def test_work_is_bounded(monkeypatch):
    monkeypatch.setattr(confidence, "ASKED", 17)
    examples = support(*[2] * 40)
    head = prototypes(40).head
    memory = all_of(head, examples)
    assert sum(len(rows) for _, _, rows in held_out(head, examples, memory)) == 17
    assert sum(len(x) for x in strangers(head, examples, memory)) == 17


def test_of_very_many_examples_none_is_looked_at_anew(monkeypatch):
    """A head of no block knows each example by itself, so there the answers are the same."""
    examples, head = support(4, 3, 5), prototypes(M).head
    memory = all_of(head, examples)
    anew = [torch.cat([logits for logits, _, _ in held_out(head, examples, memory)])]
    anew.append(torch.cat(list(strangers(head, examples, memory))))
    monkeypatch.setattr(confidence, "MOST", 11)
    monkeypatch.setattr(confidence, "remembered", None)
    torch.testing.assert_close(torch.cat([logits for logits, _, _ in held_out(head, examples, memory)]), anew[0])
    torch.testing.assert_close(torch.cat(list(strangers(head, examples, memory))), anew[1])


def test_sharpness_is_what_the_labels_say():
    random = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(4000, 5, generator=random).double()
    labels = torch.multinomial((2 * logits).softmax(-1), 1, generator=random).flatten()
    assert fit_calibration_scale([(logits, labels)], trust=0.5) == pytest.approx(2, rel=0.1)
    assert fit_calibration_scale([(logits / 5, labels)], trust=1.5) == pytest.approx(10, rel=0.1)


def test_a_few_right_answers_do_not_make_it_certain():
    logits, labels = 9 * torch.eye(5), torch.arange(5)
    assert 1 <= fit_calibration_scale([(logits, labels)], trust=0.5) < 1.1
    wrong = labels.roll(1)
    assert fit_calibration_scale([(logits, wrong)], trust=0.5) < 0.3


def test_what_belongs_to_no_class_is_unknown(fitted, drawn):
    """Most of what was not seen is refused, most of what was is not; the two would be alike without a threshold."""
    known = [answer for name in fitted.classes for answer in fitted.predict(drawn[name][3:])]
    unknown = [answer for own in list(drawn.values())[5:] for answer in fitted.predict(own)]
    kept, refused = (sum(answer.known for answer in answers) / len(answers) for answers in (known, unknown))
    assert kept > 0.65
    assert refused < 0.5
    assert kept - refused > 0.4
    scores = [torch.tensor([answer.known_score for answer in answers]) for answers in (known, unknown)]
    assert auroc(*scores) > 0.8
    assert all(answer.known == (answer.known_score >= 0.5) for answer in known + unknown)
    assert any(str(answer).startswith("none of these (closest ") for answer in unknown)


@pytest.mark.parametrize(
    ("calibration_scale", "words"),
    [
        (1.02, "sharpened a little (x 1.02) to fit"),
        (7, "sharpened (x 7.00) to fit"),
        (0.5, "softened (x 0.50) to fit"),
        (0.998, "left as it is, which fits"),
    ],
)
def test_what_was_done_to_confidence_is_told_in_words(calibration_scale, words):
    assert Confidence(calibration_scale, 1.0, 1.0, 1.0).change == words


@pytest.mark.parametrize(("images", "whose"), [(1, "moved copies of the examples"), (2, "held-out examples")])
def test_a_summary_says_by_what_it_is_sure(images, whose):
    model = FewShotClassifier().fit({"a": torch.randn(images, 5) + 3, "b": torch.randn(images, 5) - 3})
    assert f"confidence  {model.confidence.change} how often {whose} were right\n" in model.summary()


def test_a_stranger_is_told_without_shares():
    known = Answer("a", 0.7, True, {"a": 0.7, "b": 0.3}, 0.9)
    assert (str(known), known.told(2)) == ("a 70.0% (known)", "a 70.0% (known), b 30.0%")
    stranger = Answer("a", 0.7, False, {"a": 0.7, "b": 0.3}, 0.1)
    assert (str(stranger), stranger.told(2)) == ("none of these (closest a)", "none of these (closest a, b)")


def test_one_image_of_each_class_is_enough_for_both_thresholds(run, drawn):
    made = FewShotClassifier.pretrained(run).fit({name: own[:1] for name, own in list(drawn.items())[:5]})
    known = [answer.known for name in made.classes for answer in made.predict(drawn[name][1:])]
    unknown = [answer.known for own in list(drawn.values())[5:] for answer in made.predict(own)]
    assert sum(known) / len(known) - sum(unknown) / len(unknown) > 0.25
    again = FewShotClassifier.pretrained(run).fit({name: own[:1] for name, own in list(drawn.items())[:5]})
    assert again.confidence == made.confidence


def test_the_threshold_lies_a_share_of_the_way_from_examples_to_strangers():
    """Examples answer 10, the cosine of 1 over the temperature of 0.1; strangers are at a right angle and answer 0."""
    axes = torch.eye(M)
    made = FewShotClassifier().fit({f"c{i}": axes[[i, i, i]] for i in range(M)})
    assert made.confidence.threshold == pytest.approx(10 * (1 - confidence.FALL), abs=1e-4)
    assert made.confidence.scale == pytest.approx(5 * confidence.FALL, abs=1e-4)
    assert made.confidence.separation == 1


@pytest.mark.parametrize("turn", [0.0, 0.1, 1.0])
def test_two_classes_of_one_image_know_their_own(turn):
    """However alike the two are, an image that is near one of them is known, and its opposite is not."""
    first = torch.tensor([1.0, 0, 0])
    second = torch.tensor([math.cos(turn), math.sin(turn), 0])
    made = FewShotClassifier().fit({"a": first[None], "b": second[None]})
    assert all(
        math.isfinite(x) for x in (made.confidence.threshold, made.confidence.calibration_scale, made.confidence.scale)
    )
    assert all(answer.known for answer in made.predict([first, second]))
    assert not made.predict(-first - second).known


def test_most_known_images_stay_where_strangers_look_the_same():
    """Both classes are one cloud, so that leaving one out changes nothing."""
    random = torch.Generator().manual_seed(0)
    cloud = torch.tensor([3.0, 0, 0, 0, 0, 0, 0]) + torch.randn(130, 7, generator=random)
    made = FewShotClassifier().fit({"a": cloud[:15], "b": cloud[15:30]})
    assert made.confidence.separation < 0.8
    assert sum(answer.known for answer in made.predict(cloud[30:])) > 60


def test_confidence_of_an_untrained_head_is_set_too():
    """Cosines over the fixed temperature would be far from sure; the examples say that it may be."""
    random = torch.Generator().manual_seed(0)
    middles = 2.0 + torch.randn(6, 1, 11, generator=random)
    clouds = middles + 0.1 * torch.randn(6, 12, 11, generator=random)
    made = FewShotClassifier().fit({f"c{i}": cloud[:6] for i, cloud in enumerate(clouds)})
    assert made.confidence.calibration_scale > 1.5
    answers = [(i, answer) for i, cloud in enumerate(clouds) for answer in made.predict(cloud[6:])]
    right = sum(answer.label == f"c{i}" for i, answer in answers) / len(answers)
    sure = sum(answer.confidence for _, answer in answers) / len(answers)
    assert math.isclose(right, sure, abs_tol=0.05)


def test_few_tokens_are_asked_in_one_go(monkeypatch):
    """As many images as these tokens make, and one at least."""
    counts = []

    class Head:
        def ask(self, memory, query):
            counts.append(query.shape[1])
            return query.sum((2, 3))[..., None].expand(-1, -1, 2)

    memory = Memory((), Known(torch.zeros(1, 2, M), torch.zeros(1, 0, M)), 0)
    monkeypatch.setattr(confidence, "TOKENS_AT_ONCE", 10)
    query = torch.randn(7, 3, M)
    torch.testing.assert_close(confidence.ask(Head(), memory, query)[:, 0], query.sum((1, 2)))
    assert counts == [3, 3, 1]
    confidence.ask(Head(), memory, torch.randn(2, 11, M))
    assert counts[3:] == [1, 1]
