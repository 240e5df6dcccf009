"""What a translator answers: a sentence in another language, how likely, and where it looked."""

from dataclasses import dataclass

from ...attention import Record
from ...names import printable, shortened


@dataclass(frozen=True)
class Answer:
    """What the model makes of one sentence."""

    text: str
    score: float
    """The log-probability of the translation, normalized by its length."""
    tokens: tuple[str, ...]
    """As they were written, the end among them."""
    source_tokens: tuple[str, ...]
    """As the sentence was read, its end among them."""
    others: "tuple[Answer, ...]" = ()
    """The next best translations."""
    unknown: int = 0
    """Tokens of the sentence that stand for what the vocabulary lacks: unknown words, or bytes."""
    left_out: str = ""
    """Emoji and other signs of the sentence that the vocabulary lacks, and that were not read."""
    problem: str | None = None
    """What is wrong with the sentence, if it is not one to be translated."""
    finished: bool = True
    """Whether the translation came to its end, or was cut off."""
    attention: Record | None = None
    """Who looked at whom; rows of cross-attention are `tokens`, columns `source_tokens`. Where it was asked for."""

    def __str__(self) -> str:
        return self.text

    def told(self, top: int | None = None) -> str:
        """One line for a terminal, or one for each of several translations."""
        best, read = [self, *self.others][: top or 1], len(self.source_tokens) - 1
        lost = f"  ({self.unknown} of its {read} tokens are unknown to the model)" if self.unknown else ""
        lost += f"  (left out: {printable(shortened(self.left_out, 20))})" if self.left_out else ""
        return "\n  ".join(f"{printable(one.text)}  ({one.score:.2f})" for one in best) + lost


@dataclass(frozen=True)
class Look:
    """Some sentences, their translations, and where the model looked."""

    texts: list[str]
    answers: list[Answer]
    record: Record
    """Of all sentences together, filled up to the longest."""
