"""A cache of image features on disk, by encoder and image content.

Features of an encoder are in one folder, in files of some hundred images each. The header of a file lists the digests
of its images. Files are never changed, so processes can share a cache.
"""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ..errors import SightlineWarning, check
from ..files import atomic_write, digest

FILE_IMAGES = 256
"""Images in one file."""
VARIABLE = "SIGHTLINE_CACHE"
"""Environment variable with the folder of all caches."""


def cache_folder() -> Path:
    """The folder of all caches: that of the environment variable, or one in the user's cache folder."""
    given = os.environ.get(VARIABLE)
    return Path(given).expanduser() if given else Path.home() / ".cache" / "sightline"


class FeatureCache:
    """Features of one encoder. `encoder` is a text that identifies its weights and its preprocessing."""

    def __init__(self, encoder: str, shape: tuple[int, ...], folder: Path | None = None):
        self.folder = (cache_folder() if folder is None else folder) / "features" / digest(encoder.encode())[:24]
        self.shape = shape
        self._files: dict[str, tuple[Path, int]] = {}
        for path in sorted(self.folder.glob("*.safetensors")) if self.folder.is_dir() else ():
            self._files |= {key: (path, i) for i, key in enumerate(_keys(path))}

    def __contains__(self, key: str) -> bool:
        return key in self._files

    def read(self, keys: Sequence[str], out: Tensor) -> list[int]:
        """Copy the features of these images into the rows of `out` (N, *shape); returns the rows that are missing.

        A file that cannot be read, or has features of another shape, counts as missing.
        """
        by_file: dict[Path, list[tuple[int, int]]] = {}
        missing = []
        for row, key in enumerate(keys):
            if key in self._files:
                path, position = self._files[key]
                by_file.setdefault(path, []).append((row, position))
            else:
                missing.append(row)
        for path, pairs in by_file.items():
            rows, positions = map(list, zip(*pairs, strict=True))
            try:
                features = safetensors.torch.load_file(path)["features"]
                out[rows] = features[positions].to(out.dtype).view(len(rows), *self.shape)
            except (OSError, KeyError, IndexError, RuntimeError, safetensors.SafetensorError):
                missing += rows
        return sorted(missing)

    def write(self, keys: Sequence[str], features: Tensor) -> None:
        """Add the features of new images: float16 (N, *shape). A folder that cannot be written is a warning."""
        check(len(keys) == len(features), f"features must be one for each of {len(keys)} images, got {len(features)}")
        for start in range(0, len(keys), FILE_IMAGES):
            part = list(keys[start : start + FILE_IMAGES])
            path = self.folder / f"{digest(' '.join(part).encode())[:24]}.safetensors"
            tensors = {"features": features[start : start + FILE_IMAGES].contiguous()}
            try:
                with atomic_write(path) as temporary:
                    safetensors.torch.save_file(tensors, temporary, {"images": " ".join(part)})
            except (OSError, safetensors.SafetensorError) as error:
                message = f"{VARIABLE} must be a folder to write to, got an error: {error}; features are not cached"
                warnings.warn(message, SightlineWarning, stacklevel=2)
                return
            self._files |= {key: (path, i) for i, key in enumerate(part)}


def state_digest(state: dict[str, Tensor]) -> str:
    """SHA-256 of all tensors of a state dict."""
    parts = []
    for name, tensor in sorted(state.items()):
        data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        parts.append(f"{name} {tuple(tensor.shape)} {digest(data.numpy().tobytes())}")
    return digest("\n".join(parts).encode())


def _keys(path: Path) -> list[str]:
    """The images of a file; none if it cannot be read."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (OSError, safetensors.SafetensorError):
        return []
    return metadata.get("images", "").split()
