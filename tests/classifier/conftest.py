import pytest

import glyph_run
from sightline import FewShotClassifier


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """The folder of a small few-shot model of drawn alphabets."""
    return glyph_run.train(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def drawn():
    """Nine characters it has never seen, ten times each."""
    return glyph_run.characters(9)


@pytest.fixture(scope="session")
def fitted(run, drawn):
    """A classifier of five of them, of three images each. Not to be changed."""
    return FewShotClassifier.pretrained(run).fit({name: own[:3] for name, own in list(drawn.items())[:5]})
