"""Occlusion test of the maps of a captioner: does a word become less likely when the region of its map is hidden?

    python -m benchmarks.caption_occlusion RUN [--data PATH] [--images 200]

Every image of the test set, or of the first `--images` of it, is captioned. A window that covers a third of each side
slides over the grid of regions and is painted with the mean color of the image. For each word, the table has the drop
of its log-probability, with the words before it given: with the window that has the largest sum of the word's map,
with a random window (the mean over all others), and with the window of the caption's mean map, which is the same for
all words. Intervals are 95% bootstrap intervals over images; differences are paired.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sightline import load
from sightline.comparison import RESAMPLES, percentile_interval, resample_weights
from sightline.data.images.occlusion import fill_cells
from sightline.decoding import decoder_inputs
from sightline.tasks.captioning.evaluate import GeneratedCaption
from sightline.tasks.captioning.metrics import words
from sightline.tasks.captioning.predictor import CaptioningPredictor
from sightline.view.captions import WordMap

from .clock import machine

FUNCTION_WORDS = frozenset(
    words(
        "a an the of in on at to by with and or is are was were be being been it its he she they his her their him "
        "them this that these those there as from for into over up down out off near next while who which"
    )
)
"""Words that are left out of the row of content words."""
WINDOW_SHARE = 3
"""A window covers this part of each side of the grid."""
Array = np.ndarray[Any, Any]


class Drops(NamedTuple):
    """Drops of the log-probabilities of the words of one caption."""

    attended: Array
    random: Array
    caption: Array
    """With the window of the caption's mean map."""
    is_content: Array


def windows(rows: int, columns: int) -> Array:
    """All windows of a grid as masks: bool (windows, rows, columns)"""
    height, width = (max(1, round(side / WINDOW_SHARE)) for side in (rows, columns))
    masks = []
    for top in range(rows - height + 1):
        for left in range(columns - width + 1):
            mask = np.zeros((rows, columns), dtype=bool)
            mask[top : top + height, left : left + width] = True
            masks.append(mask)
    return np.stack(masks)


@torch.inference_mode()
def word_log_probs(predictor: CaptioningPredictor, inputs: Tensor, caption: GeneratedCaption) -> Array:
    """The log-probability of each word for every input: (inputs, words)"""
    special, tokens = predictor.tokenizer.special_tokens, caption.hypothesis.tokens
    target = decoder_inputs([caption.hypothesis], bos=special.id("bos"), pad=special.id("pad"))[:, : len(tokens)]
    target = target.to(predictor.device).expand(len(inputs), -1)
    log_probs = predictor.model(inputs.to(predictor.device), target).float().log_softmax(-1)
    own = log_probs[:, torch.arange(len(tokens)), torch.tensor(tokens, device=log_probs.device)].cpu().numpy()
    groups = predictor.tokenizer.word_groups(tokens)
    return np.stack([own[:, positions].sum(1) for _, positions in groups], 1)


def caption_drops(
    predictor: CaptioningPredictor, pixels: Tensor, caption: GeneratedCaption, maps: Sequence[WordMap]
) -> Drops:
    """The drops of the words of one image uint8 (C, side, side)."""
    masks = windows(*predictor.config.model.grid)
    color = pixels.float().mean((1, 2), keepdim=True).round().to(torch.uint8)
    images = torch.cat((pixels[None], fill_cells(pixels, torch.from_numpy(masks), color)))
    log_probs = word_log_probs(predictor, predictor.inputs.from_pixels(images), caption)
    drops = log_probs[:1] - log_probs[1:]  # (windows, words)
    weights = np.stack([word.mean() for word in maps])
    sums = np.einsum("mrc,wrc->mw", masks, weights)
    best, shared, own = sums.argmax(0), int(sums.sum(1).argmax()), np.arange(len(maps))
    attended = drops[best, own]
    others = (drops.sum(0) - attended) / (len(masks) - 1)
    is_content = np.array([not FUNCTION_WORDS.issuperset(words(word.word)) for word in maps])
    return Drops(attended, others, drops[shared], is_content)


def interval(values: list[Array]) -> tuple[float, float, float]:
    """The mean over the words of all images, and its interval over resamples of the images."""
    sums, counts = (np.array([f(x) for x in values], dtype=float) for f in (np.sum, len))
    weights = resample_weights(len(values))
    resampled = (weights @ sums) / np.maximum(weights @ counts, 1)
    return float(sums.sum() / counts.sum()), *percentile_interval(resampled)


def report(title: str, drops: list[Drops]) -> list[str]:
    """The lines of the table for some words."""
    columns = {
        "region of the word's map": [d.attended for d in drops],
        "random region": [d.random for d in drops],
        "region of the caption's map": [d.caption for d in drops],
        "word's map - random": [d.attended - d.random for d in drops],
        "word's map - caption's map": [d.attended - d.caption for d in drops],
    }
    lines = [f"{title}, {sum(map(len, columns['random region'])):,} words: drop of the log-probability"]
    for name, values in columns.items():
        mean, low, high = interval(values)
        lines.append(f"  {name:<30}{mean:+.3f}  ({low:+.3f} to {high:+.3f})")
    better = [(d.attended > d.random).astype(float) for d in drops]
    mean, low, high = interval(better)
    return [*lines, f"  {'larger than a random region':<30}{mean:.1%} of words  ({low:.1%} to {high:.1%})"]


def content_words(drops: list[Drops]) -> list[Drops]:
    """Without function words."""
    return [Drops(*(values[d.is_content] for values in d)) for d in drops if d.is_content.any()]


def measure(predictor: CaptioningPredictor, data: str | None, count: int) -> tuple[str, list[Drops]]:
    """The split, and the drops of its first images that have a caption."""
    images, split = predictor.evaluation_images(data)
    images = images.take(range(min(count, len(images))))
    inputs, captions = predictor.caption_images(images)
    maps = predictor.word_maps(inputs.to(predictor.device), captions)
    pixels = images.load(*predictor.inputs.size_and_channels)
    found = []
    for i, (caption, own) in enumerate(zip(captions, maps, strict=True)):
        print(f"{i + 1} of {len(images)}", end="\r", file=sys.stderr)
        if own:
            found.append(caption_drops(predictor, pixels[i], caption, own))
    return split, found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a captioner with attention: a folder, or the name of a pretrained model")
    parser.add_argument("--data", help="captioned images (default: the run's own)")
    parser.add_argument("--images", type=int, default=200)
    arguments = parser.parse_args()
    predictor = load(arguments.run)
    if not isinstance(predictor, CaptioningPredictor) or predictor.config.model.kind == "rnn":
        sys.exit(f"run must be a captioner with attention, got {arguments.run}")
    split, drops = measure(predictor, arguments.data, arguments.images)
    rows, columns = predictor.config.model.grid
    size = " x ".join(str(max(1, round(side / WINDOW_SHARE))) for side in (rows, columns))
    print(f"{machine('cpu')}; {Path(arguments.run).name}, {split} set, {len(drops)} images")
    print(f"windows of {size} of {rows} x {columns} regions; {RESAMPLES:,} bootstrap resamples of the images")
    for title, rows_of in (("all words", drops), ("content words", content_words(drops))):
        print("\n".join(["", *report(title, rows_of)]))


if __name__ == "__main__":
    main()
