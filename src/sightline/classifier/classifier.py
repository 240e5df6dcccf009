"""FewShotClassifier: fit, predict, explain, add, remove, estimate, save, load."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import limits
from ..data.images.formats.folders import named_images
from ..data.images.loading import Progress
from ..errors import SightlineError, check_max, check_page_size
from ..metrics import wilson_interval
from ..models.few_shot import FewShot, Memory
from ..names import shortened
from ..view import explanations as reasons
from ..view.explanations import Reason
from ..view.page import Page
from . import file
from .calibration import Confidence, ask, held_out, remembered, set_by
from .embedding import Embeds, embeds, opened, prototypes
from .explanation import Asked, explained
from .predictions import Answer, Estimate
from .queries import embedded, moved_copies, one_by_one
from .support import Support, as_text, check_labels, read

AT_ONCE = 64
"""Images asked in one go."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """What was learned from the examples."""

    support: Support
    memory: Memory
    confidence: Confidence


@dataclass(frozen=True, eq=False)
class Look:
    """Some images, what the classifier says of them, and why."""

    answers: list[Answer]
    reasons: list[Reason]


class FewShotClassifier:
    """A classifier from a handful of examples; it knows when it does not know, and shows why.

    Begin with `pretrained(name)` for images; `FewShotClassifier()` takes embeddings of your own, of images, text or
    sound, and answers by their angle to the mean of each class.
    """

    def __init__(self, model: FewShot | None = None, *, embedder: str | None = None, weights: str | None = None):
        if weights is not None and embedder is None:
            raise SightlineError(f"weights must be left out where there is no embedder, got {weights!r}")
        self.model = None if model is None else model.eval().requires_grad_(False)
        self.embedder, self.weights = embedder, weights
        self._embeds: Embeds | None = None if model is None else embeds(model, embedder, weights)
        self._support: Support | None = None
        self._fitted: Fitted | None = None

    @classmethod
    def pretrained(cls, name: str | Path, *, weights: str | Path | None = None) -> "FewShotClassifier":
        """By the name of a model that ships with the package, the folder of a few-shot run, or any embedder by name:
        `efficientnet_lite0`, or a Hugging Face vision model as a folder or `owner/name`.

        weights: the file of those of EfficientNet-Lite0, where they are not the package's or the run's.
        """
        model, embedder, own = opened(name, None if weights is None else str(weights))
        return cls(model, embedder=embedder, weights=own)

    def to(self, device: str | torch.device) -> "FewShotClassifier":
        """Work there from now on."""
        if self.model is not None:
            self.model.to(device)
        if self._fitted is not None:
            self._fitted = replace(self._fitted, memory=self._remembered(self._fitted.support))
        return self

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes it tells apart."""
        return () if self._support is None else self._support.classes

    @property
    def counts(self) -> dict[str, int]:
        """How many examples it has of each class."""
        return {} if self._support is None else dict(zip(self.classes, self._support.counts.tolist(), strict=True))

    @property
    def confidence(self) -> Confidence:
        """How sure it is, and what it calls unknown."""
        return self._ready().confidence

    def fit(self, examples: Any, *, progress: Progress | None = None) -> "FewShotClassifier":
        """Learn from a folder of class folders (or any data set that `sightline data` reads), or from
        {label: images}, an image being a path, a PIL image, an array or a tensor; or from {label: embeddings (n, M)}.
        A label that is an integer becomes its text.
        """
        support = read(examples, self._embeds, self._width, progress, least=2).fitting()
        if self.model is None or (self._embeds is None and self.model.embed_dim != support.embeddings.shape[-1]):
            self.model = prototypes(support.embeddings.shape[-1])
        self._support, self._fitted = support, None
        self._ready()
        return self

    def add(self, label: str | int, examples: Any) -> "FewShotClassifier":
        """One more class, or more examples of one that is there; nothing is trained."""
        before, label = self._some(), as_text(label)
        check_labels([*(name for name in before.classes if name != label), label])
        new = read({label: examples}, self._embeds, before.embeddings.shape[-1])
        self._support, self._fitted = before.and_(new), None
        return self

    def remove(self, label: str | int) -> "FewShotClassifier":
        """One class less."""
        left = self._some().without(label := as_text(label))
        if len(left.classes) < 2:
            raise SightlineError(
                f"a classifier must keep 2 classes, got {label!r} to remove of 2; add another one first"
            )
        self._support, self._fitted = left, None
        return self

    def predict(self, images: Any, *, transductive: bool = False) -> Any:
        """An `Answer` for one image or embedding, or a list of them for several: a list, or an array with a batch.

        No answer depends on the others, unless they are asked for `transductive`, which a head must be trained for.
        """
        fitted = self._ready()
        asked = one_by_one(images, fitted.support)
        if transductive:
            return self._together(fitted, asked)
        one = asked is None
        items = [images] if asked is None else asked
        answers: list[Answer] = []
        for start in range(0, len(items), AT_ONCE):
            query, pixels = embedded(items[start : start + AT_ONCE], fitted.support, self._embeds)
            answers += self._answers(fitted, ask(self._model.head, fitted.memory, query), query, pixels)
        return answers[0] if one else answers

    def estimate(self) -> Estimate:
        """How often it should be right on new images of its classes: every example is asked while it is left out."""
        fitted = self._ready()
        support = fitted.support
        right, seen = torch.zeros(len(support.classes)), torch.zeros(len(support.classes))
        for logits, labels, _ in held_out(self._model.head, support, fitted.memory):
            right.index_add_(0, labels, (logits.argmax(-1) == labels).float())
            seen.index_add_(0, labels, torch.ones(len(labels)))
        count = int(seen.sum())
        if not count:
            raise SightlineError(
                "a class must have 2 images for one to be held out, got 1 of each; add a second image of some class"
            )
        shares = {name: float(right[i] / seen[i]) for i, name in enumerate(support.classes) if seen[i] > 0}
        return Estimate(
            accuracy=float(right.sum()) / count,
            interval=wilson_interval(float(right.sum()), count),
            images=count,
            per_class=dict(sorted(shares.items(), key=lambda pair: pair[1])),
        )

    def save(self, path: str | Path) -> Path:
        """All of it in one file: weights, examples, how sure it is."""
        fitted = self._ready()
        embedder = self.embedder, self.weights
        return file.write(Path(path), self._model, embedder, fitted.support, fitted.confidence)

    @classmethod
    def load(cls, path: str | Path, *, weights: str | Path | None = None) -> "FewShotClassifier":
        """From the file that `save` wrote; weights: where those of its embedder lie now, if the file names a place."""
        model, (embedder, own), support, confidence = file.read(Path(path))
        made = cls(model, embedder=embedder, weights=own if weights is None else str(weights))
        made._support = support
        made._fitted = Fitted(support, made._remembered(support), confidence)
        return made

    @staticmethod
    def read(words: Sequence[str]) -> list[Path]:
        """What was typed, as paths of images; a folder stands for those in it."""
        return named_images(words)

    def look(self, images: Sequence[Any], *, progress: Progress | None = None) -> "Look":
        """At a few images: what is seen, and why. `progress` is told how many are done, and of how many."""
        check_page_size(images=len(images))
        answers = self.predict(list(images))
        names = [Path(image).name if isinstance(image, str | Path) else "image" for image in images]
        look = Look(answers, [])
        for answer, name in zip(answers, names, strict=True):
            if progress is not None:
                progress(len(look.reasons), len(answers))
            look.reasons.append(answer.explain().reason(name=name))
        return look

    def page(self, images: "Sequence[Any] | Look") -> Page:
        """One self-contained page of these images, their answers and why."""
        look = images if isinstance(images, Look) else self.look(images)
        return reasons.page(look.reasons, title=str(look.answers[0]))

    def summary(self) -> str:
        """A few lines: what it holds, how well it should do, what it calls unknown."""
        counts, sure = self.counts, self.confidence
        least, most = min(counts.values()), max(counts.values())
        each = f"{least}" if least == most else f"{least} to {most}"
        lines = [f"{len(counts):,} classes, {sum(counts.values()):,} examples ({each} of each)"]
        if most > 1:
            estimate = self.estimate()
            hard = [(name, share) for name, share in estimate.per_class.items() if share < 1][:3]
            alone = [shortened(name, 40) for name, count in counts.items() if count == 1]
            more = f" and {len(alone) - 3} more" if len(alone) > 3 else ""
            apart = f"; without {', '.join(alone[:3])}{more}, of which there is one image" if alone else ""
            lines.append(f"expected    {estimate}{apart}")
            lines += (
                [f"hardest     {', '.join(f'{shortened(n, 40)} {share:.0%}' for n, share in hard)}"] if hard else []
            )
        else:
            lines.append("expected    unknown with one image of each class; a second one of some would tell")
        whose = "held-out examples were" if most > 1 else "moved copies of the examples were"
        lines.append(f"confidence  {sure.change} how often {whose} right")
        lines.append(f"unknown     {sure.separation:.1%} of pairs of an example and a stranger are told apart")
        return "\n".join(lines)

    def __repr__(self) -> str:
        if self._support is None:
            return "FewShotClassifier(not fitted)"
        return f"FewShotClassifier({len(self.classes)} classes, {len(self._support)} examples)"

    @property
    def _model(self) -> FewShot:
        assert self.model is not None
        return self.model

    @property
    def _width(self) -> int | None:
        """What embeddings must have, where a head was trained for them."""
        trained = self.model is not None and (self._embeds is not None or self.model.config.depth > 0)
        return self.model.embed_dim if trained and self.model is not None else None

    def _some(self) -> Support:
        if self._support is None:
            raise SightlineError("a classifier must be fitted first, got none of its classes; call fit(folder)")
        return self._support

    def _ready(self) -> Fitted:
        if self._fitted is None:
            support = self._some()
            memory = self._remembered(support)
            confidence = set_by(self._model.head, support, memory, partial(moved_copies, self._embeds, support))
            self._fitted = Fitted(support, memory, confidence)
        return self._fitted

    @torch.no_grad()
    def _remembered(self, support: Support) -> Memory:
        return remembered(self._model.head, support, torch.arange(len(support)))

    def _answers(
        self, fitted: Fitted, logits: Tensor, query: Tensor, pixels: Tensor | None, transductive: bool = False
    ) -> list[Answer]:
        shares = (fitted.confidence.calibration_scale * logits.double()).softmax(-1)
        order = shares.argsort(dim=-1, descending=True, stable=True)
        familiar = fitted.confidence.known_score(logits).tolist()
        classes, answers = fitted.support.classes, []
        for i, (row, best) in enumerate(zip(shares.tolist(), order.tolist(), strict=True)):
            asked = Asked(self._model.head, self._embeds, fitted.support, fitted.confidence, query[i], _row(pixels, i))
            answers.append(
                Answer(
                    label=classes[best[0]],
                    confidence=row[best[0]],
                    known=familiar[i] >= 0.5,
                    scores={classes[j]: row[j] for j in best},
                    known_score=familiar[i],
                    transductive=transductive,
                    _reason=partial(explained, asked),
                )
            )
        return answers

    @torch.no_grad()
    def _together(self, fitted: Fitted, items: Sequence[Any] | None) -> list[Answer]:
        """Answers that may depend on each other."""
        head = self._model.head
        if not head.config.transductive:
            raise SightlineError(
                "transductive must be False for a head that was not trained so, got True; "
                "train one with model.transductive=true"
            )
        if not items:
            got = "one image" if items is None else "none"
            raise SightlineError(f"transductive questions must be a list of images, got {got}; write [image, ...]")
        check_max(limits.MAX_TRANSDUCTIVE_IMAGES, images=len(items))
        query, pixels = embedded(items, fitted.support, self._embeds)
        where = head.calibration_scale.device
        support, labels = fitted.support.embeddings[None].to(where), fitted.support.labels[None].to(where)
        logits = head(support, labels, query[None].to(where), way=len(self.classes))[0].cpu()
        return self._answers(fitted, logits, query, pixels, transductive=True)


def _row(pixels: Tensor | None, i: int) -> Tensor | None:
    return None if pixels is None else pixels[i]
