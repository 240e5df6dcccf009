"""Uploaded `.sightline` files: the images that a classifier was fitted to."""

from PIL import Image

from .. import limits
from ..classifier import file
from ..data.images.datasets import as_array
from ..errors import check
from .rows import NewImage
from .uploads import check_counts, check_pixels, check_time, class_name, display_name, encode

HEADER_START = 8
"""Position of the header of a safetensors file, which is a JSON object."""


def is_classifier(data: bytes) -> bool:
    """Whether data looks like a `.sightline` file, which is then read and checked; otherwise it may be a zip file."""
    return not data.startswith(b"PK\x03\x04") and data[HEADER_START : HEADER_START + 1] == b"{"


def read(data: bytes) -> tuple[str | None, list[tuple[str, list[NewImage]]]]:
    """The name of the model of a `.sightline` file, and its classes with their images."""
    metadata, _, support = file.from_bytes(data, "archive", limits.MAX_WEB_HEADER_BYTES)
    got = "got one that was fitted to embeddings or texts"
    fix = "start the server with it, as `sightline serve FILE` does, and it is a model of the tab Classify"
    check(support.images is not None, f"a .sightline file must hold images to be opened here, {got}; {fix}")
    assert support.images is not None
    check_counts(len(support), len(support.classes))
    check_pixels(len(support) * support.images.shape[-2:].numel())
    names = [class_name(name) for name in support.classes]
    rule = f"classes must differ in their first {limits.MAX_WEB_NAME_CHARS} characters"
    check(len(set(names)) == len(names), f"{rule}, got {len(names)} classes with {len(set(names))} names")
    found: dict[str, list[NewImage]] = {name: [] for name in names}
    for label, name, pixels in zip(support.labels.tolist(), support.names, support.images, strict=True):
        check_time()
        image = encode(Image.fromarray(as_array(pixels)), display_name(name))
        found[names[label]].append(image)
    return metadata.model_name, list(found.items())
