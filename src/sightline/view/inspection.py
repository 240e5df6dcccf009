"""What a model read and attended to for one input, as plain JSON values for a page or another program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from .payload import LEVELS, pack_weights

Array = np.ndarray[Any, Any]
Form = Literal["packed", "lists"]
SIDES = {"encoder": ("source", "source"), "decoder": ("target", "target"), "cross": ("generated", "source")}
"""The sequences of the queries and keys of each kind of attention."""


@dataclass(frozen=True, eq=False)
class Layer:
    """The attention of one layer for one input."""

    name: str
    kind: str
    weights: Array
    """(H, Q, K)"""

    def to_dict(self, index: int, form: Form) -> dict[str, Any]:
        """Weights as nested lists, or packed as on a page of the viewer."""
        queries, keys = SIDES[self.kind]
        values: dict[str, Any] = {"index": index, "name": self.name, "kind": self.kind, "queries": queries}
        values |= {"keys": keys, "shape": list(self.weights.shape)}
        if form == "lists":
            return {**values, "weights": np.round(self.weights.astype(np.float64), 4).tolist()}
        packed = pack_weights(self.weights)
        details = {"data": packed.data, "signed": packed.signed, "normalized": packed.normalized}
        return {**values, "packed": details}


@dataclass(frozen=True, eq=False)
class Inspection:
    """The tokens of one input, the attention over them, and what else a page shows."""

    tokens: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The sequences that the layers attend over: source, and for a decoder target (read) and generated."""
    layers: Sequence[Layer] = ()
    special_tokens: Sequence[str] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    """Further JSON values: the grid of an image, a card of a caption, an explanation."""

    def to_dict(self, form: Form = "packed") -> dict[str, Any]:
        """Plain JSON values."""
        layers = [layer.to_dict(i, form) for i, layer in enumerate(self.layers)]
        levels = [float(f"{level:.7g}") for level in LEVELS] if form == "packed" and layers else None
        tokens = {name: list(sequence) for name, sequence in self.tokens.items()}
        return {
            "tokens": tokens,
            "special_tokens": list(self.special_tokens),
            "layers": layers,
            "levels": levels,
            **self.values,
        }
