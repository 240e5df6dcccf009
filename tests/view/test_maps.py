from dataclasses import replace

import numpy as np
import pytest

from samples import weights
from sightline.errors import SightlineError
from sightline.view.maps import Map, merge_calls
from sizes import H, K, Q


def steps(kind, sizes):
    return [Map(name="a", kind=kind, weights=weights(H, q, k).numpy()) for q, k in sizes]


def test_cached_decoding_is_merged_into_one_causal_map():
    maps = steps("decoder", [(3, 3), (1, 4), (1, 5)])
    (merged,) = merge_calls(maps)
    assert merged.shape == (1, H, 5, 5)
    np.testing.assert_array_equal(merged.weights[:, :, 3, :4], maps[1].weights[:, :, 0])
    assert merged.weights[:, :, 3, 4].max() == 0


@pytest.mark.parametrize(
    "sizes", [[(3, 3), (1, 4), (1, 4), (1, 4)], [(5, 5), (1, 3), (1, 3)], [(3, 3), (1, 3), (2, 3)]]
)
def test_cached_decoding_with_a_sliding_window_is_merged_into_one_causal_map(sizes):
    maps = steps("decoder", sizes)
    (merged,) = merge_calls(maps)
    total = sum(queries for queries, _ in sizes)
    assert merged.shape == (1, H, total, total)
    queries, keys = sizes[-1]
    np.testing.assert_array_equal(merged.weights[:, :, -queries:, -keys:], maps[-1].weights)
    assert merged.weights[:, :, -queries:, :-keys].max() == 0


def test_decoding_with_a_static_cache_is_merged_into_one_causal_map():
    (complete,) = steps("decoder", [(5, 5)])
    causal = np.tril(complete.weights)
    static = np.pad(causal, ((0, 0), (0, 0), (0, 0), (0, 4)))  # keys that no query has reached yet
    rows = [(0, 3), (3, 4), (4, 5)]
    (merged,) = merge_calls([replace(complete, weights=static[:, :, start:end]) for start, end in rows])
    np.testing.assert_array_equal(merged.weights, causal)


def test_layers_with_and_without_a_window_have_the_same_tokens():
    local, whole = steps("decoder", [(3, 3), (1, 3), (1, 3)]), steps("decoder", [(3, 3), (1, 4), (1, 5)])
    layers = merge_calls([*local, *[replace(m, name="b") for m in whole]])
    assert [layer.shape for layer in layers] == [(1, H, 5, 5)] * 2


def test_cross_attention_steps_are_merged_beside_cached_self_attention():
    cross = steps("cross", [(1, K)] * Q)
    self_attention = [Map(name="self", kind="decoder", weights=weights(H, 1, i + 1).numpy()) for i in range(Q)]
    assert [m.shape for m in merge_calls([*self_attention, *cross])] == [(1, H, Q, Q), (1, H, Q, K)]
    assert len(merge_calls(cross)) == Q  # alone, they may be unrelated calls


@pytest.mark.parametrize(
    ("kind", "sizes"), [("decoder", [(2, 2), (3, 3), (4, 4)]), ("cross", [(2, K), (3, K), (4, K)])]
)
def test_decoding_without_a_cache_keeps_the_last_call(kind, sizes):
    complete = weights(H, *sizes[-1]).numpy()
    maps = [Map(name="a", kind=kind, weights=complete[:, :, :q, :k]) for q, k in sizes]
    (merged,) = merge_calls(maps)
    assert merged.weights is maps[-1].weights


@pytest.mark.parametrize(("kind", "sizes"), [("decoder", [(5, 5), (6, 6)]), ("cross", [(2, K), (3, K)])])
def test_unrelated_calls_of_growing_length_are_not_merged(kind, sizes):
    assert len(merge_calls(steps(kind, sizes))) == 2


@pytest.mark.parametrize("sizes", [[(Q, Q), (Q, Q)], [(Q, K), (K, Q)]])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_other_repeated_calls_are_numbered(kind, sizes):
    assert [m.name for m in merge_calls(steps(kind, sizes))] == ["a, call 1 of 2", "a, call 2 of 2"]


def test_maps_are_in_order_of_their_first_call():
    maps = [Map(name=n, kind="decoder", weights=weights(H, 1, size).numpy()) for size in (1, 2) for n in ("a", "b")]
    assert [m.name for m in merge_calls(maps)] == ["a", "b"]


def calls(name, shapes, kind="encoder"):
    """One map for each (forward index, queries, keys)."""
    return [Map(name=name, kind=kind, weights=weights(H, q, k).numpy(), call_index=i) for i, q, k in shapes]


def test_layers_that_share_a_module_are_separate_layers():
    shared = merge_calls(calls("a", [(0, Q, Q)] * 3))
    assert [(m.name, m.module_call) for m in shared] == [(f"a, use {i} of 3", 0) for i in (1, 2, 3)]
    both = merge_calls(
        [m for pair in zip(calls("a", [(0, Q, Q)] * 2), calls("b", [(0, Q, Q)] * 2), strict=True) for m in pair]
    )
    assert [m.name for m in both] == ["a, use 1 of 2", "b, use 1 of 2", "a, use 2 of 2", "b, use 2 of 2"]
    twice = merge_calls(calls("a", [(0, Q, Q), (0, Q, Q), (1, Q, Q), (1, Q, Q)]))
    assert [(m.name, m.module_call) for m in twice] == [
        ("a, use 1 of 2, call 1 of 2", 0), ("a, use 1 of 2, call 2 of 2", 1),
        ("a, use 2 of 2, call 1 of 2", 0), ("a, use 2 of 2, call 2 of 2", 1),
    ]  # fmt: skip


def test_layers_that_share_a_module_are_merged_separately():
    steps = [(0, 3, 3), (0, 3, 3), (1, 1, 4), (1, 1, 4), (2, 1, 5), (2, 1, 5)]
    self_attention, cross = calls("self", steps, "decoder"), calls("cross", [(t, q, K) for t, q, _ in steps], "cross")
    merged = merge_calls([*self_attention, *cross])
    assert [(m.name, m.shape[2:]) for m in merged] == [
        ("self, use 1 of 2", (5, 5)), ("self, use 2 of 2", (5, 5)),
        ("cross, use 1 of 2", (5, K)), ("cross, use 2 of 2", (5, K)),
    ]  # fmt: skip
    np.testing.assert_array_equal(merged[1].weights[:, :, 4], self_attention[5].weights[:, :, 0])


def test_decoding_inside_one_forward_call_is_merged():
    self_attention = calls("self", [(0, 1, i + 1) for i in range(3)], "decoder")
    cross = calls("cross", [(0, 1, K)] * 3, "cross")
    assert [m.shape[2:] for m in merge_calls([*self_attention, *cross])] == [(3, 3), (3, K)]


def test_steps_with_a_reordered_cache_are_not_merged():
    maps = [
        Map(
            name="a",
            kind="decoder",
            weights=weights(H, q, k, batch=2).numpy(),
            call_index=i,
            cache_reorders=4 * (i > 1),
        )
        for i, (q, k) in enumerate([(3, 3), (1, 4), (1, 5)])
    ]
    assert [m.name for m in merge_calls(maps)] == ["a, call 1 of 3", "a, call 2 of 3", "a, call 3 of 3"]


def test_wrong_numbers_of_heads_are_refused():
    with pytest.raises(SightlineError, match="heads must name the 3 heads of a"):
        Map(name="a", kind="encoder", weights=weights(3, Q, Q).numpy(), heads=(0, 1))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros((2, 3, 4)), r"weights must have shape \(B, H, Q, K\) without a zero, got \(2, 3, 4\) in a"),
        (np.zeros((1, 2, 0, 3)), "without a zero"),
        (np.full((1, 1, 2, 2), np.nan), "weights must be finite, got NaN or infinity in a"),
        (np.full((1, 1, 2, 2), 1e300), "weights must be finite, got NaN or infinity in a"),
    ],
)
def test_invalid_weights_are_refused(bad, message):
    with pytest.raises(SightlineError, match=message):
        Map(name="a", kind="encoder", weights=bad)
