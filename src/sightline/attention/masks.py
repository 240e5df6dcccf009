"""Who may look at whom. One type, one meaning: True = may look.

Masks are made by name and combined freely: `Causal() & Padding(real)`. A mask learns its sizes only when it is used, so
the same `Causal()` serves every length. With a cache there are more keys than queries; the queries are then the last of
the keys, and every mask here knows it. A new mask is one class here and its line in `MASKS`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..naming import nearest


class Rules(NamedTuple):
    """What a mask says of Q queries and K keys; each part broadcasts to (B, H, Q, K), None changes nothing."""

    allowed: Tensor | None = None
    """bool, True = may look; it has the last word."""
    bias: Tensor | None = None
    """Added to the scores."""
    factor: Tensor | None = None
    """Multiplies the scores, before the bias."""

    def bend(self, scores: Tensor) -> Tensor:
        """scores (B, H, Q, K) -> scores (B, H, Q, K)"""
        if self.factor is not None:
            scores = scores * self.factor
        if self.bias is not None:
            scores = scores + self.bias
        return scores


class Mask(nn.Module):
    """forward: number of queries, number of keys, device -> Rules.

    A mask is a module, so a learnt one trains and every one moves with the model that holds it.
    """

    learnt = False
    """Whether it bends scores; such a mask can only be combined with `&`."""
    causal = False
    """Whether it hides the future."""

    def __and__(self, other: "Mask") -> "Mask":
        """May look where both allow it."""
        return Both(self, _checked(other, "&"))

    def __or__(self, other: "Mask") -> "Mask":
        """May look where either allows it."""
        return Either(self, _checked(other, "|"))

    def __invert__(self) -> "Mask":
        """May look where this one forbids it."""
        return Not(self)


class Both(Mask):
    """May look where both allow it. Whatever a learnt mask makes of the scores, what is forbidden stays so."""

    def __init__(self, one: Mask, other: Mask):
        super().__init__()
        self.one, self.other = one, other
        self.learnt = one.learnt or other.learnt
        self.causal = one.causal or other.causal

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        a, b = self.one(queries, keys, device), self.other(queries, keys, device)
        return Rules(
            b.allowed if a.allowed is None else a.allowed if b.allowed is None else a.allowed & b.allowed,
            b.bias if a.bias is None else a.bias if b.bias is None else a.bias + b.bias,
            b.factor if a.factor is None else a.factor if b.factor is None else a.factor * b.factor,
        )


class Either(Mask):
    """May look where either allows it."""

    def __init__(self, one: Mask, other: Mask):
        super().__init__()
        _refuse_learnt("|", one, other)
        self.one, self.other = one, other
        self.causal = one.causal and other.causal

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        a, b = self.one(queries, keys, device).allowed, self.other(queries, keys, device).allowed
        return Rules(None if a is None or b is None else a | b)


class Not(Mask):
    """May look where the other forbids it."""

    def __init__(self, other: Mask):
        super().__init__()
        _refuse_learnt("~", other)
        self.other = other

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        allowed = self.other(queries, keys, device).allowed
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
    """A table that says True = may *not* look, the way `nn.MultiheadAttention` takes it."""
    _check_bool("forbid", table, (2, 3, 4))
    return Allow(~table)


class Padding(Mask):
    """Nobody looks at padding. real (B, K): True where there is a token."""

    real: Tensor

    def __init__(self, real: Tensor):
        super().__init__()
        _check_bool("Padding", real, (2,))
        self.register_buffer("real", real[:, None, None, :], persistent=False)

    @classmethod
    def of_lengths(cls, lengths: Tensor, size: int | None = None) -> "Padding":
        """From the number of tokens in each row: lengths (B,)"""
        if lengths.dim() != 1 or lengths.is_floating_point():
            raise ValueError(f"lengths must be whole numbers of shape (B,), got {lengths.dtype} {tuple(lengths.shape)}")
        longest = int(lengths.max()) if lengths.numel() else 0
        size = longest if size is None else size
        if longest > size:
            raise ValueError(f"lengths must be at most the size {size}, got {longest}")
        return cls(torch.arange(size, device=lengths.device) < lengths[:, None])

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        return Rules(self.real.to(device))


class Causal(Mask):
    """A token sees itself and what came before."""

    causal = True

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        rows = _positions("Causal", queries, keys, device)
        if queries == 1:
            return Rules()  # the last token sees all the others
        return Rules(torch.arange(keys, device=device) <= rows)


class Window(Mask):
    """A token sees itself and at most `radius` neighbours on either side."""

    def __init__(self, radius: int):
        super().__init__()
        if isinstance(radius, bool) or not isinstance(radius, int) or radius < 0:
            raise ValueError(f"radius must be a whole number of at least 0, got {radius!r}")
        self.radius = radius

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        rows = _positions("Window", queries, keys, device)
        return Rules((torch.arange(keys, device=device) - rows).abs() <= self.radius)


class Episode(Mask):
    """The first `support` tokens are labelled examples, seen by all; a token after them is a query that sees the
    support and itself, so that no answer depends on the other queries."""

    def __init__(self, support: int):
        super().__init__()
        if isinstance(support, bool) or not isinstance(support, int) or support < 1:
            raise ValueError(f"support must be a whole number of at least 1, got {support!r}")
        self.support = support

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        if keys < self.support:
            raise ValueError(f"Episode must have at least its {self.support} support tokens as keys, got {keys}")
        rows = _positions("Episode", queries, keys, device)
        columns = torch.arange(keys, device=device)
        return Rules((columns < self.support) | (columns == rows))


class Bias(Mask):
    """Numbers of your own that are added to the scores: anything that broadcasts to (B, H, Q, K)."""

    learnt = True
    bias: Tensor

    def __init__(self, bias: Tensor):
        super().__init__()
        if not isinstance(bias, Tensor) or not bias.is_floating_point():
            raise ValueError(f"Bias must be given a tensor of floating-point numbers, got {_describe(bias)}")
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        return Rules(bias=self.bias.to(device))


class LearntMask(Mask):
    """A table of numbers to learn, one for every pair of positions; it serves lengths up to `size`."""

    learnt = True
    start = 0.0

    def __init__(self, size: int, *, heads: int = 1):
        super().__init__()
        for name, value in (("size", size), ("heads", heads)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        self.table = nn.Parameter(torch.full((heads, size, size), self.start))

    def part(self, queries: int, keys: int) -> Tensor:
        """The numbers for these positions: (heads, Q, K)"""
        size = self.table.shape[-1]
        if keys > size or queries > keys:
            raise ValueError(
                f"{type(self).__name__} must be used with at most {size} keys, its size, and no more queries than "
                f"keys, got {queries} queries and {keys} keys"
            )
        return self.table[:, keys - queries : keys, :keys]


class Additive(LearntMask):
    """Learnt numbers added to the scores; they start at 0."""

    def forward(self, queries: int, keys: int, device: torch.device) -> Rules:
        return Rules(bias=self.part(queries, keys))


class Multiplicative(LearntMask):
    """Learnt numbers that multiply the scores; they start at 1."""

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
        raise ValueError(f"mask must be {nearest(str(name), MASKS)}")
    return MASKS[name](*args, **options)


def resolve(mask: Mask | None, shape: tuple[int, int, int, int], device: torch.device) -> Rules:
    """What the mask says of scores of this shape (B, H, Q, K); refused if its size does not fit them."""
    if mask is None:
        return Rules()
    _checked(mask, "mask")
    rules: Rules = mask(shape[2], shape[3], device)
    for part in rules:
        if part is not None and not _broadcasts(part.shape, shape):
            batch, heads, queries, keys = shape
            raise ValueError(
                f"mask must broadcast to (batch {batch}, heads {heads}, queries {queries}, keys {keys}), "
                f"got {tuple(part.shape)}"
            )
    return rules


def _broadcasts(part: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    return len(part) <= len(whole) and all(a in (1, b) for a, b in zip(part[::-1], whole[::-1], strict=False))


def _positions(name: str, queries: int, keys: int, device: torch.device) -> Tensor:
    """Where the queries stand among the keys, which they end: (Q, 1)"""
    if queries > keys:
        raise ValueError(f"{name} must have at least as many keys as queries, got {queries} queries and {keys} keys")
    return torch.arange(keys - queries, keys, device=device)[:, None]


def _checked(mask: object, where: str) -> Mask:
    if not isinstance(mask, Mask):
        raise ValueError(
            f"{where} must be given a Mask, got {_describe(mask)}; wrap a bool table in Allow (True = may look) "
            "or forbid (True = may not), numbers to add to the scores in Bias"
        )
    return mask


def _refuse_learnt(operator: str, *masks: Mask) -> None:
    for mask in masks:
        if mask.learnt:
            raise ValueError(
                f"{operator} must combine masks that only allow or forbid, got {type(mask).__name__}; use &"
            )


def _check_bool(name: str, table: object, dims: tuple[int, ...]) -> None:
    if not isinstance(table, Tensor) or table.dtype != torch.bool or table.dim() not in dims:
        raise ValueError(
            f"{name} must be given a bool tensor of {' or '.join(map(str, dims))} dimensions, got {_describe(table)}"
        )


def _describe(value: object) -> str:
    return f"a {value.dtype} tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
