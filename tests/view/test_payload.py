import base64
import json
import re
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.view.maps import Map
from sightline.view.page import page, script_text
from sightline.view.payload import FINE, LARGE, LEVELS, pack, small
from sizes import H, K, Q


def unpack(packed):
    """What the page will show: packed -> weights (H, Q, K)"""
    heads, queries, keys = packed.shape
    raw = zlib.decompress(base64.b64decode(packed.data))
    tops = np.frombuffer(raw, "<f4", heads * queries).reshape(heads, queries, 1)
    planes = np.frombuffer(raw, np.uint8, offset=tops.nbytes).reshape(-1, heads, queries, keys)
    parts = [LEVELS[plane] * tops for plane in planes]
    return parts[0] - parts[1] if packed.signed else parts[0]


def error(weights):
    """Largest error of each row, as a part of the row's largest weight."""
    tops = np.abs(weights).max(-1)
    wrong = np.abs(unpack(pack(weights)) - weights).max(-1)
    return (wrong / np.where(tops > 0, tops, 1)).max()


@given(seed=st.integers(0, 10_000), sharp=st.floats(0.0, 20.0), signed=st.booleans())
def test_error_leaves_room_for_rounding_what_is_printed(seed, sharp, signed):
    scores = np.random.default_rng(seed).normal(size=(H, Q, K)) * sharp
    weights = scores if signed else np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert error(weights.astype(np.float32)) <= 1 / 255 - 5e-4


def test_every_weight_between_zero_and_top_is_within_the_bound():
    assert error(np.linspace(0, 1, 100_001, dtype=np.float32)[None, None]) <= 1 / 255 - 5e-4


def test_zero_stays_zero_and_nothing_else_becomes_it():
    weights = np.array([[[0.0, 1e-30, 1e-6, 1.0]]], dtype=np.float32)
    assert (unpack(pack(weights)) == 0).tolist() == [[[True, False, False, False]]]


def test_a_row_of_zeros_is_no_error():
    assert unpack(pack(np.zeros((H, Q, K)))).max() == 0


@pytest.mark.parametrize(("sharp", "temperature"), [(1, 2), (3, 3), (6, 3), (6, 10), (3, 0.3)])
def test_weights_are_kept_finely_enough_to_be_flattened_and_sharpened(sharp, temperature):
    def softmax(scores):
        return np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)

    scores = np.random.default_rng(0).normal(size=(1, 50, 40)) * sharp
    again = unpack(pack(softmax(scores))).astype(np.float64) ** (1 / temperature)
    np.testing.assert_allclose(again / again.sum(-1, keepdims=True), softmax(scores / temperature), atol=0.03)


@pytest.mark.parametrize(
    ("weights", "shares", "signed"),
    [
        ([[[0.25, 0.75], [0.0, 0.0]]], True, False),
        ([[[0.25, 0.25], [0.5, 0.5]]], False, False),
        ([[[1.5, -0.5]]], False, True),
    ],
)
def test_it_is_known_whether_rows_are_shares(weights, shares, signed):
    packed = pack(weights)
    assert (packed.shares, packed.signed) == (shares, signed)


def test_sharp_attention_is_small():
    weights = np.zeros((12, 256, 256), dtype=np.float32)
    weights[:, range(256), range(256)] = 1
    assert len(pack(weights).data) < 20_000


def test_the_levels_of_the_codes_are_told_once_and_travel_with_the_page():
    made = page([Map(name="a", kind="encoder", weights=np.full((1, H, Q, Q), 1 / Q))]).html
    meta = json.loads(re.search(r'id="sightline-meta">(.*?)</script>', made).group(1))
    np.testing.assert_allclose(meta["levels"], LEVELS, rtol=1e-6)
    assert not re.search(r"\b255\) \*\* |1e-10", script_text())


@pytest.mark.parametrize("signed", [False, True])
def test_a_large_layer_made_small_keeps_the_strongest_of_each_block(signed):
    weights = np.random.default_rng(0).normal(size=(H, 256, 300))
    weights = weights if signed else np.abs(weights)
    made = small(weights)
    assert made.shape == (H, FINE, FINE)
    edges = [[-(-i * size // FINE) for i in range(FINE + 1)] for size in weights.shape[1:]]
    for i, j in ((0, 0), (17, 42), (FINE - 1, FINE - 1)):
        block = weights[1, edges[0][i] : edges[0][i + 1], edges[1][j] : edges[1][j + 1]]
        assert made[1, i, j] == block.flat[np.abs(block).argmax()]


def test_a_layer_is_made_small_only_where_that_costs_little():
    assert small(np.zeros((H, 1, LARGE - 1))) is None
    assert small(np.zeros((H, 1, LARGE))).shape == (H, 1, FINE)
    made = page([Map(name="a", kind="encoder", weights=np.full((1, 1, 256, 256), 1 / 256))]).html
    assert made.index('id="small-0-0"') < made.index('id="weights-0-0"')  # the grid need not wait for the rest
