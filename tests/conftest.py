import functools
from dataclasses import replace

import pytest
import torch
from hypothesis import settings

from processes import CommandProcess, write_images

settings.register_profile("sightline", deadline=None, derandomize=True)
settings.load_profile("sightline")


@pytest.fixture(
    params=["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
)
def device(request):
    return request.param


def drawn_once(draw):
    """Images are drawn for the first call with these arguments; every call returns a copy of them."""
    drawn = functools.lru_cache(maxsize=16, typed=True)(draw)

    @functools.wraps(draw)
    def copied(*arguments, **options):
        images = drawn(*arguments, **options)
        return replace(images, pixels=images.pixels.clone())

    return copied


@pytest.fixture(scope="session", autouse=True)
def _drawn_once():
    """The generated data sets take seconds to draw."""
    from sightline.data.captions import shapes
    from sightline.data.images import glyphs

    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((glyphs, "draw"), (glyphs, "draw_alphabets"), (shapes, "draw")):
            patch.setattr(module, name, drawn_once(getattr(module, name)))
        yield


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """An image classifier after six steps, with learned masks, positions and temperatures."""
    from sightline import train

    folder = tmp_path_factory.mktemp("tiny")
    model = ("patch_size=7", "embed_dim=16", "num_heads=2", "depth=3", "score=cosine", "mask=additive")
    training = ("steps=6", "batch_size=8", "learning_rate=0.01", "log_every=2", "evaluate_every=3", "device=cpu")
    changes = [f"model.{change}" for change in model] + [f"training.{change}" for change in training]
    changes += [f"data.source={write_images(folder / 'images.npz', side=28)}", "data.validation_fraction=0.13"]
    return train(None, [*changes, f"out={folder / 'run'}"], quiet=True).folder


@pytest.fixture(scope="session")
def browser_driver():
    """Playwright, of which a process can have one at a time."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_process_left():
    yield
    CommandProcess.kill_all()
