import xml.etree.ElementTree as ET

import numpy as np
import pytest

from samples import SOURCE, TARGET, WORDS, AttentionMap, record_of, weights
from sightline.attention import Record
from sightline.errors import SightlineError
from sightline.view.figures import save


def plotted_weights(figure):
    return figure.axes[0].images[0].get_array()


@pytest.mark.parametrize(
    ("head", "title"),
    [("mean", "layers.1, mean of 5 heads"), ("max", "layers.1, max of 5 heads"), (3, "layers.1, head 3")],
)
def test_one_layer_and_one_head_or_a_combination(encoder, head, title):
    figure = encoder.plot(1, head, tokens=WORDS)
    (axes,) = figure.axes
    assert axes.get_title() == title
    assert [label.get_text() for label in axes.get_yticklabels()] == WORDS
    exact = {"mean": encoder[1].weights[0].mean(0), "max": encoder[1].weights[0].amax(0)}.get(head)
    exact = encoder[1].weights[0, 3] if exact is None else exact
    np.testing.assert_allclose(plotted_weights(figure), exact.numpy(), rtol=1e-6)


def test_cross_attention_has_target_rows_and_source_columns(translator):
    axes = translator.plot("decoder.1.cross", source=SOURCE, target=TARGET).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == TARGET
    assert [label.get_text() for label in axes.get_xticklabels()] == SOURCE


def test_all_layers_and_heads(translator, tmp_path):
    figure = translator.plot()
    assert len(figure.axes) == 6 * 3
    assert save(figure, tmp_path / "grid.png").stat().st_size > 5000


@pytest.mark.parametrize("token", ["\x00", "\x01", "\uffff", "\ud800", "<b>&"])
def test_any_token_and_title_give_a_valid_svg(encoder, tmp_path, token):
    figure = encoder.plot(0, tokens=[token, *WORDS[1:]], title=f"a{token}")
    assert ET.parse(save(figure, tmp_path / "odd.svg")).getroot().tag.endswith("}svg")


def test_a_long_title_is_wrapped():
    name = "model.decoder.layers.0.encoder_attn"
    figure = Record("Model", [AttentionMap(name=name, kind="cross", weights=weights(2, 3, 3))]).plot(0)
    figure.draw_without_rendering()
    box = figure.axes[0].title.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert "".join(figure.axes[0].get_title().split()) == f"{name},meanof2heads"


def test_dollar_signs_are_not_formulas(encoder, tmp_path):
    figure = encoder.plot(0, tokens=["$x", "y$", "$\\frac{$", *WORDS[3:]], title="5$ or 6$")
    assert save(figure, tmp_path / "money.svg").stat().st_size > 1000


@pytest.mark.parametrize(("arguments", "message"), [
    ({"layer": 9}, r"layer must be below 3 or one of layers.0, layers.1, layers.2, got 9"),
    ({"layer": "x"}, r"layer must be below 3 or one of .*, got 'x'"),
    ({"layer": 0, "head": 7}, r"head must be mean, max or one of 0, 1, 2, 3, 4, got 7"),
    ({"layer": 0, "batch": 1}, r"batch must be below 1, the batch size, got 1"),
])  # fmt: skip
def test_unknown_layers_heads_and_indices_are_refused(encoder, arguments, message):
    with pytest.raises(SightlineError, match=message):
        encoder.plot(**arguments)


def test_long_and_empty_tokens_are_shortened_and_marked():
    record = record_of(weights(2, 3, 3))
    labels = record.plot(0, tokens=["x" * 300, "", "a\nb"]).axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["x" * 23 + "…", "∅", "a b"]
