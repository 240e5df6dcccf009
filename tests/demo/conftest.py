import pytest

import glyph_run
from sightline.demo import characters


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """The folder of a small few-shot model of drawn alphabets."""
    return glyph_run.train(tmp_path_factory.mktemp("runs"), steps=30)


@pytest.fixture
def _fast_demo(monkeypatch):
    """Small images."""
    monkeypatch.setattr(characters, "SIDE", 28)
