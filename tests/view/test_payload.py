import base64
import json
import re
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.view.maps import Map
from sightline.view.page import attention_page, bundle_script
from sightline.view.payload import LEVELS, MIN_CELLS_TO_DOWNSAMPLE, THUMBNAIL_SIZE, downsample, pack_weights
from sizes import H, K, Q


def unpack(packed):
    """The weights (H, Q, K) that the page shows."""
    heads, queries, keys = packed.shape
    raw = zlib.decompress(base64.b64decode(packed.data))
    maxima = np.frombuffer(raw, "<f4", heads * queries).reshape(heads, queries, 1)
    planes = np.frombuffer(raw, np.uint8, offset=maxima.nbytes).reshape(-1, heads, queries, keys)
    values = [LEVELS[plane] * maxima for plane in planes]
    return values[0] - values[1] if packed.signed else values[0]


def max_error(weights):
    """The largest error, relative to the maximum of its row."""
    maxima = np.abs(weights).max(-1)
    errors = np.abs(unpack(pack_weights(weights)) - weights).max(-1)
    return (errors / np.where(maxima > 0, maxima, 1)).max()


@given(seed=st.integers(0, 10_000), sharp=st.floats(0.0, 20.0), signed=st.booleans())
def test_quantization_error_with_rounding_is_below_the_bound(seed, sharp, signed):
    scores = np.random.default_rng(seed).normal(size=(H, Q, K)) * sharp
    weights = scores if signed else np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert max_error(weights.astype(np.float32)) <= 1 / 255 - 5e-4


def test_every_weight_from_zero_to_the_row_maximum_is_within_the_bound():
    assert max_error(np.linspace(0, 1, 100_001, dtype=np.float32)[None, None]) <= 1 / 255 - 5e-4


def test_only_zero_is_packed_as_zero():
    weights = np.array([[[0.0, 1e-30, 1e-6, 1.0]]], dtype=np.float32)
    assert (unpack(pack_weights(weights)) == 0).tolist() == [[[True, False, False, False]]]


def test_rows_of_zeros():
    assert unpack(pack_weights(np.zeros((H, Q, K)))).max() == 0


@pytest.mark.parametrize(("sharp", "temperature"), [(1, 2), (3, 3), (6, 3), (6, 10), (3, 0.3)])
def test_packed_weights_can_be_rescaled_by_a_temperature(sharp, temperature):
    def softmax(scores):
        return np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)

    scores = np.random.default_rng(0).normal(size=(1, 50, 40)) * sharp
    rescaled = unpack(pack_weights(softmax(scores))).astype(np.float64) ** (1 / temperature)
    np.testing.assert_allclose(rescaled / rescaled.sum(-1, keepdims=True), softmax(scores / temperature), atol=0.03)


@pytest.mark.parametrize(
    ("weights", "normalized", "signed"),
    [
        ([[[0.25, 0.75], [0.0, 0.0]]], True, False),
        ([[[0.25, 0.25], [0.5, 0.5]]], False, False),
        ([[[1.5, -0.5]]], False, True),
    ],
)
def test_normalized_and_signed_rows_are_detected(weights, normalized, signed):
    packed = pack_weights(weights)
    assert (packed.normalized, packed.signed) == (normalized, signed)


def test_sharp_attention_compresses_well():
    weights = np.zeros((12, 256, 256), dtype=np.float32)
    weights[:, range(256), range(256)] = 1
    assert len(pack_weights(weights).data) < 20_000


def test_the_page_contains_the_levels_of_the_codes():
    html = attention_page([Map(name="a", kind="encoder", weights=np.full((1, H, Q, Q), 1 / Q))]).html
    meta = json.loads(re.search(r'id="sightline-meta">(.*?)</script>', html).group(1))
    np.testing.assert_allclose(meta["levels"], LEVELS, rtol=1e-6)
    assert not re.search(r"\b255\) \*\* |1e-10", bundle_script())


@pytest.mark.parametrize("signed", [False, True])
def test_downsampling_keeps_the_strongest_weight_of_each_block(signed):
    weights = np.random.default_rng(0).normal(size=(H, 256, 300))
    weights = weights if signed else np.abs(weights)
    thumbnail = downsample(weights)
    assert thumbnail.shape == (H, THUMBNAIL_SIZE, THUMBNAIL_SIZE)
    edges = [[-(-i * size // THUMBNAIL_SIZE) for i in range(THUMBNAIL_SIZE + 1)] for size in weights.shape[1:]]
    for i, j in ((0, 0), (17, 42), (THUMBNAIL_SIZE - 1, THUMBNAIL_SIZE - 1)):
        block = weights[1, edges[0][i] : edges[0][i + 1], edges[1][j] : edges[1][j + 1]]
        assert thumbnail[1, i, j] == block.flat[np.abs(block).argmax()]


def test_only_large_layers_have_thumbnails():
    assert downsample(np.zeros((H, 1, MIN_CELLS_TO_DOWNSAMPLE - 1))) is None
    assert downsample(np.zeros((H, 1, MIN_CELLS_TO_DOWNSAMPLE))).shape == (H, 1, THUMBNAIL_SIZE)
    html = attention_page([Map(name="a", kind="encoder", weights=np.full((1, 1, 256, 256), 1 / 256))]).html
    assert html.index('id="thumbnail-0-0"') < html.index('id="weights-0-0"')  # the grid view opens first
