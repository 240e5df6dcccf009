"""The deletion test: does hiding what `explain()` names change more answers than hiding as much at random?

    python benchmarks/deletion.py [--model glyphs] [--data PATH] [--episodes 20]

Small classifiers, 5 classes of 3 images, are asked for 2 new images of each class. Of each image that is answered
rightly 1, 2, 4 and 8 of 36 parts are hidden: those that `explain()` says the answer would miss most, others drawn by
chance among the parts that hold something, and for the floor those it would miss least. Drawn characters, or those of
`--data`.
"""

import argparse
import sys

import numpy as np
import torch
from clock import machine
from torch import Tensor

import sightline
from sightline import FewShotClassifier
from sightline.classifier.explanation import cells_of, hide_each, paper
from sightline.data.images.glyphs import draw_alphabets
from sightline.tasks.few_shot.evaluate import mean_and_half

WAY, SHOT, QUERY, SIDE = 5, 3, 2, 6
HIDDEN = (1, 2, 4, 8)
ORDERS = ("named", "by chance", "least")


def changed(model: FewShotClassifier, image: Tensor, label: str, random: np.random.Generator) -> Tensor | None:
    """Whether the answer is another one with so many parts hidden, in each order: (orders, numbers of parts)"""
    answer = model.predict(image)
    if answer.label != label:
        return None
    inked = hide_each(image, SIDE)[1].numpy().nonzero()[0]
    worth = answer.explain(images=1, parts=SIDE).parts.flatten()[inked]
    orders = (inked[np.argsort(-worth)], random.permutation(inked), inked[np.argsort(worth)])
    cells = cells_of(image.shape[-1], SIDE)
    hidden = [
        torch.where(cells[torch.from_numpy(order[:count])].any(0), paper(image), image)
        for order in orders
        for count in HIDDEN
    ]
    return torch.tensor([one.label != label for one in model.predict(hidden)]).float().view(len(ORDERS), len(HIDDEN))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="glyphs")
    parser.add_argument("--data")
    parser.add_argument("--episodes", type=int, default=20)
    asked = parser.parse_args()
    images = sightline.load(asked.model).evaluation_split(asked.data)[0] if asked.data else draw_alphabets()
    random, found = np.random.default_rng(0), []
    for number in range(asked.episodes):
        print(f"{number + 1} of {asked.episodes}", end="\r", file=sys.stderr)
        chosen = random.choice(len(images.classes), WAY, replace=False)
        members = [random.permutation((images.labels == one).nonzero()[:, 0])[: SHOT + QUERY] for one in chosen]
        model = FewShotClassifier.pretrained(asked.model)
        model.fit({str(i): list(images.pixels[some[:SHOT]]) for i, some in enumerate(members)})
        for i, some in enumerate(members):
            found += [changed(model, image, str(i), random) for image in images.pixels[some[SHOT:]]]
    told = torch.stack([one for one in found if one is not None])
    print(f"{machine('cpu')}; {asked.model}, {asked.data or 'drawn characters'}, {len(told)} answers that were right")
    print(f"answers that change, of {SIDE * SIDE} parts hidden " + "".join(f"{count:>16}" for count in HIDDEN))
    for order, values in zip(ORDERS, told.unbind(1), strict=True):
        cells = ["{:.1%} ± {:.1%}".format(*mean_and_half(some)) for some in values.unbind(1)]
        print(f"{order:<44}" + "".join(f"{cell:>16}" for cell in cells))


if __name__ == "__main__":
    main()
