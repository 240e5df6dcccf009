"""Every view in a real browser, used as a person would."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from samples import SOURCE, TARGET, WORDS, weights
from sightline.attention import CosineScore, DotScore, Record, AttentionMap, record_attention
from sightline.attention.multihead import MultiHeadAttention
from visitor import SVG, line_ends, visiting

QUANTISED = 1 / 255
BACK = "\u2039 All heads"


def value(text):
    return 0.0 if text[0] in "<≈" else float(text)


def close(text, exact, top):
    return abs(value(text) - exact) <= QUANTISED * top


def softmax(scores):
    return np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)


@pytest.fixture
def saved(encoder, tmp_path):
    return encoder.save_html(tmp_path / "page.html", WORDS)


@pytest.fixture
def translated(translator, tmp_path):
    return translator.save_html(tmp_path / "page.html", source=SOURCE, target=TARGET)


# heads


def test_heads_hover_isolates_a_token(visitor, saved, encoder):
    visitor.open(saved)
    before = visitor.canvas()
    visitor.hover("cat")
    mean = encoder[0].weights[0].mean(0)
    best = int(mean[2].argmax())
    assert visitor.status.startswith(f"cat looks most at {WORDS[best]}: ")
    assert visitor.tip[0] == "cat looks at"
    number, name = visitor.tip[1].split()
    assert name == WORDS[best]
    assert close(number, float(mean[2, best]), float(mean[2].max()))
    assert visitor.looks[0][0] == WORDS[best]
    assert visitor.canvas() != before
    visitor.page.mouse.move(5, 5)
    visitor.rest()
    assert visitor.canvas() == before


def test_heads_click_keeps_a_token_and_draws_only_its_lines(visitor, saved):
    visitor.open(saved)
    everything = [line for lines in line_ends(visitor.drawing()).values() for line in lines]
    assert len({y for _, y, _, _ in everything}) == len(WORDS)
    visitor.click("cat")
    assert "token=2" in visitor.hash
    kept = [line for lines in line_ends(visitor.drawing()).values() for line in lines]
    assert len({y for _, y, _, _ in kept}) == 1
    visitor.press("Escape")
    assert "token" not in visitor.hash


def test_heads_hover_on_the_right_shows_who_looks(visitor, saved, encoder):
    visitor.open(saved)
    visitor.hover("cat", which=1)
    assert visitor.tip[0] == "cat is seen by"
    best = int(encoder[0].weights[0].mean(0)[:, 2].argmax())
    assert visitor.tip[1].split()[1] == WORDS[best]


def test_a_click_switches_a_head_and_a_double_click_isolates_it(visitor, saved):
    visitor.open(saved)
    chip = visitor.frame.get_by_role("button", name="Head 3", exact=True)
    assert len(line_ends(visitor.drawing())) == 5
    visitor.button("Head 3")
    assert chip.get_attribute("aria-pressed") == "false"
    assert "heads=0.1.2.4" in visitor.hash
    assert len(line_ends(visitor.drawing())) == 4
    chip.dblclick()
    visitor.rest()
    assert "heads=3" in visitor.hash
    assert len(line_ends(visitor.drawing())) == 1
    visitor.button("All heads")
    assert "heads" not in visitor.hash.replace("view=heads", "")


def test_heads_have_sixteen_colors(visitor, tmp_path):
    record = Record("Wide", [AttentionMap(name="a", kind="encoder", weights=weights(16, 3, 3))])
    visitor.open(record.save_html(tmp_path / "wide.html"))
    assert len(line_ends(visitor.drawing())) == 16


def test_colors_of_heads_lie_apart_for_most_eyes():
    from sightline.view.page import script_text

    sets = re.findall(r"(light|dark): \[((?:\"#\w{6}\",?\s*){16})\]", script_text())
    assert [name for name, _ in sets] == ["light", "dark"]
    for _, text in sets:
        codes = re.findall(r"#\w{6}", text)
        rgb = np.array([[int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)] for code in codes])
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        for eyes, least in ((np.eye(3), 0.1), (DEUTERANOPIA, 0.06), (PROTANOPIA, 0.06)):
            lab = oklab(linear @ eyes.T)
            apart = np.linalg.norm(lab[:, None] - lab[None], axis=-1) + np.eye(16)
            assert apart.min() > least


DEUTERANOPIA = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])
PROTANOPIA = np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]])


def oklab(rgb):
    cones = rgb.clip(0, 1) @ np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]).T
    return (
        np.cbrt(cones) @ np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]).T
    )


# grid


def test_grid_shows_every_head_and_a_click_enlarges(visitor, saved, encoder):
    visitor.open(saved, "view=grid")
    images = list(visitor.drawing().iter(f"{SVG}image"))
    assert len(images) == 3 * 5
    last = images[-1]
    x, y = visitor.on_screen(float(last.get("x")) + 20, float(last.get("y")) + 20)
    visitor.page.mouse.move(x, y)
    visitor.rest()
    assert visitor.tip[:2] == ["Layer 2, head 4", "layers.2"]
    assert re.search(r"entropy \d\.\d\d bits", visitor.status)
    visitor.page.mouse.click(x, y)
    visitor.rest()
    assert "view=matrix" in visitor.hash
    visitor.press("ArrowRight")
    exact = encoder[2].weights[0, 4, 0]
    assert close(visitor.status.split(": ")[1].split()[0], float(exact[0]), float(exact.max()))
    visitor.press("Escape")
    assert "view=grid" in visitor.hash


def test_grid_by_keyboard(visitor, saved):
    visitor.open(saved, "view=grid")
    visitor.press("ArrowRight", "ArrowRight", "ArrowDown")
    assert visitor.status.startswith("Layer 1, head 1")
    visitor.press("Enter")
    assert "view=matrix" in visitor.hash
    assert "layer=1" in visitor.hash
    assert "heads=1" in visitor.hash


# matrix


@pytest.mark.parametrize("head", [0, 4])
def test_numbers_of_the_matrix_are_the_recorded_ones(visitor, saved, encoder, head):
    visitor.open(saved, f"view=matrix&layer=1&heads={head}")
    exact = encoder[1].weights[0, head]
    visitor.press("ArrowRight")
    for q in range(7):
        for k in range(7) if q % 2 == 0 else reversed(range(7)):
            where, number = re.match(r"(.*): (\S+) · ", visitor.status).groups()
            assert where == f"{WORDS[q]} → {WORDS[k]}"
            assert close(number, float(exact[q, k]), float(exact[q].max()))
            if k != (6 if q % 2 == 0 else 0):
                visitor.step("ArrowRight" if q % 2 == 0 else "ArrowLeft")
        visitor.step("ArrowDown")


def test_the_printed_numbers_are_the_recorded_ones(visitor, saved, encoder):
    visitor.open(saved, "view=matrix&heads=2")
    assert agrees_everywhere(visitor, encoder[0].weights[0, 2].numpy())


def agrees_everywhere(visitor, exact):
    """Whether each cell prints its weight."""
    printed = [value(t) for t, _, _ in visitor.texts() if re.fullmatch(r"0|≈0|-?\d+\.\d{3,}", t)]
    if len(printed) != exact.size:
        return False
    wrong = np.abs(np.array(printed).reshape(exact.shape) - exact)
    return bool((wrong <= QUANTISED * np.abs(exact).max(-1, keepdims=True)).all())


@pytest.mark.parametrize(("tokens", "spread", "zoom"), [(14, 0.5, 1), (14, 4.0, 1.5), (40, 0.1, 4), (5, 9.0, 1)])
def test_cells_print_a_number_only_where_all_of_it_fits(visitor, tmp_path, tokens, spread, zoom):
    import torch

    scores = spread * torch.randn(1, 1, tokens, tokens, generator=torch.Generator().manual_seed(3))
    record = Record("R", [AttentionMap(name="a", kind="encoder", weights=scores.softmax(-1))])
    path = record.save_html(tmp_path / "page.html", [f"t{i}" for i in range(tokens)])
    visitor.open(path, f"view=matrix&zoom={zoom}")
    assert agrees_everywhere(visitor, record[0].weights[0, 0].numpy())
    drawing = visitor.drawing()
    side = float(next(drawing.iter(f"{SVG}image")).get("width")) / tokens
    sizes = {float(t.get("font-size")) for t in drawing.iter(f"{SVG}text") if re.fullmatch(r"0\.\d{3,}", t.text)}
    assert len(sizes) == 1
    assert 9 <= sizes.pop() * 0.52 * 6 <= side
    visitor.open(path, "view=matrix&zoom=0.25")
    assert not [text for text, _, _ in visitor.texts() if re.fullmatch(r"0\.\d+", text)]


def test_numbers_of_a_long_diffuse_row_keep_the_bound(visitor, tmp_path):
    import torch

    diffuse = (0.3 * torch.randn(1, 1, 512, 512, generator=torch.Generator().manual_seed(0))).softmax(-1)
    record = Record("Diffuse", [AttentionMap(name="a", kind="encoder", weights=diffuse)])
    visitor.open(record.save_html(tmp_path / "page.html"), "view=matrix&token=3&key=0")
    exact = diffuse[0, 0, 3]
    visitor.frame.locator(".scroller").focus()
    for k in range(25):
        assert close(re.search(r": (\S+) · ", visitor.status).group(1), float(exact[k]), float(exact.max()))
        visitor.step("ArrowRight")
    for name, text in visitor.looks:
        assert close(text, float(exact[int(name)]), float(exact.max()))
    assert [text for _, text in visitor.looks] == sorted((text for _, text in visitor.looks), reverse=True)


def test_matrix_tooltip_and_zoom(visitor, saved, encoder):
    visitor.open(saved, "view=matrix&heads=1")
    side = float(next(visitor.drawing().iter(f"{SVG}image")).get("width")) / 7
    visitor.button("Zoom in")
    assert float(next(visitor.drawing().iter(f"{SVG}image")).get("width")) / 7 == pytest.approx(1.25 * side)
    assert "zoom=1.25" in visitor.hash
    picture = next(visitor.drawing().iter(f"{SVG}image"))
    x, y = visitor.on_screen(float(picture.get("x")), float(picture.get("y")))
    visitor.page.mouse.move(x + 1.25 * side * 3.5, y + 1.25 * side * 2.5)
    visitor.rest()
    exact = encoder[0].weights[0, 1, 2]
    assert visitor.tip[1:] == ["cat → sat", "layer 0, head 1"]
    assert close(visitor.tip[0], float(exact[3]), float(exact.max()))
    visitor.page.keyboard.down("Control")
    visitor.page.mouse.wheel(0, -100)
    visitor.page.keyboard.up("Control")
    visitor.rest()
    assert "zoom=1.375" in visitor.hash


@pytest.mark.parametrize("how", ["Mean", "Max", "Rollout"])
def test_heads_combined(visitor, saved, encoder, how):
    visitor.open(saved, "view=matrix&layer=2")
    visitor.choose("Combine", how)
    stacked = encoder.stack()[:, 0].numpy()
    exact = {"Mean": stacked[2].mean(0), "Max": stacked[2].max(0)}.get(how)
    if exact is None:
        exact = np.eye(7)
        for layer in stacked.mean(1):
            exact = (0.5 * layer + 0.5 * np.eye(7)) @ exact
    visitor.press("ArrowDown")
    for q in range(7):
        assert close(visitor.status.split(": ")[1].split()[0], exact[q, 0], exact[q].max())
        visitor.step("ArrowDown")


def test_rollout_is_offered_only_where_layers_can_be_multiplied(visitor, translated):
    visitor.open(translated, "view=matrix&layer=3")
    assert visitor.frame.locator("option[value=rollout]").is_disabled()
    visitor.choose("Attention", "Decoder")
    assert not visitor.frame.locator("option[value=rollout]").is_disabled()


# kinds


def test_encoder_decoder_and_cross_have_their_own_words(visitor, translated, translator):
    visitor.open(translated, "view=matrix")
    for kind, rows, columns, place in (
        ("Decoder", TARGET, TARGET, 2),
        ("Cross", TARGET, SOURCE, 3),
        ("Encoder", SOURCE, SOURCE, 0),
    ):
        visitor.choose("Attention", kind)
        visitor.press("ArrowDown", "ArrowDown", "ArrowRight")
        exact = translator[place].weights[0].mean(0)[1]
        where, number = re.match(r"(.*): (\S+) · ", visitor.status).groups()
        assert where == f"{rows[1]} → {columns[1]}"
        assert close(number, float(exact[1]), float(exact.max()))


def test_only_views_that_can_be_fed_have_a_tab(visitor, translated):
    visitor.open(translated)
    assert visitor.views == ["Heads", "Grid", "Matrix", "Alignment", "Temperature"]
    visitor.choose("Attention", "Encoder")
    assert visitor.views == ["Heads", "Grid", "Matrix", "Temperature"]


def test_weights_that_are_no_shares_are_shown_without_temperature(visitor, tmp_path):
    raw = 2 * weights(2, 3, 3).log()
    record = Record("Raw", [AttentionMap(name="a", kind="encoder", weights=raw)])
    visitor.open(record.save_html(tmp_path / "raw.html"), "view=matrix&heads=1")
    assert visitor.views == ["Heads", "Grid", "Matrix"]
    visitor.press("ArrowRight")
    assert close(visitor.status.split(": ")[1].split()[0], float(raw[0, 1, 0, 0]), float(raw[0, 1, 0].abs().max()))


# image


@pytest.fixture
def vit(photo, tmp_path):
    record = Record("ViT", [AttentionMap(name=f"blocks.{i}", kind="encoder", weights=weights(3, 17, 17)) for i in range(2)])
    return record, record.save_html(tmp_path / "vit.html", images=photo)


def test_patches_of_a_classifier(visitor, vit):
    record, path = vit
    visitor.open(path)
    assert visitor.views[3] == "Image"
    drawing = visitor.drawing()
    big = max(drawing.iter(f"{SVG}image"), key=lambda image: float(image.get("width")))
    side = float(big.get("width")) / 4
    x, y = visitor.on_screen(float(big.get("x")) + 2.5 * side, float(big.get("y")) + 1.5 * side)
    visitor.page.mouse.move(x, y)
    visitor.rest()
    exact = record[0].weights[0].mean(0)
    assert visitor.tip[1] == "2,3"
    assert close(visitor.tip[0], float(exact[0, 1 + 6]), float(exact[0].max()))
    visitor.page.mouse.click(x, y)
    visitor.rest()
    assert "token=7" in visitor.hash
    assert close(visitor.tip[0], float(exact[7, 7]), float(exact[7].max()))
    assert visitor.status.split(": ")[1].startswith(visitor.tip[0])
    assert any(text == "Where patch 2,3 looks" for text, _, _ in visitor.texts())
    visitor.press("ArrowRight", "ArrowDown")
    assert "token=12" in visitor.hash


def test_smooth_or_blocky_and_opacity(visitor, vit):
    visitor.open(vit[1])
    smooth = visitor.shot()
    visitor.frame.get_by_label("Smooth").uncheck()
    visitor.rest()
    blocky = visitor.shot()
    assert blocky != smooth
    visitor.slide("Opacity", 0)
    bare = visitor.shot()
    assert bare != blocky
    assert "smooth=false" in visitor.hash
    assert "opacity=0" in visitor.hash


def test_a_head_of_a_classifier_is_picked_below_the_picture(visitor, vit):
    visitor.open(vit[1])
    visitor.click("head 1", dy=-30)
    assert "heads=1" in visitor.hash


def test_a_region_for_each_word(visitor, photo, tmp_path):
    record = Record("Captioner", [AttentionMap(name="cross", kind="cross", weights=weights(2, 5, 16))])
    words = ["<s>", "a", "red", "spot", "</s>"]
    visitor.open(record.save_html(tmp_path / "caption.html", target=words, images=photo))
    assert any(text == "Where “a” looks" for text, _, _ in visitor.texts())
    visitor.hover("spot", dy=-30)
    best = int(record[0].weights[0].mean(0)[3].argmax())
    assert visitor.status.startswith(f"spot looks most at {best // 4 + 1},{best % 4 + 1}: ")
    visitor.click("red", dy=-30)
    assert "token=2" in visitor.hash
    assert any(text == "Where “red” looks" for text, _, _ in visitor.texts())


@pytest.mark.parametrize("parts", [1, 9])
def test_support_pictures_and_their_parts(visitor, photo, tmp_path, parts):
    record = Record("FewShot", [AttentionMap(name="cross", kind="cross", weights=weights(1, parts, 5 * parts))])
    names = ["cat", "dog", "owl", "fox", "eel"]
    page = record.save_html(tmp_path / "few.html", images=[photo] * 5, labels=names, query_image=photo)
    visitor.open(page)
    shares = record[0].weights[0, 0].mean(0).reshape(5, parts).sum(-1)
    texts = visitor.texts()
    for name, share in zip(names, shares, strict=True):
        (y,) = (y for text, _, y in texts if text == name)
        assert any(
            close(text, float(share), 1.0) for text, _, at in texts if at == y and re.fullmatch(r"0\.\d{4}", text)
        )
    if parts > 1:
        first = next(visitor.drawing().iter(f"{SVG}image"))
        visitor.page.mouse.click(*visitor.on_screen(float(first.get("x")) + 5, float(first.get("y")) + 5))
        visitor.rest()
        assert "token=0" in visitor.hash


# alignment


def test_alignment_glosses_each_target_word(visitor, translated, translator):
    visitor.open(translated, "view=alignment&layer=3")
    texts = visitor.texts()
    mean = translator[3].weights[0].mean(0)
    for row, word in enumerate(TARGET):
        x, y = next((x, y) for text, x, y in texts if text == word)
        gloss, number = (next(text for text, at, y2 in texts if at == x and y2 == y + down) for down in (30, 48))
        assert gloss == SOURCE[int(mean[row].argmax())]
        assert close(number, float(mean[row].max()), float(mean[row].max()))
    visitor.hover("chat")
    assert visitor.tip[0] == "chat looks at"
    assert visitor.tip[1].split()[1] == SOURCE[int(mean[2].argmax())]
    visitor.click("chat")
    assert "token=2" in visitor.hash
    ends = [line for lines in line_ends(visitor.drawing()).values() for line in lines]
    assert len({x for _, _, x, _ in ends}) == 1
    visitor.press("ArrowRight")
    assert "token=3" in visitor.hash


# temperature


@pytest.mark.parametrize("score", [DotScore(), CosineScore(temperature=0.3)], ids=["dot", "cosine"])
def test_temperature_resharpens_the_scores(visitor, tmp_path, score):
    import torch

    attention = MultiHeadAttention(8, num_heads=1, score=score).eval()
    with record_attention(attention, scores=True) as record:
        attention(torch.randn(1, 7, 8) * 3)
    visitor.open(record.save_html(tmp_path / "page.html", WORDS), "view=temperature&token=3")
    scores = record[0].scores[0, 0, 3].detach().double().numpy()
    for slide in (-0.6, 0.5):
        visitor.slide("Temperature", slide)
        row = softmax(scores / 10**slide)
        texts = visitor.texts()
        bits = float(next(text for text, _, _ in texts if re.fullmatch(r"\d\.\d\d", text)))
        assert bits == pytest.approx(-(row * np.log2(row)).sum(), abs=0.03)
        numbers = [text for text, _, _ in texts if re.fullmatch(r"[<\d]\S*\.\d{4}", text)]
        assert len(numbers) == 7
        assert all(abs((0 if n[0] == "<" else float(n)) - w) < 0.02 for n, w in zip(numbers, row, strict=True))


def test_temperature_by_keyboard_goes_with_the_other_views_and_can_be_reset(visitor, saved):
    visitor.open(saved, "view=temperature")
    visitor.press("ArrowRight", "ArrowRight", "ArrowDown")
    assert "temperature=1.21" in visitor.hash
    visitor.tab("Matrix")
    visitor.button("Temperature 1.21, reset")
    assert "temperature" not in visitor.hash


# what stands around


def test_special_tokens_are_hidden_on_wish(visitor, saved):
    visitor.open(saved)
    assert sum(text == "[CLS]" for text, _, _ in visitor.texts()) == 2
    visitor.frame.get_by_label("Hide special tokens").check()
    visitor.rest()
    assert "hide=true" in visitor.hash
    for view in ("Heads", "Matrix", "Temperature"):
        visitor.tab(view)
        names = [text for text, _, _ in visitor.texts()]
        assert "cat" in names
        assert not {"[CLS]", "[SEP]"} & set(names)


def test_a_token_is_found_by_typing(visitor, saved):
    visitor.open(saved)
    box = visitor.frame.get_by_label("Find a token")
    box.type("T")
    assert visitor.frame.locator(".count").inner_text() == "4 found"
    box.press("Enter")
    assert "token=1" in visitor.hash
    box.press("Enter")
    assert "token=2" in visitor.hash
    box.fill("xyz")
    visitor.rest()
    assert visitor.frame.locator(".count").inner_text() == "none"
    box.press("Escape")
    assert box.input_value() == ""


def test_words_of_both_sides_are_found(visitor, translated):
    visitor.open(translated, "layer=3")
    visitor.frame.get_by_label("Find a token").type("a")
    visitor.rest()
    both = sum("a" in word.lower() for word in [*SOURCE, *TARGET])
    assert visitor.frame.locator(".count").inner_text() == f"{both} found"


def test_what_is_said_follows_the_state(visitor, saved, encoder):
    visitor.open(saved)
    visitor.press("ArrowDown")
    assert visitor.status.startswith("[CLS] looks most at ")
    for layer in (1, 2):
        visitor.button("Next layer")
        exact = encoder[layer].weights[0].mean(0)[0]
        assert f" {WORDS[int(exact.argmax())]}: " in visitor.status
        assert visitor.status.endswith(f"layer {layer}, mean of 5 heads")
    visitor.button("Head 3")
    assert visitor.status.endswith("mean of 4 heads")
    visitor.choose("Combine", "Max")
    assert visitor.status.endswith("max of 4 heads")
    visitor.frame.get_by_label("Hide special tokens").check()
    visitor.rest()
    assert "token" not in visitor.hash
    assert visitor.status.startswith("Keyboard")
    visitor.press("ArrowDown")
    assert visitor.looks
    visitor.press("Escape")
    assert visitor.status.startswith("Keyboard")
    assert not visitor.looks


def test_rollout_is_said_only_where_it_is_applied(visitor, translated):
    visitor.open(translated, "view=matrix&combine=rollout&layer=2&token=0&key=0")
    assert visitor.status.endswith("rollout")
    visitor.tab("Temperature")
    assert "mean of" in visitor.status
    visitor.choose("Attention", "Cross")
    visitor.press("ArrowDown")
    assert "mean of" in visitor.status


@pytest.mark.parametrize(
    ("token", "mark"),
    [
        (" ", "␣"),
        ("a\u202eb", "a\ufffdb"),
        ("\u2028", "\ufffd"),
        ("\u200b", "\ufffd"),
        ("👩🏽\u200d🔬", "👩🏽\u200d🔬"),
        ("❤️\u200d🔥", "❤️\u200d🔥"),
        ("a\u200d🔥", "a\ufffd🔥"),
        ("\u200d", "\ufffd"),
        ("a\u200cb", "a\ufffdb"),
        ("\uffff\ufffe", "\ufffd\ufffd"),
        ("می\u200cخو", "می\u200cخو"),
        ("क्\u200dष", "क्\u200dष"),
    ],
)
def test_characters_without_a_shape_leave_a_mark(visitor, tmp_path, token, mark):
    record = Record("Odd", [AttentionMap(name="a", kind="encoder", weights=weights(1, 2, 2))])
    visitor.open(record.save_html(tmp_path / "odd.html", [token, "b"]))
    assert mark in [text for text, _, _ in visitor.texts()]


def test_rows_that_look_at_nothing_have_no_entropy(visitor, tmp_path):
    masked = weights(1, 4, 4)
    masked[:, :, 2:] = 0
    record = Record("Masked", [AttentionMap(name="a", kind="encoder", weights=masked)])
    visitor.open(record.save_html(tmp_path / "masked.html"), "view=matrix")
    bits = float(visitor.frame.locator(".fact dd").last.inner_text().split()[0])
    assert bits == pytest.approx(record[0].entropy(), abs=0.02)


@pytest.mark.parametrize("state", [
    "view=matrix&layer=1&heads=0.3&token=2&key=5&zoom=1.5",
    "view=temperature&layer=2&token=4&hide=true&temperature=0.5",
    "view=heads&combine=max&theme=dark",
    "view=grid&layer=1",
])  # fmt: skip
def test_a_reload_restores_the_view(visitor, saved, state):
    visitor.open(saved, state)
    wanted = dict(part.split("=") for part in state.split("&"))

    def now():
        return dict(part.split("=") for part in visitor.hash.lstrip("#").split("&"))

    assert now() == now() | wanted
    first, picture = now(), visitor.shot()
    visitor.page.reload()
    visitor.ready()
    assert (now(), visitor.shot()) == (first, picture)
    assert visitor.frame.locator("html").get_attribute("data-view") == wanted["view"]


def test_a_page_that_opens_on_another_view_keeps_the_one_asked_for(visitor, vit):
    visitor.open(vit[1])
    visitor.tab("Heads")
    assert "view=heads" in visitor.hash
    visitor.page.reload()
    visitor.ready()
    assert visitor.frame.locator("html").get_attribute("data-view") == "heads"


def test_a_head_named_twice_is_on_once(visitor, saved):
    visitor.open(saved, "view=matrix&heads=1.1.1")
    assert "heads=1&" in visitor.hash


@pytest.mark.parametrize("scheme", ["blob", "data"])
def test_a_frame_whose_address_is_fixed_works_all_the_same(visitor, saved, tmp_path, scheme):
    (tmp_path / "frame.html").write_text("<!doctype html><body></body>", "utf-8")
    visitor.page.goto((tmp_path / "frame.html").as_uri())
    visitor.page.evaluate(
        """([scheme, base64]) => {
          const frame = document.createElement("iframe");
          frame.sandbox = "allow-scripts allow-downloads";
          frame.style = "width:1200px;height:700px";
          const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
          const blob = () => URL.createObjectURL(new Blob([bytes], { type: "text/html" }));
          frame.src = scheme === "blob" ? blob() : `data:text/html;base64,${base64}`;
          document.body.append(frame);
        }""",
        [scheme, base64.b64encode(saved.read_bytes()).decode()],
    )
    visitor.frame = visitor.page.locator("iframe").element_handle().content_frame()
    visitor.ready()
    visitor.tab("Matrix")
    visitor.press("ArrowRight")
    assert visitor.status.startswith("[CLS] → [CLS]: ")
    visitor.press("Escape")
    assert visitor.status.startswith("Keyboard")


def test_a_frame_in_a_notebook_leaves_the_history_alone(visitor, encoder, tmp_path):
    (tmp_path / "cell.html").write_text(f"<!doctype html><body>{encoder.view(WORDS)._repr_html_()}</body>", "utf-8")
    visitor.page.goto((tmp_path / "cell.html").as_uri())
    visitor.frame = visitor.page.locator("iframe").element_handle().content_frame()
    visitor.ready()
    before = visitor.page.evaluate("() => history.length")
    visitor.tab("Matrix")
    visitor.press("ArrowRight", "ArrowDown")
    assert visitor.frame.locator("html").get_attribute("data-view") == "matrix"
    assert visitor.page.evaluate("() => history.length") == before


def test_a_reload_brings_back_what_was_done(visitor, saved):
    visitor.open(saved)
    visitor.tab("Matrix")
    visitor.button("Next layer")
    visitor.button("Head 2")
    visitor.press("ArrowRight", "ArrowDown")
    done, picture = visitor.hash, visitor.canvas()
    visitor.page.reload()
    visitor.ready()
    assert (visitor.hash, visitor.canvas()) == (done, picture)
    assert visitor.frame.locator("html").get_attribute("data-view") == "matrix"


@pytest.mark.parametrize("state", [
    "view=nothing&layer=99&heads=77&token=-1&zoom=1e9&temperature=NaN",
    "layer=1.5&heads=a.b&example=9&theme=<b>",
    "__proto__=1&constructor=2",
])  # fmt: skip
def test_a_hash_that_makes_no_sense_is_ignored(visitor, saved, state):
    visitor.open(saved, state)
    assert visitor.frame.locator("html").get_attribute("data-view") == "heads"
    assert "cat" in [text for text, _, _ in visitor.texts()]


def test_several_examples_on_one_page(visitor, tmp_path):
    record = Record("Batch", [AttentionMap(name="a", kind="encoder", weights=weights(2, 3, 3, batch=3))])
    visitor.open(record.save_html(tmp_path / "b.html", [list("abc"), list("xyz")], batch=[0, 2]), "view=matrix&heads=1")
    visitor.choose("Example", "row 2")
    assert "example=1" in visitor.hash
    visitor.press("ArrowRight")
    exact = record[0].weights[2, 1, 0]
    assert visitor.status.startswith("x → x: ")
    assert close(visitor.status.split(": ")[1].split()[0], float(exact[0]), float(exact.max()))


@pytest.mark.parametrize("view", ["heads", "grid", "matrix", "alignment", "temperature"])
def test_every_view_can_be_printed(visitor, translated, view):
    visitor.open(translated, f"view={view}&layer=3")
    image = Image.open(io.BytesIO(visitor.saved("PNG")))
    assert image.size[0] >= 1000
    assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 20
    assert visitor.drawing().tag == f"{SVG}svg"


def test_the_image_view_can_be_printed(visitor, vit):
    visitor.open(vit[1])
    image = np.asarray(Image.open(io.BytesIO(visitor.saved("PNG"))).convert("RGB"))
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 1000
    assert len(list(visitor.drawing().iter(f"{SVG}image"))) == 2 * (1 + 3)


def test_nothing_sticks_out_of_a_narrow_screen(visitor, vit):
    visitor.page.set_viewport_size({"width": 390, "height": 800})
    visitor.open(vit[1])
    assert visitor.page.evaluate("() => document.documentElement.scrollWidth") <= 390


def test_a_tooltip_under_a_resting_pointer_follows_the_state(visitor, saved, encoder):
    visitor.open(saved)
    visitor.hover("cat")
    visitor.frame.get_by_label("Layer", exact=True).focus()
    visitor.step("ArrowDown")
    visitor.rest()
    mean = encoder[1].weights[0].mean(0)[2]
    number, name = visitor.tip[1].split()
    assert name == WORDS[int(mean.argmax())]
    assert close(number, float(mean.max()), float(mean.max()))
    assert visitor.status.endswith("layer 1, mean of 5 heads")


def test_dark_by_preference_and_by_button(browser, visitor, saved):
    def paper(someone):
        return someone.page.evaluate("() => getComputedStyle(document.body).backgroundColor")

    visitor.open(saved)
    light = paper(visitor)
    visitor.frame.get_by_role("button", name="Use dark colors").click()
    visitor.rest()
    assert "theme=dark" in visitor.hash
    dark = paper(visitor)
    assert dark != light
    with visiting(browser, color_scheme="dark") as night:
        night.open(saved)
        assert paper(night) == dark
        assert np.asarray(Image.open(io.BytesIO(night.shot())).convert("L")).mean() < 60


def test_tabs_are_walked_by_keyboard(visitor, saved):
    visitor.open(saved)
    visitor.frame.get_by_role("tab", name="Heads").focus()
    seen = []
    for _ in range(4):
        visitor.step("ArrowRight")
        visitor.rest()
        seen.append(visitor.frame.locator("[role=tab][aria-selected=true]").inner_text())
        assert visitor.page.evaluate("() => document.activeElement.textContent") == seen[-1]
    assert seen == ["Grid", "Matrix", "Temperature", "Heads"]


def test_every_control_is_reached_by_tab_and_has_a_name(visitor, saved):
    visitor.open(saved)
    named = set()
    for _ in range(40):
        visitor.page.keyboard.press("Tab")
        named.add(
            visitor.page.evaluate(
                "() => { const on = document.activeElement; const ring = getComputedStyle(on).outlineStyle !== 'none';"
                " const name = on.ariaLabel || on.textContent || on.closest('label')?.textContent || '';"
                " return `${name.trim()}|${ring || on === document.body}`; }"
            )
        )
    assert not any(name.startswith("|") for name in named)
    assert all(name.endswith("|true") for name in named)
    labels = " ".join(named)
    for wanted in ("Head 0", "Find a token", "Save this view as SVG", "Heads: two columns of tokens", "Next layer"):
        assert wanted in labels


def test_a_screen_reader_finds_roles_and_a_live_region(visitor, saved):
    visitor.open(saved)
    tree = visitor.frame.locator("body").aria_snapshot()
    for part in (
        "tablist",
        'tab "Heads" [selected]',
        "tabpanel",
        "status",
        'button "Head 0" [pressed]',
        "complementary",
    ):
        assert part in tree
    visitor.press("ArrowDown", "ArrowDown")
    assert visitor.frame.locator("[role=status]").inner_text().startswith("the looks most at")


def test_a_long_input_is_drawn_only_where_it_is_seen(visitor, tmp_path):
    record = Record("Long", [AttentionMap(name=f"layers.{i}", kind="encoder", weights=weights(4, 300, 300)) for i in range(2)])
    visitor.open(record.save_html(tmp_path / "long.html", [f"token{i}" for i in range(300)]))
    assert visitor.page.evaluate("() => document.querySelectorAll('*').length") < 200
    canvas = visitor.frame.locator("canvas").bounding_box()
    assert canvas["height"] < 800
    top = visitor.shot()
    visitor.page.mouse.move(600, 500)
    visitor.page.mouse.wheel(0, 3000)
    visitor.rest()
    assert visitor.shot() != top
    visitor.frame.get_by_label("Find a token").fill("token299")
    visitor.frame.get_by_label("Find a token").press("Enter")
    visitor.rest()
    assert visitor.page.evaluate("() => document.querySelector('.scroller').scrollTop") > 5000


STROKES = """async (by) => {
    const scroller = document.querySelector(".scroller");
    const stroke = CanvasRenderingContext2D.prototype.stroke;
    let count = 0;
    CanvasRenderingContext2D.prototype.stroke = function (...args) { count++; return stroke.apply(this, args); };
    scroller.scrollTop += by;
    await new Promise(requestAnimationFrame); // the scroll event, and what it asks to be drawn
    const moving = count || (await new Promise(requestAnimationFrame), count);
    await new Promise((done) => setTimeout(done, 400));
    CanvasRenderingContext2D.prototype.stroke = stroke;
    return [moving, count - moving];
}"""
"""Strokes drawn while the page is scrolled by so much, and once it rests again."""


def test_lines_thin_out_while_scrolling_and_come_back(visitor, tmp_path):
    record = Record("Long", [AttentionMap(name="layer", kind="encoder", weights=weights(12, 200, 200))])
    visitor.open(record.save_html(tmp_path / "long.html"))
    moving, resting = visitor.page.evaluate(STROKES, 60)
    assert 0 < moving < resting / 2


def test_diffuse_looks_of_a_long_input_are_drawn(visitor, tmp_path):
    import torch

    diffuse = (0.2 * torch.randn(1, 12, 256, 256, generator=torch.Generator().manual_seed(0))).softmax(-1)
    record = Record("Diffuse", [AttentionMap(name="layer", kind="encoder", weights=diffuse)])
    visitor.open(record.save_html(tmp_path / "diffuse.html"))
    moving, resting = visitor.page.evaluate(STROKES, 60)
    assert 0 < moving <= 200 < resting <= 3000
    assert 1000 < sum(map(len, line_ends(visitor.drawing()).values())) <= 3000


def test_a_mean_over_heads_is_no_softmax_and_has_no_temperature(visitor, tmp_path):
    record = Record("Mean", [AttentionMap(name="a", kind="encoder", weights=weights(1, 4, 4), heads=())])
    visitor.open(record.save_html(tmp_path / "mean.html"))
    assert "Temperature" not in visitor.views
    assert "Matrix" in visitor.views


def test_rollout_multiplies_the_layers_of_one_call_and_not_the_calls(visitor, tmp_path):
    seen = [AttentionMap(name=f"layer{i}", kind="encoder", weights=weights(2, 5, 5)) for _ in range(2) for i in range(2)]
    visitor.open(
        Record("Twice", seen).save_html(tmp_path / "twice.html"), "view=matrix&combine=rollout&layer=3&token=1&key=2"
    )
    half = [0.5 * one.weights[0].mean(0).numpy() + 0.5 * np.eye(5) for one in (seen[2], seen[3])]  # the second call
    number = re.search(r": (\S+) · layer 1, rollout", visitor.status).group(1)
    assert float(number) == pytest.approx(float((half[1] @ half[0])[1, 2]), abs=0.005)


# what is read and what is written


def test_rows_of_cross_attention_are_named_by_what_is_written(visitor, translator, tmp_path):
    written = [*TARGET[1:], "fin"]
    path = translator.save_html(tmp_path / "page.html", source=SOURCE, target=TARGET, written=written)
    visitor.open(path, "view=matrix")
    for kind, rows, columns in (("Cross", written, SOURCE), ("Decoder", TARGET, TARGET)):
        visitor.choose("Attention", kind)
        visitor.press("ArrowDown")
        assert visitor.status.startswith(f"{rows[0]} → {columns[0]}: ")


# by keyboard


def test_both_columns_of_heads_are_walked_by_keyboard(visitor, saved, encoder):
    visitor.open(saved)
    visitor.press("ArrowDown", "ArrowDown", "ArrowRight", "ArrowDown")
    column = encoder[0].weights[0].mean(0)[:, 2]
    assert "key=2" in visitor.hash
    assert visitor.status.startswith(f"cat is seen most by {WORDS[int(column.argmax())]}: ")
    ends = [line for lines in line_ends(visitor.drawing()).values() for line in lines]
    assert len({y for _, _, _, y in ends}) == 1
    visitor.press("ArrowLeft")
    assert "token=2" in visitor.hash
    assert visitor.status.startswith("cat looks most at ")


def test_source_words_of_an_alignment_are_walked_by_keyboard(visitor, translated):
    visitor.open(translated, "view=alignment")
    visitor.press("ArrowUp", "ArrowRight")
    assert visitor.status.startswith(f"{SOURCE[1]} is seen most by ")
    visitor.press("ArrowDown")
    assert visitor.status.startswith(f"{TARGET[1]} looks most at ")


def test_a_word_of_either_side_is_kept_by_a_click(visitor, translated):
    visitor.open(translated, "view=alignment")
    visitor.click("sleeps")
    assert "key=3" in visitor.hash
    visitor.click("sleeps")
    assert "key" not in visitor.hash


def test_shift_and_enter_isolates_a_head(visitor, saved):
    visitor.open(saved)
    visitor.frame.get_by_role("button", name="Head 3", exact=True).focus()
    visitor.step("Shift+Enter")
    assert "heads=3" in visitor.hash
    visitor.step("Enter")
    visitor.rest()
    assert visitor.status == "The last head stays on."
    assert "heads=3" in visitor.hash


def test_numbers_of_patches_are_read_by_keyboard(visitor, vit):
    visitor.open(vit[1])
    visitor.press("Shift+ArrowRight", "Shift+ArrowRight", "Shift+ArrowDown")
    exact = vit[0][0].weights[0].mean(0)[0]
    where, number = re.match(r"(.*): (\S+) · ", visitor.status).groups()
    assert where == "[CLS] → 2,2"
    assert close(number, float(exact[1 + 5]), float(exact.max()))


def test_a_panel_is_named_by_its_tab_and_no_toolbar_is_promised(visitor, saved):
    visitor.open(saved, "view=matrix")
    assert visitor.frame.get_by_role("tabpanel", name="Matrix").count() == 1
    assert visitor.frame.get_by_role("toolbar").count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_digits_stand_out_from_their_cells(visitor, tmp_path, theme):
    import torch

    signed = torch.linspace(-1, 1, 49).reshape(1, 1, 7, 7)
    record = Record("Signed", [AttentionMap(name="a", kind="encoder", weights=signed)])
    visitor.open(record.save_html(tmp_path / "signed.html"), f"view=matrix&theme={theme}")
    drawing = visitor.drawing()
    picture = next(drawing.iter(f"{SVG}image"))
    cells = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture.get("href").partition(",")[2]))).convert("RGB"))
    left, top, side = (float(picture.get(name)) for name in ("x", "y", "width"))
    digits = [text for text in drawing.iter(f"{SVG}text") if re.fullmatch(r"-?\d\.\d{4,}", text.text)]
    assert len(digits) == 48  # and a zero
    for digit in digits:
        row, column = int((float(digit.get("y")) - top) / side * 7), int((float(digit.get("x")) - left) / side * 7)
        ink = [int(digit.get("fill")[i : i + 2], 16) for i in (1, 3, 5)]
        low, high = sorted([luminance(ink), luminance(cells[row, column])])
        assert (high + 0.05) / (low + 0.05) > 4.5


def luminance(rgb):
    part = np.asarray(rgb) / 255
    return float(np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])


# where a page opens, and ways back


def test_a_page_of_two_sides_opens_on_cross_attention_and_says_so_in_its_hash(visitor, translated):
    visitor.open(translated)
    assert visitor.frame.get_by_label("Attention", exact=True).input_value() == "cross"
    assert "layer=3" in visitor.hash
    visitor.choose("Attention", "Encoder")
    assert "layer=0" in visitor.hash
    visitor.page.reload()
    visitor.ready()
    assert visitor.frame.get_by_label("Attention", exact=True).input_value() == "encoder"


def test_each_view_has_its_own_zoom(visitor, saved):
    visitor.open(saved, "view=matrix&zoom=2")
    visitor.tab("Heads")
    assert "zoom" not in visitor.hash
    visitor.button("Zoom in")
    visitor.tab("Matrix")
    assert "zoom=2" in visitor.hash


@pytest.mark.parametrize("way", ["back", "button", "Escape"])
def test_an_enlarged_thumbnail_leads_back_to_the_grid(visitor, saved, way):
    visitor.open(saved, "view=grid")
    visitor.press("ArrowRight", "ArrowDown", "Enter")
    assert "view=matrix" in visitor.hash
    if way == "back":
        visitor.page.go_back()
        visitor.rest()
    elif way == "button":
        visitor.button(BACK)
    else:
        visitor.press("Escape")
    assert "view=grid" in visitor.hash
    assert "heads=" not in visitor.hash
    assert visitor.status.startswith("Layer 1, head 0")
    assert not visitor.frame.get_by_role("button", name=BACK).is_visible()


@pytest.mark.parametrize(("heads", "how"), [(16, "each"), (24, "mean")])
def test_more_heads_than_colors_open_on_their_mean(visitor, tmp_path, heads, how):
    record = Record("Wide", [AttentionMap(name="a", kind="encoder", weights=weights(heads, 5, 5))])
    visitor.open(record.save_html(tmp_path / "wide.html"))
    assert f"combine={how}" in visitor.hash
    assert len(line_ends(visitor.drawing())) == (16 if how == "each" else 1)


def test_entropy_is_called_what_it_is(visitor, saved, encoder):
    visitor.open(saved, "view=matrix")
    mean = encoder[0].weights[0].mean(0)
    for heads, label, exact in ((None, "Entropy of the mean", mean), ("Head 1", "Entropy", encoder[0].weights[0, 1])):
        if heads:
            visitor.frame.get_by_role("button", name=heads, exact=True).dblclick()
            visitor.rest()
        fact = visitor.frame.locator(".fact").last
        assert fact.locator("dt").inner_text() == label
        bits = float(-(exact * exact.log2()).sum(-1).mean())
        assert float(fact.locator("dd").inner_text().split()[0]) == pytest.approx(bits, abs=0.02)


def test_temperature_opens_on_a_token_with_something_to_tell(visitor, translated):
    visitor.open(translated, "view=temperature&layer=2")  # causal: the first token sees itself alone
    chosen = visitor.frame.get_by_label("Token", exact=True)
    assert chosen.input_value() != "0"
    visitor.choose("Token", TARGET[5])
    assert "token=5" in visitor.hash
    assert any(text.startswith(f"“{TARGET[5]}” at temperature") for text, _, _ in visitor.texts())


@pytest.mark.parametrize("view", ["heads", "grid", "matrix", "alignment", "temperature"])
def test_a_small_record_fills_a_wide_window(visitor, translated, view):
    visitor.page.set_viewport_size({"width": 1900, "height": 1000})
    visitor.open(translated, f"view={view}&layer=3")
    across = [x for _, x, _ in visitor.texts()]
    stage = visitor.frame.locator(".scroller").bounding_box()
    least = 0.3 if view == "matrix" else 0.4  # a matrix is square: it fills the height
    assert max(across) - min(across) > least * stage["width"]


def test_a_long_name_of_a_layer_keeps_its_end(visitor, tmp_path):
    name = "model.text_model.encoder.transformer.layers.0.self_attention"
    record = Record("Deep", [AttentionMap(name=name, kind="encoder", weights=weights(2, 3, 3))])
    visitor.open(record.save_html(tmp_path / "deep.html"))
    layer = visitor.frame.get_by_label("Layer", exact=True)
    assert layer.inner_text().endswith("layers.0.self_attention")
    assert len(layer.inner_text()) < 40
    assert layer.get_attribute("title") == name


def test_headings_and_footer_of_a_narrow_image_page_keep_apart(visitor, vit):
    visitor.page.set_viewport_size({"width": 390, "height": 800})
    visitor.open(vit[1])
    texts = visitor.texts()
    heading, note = (next((x, y) for t, x, y in texts if t.startswith(start)) for start in ("Where ", "brightest "))
    assert note[1] > heading[1] + 14
    status, zoom = (visitor.frame.locator(part).bounding_box() for part in (".status", ".zoom"))
    assert status["x"] + status["width"] <= zoom["x"]
    assert zoom["height"] < 32
    assert zoom["x"] + zoom["width"] <= 390


# search, exports, thumbnails


def test_enter_walks_the_matches_of_both_sides(visitor, translated):
    visitor.open(translated)
    box = visitor.frame.get_by_label("Find a token")
    box.type("a")
    seen = []
    for _ in range(4):
        box.press("Enter")
        visitor.rest()
        seen.append(re.search(r"(token|key)=\d", visitor.hash).group(0))
    assert seen == ["token=2", "key=1", "key=2", "token=2"]


@pytest.mark.parametrize("view", ["heads", "matrix"])
def test_an_export_waits_for_what_it_needs(visitor, tmp_path, view):
    record = Record("Deep", [AttentionMap(name=f"l{i}", kind="encoder", weights=weights(2, 220, 220)) for i in range(8)])
    path = record.save_html(tmp_path / "deep.html")
    visitor.page.goto(f"{path.as_uri()}#view={view}&combine=rollout&layer=7")
    texts = [text for text, _, _ in visitor.texts()]  # at once
    assert "Unpacking…" not in texts
    assert "215" in texts


def test_thumbnails_of_large_layers_show_what_the_layers_hold(visitor, tmp_path):
    import torch

    line = torch.eye(256)[None, None].expand(1, 2, 256, 256)
    record = Record("Large", [AttentionMap(name="a", kind="encoder", weights=0.5 * line + 0.5 * line.flip(-1))])
    visitor.open(record.save_html(tmp_path / "large.html", special=["0"]), "view=grid")

    def thumbnail():
        picture = next(visitor.drawing().iter(f"{SVG}image"))
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(picture.get("href").partition(",")[2]))).convert("L"))

    sent = thumbnail()
    assert sent.shape == (64, 64)
    dark = sent < 128
    assert (dark == (np.eye(64) + np.eye(64)[::-1]).astype(bool)).all()
    visitor.frame.get_by_label("Hide special tokens").check()  # then it is made here
    visitor.rest()
    assert abs((thumbnail() < 128).mean() - dark.mean()) < 0.02


# what does not fit is not done


def test_temperature_leaves_alone_what_is_no_softmax(visitor, tmp_path):
    record = Record("Mean", [AttentionMap(name="a", kind="encoder", weights=weights(1, 4, 4), heads=())])
    visitor.open(record.save_html(tmp_path / "mean.html"), "view=matrix&token=0&key=0&temperature=0.2")
    assert "temperature" not in visitor.hash
    exact = record[0].weights[0, 0, 0]
    assert close(re.search(r": (\S+) · ", visitor.status).group(1), float(exact[0]), float(exact.max()))
    mixed = Record("Mixed", [*record, AttentionMap(name="b", kind="encoder", weights=weights(1, 4, 4))])
    visitor.open(mixed.save_html(tmp_path / "mixed.html"), "view=matrix&layer=0&token=0&key=0&temperature=0.2")
    assert close(re.search(r": (\S+) · ", visitor.status).group(1), float(exact[0]), float(exact.max()))


def test_a_way_back_is_offered_only_where_there_is_one(visitor, saved):
    visitor.open(saved, "view=heads&from=grid")
    assert not visitor.frame.get_by_role("button", name=BACK).is_visible()
    assert "from" not in visitor.hash


def test_temperature_walked_forth_and_back_is_as_recorded(visitor, saved):
    visitor.open(saved, "view=temperature")
    visitor.press(*["ArrowRight"] * 3)
    assert "temperature=1.331" in visitor.hash
    visitor.press(*["ArrowLeft"] * 3)
    assert "temperature=" not in visitor.hash
    visitor.press("+", "-", "+")
    assert "zoom" not in visitor.hash


def test_entropy_is_measured_against_what_may_be_looked_at(visitor, translated):
    visitor.open(translated, "view=temperature&layer=2&token=3")  # causal: four may be looked at
    texts = [text for text, _, _ in visitor.texts()]
    assert any(re.fullmatch(r"recorded \d\.\d\d, at most 2\.00", text) for text in texts)
    assert any(re.fullmatch(r"as if it looked at \d\.\d of 4 evenly", text) for text in texts)


def test_rollout_of_more_layers_than_fit_in_memory_comes_to_its_end(visitor, tmp_path, monkeypatch):
    from sightline.view import page

    plain = page.static
    monkeypatch.setattr(page, "static", lambda name: plain(name).replace("96e6", "5e4"))
    page.script_text.cache_clear()
    seen = [AttentionMap(name=f"l{i}", kind="encoder", weights=weights(1, 210, 210)) for i in range(6)]
    path = Record("Deep", seen).save_html(tmp_path / "deep.html")
    page.script_text.cache_clear()
    visitor.open(path, "view=matrix&combine=rollout&layer=5&token=0&key=0")
    exact = np.eye(210)
    for one in seen:
        exact = (0.5 * one.weights[0, 0].numpy() + 0.5 * np.eye(210)) @ exact
    assert close(re.search(r": (\S+) · layer 5, rollout", visitor.status).group(1), exact[0, 0], exact[0].max())


def test_heads_cannot_be_switched_where_rollout_takes_them_all(visitor, saved):
    visitor.open(saved, "view=matrix&combine=rollout&layer=2")
    chip = visitor.frame.get_by_role("button", name="Head 3", exact=True)
    assert chip.is_disabled()
    assert chip.get_attribute("title") == "Rollout takes all heads"
    visitor.choose("Combine", "Mean")
    assert chip.is_enabled()


# long alignments and negative weights


FRAMES = """async () => {
    const scroller = document.querySelector(".scroller");
    const took = [];
    for (let i = 0; i < 10; i++) {
        const before = performance.now();
        scroller.scrollLeft += 40;
        scroller.dispatchEvent(new Event("scroll"));
        await new Promise(requestAnimationFrame);
        await new Promise((done) => setTimeout(done));
        took.push(performance.now() - before);
    }
    return took.sort((a, b) => a - b)[5];
}"""


def test_a_long_alignment_scrolls(visitor, tmp_path):
    record = Record("Long", [AttentionMap(name="a", kind="cross", weights=weights(4, 300, 300, sharp=1.0))])
    visitor.open(record.save_html(tmp_path / "long.html"), "view=alignment&combine=mean")
    visitor.page.evaluate(
        """() => {
          const drawing = CanvasRenderingContext2D.prototype;
          const measure = drawing.measureText;
          window.measured = 0;
          drawing.measureText = function (...args) { window.measured++; return measure.apply(this, args); };
        }"""
    )
    assert visitor.page.evaluate(FRAMES) < 120  # it took above 200
    assert visitor.page.evaluate("() => window.measured") < 100  # the layout is kept
    assert 0 < sum(map(len, line_ends(visitor.drawing()).values())) <= 3000


def test_negative_cross_attention_is_joined_too(visitor, tmp_path):
    record = Record("Signed", [AttentionMap(name="a", kind="cross", weights=-weights(1, 4, 5, sharp=4.0))])
    visitor.open(record.save_html(tmp_path / "signed.html"), "view=alignment")
    ends = [line for lines in line_ends(visitor.drawing()).values() for line in lines]
    assert len({x for _, _, x, _ in ends}) == 4


# where one is


def test_a_reload_brings_what_is_picked_into_sight(visitor, tmp_path):
    record = Record("Long", [AttentionMap(name="a", kind="cross", weights=weights(2, 400, 400))])
    path = record.save_html(
        tmp_path / "long.html", source=[f"s{i}" for i in range(400)], target=[f"t{i}" for i in range(400)]
    )
    for view, state in (("heads", "token=390"), ("matrix", "zoom=8&token=390&key=380"), ("alignment", "key=390")):
        visitor.open(path, f"view={view}&{state}")
        visitor.page.reload()
        visitor.ready()
        left, top = visitor.scrolled
        assert (top if view != "alignment" else left) > 1000
        assert left > 1000 or view == "heads"


def test_zoom_keeps_the_cell_under_the_pointer(visitor, tmp_path):
    record = Record("Long", [AttentionMap(name="a", kind="encoder", weights=weights(1, 100, 100))])
    visitor.open(record.save_html(tmp_path / "long.html"), "view=matrix&zoom=3")
    x, y = visitor.on_screen(600, 400)
    visitor.page.mouse.move(x, y)
    visitor.rest()
    under = visitor.tip[1]
    visitor.page.keyboard.down("Control")
    for _ in range(12):
        visitor.page.mouse.wheel(0, -100)
        visitor.rest()
    visitor.page.keyboard.up("Control")
    assert visitor.tip[1] == under
    assert min(visitor.scrolled) > 100
    visitor.press("0")
    assert "zoom" not in visitor.hash


def test_a_zoomed_picture_is_reached_and_saved_whole(visitor, vit):
    visitor.open(vit[1], "view=image&zoom=4")
    drawing = visitor.drawing()
    right = max(float(image.get("x")) + float(image.get("width")) for image in drawing.iter(f"{SVG}image"))
    assert float(drawing.get("width")) >= right
    assert visitor.page.evaluate("() => document.querySelector('.scroller').scrollWidth") >= right


def test_words_of_a_picture_are_hidden_on_wish_and_walked_without_them(visitor, tmp_path):
    record = Record("Captioner", [AttentionMap(name="cross", kind="cross", weights=weights(2, 5, 16))])
    words = ["<s>", "a", "</s>", "b", "c"]
    path = record.save_html(tmp_path / "c.html", target=words, images=Image.new("RGB", (64, 32), "teal"), grid=(2, 8))
    visitor.open(path, "view=image&token=1")
    visitor.frame.get_by_label("Hide special tokens").check()
    visitor.press("ArrowRight")
    assert "token=3" in visitor.hash
    strips = [image for image in visitor.drawing().iter(f"{SVG}image") if float(image.get("width")) < 150]
    assert strips
    assert all(float(one.get("width")) == pytest.approx(2 * float(one.get("height")), abs=0.02) for one in strips)


def test_the_first_arrow_on_a_whole_picture_picks_its_first_patch(visitor, tmp_path):
    record = Record("ViT", [AttentionMap(name="a", kind="encoder", weights=weights(2, 16, 16))])
    path = record.save_html(tmp_path / "v.html", images=Image.new("RGB", (64, 64), "teal"))
    for key in ("ArrowRight", "ArrowDown"):
        visitor.open(path, "view=image")
        visitor.press(key)
        assert "token=0" in visitor.hash


def test_examples_have_names(visitor, tmp_path):
    record = Record("Batch", [AttentionMap(name="a", kind="encoder", weights=weights(2, 3, 3, batch=2))])
    visitor.open(record.save_html(tmp_path / "b.html", batch=[0, 1], names=["<b>cat.png", "dog.png"]))
    visitor.choose("Example", "dog.png")
    assert "example=1" in visitor.hash


def test_a_token_that_comes_twice_is_told_with_its_place(visitor, tmp_path):
    record = Record("Twice", [AttentionMap(name="a", kind="encoder", weights=weights(2, 3, 3))])
    visitor.open(record.save_html(tmp_path / "t.html", ["the", "the", "cat"]), "token=0")
    assert {name for name, _ in visitor.looks} == {"the · 0", "the · 1", "cat"}
