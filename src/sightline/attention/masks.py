"""Masks: which query may attend to which key. True means the query may attend.

Masks combine with `&`, `|` and `~`: `Causal() & Padding(attention_mask)`. A mask gets its size when it is used, so one
`Causal()` works for every length. If there are more keys than queries, as with a key-value cache, the queries are the
last of the keys.

Shapes: B batch, H heads, Q queries, K keys.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from ..errors import SightlineError, check, check_int


class MaskTerms(NamedTuple):
    """The effect of a mask on scores (B, H, Q, K). Each term broadcasts to that shape; None has no effect."""

    allowed: Tensor | None = None
    """True where a query may attend to a key. Applied last."""
    bias: Tensor | None = None
    """Added to the scores."""
    factor: Tensor | None = None
    """Multiplies the scores, before the bias."""

    def apply_bias(self, scores: Tensor) -> Tensor:
        """Apply factor and bias: scores (B, H, Q, K) -> (B, H, Q, K)"""
        if self.factor is not None:
            scores = scores * self.factor
        if self.bias is not None:
            scores = scores + self.bias
        return scores


class Mask(nn.Module):
    """forward: number of queries, number of keys, device -> MaskTerms.

    A mask is a module, so learned masks train and every mask moves with the model that holds it.
    """

    changes_scores = False
    """Whether the mask has a bias or a factor. Such a mask combines with `&` only."""
    causal = False
    """Whether the mask hides all later tokens."""

    def __and__(self, other: "Mask") -> "Mask":
        """Allowed where both masks allow."""
        return And(self, check_mask(other, "&"))

    def __or__(self, other: "Mask") -> "Mask":
        """Allowed where either mask allows."""
        return Or(self, check_mask(other, "|"))

    def __invert__(self) -> "Mask":
        """Allowed where this mask forbids."""
        return Not(self)

    def terms(self, queries: int, keys: int, device: torch.device) -> MaskTerms:
        """`forward`, typed."""
        return cast(MaskTerms, self.forward(queries, keys, device))

    def __bool__(self) -> bool:
        raise SightlineError("masks must be combined with &, | and ~, got `and`, `or`, `not` or `if`")


class And(Mask):
    """Allowed where both masks allow; biases are added and factors multiplied."""

    def __init__(self, left: Mask, right: Mask):
        super().__init__()
        self.left, self.right = left, right
        self.changes_scores = left.changes_scores or right.changes_scores
        self.causal = left.causal or right.causal

    def forward(self, queries: int, keys: int, device: torch.device) -> MaskTerms:
        left, right = self.left.terms(queries, keys, device), self.right.terms(queries, keys, device)
        return MaskTerms(
            _combine(torch.logical_and, left.allowed, right.allowed),
            _combine(torch.add, left.bias, right.bias),
            _combine(torch.mul, left.factor, right.factor),
        )


class Or(Mask):
    """Allowed where either mask allows."""

    def __init__(self, left: Mask, right: Mask):
        super().__init__()
        _check_boolean("|", left, right)
        self.left, self.right = left, right
        self.causal = left.causal and right.causal

    def forward(self, queries: int, keys: int, device: torch.device) -> MaskTerms:
        left, right = (mask.terms(queries, keys, device).allowed for mask in (self.left, self.right))
        return MaskTerms(None if left is None or right is None else _combine(torch.logical_or, left, right))


class Not(Mask):
    """Allowed where the other mask forbids."""

    def __init__(self, mask: Mask):
        super().__init__()
        _check_boolean("~", mask)
        self.mask = mask

    def forward(self, queries: int, keys: int, device: torch.device) -> MaskTerms:
        allowed = self.mask.terms(queries, keys, device).allowed
        return MaskTerms(torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=device) if allowed is None else ~allowed)


class Allow(Mask):
    """A bool tensor that is True where a query may attend: (Q, K), (B, Q, K) or (B, H, Q, K)."""

    allowed: Tensor

    def __init__(self, allowed: Tensor):
        super().__init__()
        _check_bool_tensor("Allow", allowed, (2, 3, 4))
        self.register_buffer("allowed", allowed.unsqueeze(1) if allowed.dim() == 3 else allowed, persistent=False)

    def forward(self, queries: int, keys: int, device: torch.device) -> MaskTerms:
        return MaskTerms(self.allowed.to(device))


def forbid(forbidden: Tensor) -> Mask:
    """A mask from a bool tensor that is True where a query may *not* attend: (Q, K), (B, Q, K) or (B, H, Q, K)."""
    _check_bool_tensor("forbid", forbidden, (2, 3, 4))
    return Allow(~forbidden)


class Padding(Mask):
    """Hides padding. attention_mask (B, K): True for a token, False for padding.

    `has_no_empty_rows` promises a token in every row. The mask then needs no check for fully masked rows, and is
    expanded once for all layers.
    """

    attention_mask: Tensor

    def __init__(self, attention_mask: Tensor, *, has_no_empty_rows: bool = False):
        super().__init__()
        _check_bool_tensor("Padding", attention_mask, (2,))
        self.has_no_empty_rows = has_no_empty_rows
        self.register_buffer("attention_mask", attention_mask[:, None, None, :], persistent=False)
        self._bias: Tensor | None = None

    @classmethod
    def from_lengths(cls, lengths: Tensor | Sequence[int], size: int | None = None) -> "Padding":
        """From the number of tokens in each row, padded to `size` (default: the longest): lengths (B,)"""
        lengths = torch.as_tensor(lengths)
        if lengths.dim() != 1 or lengths.is_floating_point() or (lengths < 0).any():
            raise SightlineError(f"lengths must be integers of at least 0 and of shape (B,), got {lengths.tolist()}")
        longest = int(lengths.max()) if lengths.numel() else 0
        size = longest if size is None else size
        check(longest <= size, f"lengths must be at most size={size}, got {longest}")
        return cls(torch.arange(size, device=lengths.device) < lengths[:, None])

    def as_bias(self, like: Tensor) -> Tensor:
        """0 or -inf in the dtype and on the device of `like`: (B, 1, 1, K). Cached for the next call."""
        attention_mask, keys, bias = self.attention_mask.to(like.device), self.attention_mask.shape[3], self._bias
        if torch.compiler.is_compiling():  # bool is enough, and a cache would break the graph
            return attention_mask
        if bias is None or bias.dtype != like.dtype or bias.device != like.device:
            with torch.inference_mode(False):  # the cached tensor must be usable in training
                # rows start at multiples of 8: torch's kernels copy other layouts
                buffer = like.new_zeros(attention_mask.shape[0], 1, 1, -(-keys // 8) * 8)
                bias = self._bias = buffer[..., :keys].masked_fill_(~attention_mask, float("-inf"))
        return bias

    def forward(self, queries: int, keys: int, device: torch.device) -> MaskTerms:
        return MaskTerms(self.attention_mask.to(device))


class Causal(Mask):
    """A token attends to itself and to earlier tokens."""

    causal = True

    def forward(self, queries: int, keys: int, device: torch.device) -> MaskTerms:
        if queries == 1 and keys:
            return MaskTerms()  # the last token attends to all
        return MaskTerms(torch.arange(keys, device=device) <= _query_positions("Causal", queries, keys, device))


class Window(Mask):
    """A token attends to itself and to `radius` tokens on either side."""

    def __init__(self, radius: int):
        super().__init__()
        check_int(0, radius=radius)
        self.radius = radius

    def extra_repr(self) -> str:
        return str(self.radius)

    def forward(self, queries: int, keys: int, device: torch.device) -> MaskTerms:
        distance = torch.arange(keys, device=device) - _query_positions("Window", queries, keys, device)
        return MaskTerms(distance.abs() <= self.radius)


class Episode(Mask):
    """A few-shot episode: all tokens attend to the first `support` tokens; the rest are queries.

    A query has `query_size` tokens, which also attend to each other. No query attends to another query.
    """

    def __init__(self, support: int, *, query_size: int = 1):
        super().__init__()
        check_int(1, query_size=query_size)
        if not torch.compiler.is_exporting():  # a size that varies is no int
            check_int(1, support=support)
        self.support, self.query_size = support, query_size

    def extra_repr(self) -> str:
        return str(self.support) if self.query_size == 1 else f"{self.support}, query_size={self.query_size}"

    def forward(self, queries: int, keys: int, device: torch.device) -> MaskTerms:
        if keys < self.support:
            raise SightlineError(f"Episode must have at least its {self.support} support tokens as keys, got {keys}")
        query_positions = _query_positions("Episode", queries, keys, device)
        key_positions = torch.arange(keys, device=device)
        row, column = ((positions - self.support) // self.query_size for positions in (query_positions, key_positions))
        return MaskTerms((key_positions < self.support) | (column == row))


class Bias(Mask):
    """A tensor added to the scores: (Q, K), (B, Q, K) or (B, H, Q, K), where a size of 1 broadcasts.

    -inf forbids. `finite` promises that there is none, which saves the check.
    """

    changes_scores = True

    def __init__(self, bias: Tensor, *, finite: bool = False):
        super().__init__()
        if not isinstance(bias, Tensor) or not bias.is_floating_point() or bias.dim() not in (2, 3, 4):
            raise SightlineError(f"Bias must be a floating-point tensor of 2, 3 or 4 dimensions, got {_describe(bias)}")
        self.finite = finite
        if isinstance(bias, nn.Parameter):
            self.bias = bias
        else:
            self.register_buffer("bias", bias, persistent=False)

    def forward(self, queries: int, keys: int, device: torch.device) -> MaskTerms:
        bias = self.bias.to(device)
        bias = bias.unsqueeze(1) if bias.dim() == 3 else bias
        return MaskTerms(allowed=None if self.finite else bias > float("-inf"), bias=bias)


class LearnedMask(Mask):
    """A learned table with one number for every pair of positions, for up to `size` tokens."""

    changes_scores = True
    is_table = True
    """The parameters are a table indexed by position, not a matrix of a linear map."""
    initial_value = 0.0

    def __init__(self, size: int, *, num_heads: int = 1):
        super().__init__()
        check_int(1, size=size, num_heads=num_heads)
        self.table = nn.Parameter(torch.full((num_heads, size, size), self.initial_value))

    def extra_repr(self) -> str:
        return f"size={self.table.shape[-1]}, num_heads={self.table.shape[0]}"

    def select(self, queries: int, keys: int) -> Tensor:
        """The entries of these positions: (1, H, Q, K)"""
        size = self.table.shape[-1]
        if keys > size or queries > keys:
            rule = f"{type(self).__name__} must have at most size={size} keys and no more queries than keys"
            raise SightlineError(f"{rule}, got {queries} queries and {keys} keys")
        return self.table[None, :, keys - queries : keys, :keys]


class Additive(LearnedMask):
    """A learned bias added to the scores. It starts at 0."""

    def forward(self, queries: int, keys: int, device: torch.device) -> MaskTerms:
        return MaskTerms(bias=self.select(queries, keys))


class Multiplicative(LearnedMask):
    """A learned factor that multiplies the scores. It starts at 1."""

    initial_value = 1.0

    def forward(self, queries: int, keys: int, device: torch.device) -> MaskTerms:
        return MaskTerms(factor=self.select(queries, keys))


def resolve_mask(mask: Mask | None, shape: tuple[int, int, int, int], device: torch.device) -> MaskTerms:
    """The terms of a mask for scores of this shape (B, H, Q, K)."""
    if mask is None:
        return MaskTerms()
    check_mask(mask, "mask")
    terms = mask.terms(shape[2], shape[3], device)
    for term in terms:
        if term is not None and not broadcasts(term.shape, shape):
            fix = "; Padding.from_lengths takes the number of keys as size" if isinstance(mask, Padding) else ""
            rule = f"mask must broadcast to (B, H, Q, K) = {tuple(shape)}"
            raise SightlineError(f"{rule}, got {tuple(term.shape)}{fix}")
    return terms


def check_mask(mask: object, name: str) -> Mask:
    """The mask; anything but a `Mask` is an error."""
    if isinstance(mask, Mask):
        return mask
    fix = "wrap a bool tensor in Allow (True = may attend) or forbid (True = may not attend), and floats in Bias"
    if isinstance(mask, type) and issubclass(mask, Mask):
        fix = f"create an instance: {mask.__name__}(...)"
    raise SightlineError(f"{name} must be given a Mask, got {_describe(mask)}; {fix}")


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether a tensor of `shape` broadcasts to `target` without growing it."""
    pairs = zip(shape[::-1], target[::-1], strict=False)
    return len(shape) <= len(target) and all(a == 1 or a == b for a, b in pairs)  # torch.compile traces "in" wrongly


def _combine(operation: Callable[[Tensor, Tensor], Tensor], a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """operation(a, b), or the one that is not None"""
    if a is None or b is None:
        return b if a is None else a
    if not all(x == y or x == 1 or y == 1 for x, y in zip(a.shape[::-1], b.shape[::-1], strict=False)):
        raise SightlineError(f"masks must broadcast to each other, got shapes {tuple(a.shape)} and {tuple(b.shape)}")
    return operation(a, b)


def _query_positions(name: str, queries: int, keys: int, device: torch.device) -> Tensor:
    """Positions of the queries among the keys, of which they are the last: (Q, 1)"""
    if queries > keys:
        raise SightlineError(f"{name} must have no more queries than keys, got {queries} queries and {keys} keys")
    return torch.arange(keys - queries, keys, device=device)[:, None]


def _check_boolean(operator: str, *masks: Mask) -> None:
    for mask in masks:
        rule = f"{operator} must combine masks that only allow or forbid"
        check(not mask.changes_scores, f"{rule}, got {type(mask).__name__}; use &")


def _check_bool_tensor(name: str, tensor: object, dims: tuple[int, ...]) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.bool or tensor.dim() not in dims:
        rule = f"{name} must be given a bool tensor of {' or '.join(map(str, dims))} dimensions"
        fix = "; convert it with .bool()" if isinstance(tensor, Tensor) and tensor.dtype != torch.bool else ""
        raise SightlineError(f"{rule}, got {_describe(tensor)}{fix}")


def _describe(value: object) -> str:
    return f"a {value.dtype} tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
