"""How `--model auto` chooses between `photos` and `glyphs` on image sets of many kinds, and what this gives.

    python -m benchmarks.domain_models DATA [--cache FOLDER] [--episodes 200] [--glyphs RUN]

DATA and the cache are those of `benchmarks.domains`; the embeddings of `glyphs` are added to the cache. `photos` has
the normalization statistics of all other sets. In each episode, both models choose their method, and `auto` chooses the
model: by the kind of the images with one image per class, otherwise by the held-out images, too. A choice is right if
the model has the higher mean accuracy on the set. The last lines compare `fit` with logistic regression on the
embeddings of `glyphs`, as for embeddings of an unknown encoder.

The typefaces of font_glyphs and the icon sets of ui_icons are training data of `glyphs`, so a second mean leaves them
out. `--glyphs` takes a run that was trained without them instead.
"""

import argparse
import hashlib
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

import sightline
from sightline import zoo
from sightline.classifier.model_choice import DRAWINGS, LOG_PRIOR, are_drawings
from sightline.data.images.reading import read_image
from sightline.files import CONFIG, WEIGHTS
from sightline.models.embedders import BackboneEmbedder
from sightline.models.few_shot_head import FewShotHead
from sightline.tasks.few_shot.config import Setting
from sightline.tasks.few_shot.evaluate import evaluate_episodes

from .clock import machine
from .domains import (
    QUERY,
    TRAINING_IMAGES,
    Chosen,
    DomainSet,
    Features,
    compare_with_logistic,
    head_for,
    image_sets,
    load_sets,
    selection,
)

SETTINGS = (Setting(5, 1), Setting(5, 5))
TRAINING_SETS = ("font_glyphs", "ui_icons")
"""Sets of which `glyphs` has training data."""
DRAWS = 200
"""Random draws of five images that are classified as drawings or photos."""


def glyphs_features(data: Path, cache: Path, name: str, run: Path, embedder: BackboneEmbedder) -> tuple[Tensor, Tensor]:
    """Embeddings (N, T, M) of a set by `glyphs`, and whether five random images are drawings (DRAWS,)."""
    images = image_sets(data)[name]()
    arrays = [image.permute(1, 2, 0).numpy() for image in images.pixels[selection(images, name)[0]]]
    random = torch.Generator().manual_seed(0)
    draws = [torch.randperm(len(arrays), generator=random)[:5].tolist() for _ in range(DRAWS)]
    kinds = [are_drawings({str(i): [arrays[i]] for i in draw}) for draw in draws]
    digest = hashlib.sha256((run / CONFIG).read_bytes() + (run / WEIGHTS).read_bytes()).hexdigest()[:8]
    path = cache / f"{name}-glyphs-{digest}.safetensors"
    if not path.is_file():
        options = {"size": embedder.image_size, "channels": embedder.channels}
        pixels = torch.stack([read_image(array, **options) for array in arrays])
        safetensors.torch.save_file({"embeddings": embedder.embed(pixels)}, path)
    return safetensors.torch.load_file(path)["embeddings"], torch.tensor(kinds)


def print_choices(
    sets: dict[str, DomainSet], glyphs: dict[str, tuple[Tensor, Tensor]], head: FewShotHead, episodes: int
) -> None:
    """A table for each setting."""
    for setting in SETTINGS:
        print(f"\n{setting.way}-way {setting.shot}-shot, accuracy in %")
        print(f"{'':26}{'photos':>10}{'glyphs':>10}{'auto':>10}{'photos chosen, %':>20}{'right, %':>12}", flush=True)
        rows: dict[str, list[float]] = {}
        for name, (tokens, kinds) in glyphs.items():
            features = Features.of(sets, name)
            options = {"query": QUERY, "episodes": episodes, "with_unknown": False}
            choices = (Chosen(head_for(features.head), features.parts), Chosen(head))
            accuracies = [
                torch.cat(evaluate_episodes(chosen, y, sets[name].classes, setting, **options).accuracies).double()
                for chosen, y in zip(choices, (features.for_fit, tokens), strict=True)
            ]
            prior = LOG_PRIOR * (1 - 2 * kinds[torch.arange(episodes) % DRAWS].double())  # in favor of photos
            if setting.shot > 1:
                prior += torch.tensor(choices[0].evidence) - torch.tensor(choices[1].evidence)
            is_photos = prior > 0
            auto = torch.where(is_photos, *accuracies)
            is_right = is_photos == (accuracies[0].mean() > accuracies[1].mean())
            columns = (*accuracies, auto, is_photos.double(), is_right.double())
            rows[name] = [100 * float(column.mean()) for column in columns]
            print(f"{name:26}" + _cells(rows[name]), flush=True)
        others = [row for name, row in rows.items() if name not in TRAINING_SETS]
        for title, selected in (("mean", list(rows.values())), (f"mean of the other {len(others)}", others)):
            print(f"{title:26}" + _cells(torch.tensor(selected).mean(0).tolist()), flush=True)


def _cells(row: list[float]) -> str:
    return "".join(f"{value:>{width}.1f}" for value, width in zip(row, (10, 10, 10, 20, 12), strict=True))


@torch.no_grad()
def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("domains-cache"), help="folder of embeddings")
    parser.add_argument("--weights", help="weight file of EfficientNet-Lite0, without the extra `photos`")
    parser.add_argument("--episodes", type=int, default=200, help="per set and setting")
    parser.add_argument("--glyphs", type=Path, default=zoo.HOME / DRAWINGS, help="run that takes the place of `glyphs`")
    arguments = parser.parse_args()
    sets = load_sets(arguments.data, arguments.cache, arguments.weights)
    model = sightline.load(arguments.glyphs).model.eval()
    names = [name for name in sets if name not in TRAINING_IMAGES]
    embedder = BackboneEmbedder(model)
    glyphs = {
        name: glyphs_features(arguments.data, arguments.cache, name, arguments.glyphs, embedder) for name in names
    }
    print(f"{machine('cpu')}; {arguments.episodes} episodes per set and setting; glyphs: {arguments.glyphs.name}")
    print_choices(sets, glyphs, model.head, arguments.episodes)
    print("\naccuracy in % of `fit` on embeddings, and its difference from logistic regression")
    embeddings = {name: tokens.mean(1) for name, (tokens, _) in glyphs.items()}
    compare_with_logistic("embeddings of glyphs", sets, embeddings, arguments.episodes)


if __name__ == "__main__":
    main()
