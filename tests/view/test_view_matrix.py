"""The matrix view in a browser."""

import re

import numpy as np
import pytest
import torch

from browser import SVG, image_pixels, is_close, printed_weight
from samples import SOURCE, TARGET, WORDS, AttentionMap, record_of, weights
from sightline.attention import Record


def printed_numbers(viewer):
    return [printed_weight(text) for text in viewer.words() if re.fullmatch(r"0|≈0|-?\d+\.\d{3,}", text)]


def assert_cells_print(viewer, exact):
    printed = np.array(printed_numbers(viewer)).reshape(exact.shape)
    errors = np.abs(printed - exact)
    assert (errors <= np.abs(exact).max(-1, keepdims=True) / 255).all()


def test_the_status_reads_the_recorded_weights(viewer, encoder_page, encoder):
    viewer.open(encoder_page, "view=matrix&layer=1&heads=4")
    exact = encoder[1].weights[0, 4]
    viewer.press("ArrowRight")
    q, k = 0, 0
    for key in ("ArrowRight", "ArrowDown") * 6 + ("ArrowLeft", "ArrowUp"):
        assert viewer.status.startswith(f"{WORDS[q]} → {WORDS[k]}: ")
        assert is_close(viewer.weight, exact[q, k], exact[q].max())
        viewer.step(key)
        q += {"ArrowDown": 1, "ArrowUp": -1}.get(key, 0)
        k += {"ArrowRight": 1, "ArrowLeft": -1}.get(key, 0)
    assert viewer.status.startswith(f"{WORDS[5]} → {WORDS[5]}: ")


def test_cells_print_the_recorded_weights(viewer, encoder_page, encoder):
    viewer.open(encoder_page, "view=matrix&heads=2")
    assert_cells_print(viewer, encoder[0].weights[0, 2].numpy())


@pytest.mark.parametrize(("tokens", "spread", "zoom"), [(14, 0.5, 1), (14, 4.0, 1.5), (40, 0.1, 4), (5, 9.0, 1)])
def test_cells_print_numbers_only_if_all_fit(viewer, tmp_path, tokens, spread, zoom):
    scores = spread * torch.randn(1, 1, tokens, tokens, generator=torch.Generator().manual_seed(3))
    record = record_of(scores.softmax(-1))
    path = record.save_html(tmp_path / "page.html", [f"t{i}" for i in range(tokens)])
    viewer.open(path, f"view=matrix&zoom={zoom}")
    assert_cells_print(viewer, record[0].weights[0, 0].numpy())
    svg = viewer.svg()
    side = float(next(svg.iter(f"{SVG}image")).get("width")) / tokens
    sizes = {float(t.get("font-size")) for t in svg.iter(f"{SVG}text") if re.fullmatch(r"0\.\d{3,}", t.text)}
    assert len(sizes) == 1
    assert 9 <= sizes.pop() * 0.52 * 6 <= side
    viewer.open(path, "view=matrix&zoom=0.25")
    assert not [text for text in viewer.words() if re.fullmatch(r"0\.\d+", text)]


def test_flat_long_rows_stay_within_the_error_bound(viewer, tmp_path):
    flat = (0.3 * torch.randn(1, 1, 512, 512, generator=torch.Generator().manual_seed(0))).softmax(-1)
    viewer.open(record_of(flat).save_html(tmp_path / "page.html"), "view=matrix&query=3&key=0")
    row = flat[0, 0, 3]
    viewer.frame.locator(".scroller").focus()
    for k in range(7):
        assert is_close(viewer.weight, row[k], row.max())
        viewer.step("ArrowRight")
    listed = viewer.weights
    assert all(is_close(text, row[int(name)], row.max()) for name, text in listed)
    assert [text for _, text in listed] == sorted((text for _, text in listed), reverse=True)


def test_tooltip_and_zoom(viewer, encoder_page, encoder):
    viewer.open(encoder_page, "view=matrix&heads=1")
    side = float(next(viewer.svg().iter(f"{SVG}image")).get("width")) / 7
    viewer.button("Zoom in")
    image = next(viewer.svg().iter(f"{SVG}image"))
    assert float(image.get("width")) / 7 == pytest.approx(1.25 * side)
    assert viewer.state["zoom"] == "1.25"
    x, y = viewer.on_screen(float(image.get("x")), float(image.get("y")))
    viewer.page.mouse.move(x + 1.25 * side * 3.5, y + 1.25 * side * 2.5)
    viewer.settle()
    row = encoder[0].weights[0, 1, 2]
    assert viewer.tooltip[1:] == ["cat → sat", "layer 0, head 1"]
    assert is_close(viewer.tooltip[0], row[3], row.max())
    viewer.page.keyboard.down("Control")
    viewer.wheel(-100)
    viewer.page.keyboard.up("Control")
    assert viewer.state["zoom"] == "1.375"


def test_zoom_keeps_the_cell_under_the_pointer(viewer, tmp_path):
    viewer.open(record_of(weights(1, 100, 100)).save_html(tmp_path / "page.html"), "view=matrix&zoom=3")
    viewer.page.mouse.move(*viewer.on_screen(600, 400))
    viewer.settle()
    cell = viewer.tooltip[1]
    viewer.page.keyboard.down("Control")
    for _ in range(7):
        viewer.wheel(-100)
    viewer.page.keyboard.up("Control")
    assert viewer.tooltip[1] == cell
    assert min(viewer.scroll_position) > 100
    viewer.press("0")
    assert "zoom" not in viewer.state


def test_combined_heads(viewer, encoder_page, encoder):
    stacked = encoder.stack()[:, 0].numpy()
    rollout = np.eye(7)
    for layer in stacked.mean(1):
        rollout = (0.5 * layer + 0.5 * np.eye(7)) @ rollout
    viewer.open(encoder_page, "view=matrix&layer=2")
    for mode, exact in (("Mean", stacked[2].mean(0)), ("Max", stacked[2].max(0)), ("Rollout", rollout)):
        viewer.choose("Combine", mode)
        viewer.press("Escape", "ArrowDown")
        for q in range(3):
            assert is_close(viewer.weight, exact[q, 0], exact[q].max())
            viewer.step("ArrowDown")


def test_rollout_is_available_only_for_square_layers_of_one_size(viewer, translator_page):
    viewer.open(translator_page, "view=matrix&layer=3")
    assert viewer.frame.locator("option[value=rollout]").is_disabled()
    viewer.choose("Attention", "Decoder")
    assert not viewer.frame.locator("option[value=rollout]").is_disabled()


def test_rollout_disables_the_head_buttons(viewer, encoder_page):
    viewer.open(encoder_page, "view=matrix&combine=rollout&layer=2")
    chip = viewer.frame.get_by_role("button", name="Head 3", exact=True)
    assert chip.is_disabled()
    assert chip.get_attribute("title") == "Rollout and the mean over layers use all heads"
    viewer.choose("Combine", "Mean")
    assert chip.is_enabled()


def test_rollout_does_not_multiply_separate_calls(viewer, tmp_path):
    maps = [
        AttentionMap(name=f"layer{i}", kind="encoder", weights=weights(2, 5, 5)) for _ in range(2) for i in range(2)
    ]
    path = Record("Model", maps).save_html(tmp_path / "page.html")
    viewer.open(path, "view=matrix&combine=rollout&layer=3&query=1&key=2")
    first, second = (0.5 * m.weights[0].mean(0).numpy() + 0.5 * np.eye(5) for m in maps[2:])  # the second call
    assert viewer.status.endswith("layer 1, rollout")
    assert float(viewer.weight) == pytest.approx(float((second @ first)[1, 2]), abs=0.005)


def test_rollout_of_more_layers_than_the_cache_holds(viewer, tmp_path, monkeypatch):
    from sightline.view import page

    plain = page.read_static
    monkeypatch.setattr(
        page, "read_static", lambda name: plain(name).replace("CACHE_BYTES = 96e6", "CACHE_BYTES = 5e4")
    )
    page.bundle_script.cache_clear()
    record = record_of(*(weights(1, 210, 210) for _ in range(6)))
    path = record.save_html(tmp_path / "page.html")
    assert "CACHE_BYTES = 5e4" in path.read_text("utf-8")
    page.bundle_script.cache_clear()
    viewer.open(path, "view=matrix&combine=rollout&layer=5&query=0&key=0")
    exact = np.eye(210)
    for m in record:
        exact = (0.5 * m.weights[0, 0].numpy() + 0.5 * np.eye(210)) @ exact
    assert viewer.status.endswith("layer 5, rollout")
    assert is_close(viewer.weight, exact[0, 0], exact[0].max())


def test_rollout_is_named_only_where_it_is_applied(viewer, translator_page):
    viewer.open(translator_page, "view=matrix&combine=rollout&layer=2&query=0&key=0")
    assert viewer.status.endswith("rollout")
    viewer.tab("Temperature")
    assert "mean of" in viewer.status
    viewer.choose("Attention", "Cross")
    viewer.press("ArrowDown")
    assert "mean of" in viewer.status


def test_each_kind_of_attention_has_its_own_tokens(viewer, translator_page, translator):
    viewer.open(translator_page, "view=matrix")
    for kind, queries, keys, index in (
        ("Decoder", TARGET, TARGET, 2),
        ("Cross", TARGET, SOURCE, 3),
        ("Encoder", SOURCE, SOURCE, 0),
    ):
        viewer.choose("Attention", kind)
        viewer.press("ArrowDown", "ArrowDown", "ArrowRight")
        row = translator[index].weights[0].mean(0)[1]
        assert viewer.status.startswith(f"{queries[1]} → {keys[1]}: ")
        assert is_close(viewer.weight, row[1], row.max())


def test_generated_tokens_name_the_rows_of_cross_attention(viewer, translator, tmp_path):
    generated = [*TARGET[1:], "fin"]
    path = translator.save_html(tmp_path / "page.html", source=SOURCE, target=TARGET, generated=generated)
    viewer.open(path, "view=matrix")
    for kind, queries, keys in (("Cross", generated, SOURCE), ("Decoder", TARGET, TARGET)):
        viewer.choose("Attention", kind)
        viewer.press("ArrowDown")
        assert viewer.status.startswith(f"{queries[0]} → {keys[0]}: ")


def test_weights_that_do_not_sum_to_one_have_no_temperature(viewer, tmp_path):
    raw = 2 * weights(2, 3, 3).log()
    viewer.open(record_of(raw).save_html(tmp_path / "page.html"), "view=matrix&heads=1")
    assert viewer.tabs == ["Heads", "Grid", "Matrix"]
    assert "do not sum to 1" in viewer.frame.locator(".inspector").inner_text()
    viewer.press("ArrowRight")
    assert is_close(viewer.weight, raw[0, 1, 0, 0], raw[0, 1, 0].abs().max())


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_numbers_have_enough_contrast(viewer, tmp_path, theme):
    signed = torch.linspace(-1, 1, 49).reshape(1, 1, 7, 7)
    viewer.open(record_of(signed).save_html(tmp_path / "page.html"), f"view=matrix&theme={theme}")
    svg = viewer.svg()
    image = next(svg.iter(f"{SVG}image"))
    cells = image_pixels(image)
    left, top, side = (float(image.get(name)) for name in ("x", "y", "width"))
    numbers = [text for text in svg.iter(f"{SVG}text") if re.fullmatch(r"-?\d\.\d{4,}", text.text)]
    assert len(numbers) == 48  # and a zero
    for number in numbers:
        row, column = int((float(number.get("y")) - top) / side * 7), int((float(number.get("x")) - left) / side * 7)
        color = [int(number.get("fill")[i : i + 2], 16) for i in (1, 3, 5)]
        low, high = sorted([luminance(color), luminance(cells[row, column])])
        assert (high + 0.05) / (low + 0.05) > 4.5


def luminance(rgb):
    channels = np.asarray(rgb) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_entropy_is_labeled_by_what_it_measures(viewer, encoder_page, encoder):
    viewer.open(encoder_page, "view=matrix")
    for head, label, exact in (
        (None, "Entropy of the mean", encoder[0].weights[0].mean(0)),
        ("Head 1", "Entropy", encoder[0].weights[0, 1]),
    ):
        if head:
            viewer.frame.get_by_role("button", name=head, exact=True).dblclick()
            viewer.settle()
        fact = viewer.frame.locator(".fact").last
        assert fact.locator("dt").inner_text() == label
        bits = float(-(exact * exact.log2()).sum(-1).mean())
        assert float(fact.locator("dd").inner_text().split()[0]) == pytest.approx(bits, abs=0.02)


def test_fully_masked_rows_do_not_count_in_the_entropy(viewer, tmp_path):
    masked = weights(1, 4, 4)
    masked[:, :, 2:] = 0
    record = record_of(masked)
    viewer.open(record.save_html(tmp_path / "page.html"), "view=matrix")
    bits = float(viewer.frame.locator(".fact dd").last.inner_text().split()[0])
    assert bits == pytest.approx(record[0].entropy(), abs=0.02)
