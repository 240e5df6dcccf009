"""Checks of a data set of images before it is used: files, duplicates, and labels by leave-one-out."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..data.images import checks
from ..data.images.checks import Finding
from ..data.images.datasets import ImageFiles, Images, open_image_file
from ..data.images.loading import read_source
from ..errors import MissingDependencyError, SightlineError
from ..names import printable, shortened
from ..predictor import Progress
from .classifier import FewShotClassifier
from .model_choice import likely_model
from .texts import duplicate_findings

MAX_CHECKED_LABELS = 500
"""Images whose labels are checked; of more, an evenly spaced sample."""
MAX_OWN_PROBABILITY, MIN_OTHER_PROBABILITY = 0.05, 0.9
"""A label is doubtful if, while its image is held out, its class is less likely than this, and another one more."""
MIN_IMAGES_PER_CLASS = 3
"""Images of a class from which on its labels are checked: with two, a wrong one makes the other one doubtful."""
FEW_TRAINING_IMAGES = 100
"""Training images per class below which a few-shot classifier is likely to be better."""


def check_data(
    source: str | Path, classifier: FewShotClassifier | None = None, progress: Progress | None = None
) -> list[Finding]:
    """All findings about image files in class folders or in a zip file; none for other data sets.

    Labels are checked by leave-one-out with `classifier`, which is fitted to the data, or with a pretrained model.
    """
    path = Path(source).expanduser()
    splits = _image_files(source)
    if not splits:
        return []
    findings = checks.skipped_files(checks.list_folder(path)) if path.is_dir() else []
    findings += checks.image_findings(checks.read_thumbnails(splits, path, progress))
    if any(finding.kind == "unusable" for finding in findings):
        return findings
    return findings + _label_findings(splits["train"], path, classifier, progress)


def check_training_data(source: str | Path, task: str, progress: Progress | None = None) -> str:
    """What the owner of a data set should know before a model is trained on it; empty if there is nothing.

    The images of a large data set are not read; `sightline data` checks them.
    """
    try:
        splits = _image_files(source)
    except SightlineError:  # training reports it
        return ""
    if "train" not in splits:
        return ""
    path, train = Path(source).expanduser(), splits["train"]
    is_small = sum(map(len, splits.values())) <= checks.MAX_COMPARED
    findings = check_data(source, progress=progress) if is_small else checks.skipped_files(checks.list_folder(path))
    lines = [checks.as_text(findings, source)]
    if not is_small:
        lines.append(f"duplicates and labels were not checked; for that: {_command('data', source)}")
    per_class = len(train) / len(train.classes)
    if task == "image_classification" and per_class < FEW_TRAINING_IMAGES:
        fix = f"a few-shot classifier is fitted in seconds and likely to be better: {_command('fit', source)}"
        lines.append(f"{per_class:.0f} images per class are few to train a model on; {fix}")
    return "\n".join(line for line in lines if line)


def _command(name: str, source: str | Path) -> str:
    return shlex.join(["sightline", name, str(source)])


def doubtful_labels(classifier: FewShotClassifier) -> Iterator[tuple[int, str, float]]:
    """The support images that look like another class: index, that class and its probability, the surest first.

    Every image is classified while it is held out.
    """
    fitted = classifier.fitted
    support, found = fitted.support, list[tuple[int, str, float]]()
    counts = support.counts
    for logits, labels, indices in fitted.held_out:
        probabilities = (fitted.calibration.scale * logits.double()).softmax(-1)
        for row, label, index in zip(probabilities, labels.tolist(), indices.tolist(), strict=True):
            best = int(row.argmax())
            is_doubtful = row[label] <= MAX_OWN_PROBABILITY and row[best] >= MIN_OTHER_PROBABILITY
            if is_doubtful and counts[label] >= MIN_IMAGES_PER_CLASS:
                found.append((index, support.classes[best], float(row[best])))
    return iter(sorted(found, key=lambda item: (-item[2], item[0])))


def check_texts(classifier: FewShotClassifier) -> list[Finding]:
    """All findings about the support texts of a fitted classifier: duplicates, and labels by leave-one-out."""
    support = classifier.fitted.support
    findings = duplicate_findings(support.names, [support.classes[i] for i in support.labels.tolist()])
    for i, other, probability in doubtful_labels(classifier):
        text, label = shortened(support.names[i], 60), support.classes[int(support.labels[i])]
        findings.append(Finding("label", f"“{text}” ({label}) looks like {other} ({probability:.0%})"))
    return findings


def unused_splits(source: str | Path) -> dict[str, int]:
    """The numbers of image files in the splits that a classifier is not fitted to."""
    return {name: len(images) for name, images in _image_files(source).items() if name != "train"}


def _image_files(source: str | Path) -> dict[str, Images]:
    """The image files of each split of class folders or of a zip file; nothing for other data sets."""
    if not Path(source).expanduser().exists():
        return {}
    splits, _ = read_source(source, checks.SIDE, 1)
    return splits if all(isinstance(images, ImageFiles) for images in splits.values()) else {}


def _label_findings(
    images: Images, root: Path, classifier: FewShotClassifier | None, progress: Progress | None
) -> list[Finding]:
    assert isinstance(images, ImageFiles)
    indices = images.labels.argsort(stable=True).tolist()  # the order of the support set
    if classifier is None:
        count = min(len(images), MAX_CHECKED_LABELS)
        chosen = set(np.linspace(0, len(images) - 1, count).round().astype(int).tolist())
        indices = [i for i in indices if i in chosen]
        try:
            classifier = FewShotClassifier.pretrained(likely_model(root))
            classifier.fit(_examples(images, indices), progress=progress)
        except MissingDependencyError as error:
            return [Finding("note", f"labels were not checked: {error}")]
        except SightlineError:  # one image per class, or images that cannot be read, which are listed
            return []
    findings = list[Finding]()
    for i, other, probability in doubtful_labels(classifier):
        name = checks.relative_name(images.paths[indices[i]], root)
        findings.append(Finding("label", printable(f"{name} looks like {other} ({probability:.0%})")))
    return findings


def _examples(images: ImageFiles, indices: Sequence[int]) -> dict[str, list[Path | bytes]]:
    """The image files at these indices, by class."""
    examples: dict[str, list[Path | bytes]] = {}
    for i in indices:
        source, _ = open_image_file(images.paths[i], images.archive)
        examples.setdefault(images.classes[int(images.labels[i])], []).append(source)
    return examples
