"""How good a translator is: loss and perplexity of what it should have written, BLEU and chrF of what it wrote."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...data.text.batching import EncodedPairs
from ...data.text.tokenizers import Tokenizer
from ...decoding import Hypothesis, beam, greedy
from ...training.task import BatchSlice

AT_ONCE = {"cpu": 1 << 13, "cuda": 1 << 15}
"""Source tokens translated in one go, filling and beams included."""
LENGTHS = (5, 10, 15, 20, 25, 30, 40, 50)
"""Words of a source at which one group of sentences ends and the next begins."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Score:
    """How a translator does on a set."""

    split: str
    pairs: int
    bleu: float
    """sacreBLEU, cased, 13a."""
    bleu_lowercase: float
    chrf: float
    by_length: list[dict[str, float | None]]
    """BLEU (lower-cased) by the words of the source: least, most (null for no end), pairs, bleu."""
    beams: int
    length_penalty: float
    signature: str
    """Of the cased BLEU, as sacreBLEU writes it."""
    lowercase: bool = False
    """Whether the model writes lower case: then BLEU and chrF, which are cased, say little."""

    def lines(self) -> list[str]:
        """For a terminal; the BLEU that says most comes first."""
        note = "  cased, but the model writes lower case" if self.lowercase else ""
        both = [
            f"BLEU               {self.bleu:.1f}{note}  ({self.signature})",
            f"BLEU, lower-cased  {self.bleu_lowercase:.1f}",
        ]
        told = [
            f"{self.split} set, {self.pairs:,} pairs, {_way(self.beams)}",
            *(reversed(both) if self.lowercase else both),
            f"chrF               {self.chrf:.1f}{note}",
            "BLEU, lower-cased, by words of the source",
        ]
        for group in self.by_length:
            told.append(f"  {span(group):>8}  {group['bleu']:5.1f}  {group['pairs']:,} pairs")
        return told

    def sentence(self) -> str:
        """For a card."""
        both = [f"{self.bleu:.1f} cased", f"{self.bleu_lowercase:.1f} lower-cased"]
        told = ", ".join(reversed(both) if self.lowercase else both)
        note = "; the model writes lower case" if self.lowercase else ""
        return (
            f"On the {self.split} set ({self.pairs:,} pairs), {_way(self.beams)}: BLEU {told} (13a), "
            f"chrF {self.chrf:.1f}{note}. `{self.signature}`"
        )


def _way(beams: int) -> str:
    return "greedy" if beams == 1 else f"beam {beams}"


def span(group: dict[str, float | None]) -> str:
    """What to call a group of lengths."""
    return f"{group['least']}+" if group["most"] is None else f"{group['least']} to {group['most']}"


def translate(
    model: Any,
    encoded: EncodedPairs,
    rows: Sequence[int],
    *,
    max_tokens: int,
    beams: int = 1,
    n_best: int = 1,
    length_penalty: float = 1.0,
) -> Iterator[tuple[list[int], list[list[Hypothesis]]]]:
    """The hypotheses of these rows, some at a time, sentences of like length together."""
    for some, length in groups(encoded, rows, beams):
        index = torch.tensor(some, device=encoded.source.ids.device)
        source, attention_mask = encoded.source.take(index, length)
        memory = model.encode(source, attention_mask)
        if beams == n_best == 1:
            yield some, greedy(model, memory, max_tokens=max_tokens)
        else:
            how: dict[str, Any] = {"beams": beams, "n_best": n_best, "max_tokens": max_tokens}
            yield some, beam(model, memory, length_penalty=length_penalty, **how)


def groups(encoded: EncodedPairs, rows: Sequence[int], beams: int = 1) -> Iterator[tuple[list[int], int]]:
    """These rows from the longest to the shortest, as many at once as fit, and the length to fill them up to."""
    lengths = encoded.source.lengths
    most = AT_ONCE[encoded.source.ids.device.type]
    left = sorted(rows, key=lambda i: (-lengths[i], i))
    while left:
        length = int(lengths[left[0]])
        count = max(1, most // (length * beams))
        yield left[:count], length
        left = left[count:]


def tally(
    model: nn.Module, encoded: EncodedPairs, texts: Sequence[str], tokenizer: Tokenizer, part: BatchSlice, max_tokens: int
) -> dict[str, Tensor]:
    """What there is to count over the part of a set that belongs here: the loss, and what makes up BLEU."""
    device = encoded.source.ids.device
    rows = range(part.rank, len(encoded), part.world_size)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    wrote: dict[int, str] = {}
    for some, hypotheses in translate(model, encoded, rows, max_tokens=max_tokens):
        index = torch.tensor(some, device=device)
        lengths = int(encoded.source.lengths[some].max()), int(encoded.target.lengths[some].max()) - 1
        batch = encoded.batch(index, lengths)
        loss += model(batch.source, batch.attention_mask, batch.target, labels=batch.labels)
        wrote |= {i: tokenizer.decode(found[0].tokens) for i, found in zip(some, hypotheses, strict=True)}
    counts = torch.zeros(10, dtype=torch.float64, device=device)
    if rows:
        found = bleu([wrote[i] for i in rows], [texts[i] for i in rows], lowercase=tokenizer.config.lowercase)
        counts += torch.tensor([*found.counts, *found.totals, found.sys_len, found.ref_len], device=device)
    tokens = sum(int(encoded.target.lengths[i]) - 1 for i in rows)
    return {"loss": loss, "tokens": torch.tensor(float(tokens), dtype=torch.float64, device=device), "bleu": counts}


def metrics(sums: dict[str, Tensor]) -> dict[str, float]:
    """BLEU, loss and perplexity from what was counted."""
    from sacrebleu import BLEU

    loss = float(sums["loss"]) / float(sums["tokens"])
    counts = [int(count) for count in sums["bleu"].round().tolist()]
    found = BLEU.compute_bleu(counts[:4], counts[4:8], sys_len=counts[8], ref_len=counts[9])
    return {"bleu": found.score, "loss": loss, "perplexity": math.exp(min(loss, 100))}


def bleu(wrote: Sequence[str], texts: Sequence[str], *, lowercase: bool = False) -> Any:
    """sacreBLEU with its 13a tokens."""
    from sacrebleu import BLEU

    return BLEU(lowercase=lowercase).corpus_score(list(wrote), [list(texts)])


def scored(
    split: str,
    sources: Sequence[str],
    texts: Sequence[str],
    wrote: Sequence[str],
    *,
    beams: int,
    length_penalty: float,
    lowercase: bool = False,
) -> Score:
    """All there is to say of translations beside what they should be."""
    from sacrebleu import BLEU, CHRF

    cased = BLEU()
    whole = cased.corpus_score(list(wrote), [list(texts)])
    by_length: list[dict[str, float | None]] = []
    for least, most in zip((1, *(end + 1 for end in LENGTHS)), (*LENGTHS, None), strict=True):
        own = [i for i, source in enumerate(sources) if least <= len(source.split()) <= (most or math.inf)]
        if own:
            group = bleu([wrote[i] for i in own], [texts[i] for i in own], lowercase=True)
            by_length.append({"least": least, "most": most, "pairs": len(own), "bleu": group.score})
    return Score(
        split=split,
        pairs=len(texts),
        bleu=whole.score,
        bleu_lowercase=bleu(wrote, texts, lowercase=True).score,
        chrf=CHRF().corpus_score(list(wrote), [list(texts)]).score,
        by_length=by_length,
        beams=beams,
        length_penalty=length_penalty,
        signature=str(cased.get_signature()),
        lowercase=lowercase,
    )
