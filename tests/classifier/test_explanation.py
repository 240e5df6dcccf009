import time

import numpy as np
import pytest
import torch

from sightline import FewShotClassifier
from sightline.classifier import explanation as explain
from sightline.classifier.explanation import cells_of, hide_each, paper
from sightline.classifier.predictions import Answer
from sightline.view import explanations as reasons

PARTS = 6


def winning(classifier, images, label):
    """The logit of a class for each of these images, by the classifier itself."""
    index = classifier.classes.index(label)
    with torch.no_grad():
        query = classifier._embeds.embed(images)
        head, ready = classifier.model.head, classifier._ready()
        return ready.confidence.calibration_scale * head.ask(ready.memory, query[None])[0, :, index]


def test_hiding_what_is_named_costs_more_than_hiding_as_much_at_random(fitted, drawn):
    """The deletion test: the three parts that are named against three others that hold ink."""
    random = np.random.default_rng(0)
    named, others = [], []
    for name in fitted.classes:
        for image in drawn[name][3:6]:
            answer = fitted.predict(image)
            why = answer.explain(images=1)
            changed = hide_each(image, PARTS)[1].numpy().nonzero()[0]
            best = np.argsort(-why.parts.flatten(), kind="stable")[:3]
            groups = [best, *(random.choice(changed, 3, replace=False) for _ in range(8))]
            cells = torch.stack([cells_of(28, PARTS)[torch.from_numpy(group)].any(0) for group in groups])
            hidden = torch.where(cells[:, None], paper(image), image)
            lost = (why.logit - winning(fitted, hidden, answer.label)).numpy()
            named.append(lost[0])
            others.append(lost[1:].mean())
    assert np.mean(named) > 1.5 * np.mean(others)
    assert np.mean(np.array(named) > np.array(others)) > 0.8


def test_an_example_is_worth_what_its_removal_costs(fitted, drawn):
    label = fitted.classes[2]
    image = drawn[label][4]
    answer = fitted.predict(image)
    why = answer.explain(images=16, parts=2)
    assert 1 <= len(why.examples) < 15
    assert (why.among, why.whole) == (15, True)
    assert why.logit == pytest.approx(float(winning(fitted, image[None], answer.label)), abs=1e-3)
    worths = [example.worth for example in why.examples]
    assert worths == sorted(worths, reverse=True)
    assert min(worths) > 0.02 * max(worths)
    first = why.examples[0]
    support = fitted._ready().support
    gone = next(
        i
        for i, name in enumerate(support.names)
        if (support.classes[support.labels[i]], name) == (first.label, first.name)
    )
    rest = torch.arange(len(support)) != gone
    head = fitted.model.head
    memory = head.remember(support.embeddings[rest][None], support.labels[rest][None], way=5)
    query = fitted._embeds.embed(image[None])
    left = (
        fitted.confidence.calibration_scale * head.ask(memory, query[None])[0, 0, support.classes.index(answer.label)]
    )
    assert why.logit - first.worth == pytest.approx(float(left), abs=1e-3)


def test_parts_of_an_example_are_worth_what_hiding_them_costs(run):
    """Of two black squares the left one alone tells the classes apart; hidden in the example, it is missed."""
    left = torch.full((1, 28, 28), 255, dtype=torch.uint8)
    left[:, 8:20, 2:10] = 0
    right = left.flip(-1)
    made = FewShotClassifier.pretrained(run).fit({"left": [left], "right": [right]})
    why = made.predict(left).explain(parts=2, images=1)
    assert why.answer.label == "left"
    assert why.examples[0].label == "left"
    assert why.examples[0].parts[:, 0].sum() > abs(why.examples[0].parts[:, 1]).sum()
    assert why.parts[:, 0].sum() > abs(why.parts[:, 1]).sum()
    assert not why.parts[:, 1].any()  # nothing is there to hide


def test_it_takes_less_than_a_second(fitted, drawn):
    answer = fitted.predict(drawn[fitted.classes[0]][5])
    start = time.process_time()
    answer.explain()
    assert time.process_time() - start < 1


def test_among_many_examples_the_nearest_are_asked(monkeypatch, fitted, drawn):
    monkeypatch.setattr(explain, "MOST_SUPPORT", 7)
    answer = fitted.predict(drawn[fitted.classes[3]][4])
    why = answer.explain(parts=2)
    assert (why.among, why.whole) == (7, False)
    assert why.examples[0].label == answer.label
    assert "Explained among the 7 nearest examples." in why.reason().notes


def test_embeddings_have_examples_but_no_parts():
    made = FewShotClassifier().fit({"a": torch.eye(3)[:2], "b": -torch.eye(3)})
    why = made.predict(torch.tensor([1.0, 0.1, 0])).explain()
    assert why.parts is None
    assert why.picture is None
    assert (why.examples[0].label, why.examples[0].name) == ("a", "example 1")
    assert all(example.parts is None for example in why.examples)
    assert {example.label for example in why.examples} == {"a"}  # by angle alone, others are worth nothing
    text = why.page().html
    assert "example 1" in text
    assert not any(word in text for word in ("<img", 'class="asked"', "Bright parts", 'id="heat"', ">image<"))


def test_cells_cover_every_pixel_once():
    for side, parts in ((28, 7), (29, 5), (8, 8)):
        cells = cells_of(side, parts)
        assert cells.shape == (parts * parts, side, side)
        assert (cells.sum(0) == 1).all()
    image = torch.full((1, 4, 4), 200, dtype=torch.uint8)
    image[0, 0, 0] = 3
    hidden, changed = hide_each(image, 2)
    assert changed.tolist() == [True, False, False, False]
    assert (hidden[0] == 200).all()


def test_a_picture_and_a_page_are_written(fitted, drawn, tmp_path, monkeypatch):
    why = fitted.predict(drawn[fitted.classes[0]][4]).explain()
    assert why.save(tmp_path / "why.png").read_bytes().startswith(b"\x89PNG")
    assert "<!doctype html>" in why.save(tmp_path / "why.html").read_text()
    monkeypatch.setattr(reasons, "picture", None)  # refused before anything is drawn
    with pytest.raises(ValueError, match=r"path must end in .png, .svg or .html, got 'why.pdf'"):
        why.save(tmp_path / "why.pdf")


def test_an_answer_without_its_classifier_is_refused(fitted, drawn):
    with pytest.raises(ValueError, match="must be one that predict gave to be explained"):
        Answer("a", 1.0, True, {"a": 1.0}, 1.0).explain()
    answer = fitted.predict(drawn[fitted.classes[0]][4])
    for wrong, message in (
        ({"images": 0}, "images must be an integer of at least 1, got 0"),
        ({"parts": 33}, "parts must be at most 32, got 33"),
    ):
        with pytest.raises(ValueError, match=message):
            answer.explain(**wrong)
