"""Pictures as text a page can carry, and how a row of weights lies over them."""

import base64
import io
import math
import operator
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SightlineError

LARGEST_SIDE = 640
"""Pictures are made no larger than this, in pixels."""
MOST_BEFORE = 7
"""Class and register tokens that may come before the patches."""
USUAL_BEFORE = (0, 1, 2, 5)
"""How many models have: none, a class token, one to learn from a teacher beside it, or four registers."""


@dataclass(frozen=True)
class Pictures:
    """One or more pictures that share a row of weights: `before` tokens, then each picture's patches in turn."""

    images: list[dict[str, Any]]
    before: int
    grid: tuple[int, int]
    """Rows and columns of patches in each picture."""

    def tokens(self) -> list[str]:
        """A name for every place."""
        names = ["[CLS]"] + [f"[REG{i}]" for i in range(1, self.before)]
        rows, columns = self.grid
        for image in self.images:
            if rows * columns == 1:
                names.append(image["label"])
            else:
                prefix = f"{image['label']} " if len(self.images) > 1 else ""
                names += [f"{prefix}{r + 1},{c + 1}" for r in range(rows) for c in range(columns)]
        return names if self.before else names[1:]


def pictures(
    images: Any, size: int, *, name: str, labels: Sequence[str] | None = None, grid: tuple[int, int] | None = None
) -> Pictures:
    """`images` (one, or several) laid over `size` places."""
    several = images if isinstance(images, list | tuple) else [images]
    if not several:
        raise SightlineError(f"{name} must hold at least one picture, got none")
    if labels is not None and len(labels) != len(several):
        raise SightlineError(f"labels must be {len(several)}, one for each picture, got {len(labels)}")
    ready = [_image(image, i, several, labels) for i, image in enumerate(several)]
    wanted = None if grid is None else _whole(grid)
    cells = [(before, (size - before) // len(ready)) for before in range(MOST_BEFORE + 1)]
    cells = [(before, count) for before, count in cells if count > 0 and before + count * len(ready) == size]
    found = _cut(cells, ready[0]["height"] / ready[0]["width"], wanted)
    if found is None:
        count = "1 picture" if len(ready) == 1 else f"{len(ready)} pictures"
        told = "" if wanted is None else f" in a grid of {wanted[0]} x {wanted[1]}"
        raise SightlineError(
            f"{name} must fit the {size} places of the attention, got {count}{told}; "
            "give grid=(rows, columns) where patches are not square"
        )
    return Pictures(ready, *found)


def _whole(grid: Sequence[Any]) -> tuple[int, int]:
    try:
        rows, columns = (operator.index(size) for size in grid)
    except (TypeError, ValueError) as error:
        raise SightlineError(f"grid must be two integers, rows and columns, got {grid!r}") from error
    return rows, columns


def _cut(
    cells: list[tuple[int, int]], tall: float, wanted: tuple[int, int] | None
) -> tuple[int, tuple[int, int]] | None:
    """How many tokens come before the patches, and their rows and columns.

    cells: for each number of tokens that may come before, how many patches that leaves. Patches are nearly square in a
    picture `tall` times as high as wide; or the picture, whatever its shape, was squeezed or cut to a square. Fewer
    tokens before are likelier than more.
    """
    if wanted is not None:
        return next(((before, wanted) for before, count in cells if wanted[0] * wanted[1] == count), None)
    shaped = next(((before, best) for before, count in cells if (best := _shaped(count, tall))), None)
    square = next(((before, (side, side)) for before, n in cells if (side := math.isqrt(n)) ** 2 == n > 1), None)
    if shaped and square and square != shaped and shaped[0] <= square[0] and square[0] in USUAL_BEFORE:
        told = " or ".join(f"{before} + {rows} x {columns}" for before, (rows, columns) in (square, shaped))
        raise SightlineError(f"grid must be given where the places can be read in two ways, got {told}")
    one = next(((before, (1, 1)) for before, count in cells if count == 1), None)
    return min((found for found in (shaped, square, one) if found), key=lambda found: found[0], default=None)


def _shaped(cells: int, tall: float) -> tuple[int, int] | None:
    """Rows and columns that make nearly square patches, if there are any."""
    whole = [(rows, cells // rows) for rows in range(1, cells + 1) if cells % rows == 0 and cells > 1]
    far = {shape: abs(math.log(shape[0] / shape[1] / tall)) for shape in whole}
    return min((shape for shape in far if far[shape] < 0.1), key=far.__getitem__, default=None)


def _image(image: Any, place: int, several: Sequence[Any], labels: Sequence[str] | None) -> dict[str, Any]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise SightlineError("images must have pillow: pip install pillow") from error
    label = f"image {place + 1}" if len(several) > 1 else "image"
    if isinstance(image, str | os.PathLike):
        label = Path(image).name
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                with Image.open(image) as opened:
                    opened.draft("RGB", (LARGEST_SIDE, LARGEST_SIDE))
                    drawn = _rgb(opened)
        except (OSError, UnidentifiedImageError, Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
            raise SightlineError(f"images must be pictures that can be opened, got {str(image)!r}: {error}") from error
    elif isinstance(image, Image.Image):
        drawn = _rgb(image)
    else:
        array = image.detach().cpu() if hasattr(image, "detach") else image
        drawn = Image.fromarray(_pixels(np.asarray(array))).convert("RGB")
    drawn.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    small = max(drawn.size) <= 96
    file = io.BytesIO()
    drawn.save(file, "PNG" if small else "JPEG", **({} if small else {"quality": 88}))
    return {
        "src": f"data:image/{'png' if small else 'jpeg'};base64,{base64.b64encode(file.getvalue()).decode()}",
        "label": str(labels[place]) if labels is not None else label,
        "width": drawn.width,
        "height": drawn.height,
    }


def _rgb(image: Any) -> Any:
    """A picture of any mode as people see it: upright, and with all its grays."""
    from PIL import Image, ImageOps

    upright = ImageOps.exif_transpose(image)
    if upright.mode in ("I", "F") or upright.mode.startswith("I;16"):
        upright = Image.fromarray(_pixels(np.asarray(upright)))
    return upright.convert("RGB")


def _pixels(array: Any) -> Any:
    """(H, W), (H, W, C) or (C, H, W); bytes, 0 to 1, or any numbers, which are stretched to black and white."""
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[-1] not in (1, 3, 4):
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] not in (3, 4)) or 0 in array.shape:
        hint = "; take one of the batch" if array.ndim == 4 else ""
        raise SightlineError(f"images must have shape (H, W), (H, W, 3) or (3, H, W), got {array.shape}{hint}")
    if array.dtype == np.uint8:
        return array
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise SightlineError("images must be finite, got NaN or infinity")
    if array.min() < 0 or array.max() > 1:
        array = (array - array.min()) / max(float(np.ptp(array)), 1e-9)
    return (array * 255).round().astype(np.uint8)
