"""Subword tokens as readable text, and the words that they are pieces of.

The marks of tokenizers are recognized by themselves: `Ġquick` (byte-level BPE), `▁quick` (SentencePiece), `##ing`
(WordPiece), `quick</w>` and `un@@` (BPE).
"""

import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""A single byte in a SentencePiece vocabulary."""
APOSTROPHES = "'\u2019"
"""Punctuation inside words."""
STYLES = {
    "bytes": re.compile("[ĠĊ]"),
    "space": re.compile("▁"),
    "continuation": re.compile("##."),
    "end": re.compile(r".+</w>$"),
    "unfinished": re.compile(r".+@@$"),
}
"""How tokenizers mark words, by a token that shows it."""


@dataclass(frozen=True)
class Words:
    """The words of a sequence of tokens."""

    texts: list[str]
    starts: list[int]
    """The first token of each word."""


def _byte_letters() -> dict[str, int]:
    """The letters that stand for bytes in byte-level BPE (GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_LETTERS = _byte_letters()


def read_subwords(
    tokens: Sequence[str], special: Collection[int] = (), separate: Collection[int] = ()
) -> tuple[list[str], Words | None]:
    """The tokens as readable text, and their words; None if every token is a word.

    `special` are the positions of special tokens, `separate` those of other tokens that are no text, as patches.
    """
    apart = {*special, *separate}
    style = _style([token for i, token in enumerate(tokens) if i not in apart])
    if style is None:
        return list(tokens), None
    texts = [token if i in apart else _text([token], style) for i, token in enumerate(tokens)]
    if style == "continuation":
        texts = list(tokens)  # ## says that a token continues a word
    starts = [i for i in range(len(tokens)) if i in apart or i - 1 in apart or _begins(tokens, texts, i, style)]
    if len(starts) == len(tokens):
        return texts, None
    ranges = pairwise([*starts, len(tokens)])
    words = [texts[a] if a in apart else _text(tokens[a:b], style) for a, b in ranges]
    return texts, Words(words, starts)


def join_weights(weights: Any, query_starts: Sequence[int] | None, key_starts: Sequence[int] | None) -> Any:
    """Weights between words: (..., Q, K) -> (..., query words, key words)

    The weight of a key is the sum over its tokens, that of a query the mean over its tokens.
    """
    if key_starts is not None:
        weights = np.add.reduceat(weights, key_starts, axis=-1)
    if query_starts is not None:
        counts = np.diff([*query_starts, weights.shape[-2]])
        weights = np.add.reduceat(weights, query_starts, axis=-2) / counts[:, None]
    return weights


def _style(tokens: Sequence[str]) -> str | None:
    """How words are marked; None if they are not."""
    for style, mark in STYLES.items():
        if any(mark.match(token) for token in tokens):
            is_bytes = all(letter in BYTE_LETTERS for token in tokens for letter in token)
            return style if style != "bytes" or is_bytes else None
    return None


def _begins(tokens: Sequence[str], texts: Sequence[str], i: int, style: str) -> bool:
    """Whether a token begins a word. Punctuation is separate from letters if words are marked by spaces."""
    if i == 0:
        return True
    if style == "continuation":
        return not tokens[i].startswith("##")
    if style == "end":
        return tokens[i - 1].endswith("</w>")
    if style == "unfinished":
        return not tokens[i - 1].endswith("@@")
    marks = "ĠĊĉ" if style == "bytes" else "▁"
    return tokens[i][:1] in marks or _is_punctuation(texts[i][:1]) != _is_punctuation(texts[i - 1][-1:])


def _is_punctuation(letter: str) -> bool:
    return letter not in APOSTROPHES and letter != "\ufffd" and unicodedata.category(letter or "a")[0] in "PS"


def _text(tokens: Sequence[str], style: str) -> str:
    """The text of one or several tokens, without the space before it."""
    if style == "bytes":
        text = bytes(BYTE_LETTERS[letter] for token in tokens for letter in token).decode("utf-8", "replace")
    elif style == "space":
        parts = (
            bytes.fromhex(m[1]) if (m := BYTE.fullmatch(token)) else token.encode("utf-8", "replace")
            for token in tokens
        )
        text = b"".join(parts).decode("utf-8", "replace").replace("▁", " ")
    elif style == "continuation":
        text = "".join(token.removeprefix("##") for token in tokens)
    else:
        text = "".join(token.removesuffix("</w>" if style == "end" else "@@") for token in tokens)
    return text if text == " " else text.removeprefix(" ")
