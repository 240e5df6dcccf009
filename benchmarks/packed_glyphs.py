"""Black shapes on white as a data set, packed with one bit per pixel as in `omniglot_105_packed.npz`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from sightline.files import atomic_write

SIDE = 112
"""Side length of the packed images: twice the 56 pixels of the model `glyphs`, so that resized edges are smooth."""
THUMBNAIL_SIDE = 24
GRID = 3
"""Cells of a distortion along each side."""

Array = np.ndarray[Any, Any]


def crop(ink: Array) -> Image.Image | None:
    """The bounding box of the ink (H, W), 0 to 255. None if there is almost no ink."""
    rows, columns = np.flatnonzero((ink > 127).any(1)), np.flatnonzero((ink > 127).any(0))
    if len(rows) < 4 or len(columns) < 2:
        return None
    return Image.fromarray(ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])


def thumbnail(shape: Image.Image) -> Array:
    """A cropped shape at 24 x 24 pixels with unit length, for comparisons: (576,)"""
    pixels = np.asarray(_paste(shape, THUMBNAIL_SIDE, 1.0, 0.5, 0.5), np.float32).reshape(-1)
    return pixels / max(float(np.linalg.norm(pixels)), 1e-6)


def distort(shape: Image.Image, generator: np.random.Generator) -> Image.Image | None:
    """A cropped shape with other stroke widths and a smooth random distortion, as if drawn by another hand."""
    margin = max(shape.size) // 8
    canvas = Image.new("L", (shape.width + 2 * margin, shape.height + 2 * margin))
    canvas.paste(shape, (margin, margin))
    change = generator.integers(3)
    if change:
        canvas = canvas.filter((ImageFilter.MinFilter(3), ImageFilter.MaxFilter(5))[change - 1])
    steps = np.arange(GRID + 1) / GRID
    grid = np.stack(np.meshgrid(steps * canvas.width, steps * canvas.height), -1)
    slant = generator.uniform(-0.2, 0.2)
    moved = grid + generator.normal(0, 0.035 * max(shape.size), grid.shape)
    moved[..., 0] += slant * (grid[..., 1] - canvas.height / 2)
    mesh = []
    for row in range(GRID):
        for column in range(GRID):
            box = (*grid[row, column].astype(int).tolist(), *grid[row + 1, column + 1].astype(int).tolist())
            corners = [(row, column), (row + 1, column), (row + 1, column + 1), (row, column + 1)]
            mesh.append((box, [float(value) for corner in corners for value in moved[corner]]))
    return crop(np.asarray(canvas.transform(canvas.size, Image.Transform.MESH, mesh, Image.Resampling.BILINEAR)))


def place(shape: Image.Image, generator: np.random.Generator) -> Array:
    """A cropped shape at a random size and position, packed: uint8 (SIDE * SIDE / 8,)"""
    size, x, y = generator.random(3)
    return np.packbits(np.asarray(_paste(shape, SIDE, 0.65 + 0.3 * size, 0.25 + x / 2, 0.25 + y / 2)) > 127)


def save(path: Path, images: Mapping[str, Sequence[Array]], licenses: Sequence[Mapping[str, Any]]) -> None:
    """Write the images of each class to `path`, and the licenses to a JSON file of the same name."""
    labels = np.repeat(np.arange(len(images)), [len(members) for members in images.values()])
    arrays = {
        "images_packed": np.stack([image for members in images.values() for image in members]),
        "label": labels.astype(np.int32),
        "classes": np.array(list(images)),
        "shape": np.array([SIDE, SIDE], np.int32),
    }
    with atomic_write(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)
    with atomic_write(path.with_suffix(".licenses.json")) as part:
        part.write_text(json.dumps(list(licenses), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {path}: {len(images):,} classes, {len(labels):,} images, {path.stat().st_size / 2**20:.1f} MiB")


def _paste(shape: Image.Image, side: int, fraction: float, x: float, y: float) -> Image.Image:
    """Resize a shape to a fraction of the side, and put it at x, y: 0 to 1 from the left and top border."""
    scale = fraction * side / max(shape.size)
    width, height = (max(1, round(scale * length)) for length in shape.size)
    canvas = Image.new("L", (side, side))
    resized = shape.resize((width, height), Image.Resampling.BOX if scale < 0.5 else Image.Resampling.BILINEAR)
    canvas.paste(resized, (round(x * (side - width)), round(y * (side - height))))
    return canvas
