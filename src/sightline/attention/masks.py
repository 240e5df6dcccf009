"""Who may look at whom. One type, one meaning: True = may look.

Masks are made by name and combined freely: `Causal() & Padding(attention_mask)`. A mask learns its sizes only when it is used, so
the same `Causal()` serves every length. With a cache there are more keys than queries; the queries are then the last of
the keys, and every mask here knows it. A new mask is one class here and its line in `MASKS`.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..errors import SightlineError, check_int, one_of
from .rules import Rules, broadcasts, meet


class Mask(nn.Module):
    """forward: number of queries, number of keys, device -> Rules.

    A mask is a module, so a learned one trains and every one moves with the model that holds it.
    """

    bends = False
    """Whether it bends scores; such a mask can only be combined with `&`."""
    causal = False
    """Whether it hides the future."""

    def __and__(self, other: "Mask") -> "Mask":
        """May look where both allow it."""
        return Both(self, check_mask(other, "&"))

    def __or__(self, other: "Mask") -> "Mask":
        """May look where either allows it."""
        return Either(self, check_mask(other, "|"))

    def __invert__(self) -> "Mask":
        """May look where this one forbids it."""
        return Not(self)

    def rules(self, queries: int, keys: int, device: torch.device) -> Rules:
        """What it says."""
        return cast(Rules, self.forward(queries, keys, device))

    def __bool__(self) -> bool:
        raise SightlineError(
            "masks must be combined with &, | and ~, got `and`, `or`, `not` or `if`, which would drop one"
        )


class Both(Mask):
    """May look where both allow it. Whatever a learned mask makes of the scores, what is forbidden stays so."""

    def __init__(self, one: Mask, other: Mask):
        super().__init__()
        self.one, self.other = one, other
        self.bends = one.bends or other.bends
        self.causal = one.causal or other.causal

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        a, b = self.one.rules(queries, keys, device), self.other.rules(queries, keys, device)
        return Rules(
            meet(torch.logical_and, a.allowed, b.allowed),
            meet(torch.add, a.bias, b.bias),
            meet(torch.mul, a.factor, b.factor),
        )


class Either(Mask):
    """May look where either allows it."""

    def __init__(self, one: Mask, other: Mask):
        super().__init__()
        _refuse_bending("|", one, other)
        self.one, self.other = one, other
        self.causal = one.causal and other.causal

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        a, b = self.one.rules(queries, keys, device).allowed, self.other.rules(queries, keys, device).allowed
        return Rules(None if a is None or b is None else meet(torch.logical_or, a, b))


class Not(Mask):
    """May look where the other forbids it."""

    def __init__(self, other: Mask):
        super().__init__()
        _refuse_bending("~", other)
        self.other = other

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        allowed = self.other.rules(queries, keys, device).allowed
        return Rules(torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=device) if allowed is None else ~allowed)


class Allow(Mask):
    """A table of your own, True = may look: (Q, K), (B, Q, K) or (B, H, Q, K)."""

    table: Tensor

    def __init__(self, table: Tensor):
        super().__init__()
        _check_bool("Allow", table, (2, 3, 4))
        self.register_buffer("table", table.unsqueeze(1) if table.dim() == 3 else table, persistent=False)

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        return Rules(self.table.to(device))


def forbid(table: Tensor) -> Mask:
    """A table of your own that says True = may *not* look: (Q, K), (B, Q, K) or (B, H, Q, K)."""
    _check_bool("forbid", table, (2, 3, 4))
    return Allow(~table)


class Padding(Mask):
    """Nobody looks at padding. attention_mask (B, K): True where there is a token.

    `has_no_empty_rows` promises one in every row, and that it stays so: nobody need ask, and one table serves all layers.
    """

    attention_mask: Tensor

    def __init__(self, attention_mask: Tensor, *, has_no_empty_rows: bool = False):
        super().__init__()
        _check_bool("Padding", attention_mask, (2,))
        self.has_no_empty_rows = has_no_empty_rows
        self.register_buffer("attention_mask", attention_mask[:, None, None, :], persistent=False)
        self._table: Tensor | None = None

    def table(self, like: Tensor) -> Tensor:
        """What to add to scores of this precision, 0 or minus infinity: (B, 1, 1, K), as torch's kernels want it"""
        attention_mask, keys, made = self.attention_mask.to(like.device), self.attention_mask.shape[3], self._table
        if torch.compiler.is_compiling():  # who makes once what is asked for often
            return attention_mask
        if made is None or made.dtype != like.dtype or made.device != like.device:
            with torch.inference_mode(False):  # it serves calls of any kind
                room = like.new_zeros(
                    len(attention_mask), 1, 1, -(-keys // 8) * 8
                )  # a row that begins elsewhere is copied
                made = self._table = room[..., :keys].masked_fill_(~attention_mask, float("-inf"))
        return made

    @classmethod
    def of_lengths(cls, lengths: Tensor | Sequence[int], size: int | None = None) -> "Padding":
        """From the number of tokens in each row: lengths (B,)"""
        lengths = torch.as_tensor(lengths)
        if lengths.dim() != 1 or lengths.is_floating_point() or (lengths < 0).any():
            raise SightlineError(f"lengths must be integers of at least 0 and of shape (B,), got {lengths.tolist()}")
        longest = int(lengths.max()) if lengths.numel() else 0
        size = longest if size is None else size
        if longest > size:
            raise SightlineError(f"lengths must be at most the size {size}, got {longest}")
        return cls(torch.arange(size, device=lengths.device) < lengths[:, None])

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        return Rules(self.attention_mask.to(device))


class Causal(Mask):
    """A token sees itself and what came before."""

    causal = True

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        if queries == 1 and keys:
            return Rules()  # the last token sees all the others
        rows = _positions("Causal", queries, keys, device)
        return Rules(torch.arange(keys, device=device) <= rows)


class Window(Mask):
    """A token sees itself and at most `radius` neighbors on either side."""

    def __init__(self, radius: int):
        super().__init__()
        check_int(0, radius=radius)
        self.radius = radius

    def extra_repr(self) -> str:
        return str(self.radius)

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        rows = _positions("Window", queries, keys, device)
        columns = torch.arange(keys, device=device)
        return Rules((columns >= rows - self.radius) & (columns <= rows + self.radius))


class Episode(Mask):
    """The first `support` tokens are labelled examples, seen by all; those after them are queries of `size` tokens each
    that see the support and themselves, so that no answer depends on the other queries."""

    def __init__(self, support: int, *, size: int = 1):
        super().__init__()
        check_int(1, support=support, size=size)
        self.support, self.size = support, size

    def extra_repr(self) -> str:
        return str(self.support) if self.size == 1 else f"{self.support}, size={self.size}"

    def mostly_queries(self, queries: int, keys: int) -> bool:
        """Whether most tokens are of whole queries, which see few of the others; the support may lie in a cache."""
        asked = keys - self.support
        return asked > self.support and asked % self.size == 0 and queries in (asked, keys)

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        if keys < self.support:
            raise SightlineError(f"Episode must have at least its {self.support} support tokens as keys, got {keys}")
        rows = _positions("Episode", queries, keys, device)
        columns = torch.arange(keys, device=device)
        of_query, of_row = ((places - self.support) // self.size for places in (columns, rows))
        return Rules((columns < self.support) | (of_query == of_row))


class Bias(Mask):
    """Numbers of your own that are added to the scores: (Q, K), (B, Q, K) or (B, H, Q, K), sizes of 1 serving all.

    Minus infinity means may not look. Numbers that are known to be `finite` need not be searched for it.
    """

    bends = True

    def __init__(self, bias: Tensor, *, finite: bool = False):
        super().__init__()
        if not isinstance(bias, Tensor) or not bias.is_floating_point() or bias.dim() not in (2, 3, 4):
            raise SightlineError(
                f"Bias must be given a floating-point tensor of 2 or 3 or 4 dimensions, got {_describe(bias)}"
            )
        self.finite = finite
        if isinstance(bias, nn.Parameter):
            self.bias = bias
        else:
            self.register_buffer("bias", bias, persistent=False)

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        bias = self.bias.to(device)
        bias = bias.unsqueeze(1) if bias.dim() == 3 else bias
        return Rules(allowed=None if self.finite else bias > float("-inf"), bias=bias)


class LearnedMask(Mask):
    """A table of numbers to learn, one for every pair of positions; it serves lengths up to `size`."""

    bends = True
    is_table = True
    """What it learns belongs to places; it is no matrix that maps one thing to another."""
    start = 0.0

    def __init__(self, size: int, *, num_heads: int = 1):
        super().__init__()
        check_int(1, size=size, num_heads=num_heads)
        self.table = nn.Parameter(torch.full((num_heads, size, size), self.start))

    def extra_repr(self) -> str:
        return f"size={self.table.shape[-1]}, num_heads={self.table.shape[0]}"

    def part(self, queries: int, keys: int) -> Tensor:
        """The numbers for these positions: (1, heads, Q, K)"""
        size = self.table.shape[-1]
        if keys > size or queries > keys:
            raise SightlineError(
                f"{type(self).__name__} must be used with at most {size} keys, its size, and no more queries than "
                f"keys, got {queries} queries and {keys} keys"
            )
        return self.table[None, :, keys - queries : keys, :keys]


class Additive(LearnedMask):
    """Learned numbers added to the scores; they start at 0."""

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        return Rules(bias=self.part(queries, keys))


class Multiplicative(LearnedMask):
    """Learned numbers that multiply the scores; they start at 1."""

    start = 1.0

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        return Rules(factor=self.part(queries, keys))


MASKS: dict[str, type[Mask]] = {
    "allow": Allow,
    "padding": Padding,
    "causal": Causal,
    "window": Window,
    "episode": Episode,
    "bias": Bias,
    "additive": Additive,
    "multiplicative": Multiplicative,
}


def make_mask(name: str, *args: Any, **options: Any) -> Mask:
    """A mask by its name in `MASKS`: make_mask("window", 3)"""
    if name not in MASKS:
        raise SightlineError(f"mask must be {one_of(str(name), MASKS)}")
    return MASKS[name](*args, **options)


def resolve(mask: Mask | None, shape: tuple[int, int, int, int], device: torch.device) -> Rules:
    """What the mask says of scores of this shape (B, H, Q, K); refused if its size does not fit them."""
    if mask is None:
        return Rules()
    check_mask(mask, "mask")
    rules = mask.rules(shape[2], shape[3], device)
    for part in rules:
        if part is not None and not broadcasts(part.shape, shape):
            batch, heads, queries, keys = shape
            raise SightlineError(
                f"mask must broadcast to (batch {batch}, heads {heads}, queries {queries}, keys {keys}), "
                f"got {tuple(part.shape)}"
            )
    return rules


def _positions(name: str, queries: int, keys: int, device: torch.device) -> Tensor:
    """Where the queries stand among the keys, which they end: (Q, 1)"""
    if queries > keys:
        raise SightlineError(
            f"{name} must have at least as many keys as queries, got {queries} queries and {keys} keys"
        )
    return torch.arange(keys - queries, keys, device=device)[:, None]


def check_mask(mask: object, where: str) -> Mask:
    """The mask, if it is one."""
    if isinstance(mask, Mask):
        return mask
    fix = "wrap a bool table in Allow (True = may look) or forbid (True = may not), numbers to add to scores in Bias"
    if isinstance(mask, type) and issubclass(mask, Mask):
        fix = f"make one of it: {mask.__name__}(...)"
    elif isinstance(mask, str) and mask in MASKS:
        fix = f"make it by its name: make_mask({mask!r}, ...)"
    raise SightlineError(f"{where} must be given a Mask, got {_describe(mask)}; {fix}")


def _refuse_bending(operator: str, *masks: Mask) -> None:
    for mask in masks:
        if mask.bends:
            raise SightlineError(
                f"{operator} must combine masks that only allow or forbid, got {type(mask).__name__}; use &"
            )


def _check_bool(name: str, table: object, dims: tuple[int, ...]) -> None:
    if not isinstance(table, Tensor) or table.dtype != torch.bool or table.dim() not in dims:
        raise SightlineError(
            f"{name} must be given a bool tensor of {' or '.join(map(str, dims))} dimensions, got {_describe(table)}"
        )


def _describe(value: object) -> str:
    return f"a {value.dtype} tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
