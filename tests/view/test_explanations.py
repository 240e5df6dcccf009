"""Explanations of few-shot predictions, as figures and as pages in a browser."""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from playwright.sync_api import expect

from sightline.errors import SightlineError
from sightline.view.explanations import (
    MAX_COMPARED_CLASSES,
    MAX_PAGE_EXAMPLES,
    Evidence,
    Example,
    ExplanationCard,
    explanation_data,
    explanation_figure,
    explanation_page,
)

CLASSES = ("beta", "gamma", *(f"class {i}" for i in range(12)))
LOG_PROBABILITIES = np.log([0.7, 0.16, *[0.14 / 12] * 12])

TIMEOUT = 30_000
"""Milliseconds to wait for a change of the page."""


def decreases(*values):
    return np.array([*values, *[0.0] * (len(CLASSES) - len(values))])


def make_card(*, known=True, name="query.png", label="beta", images=True):
    gray = np.arange(600, dtype=np.uint8).reshape(20, 30) if images else None
    colors = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    examples = [
        Example(file, owner, colors[i] if images else None, decrease, np.eye(2) if images and i < 2 else None)
        for i, (file, owner, decrease) in enumerate(
            [
                ("1.png", label, decreases(1.5, -0.5)),
                ("2.png", "gamma", decreases(-0.25, 0.5)),
                ("3.png", label, decreases(0.001)),
                ("4.png", "class 3", decreases(0, 0, 0, 0, 0, 0.3)),
            ]
        )
    ]
    regions = np.zeros((2, 3, len(CLASSES)))
    regions[0, 1, 0], regions[1, 2, 1] = 2.0, 1.0
    classes = (label, *CLASSES[1:])
    evidence = Evidence(classes, LOG_PROBABILITIES, name, gray, regions if images else None, examples)
    scores = list(zip(classes, np.exp(LOG_PROBABILITIES).tolist(), strict=True))
    return ExplanationCard(name, label, known, 0.7, scores, evidence, label, notes=["A note."])


@pytest.fixture
def page(viewer, tmp_path):
    """A function that opens cards in the browser."""

    def open_cards(*cards):
        viewer.page.goto(explanation_page(cards).save(tmp_path / "page.html").as_uri())
        return viewer.page

    return open_cards


def test_effects_are_differences_of_log_odds():
    evidence = make_card().evidence
    assert evidence.log_odds("beta") == pytest.approx(np.log(0.7 / 0.3))
    assert evidence.log_odds("beta", "gamma") == pytest.approx(np.log(0.7 / 0.16))
    probabilities = np.exp(evidence.log_probabilities - evidence.examples[0].decreases)
    odds = probabilities[0] / probabilities[1:].sum()
    expected = np.log(0.7 / 0.3) - np.log(odds)
    assert evidence.effects(evidence.examples[0].decreases, "beta") == pytest.approx(expected)
    assert evidence.effects(evidence.examples[0].decreases, "beta", "gamma") == pytest.approx(2.0)


def test_answer_has_examples_for_and_against():
    query, examples = make_card().evidence.answer("beta", "gamma", images=1)
    assert [(example.name, example.contribution) for example in examples] == [("1.png", 2.0), ("2.png", -0.75)]
    assert query.regions.tolist() == [[0, 2, 0], [0, 0, -1]]
    assert examples[0].regions.tolist() == [[2, 0], [0, 2]]
    assert make_card().evidence.strongest("class 5", "class 6", 3) == [0]  # no example has an effect


def test_a_page_has_the_examples_of_every_question():
    random, evidence = np.random.default_rng(0), make_card().evidence
    owners = CLASSES[:5]
    examples = [Example(f"{i}", owners[i % 5], None, 0.3 * random.normal(size=len(CLASSES))) for i in range(20)]
    card = replace(make_card(), evidence=replace(evidence, examples=examples), images=2)
    names = {example["name"] for example in explanation_data([card])["cards"][0]["examples"]}
    for label, other in product(owners, (None, *owners)):
        if label != other:
            assert {example.name for example in card.evidence.answer(label, other, 2)[1]} <= names
    many = [
        Example(f"{i}", CLASSES[i % 12], None, 0.3 * random.normal(size=len(CLASSES)) + 2 * np.eye(14)[i % 12])
        for i in range(120)
    ]
    card = replace(card, evidence=replace(evidence, examples=many))
    shown = explanation_data([card])["cards"][0]["examples"]
    assert len(shown) == MAX_PAGE_EXAMPLES
    for name in CLASSES[:12]:  # each has its strongest example
        assert card.evidence.answer(name, None, 1)[1][0].name in {example["name"] for example in shown}


def test_an_example_without_regions_is_dimmed_by_its_contribution(page):
    opened = page(make_card())
    opened.get_by_label("class", exact=True).select_option(label="class 3")
    opened.get_by_label("other class").select_option(label="beta")
    shown = opened.locator("article figure:has(.contribution)")
    veils = shown.locator(".heat-map canvas").evaluate_all(
        "nodes => nodes.map(n => n.getContext('2d').getImageData(0, 0, 1, 1).data[3])"
    )
    alpha = dict(zip(shown.locator(".source").all_inner_texts(), veils, strict=True))
    assert alpha["1.png"] == 0  # the strongest example, in its first region
    assert alpha["4.png"] > 50  # has no regions, and a small effect
    _, examples = make_card().evidence.answer("class 3", "beta", 3)
    weak = next(example for example in examples if example.name == "4.png")
    assert weak.regions is None
    assert weak.shown_regions.tolist() == [[weak.contribution]]


def test_a_page_shows_predictions_scores_and_contributions(page):
    opened = page(make_card(), make_card(known=False, name="other.png"))
    assert opened.title() == "2 predictions"
    text = opened.inner_text("body")
    for words in (
        "1 of 2 known", "query.png", "beta", "confidence 70.0%", "unknown", "closest: beta", "A note.", "other class",
        "Scores if it were known", "and 6 more classes", "outlined: speaks for the class", "dashed: speaks against it",
    ):  # fmt: skip
        assert words in text
    badges = [badge.inner_text() for badge in opened.locator(".badge").all()]
    assert badges == ["known", "none of the classes"]
    image, examples = make_card().evidence.answer("beta", None, 3)
    strongest = max(image.regions.flatten(), key=abs)
    assert f", strongest region {strongest:+.2f}" in text
    shown = opened.locator("article").first.locator(".contribution").all_inner_texts()
    assert sorted(shown) == sorted(f"{example.contribution:+.2f}" for example in examples)
    assert opened.evaluate("() => [...document.images].every(image => image.complete && image.naturalWidth > 0)")
    label = opened.locator("article .heat-map").first.get_attribute("aria-label")
    assert label == "query.png; strongest of 2 x 3 regions: row 1 column 2, row 2 column 3"


def test_why_one_class_and_not_another(page):
    card = page(make_card()).locator("article")
    card.get_by_label("class", exact=True).select_option(label="gamma")
    card.get_by_label("other class").select_option(label="beta")
    figures = card.locator("figure:has(.contribution)")
    assert figures.locator(".source").all_inner_texts() == ["2.png", "1.png"]
    assert figures.locator(".contribution").all_inner_texts() == ["+0.75", "-2.00"]
    assert figures.locator(".mark").count() == 1
    assert "For gamma" in card.inner_text()
    disabled = card.get_by_label("other class").locator("option:disabled").all_inner_texts()
    assert disabled == ["gamma"]
    assert card.locator("select option").count() == 2 * MAX_COMPARED_CLASSES + 1


def test_predictions_are_sorted_and_filtered(page):
    cards = [make_card(name=f"{i}.png", label=label, known=i != 1) for i, label in enumerate(["beta", "alpha", "beta"])]
    opened = page(replace(cards[0], confidence=0.9), *cards[1:])
    files = opened.locator(".file")
    opened.get_by_label("Sort").select_option(label="least confident first")
    expect(files).to_have_text(["1.png", "2.png", "0.png"], timeout=TIMEOUT)
    opened.get_by_label("Filter by class").select_option(label="beta")
    expect(files).to_have_text(["2.png", "0.png"], timeout=TIMEOUT)
    opened.get_by_label("Filter by name or class").fill("0.p")
    expect(files).to_have_text(["0.png"], timeout=TIMEOUT)
    expect(opened.locator(".count")).to_have_text("1 of 3", timeout=TIMEOUT)
    opened.get_by_label("Filter by known or unknown").select_option(label="unknown")
    expect(opened.locator("main")).to_contain_text("No prediction matches the filter.", timeout=TIMEOUT)


def test_maps_are_read_and_toggled_by_keyboard(page):
    opened = page(make_card())
    first = opened.locator("article .heat-map").first
    assert first.locator("path.for").count() == 1
    first.focus()
    opened.keyboard.press("ArrowRight")
    assert first.locator(".tip").inner_text().startswith("row 1, column 2: +")
    opened.keyboard.press("ArrowRight")
    assert first.locator(".tip").inner_text() == "row 1, column 3: no effect, or not occluded"
    opened.keyboard.press("Escape")
    assert not first.locator(".tip").is_visible()
    opened.get_by_label("Show maps").focus()
    opened.keyboard.press("Space")
    assert not first.locator(".veil").is_visible()


def test_names_are_escaped(page):
    name = '<img src=x onerror="alert(1)">\ud800"\x07'
    assert '<img src=x onerror="alert(1)">' in page(make_card(name=name, label=name)).inner_text("body")


@pytest.mark.parametrize("width", [1240, 390])
def test_a_page_fits_wide_and_narrow_windows(viewer, page, width):
    viewer.page.set_viewport_size({"width": width, "height": 900})
    opened = page(make_card(label="a long name " * 9), make_card(label="anotherverylongname" * 8))
    assert opened.evaluate("() => document.documentElement.scrollWidth") <= width


def test_images_are_stored_once():
    one, many = (explanation_page([make_card()] * count).html for count in (1, 300))
    assert one.count("data:image") == many.count("data:image") == 4  # the query and 3 examples
    assert len(many) < 300 * 10_000


def test_a_page_has_no_url():
    html = explanation_page([make_card()]).html
    assert re.findall(r"https?://[^\"]*", html) == ["http://www.w3.org/2000/svg"]
    assert "default-src 'none'" in html


def test_cards_without_images():
    html = explanation_page([make_card(images=False)]).html
    assert "data:image" not in html
    figure = explanation_figure(make_card(images=False, known=False))
    assert figure.get_suptitle().split() == ["unknown", "(closest", "beta)"]
    assert [axes.get_title() for axes in figure.axes] == ["Scores if it were known"]


def test_a_figure_shows_the_query_the_examples_and_the_scores():
    figure = explanation_figure(replace(make_card(), other="gamma"))
    assert figure.get_suptitle() == "beta 70.0%"
    assert [axes.get_title() for axes in figure.axes] == ["query", "beta", "gamma", "All scores"]
    labels = [axes.get_xlabel() for axes in figure.axes[1:3]]
    assert labels == ["1.png\nfor: +2.00", "2.png\nagainst: -0.75"]
    assert len(figure.axes[3].patches) == 8


@pytest.mark.parametrize("label", ["beta", "a longer name " * 5])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("images", [True, False])
def test_texts_of_a_figure_do_not_overlap_and_are_not_cut_off(label, known, images):
    figure = explanation_figure(make_card(label=label, known=known, images=images))
    figure.draw_without_rendering()
    texts = [figure._suptitle, *(text for axes in figure.axes for text in (axes.title, axes.xaxis.label, *axes.texts))]
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    for i, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:i])


def test_an_empty_page_is_refused():
    with pytest.raises(SightlineError, match="cards must contain at least one prediction, got none"):
        explanation_page([])
