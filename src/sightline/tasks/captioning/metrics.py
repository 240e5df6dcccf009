"""Metrics of captions against several references: corpus BLEU, CIDEr-D and chrF.

Texts are compared as lower-case words without punctuation.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

from ...errors import check

MAX_ORDER = 4
"""Longest n-grams of BLEU and CIDEr-D."""
SIGMA = 6.0
"""Standard deviation of CIDEr-D's penalty on differences of length."""
SCALE = 10.0
"""Factor of CIDEr-D by definition."""
_WORD = re.compile(r"[\w']+")
Ngrams = Counter[tuple[str, ...]]


def words(text: str) -> list[str]:
    """Lower-case words without punctuation."""
    return _WORD.findall(text.lower())


def equals_one(caption: str, references: Sequence[str]) -> bool:
    """Whether a caption has the same words as one of the references."""
    return any(words(caption) == words(text) for text in references)


def bleu(captions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, ...]:
    """Unsmoothed corpus BLEU-1 to BLEU-4 in percent, with the closest reference length."""
    from sacrebleu import BLEU

    texts = [" ".join(words(text)) for text in captions]
    most = max(map(len, references))
    padded = [[" ".join(words(text)) for text in texts] + [None] * (most - len(texts)) for texts in references]
    streams = [list(stream) for stream in zip(*padded, strict=True)]
    options = {"tokenize": "none", "smooth_method": "none", "force": True}
    return tuple(
        BLEU(max_ngram_order=order, **options).corpus_score(texts, streams).score  # type: ignore[arg-type]
        for order in range(1, MAX_ORDER + 1)
    )


def chrf(captions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Corpus chrF in percent."""
    from sacrebleu import CHRF

    most = max(map(len, references))
    padded = [
        [*texts, *[texts[0]] * (most - len(texts))] for texts in references
    ]  # a repeated reference changes nothing
    return float(CHRF(lowercase=True).corpus_score(list(captions), [list(x) for x in zip(*padded, strict=True)]).score)


class SentenceBleu:
    """Smoothed BLEU-4 of single sentences against the references of one image, from 0 to 1.

    One is added to the counts of n-grams of two words and more (Lin and Och, 2004), so that a sentence without a match
    of four words does not score 0.
    """

    def __init__(self, references: Sequence[str]):
        self._lengths = [len(words(text)) for text in references]
        self._most: Ngrams = Counter()
        for text in references:
            self._most |= _ngrams(words(text))

    def score(self, caption: str) -> float:
        """The score of a sentence."""
        tokens = words(caption)
        if not tokens:
            return 0.0
        matches, totals = [0] * MAX_ORDER, [0] * MAX_ORDER
        for ngram, count in _ngrams(tokens).items():
            matches[len(ngram) - 1] += min(count, self._most[ngram])
            totals[len(ngram) - 1] += count
        if not matches[0]:
            return 0.0
        smoothing = (0, *[1] * (MAX_ORDER - 1))
        ratios = [(m + s) / (t + s) for m, t, s in zip(matches, totals, smoothing, strict=True)]
        closest = min(self._lengths, key=lambda length: (abs(length - len(tokens)), length))
        return min(1.0, math.exp(1 - closest / len(tokens))) * math.prod(ratios) ** (1 / MAX_ORDER)


class CiderD:
    """CIDEr-D (Vedantam et al., 2015): the tf-idf weighted similarity of n-grams to the references of an image.

    Document frequencies are those of `corpus`: the references of each image.
    """

    def __init__(self, corpus: Iterable[Sequence[str]]):
        self._frequency: Counter[tuple[str, ...]] = Counter()
        self._count = 0
        for references in corpus:
            self._count += 1
            self._frequency.update({ngram for text in references for ngram in _ngrams(words(text))})
        check(self._count, "a corpus of references must have at least one image, got none")

    @cached_property
    def _log_count(self) -> float:
        return math.log(self._count)

    def score(self, caption: str, references: "Sequence[str] | Sequence[CiderVector]") -> float:
        """The score of one caption."""
        vectors = [self.vector(text) if isinstance(text, str) else text for text in references]
        own = self.vector(caption)
        total = sum(own.similarity(vector) for vector in vectors)
        return SCALE * total / (MAX_ORDER * len(vectors))

    def corpus_score(self, captions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
        """The mean score of captions."""
        return sum(self.score(*pair) for pair in zip(captions, references, strict=True)) / len(captions)

    def vector(self, text: str) -> "CiderVector":
        """The tf-idf vector of a text, which `score` takes in place of a reference."""
        counts = _ngrams(words(text))
        weights = {
            ngram: count * (self._log_count - math.log(max(1, self._frequency[ngram])))
            for ngram, count in counts.items()
        }
        num_bigrams = sum(count for ngram, count in counts.items() if len(ngram) == 2)
        return CiderVector(weights, num_bigrams)


class CiderVector:
    """The tf-idf weights of the n-grams of a text; `length` is its number of bigrams, as in the authors' code."""

    def __init__(self, weights: dict[tuple[str, ...], float], length: int):
        self.by_order: list[dict[tuple[str, ...], float]] = [{} for _ in range(MAX_ORDER)]
        for ngram, weight in weights.items():
            self.by_order[len(ngram) - 1][ngram] = weight
        self.norms = [math.sqrt(sum(weight * weight for weight in part.values())) for part in self.by_order]
        self.length = length

    def similarity(self, reference: "CiderVector") -> float:
        """The sum of the similarities of all orders, with clipped weights and a penalty on the difference of length."""
        total = 0.0
        for order, weights in enumerate(self.by_order):
            other, norm = reference.by_order[order], self.norms[order] * reference.norms[order]
            if norm:
                dot = sum(
                    min(weight, other[ngram]) * other[ngram] for ngram, weight in weights.items() if ngram in other
                )
                total += dot / norm
        difference = self.length - reference.length
        return total * math.exp(-(difference**2) / (2 * SIGMA**2))


def _ngrams(tokens: Sequence[str]) -> Ngrams:
    """All n-grams up to the longest order, with their counts."""
    return Counter(
        tuple(tokens[i : i + order]) for order in range(1, MAX_ORDER + 1) for i in range(len(tokens) - order + 1)
    )
