"""Subwords, sentences, lines, the mean over layers, patches and scores in a browser."""

import pytest

from browser import SVG, curved_lines, is_close
from samples import HOSTILE, WORDS, record_of, weights

PIECES = ["[CLS]", "the", "un", "##break", "##able", "cats", "[SEP]"]


def all_lines(viewer):
    return [line for lines in curved_lines(viewer.svg()).values() for line in lines]


def test_subwords_are_joined_by_a_switch_in_every_view(viewer, tmp_path):
    record = record_of(weights(3, 7, 7), weights(3, 7, 7))
    viewer.open(record.save_html(tmp_path / "page.html", PIECES), "layer=0&view=matrix&heads=1&query=3&key=3")
    viewer.frame.get_by_label("Join subwords").check()
    viewer.settle()
    assert viewer.state["join"] == "true"
    assert "query" not in viewer.state  # words have other positions
    viewer.press("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight")
    exact = record[0].weights[0, 1, 2:5, 2:5].sum(-1).mean()
    assert viewer.status.startswith("unbreakable → unbreakable: ")
    assert is_close(viewer.weight, exact, 1.0)
    viewer.press("ArrowRight")
    assert is_close(viewer.weight, record[0].weights[0, 1, 2:5, 5].mean(), 1.0)
    viewer.reload()
    assert viewer.status.startswith("unbreakable → cats: ")
    for view in ("heads", "matrix", "temperature"):
        viewer.open(tmp_path / "page.html", f"view={view}&join=true&combine=rollout")
        words = viewer.words()
        assert "unbreakable" in words
        assert "##able" not in words
    viewer.choose("Query", "unbreakable")
    row = record[int(viewer.state["layer"])].weights[0].mean(0)[2:5]
    name, number = viewer.weights[0]
    joined = {"unbreakable": row[:, 2:5].sum(-1).mean(), **{PIECES[i]: row[:, i].mean() for i in (0, 1, 5, 6)}}
    assert name == max(joined, key=joined.get)
    assert is_close(number, joined[name], 1.0)


def test_a_page_can_open_with_words_and_readable_pieces(viewer, tmp_path):
    pieces = ["<s>", "The", "Ġquick", "Ġfox", "es", ".", "</s>"]
    record = record_of(weights(3, 7, 7))
    viewer.open(record.save_html(tmp_path / "page.html", pieces, join_subwords=True))
    assert {"The", "quick", "foxes"} <= set(viewer.words())
    viewer.frame.get_by_label("Join subwords").uncheck()
    viewer.settle()
    assert {"quick", "fox", "es"} <= set(viewer.words())
    assert "Ġquick" not in viewer.words()
    viewer.open(record.save_html(tmp_path / "page.html", WORDS))
    assert viewer.frame.get_by_label("Join subwords").is_hidden()


def test_joined_words_in_the_grid(viewer, tmp_path):
    path = record_of(weights(3, 7, 7)).save_html(tmp_path / "page.html", PIECES)
    sizes = {}
    for join in ("true", "false"):
        viewer.open(path, f"view=grid&join={join}")
        before = viewer.canvas()
        sizes[join] = before
    assert sizes["true"] != sizes["false"]


def test_sentences_are_filtered(viewer, tmp_path):
    record = record_of(weights(3, 7, 7))
    segments = [0, 0, 0, 0, 1, 1, 1]
    viewer.open(record.save_html(tmp_path / "page.html", list("abcdefg"), token_type_ids=segments), "view=heads")
    viewer.choose("Sentences", "A → B")
    words = [word for word in viewer.words() if len(word) == 1]
    assert words == list("abcdefg")  # queries of A, keys of B
    viewer.choose("Sentences", "B → B")
    assert [word for word in viewer.words() if len(word) == 1] == list("efgefg")
    viewer.click("e")
    assert {name for name, _ in viewer.weights} == set("efg")
    viewer.tab("Matrix")
    assert viewer.state["sentences"] == "BB"
    viewer.open(record.save_html(tmp_path / "page.html", list("abcdefg")))
    assert viewer.frame.get_by_label("Sentences").is_hidden()


@pytest.mark.parametrize(("choice", "count"), [("1 per query", 65), ("3 per query", 195)])
def test_lines_are_limited_to_the_strongest_keys(viewer, tmp_path, choice, count):
    record = record_of(weights(1, 65, 65))
    viewer.open(record.save_html(tmp_path / "page.html"), "combine=mean")
    assert 65 < len(all_lines(viewer)) <= 130  # by default, few enough to be read
    viewer.choose("Lines", choice)
    lines = all_lines(viewer)
    assert count * 0.9 < len(lines) <= count  # lines far weaker than the strongest are not drawn
    viewer.choose("Lines", "Weights from 0.25")
    assert len(all_lines(viewer)) == int((record[0].weights >= 0.25).sum())
    viewer.click("7")
    assert len(all_lines(viewer)) == int((record[0].weights[0, 0, 7] >= 0.25).sum())


def test_the_strongest_visible_keys_are_drawn_if_others_are_hidden(viewer, tmp_path):
    matrix = weights(1, 7, 7)
    matrix[..., 0] += 20
    viewer.open(
        record_of(matrix / matrix.sum(-1, keepdim=True)).save_html(tmp_path / "page.html", WORDS), "hide=true&lines=1"
    )
    assert len(all_lines(viewer)) == 5  # not to [CLS]


def test_mean_over_layers(viewer, encoder_page, encoder):
    viewer.open(encoder_page, "view=matrix")
    viewer.choose("Combine", "Mean over layers")
    viewer.press("ArrowRight", "ArrowDown", "ArrowRight")
    exact = encoder.stack()[:, 0].mean((0, 1))
    assert viewer.status.endswith("mean of 3 layers")
    assert is_close(viewer.weight, exact[1, 1], exact[1].max())
    assert viewer.frame.get_by_label("Layer", exact=True).is_hidden()
    assert viewer.frame.get_by_role("button", name="Head 0", exact=True).is_disabled()
    viewer.tab("Heads")
    assert len(curved_lines(viewer.svg())) == 1


def test_patches_are_shown_as_thumbnails(viewer, vit_page):
    for view in ("heads", "matrix"):
        viewer.open(vit_page, f"view={view}&layer=0&combine=mean")
        images = [image for image in viewer.svg().iter(f"{SVG}image") if float(image.get("width")) < 60]
        assert len(images) == 2 * 16
    viewer.open(vit_page, "view=heads&layer=0&combine=mean&query=7")
    names = [name for name, _ in viewer.weights]
    assert viewer.frame.locator(".weights canvas").count() == sum(name != "[CLS]" for name in names)


def test_scores_are_listed_beside_the_drawing(viewer, vit, photo, tmp_path):
    scores = {"cat": 0.2, HOSTILE[0]: 0.5, "dog": 0.25, "owl": 0.03, "fox": 0.01, "eel": 0.01}
    viewer.open(vit.save_html(tmp_path / "page.html", images=photo, scores=scores))
    rows = viewer.frame.locator(".scores li")
    assert rows.locator(".name").all_inner_texts() == [HOSTILE[0], "dog", "cat", "owl", "fox"]
    assert rows.locator(".value").all_inner_texts() == ["50.0 %", "25.0 %", "20.0 %", "3.0 %", "1.0 %"]
    assert viewer.frame.locator(".scores").inner_text().endswith("and 1 more")
    record = record_of(weights(2, 3, 3, batch=2))
    path = record.save_html(tmp_path / "page.html", batch=[0, 1], scores=[[("good", -0.5), ("bad", -2)], [("so", -1)]])
    viewer.open(path)
    assert rows.locator(".value").all_inner_texts() == ["-0.5", "-2"]
    viewer.choose("Example", "batch index 1")
    assert rows.locator(".name").all_inner_texts() == ["so"]
    long = "an answer that is long " * 9
    lists = {"Mask 1": [("first", 0.2), (long, 0.3)], "Mask 2": {"second": None}}
    viewer.open(record.save_html(tmp_path / "page.html", batch=[0, 1], scores=[lists, None], names=[long, "b"]))
    assert viewer.frame.locator(".inspector h2").all_inner_texts()[:2] == ["Mask 1", "Mask 2"]
    assert rows.locator(".name").all_inner_texts() == ["first", long.strip(), "second"]  # in the given order
    assert rows.locator(".value").all_inner_texts() == ["20.0 %", "30.0 %", ""]
    assert viewer.frame.locator(".inspector .answer").inner_text() == long.strip()
