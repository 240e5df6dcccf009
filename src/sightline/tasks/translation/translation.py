"""The translation of one text, and the attention behind it."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...attention import Record
from ...names import printable, shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Translation:
    """The translation of one text."""

    text: str
    score: float
    """Log-probability of the translation, divided by its length to the power of the length penalty. It ranks
    translations of one text and says nothing about their quality: it is high for nonsense that the model knows well."""
    tokens: tuple[str, ...]
    """Tokens of the translation, with the end token if it is finished."""
    source_tokens: tuple[str, ...]
    """Tokens of the source text and its end token."""
    alternatives: "tuple[Translation, ...]" = ()
    """Further translations, the best first."""
    unknown_tokens: int = 0
    """Source tokens outside the vocabulary: unknown words, or single bytes."""
    quality: float | None = None
    """Expected chrF to a reference translation, from 0 to 1, calibrated on validation sentences; None if the run has no
    estimate."""
    unfamiliar_words: tuple[str, ...] = ()
    """Words and numbers of the source that are unlike those of the training text."""
    skipped_symbols: str = ""
    """Emoji and other symbols of the source that are not in the vocabulary and were removed."""
    finished: bool = True
    """The translation ends with the end token; False if it was cut at the maximum length."""
    attention: Record | None = None
    """Recorded attention, if requested. Cross-attention has one row per token and one column per source token."""
    error: None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            **self._own_values(),
            "source_tokens": list(self.source_tokens),
            "unknown_tokens": self.unknown_tokens,
            "unfamiliar_words": list(self.unfamiliar_words),
            "skipped_symbols": self.skipped_symbols,
            "alternatives": [alternative._own_values() for alternative in self.alternatives],
            "error": self.error,
        }

    def _own_values(self) -> dict[str, Any]:
        values = {"text": self.text, "quality": self.quality, "score": self.score}
        return {**values, "tokens": list(self.tokens), "finished": self.finished}

    def summary(self, top: int | None = None) -> str:
        """The best translation, or one line for each of the `top` best."""
        best = [self, *self.alternatives][: top or 1]
        lines = "\n  ".join(translation._line() for translation in best)
        if self.unfamiliar_words:
            lines += f"  (unlike the training text: {printable(shortened(', '.join(self.unfamiliar_words), 60))})"
        if self.unknown_tokens:
            lines += f"  ({self.unknown_tokens} of {len(self.source_tokens) - 1} tokens unknown)"
        if self.skipped_symbols:
            lines += f"  (skipped: {printable(shortened(self.skipped_symbols, 20))})"
        return lines

    def rating(self) -> str:
        """The estimated quality, or the score, for a page."""
        return f"score {self.score:.2f}" if self.quality is None else f"quality {self.quality:.0%}"

    def ratings(self) -> dict[str, Any]:
        """The translation with its quality, and alternatives, for a page; without an estimate all with their scores."""
        if self.quality is None:
            return {"Scores": [(translation.text, translation.score) for translation in (self, *self.alternatives)]}
        others = [(translation.text, None) for translation in self.alternatives]
        return {"Expected quality": [(self.text, self.quality)], **({"Other translations": others} if others else {})}

    def _line(self) -> str:
        return printable(self.text) + ("" if self.quality is None else f"  (quality {self.quality:.0%})")

    def __str__(self) -> str:
        return self.text


def alignment_figure(translation: Translation) -> "Figure":
    """Cross-attention of the last layer, averaged over heads: rows are tokens, columns source tokens."""
    assert translation.attention is not None
    cross = translation.attention.of("cross")
    return cross.plot(-1, "mean", source=translation.source_tokens, target=translation.tokens, title=translation.text)


def with_attention(translation: Translation, record: Record, row: int) -> Translation:
    """The translation with its row of a recorded batch, without padding."""
    source, target = len(translation.source_tokens), len(translation.tokens)
    sizes = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    maps = []
    for attention_map in record:
        queries, keys = sizes[attention_map.kind]
        maps.append(replace(attention_map, weights=attention_map.weights[row : row + 1, :, :queries, :keys].clone()))
    return replace(translation, attention=Record(record.model, maps))
