"""Recorded attention weights: inspect, save, load, plot and view them.

Shapes: B batch, H heads, Q queries, K keys.
"""

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import SightlineError, check, check_choice, reraise
from ..files import atomic_write
from .attention_map import KINDS, MEASURES, METADATA_KEYS, AttentionMap, Measure
from .functional import Kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..view.maps import Map
    from ..view.page import Page, ViewOptions
    from .relevance import Targets

FORMAT = "sightline record 4"
"""Format name in the metadata of a saved record."""
MAX_LINES = 60
"""Maps listed by `repr`."""
MAX_NAMES = 8
"""Modules listed for each reason why they were not recorded."""


class Record:
    """Attention maps in the order they were computed: `record[0].weights`, `record["decoder.layers.1.self_attn"]`."""

    def __init__(self, model: str, maps: list[AttentionMap] | None = None):
        self.model = model
        """Class name of the model."""
        self.maps = [] if maps is None else maps
        self.missed: dict[str, str] = {}
        """Attention modules that ran and were not recorded, each with the reason."""
        self.patch_grid: tuple[int, int] | None = None
        """Rows and columns of patches that the model divided an image into; None if unknown."""
        self.image_tokens: tuple[int, int] | None = None
        """First and last + 1 of the tokens that stand for an image in a text; None if unknown."""

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
            return self.with_maps(self.maps[key])
        if isinstance(key, int):
            if not -len(self) <= key < len(self):
                raise IndexError(f"record has {len(self)} attention maps, got index {key}")
            return self.maps[key]
        for attention_map in reversed(self.maps):
            if attention_map.name == key:
                return attention_map
        raise KeyError(f"record has no attention named {key!r}; it has {', '.join(self.names()) or 'none'}")

    def names(self) -> list[str]:
        """Names of the layers, in the order of their first call."""
        return list(dict.fromkeys(attention_map.name for attention_map in self.maps))

    def of(self, kind: Kind | Measure) -> "Record":
        """The maps of one kind, encoder, decoder or cross, or of one measure: attention, rollout or relevance."""
        check_choice("kind", kind, (*KINDS, *MEASURES))
        return self.with_maps([m for m in self.maps if kind in (m.measure, m.measure == "attention" and m.kind)])

    def __add__(self, other: "Record") -> "Record":
        """The maps of both records, as for a page of attention and relevance."""
        return self.with_maps([*self.maps, *other.maps])

    def with_maps(self, maps: list[AttentionMap]) -> "Record":
        """A record of the same model and inputs with other maps."""
        record = copy.copy(self)
        record.maps = maps
        return record

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
        lines += [f"  {attention_map.name:<{width}}  {attention_map.describe()}" for attention_map in listed]
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

    def rollout(self, layers: str = "*") -> "Record":
        """Attention rollout: how much the last layer attends to each input token, through all layers: (B, 1, Q, K)

        Each layer is the mean of its weights, averaged over heads, and the identity for the residual connection; layers
        are multiplied (Abnar and Zuidema, 2020). `layers` is a pattern of their names. One map of each kind.
        """
        from .relevance import rollout

        return rollout(self, layers)

    def relevance(self, targets: "Targets", layers: str = "*") -> "Record":
        """The relevance of each input token for each target, by attention and its gradient: (B, 1, targets, K)

        A target is a tensor () or (B,) computed from the outputs: the logit of a class or token, or the difference of
        two for "A rather than B". Several are a dict of them by name. The rule is that of Chefer et al. (2021).
        Requires `record_attention(model, gradients=True)`. `layers` is a pattern of the names of the layers that take
        part. A model with an encoder and a decoder has two maps: over the source tokens and over the target tokens.
        """
        from .relevance import relevance

        return relevance(self, targets, layers)

    def word_maps(self, grid: tuple[int, int] | None = None) -> "Record":
        """Where an image attends to each word in a diffusion model, over layers and steps: (B, 1, words, patches)

        Cross-attention is averaged over heads, resized to the largest grid of patches, and averaged over layers and
        calls. `grid` are the rows and columns of that grid, if they are not equal.
        """
        from .word_maps import word_maps

        return word_maps(self, grid)

    def view(self, tokens: Any = None, **options: "Unpack[ViewOptions]") -> "Page":
        """The interactive viewer, with these `ViewOptions`. As the last line of a notebook cell it is displayed."""
        from ..view.page import attention_page

        options.setdefault("title", self.model)
        options.setdefault("patch_grid", self.patch_grid)
        if self.image_tokens is not None:
            options.setdefault("image_tokens", slice(*self.image_tokens))
        return attention_page(self._view_maps(), tokens, **options)

    def save_html(self, path: str | os.PathLike[str], tokens: Any = None, **options: "Unpack[ViewOptions]") -> Path:
        """Write the viewer to one self-contained HTML file. Takes the options of `view`."""
        return self.view(tokens, **options).save(path)

    def plot(
        self,
        layer: int | str | None = None,
        head: int | Literal["mean", "max"] = "mean",
        *,
        tokens: Any = None,
        source: Any = None,
        target: Any = None,
        generated: Any = None,
        tokenizer: Any = None,
        join_subwords: bool = False,
        batch: int = 0,
        title: str | None = None,
    ) -> "Figure":
        """A matplotlib figure of one layer, by index or name, or of all layers and heads (default).

        Tokens, `tokenizer` and `join_subwords` are as in `view`.
        """
        from ..view import plots

        maps = self._view_maps()
        if layer is None:
            return plots.plot_heads(maps, batch=batch, title=self.model if title is None else title)
        labels = {"tokens": tokens, "source": source, "target": target, "generated": generated}
        labels |= {"tokenizer": tokenizer, "join_subwords": join_subwords}
        return plots.plot_layer(maps, layer, head, batch=batch, title=title, **labels)

    def _view_maps(self) -> "list[Map]":
        from ..view.maps import Map

        maps = [m.in_place() for m in self.maps]
        keys = [key for key in METADATA_KEYS if key != "windows"]
        return [Map(**{k: getattr(m, k) for k in keys}, weights=m.weights.detach().float().cpu().numpy()) for m in maps]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a safetensors file, atomically."""
        tensors: dict[str, Tensor] = {}
        for i, attention_map in enumerate(self.maps):
            tensors[f"{i}.weights"] = attention_map.weights.detach().contiguous()
            if attention_map.scores is not None:
                tensors[f"{i}.scores"] = attention_map.scores.detach().clone()  # it may share memory with the weights
        metadata = {"format": FORMAT, "model": self.model, "maps": json.dumps([m.metadata() for m in self.maps])}
        metadata["inputs"] = json.dumps({key: getattr(self, key) for key in RECORD_KEYS})
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
                AttentionMap.from_metadata(entry, tensors[f"{i}.weights"], tensors.get(f"{i}.scores"))
                for i, entry in enumerate(json.loads(metadata["maps"]))
            ]
            record = cls(metadata.get("model", "?"), maps)
            inputs = json.loads(metadata["inputs"])
            record.missed = {str(name): str(reason) for name, reason in inputs["missed"].items()}
            record.patch_grid, record.image_tokens = (_read_pair(inputs[key]) for key in RECORD_KEYS[1:])
            return record


RECORD_KEYS = ("missed", "patch_grid", "image_tokens")
"""Fields of a record beside its maps, saved as JSON."""


def _shorten(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _read_pair(value: Any) -> tuple[int, int] | None:
    is_pair = isinstance(value, list) and len(value) == 2 and all(type(side) is int and side >= 0 for side in value)
    check(value is None or is_pair, f"patch_grid and image_tokens must be null or two integers, got {value!r:.80}")
    return (value[0], value[1]) if is_pair else None
