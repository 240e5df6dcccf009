"""The two sides of attention: what each place of the source and of the target is called, and what it looks like."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import SightlineError
from .images import Pictures, pictures
from .maps import Map

BRACKETED = ("[CLS]", "[SEP]", "[PAD]", "[BOS]", "[EOS]", "<s>", "</s>", "<pad>", "<bos>", "<eos>")
SPECIAL = frozenset((*BRACKETED, "<|endoftext|>", "<|startoftext|>", "<|im_start|>", "<|im_end|>"))
"""Tokens that mean something to the model alone. [MASK], [UNK] and <unk> stand for words, so they are not here."""


@dataclass(frozen=True)
class Side:
    """The names of all places of one side."""

    tokens: list[str]
    special: list[int]
    pictures: Pictures | None = None

    def names(self, size: int) -> list[str]:
        """For a map of this size: the tokens where they fit, else the places counted from 0."""
        return self.tokens if len(self.tokens) == size else [str(i) for i in range(size)]

    def meta(self) -> dict[str, Any]:
        """As the page reads it."""
        shown = self.pictures and {
            "images": self.pictures.images,
            "before": self.pictures.before,
            "grid": self.pictures.grid,
        }
        return {"tokens": self.tokens, "special": self.special, "pictures": shown}


def sides(
    maps: Sequence[Map],
    *,
    tokens: Sequence[str] | None = None,
    source: Sequence[str] | None = None,
    target: Sequence[str] | None = None,
    written: Sequence[str] | None = None,
    images: Any = None,
    query_image: Any = None,
    labels: Sequence[str] | None = None,
    grid: tuple[int, int] | None = None,
    special: Collection[str] | None = None,
) -> dict[str, Side]:
    """The source, which encoders and cross-attention look at, and the target, which a decoder reads.

    With `written` a third: what the decoder writes from each place, which names the rows of cross-attention.
    """
    sizes = _sizes(maps)
    alone = not (sizes["source"] and sizes["target"])
    given = {"tokens": tokens, "source": source, "target": target}
    seen: dict[str, Any] = {"source": images, "target": query_image}
    if alone:
        if query_image is not None:
            raise SightlineError(
                "query_image must come with cross-attention, whose rows it shows, got none; use images"
            )
        seen = dict.fromkeys(seen, images)
    for name, value in (("labels", labels), ("grid", grid)):
        if value is not None and images is None and query_image is None:
            raise SightlineError(f"{name} must come with images, got none")
    special = SPECIAL if special is None else frozenset(special)
    result = {}
    for side, size in sizes.items():
        shown = None
        if size and seen[side] is not None:
            name, some = ("query_image", None) if side == "target" and not alone else ("images", labels)
            shown = pictures(seen[side], size, name=name, labels=some, grid=grid)
        other = "target" if side == "source" else "source"
        asked = ("tokens", side, other) if alone else (side, "tokens")
        called = next((name for name in asked if given[name] is not None), side)
        words = _words(called, given[called], size, shown, two_sided=not alone)
        result[side] = Side(words, _special(words, special), shown)
    if written is not None:
        if not any(one.kind == "cross" for one in maps):
            raise SightlineError("written must come with cross-attention, whose rows it names, got none")
        words = _words("written", written, sizes["target"], None, two_sided=False)
        result["written"] = Side(words, _special(words, special), result["target"].pictures)
    return result


def without_filling(maps: Sequence[Map], told: dict[str, Any]) -> tuple[Sequence[Map], dict[str, Any]]:
    """Where lists of tokens end in None, those places are filling: they are left out of the names and of the maps."""
    kept, sizes = dict(told), _sizes(maps)
    lengths: dict[str, int] = {}
    for name in ("tokens", "source", "target", "written"):
        words = told[name]
        if not isinstance(words, list | tuple) or not words or words[-1] is not None:
            continue
        named = {"tokens": ("source", "target"), "written": ("target",)}.get(name, (name,))
        if len(words) in {sizes[side] for side in named}:  # else it is refused for its number
            length = max((i for i, word in enumerate(words, 1) if word is not None), default=1)
            kept[name] = words[:length]
            lengths |= dict.fromkeys(named, length)

    def cut(one: Map) -> Map:
        looking, looked_at = sides_of(one.kind)
        return replace(one, weights=one.weights[:, :, : lengths.get(looking), : lengths.get(looked_at)])

    return ([cut(one) for one in maps] if lengths else maps), kept


def _sizes(maps: Sequence[Map]) -> dict[str, int]:
    """The places of both sides."""
    sizes = {"source": 0, "target": 0}
    for one in maps:
        looking, looked_at = sides_of(one.kind)
        sizes[looking] = max(sizes[looking], one.shape[2])
        sizes[looked_at] = max(sizes[looked_at], one.shape[3])
    return sizes


def sides_of(kind: str, both: Collection[str] = ()) -> tuple[str, str]:
    """Who looks and who is looked at, by their names in `both`, which may hold what is written."""
    if kind == "cross":
        return ("written" if "written" in both else "target"), "source"
    return ("source", "source") if kind == "encoder" else ("target", "target")


def _special(words: list[str], special: Collection[str]) -> list[int]:
    return [i for i, word in enumerate(words) if word in special]


def _words(name: str, given: Sequence[str] | None, size: int, shown: Pictures | None, *, two_sided: bool) -> list[str]:
    if given is None or not size:
        return shown.tokens() if shown else [str(i) for i in range(size)]
    if isinstance(given, str):
        raise SightlineError(f"{name} must be a list of tokens, got the string {given!r}")
    if getattr(given, "ndim", 1) != 1:
        raise SightlineError(f"{name} must be a list of tokens, got an array of shape {tuple(given.shape)}")  # type: ignore[attr-defined]
    words = [str(word.item() if hasattr(word, "item") else word) for word in given]  # numbers of numpy and torch
    if len(words) != size:
        hint = "; the last token of generate() never looks, so leave it out" if len(words) == size + 1 else ""
        hint = "; the first token is read and never written, so leave it out" if hint and name == "written" else hint
        hint = "; of several examples, name them with batch=[0, …]" if len(words) == 1 < size else hint
        hint = "; name both sides with source= and target=" if two_sided and name == "tokens" else hint
        raise SightlineError(
            f"{name} must be {size} tokens, one for each place of the attention, got {len(words)}{hint}"
        )
    return words
