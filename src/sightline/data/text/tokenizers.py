"""Text to numbers and back: words, characters, or pieces of words learned by byte-pair encoding (BPE).

A piece that begins a word carries the mark ▁, so text comes back with its spaces. What BPE has not seen becomes bytes,
so nothing is lost: emoji and foreign scripts come back as they were.
"""

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from ...errors import SightlineError, check_int, check_max
from .corpora import UNK

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
"""In the order of their ids."""
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
MARK = "▁"
COLORS = range(0x1F3FB, 0x1F400)
"""Of emoji of people."""
ARROWS = 0x2190
"""Where pictures begin in Unicode: what comes before them, such as ° and ©, stands in sentences."""
MOST_SIZE = 100_000
LEAST_SEEN = 2
"""Characters seen less often become bytes in BPE."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """How text is cut into tokens."""

    kind: Literal["bpe", "word", "character"] = "bpe"
    size: int = 8000
    """Tokens in a vocabulary, at most; of words and characters the most frequent."""
    shared: bool = False
    """One vocabulary for both languages."""
    lowercase: bool = False
    """Write everything small; what comes out is small, too."""
    min_frequency: int = 1
    """How often a word or character must be seen to have a token of its own; 2 teaches what to do with the unknown."""

    def __post_init__(self) -> None:
        check_int(len(SPECIAL) + 1, size=self.size)
        check_int(1, min_frequency=self.min_frequency)
        check_max(MOST_SIZE, size=self.size)
        smallest = len(SPECIAL) + len(BYTES) + 2
        if self.kind == "bpe" and self.size < smallest:
            raise SightlineError(f"size must be at least {smallest} for bpe, 256 of them for bytes, got {self.size}")


class Tokenizer:
    """A vocabulary and how to use it."""

    def __init__(self, how: Tokens, vocabulary: dict[str, int], merges: Sequence[tuple[str, str]] = ()):
        self.how = how
        model: Any = models.WordLevel(vocabulary, unk_token=SPECIAL[UNK])
        if how.kind == "bpe":
            model = models.BPE(vocabulary, list(merges), byte_fallback=True, unk_token=SPECIAL[UNK], fuse_unk=False)
        self._inner = _pipeline(how, model)
        self._names = [name for name, _ in sorted(vocabulary.items(), key=lambda pair: pair[1])]
        self._letters = frozenset("".join(self._names))

    def __len__(self) -> int:
        return len(self._names)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without a beginning or an end."""
        return [one.ids for one in self._inner.encode_batch([_sound(text) for text in texts], add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these ids; those that mean filling, beginning and end are left out."""
        unknown = f"{MARK}{SPECIAL[UNK]}" if self.how.kind == "word" else SPECIAL[UNK]
        pieces = [unknown if i == UNK else self._names[i] for i in ids if i >= UNK]
        return self._inner.decoder.decode(pieces) if pieces else ""

    def names(self, ids: Iterable[int]) -> list[str]:
        """What to call each token where it is shown."""
        return [self._names[i].removeprefix(MARK) or MARK for i in ids]

    def unknown(self, ids: Iterable[int]) -> int:
        """How many of these stand for what the vocabulary lacks: the unknown, or a byte."""
        low, high = (len(SPECIAL), len(SPECIAL) + len(BYTES)) if self.how.kind == "bpe" else (0, 0)
        return sum(i == UNK or low <= i < high for i in ids)

    def without_signs(self, text: str) -> tuple[str, str]:
        """The text less emoji and other signs that the vocabulary lacks, and these; whole if nothing would be left."""
        unknown = {one for one in {*text} if self._letters.isdisjoint({one, one.lower()})}
        pictures, unseen = {one for one in unknown if _is_picture(one)}, {one for one in unknown if _takes_no_room(one)}
        kept = "".join(" " if one in pictures else "" if one in unseen else one for one in text)
        if not kept.strip():
            return text, ""
        return kept, "".join(one for one in text if one in pictures | unseen) if pictures else ""

    def to_json(self) -> str:
        """As a file of the `tokenizers` library."""
        return self._inner.to_str()

    @classmethod
    def from_json(cls, how: Tokens, content: Any, name: str = "a tokenizer") -> "Tokenizer":
        """From what such a file holds; only the vocabulary and the merges are taken, so it can bring no rules."""
        try:
            model = content["model"]
            vocabulary, merges = model["vocab"], [tuple(merge) for merge in model.get("merges", [])]
            if model["type"] != (wanted := "BPE" if how.kind == "bpe" else "WordLevel"):
                raise TypeError(f"it must be of the type {wanted}, got {model['type']!r:.40}")
        except (KeyError, TypeError, AttributeError) as error:
            raise SightlineError(f"{name} must be a tokenizer in JSON, got an error: {error!r:.200}") from error
        _check(how, vocabulary, merges, name)
        return cls(how, vocabulary, merges)


def learn(how: Tokens, texts: Sequence[str]) -> Tokenizer:
    """A vocabulary from these texts; the same texts give the same one."""
    texts = [_sound(text) for text in texts]
    pipeline = _pipeline(how, models.WordLevel({SPECIAL[UNK]: 0}, unk_token=SPECIAL[UNK]))
    if how.kind == "bpe":
        return _learn_merges(how, texts, pipeline.normalizer)
    seen: Counter[str] = Counter()
    for text in texts:
        normal = pipeline.normalizer.normalize_str(text)
        seen.update(piece for piece, _ in pipeline.pre_tokenizer.pre_tokenize_str(normal))
    words = _most_frequent(seen, how.min_frequency)
    names = [*SPECIAL, *(word for word in words if word not in SPECIAL)][: how.size]
    return Tokenizer(how, {name: i for i, name in enumerate(names)})


def _most_frequent(seen: Counter[str], least: int) -> list[str]:
    """The most frequent first; of equals, the first by name."""
    return sorted((name for name, count in seen.items() if count >= least), key=lambda name: (-seen[name], name))


def _learn_merges(how: Tokens, texts: Sequence[str], normalizer: Any) -> Tokenizer:
    letters = Counter({MARK: len(texts) + LEAST_SEEN})
    for text in texts:
        letters.update(normalizer.normalize_str(text).replace(" ", MARK))
    fixed = [*SPECIAL, *BYTES]
    alphabet = sorted(_most_frequent(letters, LEAST_SEEN)[: max(1, (how.size - len(fixed)) // 2)])
    trainer = trainers.BpeTrainer(
        vocab_size=how.size,
        special_tokens=fixed,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        min_frequency=2,
        show_progress=False,
    )
    inner = _pipeline(how, models.BPE())
    inner.train_from_iterator(texts, trainer)
    model = json.loads(inner.to_str())["model"]
    return Tokenizer(how, model["vocab"], [tuple(merge) for merge in model["merges"]])


def _pipeline(how: Tokens, model: Any) -> Any:
    """Normal forms and single spaces; words cut at spaces and beside punctuation; text put together again."""
    inner = tokenizers.Tokenizer(model)
    steps = [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    inner.normalizer = normalizers.Sequence([*steps, normalizers.Lowercase()] if how.lowercase else steps)
    cut = Regex(".") if how.kind == "character" else Regex(rf"{MARK}?[^\w\s{MARK}]")
    spaces = pre_tokenizers.Metaspace(MARK, prepend_scheme="never" if how.kind == "character" else "always")
    inner.pre_tokenizer = pre_tokenizers.Sequence([spaces, pre_tokenizers.Split(cut, "isolated")])
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace(MARK, " "),
            *([decoders.ByteFallback()] if how.kind == "bpe" else []),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return inner


def _is_picture(letter: str) -> bool:
    """An emoji, or another sign that is no part of a sentence."""
    return (unicodedata.category(letter) in ("So", "Co", "Cn") and ord(letter) >= ARROWS) or ord(letter) in COLORS


def _takes_no_room(letter: str) -> bool:
    """A soft hyphen, what joins or varies emoji, and the frame of a key."""
    varies = "\N{VARIATION SELECTOR-1}" <= letter <= "\N{VARIATION SELECTOR-16}"
    return varies or unicodedata.category(letter) == "Cf" or letter == "\N{COMBINING ENCLOSING KEYCAP}"


def _sound(text: str) -> str:
    """Half a surrogate pair is no text, and the mark of a space is a space."""
    return text.encode("utf-8", "replace").decode("utf-8").replace(MARK, " ")


def _check(how: Tokens, vocabulary: Any, merges: list[Any], name: str) -> None:
    if not isinstance(vocabulary, dict) or not all(type(i) is int for i in vocabulary.values()):
        raise SightlineError(f"{name} must have a vocabulary of names and ids, got {type(vocabulary).__name__}")
    if len(vocabulary) > MOST_SIZE or sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise SightlineError(f"{name} must have each id from 0 on once, {MOST_SIZE:,} at most, got {len(vocabulary):,}")
    fixed = [*SPECIAL, *BYTES] if how.kind == "bpe" else SPECIAL
    for i, special in enumerate(fixed):
        if vocabulary.get(special) != i:
            raise SightlineError(f"{name} must have {special} as its id {i}, got {vocabulary.get(special)}")
    for merge in merges:
        whole = len(merge) == 2 and all(isinstance(part, str) for part in merge)
        if not whole or not all(part in vocabulary for part in (*merge, "".join(merge))):
            raise SightlineError(f"{name} must merge what is in its vocabulary, got {merge!r:.100}")
