import pytest

import sightline


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """The folder of a run that is trained for 4 steps on the glyphs."""
    folder = tmp_path_factory.mktemp("few-shot") / "run"
    changes = (
        "task=few_shot",
        f"out={folder}",
        "model.backbone_channels=[4,4,4,8]",
        "model.num_heads=2",
        "episode.way=3",
        "auxiliary_loss_weight=0.5",
        "evaluation.settings=[3w1s,5w2s]",
        "evaluation.query=3",
        "evaluation.episodes=20",
        "evaluation.selection_episodes=10",
        "training.steps=4",
        "training.evaluate_every=2",
        "training.device=cpu",
    )
    sightline.train(None, changes, quiet=True)
    return folder
