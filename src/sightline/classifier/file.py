"""The file of a fitted classifier: safetensors with weights and support set, and metadata as JSON in its header."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from .. import config, limits
from ..errors import SightlineError
from ..files import write_bytes
from ..models.few_shot import FewShot, FewShotConfig
from ..weights import DTYPES, check_shapes
from .calibration import Calibration
from .support import SupportSet, check_class_count, check_class_names

SUFFIX = ".sightline"
FORMAT = "sightline few-shot classifier 2"
METADATA_KEYS = {"model", "embedder", "weights", "classes", "names", "calibration"}
WEIGHTS_PREFIX = "model."


class ClassifierFile(NamedTuple):
    """The content of a classifier file."""

    model: FewShot
    embedder: str | None
    """Name of the external encoder; None if the model has a backbone or takes embeddings."""
    weights: str | None
    """Weight file of the external encoder; None for its default weights."""
    support: SupportSet
    calibration: Calibration


def write(path: Path, content: ClassifierFile) -> Path:
    """Write a classifier file atomically."""
    model, support = content.model, content.support
    metadata = {
        "model": config.plain(model.config),
        "embedder": content.embedder,
        "weights": content.weights,
        "classes": support.classes,
        "names": support.names,
        "calibration": dataclasses.asdict(content.calibration),
    }
    tensors = {f"{WEIGHTS_PREFIX}{name}": tensor.cpu() for name, tensor in model.state_dict().items()}
    tensors |= {"embeddings": support.embeddings, "labels": support.labels.to(torch.int32)}
    if support.images is not None:
        tensors["images"] = support.images
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    header = {"format": FORMAT, "metadata": json.dumps(metadata, ensure_ascii=False)}
    # safetensors' own writer would make a file that only its owner can read
    write_bytes(check_path(path), safetensors.torch.save(tensors, header))
    return path


def check_path(path: Path) -> Path:
    """Check that a classifier can be written to a path, and return it."""
    if path.suffix != SUFFIX or path.is_dir():
        raise SightlineError(f"the path of a classifier must end in {SUFFIX} and not be a folder, got {str(path)!r}")
    return path


def read(path: Path) -> ClassifierFile:
    """Read a classifier file and check its content. The header is checked before any tensor is read."""
    if not path.is_file():
        kind = "is not a file; use pretrained(...) for a model" if path.exists() else "does not exist"
        raise SightlineError(f"a classifier must be a file written by `save`, got {str(path)!r}, which {kind}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            metadata = _read_metadata(path, file.metadata())
        model_config = _model_config(path, metadata["model"])
        weights = {
            name.removeprefix(WEIGHTS_PREFIX): shape
            for name, shape in shapes.items()
            if name.startswith(WEIGHTS_PREFIX)
        }
        check_shapes(path, weights, lambda: FewShot(model_config), depth=model_config.depth)
        tensors = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise _invalid(path, str(error)) from error
    model = FewShot(model_config).eval()
    model.load_state_dict({name: _floats(path, f"{WEIGHTS_PREFIX}{name}", tensors) for name in weights})
    return ClassifierFile(
        model=model,
        embedder=metadata["embedder"],
        weights=metadata["weights"],
        support=_support(path, metadata, tensors, model),
        calibration=Calibration(**metadata["calibration"]),
    )


def _model_config(path: Path, section: Any) -> FewShotConfig:
    try:
        return config.build(FewShotConfig, section, "model")
    except SightlineError as error:
        raise _invalid(path, str(error)) from error


def _read_metadata(path: Path, header: dict[str, str] | None) -> dict[str, Any]:
    text = (header or {}).get("metadata", "")
    if not header or header.get("format") != FORMAT or not 0 < len(text) < limits.MAX_CLASSIFIER_JSON_CHARS:
        raise _invalid(path, "another format")
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid(path, str(error)) from error
    calibration = metadata.get("calibration") if isinstance(metadata, dict) else None
    if (
        not isinstance(metadata, dict)
        or set(metadata) != METADATA_KEYS
        or not all(isinstance(metadata[name], str | None) for name in ("embedder", "weights"))
        or not all(_are_names(metadata[name]) for name in ("classes", "names"))
        or not isinstance(calibration, dict)
        or set(calibration) != {field.name for field in dataclasses.fields(Calibration)}
        or not all(isinstance(x, float) and math.isfinite(x) for x in calibration.values())
        or not (calibration["scale"] > 0 and calibration["threshold_scale"] > 0)
    ):
        raise _invalid(path, "invalid metadata")
    return metadata


def _are_names(x: Any) -> bool:
    return (
        isinstance(x, list)
        and len(x) <= limits.MAX_EXAMPLES
        and all(isinstance(name, str) and len(name) <= 4096 for name in x)
    )


def _support(path: Path, metadata: dict[str, Any], tensors: dict[str, Tensor], model: FewShot) -> SupportSet:
    classes, names = tuple(metadata["classes"]), tuple(metadata["names"])
    check_class_count(len(classes))
    check_class_names(classes)
    embeddings, labels, images = _floats(path, "embeddings", tensors), tensors.get("labels"), tensors.get("images")
    count = len(names)
    is_valid = (
        labels is not None
        and labels.dtype == torch.int32
        and labels.shape == (count,)
        and embeddings.dim() == 3
        and embeddings.shape[0] == count
        and embeddings.shape[1] in _token_counts(model)
        and embeddings.shape[2] == model.embed_dim
        and bool((embeddings.abs() <= limits.MAX_EMBEDDING_VALUE).all())
        and labels.tolist() == sorted(labels.tolist())
        and set(labels.tolist()) == set(range(len(classes)))
    )
    if images is not None:
        has_encoder = model.backbone is not None or metadata["embedder"] is not None
        is_valid = is_valid and has_encoder and _are_images(images, count, model)
    if not is_valid or labels is None:
        raise _invalid(path, "inconsistent examples")
    return SupportSet(embeddings, labels.long(), classes, names, None if images is None else images.clone())


def _token_counts(model: FewShot) -> range:
    """The valid numbers of tokens per image: that of the backbone, or any for embeddings."""
    if model.backbone is None:
        return range(1, limits.MAX_CLASSIFIER_TOKENS + 1)
    count = model.grid[0] * model.grid[1] if model.config.tokens == "patches" else 1
    return range(count, count + 1)


def _are_images(images: Tensor, count: int, model: FewShot) -> bool:
    """Whether a tensor holds this many square images with the channels of the model."""
    if images.dtype != torch.uint8 or images.dim() != 4:
        return False
    number, channels, height, width = images.shape
    return (
        number == count
        and channels in ({1, 3} if model.backbone is None else {model.config.channels})
        and height == width
        and 1 <= height <= limits.MAX_CLASSIFIER_IMAGE_SIZE
    )


def _floats(path: Path, name: str, tensors: dict[str, Tensor]) -> Tensor:
    """A tensor as float32. The copy is aligned like a new tensor, so results do not depend on the file's layout."""
    tensor = tensors.get(name)
    if tensor is None or tensor.dtype not in DTYPES or not tensor.isfinite().all():
        raise _invalid(path, f"no finite numbers for {name}")
    return tensor.float().clone()


def _invalid(path: Path, got: str) -> SightlineError:
    return SightlineError(f"{path} must be a complete classifier file written by `save`, got {got}; fit it again")
