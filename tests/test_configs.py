"""The recipes that come with the project."""

from pathlib import Path

import pytest

from sightline.runs import _recipe

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_recipe_is_whole_and_opens_with_its_command(path):
    _recipe(path, [])
    head = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert any(f"sightline train configs/{path.name}" in line for line in head)


def test_there_are_recipes():
    assert CONFIGS
