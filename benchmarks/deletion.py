"""Deletion test of explanations: how many predictions change when the named cells of an image are occluded?

    python -m benchmarks.deletion [--model glyphs] [--weights FILE] [--data PATH] [--split PATH] [--episodes 20]

Classifiers of 5 classes with 3 images each predict 2 new images of each class. In every image that is predicted
correctly, 1, 2, 4 and 8 of 36 cells are occluded: those with the largest effect by `explain()`, random ones among the
cells with content, and those with the smallest effect. Images are drawn characters, or the test classes of `--data`.
The last line gives the CPU time of explaining one image and of its part of the page, and the size of that part.
"""

import argparse
import sys
import time

import numpy as np
import torch
from torch import Tensor

from sightline import FewShotClassifier
from sightline.classifier.explanation import cell_masks
from sightline.classifier.predictions import GRID, Explanation
from sightline.data.images.glyphs import draw_alphabets
from sightline.data.images.occlusion import cell_mask, fill_cells, occlusion_color
from sightline.metrics import mean_interval
from sightline.tasks.few_shot.config import FewShotData
from sightline.view.explanations import explanation_page

from .clock import machine

WAY, SHOT, QUERY = 5, 3, 2
COUNTS = (1, 2, 4, 8)
ORDERS = ("largest effect", "random", "smallest effect")


def is_changed(
    classifier: FewShotClassifier, image: Tensor, explanation: Explanation, random: np.random.Generator
) -> Tensor:
    """Whether the prediction changes when cells are occluded: (orders, counts)"""
    masks, color = cell_masks(image.shape[-1], GRID), occlusion_color(image)
    cells = (masks & (image != color).any(0)).flatten(1).any(1).numpy().nonzero()[0]
    effects = explanation.image.regions.flatten()[cells]
    orders = (cells[np.argsort(-effects)], random.permutation(cells), cells[np.argsort(effects)])
    hidden = [cell_mask((GRID, GRID), order[:count].tolist()) for order in orders for count in COUNTS]
    occluded = list(fill_cells(image, torch.stack(hidden)))
    changed = [prediction.label != explanation.label for prediction in classifier.predict(occluded)]
    return torch.tensor(changed).float().view(len(ORDERS), len(COUNTS))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="glyphs")
    parser.add_argument("--weights", help="weight file of EfficientNet-Lite0, without the extra `photos`")
    parser.add_argument("--data")
    parser.add_argument("--split", help="class lists of `--data`")
    parser.add_argument("--episodes", type=int, default=20)
    arguments = parser.parse_args()
    images = draw_alphabets()
    if arguments.data:
        splits = FewShotData(source=arguments.data, split=arguments.split).load(seed=0)
        images = splits.train if splits.test is None else splits.test
    random, changed, seconds, sizes = np.random.default_rng(0), [], [], []
    for number in range(arguments.episodes):
        print(f"{number + 1} of {arguments.episodes}", end="\r", file=sys.stderr)
        classes = random.choice(len(images.classes), WAY, replace=False)
        indices = [random.permutation((images.labels == c).nonzero()[:, 0])[: SHOT + QUERY] for c in classes]
        classifier = FewShotClassifier.pretrained(arguments.model, weights=arguments.weights)
        classifier.fit({str(i): list(images.pixels[own[:SHOT]]) for i, own in enumerate(indices)})
        queries = [classifier.prepare(image) for own in indices for image in images.pixels[own[SHOT:]]]
        start = time.process_time()
        explanations = [classifier.predict(image).explain() for image in queries]
        page = explanation_page([explanation.card() for explanation in explanations])
        seconds.append((time.process_time() - start) / len(queries))
        sizes.append(len(page.html.encode()) / len(queries))
        for i, (image, explanation) in enumerate(zip(queries, explanations, strict=True)):
            if explanation.label == str(i // QUERY):
                changed.append(is_changed(classifier, image, explanation, random))
    correct = torch.stack(changed)
    source = arguments.data or "drawn characters"
    print(f"{machine('cpu')}; {arguments.model}, {source}, {len(correct)} correct predictions")
    print(f"changed predictions, of {GRID * GRID} cells occluded  " + "".join(f"{count:>16}" for count in COUNTS))
    for order, values in zip(ORDERS, correct.unbind(1), strict=True):
        cells = ["{:.1%} ± {:.1%}".format(*mean_interval(column)) for column in values.unbind(1)]
        print(f"{order:<44}" + "".join(f"{cell:>16}" for cell in cells))
    print(f"{np.median(seconds):.2f} s of CPU time and {np.median(sizes) / 1e3:.0f} KB of page per image (medians)")


if __name__ == "__main__":
    main()
