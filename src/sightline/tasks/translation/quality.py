"""Estimated quality of a translation, calibrated on validation sentences at the end of training.

The log-probability of a translation says how sure the decoder is of its own words. It is high for nonsense that the
decoder knows well. The estimate therefore has a second input: the share of the source's character n-grams that occur in
the training text. Both are weighted by a logistic regression whose target is the sentence chrF of the translation. It
is fitted to validation sentences, and to copies of them in which words are replaced by others that are not text.
"""

import base64
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from ... import config, seeds
from ...config import Config, rule
from ...data.text.corpora import ParallelText
from ...data.text.tokenized import encode_pairs
from ...data.text.tokenizers import Tokenizer
from ...decoding import Hypothesis
from ...errors import SightlineError, check, reraise
from ...models.seq2seq import Seq2Seq
from .config import TranslationTaskConfig
from .evaluate import translate

FILE = "quality.json"
"""Name of the file in a run."""
NGRAM = 4
"""Characters of an n-gram, word boundaries included."""
TABLE_BITS = 1 << 20
"""Bits of the table of known n-grams, which are hashed. A full table says that everything is known."""
MAX_SENTENCES = 1000
"""Validation sentences that the estimate is fitted to."""
REPLACED_SHARE = 0.5
"""Share of the words that are replaced in a corrupted copy."""
MIN_FAMILIARITY = 0.5
"""Share of known n-grams below which a word is reported as unfamiliar."""
PRIOR = 0.1
"""L2 penalty of the weights, as a sum over sentences."""
Finite = Annotated[float, rule("finite", np.isfinite)]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class NgramTable:
    """The character n-grams of a text, hashed to bits."""

    bits: Array
    """bool (TABLE_BITS,)."""

    @classmethod
    def of(cls, texts: Iterable[str]) -> "NgramTable":
        """The n-grams of all words of these texts."""
        bits = np.zeros(TABLE_BITS, dtype=bool)
        words = {word for text in texts for word in _words(text)}
        bits[[_hash(ngram) for ngram in {ngram for word in words for ngram in _ngrams(word)}]] = True
        return cls(bits)

    def familiarity(self, text: str) -> float:
        """Share of the n-grams of a text that are in the table; 1 for a text without words."""
        known = [self.bits[_hash(ngram)] for word in _words(text) for ngram in _ngrams(word)]
        return float(np.mean(known)) if known else 1.0

    def unfamiliar_words(self, text: str) -> tuple[str, ...]:
        """The words of which less than `MIN_FAMILIARITY` of the n-grams are in the table."""
        return tuple(dict.fromkeys(word for word in text.split() if self.familiarity(word) < MIN_FAMILIARITY))


@dataclass(frozen=True, kw_only=True)
class QualityModel(Config):
    """Logistic regression of the sentence chrF, from 0 to 1."""

    intercept: Finite
    score_weight: Finite
    """Weight of the mean log-probability of the tokens."""
    unfamiliarity_weight: Finite
    """Weight of the share of n-grams that are not known."""
    sentences: int
    """Validation sentences that it was fitted to."""
    calibration_error: Finite
    """Mean difference of estimate and chrF over ten groups of validation sentences, from two-fold cross-validation."""
    correlation: Finite
    """Pearson correlation of estimate and chrF on validation sentences, from two-fold cross-validation."""

    def __call__(self, scores: Array, familiarity: Array) -> Array:
        """Scores (N,) and familiarity (N,) -> expected chrF (N,), from 0 to 1"""
        return _estimate((self.intercept, self.score_weight, self.unfamiliarity_weight), scores, familiarity)


@dataclass(frozen=True)
class Quality:
    """What a run stores to estimate the quality of its translations."""

    table: NgramTable
    model: QualityModel

    def estimate(self, text: str, log_probability: float) -> float:
        """Expected chrF, from 0 to 1, of the translation of a text; `log_probability` is the mean over its tokens."""
        return float(self.model(np.array([log_probability]), np.array([self.table.familiarity(text)]))[0])

    def to_bytes(self) -> bytes:
        """The content of the file."""
        packed = base64.b64encode(zlib.compress(np.packbits(self.table.bits).tobytes(), 9)).decode()
        return json.dumps({**config.plain(self.model), "ngrams": packed}, indent=1).encode()

    @classmethod
    def from_json(cls, content: Any, name: str) -> "Quality":
        """Read the parsed content of the file."""
        with reraise(f"{name} must be the quality estimate of a run", ValueError, TypeError, KeyError, zlib.error):
            values = dict(content)
            decompressor = zlib.decompressobj()
            packed = decompressor.decompress(base64.b64decode(values.pop("ngrams"), validate=True), TABLE_BITS // 8)
            if len(packed) != TABLE_BITS // 8:
                raise ValueError(f"its table must have {TABLE_BITS:,} bits, got {8 * len(packed):,}")
            bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8)).astype(bool)
            return cls(NgramTable(bits), config.build(QualityModel, values))


def measure_quality(
    model: Seq2Seq,
    tokenizers: tuple[Tokenizer, Tokenizer],
    task_config: TranslationTaskConfig,
    train_sources: Sequence[str],
    validation: ParallelText,
) -> Quality:
    """Translate validation sentences, and corrupted copies of them, with the config's search; fit the estimate."""
    table, size = NgramTable.of(train_sources), min(len(validation), MAX_SENTENCES)
    sample = validation.take(np.linspace(0, len(validation) - 1, size).round().astype(int).tolist())
    sources = (*sample.source, *corrupted(sample, task_config.seed))
    pairs = ParallelText(sources, (*sample.target, *sample.target))
    texts, scores = [""] * len(pairs), np.empty(len(pairs))
    encoded = encode_pairs(pairs, tokenizers, task_config.data.max_tokens).to(next(model.parameters()).device)
    search = config.plain(task_config.search)
    for batch, found in translate(model, encoded, range(len(pairs)), task_config.data.max_tokens, **search):
        for i, (best, *_) in zip(batch, found, strict=True):
            texts[i], scores[i] = tokenizers[1].decode(best.tokens), mean_log_probability(best)
    chrf = sentence_chrf(texts, pairs.target, lowercase=tokenizers[1].config.lowercase)
    familiarity = np.array([table.familiarity(text) for text in sources])
    return Quality(table, fit_quality(scores, familiarity, chrf, np.arange(len(pairs)) >= size))


def mean_log_probability(hypothesis: Hypothesis) -> float:
    """The log-probability per token, the end token included."""
    return hypothesis.score / max(1, len(hypothesis.tokens) + hypothesis.finished)


def fit_quality(scores: Array, familiarity: Array, chrf: Array, is_corrupted: Array) -> QualityModel:
    """Fit the estimate to sentences (N,), of which some have corrupted sources; chrF is from 0 to 1.

    Sentences as they are determine the weight of the score, the corrupted ones that of the familiarity.
    """
    natural = np.flatnonzero(~is_corrupted)
    check(len(natural) > 1, f"a quality estimate must have at least 2 validation sentences, got {len(natural)}")
    folds, estimates = np.arange(len(scores)) % 2, np.empty_like(scores)
    for fold in (0, 1):
        chosen, others = folds == fold, folds != fold
        weights = _weights(scores[others], familiarity[others], chrf[others], is_corrupted[others])
        estimates[chosen] = _estimate(weights, scores[chosen], familiarity[chosen])
    order = natural[np.argsort(estimates[natural], kind="stable")]
    groups = [group for group in np.array_split(order, 10) if len(group)]
    gaps = [len(group) * abs(estimates[group].mean() - chrf[group].mean()) for group in groups]
    spread = np.std(estimates[natural]) * np.std(chrf[natural])
    correlation = np.corrcoef(estimates[natural], chrf[natural])[0, 1] if spread > 1e-9 else 0.0
    intercept, score_weight, unfamiliarity_weight = _weights(scores, familiarity, chrf, is_corrupted)
    return QualityModel(
        intercept=intercept,
        score_weight=score_weight,
        unfamiliarity_weight=unfamiliarity_weight,
        sentences=len(natural),
        calibration_error=float(sum(gaps) / len(natural)),
        correlation=float(correlation),
    )


def _weights(scores: Array, familiarity: Array, chrf: Array, is_corrupted: Array) -> tuple[float, float, float]:
    """Intercept, weight of the score and weight of the unfamiliarity."""
    features = np.stack((np.ones_like(scores), scores), 1)
    base = _logistic_regression(features[~is_corrupted], chrf[~is_corrupted])
    unfamiliarity = (1 - familiarity)[:, None]
    [weight] = _logistic_regression(unfamiliarity, chrf, offset=features @ base)
    return float(base[0]), float(base[1]), float(weight)


def _estimate(weights: tuple[float, float, float], scores: Array, familiarity: Array) -> Array:
    intercept, score_weight, unfamiliarity_weight = weights
    return _sigmoid(intercept + score_weight * scores + unfamiliarity_weight * (1 - familiarity))


def corrupted(pairs: ParallelText, seed: int) -> list[str]:
    """The sources with some words replaced by random sequences of the letters of all sources. At least one is."""
    generator = seeds.make_generator(seed, seeds.DATA)
    letters = sorted({char for text in pairs.source for char in text if char.isalpha()}) or ["x"]
    result = []
    for text in pairs.source:
        words = text.split()
        count = max(1, round(REPLACED_SHARE * len(words)))
        for i in generator.permutation(len(words))[:count].tolist():
            words[i] = "".join(generator.choice(letters, size=max(3, len(words[i]))))
        result.append(" ".join(words))
    return result


def sentence_chrf(translations: Sequence[str], references: Sequence[str], *, lowercase: bool) -> Array:
    """chrF of each translation, from 0 to 1."""
    from sacrebleu import CHRF

    metric = CHRF(lowercase=lowercase)
    pairs = zip(translations, references, strict=True)
    return np.array([metric.sentence_score(text, [reference]).score / 100 for text, reference in pairs])


def _logistic_regression(features: Array, targets: Array, offset: Array | float = 0.0) -> Array:
    """Weights of features (N, F) for targets (N,) from 0 to 1, by Newton's method; `offset` is added to the logits."""
    weights = np.zeros(features.shape[1])
    for _ in range(100):
        estimates = _sigmoid(features @ weights + offset)
        gradient = features.T @ (estimates - targets) + PRIOR * weights
        curvature = np.clip(estimates * (1 - estimates), 1e-6, None)
        hessian = features.T @ (features * curvature[:, None]) + PRIOR * np.eye(len(weights))
        step = np.linalg.solve(hessian, gradient)
        weights = weights - np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-9:
            break
    if not np.isfinite(weights).all():
        raise SightlineError("scores of translations must be finite, got NaN or infinity; the weights may be damaged")
    return weights


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -50, 50))))


def _words(text: str) -> list[str]:
    """Lower-cased words and numbers, without punctuation."""
    return re.findall(r"\w+", text.lower())


def _ngrams(word: str) -> list[str]:
    marked = f" {word} "
    return [marked[i : i + NGRAM] for i in range(max(1, len(marked) - NGRAM + 1))]


def _hash(ngram: str) -> int:
    return zlib.crc32(ngram.encode("utf-8", "replace")) % TABLE_BITS
