"""Deletion test of explanations: how many predictions change when the named cells of an image are occluded?

    python -m benchmarks.deletion [--model glyphs] [--data PATH] [--episodes 20]

Classifiers of 5 classes with 3 images each predict 2 new images of each class. In every image that is predicted
correctly, 1, 2, 4 and 8 of 36 cells are occluded: those with the largest decrease of the logit by `explain()`, random
ones among the cells with content, and those with the smallest decrease. Images are drawn characters, or those of
`--data`.
"""

import argparse
import sys

import numpy as np
import torch
from torch import Tensor

import sightline
from sightline import FewShotClassifier
from sightline.classifier.explanation import cell_masks, occlude_cells, occlusion_color
from sightline.data.images.glyphs import draw_alphabets
from sightline.metrics import mean_interval

from .clock import machine

WAY, SHOT, QUERY, GRID = 5, 3, 2, 6
COUNTS = (1, 2, 4, 8)
ORDERS = ("largest decrease", "random", "smallest decrease")


def is_changed(classifier: FewShotClassifier, image: Tensor, label: str, random: np.random.Generator) -> Tensor | None:
    """Whether the prediction changes, (orders, counts); None if it is wrong without occlusion."""
    prediction = classifier.predict(image)
    if prediction.label != label:
        return None
    cells = occlude_cells(image, GRID)[1].numpy().nonzero()[0]
    decrease = prediction.explain(images=1, grid=GRID).image.occlusion.flatten()[cells]
    orders = (cells[np.argsort(-decrease)], random.permutation(cells), cells[np.argsort(decrease)])
    masks = cell_masks(image.shape[-1], GRID)
    occluded = [
        torch.where(masks[torch.from_numpy(order[:count])].any(0), occlusion_color(image), image)
        for order in orders
        for count in COUNTS
    ]
    changed = [prediction.label != label for prediction in classifier.predict(occluded)]
    return torch.tensor(changed).float().view(len(ORDERS), len(COUNTS))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="glyphs")
    parser.add_argument("--data")
    parser.add_argument("--episodes", type=int, default=20)
    arguments = parser.parse_args()
    images = draw_alphabets()
    if arguments.data:
        images = sightline.load(arguments.model).evaluation_split(arguments.data)[0]
    random, results = np.random.default_rng(0), []
    for number in range(arguments.episodes):
        print(f"{number + 1} of {arguments.episodes}", end="\r", file=sys.stderr)
        classes = random.choice(len(images.classes), WAY, replace=False)
        indices = [random.permutation((images.labels == c).nonzero()[:, 0])[: SHOT + QUERY] for c in classes]
        classifier = FewShotClassifier.pretrained(arguments.model)
        classifier.fit({str(i): list(images.pixels[own[:SHOT]]) for i, own in enumerate(indices)})
        for i, own in enumerate(indices):
            results += [is_changed(classifier, image, str(i), random) for image in images.pixels[own[SHOT:]]]
    correct = torch.stack([result for result in results if result is not None])
    source = arguments.data or "drawn characters"
    print(f"{machine('cpu')}; {arguments.model}, {source}, {len(correct)} correct predictions")
    print(f"changed predictions, of {GRID * GRID} cells occluded  " + "".join(f"{count:>16}" for count in COUNTS))
    for order, values in zip(ORDERS, correct.unbind(1), strict=True):
        cells = ["{:.1%} ± {:.1%}".format(*mean_interval(column)) for column in values.unbind(1)]
        print(f"{order:<44}" + "".join(f"{cell:>16}" for cell in cells))


if __name__ == "__main__":
    main()
