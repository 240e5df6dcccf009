"""Recorded attention weights: inspect, save, load, plot and view them.

Shapes: B batch, H heads, Q queries, K keys.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args, overload

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import SightlineError, check, check_choice, reraise
from ..files import atomic_write
from .functional import Kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..view.maps import Map
    from ..view.page import Page, ViewOptions

FORMAT = "sightline record 3"
"""Format name in the metadata of a saved record."""
MAX_LINES = 60
"""Maps listed by `repr`."""
MAX_NAMES = 8
"""Modules listed for each reason why they were not recorded."""


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

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, get_args(Kind))
        for name, x in (("weights", self.weights), ("scores", self.scores)):
            if x is not None and (x.dim() != 4 or not x.is_floating_point()):
                raise SightlineError(f"{name} must be floats of shape (B, H, Q, K), got {x.dtype} {tuple(x.shape)}")

    def entropy(self) -> float | None:
        """Mean entropy of the rows in bits, from 0 to log2 K. None if weights are negative or sum to more than 1."""
        p = self.weights.float()
        if (p < 0).any() or (p.sum(-1) > 1.01).any():
            return None
        bits = -(p * p.clamp(min=1e-30).log2()).sum(-1)
        is_masked = p.sum(-1) == 0
        return float(bits[~is_masked].mean()) if not is_masked.all() else 0.0


class Record:
    """Attention maps in the order they were computed: `record[0].weights`, `record["decoder.layers.1.self_attn"]`."""

    def __init__(self, model: str, maps: list[AttentionMap] | None = None, missed: dict[str, str] | None = None):
        self.model = model
        """Class name of the model."""
        self.maps = [] if maps is None else maps
        self.missed = {} if missed is None else missed
        """Attention modules that ran and were not recorded, each with the reason."""

    def __len__(self) -> int:
        return len(self.maps)

    def __iter__(self) -> Iterator[AttentionMap]:
        return iter(self.maps)

    @overload
    def __getitem__(self, key: int | str) -> AttentionMap: ...
    @overload
    def __getitem__(self, key: slice) -> "Record": ...
    def __getitem__(self, key: int | str | slice) -> "AttentionMap | Record":
        """By index, by name (the last call of that layer) or by slice (a shorter record)."""
        if isinstance(key, slice):
            return Record(self.model, self.maps[key], self.missed)
        if isinstance(key, int):
            return self.maps[key]
        for attention_map in reversed(self.maps):
            if attention_map.name == key:
                return attention_map
        raise KeyError(f"record has no attention named {key!r}; it has {', '.join(self.names()) or 'none'}")

    def names(self) -> list[str]:
        """Names of the layers, in the order of their first call."""
        return list(dict.fromkeys(attention_map.name for attention_map in self.maps))

    def of(self, kind: Kind) -> "Record":
        """The maps of one kind: encoder, decoder or cross."""
        check_choice("kind", kind, get_args(Kind))
        maps = [attention_map for attention_map in self.maps if attention_map.kind == kind]
        return Record(self.model, maps, self.missed)

    def stack(self) -> Tensor:
        """The weights of all maps in one tensor: (maps, B, H, Q, K). Their shapes must be equal."""
        shapes = sorted({tuple(attention_map.weights.shape) for attention_map in self.maps})
        if len(shapes) != 1:
            got = f"{shapes}; select maps with of(kind) or a slice first" if shapes else "none"
            raise SightlineError(f"stack must have weights of one shape, got {got}")
        return torch.stack([attention_map.weights for attention_map in self.maps])

    def __repr__(self) -> str:
        count = "no attention maps" if not self.maps else f"{len(self.maps)} attention map{'s' * (len(self.maps) > 1)}"
        lines = [f"Record of {self.model}: {count}"]
        listed = self.maps[:MAX_LINES]
        width = max((len(attention_map.name) for attention_map in listed), default=0)
        for attention_map in listed:
            batch, num_heads, queries, keys = attention_map.weights.shape
            if attention_map.heads == ():
                heads = "heads averaged"
            elif attention_map.heads is not None:
                heads = f"heads {', '.join(map(str, attention_map.heads))}"
            else:
                heads = "1 head" if num_heads == 1 else f"{num_heads} heads"
            size = f"{queries} x {keys}" + (f", batch of {batch}" if batch > 1 else "")
            bits = attention_map.entropy()
            entropy = "no probabilities" if bits is None else f"entropy {bits:.2f} bits"
            note = attention_map.note and f", {attention_map.note}"
            lines.append(f"  {attention_map.name:<{width}}  {attention_map.kind:<7}  {heads}, {size}, {entropy}{note}")
        if len(self.maps) > len(listed):
            layers = f" of {len(self.names())} layers" if len(self.names()) < len(self.maps) else ""
            lines.append(f"  and {len(self.maps) - len(listed)} more{layers}")
        if self.missed:
            lines.append(f"  {self.missed_text()}")
        return "\n".join(lines)

    def missed_text(self) -> str:
        """The modules that were not recorded, by reason, in one line."""
        names: dict[str, list[str]] = {}
        for name, reason in self.missed.items():
            names.setdefault(reason, []).append(name)
        return "not recorded: " + "; ".join(f"{_shorten(listed)} ({reason})" for reason, listed in names.items())

    def view(self, tokens: Any = None, **options: "Unpack[ViewOptions]") -> "Page":
        """The interactive viewer, with these `ViewOptions`. As the last line of a notebook cell it is displayed."""
        from ..view.page import attention_page

        options.setdefault("title", self.model)
        return attention_page(self._view_maps(), tokens, **options)

    def save_html(self, path: str | os.PathLike[str], tokens: Any = None, **options: "Unpack[ViewOptions]") -> Path:
        """Write the viewer to one self-contained HTML file. Takes the options of `view`."""
        return self.view(tokens, **options).save(path)

    def plot(
        self,
        layer: int | str | None = None,
        head: int | Literal["mean", "max"] = "mean",
        *,
        tokens: Sequence[str] | None = None,
        source: Sequence[str] | None = None,
        target: Sequence[str] | None = None,
        generated: Sequence[str] | None = None,
        batch: int = 0,
        title: str | None = None,
    ) -> "Figure":
        """A matplotlib figure of one layer, by index or name, or of all layers and heads (default)."""
        from ..view import plots

        maps = self._view_maps()
        if layer is None:
            return plots.plot_heads(maps, batch=batch, title=self.model if title is None else title)
        labels = {"tokens": tokens, "source": source, "target": target, "generated": generated}
        return plots.plot_layer(maps, layer, head, batch=batch, title=title, **labels)

    def _view_maps(self) -> "list[Map]":
        from ..view.maps import Map

        return [Map(**_metadata(m), weights=m.weights.detach().float().cpu().numpy()) for m in self.maps]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a safetensors file, atomically."""
        tensors: dict[str, Tensor] = {}
        for i, attention_map in enumerate(self.maps):
            tensors[f"{i}.weights"] = attention_map.weights.detach().contiguous()
            if attention_map.scores is not None:
                tensors[f"{i}.scores"] = attention_map.scores.detach().clone()  # it may share memory with the weights
        metadata = {"format": FORMAT, "model": self.model, "maps": json.dumps([_metadata(m) for m in self.maps])}
        metadata["missed"] = json.dumps(self.missed)
        with atomic_write(path) as temporary:
            save_file(tensors, temporary, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Record":
        """Read a file written by `save`."""
        errors = (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError)
        with reraise(f"{path} must be a complete Sightline record", *errors), safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            check(metadata.get("format") == FORMAT, f"its format must be {FORMAT!r}, got {metadata.get('format')!r}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            maps = [
                _read_entry(entry, tensors[f"{i}.weights"], tensors.get(f"{i}.scores"))
                for i, entry in enumerate(json.loads(metadata["maps"]))
            ]
            missed = json.loads(metadata.get("missed", "{}"))
            is_valid = isinstance(missed, dict) and all(isinstance(reason, str) for reason in missed.values())
            check(is_valid, f"missed must map names to reasons, got {missed!r:.80}")
            return cls(metadata.get("model", "?"), maps, missed)


METADATA_KEYS = ("name", "kind", "heads", "call_index", "cache_reorders", "note")
"""Fields of a map beside its tensors, saved as JSON."""


def _metadata(attention_map: AttentionMap) -> dict[str, Any]:
    return {key: getattr(attention_map, key) for key in METADATA_KEYS}


def _shorten(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _read_entry(entry: dict[str, Any], weights: Tensor, scores: Tensor | None) -> AttentionMap:
    entry = {key: entry[key] for key in METADATA_KEYS}
    name, _, heads, call_index, cache_reorders, note = entry.values()
    check(isinstance(name, str) and isinstance(note, str), f"name and note must be strings, got {name!r}, {note!r}")
    is_valid = heads is None or (isinstance(heads, list) and all(type(head) is int for head in heads))
    check(is_valid, f"heads must be null or a list of integers, got {heads!r}")
    is_valid = (call_index is None or type(call_index) is int) and type(cache_reorders) is int
    check(is_valid, f"call_index and cache_reorders must be integers, got {call_index!r}, {cache_reorders!r}")
    return AttentionMap(**{**entry, "heads": None if heads is None else tuple(heads)}, weights=weights, scores=scores)
