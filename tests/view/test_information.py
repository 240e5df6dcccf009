"""The information of a layer, and nearly uniform heads."""

import numpy as np
import pytest

from samples import weights
from sightline.view.information import measure
from sizes import H, Q

N = 7


def test_uniform_weights_and_one_key_for_all_carry_no_information():
    uniform, sink = np.full((H, Q, N), 1 / N), np.zeros((H, Q, N))
    sink[..., 2] = 1
    assert measure(uniform).bits == pytest.approx(0, abs=1e-6)
    assert measure(sink).bits == pytest.approx(0, abs=1e-6)
    assert measure(uniform).near_uniform == list(range(H))
    assert measure(sink).near_uniform == []


def test_a_key_for_each_query_carries_most_information():
    assert measure(np.eye(N)[None]).bits == pytest.approx(np.log2(N))


def test_masked_keys_and_rows_do_not_count():
    causal = np.tril(np.ones((1, N, N)))
    causal /= causal.sum(-1, keepdims=True)
    assert measure(causal).near_uniform == [0]
    with_empty = np.concatenate([np.eye(N), np.zeros((2, N))])[None]
    assert measure(with_empty).bits == pytest.approx(np.log2(N))
    assert measure(np.zeros((1, 2, 3))).near_uniform == []


def test_only_nearly_equal_weights_are_nearly_uniform():
    flat, sharp = (weights(1, 64, 64, sharp=s)[0].numpy() for s in (0.3, 1.0))
    assert measure(np.concatenate([sharp, flat])).near_uniform == [1]
    assert measure(sharp).bits > measure(flat).bits
