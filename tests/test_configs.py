"""The configs of the project."""

from pathlib import Path

import pytest

from sightline.data.text.corpora import load_parallel
from sightline.run_config import resolve_config

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def test_there_are_configs():
    assert CONFIGS


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_is_valid_and_opens_with_its_command(path):
    resolve_config(path, [])
    comments = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert any(f"sightline train configs/{path.name}" in line for line in comments)


@pytest.mark.parametrize(("name", "example"), [("ko-en", "좋은 저녁입니다."), ("de-en-short", "guten abend")])
def test_the_example_of_a_config_is_not_in_its_training_phrases(name, example):
    path = ROOT / "configs" / f"{name}.yaml"
    task_config, _ = resolve_config(path, [])
    [phrases] = [load_parallel(ROOT / source).train for source in task_config.data.extra_sources]
    assert len(phrases) > 30
    assert phrases.num_dropped == 0
    assert example in path.read_text(encoding="utf-8")
    assert example.rstrip(".") not in [text.lower().rstrip(".!?") for text in phrases.source]
