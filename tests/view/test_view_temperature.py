"""The temperature view in a browser."""

import re

import numpy as np
import pytest
import torch

from browser import is_close
from samples import TARGET, WORDS, AttentionMap, record_of, weights
from sightline.attention import CosineScore, DotScore, MultiHeadAttention, Record, record_attention


def softmax(scores):
    return np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)


@pytest.mark.parametrize("score", [DotScore(), CosineScore(temperature=0.3)], ids=["dot", "cosine"])
def test_the_weights_are_those_of_the_scores_divided_by_the_temperature(viewer, tmp_path, score):
    attention = MultiHeadAttention(8, num_heads=1, score=score).eval()
    with record_attention(attention, scores=True) as record:
        attention(torch.randn(1, 7, 8) * 3)
    viewer.open(record.save_html(tmp_path / "page.html", WORDS), "view=temperature&query=3")
    scores = record[0].scores[0, 0, 3].detach().double().numpy()
    for log_temperature in (-0.6, 0.5):
        viewer.slide("Temperature", log_temperature)
        row = softmax(scores / 10**log_temperature)
        words = viewer.words()
        bits = float(next(text for text in words if re.fullmatch(r"\d\.\d\d", text)))
        assert bits == pytest.approx(-(row * np.log2(row)).sum(), abs=0.03)
        numbers = [text for text in words if re.fullmatch(r"[<\d]\S*\.\d{4}", text)]
        assert len(numbers) == 7
        assert all(abs((0 if n[0] == "<" else float(n)) - w) < 0.02 for n, w in zip(numbers, row, strict=True))


def test_arrow_keys_change_the_temperature_in_steps_and_return_to_one(viewer, encoder_page):
    viewer.open(encoder_page, "view=temperature")
    viewer.press(*["ArrowRight"] * 3)
    assert viewer.state["temperature"] == "1.331"
    viewer.press(*["ArrowLeft"] * 3)
    assert "temperature" not in viewer.state
    viewer.press("+", "-", "+")
    assert "zoom" not in viewer.state


def test_the_temperature_applies_to_other_views_until_it_is_reset(viewer, encoder_page):
    viewer.open(encoder_page, "view=temperature")
    viewer.press("ArrowRight", "ArrowRight", "ArrowDown")
    assert viewer.state["temperature"] == "1.21"
    viewer.tab("Matrix")
    viewer.button("Temperature 1.21, reset")
    assert "temperature" not in viewer.state


def test_the_initial_query_has_medium_entropy(viewer, translator_page):
    viewer.open(translator_page, "view=temperature&layer=2")  # causal: the first query has a single key
    assert viewer.frame.get_by_label("Query", exact=True).input_value() != "0"
    viewer.choose("Query", TARGET[5])
    assert viewer.state["query"] == "5"
    assert any(text.startswith(f"“{TARGET[5]}” at temperature") for text in viewer.words())


def test_masked_keys_do_not_count_in_the_maximum_entropy(viewer, translator_page):
    viewer.open(translator_page, "view=temperature&layer=2&query=3")  # causal: four keys
    words = viewer.words()
    assert any(re.fullmatch(r"recorded \d\.\d\d, maximum 2\.00", text) for text in words)
    assert any(re.fullmatch(r"effective keys: \d\.\d of 4", text) for text in words)


def test_a_mean_over_heads_has_no_temperature(viewer, tmp_path):
    record = record_of(weights(1, 4, 4), heads=())
    viewer.open(record.save_html(tmp_path / "mean.html"), "view=matrix&query=0&key=0&temperature=0.2")
    assert viewer.tabs == ["Heads", "Grid", "Matrix"]
    assert "temperature" not in viewer.state
    row = record[0].weights[0, 0, 0]
    assert is_close(viewer.weight, row[0], row.max())
    mixed = Record("Model", [*record, AttentionMap(name="layers.1", kind="encoder", weights=weights(1, 4, 4))])
    viewer.open(mixed.save_html(tmp_path / "mixed.html"), "view=matrix&layer=0&query=0&key=0&temperature=0.2")
    assert is_close(viewer.weight, row[0], row.max())
