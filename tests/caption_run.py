"""Captioning runs on a few drawn scenes, trained for some steps."""

import json
from pathlib import Path

import torch
from PIL import Image

import sightline
from sightline import config
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


def write_photos() -> str:
    """Write 23 image files with captions to the working folder; 7 are the test set. Returns the file of captions."""
    images = shapes.draw(23, seed=0)
    Path("photos").mkdir()
    rows = []
    for i, (pixels, captions) in enumerate(zip(images.pixels, images.captions, strict=True)):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).resize((71, 53)).save(f"photos/{i}.png")
        split = "train" if i < 13 else "validation" if i < 16 else "test"
        rows.append({"image": f"{i}.png", "captions": captions, "split": split})
    Path("photos/captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return "photos/captions.jsonl"


def train_on_files(folder: Path, backbone: str, weights: Path) -> Path:
    """Train a run with an EfficientNet backbone on image files in the working folder, for one step.

    The backbone starts from the weights in a file.
    """
    changes = {
        "data.source": write_photos(),
        "data.image_size": 64,
        "data.weights": str(weights.absolute()),
        "model.backbone": backbone,
        "model.backbone_channels": None,
        "training.steps": 1,
        "out": str(folder),
    }
    torch.manual_seed(0)
    return sightline.train(config.assign(SMALL, changes), quiet=True).folder
