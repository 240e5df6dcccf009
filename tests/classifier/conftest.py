import pytest

import glyph_run
from sightline import FewShotClassifier


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """The folder of a small few-shot run on drawn alphabets."""
    return glyph_run.train(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def drawn():
    """Ten images each of nine characters that the run was not trained on."""
    return glyph_run.characters(9)


@pytest.fixture(scope="session")
def fitted(run, drawn):
    """A classifier of five of these characters with three images each; tests must not change it."""
    return FewShotClassifier.pretrained(run).fit({name: images[:3] for name, images in list(drawn.items())[:5]})
