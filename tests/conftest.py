import pytest
import torch
from hypothesis import settings

from processes import CommandProcess

settings.register_profile("sightline", deadline=None, derandomize=True)
settings.load_profile("sightline")


@pytest.fixture(
    params=["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
)
def device(request):
    return request.param


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """An image classifier that has barely begun to learn, with something of everything there is to draw."""
    from sightline import train

    changes = ["patch_size=7", "embed_dim=16", "num_heads=2", "depth=3", "score=cosine", "mask=additive"]
    changes = [f"model.{change}" for change in changes] + [
        f"training.{change}"
        for change in ("steps=6", "batch_size=8", "learning_rate=0.01", "log_every=2", "evaluate_every=3", "device=cpu")
    ]
    return train(None, [*changes, f"out={tmp_path_factory.mktemp('runs') / 'tiny'}"], quiet=True).folder


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_process_outlives_its_test():
    yield
    CommandProcess.kill_all()
