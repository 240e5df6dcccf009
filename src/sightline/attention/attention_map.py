"""The recorded weights of one attention layer.

Shapes: B batch, H heads, Q queries, K keys.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from torch import Tensor

from ..errors import SightlineError, check, check_choice
from .functional import Kind
from .layout import TOKENS, Windows

Measure = Literal["attention", "rollout", "relevance"]
KINDS, MEASURES = get_args(Kind), get_args(Measure)
METADATA_KEYS = (
    *("name", "kind", "heads", "call_index", "cache_reorders", "note", "over", "windows"),
    *("measure", "queries"),
)
"""Fields of a map beside its tensors, saved as JSON."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionMap:
    """The weights of one call of one attention layer."""

    name: str
    """Name of the module in the model: `encoder.layers.0.self_attn`."""
    kind: Kind
    """encoder (bidirectional), decoder (causal) or cross (over another sequence)."""
    weights: Tensor
    """(B, H, Q, K); H is 1 if heads were averaged."""
    scores: Tensor | None = None
    """(B, H, Q, K) before the normalizer, -inf where masked; None if not recorded."""
    heads: tuple[int, ...] | None = None
    """Indices of the recorded heads; None for all, () for their mean."""
    call_index: int | None = None
    """Which call of the model it belongs to, counted from 0; None if unknown."""
    cache_reorders: int = 0
    """How often the rows of a key-value cache were reordered before it, as beam search does."""
    note: str = ""
    """What else a reader of the weights must know."""
    over: str = TOKENS
    """What queries and keys are: tokens, channels, sampling points and so on."""
    windows: Windows | None = None
    """Windows of tokens in the batch dimension, as in Swin; None if there are none."""
    measure: Measure = "attention"
    """What the weights are: those of one layer, or rollout or relevance over several layers."""
    queries: tuple[str, ...] | None = None
    """Names of the queries if they are not tokens: the targets of relevance."""
    perturbation: Tensor | None = None
    """Zeros (B, H, Q, K) whose gradient is that of the weights, if recorded with gradients=True; not saved."""

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        check_choice("measure", self.measure, MEASURES)
        for name, x in (("weights", self.weights), ("scores", self.scores)):
            if x is not None and (x.dim() != 4 or not x.is_floating_point()):
                raise SightlineError(f"{name} must be floats of shape (B, H, Q, K), got {x.dtype} {tuple(x.shape)}")
        if self.windows is not None:
            batch, _, queries, keys = self.weights.shape
            has_windows = batch % self.windows.count == 0 and queries == keys == math.prod(self.windows.size)
            check(has_windows, f"weights must be of {self.windows}, got {tuple(self.weights.shape)}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.describe()})"

    def describe(self) -> str:
        """Kind, heads, sizes and entropy in one line."""
        batch, num_heads, queries, keys = self.weights.shape
        if self.heads == ():
            heads = "heads averaged"
        elif self.heads is not None:
            heads = f"heads {', '.join(map(str, self.heads))}"
        else:
            heads = "1 head" if num_heads == 1 else f"{num_heads} heads"
        batch = batch // (self.windows.count if self.windows else 1)
        over = f" {self.windows}" if self.windows else f" over {self.over}" if self.over != TOKENS else ""
        size = f"{queries} x {keys}{over}" + (f", batch of {batch}" if batch > 1 else "")
        bits = self.entropy() if self.measure == "attention" else None
        entropy = "no probabilities" if bits is None else f"entropy {bits:.2f} bits"
        parts = (heads, size, entropy if self.measure == "attention" else "", self.note)
        return f"{self.kind:<7}  {', '.join(filter(None, parts))}"

    def in_place(self) -> "AttentionMap":
        """The map between all tokens, if it consists of windows: (B, H, T, T), 0 between windows."""
        if self.windows is None:
            return self
        scores = None if self.scores is None else self.windows.in_place(self.scores.exp()).log()
        return replace(self, weights=self.windows.in_place(self.weights), scores=scores, windows=None)

    def entropy(self) -> float | None:
        """Mean entropy of the rows in bits, from 0 to log2 K. None if weights are negative or sum to more than 1."""
        p = self.weights.float()
        if (p < 0).any() or (p.sum(-1) > 1.01).any():
            return None
        bits = -(p * p.clamp(min=1e-30).log2()).sum(-1)
        is_masked = p.sum(-1) == 0
        return float(bits[~is_masked].mean()) if not is_masked.all() else 0.0

    def metadata(self) -> dict[str, Any]:
        """The fields beside the tensors as JSON values."""
        windows = self.windows and asdict(self.windows)
        return {key: getattr(self, key) for key in METADATA_KEYS} | {"windows": windows}

    @classmethod
    def from_metadata(cls, entry: dict[str, Any], weights: Tensor, scores: Tensor | None) -> "AttentionMap":
        """A map from what `metadata` returned, which is checked, and its tensors."""
        entry = {key: entry[key] for key in METADATA_KEYS}
        name, _, heads, call_index, cache_reorders, note, over, windows, _, queries = entry.values()
        is_valid = queries is None or isinstance(queries, list)
        check(is_valid, f"queries must be null or a list of names, got {queries!r:.80}")
        texts = (name, note, over, *(queries or ()))
        is_valid = all(isinstance(text, str) for text in texts)
        check(is_valid, f"name, note, over and queries must be strings, got {texts!r:.200}")
        is_valid = heads is None or (isinstance(heads, list) and all(type(head) is int for head in heads))
        check(is_valid, f"heads must be null or a list of integers, got {heads!r}")
        is_valid = (call_index is None or type(call_index) is int) and type(cache_reorders) is int
        check(is_valid, f"call_index and cache_reorders must be integers, got {call_index!r}, {cache_reorders!r}")
        entry["heads"], entry["queries"] = (None if value is None else tuple(value) for value in (heads, queries))
        entry["windows"] = None if windows is None else Windows(**{key: tuple(side) for key, side in windows.items()})
        return cls(**entry, weights=weights, scores=scores)
