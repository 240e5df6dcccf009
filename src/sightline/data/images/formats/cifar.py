"""CIFAR-10 and CIFAR-100 in their binary versions, and the superclasses of CIFAR-100."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ....errors import check
from ....names import display_path
from ..datasets import Images
from .arrays import Array, check_array_bytes, file_size, image_sets, read_class_names, read_exactly

DESCRIPTION = "a folder of CIFAR binary files: data_batch_1.bin …, test_batch.bin, or train.bin, test.bin"

SUPERCLASSES = {
    "aquatic_mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food_containers": "bottle bowl can cup plate",
    "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
    "household_electrical_devices": "clock keyboard lamp telephone television",
    "household_furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large_carnivores": "bear leopard lion tiger wolf",
    "large_man-made_outdoor_things": "bridge castle house road skyscraper",
    "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
    "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium_mammals": "fox porcupine possum raccoon skunk",
    "non-insect_invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small_mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles_1": "bicycle bus motorcycle pickup_truck train",
    "vehicles_2": "lawn_mower rocket streetcar tank tractor",
}
"""The 20 superclasses of CIFAR-100 with 5 classes each. FC100 splits by them."""
_SUPERCLASS_OF = {name: superclass for superclass, names in SUPERCLASSES.items() for name in names.split()}


def detect(path: Path) -> bool:
    """Whether a folder contains the binary files of CIFAR-10 or CIFAR-100."""
    return path.is_dir() and (any(path.glob("data_batch_*.bin")) or (path / "train.bin").is_file())


def read(path: Path, size: int | None, channels: int | None) -> dict[str, Images]:
    """Read CIFAR-10, or CIFAR-100 with its fine labels."""
    if batches := sorted(path.glob("data_batch_*.bin")):
        test, num_labels, classes = path / "test_batch.bin", 1, read_class_names(path, "batches.meta.txt")
    else:
        batches = [path / "train.bin"]
        test, num_labels, classes = path / "test.bin", 2, read_class_names(path, "fine_label_names.txt")
    images, labels = zip(*(_read_file(file, num_labels) for file in batches), strict=True)
    arrays = {"train": (np.concatenate(images), np.concatenate(labels))}
    if test.is_file():
        arrays["test"] = _read_file(test, num_labels)
    return image_sets(arrays, path, classes, size, channels)


def superclass_names(classes: Iterable[str]) -> dict[str, str]:
    """Names such as "fish/trout" for the classes of CIFAR-100; other sets of classes keep their names."""
    classes = tuple(classes)
    if set(classes) != set(_SUPERCLASS_OF):
        return {name: name for name in classes}
    return {name: f"{_SUPERCLASS_OF[name]}/{name}" for name in classes}


def _read_file(path: Path, num_labels: int) -> tuple[Array, Array]:
    """Images (N, 3, 32, 32) and labels (N,) of records with `num_labels` label bytes, the last of which is used."""
    record = num_labels + 3072
    name = display_path(path)
    size = check_array_bytes(name, (file_size(path),), np.dtype(np.uint8))
    is_valid = size and size % record == 0
    check(is_valid, f"{name} must have records of {record} bytes (CIFAR binary version), got {size:,} bytes")
    with path.open("rb") as file:
        records = read_exactly(name, file, size).reshape(-1, record)
    return records[:, num_labels:].reshape(-1, 3, 32, 32), records[:, num_labels - 1]
