import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.view.payload import pack, unpack
from sizes import H, K, Q


def error(weights):
    """Largest error of each row, as a part of the row's largest weight."""
    tops = np.abs(weights).max(-1)
    wrong = np.abs(unpack(pack(weights)) - weights).max(-1)
    return (wrong / np.where(tops > 0, tops, 1)).max()


@given(seed=st.integers(0, 10_000), sharp=st.floats(0.0, 20.0), signed=st.booleans())
def test_error_is_at_most_one_255th_of_the_rows_maximum(seed, sharp, signed):
    scores = np.random.default_rng(seed).normal(size=(H, Q, K)) * sharp
    weights = scores if signed else np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert error(weights.astype(np.float32)) <= 1 / 255


def test_every_weight_between_zero_and_top_is_within_the_bound():
    assert error(np.linspace(0, 1, 100_001, dtype=np.float32)[None, None]) <= 1 / 255


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
