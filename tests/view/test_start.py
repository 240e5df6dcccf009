"""What a page opens on, how nearly uniform maps are marked, and scales that are shared."""

import numpy as np
import pytest
import torch

from browser import SVG, image_pixels
from samples import SOURCE, TARGET, AttentionMap, record_of, weights
from sightline.attention import Record


def sink(heads, size):
    """All queries attend to the first key."""
    return torch.eye(size)[0].expand(1, heads, size, size).clone()


def flat(heads, size):
    return weights(heads, size, size, sharp=0.1)


def test_a_page_opens_on_the_layer_with_the_most_information(viewer, tmp_path):
    record = record_of(flat(3, 7), sink(3, 7), weights(3, 7, 7, sharp=6), weights(3, 7, 7, sharp=1))
    viewer.open(record.save_html(tmp_path / "page.html"))
    assert viewer.state["layer"] == "2"
    assert viewer.view == "heads"
    viewer.open(tmp_path / "page.html", "layer=0")
    assert viewer.state["layer"] == "0"


def test_a_translation_opens_on_the_layer_that_aligns(viewer, tmp_path):
    aligned = 0.9 * torch.eye(7, 5)[None, None].expand(1, 3, 7, 5) + 0.1 / 5
    crosses = [weights(3, 7, 5, sharp=0.1), aligned / aligned.sum(-1, keepdim=True), weights(3, 7, 5)]
    maps = [AttentionMap(name=f"cross.{i}", kind="cross", weights=w) for i, w in enumerate(crosses)]
    maps += [
        AttentionMap(name=f"encoder.{i}", kind="encoder", weights=weights(3, 5, 5, sharp=s))
        for i, s in enumerate((1, 9))
    ]
    viewer.open(Record("Model", maps).save_html(tmp_path / "page.html", source=SOURCE, target=TARGET))
    assert viewer.state["layer"] == "1"
    viewer.choose("Attention", "Encoder")
    assert viewer.state["layer"] == "4"


def test_a_page_with_an_image_opens_on_the_rollout(viewer, vit, vit_page, photo, tmp_path):
    viewer.open(vit_page)
    assert (viewer.state["layer"], viewer.state["combine"]) == ("1", "rollout")
    assert any("rollout" in word for word in viewer.words())
    viewer.open(vit_page, "view=heads")
    assert viewer.state["combine"] == "each"
    large = record_of(
        flat(1, 1 + 17 * 17), weights(1, 1 + 17 * 17, 1 + 17 * 17)
    )  # the product of layers would take long
    viewer.open(large.save_html(tmp_path / "page.html", images=photo))
    assert viewer.state["layer"] == "1"
    assert viewer.state["combine"] == "each"


def test_nearly_uniform_heads_are_marked(viewer, tmp_path):
    mixed = torch.cat([flat(1, 17), weights(2, 17, 17, sharp=4)], 1)
    viewer.open(record_of(mixed, flat(3, 17)).save_html(tmp_path / "page.html"))
    names = viewer.frame.locator(".chip").all_inner_texts()
    assert [name.strip() for name in names] == ["0 ≈", "1", "2", "all"]
    options = viewer.frame.get_by_label("Layer", exact=True).locator("option").all_inner_texts()
    assert [option.endswith("≈") for option in options] == [False, True]
    notice = viewer.frame.locator(".notice")
    assert notice.count() == 0
    viewer.button("Head 0, nearly uniform")
    viewer.button("Next layer")
    assert notice.inner_text().startswith("≈ Nearly uniform")
    viewer.tab("Grid")
    assert viewer.words().count("≈") == 1 + 3
    viewer.press("ArrowDown", "ArrowDown")
    assert viewer.status.endswith("nearly uniform")


def grid_darkness(viewer):
    """The darkest pixel of each thumbnail."""
    return [int(image_pixels(image).min()) for image in viewer.svg().iter(f"{SVG}image")]


def test_heads_of_the_grid_share_a_scale_unless_it_is_switched_off(viewer, tmp_path):
    viewer.open(record_of(flat(1, 7), weights(1, 7, 7, sharp=9)).save_html(tmp_path / "page.html"), "view=grid")
    pale, dark = grid_darkness(viewer)
    assert pale > 100 > dark
    assert any(word.startswith("One scale, 0 to ") for word in viewer.words())
    viewer.frame.get_by_label("One scale").uncheck()
    viewer.settle()
    assert viewer.state["oneScale"] == "false"
    assert max(grid_darkness(viewer)) < 100
    assert "Each head has its own scale" in viewer.words()


def veils(viewer):
    """The opacity of the veil over each small map, at its brightest patch."""
    lightest = []
    for image in viewer.svg().iter(f"{SVG}image"):
        if float(image.get("width")) < 150 and image.get("href").startswith("data:image/png"):
            alpha = alpha_of(image)
            if alpha is not None:
                lightest.append(int(alpha.min()))
    return lightest


def alpha_of(image):
    import base64
    import io

    from PIL import Image

    decoded = Image.open(io.BytesIO(base64.b64decode(image.get("href").partition(",")[2])))
    return np.asarray(decoded)[..., 3] if decoded.mode == "RGBA" and decoded.size == (4, 4) else None


def test_words_share_a_scale_and_the_photo_keeps_its_colors(viewer, photo, tmp_path):
    maps = torch.cat([flat(1, 16)[:, :, :1], weights(1, 1, 16, sharp=6)], 2)
    path = record_of(maps, kind="cross").save_html(tmp_path / "page.html", target=["a", "spot"], images=photo)
    viewer.open(path, "query=1")
    flat_word, sharp_word = veils(viewer)
    assert flat_word > 100
    assert sharp_word == 0  # the strongest patch is not dimmed
    viewer.frame.get_by_label("One scale").uncheck()
    viewer.settle()
    assert veils(viewer) == [0, 0]
    best = int(maps[0, 0, 1].argmax())
    largest = max(viewer.svg().iter(f"{SVG}image"), key=lambda image: float(image.get("width")))
    side = float(largest.get("width")) / 4
    x, y = viewer.on_screen(
        float(largest.get("x")) + (best % 4 + 0.5) * side, float(largest.get("y")) + (best // 4 + 0.5) * side
    )
    viewer.frame.get_by_label("Smooth").uncheck()
    viewer.settle()
    shown = pixel(viewer, x, y)
    exact = photo[int((best // 4 + 0.5) * 24), int((best % 4 + 0.5) * 24)]
    np.testing.assert_allclose(shown, exact, atol=8)


def pixel(viewer, x, y):
    import io

    from PIL import Image

    image = Image.open(io.BytesIO(viewer.page.screenshot())).convert("RGB")
    return np.asarray(image)[int(y), int(x)].astype(int)


@pytest.mark.parametrize("view", ["matrix", "grid", "heads"])
def test_axes_have_titles(viewer, translator_page, view):
    viewer.open(translator_page, f"view={view}&layer=3")
    titles = ["Layer", "Head"] if view == "grid" else ["Queries (target)", "Keys (source)"]
    assert set(titles) <= set(viewer.words())
