"""Fitted classifiers of the store. A change embeds new images only, and fits again."""

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from .. import limits
from ..classifier import FewShotClassifier
from ..classifier.data_checks import doubtful_labels
from ..classifier.model_choice import choose_model
from ..classifier.summary import plain_calibration
from ..classifier.support import SupportSet
from ..data.images.checks import are_blank, near_groups
from ..data.images.reading import read_image
from ..errors import MissingDependencyError, SightlineError, check
from .metrics import FIT_SECONDS
from .rows import StoredClassifier, StoredExample
from .store import Store

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

AUTO = "auto"
"""Name of the model that is chosen by the images."""
THUMBNAIL_SIDE = 32
MAX_WARNINGS = 20
"""Warnings of one kind."""


class Recent(Generic[K, V]):
    """The values that were used last: at most `size`, and at most `MAX_WEB_CACHE_BYTES` unless one alone has more."""

    def __init__(self, size: int) -> None:
        self.size, self.bytes, self._lock = size, 0, threading.Lock()
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """The value of a key; None if it is not kept."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: K, value: V) -> V:
        """Keep a value, and forget those that were not used for the longest time."""
        count = num_bytes(value)
        with self._lock:
            self.bytes += count - self._values.pop(key, (None, 0))[1]
            self._values[key] = value, count
            while len(self._values) > self.size or (self.bytes > limits.MAX_WEB_CACHE_BYTES and len(self._values) > 1):
                self.bytes -= self._values.popitem(last=False)[1][1]
        return value


def num_bytes(value: Any) -> int:
    """Bytes of the tensors in dataclasses, lists and fitted classifiers; models are shared and do not count."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, FewShotClassifier):
        value = value.fitted
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        value = tuple(value.values())
    return sum(map(num_bytes, value)) if isinstance(value, list | tuple) else 0


@dataclass(frozen=True)
class Warned:
    """Something about the images that their owner should know."""

    kind: str
    """duplicate, similar, blank or label."""
    text: str
    examples: tuple[int, ...]
    suggestion: dict[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class Fit:
    """A classifier that was fitted to one version of a stored one."""

    version: int
    classifier: FewShotClassifier | None = None
    """None if there are too few classes or images."""
    reason: str | None = None
    """Why there is none."""
    is_pending: bool = False
    """Whether it is still being fitted."""
    values: dict[str, Any] | None = None
    """Model, method, estimate and time as plain values."""
    class_accuracy: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[Warned, ...] = ()
    digest: str = ""
    """Of what it was fitted to."""

    def ready(self) -> FewShotClassifier:
        """The classifier; an error if there is none."""
        if self.classifier is None:
            raise SightlineError(self.reason or "a classifier must be fitted first, got one without images")
        return self.classifier


class Fits:
    """Fits by classifier, and embeddings by image, of one process."""

    def __init__(self, store: Store, models: Mapping[str, str]) -> None:
        self.store, self.models = store, dict(models)
        self._bases: dict[str, FewShotClassifier] = {}
        self.missing: dict[str, str] = {}
        """Why models cannot be used."""
        self._fits: Recent[str, Fit] = Recent(limits.MAX_WEB_FITS)
        self._embedded: Recent[tuple[str, str], tuple[Tensor, Tensor]] = Recent(limits.MAX_WEB_EMBEDDINGS)
        self._thumbnails: Recent[str, Tensor] = Recent(limits.MAX_WEB_EMBEDDINGS)
        self._locks: Recent[str, threading.Lock] = Recent(limits.MAX_WEB_CLASSIFIERS)
        self._lock = threading.Lock()
        self.progress: dict[str, tuple[int, int]] = {}
        """Of classifiers that are being fitted, the images that are embedded by now, and all: once for each model."""

    def kept(self, identifier: str, version: int) -> Fit | None:
        """The fit of this version, if it is kept."""
        fit = self._fits.get(identifier)
        return fit if fit is not None and fit.version == version else None

    def fit(self, stored: StoredClassifier) -> Fit:
        """The fit of a stored classifier. Of one classifier, one thread fits at a time.

        A change that the fit does not depend on, such as a new class without images, takes the fit of before.
        """
        with self._lock:
            lock = self._locks.get(stored.id) or self._locks.put(stored.id, threading.Lock())
        with lock:
            last, digest = self._fits.get(stored.id), _digest(stored)
            try:
                fit = self._fitted(stored) if last is None or last.digest != digest else last
            finally:
                self.progress.pop(stored.id, None)
            return self._fits.put(stored.id, replace(fit, version=stored.version, digest=digest))

    def measure(self, identifier: str, fit: Fit) -> None:
        """Count the bytes of a fit again: explanations keep feature maps in it."""
        if self._fits.get(identifier) is fit:
            self._fits.put(identifier, fit)

    def base(self, name: str) -> FewShotClassifier:
        """A pretrained few-shot model, loaded on first use."""
        with self._lock:
            if name not in self._bases:
                self._bases[name] = FewShotClassifier.pretrained(self.models[name])
            return self._bases[name]

    def load_models(self) -> None:
        """Load all models. Those whose dependencies are not installed are `missing`."""
        for name in self.models:
            try:
                embedder = self.base(name).image_embedder
                embedder.embed(torch.zeros(1, embedder.channels, embedder.image_size, embedder.image_size).byte())
            except MissingDependencyError as error:
                self.missing[name] = str(error)

    def _fitted(self, stored: StoredClassifier) -> Fit:
        start = time.perf_counter()
        groups = [group for group in stored.classes if group.examples]
        shown = [example for group in groups for example in group.examples]
        images = _Images(self, stored)
        if len(groups) < 2:
            reason = f"a classifier must have images in 2 classes, got {len(groups)}; add images of another class"
            return Fit(stored.version, reason=reason, warnings=tuple(_image_warnings(stored, images.thumbnails(shown))))
        choice = None
        if stored.model == AUTO:
            sample = {group.name: [images.thumbnails(group.examples[:1])[0]] for group in groups}
            choice, classifier = choose_model(sample, images.fitted, self.models)
        else:
            classifier = images.fitted(stored.model)
        estimate = classifier.estimate() if classifier.fitted.support.has_estimate else None
        warnings = [*_image_warnings(stored, images.thumbnails(shown)), *_label_warnings(stored, classifier, shown)]
        fitted, calibration = classifier.fitted, plain_calibration(classifier.fitted)
        seconds = time.perf_counter() - start
        FIT_SECONDS.observe(seconds)
        low, high = (0.0, 0.0) if estimate is None else estimate.interval
        values = {
            "model": stored.model if choice is None else choice.model,
            "model_reason": None if choice is None else choice.reason,
            "hint": None if choice is None else choice.hint,
            "method": str(fitted.choice),
            "seconds": round(seconds, 4),
            "estimate": None
            if estimate is None
            else {"accuracy": estimate.accuracy, "low": low, "high": high, "images": estimate.images},
            **{name: calibration[name] for name in ("rejected_known", "accepted_unknown")},
        }
        accuracy = {} if estimate is None else estimate.per_class
        return Fit(stored.version, classifier, values=values, class_accuracy=accuracy, warnings=tuple(warnings))


class _Images:
    """The images of a stored classifier; only those that are not kept are read from the store."""

    def __init__(self, fits: Fits, stored: StoredClassifier) -> None:
        self.fits, self.stored = fits, stored
        self._read: dict[int, bytes] = {}
        self._num_models = len(fits.models.keys() - fits.missing.keys()) if stored.model == AUTO else 1
        self._models_done = 0

    def data(self, wanted: Sequence[StoredExample]) -> list[bytes]:
        """The encoded images."""
        missing = [example.id for example in wanted if example.id not in self._read]
        if missing:
            self._read |= self.fits.store.images(self.stored.id, missing)
        lost = [example.id for example in wanted if example.id not in self._read]
        if lost:  # deleted by another process in the meantime
            raise SightlineError("a classifier must exist while it is fitted, got one that was deleted")
        return [self._read[example.id] for example in wanted]

    def thumbnails(self, wanted: Sequence[StoredExample]) -> list[Tensor]:
        """Small color images, uint8 (3, side, side)."""
        kept = self.fits._thumbnails
        return self._cached(
            wanted,
            lambda example: kept.get(example.digest),
            lambda example, data: kept.put(
                example.digest, read_image(data, size=THUMBNAIL_SIDE, channels=3, name=example.name)
            ),
        )

    def fitted(self, name: str) -> FewShotClassifier:
        """A classifier with this model, fitted to the images."""
        rule = "the model of a classifier must be served"
        check(name in self.fits.models, f"{rule}, got {name!r}, which is not; choose another, or start with it")
        if name in self.fits.missing:
            raise MissingDependencyError(self.fits.missing[name])
        base, kept = self.fits.base(name), self.fits._embedded
        embedder = base.image_embedder

        def embed(example: StoredExample, data: bytes) -> tuple[Tensor, Tensor]:
            options: dict[str, Any] = {"size": embedder.image_size, "channels": embedder.channels}
            pixels = read_image(data, name=example.name, **options)
            return kept.put((name, example.digest), (pixels, embedder.embed(pixels[None]).cpu()[0]))

        groups = [group for group in self.stored.classes if group.examples]
        wanted = [example for group in groups for example in group.examples]
        pairs = self._cached(
            wanted, lambda example: kept.get((name, example.digest)), embed, partial(self._report, total=len(wanted))
        )
        self._models_done += 1
        counts = torch.tensor([len(group.examples) for group in groups])
        support = SupportSet(
            torch.stack([embedding for _, embedding in pairs]),
            torch.arange(len(groups)).repeat_interleave(counts),
            tuple(group.name for group in groups),
            tuple(example.name for example in wanted),
            torch.stack([pixels for pixels, _ in pairs]),
        ).checked()
        classifier = FewShotClassifier(base.model, embedder).fit_support(support)
        classifier.model_name = name
        return classifier

    def _report(self, done: int, *, total: int) -> None:
        """Set the progress of the fit: `done` of `total` images are embedded by the model that is used now."""
        others = self._models_done * total
        self.fits.progress[self.stored.id] = (others + done, self._num_models * total)

    def _cached(
        self,
        wanted: Sequence[StoredExample],
        get: Callable[[StoredExample], V | None],
        compute: Callable[[StoredExample, bytes], V],
        report: Callable[[int], None] = lambda done: None,
    ) -> list[V]:
        """A value for each example, kept or computed. `report` is called with the number of those that are done."""
        found = {example.id: get(example) for example in wanted}
        missing = [example for example in wanted if found[example.id] is None]
        done = len(wanted) - len(missing)
        for example, data in zip(missing, self.data(missing), strict=True):
            report(done)
            found[example.id] = compute(example, data)
            done += 1
        report(done)
        return [value for value in found.values() if value is not None]


def _digest(stored: StoredClassifier) -> str:
    """A digest of what a fit depends on: the model, and the classes that have images."""
    content = stored.model, [group for group in stored.classes if group.examples]
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _image_warnings(stored: StoredClassifier, thumbnails: Sequence[Tensor]) -> list[Warned]:
    """Blank images, duplicates and near duplicates."""
    entries = [(group, example) for group in stored.classes for example in group.examples]
    if not entries:
        return []
    pixels = torch.stack(list(thumbnails))
    is_blank = are_blank(pixels).tolist()
    warnings = [
        Warned("blank", f"{example.name}: all pixels are alike", (example.id,))
        for (_, example), blank in zip(entries, is_blank, strict=True)
        if blank
    ]
    same: dict[str, list[int]] = {}
    for i, (_, example) in enumerate(entries):
        same.setdefault(example.digest, []).append(i)
    firsts = [group[0] for group in same.values() if not is_blank[group[0]]]
    exact = [group for group in same.values() if len(group) > 1]
    similar = [list(group) for group in near_groups(pixels[firsts], firsts)] if firsts else []
    for kind, text, groups in (("duplicate", "the same image", exact), ("similar", "nearly the same image", similar)):
        for indices in groups[:MAX_WARNINGS]:
            names = ", ".join(f"{entries[i][0].name}/{entries[i][1].name}" for i in indices[:3])
            more = f" and {len(indices) - 3} more" if len(indices) > 3 else ""
            count = len({entries[i][0].id for i in indices})
            where = f" in {count} classes" if count > 1 else ""
            ids = tuple(entries[i][1].id for i in indices)
            warnings.append(Warned(kind, f"{names}{more}: {text}{where}", ids))
    return warnings


def _label_warnings(
    stored: StoredClassifier, classifier: FewShotClassifier, shown: Sequence[StoredExample]
) -> list[Warned]:
    """Images that look like another class while they are held out."""
    ids = {group.name: group.id for group in stored.classes}
    names = {example.id: group.name for group in stored.classes for example in group.examples}
    warnings = []
    for index, other, probability in list(doubtful_labels(classifier))[:MAX_WARNINGS]:
        example = shown[index]
        text = f"{names[example.id]}/{example.name} looks like {other} ({probability:.0%})"
        suggestion = {"class_id": ids[other], "name": other, "probability": probability}
        warnings.append(Warned("label", text, (example.id,), suggestion))
    return warnings
