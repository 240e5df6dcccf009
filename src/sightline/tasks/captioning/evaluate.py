"""Evaluation of a captioner: BLEU, CIDEr-D and chrF against all references, and whether its maps point to objects."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...data.captions.datasets import CaptionedImages
from ...data.text.tokenizers import Tokenizer
from ...decoding import DecodingOptions, Hypothesis, decode
from ...errors import check
from ...models.captioner import Captioner
from ...names import printable
from ...predictor import SELECTION_NOTES, Progress
from ...view.page import Page
from ...view.reports import Report, ReportImage
from ..text_data import describe_search
from .metrics import CiderD, bleu, chrf, equals_one, words

IMAGES_PER_BATCH = {"cpu": 32, "cuda": 256}
"""Images that are captioned together, divided by the number of beams."""
PRECISION_IMAGES = 200
"""Images that `compare_precision` captions."""
MAX_CIDER_DIFFERENCE = 0.02
"""Largest difference that `compare_precision` accepts."""
PAGE_EXAMPLES = 12
"""Best, worst and random examples on a page, each."""


class GeneratedCaption(NamedTuple):
    """A caption and the hypothesis it was decoded from."""

    text: str
    hypothesis: Hypothesis


@dataclass(frozen=True)
class Pointing:
    """How often the map of a word has its maximum inside the object that the word describes."""

    words: int
    """Words of objects in captions that equal a reference."""
    hits: int
    chance: float
    """The mean share of the image that the right object covers."""

    @property
    def accuracy(self) -> float:
        """The share of hits."""
        return self.hits / max(1, self.words)


@dataclass(frozen=True)
class CaptionEvaluation:
    """Metrics of a captioner."""

    split: str
    images: int
    references: float
    """References per image."""
    bleu: tuple[float, ...]
    """BLEU-1 to BLEU-4: corpus level, lower-cased, without punctuation, unsmoothed."""
    cider: float
    """CIDEr-D with the document frequencies of these references."""
    chrf: float
    exact: float
    """Share of captions with the same words as a reference."""
    distinct: float
    """Distinct captions as a share of all."""
    length: float
    """Mean number of words."""
    reference_length: float
    num_beams: int
    length_penalty: float
    no_repeat_ngram_size: int = 0
    pointing: Pointing | None = None
    """Of generated images, whose objects are known."""

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        values["pointing"] = (
            None if self.pointing is None else {**asdict(self.pointing), "accuracy": self.pointing.accuracy}
        )
        return values

    def summary(self) -> str:
        images = f"{self.images:,} images{SELECTION_NOTES.get(self.split, '')}"
        return f"On the {self.split} set ({images}), {self._search}: {self._scores}."

    def __str__(self) -> str:
        note = SELECTION_NOTES.get(self.split, "")
        lines = [
            f"{self.split} set, {self.images:,} images, {self.references:.1f} references each, {self._search}{note}",
            "BLEU-1 to 4  " + "  ".join(f"{score:.1f}" for score in self.bleu),
            f"CIDEr-D      {self.cider:.3f}",
            f"chrF         {self.chrf:.1f}",
            f"equal to a reference  {self.exact:.1%}",
            f"distinct captions     {self.distinct:.1%}",
            f"words per caption     {self.length:.1f}, references {self.reference_length:.1f}",
        ]
        if self.pointing is not None:
            p = self.pointing
            lines.append(f"maps point to the object  {p.accuracy:.1%} of {p.words:,} words (chance {p.chance:.1%})")
        return "\n".join(lines)

    @property
    def _scores(self) -> str:
        pointing = "" if self.pointing is None else f", pointing {self.pointing.accuracy:.1%}"
        return f"BLEU-4 {self.bleu[-1]:.1f}, CIDEr-D {self.cider:.3f}, chrF {self.chrf:.1f}{pointing}"

    @property
    def _search(self) -> str:
        return describe_search(self.num_beams, self.no_repeat_ngram_size)


def generate(
    model: Captioner,
    inputs: Tensor,
    tokenizer: Tokenizer,
    max_tokens: int,
    *,
    progress: Progress | None = None,
    **search: Any,
) -> list[list[GeneratedCaption]]:
    """The captions of each image, the best first; `search` are options of `beam_search`. It is greedy without beams."""
    special = tokenizer.special_tokens
    ids = {"bos": special.id("bos"), "eos": special.id("eos")}
    options = DecodingOptions(**ids, suppress_tokens=special.suppressed_ids, max_tokens=max_tokens)
    num_beams = search.get("num_beams", 1)
    captions: list[list[GeneratedCaption]] = []
    device = next(model.parameters()).device
    size = max(1, IMAGES_PER_BATCH[device.type] // num_beams)
    with torch.inference_mode():
        for start in range(0, len(inputs), size):
            hypotheses = decode(model.decoder, model.encode(inputs[start : start + size].to(device)), options, **search)
            captions += [[GeneratedCaption(_decoded(tokenizer, h), h) for h in found] for found in hypotheses]
            if progress is not None:
                progress(len(captions), len(inputs))
    return captions


def _decoded(tokenizer: Tokenizer, hypothesis: Hypothesis) -> str:
    """The text of a hypothesis. Data sets such as Flickr8k have a space before punctuation marks, which is left out."""
    return re.sub(r"\s+([.,;:!?])", r"\1", tokenizer.decode(hypothesis.tokens))


def score_captions(
    split: str, images: CaptionedImages, captions: Sequence[str], *, pointing: Pointing | None = None, **search: Any
) -> CaptionEvaluation:
    """Compare captions with the references of their images."""
    references = images.captions
    exact = [equals_one(*pair) for pair in zip(captions, references, strict=True)]
    lengths = [len(words(text)) for texts in references for text in texts]
    return CaptionEvaluation(
        split=split,
        images=len(images),
        references=images.num_captions / len(images),
        bleu=bleu(captions, references),
        cider=CiderD(references).corpus_score(captions, references),
        chrf=chrf(captions, references),
        exact=float(np.mean(exact)),
        distinct=len({*captions}) / len(captions),
        length=float(np.mean([len(words(text)) for text in captions])),
        reference_length=float(np.mean(lengths)),
        pointing=pointing,
        **search,
    )


def count_pointing(
    images: CaptionedImages, captions: Sequence[str], maps: Sequence[Sequence[tuple[str, Any]]], grid: tuple[int, int]
) -> Pointing:
    """Count the words of right captions whose map has its maximum inside the object that they describe.

    `maps` has, for each caption, its words in order with a map (rows * columns) of each. The objects
    of an image are in the order of their mention.
    """
    rows, columns = grid
    total, hits, areas = 0, 0, list[float]()
    for texts, objects, text, word_maps in zip(images.captions, images.objects, captions, maps, strict=True):
        if not equals_one(text, texts):
            continue
        expected = [(word, item) for item in objects for word in item.words]
        for word, values in word_maps:
            if expected and words(word) == [expected[0][0]]:
                item = expected.pop(0)[1]
                cell = int(np.argmax(values))
                total += 1
                hits += item.covers((cell // columns + 0.5) / rows, (cell % columns + 0.5) / columns)
                areas.append((2 * item.radius) ** 2)
    return Pointing(total, hits, float(np.mean(areas)) if areas else 0.0)


def examples_page(evaluation: CaptionEvaluation, images: CaptionedImages, captions: Sequence[str], read: Any) -> Page:
    """The best, the worst and random examples by CIDEr-D with their references; `read(index)` returns pixels."""
    cider = CiderD(images.captions)
    scores = np.array([cider.score(*pair) for pair in zip(captions, images.captions, strict=True)])
    order = np.argsort(-scores, kind="stable")
    count = min(PAGE_EXAMPLES, len(order))
    chosen = np.random.default_rng(0).permutation(len(order))[:count]
    report = Report("Captions", f"{evaluation.split} set, {evaluation.images:,} images")
    figures = {"BLEU-4": f"{evaluation.bleu[-1]:.1f}", "CIDEr-D": f"{evaluation.cider:.3f}"}
    figures |= {"chrF": f"{evaluation.chrf:.1f}", "distinct captions": f"{evaluation.distinct:.1%}"}
    report.add_figures([(name, value, "") for name, value in figures.items()])
    for title, indices in (("Best", order[:count]), ("Random", chosen), ("Worst", order[::-1][:count])):
        cards = []
        for i in indices.tolist():
            lines = [captions[i], f"{printable(images.names[i])}, CIDEr-D {scores[i]:.2f}"]
            lines += [f"reference: {text}" for text in images.captions[i]]
            cards.append(ReportImage(read(i), lines))
        report.add_images(title, cards)
    return report.page()


def compare_precision(before: Any, after: Any, data: Any, progress: Progress | None = None) -> str:
    """Compare CIDEr-D before and after a conversion to half precision; raises SightlineError if it differs too much."""
    images, split = before.evaluation_images(data)
    sample = images.take(range(min(PRECISION_IMAGES, len(images))))
    old, new = (predictor.evaluate_images(sample, split, progress=progress).cider for predictor in (before, after))
    rule = f"CIDEr-D in half precision must differ by at most {MAX_CIDER_DIFFERENCE}"
    check(abs(new - old) <= MAX_CIDER_DIFFERENCE, f"{rule}, got {old:.4f} before and {new:.4f} after")
    return f"CIDEr-D {old:.3f} before and {new:.3f} after, over the first {len(sample)} images of the {split} set"
