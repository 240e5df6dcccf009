"""Why the constants behind confidence and `known` are what they are: each beside other values, on validation classes.

    python benchmarks/confidence.py [runs/few-shot-omniglot] [--data PATH] [--episodes 8]
    python benchmarks/confidence.py glyphs --data PATH --test      classifiers as they ship, on test classes

The classes that a few-shot run holds out to choose by are embedded once; those of test are not looked at. Small
classifiers are drawn from them, the same for every value, half of them within one alphabet, and asked for new images of
their classes and of five others. The shipped code sets their confidence, with one constant changed at a time. Figures
are means over settings: calibration error and that of the worst setting, the loss, which tells of sure mistakes,
strangers and members called unknown, the balance of these (strangers refused and members kept, halved), and the AUROC
of known_score.

An untrained head goes by the mean of an image's tokens. What matters to classes of one image alone is judged where
there are some, and `MIXED` without pictures, as for embeddings that people bring. With `--test` nothing is changed:
each setting has its line, of classes that nobody has learned from or chosen by.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from clock import machine
from torch import Tensor

import sightline
from sightline.classifier import calibration as confidence
from sightline.classifier import queries as questions
from sightline.classifier.embedding import Ours, prototypes
from sightline.classifier.support import Support
from sightline.data.episodes import drop_support_labels, sample_episodes
from sightline.data.images.datasets import ImageSet
from sightline.models.few_shot import FewShot, FewShotHead
from sightline.tasks.few_shot.evaluate import BINS, auroc
from sightline.tasks.few_shot.task import classes_of

ALONE = {"2w1s": (2, 1, 1), "5w1s": (5, 1, 1), "20w1s": (20, 1, 1), "5w1-5s": (5, 1, 5), "20w1-5s": (20, 1, 5)}
"""Way, least and most images of a class: settings with classes of one image."""
SETTINGS = ALONE | {"2w5s": (2, 5, 5), "5w3s": (5, 3, 3), "5w5s": (5, 5, 5), "3w10s": (3, 10, 10), "20w5s": (20, 5, 5)}
OTHERS, QUERY = 5, 10
"""Classes of strangers, and images asked of every class."""
NEAR, HALF, DOUBLE, FAR = (0.8, 0.9, 1, 1.1, 1.2), (0.5, 0.75, 1, 1.25, 1.5), (0.25, 0.5, 1, 2, 4), (0.1, 1, 1e3, 1e4)
TABLES = (
    ("FALL", "trained", HALF, SETTINGS),
    ("FALL", "untrained", HALF, SETTINGS),
    ("LEAST_FALL", "trained", FAR, SETTINGS),
    ("TRUST", "trained", DOUBLE, SETTINGS),
    ("TRUST", "untrained", DOUBLE, SETTINGS),
    ("MIXED", "trained", NEAR, ALONE),
    ("MIXED", "untrained", NEAR, ALONE),
    ("MOVED", "trained", HALF, ALONE),
    ("COPIES", "trained", (0.25, 0.5, 1, 2), ALONE),
)
"""A constant, the head, what the value in use is multiplied by, and where that is judged."""


class Case:
    """A small classifier, and its answers that no constant changes."""

    def __init__(self, head: FewShotHead, eyes: Ours, support: Support, query: Tensor, made: dict[Any, Any]):
        self.head, self.eyes, self.support, self.made = head, eyes, support, made
        self.memory = confidence.remembered(head, support, torch.arange(len(support)))
        self.held = list(confidence.held_out(head, support, self.memory))
        self.strangers = list(confidence.strangers(head, support, self.memory))
        own, other = len(support.classes) * QUERY, OTHERS * QUERY
        self.members, self.others = confidence.ask(head, self.memory, query).double().split((own, other))

    def copies(self, rows: Tensor) -> Tensor:
        """Moved ones, embedded once for all tables."""
        key = questions.MOVED, questions.COPIES
        if key not in self.made:
            self.made[key] = questions.moved_copies(self.eyes, self.support, rows)
        return self.made[key] if self.head.config.depth else self.made[key].mean(2, keepdim=True)

    def confidence(self, pictures: bool) -> confidence.Confidence:
        """As it is set when a classifier is fitted."""
        copies = self.copies if pictures else lambda rows: None
        with changed(confidence, held_out=lambda *_: self.held, strangers=lambda *_: self.strangers):
            return confidence.set_by(self.head, self.support, self.memory, copies)


@contextmanager
def changed(module: ModuleType, **values: Any) -> Iterator[None]:
    """A module with other values, for a while."""
    before = {name: getattr(module, name) for name in values}
    vars(module).update(values)
    try:
        yield
    finally:
        vars(module).update(before)


@torch.no_grad()
def cases(model: FewShot, images: ImageSet, seen: Tensor, setting: str, episodes: int) -> Iterator[dict[str, Case]]:
    """The seeded classifiers of a setting, each with both heads."""
    (way, least, most), eyes, untrained = SETTINGS[setting], Ours(model), prototypes(seen.shape[-1]).head
    classes, lot = classes_of(images), {"seed": 0, "step": list(SETTINGS).index(setting)}
    classes.check(way + OTHERS, most + QUERY)
    drawn = sample_episodes(
        classes, episodes=episodes, way=way + OTHERS, shot=most, query=QUERY, within_group=0.5, **lot
    )
    drawn.check()
    labels, names = torch.arange(way).repeat_interleave(most), tuple(map(str, range(way * most)))
    labels = drop_support_labels(labels.expand(episodes, -1), way=way, least=least, **lot)
    for shown, own, query in zip(drawn.support[:, : way * most], labels, drawn.query, strict=True):
        kept, made = shown[own >= 0], {}
        support = Support(seen[kept], own[own >= 0], names[:way], names[: len(kept)], images.pixels[kept])
        pooled = replace(support, embeddings=support.embeddings.mean(1, keepdim=True))
        yield {
            "trained": Case(model.head, eyes, support, seen[query], made),
            "untrained": Case(untrained, eyes, pooled, seen[query].mean(1, keepdim=True), made),
        }


def judged(some: list[Case], pictures: bool) -> list[float]:
    """In one setting: calibration error, loss, strangers and members refused, AUROC."""
    read = [(case, case.confidence(pictures)) for case in some]
    logits = torch.cat([how.calibration_scale * case.members for case, how in read])
    labels = torch.arange(logits.shape[1]).repeat_interleave(QUERY).repeat(len(some))
    sure, best = logits.softmax(-1).max(-1)
    wrong = sure - (best == labels).double()
    bins = torch.zeros(BINS).double().index_add_(0, (sure * BINS).long().clamp_max(BINS - 1), wrong)
    error, loss = float(bins.abs().sum()) / len(sure), float(F.cross_entropy(logits, labels))
    others = torch.cat([how.known_score(case.others) for case, how in read])
    members = torch.cat([how.known_score(case.members) for case, how in read])
    refused = [float((group < 0.5).double().mean()) for group in (others, members)]
    return [error, loss, *refused, auroc(members, others)]


def times(used: Any, share: float, trained: bool) -> tuple[Any, str]:
    """A constant of any kind so many times as large, and what to call it."""
    if isinstance(used, dict):
        return used | {trained: share * used[trained]}, f"{share * used[trained]:g}"
    if isinstance(used, questions.Augment):
        far = {name: share * getattr(used, name) for name in ("rotate", "scale", "translate", "shear")}
        return replace(used, **far), f"x {share:g}"
    return type(used)(share * used), f"{share * used:.4g}"


def main() -> None:
    """A table for each constant."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("run", nargs="?", default="runs/few-shot-omniglot", help="the folder of one, or glyphs")
    words.add_argument("--data", help="where its data lie, if not where its recipe says")
    words.add_argument("--episodes", type=int, default=8, help="small classifiers of each setting")
    words.add_argument("--test", action="store_true", help="judge them as they are, on test classes")
    given = words.parse_args()
    run, part = sightline.load(given.run), "test" if given.test else "validation"
    splits = replace(run.recipe.data, source=given.data or run.recipe.data.source).load(run.recipe.seed)
    images = getattr(splits, part)
    if images is None or run.model.backbone is None:
        raise SystemExit(f"run must have {part} classes and a backbone of its own, got {given.run}")
    print(f"{len(images.classes)} {part} classes, {len(images):,} images; {machine('cpu')}")
    print(f"{given.episodes} classifiers of each setting: {', '.join(SETTINGS)}", flush=True)
    seen, drawn = run.embedded(images), {}
    for i, setting in enumerate(SETTINGS):
        print(f"\rfitting, setting {i + 1} of {len(SETTINGS)}", end="", file=sys.stderr, flush=True)
        drawn[setting] = list(cases(run.model, images, seen, setting, given.episodes))
    if given.test:
        print(f"\n{'setting':>10}   error    loss  strangers  members   AUROC")
        for name, some in drawn.items():
            error, loss, strangers, members, area = judged([both["trained"] for both in some], pictures=True)
            print(f"{name:>10} {error:7.2%} {loss:7.4f} {strangers:10.1%} {members:8.1%} {area:7.4f}")
        return
    for constant, head, shares, settings in TABLES:
        print(f"\n{constant}, {head} head\n{'value':>10}   error   worst    loss  strangers  members  balance   AUROC")
        module = confidence if hasattr(confidence, constant) else questions
        for share in shares:
            value, text = times(getattr(module, constant), share, head == "trained")
            with changed(module, **{constant: value}):
                each = [judged([both[head] for both in drawn[name]], constant != "MIXED") for name in settings]
            error, loss, strangers, members, area = torch.tensor(each).mean(0).tolist()
            found = f"{error:7.2%} {max(each)[0]:7.2%} {loss:7.4f} {strangers:10.1%} {members:8.1%}"
            found += f" {(strangers + 1 - members) / 2:8.1%} {area:7.4f}"
            print(f"{text:>10} {found}{'  in use' if share == 1 else ''}", flush=True)


if __name__ == "__main__":
    main()
