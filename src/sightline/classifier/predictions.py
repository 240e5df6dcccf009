"""What a classifier says of one image, and what it expects of itself."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import SightlineError
from ..names import printable

if TYPE_CHECKING:
    from .explanation import Explanation


@dataclass(frozen=True)
class Answer:
    """What the classifier says of one image."""

    label: str
    """The likeliest class, whether or not the image belongs to any."""
    confidence: float
    """How likely that class is, given that the image belongs to one of them."""
    known: bool
    """Whether it looks as images of the classes do; False for what belongs to none."""
    scores: dict[str, float]
    """A share for each class, the likeliest first."""
    known_score: float
    """How much it looks as images of the classes do, from 0 to 1; it is known from 0.5 on."""
    transductive: bool = False
    """Whether it was asked together with others and may depend on them."""
    _reason: Callable[..., "Explanation"] | None = field(default=None, repr=False, compare=False)

    def explain(self, *, images: int = 3, parts: int = 6) -> "Explanation":
        """The examples behind the answer, and the parts of the image and of them that it goes by.

        So many examples are shown; images are hidden part by part in a grid of `parts` x `parts`.
        """
        if self._reason is None:
            raise SightlineError(
                "an answer must be one that predict gave to be explained, got one without its classifier"
            )
        return self._reason(self, images=images, parts=parts)

    def told(self, top: int | None = None) -> str:
        """One line for a terminal; the next classes too, where more than one is wanted."""
        first = list(self.scores.items())[: top or 1]
        if not self.known:
            return printable(f"none of these (closest {', '.join(name for name, _ in first)})")
        return printable(", ".join((str(self), *(f"{name} {share:.1%}" for name, share in first[1:]))))

    def __str__(self) -> str:
        if self.known:
            return f"{self.label} {self.confidence:.1%} (known)"
        return f"none of these (closest {self.label})"


@dataclass(frozen=True)
class Estimate:
    """How well the classifier should do, judged by its own examples: each was asked while it was left out."""

    accuracy: float
    interval: tuple[float, float]
    """Wilson's, 95%."""
    images: int
    """Examples that could be left out: those whose class has others."""
    per_class: dict[str, float]
    """The worst first."""

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.accuracy:.1%} of {self.images:,} held-out images right (95% interval {low:.1%} to {high:.1%})"
