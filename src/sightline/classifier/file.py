"""The file of a fitted classifier: safetensors with weights and support set, and metadata as JSON in its header."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from .. import config, limits
from ..errors import SightlineError, check, shown
from ..files import versions, write_bytes
from ..models.embedders import CustomEmbedder, ExternalEmbedder, ImageEmbedder, as_embedder, make_embedder
from ..models.few_shot import FewShot
from ..models.few_shot_config import FewShotConfig
from ..names import printable
from ..weights import DTYPES, Shapes, check_shapes
from .calibration import Calibration
from .choice import Choice
from .fitted import Fitted
from .methods import SPATIAL, available_methods
from .support import SupportSet, check_class_count, check_example_count, check_labels, read_pixels

SUFFIX = ".sightline"
FORMAT = "sightline few-shot classifier 2"
WEIGHTS_PREFIX = "model."
MIN_EMBEDDER_COSINE = 0.98
"""Cosine similarity of the embeddings of one image by the custom embedder of a classifier and by that given to load."""


@dataclass(frozen=True)
class Metadata:
    """The content of a classifier file beside its tensors."""

    model: FewShotConfig
    embedder: str | None
    """Name of the external encoder; None if the model has a backbone or takes embeddings."""
    weights: str | None
    """Weight file of the external encoder; None for its default weights."""
    classes: tuple[str, ...]
    names: tuple[str, ...]
    """Names of the examples."""
    calibration: Calibration
    choice: Choice = field(default_factory=lambda: Choice("head", is_automatic=False))
    """The method that is used; the head of the model in files of earlier versions."""
    custom_embedder: str | None = None
    """Name of the embedder of the images if it was passed as an object, so that it is needed to load the file."""
    model_name: str | None = None
    """Name of the model that was fitted; None for embeddings, and in files of earlier versions."""

    def __post_init__(self) -> None:
        check_class_count(len(self.classes))
        check_labels(self.classes)
        check_example_count(len(self.names))
        names = (*self.names, self.model_name or "")
        longest, limit = max(map(len, names)), limits.MAX_EXAMPLE_NAME_CHARS
        rule = f"the name of an example or a model must be at most {limit:,} characters"
        check(longest <= limit, f"{rule}, got {longest:,}")


Content = tuple[Metadata, FewShot, SupportSet]


def to_bytes(fitted: Fitted, model_name: str | None) -> tuple[bytes, CustomEmbedder | None]:
    """The content of the file of a classifier, and the custom embedder that is needed to read it."""
    support, embedder, custom = fitted.support, fitted.embedder, None
    metadata = Metadata(
        model=fitted.model.config,
        embedder=None,
        weights=None,
        classes=support.classes,
        names=support.names,
        calibration=fitted.calibration,
        choice=fitted.choice,
        model_name=model_name,
    )
    if isinstance(embedder, ExternalEmbedder):
        metadata = replace(metadata, embedder=embedder.name, weights=embedder.weights)
    elif isinstance(embedder, CustomEmbedder) and support.images is not None:
        custom, metadata = embedder, replace(metadata, custom_embedder=embedder.name)
    return _serialize(metadata, fitted.model, support), custom


def _serialize(metadata: Metadata, model: FewShot, support: SupportSet) -> bytes:
    tensors = {f"{WEIGHTS_PREFIX}{name}": tensor.cpu() for name, tensor in model.state_dict().items()}
    tensors |= {"embeddings": support.embeddings, "labels": support.labels.to(torch.int32)}
    if support.images is not None:
        tensors["images"] = support.images
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    text = json.dumps(config.plain(metadata), ensure_ascii=False)
    limit = limits.MAX_CLASSIFIER_JSON_CHARS
    rule = f"the names of all examples must have fewer than {limit:,} characters"
    check(len(text) < limit, f"{rule}, got {len(text):,}; use fewer or shorter examples")
    header = {"format": FORMAT, "metadata": text, "versions": versions()}
    return safetensors.torch.save(tensors, header)


def write(path: Path, data: bytes) -> Path:
    """Write a classifier file atomically. Safetensors' own writer makes a file that only its owner can read."""
    write_bytes(check_path(path), data)
    return path


def check_path(path: Path) -> Path:
    """Check that a classifier can be written to a path, and return it."""
    is_valid = path.suffix == SUFFIX and not path.is_dir()
    check(is_valid, f"the path of a classifier must end in {SUFFIX} and not be a folder, got {str(path)!r}")
    return path


def read(path: Path) -> Content:
    """Read a classifier file and check its content. The header is checked before any tensor is read."""
    if not path.is_file():
        kind = "is not a file; use pretrained(...) for a model" if path.exists() else "does not exist"
        raise SightlineError(
            f"a classifier must be a file written by sightline fit or `save`, got {str(path)!r}, which {kind}"
        )
    with _complete(str(path)):
        with safetensors.safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            header = file.metadata() or {}
        return _build(path, header, shapes, lambda: safetensors.torch.load_file(path))


def read_versions(path: Path) -> str:
    """The versions of the software that wrote a classifier file; empty if it does not say them."""
    with _complete(str(path)), safetensors.safe_open(path, framework="pt") as file:
        return printable((file.metadata() or {}).get("versions", "")[:200])


def from_bytes(data: bytes, name: str = "data", max_header_bytes: int | None = None) -> Content:
    """Read the content of a classifier file and check it; `name` is that of the file in error messages.

    With `max_header_bytes`, a longer header is refused before it is read.
    """
    with _complete(name):
        size = int.from_bytes(data[:8], "little")
        if max_header_bytes is not None:
            check(size <= max_header_bytes, f"a header of {size:,} bytes, more than {max_header_bytes:,}")
        shapes = {name: tuple(entry["shape"]) for name, entry in safetensors.deserialize(data)}  # checks the header
        header = json.loads(data[8 : 8 + size]).get("__metadata__", {})
        return _build(Path(name), header, shapes, lambda: safetensors.torch.load(data))


def restore_embedder(
    content: Content, embedder: Any, *, weights: str | Path | None = None, allow_download: bool = False
) -> ImageEmbedder | None:
    """The embedder that the file names, or `embedder` if the classifier was fitted with a custom one."""
    metadata, model, support = content
    weights = metadata.weights if weights is None else str(weights)
    if (name := metadata.custom_embedder) is None:
        rule = "embedder must be left out for a classifier that was fitted without a custom embedder"
        check(embedder is None, f"{rule}, got {type(embedder).__name__}")
        return make_embedder(model, metadata.embedder, weights, allow_download=allow_download)
    check(weights is None, "weights must be left out for a custom embedder, got a file")
    rule = f"embedder must be the one that the classifier was fitted with, {shown(name)}"
    fix = "use FewShotClassifier.load(path, embedder=...) in Python"
    check(embedder is not None, f"{rule}, got none: it is not in the file; {fix}")
    embedder = as_embedder(embedder)
    _check_same_embedder(embedder, support, rule)
    return embedder


def _check_same_embedder(embedder: ImageEmbedder, support: SupportSet, rule: str) -> None:
    """Check that an embedder gives the embedding of the first support image, if that is stored at full size."""
    assert support.images is not None
    image, expected = support.images[0], support.embeddings[0]
    embedding = embedder.embed(read_pixels([image], embedder)).cpu()[0]
    shape, expected_shape = tuple(embedding.shape), tuple(expected.shape)
    check(shape == expected_shape, f"{rule}, got one with embeddings of shape {shape} instead of {expected_shape}")
    cosine = float(F.cosine_similarity(embedding.flatten(), expected.flatten(), dim=0))
    is_same = embedder.image_size != image.shape[-1] or cosine >= MIN_EMBEDDER_COSINE
    check(is_same, f"{rule}, got one with other embeddings: cosine similarity {cosine:.3f} for the first image")


@contextmanager
def _complete(name: str) -> Iterator[None]:
    """Raise the errors of a damaged or foreign file as one that names it."""
    try:
        yield
    except (safetensors.SafetensorError, OSError, ValueError, KeyError, RecursionError) as error:
        rule = f"{name} must be a complete classifier file written by sightline fit or `save`"
        reason: object = error
        if isinstance(error, safetensors.SafetensorError):
            reason = f"a damaged file or one of another format ({error})"
        elif isinstance(error, KeyError):  # torch has no such type
            reason = f"a tensor of type {error}"
        raise SightlineError(f"{rule}, got {reason}; fit it again") from error


def _build(
    path: Path, header: Mapping[str, str], shapes: Shapes, load_tensors: Callable[[], dict[str, Tensor]]
) -> Content:
    """Check the header, then load the tensors and build the model."""
    text = header.get("metadata", "")
    is_known = header.get("format") == FORMAT and len(text) < limits.MAX_CLASSIFIER_JSON_CHARS
    check(is_known, "another format")
    metadata = config.build(Metadata, json.loads(text))
    names = [name.removeprefix(WEIGHTS_PREFIX) for name in shapes if name.startswith(WEIGHTS_PREFIX)]
    weights = {name: shapes[f"{WEIGHTS_PREFIX}{name}"] for name in names}
    check_shapes(path, weights, lambda: FewShot(metadata.model), depth=metadata.model.depth)
    tensors, model = load_tensors(), FewShot(metadata.model).eval()
    is_possible = metadata.choice.method != SPATIAL or SPATIAL in available_methods(model.head)
    check(is_possible, f"the method {SPATIAL!r} without a feature map")
    model.load_state_dict({name: _floats(tensors, f"{WEIGHTS_PREFIX}{name}") for name in names})
    return metadata, model, _support(metadata, model, tensors)


def _support(metadata: Metadata, model: FewShot, tensors: dict[str, Tensor]) -> SupportSet:
    count, classes = len(metadata.names), list(range(len(metadata.classes)))
    embeddings, labels = _floats(tensors, "embeddings"), tensors.get("labels", torch.empty(0))
    side = model.grid[0] if model.config.tokens == "patches" else 1
    token_counts = range(1, limits.MAX_CLASSIFIER_TOKENS + 1) if model.backbone is None else (side * side,)
    is_valid = (
        labels.dtype == torch.int32
        and labels.shape == (count,)
        and labels.unique_consecutive().tolist() == classes
        and embeddings.dim() == 3
        and embeddings.shape == (count, embeddings.shape[1], model.embed_dim)
        and embeddings.shape[1] in token_counts
        and bool((embeddings.abs() <= limits.MAX_EMBEDDING_VALUE).all())
    )
    images = tensors.get("images")
    if images is not None:
        has_encoder = model.backbone is not None or metadata.embedder or metadata.custom_embedder
        is_valid = is_valid and bool(has_encoder) and _are_images(images, count, model)
    check(is_valid, "inconsistent examples")
    pixels = None if images is None else images.clone()
    return SupportSet(embeddings, labels.long(), metadata.classes, metadata.names, pixels)


def _are_images(images: Tensor, count: int, model: FewShot) -> bool:
    """Whether a tensor holds this many square images with the channels of the model."""
    if images.dtype != torch.uint8 or images.dim() != 4:
        return False
    channels, side = images.shape[1], images.shape[-1]
    is_expected = channels in ((1, 3) if model.backbone is None else (model.config.channels,))
    return (
        is_expected and images.shape == (count, channels, side, side) and 1 <= side <= limits.MAX_CLASSIFIER_IMAGE_SIZE
    )


def _floats(tensors: dict[str, Tensor], name: str) -> Tensor:
    """A tensor as float32. The copy is aligned like a new tensor, so results do not depend on the file's layout."""
    tensor = tensors.get(name)
    if tensor is None or tensor.dtype not in DTYPES or not tensor.isfinite().all():
        raise SightlineError(f"no finite numbers for {name}")
    return tensor.float().clone()
