"""The source and target sequence of attention: the name of each position, and its images."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import SightlineError, SightlineWarning, check
from .images import PatchedImages, patched_images
from .maps import Map
from .subwords import Words, read_subwords

BRACKETED = ("[CLS]", "[SEP]", "[PAD]", "[BOS]", "[EOS]", "<s>", "</s>", "<pad>", "<bos>", "<eos>")
SPECIAL_TOKENS = frozenset((*BRACKETED, "<|endoftext|>", "<|startoftext|>", "<|im_start|>", "<|im_end|>"))
"""Default special tokens. [MASK], [UNK] and <unk> replace words and are not included."""

TARGETS = "targets: {}"
"""Name of the sequence of queries that are targets of relevance."""


@dataclass(frozen=True)
class TokenSequence:
    """The positions of the source or the target."""

    tokens: list[str]
    special: list[int]
    """Positions of special tokens."""
    images: PatchedImages | None = None
    words: Words | None = None
    """Words of several tokens; None if every token is a word."""
    segments: list[int] | None = None
    """0 for tokens of sentence A, 1 for those of sentence B; None if there is one sentence."""

    def names(self, size: int) -> list[str]:
        """The tokens if there are `size` of them, otherwise the positions counted from 0."""
        return self.tokens if len(self.tokens) == size else [str(i) for i in range(size)]

    def words_of(self, size: int) -> tuple[list[str], list[int] | None]:
        """The words and the first token of each; as `names`, and None, if the tokens are not joined."""
        if self.words is None or len(self.tokens) != size:
            return self.names(size), None
        return self.words.texts, self.words.starts

    def to_dict(self) -> dict[str, Any]:
        """The JSON that the page reads."""
        image = self.images
        patches = image and {"images": image.images, "prefix": image.prefix_tokens, "grid": image.grid}
        words = self.words and {"texts": self.words.texts, "starts": self.words.starts}
        named = {"tokens": self.tokens, "special": self.special, "patches": patches}
        return {**named, "words": words, "segments": self.segments}


def token_sequences(
    maps: Sequence[Map],
    *,
    tokens: Sequence[str] | None = None,
    source: Sequence[str] | None = None,
    target: Sequence[str] | None = None,
    generated: Sequence[str] | None = None,
    images: Any = None,
    query_image: Any = None,
    labels: Sequence[str] | None = None,
    grid: tuple[int, int] | None = None,
    patch_grid: tuple[int, int] | None = None,
    image_tokens: slice | None = None,
    special_tokens: Collection[str] | None = None,
    token_type_ids: Sequence[int] | None = None,
) -> dict[str, TokenSequence]:
    """The sequences by name: `source` (encoder input), `target` (decoder input) and, if given, `generated`.

    The rows of cross-attention are named by `generated` where it is given, otherwise by `target`. `positions` has no
    names, for maps that are not over tokens.
    """
    sizes = _sizes(maps)
    single, causal = not (sizes["source"] and sizes["target"]), any(m.kind == "decoder" for m in maps)
    given = {"tokens": tokens, "source": source, "target": target}
    image_of: dict[str, Any] = {"source": images, "target": query_image}
    if single:
        check(query_image is None, "query_image must be used with cross-attention, got none; use images")
        image_of = dict.fromkeys(image_of, images)
    _check_images(maps, images is not None or query_image is not None, labels=labels, grid=grid)
    special = SPECIAL_TOKENS if special_tokens is None else frozenset(special_tokens)
    sequences = {}
    for name, size in sizes.items():
        patches = None
        in_text = image_tokens if name == "target" or not sizes["target"] else None
        image = images if image_of[name] is None and in_text else image_of[name]
        if size and image is not None:
            argument = "images" if image is images else "query_image"
            patches = patched_images(
                image,
                size,
                name=argument,
                labels=labels if image is images else None,
                grid=grid,
                patch_grid=patch_grid,
                image_tokens=in_text,
                causal=causal and single,
            )
        other = "target" if name == "source" else "source"
        arguments = ("tokens", name, other) if single else (name, "tokens")
        argument = next((argument for argument in arguments if given[argument] is not None), name)
        words = _words(argument, given[argument], size, patches, has_both=not single)
        segments = _segments(token_type_ids, len(words)) if words and (name == "source" or single) else None
        sequences[name] = _sequence(words, special, patches, segments)
    if generated is not None:
        has_cross = any(m.kind == "cross" for m in maps)
        check(has_cross, "generated must be used with cross-attention, got none")
        words = _words("generated", generated, sizes["target"], None, has_both=False)
        sequences["generated"] = _sequence(words, special, sequences["target"].images)
    sequences["positions"] = TokenSequence([], [])
    sequences |= {query_and_key(m)[0]: TokenSequence(list(m.queries), []) for m in maps if m.queries is not None}
    return sequences


def _check_images(maps: Sequence[Map], has_images: bool, **options: Any) -> None:
    """Images need attention over tokens, and their options need images."""
    over = {m.over for m in maps}
    check(not has_images or "tokens" in over, f"images must be used with attention over tokens, got {', '.join(over)}")
    for name, value in options.items():
        check(value is None or has_images, f"{name} must be used with images, got none")


def drop_padding(maps: Sequence[Map], options: dict[str, Any]) -> tuple[Sequence[Map], dict[str, Any]]:
    """Remove the positions of trailing None tokens from the token lists in `options` and from the maps."""
    kept, sizes = dict(options), _sizes(maps)
    lengths: dict[str, int] = {}
    for name in ("tokens", "source", "target", "generated"):
        words = options[name]
        if not isinstance(words, list | tuple) or not words or words[-1] is not None:
            continue
        sequences = {"tokens": ("source", "target"), "generated": ("target",)}.get(name, (name,))
        if len(words) in {sizes[sequence] for sequence in sequences}:  # any other length is an error later
            length = max((i for i, word in enumerate(words, 1) if word is not None), default=1)
            kept[name] = words[:length]
            lengths |= dict.fromkeys(sequences, length)

    def cut(m: Map) -> Map:
        query, key = query_and_key(m)
        return replace(m, weights=m.weights[:, :, : lengths.get(query), : lengths.get(key)])

    return ([cut(m) for m in maps] if lengths else maps), kept


def query_and_key(m: Map, sequences: Collection[str] = ()) -> tuple[str, str]:
    """The names of the query and key sequence of a map. `sequences` may contain `generated`."""
    if m.over != "tokens":
        return "positions", "positions"
    if m.queries is not None:
        return TARGETS.format(", ".join(m.queries)), "source" if m.kind == "encoder" else "target"
    if m.kind == "cross":
        return ("generated" if "generated" in sequences else "target"), "source"
    return ("source", "source") if m.kind == "encoder" else ("target", "target")


def warn_of_positions(maps: Sequence[Map], sequences: Mapping[str, TokenSequence], given: Collection[str]) -> None:
    """Warn if the given tokens do not name the keys of some maps, which then show positions."""
    named = ("source", "target") if "tokens" in given else given
    keys = [(m, query_and_key(m, sequences)[1]) for m in maps if m.over == "tokens"]
    over_tokens = [m for m, key in keys if key in named]
    unnamed = [m for m, key in keys if key in named and len(sequences[key].tokens) != m.shape[3]]
    if unnamed and len(over_tokens) > 1:
        shown = f"{len(unnamed)} of {len(over_tokens)} maps, such as {unnamed[0].name},"
        reason = "steps of generate() with beams, and layers of different lengths, are not merged"
        message = f"the tokens do not fit {shown} which show positions; {reason}; record one call with the whole text"
        warnings.warn(message, SightlineWarning, stacklevel=5)


def _sizes(maps: Sequence[Map]) -> dict[str, int]:
    """The lengths of source and target."""
    sizes: dict[str, int] = {"source": 0, "target": 0}
    for m in maps:
        for name, size in zip(query_and_key(m), m.shape[2:], strict=True):
            sizes[name] = max(sizes.get(name, 0), size)
    return {name: sizes[name] for name in ("source", "target")}


def _sequence(
    words: list[str], special: Collection[str], images: PatchedImages | None, segments: list[int] | None = None
) -> TokenSequence:
    """Tokens as readable text, with their words."""
    positions = [i for i, word in enumerate(words) if word in special]
    patches = range(len(words))[images.positions] if images else ()
    texts, joined = read_subwords(words, positions, patches)
    return TokenSequence(texts, positions, images, joined, segments)


def _segments(token_type_ids: Sequence[int] | None, size: int) -> list[int] | None:
    """Token types of the first `size` positions, as 0 and 1; None if there is only one."""
    if token_type_ids is None:
        return None
    values = token_type_ids.tolist() if hasattr(token_type_ids, "tolist") else list(token_type_ids)
    is_valid = len(values) >= size and all(value in (0, 1) for value in values)
    rule = f"token_type_ids must be 0 or 1 for each of the {size} positions"
    check(is_valid, f"{rule}, got {len(values)} values from {min(values, default=0)} to {max(values, default=0)}")
    segments = [int(value) for value in values[:size]]
    return segments if len(set(segments)) > 1 else None


def _words(
    name: str, given: Sequence[str] | None, size: int, patches: PatchedImages | None, *, has_both: bool
) -> list[str]:
    if given is None or not size:
        return patches.tokens() if patches else [str(i) for i in range(size)]
    if isinstance(given, str):
        raise SightlineError(f"{name} must be a list of tokens, got the string {given!r}")
    shape = getattr(given, "shape", (0,))
    check(
        len(shape) == 1,
        f"{name} must be a list of tokens, got an array of shape {tuple(shape)}; pass tokenizer= with token ids",
    )
    words = [str(word.item() if hasattr(word, "item") else word) for word in given]  # numpy and torch scalars
    if len(words) != size:
        hint = ""
        if has_both and name == "tokens":
            hint = "; pass source= and target="
        elif len(words) == 1 < size:
            hint = "; for several examples pass batch=[0, …]"
        elif len(words) == size + 1:
            hint = "; omit the last token of generate(), which is never a query"
            if name == "generated":
                hint = "; omit the first token, which is input and not generated"
        raise SightlineError(f"{name} must be {size} tokens, one for each position, got {len(words)}{hint}")
    if patches and patches.in_text:
        words[patches.positions] = patches.patch_names()
    return words
