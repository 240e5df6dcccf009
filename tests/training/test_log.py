import json
import sys

import pytest
from toy import Line

from sightline.training import loop
from sightline.training.config import TrainingConfig
from sightline.training.log import Log

SETTINGS = {"steps": 6, "batch_size": 6, "log_every": 2, "evaluate_every": 3, "device": "cpu"}


def train(folder, *, resume=False, quiet=False, **changes):
    return loop.train(Line, TrainingConfig(**{**SETTINGS, **changes}), folder, resume=resume, quiet=quiet)


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "events"))
    found.Reload()
    return {tag: [event.step for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_without_a_terminal_lines_say_where_training_is(tmp_path, capsys):
    train(tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("step 2/6  loss ")
    assert "  epoch 0.4  learning_rate " in lines[0]
    assert lines[0].endswith("s left")
    assert [line.split()[1] for line in lines[1:]] == ["3/6", "6/6"]
    assert all("validation loss" in line for line in lines[1:])
    assert "(best)" in lines[1]


def test_quiet_is_quiet_and_still_writes(tmp_path, capsys):
    train(tmp_path, quiet=True)
    assert capsys.readouterr() == ("", "")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], "loss" in line) for line in lines] == [
        (2, True),
        (3, False),
        (4, True),
        (6, True),
        (6, False),
    ]
    assert set(lines[0]) == {"step", "epoch", "loss", "learning_rate", "examples_per_second"}
    assert lines[1].keys() == {"step", "validation", "best"}


def test_lines_of_steps_that_will_come_again_are_dropped_and_torn_ones_too(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 2, "loss": 1}\n{"step": 4, "loss": 1}\n[1]\n{"step": 6, "loss": 1}\n{"step": 8, "lo')
    log = Log(tmp_path, 10, quiet=True)
    log.start(4)
    log.step(5, {"loss": 0.5})
    log.close()
    assert path.read_text() == '{"step": 2, "loss": 1}\n{"step": 4, "loss": 1}\n{"step": 5, "loss": 0.5}\n'


def test_tensorboard_has_what_the_log_has_and_nothing_twice(tmp_path):
    train(tmp_path, tensorboard=True, quiet=True)
    assert events(tmp_path)["loss"] == [2, 4, 6]
    assert events(tmp_path)["validation/loss"] == [3, 6]
    for path in (tmp_path / "checkpoints").glob("step-00000006.*"):
        path.unlink()
    train(tmp_path, tensorboard=True, quiet=True, resume=True)
    assert events(tmp_path)["loss"] == [2, 4, 6]
    assert events(tmp_path)["validation/loss"] == [3, 6]


def test_tensorboard_that_is_not_installed_is_asked_for_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"pip install 'sightline\[logs\]'"):
        train(tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()
