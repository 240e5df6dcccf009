"""What was seen: the attention of one or more forward passes, layer by layer."""

import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_args, overload

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import SightlineError, one_of
from ..files import atomic_write
from .functional import Kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..view.maps import Map
    from ..view.page import Page


MOST_LINES = 60
"""Maps up to which a record prints them all."""


class Shown(TypedDict, total=False):
    """What a page needs to know beside the weights."""

    source: Any
    """Tokens of the encoder's side; here and elsewhere None at the end is filling, whose place is left out."""
    target: Any
    """Tokens of the decoder's side, as it reads them."""
    written: Any
    """What the decoder writes from each of its places, where that is told apart from what it reads."""
    images: Any
    """What the source shows: a picture cut into patches, or a list of support pictures. Path, PIL image or array."""
    query_image: Any
    """The picture the target shows, where it is another."""
    labels: Any
    """A name for each of `images`."""
    grid: tuple[int, int] | None
    """Rows and columns of patches, where the picture's shape does not tell."""
    special: Collection[str] | None
    """Tokens that a switch hides; left out, [CLS], </s> and their like."""
    batch: int | Sequence[int]
    """Which row of the batch; with several, tokens and images are lists with one entry for each."""
    names: Sequence[str] | None
    """What to call each of several examples; left out, the rows of the batch."""
    title: str
    """At the head of the page; left out, the model's name."""
    height: int
    """Of the frame in a notebook, in pixels."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """One attention, seen once."""

    name: str
    """Where it stands in the model: `encoder.layers.0.self_attn`."""
    kind: Kind
    """encoder (looks both ways), decoder (does not see the future) or cross (looks at another sequence)."""
    weights: Tensor
    """(B, H, Q, K); H is 1 where heads were averaged."""
    scores: Tensor | None = None
    """(B, H, Q, K) before the normalizer, -inf where none may look; kept if they were asked for."""
    heads: tuple[int, ...] | None = None
    """Which heads were kept, None for all."""
    turn: int | None = None
    """Which call of the whole model it was seen in, counted from 0; None where nobody counted."""
    shuffles: int = 0
    """How often the rows of a key-value cache had changed places before it, as a beam search makes them."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise SightlineError(f"kind must be {one_of(str(self.kind), get_args(Kind))}")
        for name, x in (("weights", self.weights), ("scores", self.scores)):
            if x is not None and (x.dim() != 4 or not x.is_floating_point()):
                raise SightlineError(f"{name} must be numbers of shape (B, H, Q, K), got {x.dtype} {tuple(x.shape)}")

    def entropy(self) -> float | None:
        """Mean over rows in bits: 0 for one key alone, log2 K for all alike; None if weights are no shares."""
        p = self.weights.float()
        if (p < 0).any() or (p.sum(-1) > 1.01).any():
            return None
        bits = -(p * p.clamp(min=1e-30).log2()).sum(-1)
        looks = p.sum(-1) > 0
        return float(bits[looks].mean()) if looks.any() else 0.0


class Record:
    """Attention in the order it was computed: `record[0].weights`, `record["decoder.layers.1.self_attn"]`."""

    def __init__(self, model: str, seen: list[Seen] | None = None):
        self.model = model
        self.seen = [] if seen is None else seen

    def __len__(self) -> int:
        return len(self.seen)

    def __iter__(self) -> Iterator[Seen]:
        return iter(self.seen)

    @overload
    def __getitem__(self, key: int | str) -> Seen: ...
    @overload
    def __getitem__(self, key: slice) -> "Record": ...
    def __getitem__(self, key: int | str | slice) -> "Seen | Record":
        """By place, or by name (the last time that attention ran); a slice is a shorter record."""
        if isinstance(key, slice):
            return Record(self.model, self.seen[key])
        if isinstance(key, int):
            return self.seen[key]
        for seen in reversed(self.seen):
            if seen.name == key:
                return seen
        raise KeyError(f"record has no attention named {key!r}; it has {', '.join(self.names()) or 'none'}")

    def names(self) -> list[str]:
        """Each attention once, in the order in which it first ran."""
        return list(dict.fromkeys(seen.name for seen in self.seen))

    def of(self, kind: Kind) -> "Record":
        """Only the attentions of this kind."""
        if kind not in get_args(Kind):
            raise SightlineError(f"kind must be {one_of(str(kind), get_args(Kind))}")
        return Record(self.model, [seen for seen in self.seen if seen.kind == kind])

    def stacked(self) -> Tensor:
        """All layers in one tensor, where their sizes agree: (layers, B, H, Q, K)"""
        shapes = sorted({tuple(seen.weights.shape) for seen in self.seen})
        if len(shapes) != 1:
            found = f"{shapes}; pick some with of(kind) or by place first" if shapes else "none"
            raise SightlineError(f"stacked must have weights of one shape, got {found}")
        return torch.stack([seen.weights for seen in self.seen])

    def __repr__(self) -> str:
        count = "nothing yet" if not self.seen else f"{len(self.seen)} attention map{'s' * (len(self.seen) > 1)}"
        lines = [f"Record of {self.model}: {count}"]
        told = self.seen[:MOST_LINES]
        wide = max((len(seen.name) for seen in told), default=0)
        for seen in told:
            batch, heads, queries, keys = seen.weights.shape
            which = f"{heads} heads" if seen.heads is None else f"heads {', '.join(map(str, seen.heads))}"
            which = "heads averaged" if seen.heads == () else "1 head" if which == "1 heads" else which
            size = f"{queries} x {keys}" + (f", batch of {batch}" if batch > 1 else "")
            bits = seen.entropy()
            spread = "weights that are no shares" if bits is None else f"entropy {bits:.2f} bits"
            lines.append(f"  {seen.name:<{wide}}  {seen.kind:<7}  {which}, {size}, {spread}")
        if len(self.seen) > len(told):
            calls = f" by {len(self.names())} attentions" if len(self.names()) < len(self.seen) else ""
            lines.append(f"  and {len(self.seen) - len(told)} more{calls}")
        return "\n".join(lines)

    def view(self, tokens: Any = None, **shown: Unpack[Shown]) -> "Page":
        """The viewer, as the last line of a notebook cell: `record.view(tokens)`; `Shown` lists what else it takes."""
        from ..view.page import page

        shown.setdefault("title", self.model)
        return page(self._maps(), tokens=tokens, **shown)

    def save_html(self, path: str | os.PathLike[str], tokens: Any = None, **shown: Unpack[Shown]) -> Path:
        """The viewer as one file that works from disk; takes what `view` takes."""
        return self.view(tokens, **shown).save(path)

    def plot(
        self,
        layer: int | str | None = None,
        head: int | Literal["mean", "max"] = "mean",
        *,
        tokens: Sequence[str] | None = None,
        source: Sequence[str] | None = None,
        target: Sequence[str] | None = None,
        written: Sequence[str] | None = None,
        batch: int = 0,
        title: str | None = None,
    ) -> "Figure":
        """A matplotlib figure for papers: one layer by its place or name, or without it all layers and heads."""
        from ..view import plots

        maps = self._maps()
        if layer is None:
            return plots.every_head(maps, batch=batch, title=self.model if title is None else title)
        words = {"tokens": tokens, "source": source, "target": target, "written": written}
        return plots.one_map(maps, layer, head, batch=batch, title=title, **words)

    def _maps(self) -> "list[Map]":
        from ..view.maps import Map

        def as_map(s: Seen) -> Map:
            weights = s.weights.detach().float().cpu().numpy()
            return Map(name=s.name, kind=s.kind, heads=s.heads, turn=s.turn, shuffles=s.shuffles, weights=weights)

        return [as_map(seen) for seen in self.seen]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a safetensors file, whole or not at all."""
        tensors: dict[str, Tensor] = {}
        rows = []
        for i, seen in enumerate(self.seen):
            rows.append({name: getattr(seen, name) for name in ("name", "kind", "heads", "turn", "shuffles")})
            tensors[f"{i}.weights"] = seen.weights.detach().contiguous()
            if seen.scores is not None:
                tensors[f"{i}.scores"] = seen.scores.detach().clone()  # it may share memory with the weights
        metadata = {"format": FORMAT, "model": self.model, "seen": json.dumps(rows)}
        with atomic_write(path) as part:
            save_file(tensors, part, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Record":
        """Read what `save` wrote."""
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != FORMAT:
                    raise SightlineError(f"a file of the format {FORMAT!r} is wanted, not {metadata.get('format')!r}")
                rows = json.loads(metadata["seen"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            seen = [_read_row(row, tensors[f"{i}.weights"], tensors.get(f"{i}.scores")) for i, row in enumerate(rows)]
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise SightlineError(f"{path} must be a whole Sightline record, got an error: {error}") from error
        return cls(metadata.get("model", "?"), seen)


FORMAT = "sightline record 1"


def _read_row(row: dict[str, Any], weights: Tensor, scores: Tensor | None) -> Seen:
    name, kind, heads = row["name"], row["kind"], row["heads"]
    turn, shuffles = row.get("turn"), row.get("shuffles", 0)  # older files do not say
    if not isinstance(name, str):
        raise SightlineError(f"a name must be text, got {name!r}")
    if heads is not None and not (isinstance(heads, list) and all(type(head) is int for head in heads)):
        raise SightlineError(f"heads must be null or a list of integers, got {heads!r}")
    if not (turn is None or type(turn) is int) or type(shuffles) is not int:
        raise SightlineError(f"turn and shuffles must be integers, got {turn!r} and {shuffles!r}")
    heads = None if heads is None else tuple(heads)
    return Seen(name=name, kind=kind, weights=weights, scores=scores, heads=heads, turn=turn, shuffles=shuffles)
