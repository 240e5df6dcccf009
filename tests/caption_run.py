"""A captioning run on a few drawn scenes, trained for three steps."""

from pathlib import Path

import sightline
from sightline.data.captions import shapes
from sightline.data.captions.datasets import CaptionSplits

SMALL = {
    "task": "captioning",
    "data": {"max_tokens": 12},
    "model": {
        "backbone_channels": [5, 7, 11],
        "embed_dim": 16,
        "ffn_dim": 24,
        "num_heads": 2,
        "encoder_layers": 0,
        "decoder_layers": 2,
        "max_positions": 12,
    },
    "search": {"num_beams": 2},
    "training": {"steps": 3, "batch_size": 256, "evaluate_every": 3, "device": "cpu"},
}


def scenes() -> CaptionSplits:
    """The scenes that `train` uses."""
    return CaptionSplits(shapes.draw(37, seed=0), shapes.draw(7, seed=1), shapes.draw(11, seed=2))


def train(folder: Path) -> Path:
    """Train a run in this folder."""
    return sightline.train({**SMALL, "out": str(folder)}, data=scenes(), quiet=True).folder
