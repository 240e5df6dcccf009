import json

import numpy as np
import pytest
import torch
from PIL import Image

from sightline.data import load
from sightline.data.images.class_splits import load_classes
from sightline.errors import SightlineError

TILE, ROWS, COLUMNS, COUNT = 5, 2, 3, 8


def write(folder, **changes):
    tiles = np.random.default_rng(0).integers(0, 256, (12, 3, TILE, TILE), dtype=np.uint8)
    for number in range(2):
        chunk = tiles[6 * number : 6 * number + 6].reshape(ROWS, COLUMNS, 3, TILE, TILE)
        sheet = chunk.transpose(0, 3, 1, 4, 2).reshape(ROWS * TILE, COLUMNS * TILE, 3)
        Image.fromarray(sheet).save(folder / f"train_{number}.png")
    Image.fromarray(sheet).save(folder / "test_0.png")
    content = {"classes": ["a", "b", "c"], "tile": TILE, "grid": [ROWS, COLUMNS]}
    content |= {"train": [0, 1, 2, 0, 1, 2, 0, 1], "test": [2, 1]} | changes
    (folder / "labels.json").write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    return torch.from_numpy(tiles)


def test_tiles_are_read_in_row_major_order(tmp_path):
    tiles = write(tmp_path)
    splits = load(tmp_path)
    assert splits.format == "tile sheets"
    assert torch.equal(splits.train.pixels, tiles[:COUNT])
    assert splits.train.labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert torch.equal(splits.test.pixels, tiles[6:8])
    pooled = load_classes(tmp_path, channels=1)
    assert pooled.train.pixels.shape == (10, 1, TILE, TILE)
    assert pooled.test is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": None}, "must have the keys classes, tile, grid and train, got no classes"),
        ({"classes": ["a", "a", "b"]}, "class names must differ"),
        ({"grid": [2]}, r"grid in .* must be \[rows, columns\], got \[2\]"),
        ({"grid": [2, 2]}, r"train_0\.png must have 2 x 2 tiles of 5 pixels, got 15 x 10 pixels"),
        ({"grid": [0, 2]}, "rows must be an integer of at least 1, got 0"),
        ({"tile": "5"}, "tile must be an integer of at least 1, got '5'"),
        ({"tile": 10**6}, "tile must be at most 4,096"),
        ({"train": [0, "1"]}, "must be a list of class indices, one for each tile, got"),
        ({"train": [0, 1] * 10}, "must have a sheet train_2 for its 20 labels, got none"),
        ({"train": [0, 3]}, "must be 0 to 2 for 3 class names, got 3"),
    ],
)
def test_invalid_sheets_are_rejected(changes, message, tmp_path):
    write(tmp_path, **changes)
    with pytest.raises(SightlineError, match=message):
        load(tmp_path)
