"""The recipes that come with the project."""

from pathlib import Path

import pytest

from sightline.data.text.corpora import load_parallel
from sightline.runs import _recipe

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_recipe_is_whole_and_opens_with_its_command(path):
    _recipe(path, [])
    head = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert any(f"sightline train configs/{path.name}" in line for line in head)


@pytest.mark.parametrize(("name", "shown"), [("ko-en", "좋은 저녁입니다."), ("de-en-short", "guten abend")])
def test_phrases_of_a_recipe_are_pairs_and_never_hold_what_it_shows(name, shown):
    recipe, _ = _recipe(CONFIGS[0].parent / f"{name}.yaml", [])
    (phrases,) = [load_parallel(CONFIGS[0].parent.parent / path).train for path in recipe.data.more]
    assert len(phrases) > 30
    assert phrases.num_dropped == 0
    assert shown in (CONFIGS[0].parent / f"{name}.yaml").read_text(encoding="utf-8")
    bare = [text.lower().rstrip(".!?") for text in phrases.source]
    assert shown.rstrip(".") not in bare


def test_there_are_recipes():
    assert CONFIGS
