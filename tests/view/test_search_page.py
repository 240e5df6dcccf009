"""The page of `search-report` in a browser: brushing, highlighting, and the layout on a phone."""

import io

import pytest
from PIL import Image

from search_results import make_results
from sightline.search import analysis
from sightline.search.report import SearchReport

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def results():
    results = make_results(23)
    results.trials[0]["settings"]["model.score"] = EVIL
    results.definition["space"][2]["choices"].append(EVIL)
    return results


@pytest.fixture(scope="module")
def page_file(results, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analysis, "NUM_RESAMPLES", 3)
        patch.setattr(analysis, "NUM_TREES", 4)
        return SearchReport(results).page().save(tmp_path_factory.mktemp("report") / "page.html")


@pytest.fixture
def page(viewer, page_file):
    viewer.page.goto(page_file.as_uri())
    return viewer.page


def brush(page, axis, start, end):
    """Drag along an axis, from 0 (top) to 1 (bottom)."""
    grab = page.get_by_role("group", name=axis).locator(".grab")
    grab.scroll_into_view_if_needed()
    box = grab.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"]
    page.mouse.move(x, y + start * box["height"])
    page.mouse.down()
    page.mouse.move(x, y + end * box["height"], steps=3)
    page.mouse.up()


def faded(page, chart):
    return page.evaluate(
        "(chart) => [...document.querySelectorAll(`${chart} .faded`)].map((node) => Number(node.dataset.trial))", chart
    )


def test_a_brush_selects_trials_in_all_charts(page, results):
    brush(page, "model.depth", 0.0, 0.35)  # the deepest models are at the top
    selected = [t for t in results.trials if t["settings"]["model.depth"] >= 5]
    others = {t["trial"] for t in results.trials} - {t["trial"] for t in selected}
    assert set(faded(page, "svg.parallel")) == others
    assert set(faded(page, "svg.chart")) == others - {3}  # the failed trial has no value
    values = [t["values"]["accuracy"] for t in selected if t["state"] == "complete"]
    status = page.get_by_role("status")
    mean, best = sum(values) / len(values), max(values)
    assert status.inner_text() == f"{len(selected)} of 23 trials: mean accuracy {mean:.4g}, best {best:.4g}"
    brush(page, "model.attention_bias", 0.0, 0.5)
    both = [t for t in selected if t["settings"]["model.attention_bias"]]
    assert status.inner_text().startswith(f"{len(both)} of 23 trials")
    page.get_by_role("button", name="Clear selection").click()
    assert faded(page, "body") == []
    assert status.inner_text().startswith("Drag along an axis")


def test_a_brush_can_start_on_the_line_of_an_axis(page):
    brush(page, "model.depth", 0.2, 0.6)
    assert 0 < len(faded(page, "svg.parallel")) < 23


def test_a_selection_is_moved_by_keys(page):
    axis = page.get_by_role("group", name="accuracy")
    axis.focus()
    page.keyboard.press("ArrowUp")
    bottom = set(faded(page, "svg.parallel"))
    for _ in range(6):
        page.keyboard.press("ArrowUp")
    top = set(faded(page, "svg.parallel"))
    assert bottom
    assert top
    assert bottom != top
    page.keyboard.press("Escape")
    assert faded(page, "body") == []


def test_pointing_at_a_trial_shows_its_settings_everywhere(page, results):
    best = results.best["trial"]
    page.locator(f'svg.chart circle[data-trial="{best}"]').first.hover()
    active = page.evaluate("() => [...document.querySelectorAll('.active')].map((node) => node.dataset.trial)")
    assert len(active) >= 8
    assert set(active) == {str(best)}
    assert page.locator(".details").inner_text().startswith(f"trial {best}, complete: accuracy 0.")
    page.mouse.move(0, 0)
    assert page.locator(".details").is_hidden()


def test_markup_in_settings_is_text(page):
    page.evaluate("() => window.scrollTo(0, 0)")
    assert page.locator("img").count() == 0
    page.locator('svg.chart circle[data-trial="0"]').first.dispatch_event("pointerover")
    assert EVIL in page.locator(".details").inner_text()


@pytest.mark.parametrize("selector", ["svg.parallel", "table"])
def test_a_shadow_on_a_phone_shows_where_there_is_more(page, selector):
    page.set_viewport_size({"width": 390, "height": 800})
    scrolled = page.locator(".scroll", has=page.locator(selector)).last
    scrolled.scroll_into_view_if_needed()

    def is_shaded():
        """Whether the left and the right edge, below the content, are darker than the white panel."""
        image = Image.open(io.BytesIO(scrolled.screenshot())).convert("L")
        return [image.getpixel((x, image.height - 4)) < 240 for x in (1, image.width - 2)]

    scrolled.evaluate("(node) => { node.scrollLeft = 0; }")
    assert is_shaded() == [False, True]
    scrolled.evaluate("(node) => { node.scrollLeft = node.scrollWidth; }")
    assert is_shaded() == [True, False]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_the_page_without_sideways_scrolling(viewer, page, scheme):
    page.set_viewport_size({"width": 390, "height": 800})
    page.emulate_media(color_scheme=scheme)
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    sizes = page.evaluate(
        """() => [...document.querySelectorAll("svg.chart")].map(
            (svg) => 12 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)"""
    )
    assert min(sizes) > 8.5  # pixels of a text
    ink, paper = page.evaluate(
        "() => [getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert ink != paper
