"""Seconds to caption a photo in a warm process, with and without its maps, from file to text.

    python -m benchmarks.caption_speed [RUN] [--threads 2] [--photos 11]

RUN is a captioner (default: the pretrained model `caption`), which decodes with the beams of its config. The photos are
random JPEG files of two sizes. Each is captioned alone.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import sightline

from .clock import Samples, alternate, wall_seconds

SIZES = ((640, 480), (4000, 3000))
BLOCKS = 40
"""Random pixels along the width, which are enlarged to a photo."""


def write_photo(path: Path, size: tuple[int, int]) -> Path:
    """A JPEG file of a random image."""
    pixels = np.random.default_rng(0).integers(256, size=(BLOCKS * size[1] // size[0], BLOCKS, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(path)
    return path


def measure(predictor: Any, folder: Path, photos: int) -> dict[str, Samples]:
    """Seconds of each photo by size, without and with maps, after one that is not counted."""
    timers: dict[str, Callable[[], float]] = {}
    for width, height in SIZES:
        path = write_photo(folder / f"{width}.jpg", (width, height))
        for name, attention in (("caption", False), ("caption and maps", True)):
            predictor.predict(path, attention=attention)
            timers[f"{width} x {height}, {name}"] = lambda path=path, attention=attention: wall_seconds(
                lambda: predictor.predict(path, attention=attention)
            )
    return alternate(timers, photos)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", default="caption")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--photos", type=int, default=11)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    predictor: Any = sightline.load(arguments.run)
    beams, backbone = predictor.config.search.num_beams, predictor.config.model.backbone
    print(f"torch {torch.__version__}, CPU, {arguments.threads} threads; {backbone}, {beams} beams, seconds per photo")
    with tempfile.TemporaryDirectory() as folder:
        for name, seconds in measure(predictor, Path(folder), arguments.photos).items():
            low, high = seconds.quartiles
            print(f"{name:<32} {seconds.median:.3f}  (middle half {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
