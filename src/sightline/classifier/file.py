"""A classifier as one file: safetensors with its weights and examples, and what else it knows as JSON in the header."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from .. import config, limits
from ..errors import SightlineError
from ..files import atomic_write
from ..models.few_shot import FewShot, FewShotConfig
from ..weights import check_shapes
from .calibration import Confidence
from .support import Support, check_count, check_labels

SUFFIX = ".sightline"
FORMAT = "sightline few-shot classifier 1"
WEIGHTS = "model."

EmbedderAndWeights = tuple[str | None, str | None]
"""The name of a model from elsewhere that makes the embeddings, and the file of its weights; None for its own."""


def write(path: Path, model: FewShot, embedder: EmbedderAndWeights, support: Support, confidence: Confidence) -> Path:
    """Whole or not at all."""
    about = {
        "model": config.plain(model.config),
        "embedder": embedder[0],
        "weights": embedder[1],
        "classes": support.classes,
        "names": support.names,
        "confidence": dataclasses.asdict(confidence),
    }
    tensors = {f"{WEIGHTS}{name}": tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}
    tensors |= {"embeddings": support.embeddings, "labels": support.labels.to(torch.int32)}
    if support.pictures is not None:
        tensors["pictures"] = support.pictures
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    data = safetensors.torch.save(tensors, {"format": FORMAT, "about": json.dumps(about, ensure_ascii=False)})
    with atomic_write(check_path(path)) as part:
        part.write_bytes(data)  # safetensors itself would make a file that its owner alone may read
    return path


def check_path(path: Path) -> Path:
    """The path, if a classifier can be written there."""
    if path.suffix != SUFFIX or path.is_dir():
        raise SightlineError(f"the file of a classifier must end in {SUFFIX} and be no folder, got {str(path)!r}")
    return path


def read(path: Path) -> tuple[FewShot, EmbedderAndWeights, Support, Confidence]:
    """What `write` wrote, each part of it checked."""
    if not path.is_file():
        there = "no file; did you mean pretrained(...)?" if path.exists() else "not there"
        raise SightlineError(f"a classifier must be a file that save wrote, got {str(path)!r}, which is {there}")
    try:
        with safetensors.safe_open(path, framework="pt") as opened:
            shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
            about = _about(path, opened.metadata())
        form = _form(path, about["model"])
        weights = {name.removeprefix(WEIGHTS): s for name, s in shapes.items() if name.startswith(WEIGHTS)}
        check_shapes(path, weights, lambda: FewShot(form), depth=form.depth)
        tensors = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise _foreign(path, str(error)) from error
    model = FewShot(form).eval()
    model.load_state_dict({name: _floats(path, f"{WEIGHTS}{name}", tensors) for name in weights})
    support = _support(path, about, tensors, model, sees=model.backbone is not None or about["embedder"] is not None)
    return model, (about["embedder"], about["weights"]), support, Confidence(**about["confidence"])


def _form(path: Path, section: Any) -> FewShotConfig:
    try:
        return config.build(FewShotConfig, section, "model")
    except ValueError as error:
        raise _foreign(path, str(error)) from error


def _about(path: Path, metadata: dict[str, str] | None) -> dict[str, Any]:
    if (
        not metadata
        or metadata.get("format") != FORMAT
        or len(metadata.get("about", "")) not in range(1, limits.MAX_CLASSIFIER_JSON_CHARS)
    ):
        raise _foreign(path, "another format")
    try:
        about = json.loads(metadata["about"])
    except (ValueError, RecursionError) as error:
        raise _foreign(path, str(error)) from error
    if isinstance(about, dict):
        about.setdefault("weights", None)  # older files have none
    numbers = about.get("confidence") if isinstance(about, dict) else None
    wanted = {field.name for field in dataclasses.fields(Confidence)}
    if (
        not isinstance(about, dict)
        or set(about) != {"model", "embedder", "weights", "classes", "names", "confidence"}
        or not all(isinstance(about[name], str | None) for name in ("embedder", "weights"))
        or not all(_texts(about[name]) for name in ("classes", "names"))
        or not isinstance(numbers, dict)
        or set(numbers) != wanted
        or not all(isinstance(x, float) and math.isfinite(x) for x in numbers.values())
        or not (numbers["calibration_scale"] > 0 and numbers["scale"] > 0)
    ):
        raise _foreign(path, "a header that says something else")
    return about


def _texts(x: Any) -> bool:
    return (
        isinstance(x, list) and len(x) <= limits.MAX_EXAMPLES and all(isinstance(t, str) and len(t) <= 4096 for t in x)
    )


def _support(path: Path, about: dict[str, Any], tensors: dict[str, Tensor], model: FewShot, *, sees: bool) -> Support:
    classes, names = tuple(about["classes"]), tuple(about["names"])
    check_count(len(classes))
    check_labels(classes)
    embeddings, labels = _floats(path, "embeddings", tensors), tensors.get("labels")
    pictures = tensors.get("pictures")
    count = len(names)
    right = (
        labels is not None
        and labels.dtype == torch.int32
        and labels.shape == (count,)
        and embeddings.dim() == 3
        and embeddings.shape[0] == count
        and embeddings.shape[1] in _tokens(model)
        and embeddings.shape[2] == model.embed_dim
        and bool((embeddings.abs() <= limits.MAX_EMBEDDING_VALUE).all())
        and labels.tolist() == sorted(labels.tolist())
        and set(labels.tolist()) == set(range(len(classes)))
    )
    if pictures is not None:
        right = right and sees and pictures.dtype == torch.uint8 and _are_pictures(tuple(pictures.shape), count, model)
    if not right or labels is None:
        raise _foreign(path, "examples that do not fit together")
    return Support(embeddings, labels.long(), classes, names, None if pictures is None else pictures.clone())


@torch.no_grad()
def _tokens(model: FewShot) -> range:
    """How many an image may have: as many as the model makes of one, or any number where it makes none."""
    if model.backbone is None:
        return range(1, limits.MAX_CLASSIFIER_TOKENS + 1)
    side = model.config.image_size
    assert side is not None
    assert model.config.channels is not None
    made = model.embed(torch.zeros(1, model.config.channels, side, side)).shape[1]
    return range(made, made + 1)


def _are_pictures(shape: tuple[int, ...], count: int, model: FewShot) -> bool:
    """So many squares of gray or color, as the model takes them."""
    if len(shape) != 4:
        return False
    many, channels, *sides = shape
    return (
        many == count
        and channels in ({1, 3} if model.backbone is None else {model.config.channels})
        and (sides[0] == sides[1] and 1 <= sides[0] <= limits.MAX_CLASSIFIER_IMAGE_SIZE)
    )


def _floats(path: Path, name: str, tensors: dict[str, Tensor]) -> Tensor:
    """In memory of its own, which is aligned as fresh tensors are: the same bytes in, the same bytes out."""
    tensor = tensors.get(name)
    if tensor is None or not tensor.is_floating_point() or not tensor.isfinite().all():
        raise _foreign(path, f"no finite numbers for {name}")
    return tensor.float().clone()


def _foreign(path: Path, got: str) -> SightlineError:
    return SightlineError(f"{path} must be a classifier that save wrote, and whole, got {got}; fit it again")
