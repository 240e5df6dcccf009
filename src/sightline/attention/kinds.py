"""The kind of an attention map, where the model does not say it: encoder, decoder or cross.

Shapes: B batch, H heads, Q queries, K keys.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

from torch import Tensor

from .attention_map import AttentionMap
from .calls import Call
from .functional import Kind
from .layout import TOKENS

CROSS_NAMES = ("cross", "encoder_attn", "encdec")


def is_causal(weights: Tensor) -> bool:
    """Whether no query of the first example has weight on later keys: weights (B, H, Q, K)"""
    queries, keys = weights.shape[-2:]
    first_later = keys - queries + 1
    if not 1 < queries <= keys or weights[0, :, 0, first_later:].any():  # most bidirectional maps end here
        return False
    return not weights[0].triu(first_later).any()


def infer_kind(
    name: str, calls: Sequence[Call], weights: Tensor, *, causal: bool, cross: bool | None, over: str
) -> Kind:
    """The kind by what the module was given, by shapes and by names: weights (B, H, Q, K)

    `calls` are those under way, outermost first. `cross` is None if it is unknown. `over` is what the map is over:
    shapes tell about tokens only.
    """
    if cross is None:
        queries, keys = weights.shape[-2:]
        is_fed_another = calls[-1].is_cross(queries, keys)
        has_another_length = is_fed_another is None and not causal and 1 < queries != keys and over == TOKENS
        cross = is_fed_another or has_another_length or any(word in name.lower() for word in CROSS_NAMES)
    if cross:
        return "cross"
    in_decoder = "decoder" in name.lower() or any("Decoder" in type(call.module).__name__ for call in calls)
    return "decoder" if causal or in_decoder else "encoder"


def correct_kinds(
    maps: list[AttentionMap], inferred: Collection[AttentionMap], causal: Collection[str]
) -> list[AttentionMap]:
    """Correct inferred kinds by all calls of a layer; a single token has no later tokens that a mask could hide.

    `causal` has the names of layers with a causal mask. A layer whose keys grow by the new tokens of each call is a
    decoder's with a cache. In such a model, a layer that attends to equally many keys at every step is
    cross-attention, unless it is causal and has a sliding window.
    """
    sizes: dict[str, list[tuple[int, int]]] = {}
    for attention_map in (m for m in maps if m.over == TOKENS):
        queries, keys = attention_map.weights.shape[2:]
        sizes.setdefault(attention_map.name, []).append((queries, keys))
    growing = {name for name, calls in sizes.items() if any(_grows(*pair) for pair in pairwise(calls))}

    def correct(attention_map: AttentionMap) -> AttentionMap:
        name, queries = attention_map.name, attention_map.weights.shape[2]
        if attention_map not in inferred or attention_map.over != TOKENS:
            return attention_map
        kind = attention_map.kind
        if name in growing or (queries == 1 and name in causal):
            kind = "decoder"
        elif growing and name not in causal and _has_constant_keys(sizes[name]):
            kind = "cross"
        return attention_map if kind == attention_map.kind else replace(attention_map, kind=kind)

    return [correct(attention_map) for attention_map in maps]


def _grows(earlier: tuple[int, int], later: tuple[int, int]) -> bool:
    """Whether a call of self-attention (queries, keys) is followed by one on its keys and new tokens."""
    return earlier[0] == earlier[1] and later[1] == earlier[1] + later[0]


def _has_constant_keys(calls: list[tuple[int, int]]) -> bool:
    """Whether single queries attend to equally many keys, more than one, at every call (queries, keys)."""
    num_keys = {keys for _, keys in calls}
    return len(num_keys) == 1 and num_keys != {1} and {queries for queries, _ in calls[1:]} == {1}
