"""Tokenizers: text to token ids and back, by words, by characters or by byte-pair encoding (BPE).

The character ▁ marks the start of a word, so decoding restores spaces. BPE encodes unknown characters as bytes, so
decoding restores any text exactly.
"""

import itertools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, Literal

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from ... import limits
from ...config import Config, PositiveInt, at_most
from ...errors import SightlineError, check, check_int, reraise

WORD_START = "▁"
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""Tokens of single bytes in a BPE vocabulary, after the special tokens."""
MIN_CHARACTER_COUNT = 2
"""Occurrences that a character needs to be in the alphabet of BPE."""
_PLACEHOLDER = "\ue000"  # for private use: a word by itself, which no tokenizer learns
_SPECIAL_FORM = re.compile(rf"<[^<>\s{WORD_START}]+>|\[[^\[\]\s{WORD_START}]+\]")
_FIRST_PICTOGRAPH = 0x2190  # symbols below it, such as ° and ©, are part of sentences
_SKIN_TONES = range(0x1F3FB, 0x1F400)


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """Special tokens of a vocabulary. Ids count from 0 in the order of the fields; tokens that are None have no id."""

    pad: str = "<pad>"
    """Padding."""
    bos: str = "<s>"
    """Start of a sentence."""
    eos: str = "</s>"
    """End of a sentence."""
    unk: str = "<unk>"
    """A word or character outside the vocabulary."""
    mask: str | None = None
    """A masked token, such as <mask>."""
    cls: str | None = None
    """A token whose output represents the sentence, such as [CLS]."""
    sep: str | None = None
    """A separator between sentences, such as [SEP]."""

    def __post_init__(self) -> None:
        for name, token in self._declared.items():
            is_valid = _SPECIAL_FORM.fullmatch(token) and token not in BYTE_TOKENS
            check(is_valid, f"{name} must be a token in angle or square brackets, got {token!r:.60}")
        is_distinct = len(set(self.tokens)) == len(self.tokens)
        check(is_distinct, f"special tokens must be distinct, got {', '.join(self.tokens)}")

    @cached_property
    def _declared(self) -> dict[str, str]:
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id of each declared token by its field name."""
        return {name: i for i, name in enumerate(self._declared)}

    @property
    def tokens(self) -> tuple[str, ...]:
        """All declared tokens in the order of their ids."""
        return tuple(self._declared.values())

    @property
    def control_ids(self) -> tuple[int, ...]:
        """Ids that decode to no text: all but `unk` and `mask`."""
        return tuple(i for name, i in self.ids.items() if name not in ("unk", "mask"))

    @property
    def suppressed_ids(self) -> tuple[int, ...]:
        """Ids that a decoder never generates: all but `eos` and `unk`."""
        return tuple(i for name, i in self.ids.items() if name not in ("eos", "unk"))

    def id(self, name: str) -> int:
        """Id of the token with this field name, which must be declared."""
        check(name in self.ids, f"special_tokens.{name} must be declared, got null; set it to <{name}>")
        return self.ids[name]


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(Config):
    """Config of a tokenizer."""

    kind: Literal["bpe", "word", "character"] = "bpe"
    vocab_size: Annotated[int, at_most("MAX_TOKENIZER_VOCAB_SIZE")] = 8000
    """Maximum number of tokens. Words and characters are kept by frequency."""
    shared_vocab: bool = False
    """Use one vocabulary for both languages."""
    lowercase: bool = False
    """Lowercase all text."""
    min_frequency: PositiveInt = 1
    """Occurrences that a word or character needs to be in the vocabulary. With 2, training text contains `unk`."""
    special_tokens: SpecialTokens = field(default_factory=SpecialTokens)
    """Special tokens. `mask`, `cls` and `sep` are optional."""

    def __post_init__(self) -> None:
        super().__post_init__()
        num_special = len(self.special_tokens.tokens)
        check_int(num_special + 1, vocab_size=self.vocab_size)
        minimum = num_special + len(BYTE_TOKENS) + 2
        rule = f"vocab_size must be at least {minimum} for bpe, which includes 256 byte tokens"
        check(self.kind != "bpe" or self.vocab_size >= minimum, f"{rule}, got {self.vocab_size}")


class Tokenizer:
    """A trained tokenizer."""

    def __init__(self, config: TokenizerConfig, vocab: dict[str, int], merges: Sequence[tuple[str, str]] = ()):
        self.config, self.special_tokens = config, config.special_tokens
        unk = self.special_tokens.unk
        model: Any = models.WordLevel(vocab, unk_token=unk)
        if config.kind == "bpe":
            model = models.BPE(vocab, list(merges), byte_fallback=True, unk_token=unk, fuse_unk=False)
        self._backend = _backend(config, model)
        self._tokens = [token for token, _ in sorted(vocab.items(), key=lambda item: item[1])]
        self._characters = frozenset("".join(self._tokens))
        self._control_ids = frozenset(self.special_tokens.control_ids)

    def __len__(self) -> int:
        return len(self._tokens)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, without `bos` and `eos`."""
        cleaned = [_clean(text) for text in texts]
        return [encoding.ids for encoding in self._backend.encode_batch(cleaned, add_special_tokens=False)]

    def encode_masked(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, in which `special_tokens.mask` stands for one masked token or word."""
        mask, mask_id = self.special_tokens.mask, self.special_tokens.id("mask")
        cleaned = [_clean(text.replace(_PLACEHOLDER, " ").replace(mask or "", _PLACEHOLDER)) for text in texts]
        encodings, result = self._backend.encode_batch(cleaned, add_special_tokens=False), []
        for text, encoding in zip(cleaned, encodings, strict=True):
            tokens = list(zip(encoding.ids, encoding.word_ids, encoding.offsets, strict=True))
            masked = {word for _, word, (start, end) in tokens if _PLACEHOLDER in text[start:end]}
            words = itertools.groupby(tokens, key=lambda token: token[1])
            ids = [[mask_id] if word in masked else [token[0] for token in group] for word, group in words]
            result.append(list(itertools.chain(*ids)))
        return result

    def word_starts(self) -> list[bool]:
        """Whether each token of the vocabulary begins a word or is a punctuation mark."""
        num_fixed = len(self.special_tokens.tokens) + (len(BYTE_TOKENS) if self.config.kind == "bpe" else 0)
        is_start = [
            token.startswith(WORD_START) or not (token[0].isalnum() or token[0] == "_") for token in self._tokens
        ]
        return [i >= num_fixed and start for i, start in enumerate(is_start)]

    def word_groups(self, ids: Iterable[int]) -> list[tuple[str, list[int]]]:
        """The words of token ids, each with the positions of its tokens."""
        groups: list[tuple[list[int], list[int]]] = []
        starts = self.word_starts() if self.config.kind == "bpe" else None
        for position, token in enumerate(ids):
            if starts is None or starts[token] or not groups:
                groups.append(([], []))
            groups[-1][0].append(token)
            groups[-1][1].append(position)
        return [(self.decode(tokens).strip(), positions) for tokens, positions in groups]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids. Control tokens are skipped."""
        num_special = len(self.special_tokens.tokens)
        start = WORD_START if self.config.kind == "word" else ""
        tokens = [(start if i < num_special else "") + self._tokens[i] for i in ids if i not in self._control_ids]
        return self._backend.decoder.decode(tokens) if tokens else ""

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Tokens of ids for display, without the word start mark."""
        return [self._tokens[i].removeprefix(WORD_START) or WORD_START for i in ids]

    def count_unknown(self, ids: Iterable[int]) -> int:
        """Number of ids that are `unk` or a byte token."""
        first_byte = len(self.special_tokens.tokens)
        byte_ids = range(first_byte, first_byte + len(BYTE_TOKENS)) if self.config.kind == "bpe" else range(0)
        return sum(i == self.special_tokens.id("unk") or i in byte_ids for i in ids)

    def remove_unknown_symbols(self, text: str) -> tuple[str, str]:
        """Remove emoji and other symbols outside the vocabulary. Returns the rest of the text and the removed symbols.

        The text is returned unchanged if nothing else is in it.
        """
        unknown = {char for char in {*text} if self._characters.isdisjoint({char, char.lower()})}
        pictographs = {char for char in unknown if _is_pictograph(char)}
        invisible = {char for char in unknown if _is_invisible(char)}
        kept = "".join(" " if char in pictographs else "" if char in invisible else char for char in text)
        if not kept.strip():
            return text, ""
        return kept, "".join(char for char in text if char in pictographs | invisible) if pictographs else ""

    def to_json(self) -> str:
        """JSON in the format of the `tokenizers` library."""
        return self._backend.to_str()

    @classmethod
    def from_json(cls, config: TokenizerConfig, content: Any, name: str = "a tokenizer") -> "Tokenizer":
        """Tokenizer from parsed JSON. Only the vocabulary and the merges are used, never rules from the file."""
        with reraise(f"{name} must be a tokenizer in JSON", KeyError, TypeError, AttributeError):
            model = content["model"]
            vocab, merges = model["vocab"], [tuple(merge) for merge in model.get("merges", [])]
            if model["type"] != (expected := "BPE" if config.kind == "bpe" else "WordLevel"):
                raise TypeError(f"type must be {expected}, got {model['type']!r:.40}")
        _check_vocab(config, vocab, merges, name)
        return cls(config, vocab, merges)


def train_tokenizer(config: TokenizerConfig, texts: Sequence[str]) -> Tokenizer:
    """Train a tokenizer. The result is deterministic."""
    texts = [_clean(text) for text in texts]
    unk = config.special_tokens.unk
    backend = _backend(config, models.WordLevel({unk: 0}, unk_token=unk))
    if config.kind == "bpe":
        return _train_bpe(config, texts, backend.normalizer)
    counts: Counter[str] = Counter()
    for text in texts:
        normalized = backend.normalizer.normalize_str(text)
        counts.update(token for token, _ in backend.pre_tokenizer.pre_tokenize_str(normalized))
    tokens = [*config.special_tokens.tokens, *_most_frequent(counts, config.min_frequency)]
    return Tokenizer(config, {token: i for i, token in enumerate(tokens[: config.vocab_size])})


def _most_frequent(counts: Counter[str], minimum: int) -> list[str]:
    """Keys counted at least `minimum` times, by descending count, ties in alphabetical order."""
    return sorted((key for key, count in counts.items() if count >= minimum), key=lambda key: (-counts[key], key))


def _train_bpe(config: TokenizerConfig, texts: Sequence[str], normalizer: Any) -> Tokenizer:
    characters = Counter({WORD_START: len(texts) + MIN_CHARACTER_COUNT})
    for text in texts:
        characters.update(normalizer.normalize_str(text).replace(" ", WORD_START))
    fixed = [*config.special_tokens.tokens, *BYTE_TOKENS]
    max_characters = max(1, (config.vocab_size - len(fixed)) // 2)
    alphabet = sorted(_most_frequent(characters, MIN_CHARACTER_COUNT)[:max_characters])
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=fixed,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        min_frequency=2,
        show_progress=False,
    )
    backend = _backend(config, models.BPE())
    backend.train_from_iterator(texts, trainer)
    model = json.loads(backend.to_str())["model"]
    return Tokenizer(config, model["vocab"], [tuple(merge) for merge in model["merges"]])


def _backend(config: TokenizerConfig, model: Any) -> Any:
    """A tokenizer of the `tokenizers` library: NFC, single spaces, splits at spaces and around punctuation."""
    backend = tokenizers.Tokenizer(model)
    steps = [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Lowercase()] if config.lowercase else steps)
    by_character = config.kind == "character"
    split = Regex(".") if by_character else Regex(rf"{WORD_START}?[^\w\s{WORD_START}]")
    spaces = pre_tokenizers.Metaspace(WORD_START, prepend_scheme="never" if by_character else "always")
    backend.pre_tokenizer = pre_tokenizers.Sequence([spaces, pre_tokenizers.Split(split, "isolated")])
    bytes_to_text = [decoders.ByteFallback()] if config.kind == "bpe" else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(WORD_START, " "), *bytes_to_text, decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def _is_pictograph(char: str) -> bool:
    """True for emoji and other symbols that are not part of a sentence."""
    is_symbol = unicodedata.category(char) in ("So", "Co", "Cn") and ord(char) >= _FIRST_PICTOGRAPH
    return is_symbol or ord(char) in _SKIN_TONES


def _is_invisible(char: str) -> bool:
    """True for soft hyphens, joiners, variation selectors and the keycap mark."""
    is_selector = "\N{VARIATION SELECTOR-1}" <= char <= "\N{VARIATION SELECTOR-16}"
    return is_selector or unicodedata.category(char) == "Cf" or char == "\N{COMBINING ENCLOSING KEYCAP}"


def _clean(text: str) -> str:
    """Replace lone surrogates; map ▁ to a space."""
    return text.encode("utf-8", "replace").decode("utf-8").replace(WORD_START, " ")


def _check_vocab(config: TokenizerConfig, vocab: Any, merges: list[Any], name: str) -> None:
    is_table = isinstance(vocab, dict) and all(type(i) is int for i in vocab.values())
    check(is_table, f"{name} must have a vocabulary of tokens and ids, got {type(vocab).__name__}")
    maximum = limits.MAX_TOKENIZER_VOCAB_SIZE
    is_valid = len(vocab) <= maximum and sorted(vocab.values()) == list(range(len(vocab)))
    rule = f"{name} must have at most {maximum:,} tokens with consecutive ids from 0"
    check(is_valid, f"{rule}, got {len(vocab):,} tokens")
    special = config.special_tokens.tokens
    for i, token in enumerate([*special, *BYTE_TOKENS] if config.kind == "bpe" else special):
        check(vocab.get(token) == i, f"{name} must have {token} with id {i}, got {vocab.get(token)}")
    for merge in merges:
        is_pair = len(merge) == 2 and all(isinstance(token, str) for token in merge)
        if not is_pair or not vocab.keys() >= {*merge, "".join(merge)}:
            raise SightlineError(f"{name} must merge pairs of tokens in its vocabulary, got {merge!r:.100}")
