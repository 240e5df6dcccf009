import numpy as np
import pytest

from samples import weights
from sightline.view.maps import Map, joined
from sizes import H, K, Q


def steps(kind, sizes):
    return [Map(name="a", kind=kind, weights=weights(H, q, k).numpy()) for q, k in sizes]


def test_cached_decoding_becomes_one_causal_map():
    calls = steps("decoder", [(3, 3), (1, 4), (1, 5)])
    (one,) = joined(calls)
    assert one.shape == (1, H, 5, 5)
    np.testing.assert_array_equal(one.weights[:, :, 3, :4], calls[1].weights[:, :, 0])
    assert one.weights[:, :, 3, 4].max() == 0


def test_one_step_of_cross_attention_after_another_becomes_rows_where_a_decoder_steps_beside_it():
    cross = steps("cross", [(1, K)] * Q)
    own = [Map(name="own", kind="decoder", weights=weights(H, 1, i + 1).numpy()) for i in range(Q)]
    assert [one.shape for one in joined([*own, *cross])] == [(1, H, Q, Q), (1, H, Q, K)]
    assert len(joined(cross)) == Q  # alone, they may as well be unrelated questions


@pytest.mark.parametrize(
    ("kind", "sizes"), [("decoder", [(2, 2), (3, 3), (4, 4)]), ("cross", [(2, K), (3, K), (4, K)])]
)
def test_decoding_without_a_cache_is_told_by_its_last_call(kind, sizes):
    whole = weights(H, *sizes[-1]).numpy()
    calls = [Map(name="a", kind=kind, weights=whole[:, :, :q, :k]) for q, k in sizes]
    (one,) = joined(calls)
    assert one.weights is calls[-1].weights


@pytest.mark.parametrize(("kind", "sizes"), [("decoder", [(5, 5), (6, 6)]), ("cross", [(2, K), (3, K)])])
def test_unrelated_calls_of_growing_length_stay_apart(kind, sizes):
    assert len(joined(steps(kind, sizes))) == 2


@pytest.mark.parametrize("sizes", [[(Q, Q), (Q, Q)], [(Q, K), (K, Q)]])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_other_repeated_calls_stay_apart(kind, sizes):
    assert [one.name for one in joined(steps(kind, sizes))] == ["a, call 1 of 2", "a, call 2 of 2"]


def test_order_is_that_of_the_first_call():
    maps = [Map(name=n, kind="decoder", weights=weights(H, 1, size).numpy()) for size in (1, 2) for n in ("a", "b")]
    assert [one.name for one in joined(maps)] == ["a", "b"]


def turns(name, shapes, kind="encoder"):
    """One map for each shape, as (turn, queries, keys)."""
    return [Map(name=name, kind=kind, weights=weights(H, q, k).numpy(), turn=turn) for turn, q, k in shapes]


def test_layers_that_share_an_attention_are_layers_and_no_calls():
    shared = joined(turns("a", [(0, Q, Q)] * 3))
    assert [(one.name, one.call) for one in shared] == [(f"a, use {i} of 3", 0) for i in (1, 2, 3)]
    both = joined(
        [one for pair in zip(turns("a", [(0, Q, Q)] * 2), turns("b", [(0, Q, Q)] * 2), strict=True) for one in pair]
    )
    assert [one.name for one in both] == ["a, use 1 of 2", "b, use 1 of 2", "a, use 2 of 2", "b, use 2 of 2"]
    twice = joined(turns("a", [(0, Q, Q), (0, Q, Q), (1, Q, Q), (1, Q, Q)]))
    assert [(one.name, one.call) for one in twice] == [
        ("a, use 1 of 2, call 1 of 2", 0), ("a, use 1 of 2, call 2 of 2", 1),
        ("a, use 2 of 2, call 1 of 2", 0), ("a, use 2 of 2, call 2 of 2", 1),
    ]  # fmt: skip


def test_layers_that_share_an_attention_decode_each_by_itself():
    steps = [(0, 3, 3), (0, 3, 3), (1, 1, 4), (1, 1, 4), (2, 1, 5), (2, 1, 5)]
    own, cross = turns("own", steps, "decoder"), turns("cross", [(t, q, K) for t, q, _ in steps], "cross")
    made = joined([*own, *cross])
    assert [(one.name, one.shape[2:]) for one in made] == [
        ("own, use 1 of 2", (5, 5)), ("own, use 2 of 2", (5, 5)),
        ("cross, use 1 of 2", (5, K)), ("cross, use 2 of 2", (5, K)),
    ]  # fmt: skip
    np.testing.assert_array_equal(made[1].weights[:, :, 4], own[5].weights[:, :, 0])


def test_a_model_that_decodes_inside_one_call_is_no_stack_of_layers():
    own = turns("own", [(0, 1, i + 1) for i in range(3)], "decoder")
    cross = turns("cross", [(0, 1, K)] * 3, "cross")
    assert [one.shape[2:] for one in joined([*own, *cross])] == [(3, 3), (3, K)]


def test_steps_whose_rows_changed_places_in_between_are_not_put_together():
    calls = [
        Map(name="a", kind="decoder", weights=weights(H, q, k, batch=2).numpy(), turn=i, shuffles=4 * (i > 1))
        for i, (q, k) in enumerate([(3, 3), (1, 4), (1, 5)])
    ]
    assert [one.name for one in joined(calls)] == ["a, call 1 of 3", "a, call 2 of 3", "a, call 3 of 3"]


def test_heads_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="heads must name 3 heads, as many as a has"):
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
def test_weights_that_cannot_be_shown_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        Map(name="a", kind="encoder", weights=bad)
