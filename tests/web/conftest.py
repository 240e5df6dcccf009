import pytest

import sightline
from sightline.data.captions import shapes
from sightline.data.captions.datasets import CaptionSplits

TEXT_MODEL = ("model.embed_dim=16", "model.ffn_dim=24", "model.depth=2", "training.batch_size=64")
CAPTIONER = {
    "task": "captioning",
    "data": {"max_tokens": 12},
    "model": {"backbone_channels": [5, 7, 11], "embed_dim": 16, "ffn_dim": 24, "num_heads": 2, "max_positions": 12},
    "search": {"num_beams": 2},
    "training": {"steps": 2, "batch_size": 64, "evaluate_every": 2, "device": "cpu"},
}


@pytest.fixture(scope="session")
def web_runs(tmp_path_factory):
    """Models of masked words, of topics and of captions after two steps."""
    home = tmp_path_factory.mktemp("web-runs")
    training = ("training.steps=2", "training.evaluate_every=2", "training.device=cpu")
    for task, name in (("masked_lm", "sentences"), ("text_classification", "topics")):
        sightline.train(None, [f"task={task}", *TEXT_MODEL, *training, f"out={home / name}"], quiet=True)
    data = CaptionSplits(shapes.draw(37, seed=0), shapes.draw(7, seed=1), shapes.draw(11, seed=2))
    sightline.train({**CAPTIONER, "out": str(home / "shapes")}, data=data, quiet=True)
    return [home / name for name in ("sentences", "topics", "shapes")]
