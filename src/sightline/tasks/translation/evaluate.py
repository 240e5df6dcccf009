"""Evaluation of a translator: loss and perplexity of the references, BLEU and chrF of the translations."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ... import config
from ...data.text.batching import EncodedPairs
from ...data.text.corpora import ParallelText
from ...data.text.tokenized import encode_pairs
from ...decoding import DecodingOptions, Hypothesis, decode
from ...errors import check
from ...models.seq2seq import Seq2Seq
from ...predictor import SELECTION_NOTES, Progress
from ..text_data import describe_search

TOKENS_PER_BATCH = {"cpu": 1 << 13, "cuda": 1 << 15}
"""Source tokens that are decoded together, padding and beams included."""
LENGTH_BINS = (5, 10, 15, 20, 25, 30, 40, 50)
"""Largest number of source words of each group in `by_length`; a last group has all longer sources."""
PRECISION_SENTENCES = 200
"""Sentences that `compare_precision` translates."""
MAX_BLEU_DIFFERENCE = 0.5
"""Largest difference that `compare_precision` accepts."""


@dataclass(frozen=True)
class TranslationEvaluation:
    """Metrics of a translator on a set of sentence pairs."""

    split: str
    pairs: int
    bleu: float
    """sacreBLEU, cased, tokenizer 13a."""
    bleu_lowercase: float
    """sacreBLEU of the lower-cased text."""
    chrf: float
    by_length: list[dict[str, float | None]]
    """Lower-cased BLEU by source length: min_words, max_words (None for no limit), pairs, bleu."""
    num_beams: int
    length_penalty: float
    signature: str
    """sacreBLEU's signature of the cased BLEU."""
    lowercase: bool = False
    """The model writes lower case only, so cased metrics underestimate it."""
    no_repeat_ngram_size: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def summary(self) -> str:
        scores = [f"{self.bleu:.1f} cased", f"{self.bleu_lowercase:.1f} lower-cased"]
        note = "; the model writes lower case" if self.lowercase else ""
        return (
            f"On the {self.split} set ({self.pairs:,} pairs{SELECTION_NOTES.get(self.split, '')}), {self._search}: "
            f"BLEU {', '.join(reversed(scores) if self.lowercase else scores)} (13a), "
            f"chrF {self.chrf:.1f}{note}. `{self.signature}`"
        )

    def __str__(self) -> str:
        note = "  (cased; the model writes lower case)" if self.lowercase else ""
        scores = [
            f"BLEU               {self.bleu:.1f}{note}  ({self.signature})",
            f"BLEU, lower-cased  {self.bleu_lowercase:.1f}",
        ]
        lines = [
            f"{self.split} set, {self.pairs:,} pairs, {self._search}{SELECTION_NOTES.get(self.split, '')}",
            *(reversed(scores) if self.lowercase else scores),
            f"chrF               {self.chrf:.1f}{note}",
            "BLEU, lower-cased, by source words",
            *(f"  {word_range(g):>8}  {g['bleu']:5.1f}  {g['pairs']:,} pairs" for g in self.by_length),
        ]
        return "\n".join(lines)

    @property
    def _search(self) -> str:
        return describe_search(self.num_beams, self.no_repeat_ngram_size)


def word_range(group: dict[str, Any]) -> str:
    """The name of a group of `by_length`, such as "6 to 10" or "51+"."""
    return f"{group['min_words']}+" if group["max_words"] is None else f"{group['min_words']} to {group['max_words']}"


def translate(
    model: Seq2Seq, encoded: EncodedPairs, indices: Sequence[int], max_tokens: int, **search: Any
) -> Iterator[tuple[list[int], list[list[Hypothesis]]]]:
    """Translate the sources at these indices in batches of similar length, the longest first.

    `search` are options of `beam_search`; with one beam or none, decoding is greedy. Yields the indices of each batch
    and, for each index, its hypotheses.
    """
    special, lengths, device = encoded.special_tokens, encoded.source.lengths, encoded.source.ids.device
    ids = {"bos": special.id("bos"), "eos": special.id("eos")}
    options = DecodingOptions(**ids, suppress_tokens=special.suppressed_ids, max_tokens=max_tokens)
    num_beams = search.get("num_beams", 1)
    rest = sorted(indices, key=lambda i: (-lengths[i], i))
    while rest:
        length = int(lengths[rest[0]])
        count = max(1, TOKENS_PER_BATCH[device.type] // (length * num_beams))
        batch, rest = rest[:count], rest[count:]
        source, attention_mask = encoded.source.take(torch.tensor(batch, device=device), length)
        yield batch, decode(model.decoder, model.encode(source, attention_mask), options, **search)


def bleu(candidates: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> Any:
    """The corpus BLEU of sacreBLEU, tokenizer 13a."""
    from sacrebleu import BLEU

    return BLEU(lowercase=lowercase).corpus_score(list(candidates), [list(references)])


def score_translations(
    split: str, pairs: ParallelText, translations: Sequence[str], **options: Any
) -> TranslationEvaluation:
    """Compare translations with their references; `options` are further fields of the result."""
    from sacrebleu import BLEU, CHRF

    cased, references = BLEU(), [list(pairs.target)]
    by_length: list[dict[str, float | None]] = []
    for low, high in zip((1, *(end + 1 for end in LENGTH_BINS)), (*LENGTH_BINS, None), strict=True):
        group = [i for i, text in enumerate(pairs.source) if low <= len(text.split()) <= (high or math.inf)]
        if group:
            score = bleu([translations[i] for i in group], [pairs.target[i] for i in group], lowercase=True).score
            by_length.append({"min_words": low, "max_words": high, "pairs": len(group), "bleu": score})
    return TranslationEvaluation(
        split=split,
        pairs=len(pairs),
        bleu=cased.corpus_score(list(translations), references).score,
        bleu_lowercase=bleu(translations, pairs.target, lowercase=True).score,
        chrf=CHRF().corpus_score(list(translations), references).score,
        by_length=by_length,
        signature=str(cased.get_signature()),
        **options,
    )


def evaluate(
    predictor: Any, pairs: ParallelText, split: str, progress: Progress | None = None
) -> TranslationEvaluation:
    """Translate the sources with the config's search and compare with the targets. Long sources are cut."""
    texts = translations_of(predictor, pairs, progress)
    options = {"lowercase": predictor.tokenizers[1].config.lowercase, **config.plain(predictor.config.search)}
    return score_translations(split, pairs, texts, **options)


def translations_of(predictor: Any, pairs: ParallelText, progress: Progress | None = None) -> list[str]:
    """The translation of each source with the config's search."""
    task_config, target = predictor.config, predictor.tokenizers[1]
    search, max_tokens = config.plain(task_config.search), task_config.data.max_tokens
    encoded = encode_pairs(pairs, predictor.tokenizers, max_tokens).to(predictor.device)
    translations: dict[int, str] = {}
    with torch.inference_mode():
        for batch, hypotheses in translate(predictor.model, encoded, range(len(pairs)), max_tokens, **search):
            texts = (target.decode(best.tokens) for best, *_ in hypotheses)
            translations |= dict(zip(batch, texts, strict=True))
            if progress is not None:
                progress(len(translations), len(pairs))
    return [translations[i] for i in range(len(pairs))]


def compare_precision(before: Any, after: Any, data: Any, progress: Progress | None = None) -> str:
    """Compare BLEU before and after a conversion to half precision; raises SightlineError if it differs too much."""
    pairs, split = before.evaluation_pairs(data)
    sample = pairs.take(range(min(PRECISION_SENTENCES, len(pairs))))
    old, new = (evaluate(predictor, sample, split, progress).bleu_lowercase for predictor in (before, after))
    rule = f"BLEU in half precision must differ by at most {MAX_BLEU_DIFFERENCE}"
    check(abs(new - old) <= MAX_BLEU_DIFFERENCE, f"{rule}, got {old:.4f} before and {new:.4f} after")
    scores = f"lower-cased BLEU {old:.2f} before and {new:.2f} after"
    return f"{scores}, over the first {len(sample)} sentences of the {split} set"
