"""The constants of calibration beside other values, on validation classes; or the classifier as it is, on test classes.

    python -m benchmarks.confidence [runs/few-shot-omniglot] [--data PATH] [--episodes 8] [--constants NAME ...]
    python -m benchmarks.confidence glyphs --data PATH --test
    python -m benchmarks.confidence glyphs --data FOLDER --all [--constants NAME ...]

The validation classes of a few-shot run are embedded once. Small classifiers are sampled from them, the same for every
value, half of them within one alphabet. Each classifies new images of its classes and of five unknown classes. The
code of the package calibrates them, with one constant changed at a time. Columns are means over settings: calibration
error and that of the worst setting, cross entropy, the fractions of unknown and of known images that are rejected, the
balanced accuracy of rejection, and the AUROC of the known score.

A head without parameters uses the mean of the tokens of an image. Constants for classes of one image are evaluated in
settings that have such classes, and `INTERPOLATION` without images, as for embeddings given by a user. With `--test`,
no constant is changed, and every setting has a row, on classes that nothing was trained or selected on. With `--all`,
the same on all classes of a folder or zip file, or, with `--constants`, their tables.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import sightline
from sightline.classifier import calibration
from sightline.classifier.calibration import Calibration
from sightline.classifier.support import SupportSet
from sightline.data.episodes import drop_support_labels, sample_episodes
from sightline.data.images.augmentation import AugmentConfig
from sightline.data.images.datasets import ImageSet
from sightline.data.images.loading import load
from sightline.metrics import auroc, classification_metrics, classification_sums, update_classification_sums
from sightline.models.embedders import BackboneEmbedder
from sightline.models.few_shot import FewShot, nearest_mean_model
from sightline.models.few_shot_head import FewShotHead
from sightline.tasks.few_shot.evaluate import episode_classes

from .clock import machine

ONE = {"2w1s": (2, 1, 1), "5w1s": (5, 1, 1), "20w1s": (20, 1, 1)}
"""Way, and smallest and largest number of images per class: settings with one image of each class."""
SINGLE = ONE | {"5w1-5s": (5, 1, 5), "20w1-5s": (20, 1, 5)}
"""Settings with classes of one image."""
SETTINGS = SINGLE | {"2w5s": (2, 5, 5), "5w3s": (5, 3, 3), "5w5s": (5, 5, 5), "3w10s": (3, 10, 10), "20w5s": (20, 5, 5)}
HELD_OUT = {name: sizes for name, sizes in SETTINGS.items() if name not in ONE}
"""Settings with images that can be held out."""
UNKNOWN_CLASSES, QUERY = 5, 10
"""Unknown classes of each classifier, and queries per class."""
NEAR, HALF, DOUBLE, FAR = (0.8, 0.9, 1, 1.1, 1.2), (0.5, 0.75, 1, 1.25, 1.5), (0.25, 0.5, 1, 2, 4), (0.1, 1, 1e3, 1e4)
WIDE = (0.4, 0.6, 0.8, 1, 1.2)
TABLES = (
    ("THRESHOLD_FRACTION", "trained", HALF, HELD_OUT),
    ("THRESHOLD_FRACTION", "untrained", HALF, HELD_OUT),
    ("SINGLE_THRESHOLD_FRACTION", "trained", WIDE, ONE),
    ("SINGLE_THRESHOLD_FRACTION", "untrained", WIDE, ONE),
    ("MIN_THRESHOLD_DISTANCE", "trained", FAR, SETTINGS),
    ("PRIOR_STD", "trained", DOUBLE, SETTINGS),
    ("PRIOR_STD", "untrained", DOUBLE, SETTINGS),
    ("INTERPOLATION", "trained", NEAR, SINGLE),
    ("INTERPOLATION", "untrained", NEAR, SINGLE),
    ("COPY_AUGMENTATION", "trained", HALF, SINGLE),
    ("COPIES_PER_IMAGE", "trained", (0.25, 0.5, 1, 2), SINGLE),
)
"""A constant, the head, factors of its value, and the settings."""


class Case:
    """A small classifier, with the logits that do not depend on any constant."""

    def __init__(
        self, head: FewShotHead, embedder: BackboneEmbedder, support: SupportSet, query: Tensor, copies: dict[Any, Any]
    ):
        self.head, self.embedder, self.support, self.copies = head, embedder, support, copies
        self.state = calibration.encode(head, support)
        self.held_out = list(calibration.held_out_logits(head, support, self.state))
        self.unknown_folds = list(calibration.unknown_logits(head, support, self.state))
        sizes = (len(support.classes) * QUERY, UNKNOWN_CLASSES * QUERY)
        self.known, self.unknown = calibration.classify(head, self.state, query).double().split(sizes)
        self.augmented_copies = calibration.augmented_copies

    def cached_copies(self, embedder: Any, support: SupportSet, indices: Tensor) -> Tensor:
        """Embeddings of augmented copies, computed once for all tables and both heads."""
        key = calibration.COPY_AUGMENTATION, calibration.COPIES_PER_IMAGE
        if key not in self.copies:
            self.copies[key] = self.augmented_copies(self.embedder, support, indices)
        return self.copies[key] if self.head.config.depth else self.copies[key].mean(2, keepdim=True)

    def calibrate(self, with_images: bool) -> Calibration:
        """The calibration of the package."""
        functions = {
            "unknown_logits": lambda *_: self.unknown_folds,
            "augmented_copies": self.cached_copies if with_images else lambda *_: None,
        }
        with changed(**functions):
            return calibration.calibrate(self.head, self.support, self.state, self.embedder, self.held_out)


@contextmanager
def changed(**values: Any) -> Iterator[None]:
    """The calibration module with other values."""
    before = {name: getattr(calibration, name) for name in values}
    vars(calibration).update(values)
    try:
        yield
    finally:
        vars(calibration).update(before)


@torch.no_grad()
def sample_cases(
    model: FewShot, images: ImageSet, embeddings: Tensor, setting: str, episodes: int
) -> Iterator[dict[str, Case]]:
    """The classifiers of a setting, each with a trained head and with one without parameters."""
    way, min_shot, shot = SETTINGS[setting]
    embedder, untrained = BackboneEmbedder(model), nearest_mean_model(embeddings.shape[-1]).head
    classes, seeds = episode_classes(images), {"seed": 0, "step": list(SETTINGS).index(setting)}
    num_classes = way + UNKNOWN_CLASSES
    classes.check(num_classes, shot + QUERY)
    sampled = sample_episodes(
        classes, episodes=episodes, way=num_classes, shot=shot, query=QUERY, within_group=0.5, **seeds
    )
    sampled.check()
    labels, names = torch.arange(way).repeat_interleave(shot), tuple(map(str, range(way * shot)))
    labels = drop_support_labels(labels.expand(episodes, -1), way=way, min_shot=min_shot, **seeds)
    for indices, own_labels, query in zip(sampled.support[:, : way * shot], labels, sampled.query, strict=True):
        kept, copies = indices[own_labels >= 0], {}
        support = SupportSet(
            embeddings[kept], own_labels[own_labels >= 0], names[:way], names[: len(kept)], images.pixels[kept]
        )
        pooled = replace(support, embeddings=support.embeddings.mean(1, keepdim=True))
        pooled_query = embeddings[query].mean(1, keepdim=True)
        yield {
            "trained": Case(model.head, embedder, support, embeddings[query], copies),
            "untrained": Case(untrained, embedder, pooled, pooled_query, copies),
        }


def evaluate(cases: list[Case], with_images: bool) -> list[float]:
    """Calibration error, cross entropy, fractions of unknown and known images that are rejected, and AUROC."""
    calibrated = [(case, case.calibrate(with_images)) for case in cases]
    logits = torch.cat([c.scale * case.known for case, c in calibrated])
    labels = torch.arange(logits.shape[1]).repeat_interleave(QUERY).repeat(len(cases))
    sums = classification_sums(logits.shape[1], logits.device)
    update_classification_sums(sums, logits, labels)
    metrics = classification_metrics(sums)
    unknown = torch.cat([c.known_score(case.unknown) for case, c in calibrated])
    known = torch.cat([c.known_score(case.known) for case, c in calibrated])
    rejected = [float((scores < 0.5).double().mean()) for scores in (unknown, known)]
    return [metrics["calibration_error"], metrics["loss"], *rejected, auroc(known, unknown)]


def scaled(value: Any, factor: float, is_trained: bool) -> tuple[Any, str]:
    """A constant of any type times a factor, and its text."""
    if isinstance(value, dict):
        return value | {is_trained: factor * value[is_trained]}, f"{factor * value[is_trained]:g}"
    if isinstance(value, AugmentConfig):
        options = {name: factor * getattr(value, name) for name in ("rotate", "scale", "translate", "shear")}
        return replace(value, **options), f"x {factor:g}"
    return type(value)(factor * value), f"{factor * value:.4g}"


def main() -> None:
    """Print a table for each constant, or one for all settings."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", nargs="?", default="runs/few-shot-omniglot", help="folder of a run, or glyphs")
    parser.add_argument("--data", help="path of its data, if not that of its config")
    parser.add_argument("--episodes", type=int, default=8, help="classifiers per setting")
    classes = parser.add_mutually_exclusive_group()
    classes.add_argument("--test", action="store_true", help="evaluate on test classes without changes")
    classes.add_argument(
        "--all", action="store_true", help="the same on the training classes of --data, or all of them"
    )
    names = sorted({name for name, *_ in TABLES})
    parser.add_argument("--constants", nargs="+", choices=names, metavar="NAME", help="tables: all but with --all")
    arguments = parser.parse_args()
    run, split = sightline.load(arguments.run), "test" if arguments.test else "validation"
    if run.model.backbone is None:
        raise SystemExit(f"run must have a backbone, got {arguments.run}")
    source = arguments.data or run.config.data.source
    if arguments.all:
        embedder = BackboneEmbedder(run.model)
        images = load(source, size=embedder.image_size, channels=embedder.channels).train
    else:
        data = replace(run.config.data, source=source, extra_sources=())  # training classes only
        images = getattr(data.load(run.config.seed), split)
    if images is None:
        raise SystemExit(f"run must have {split} classes, got {arguments.run}")
    count = f"all {len(images.classes)}" if arguments.all else f"{len(images.classes)} {split}"
    print(f"{count} classes, {len(images):,} images; {machine('cpu')}")
    settings = [name for name, (way, *_) in SETTINGS.items() if way + UNKNOWN_CLASSES <= len(images.classes)]
    print(f"{arguments.episodes} classifiers per setting: {', '.join(settings)}", flush=True)
    embeddings, cases = run.embed(images.pixels), {}
    for i, setting in enumerate(settings):
        print(f"\rfitting, setting {i + 1} of {len(settings)}", end="", file=sys.stderr, flush=True)
        cases[setting] = list(sample_cases(run.model, images, embeddings, setting, arguments.episodes))
    if arguments.test or (arguments.all and not arguments.constants):
        print(f"\n{'setting':>10}   error    loss    unknown    known   AUROC")
        for name, heads in cases.items():
            error, loss, unknown, known, area = evaluate([case["trained"] for case in heads], with_images=True)
            print(f"{name:>10} {error:7.2%} {loss:7.4f} {unknown:10.1%} {known:8.1%} {area:7.4f}")
        return
    for constant, head, factors, used in TABLES:
        chosen = [name for name in used if name in settings]
        if not chosen or (arguments.constants and constant not in arguments.constants):
            continue
        print(f"\n{constant}, {head} head\n{'value':>10}   error   worst    loss    unknown    known  balance   AUROC")
        for factor in factors:
            value, text = scaled(getattr(calibration, constant), factor, head == "trained")
            with changed(**{constant: value}):
                rows = [evaluate([c[head] for c in cases[name]], constant != "INTERPOLATION") for name in chosen]
            error, loss, unknown, known, area = torch.tensor(rows).mean(0).tolist()
            columns = f"{error:7.2%} {max(rows)[0]:7.2%} {loss:7.4f} {unknown:10.1%} {known:8.1%}"
            columns += f" {(unknown + 1 - known) / 2:8.1%} {area:7.4f}"
            print(f"{text:>10} {columns}{'  in use' if factor == 1 else ''}", flush=True)


if __name__ == "__main__":
    main()
