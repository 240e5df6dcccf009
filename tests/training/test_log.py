import json
import sys
from types import SimpleNamespace

import pytest

from sightline.errors import MissingDependencyError
from sightline.training.hooks import MetricsFile, TerminalProgress
from toy_task import ToyTask
from toy_task import train as train_toy

CONFIG = {"steps": 6, "log_every": 2, "evaluate_every": 3, "checkpoint_every": 3}


def train(folder, **changes):
    return train_toy(folder, **{**CONFIG, **changes})


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "events"))
    accumulator.Reload()
    return {tag: [event.step for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_progress_without_a_terminal_is_printed_as_lines(tmp_path, capsys):
    train(tmp_path, hooks=[TerminalProgress()])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("step 2/6  loss ")
    assert "  epoch 0.4  learning_rate " in lines[0]
    assert lines[0].endswith("s left")
    assert not lines[-1].endswith("s left")
    assert [line.split()[1] for line in lines[1:]] == ["3/6", "6/6"]
    assert all("validation loss" in line for line in lines[1:])
    assert "(best)" in lines[1]


def test_best_is_said_only_if_the_metric_improved(tmp_path, capsys):
    class Constant(ToyTask):
        def metrics(self, sums):
            return {"loss": 1.0}

    train(tmp_path, task=Constant(), hooks=[TerminalProgress()])
    lines = [line for line in capsys.readouterr().err.splitlines() if "validation" in line]
    assert ["(best)" in line for line in lines] == [True, False]
    assert lines[1].endswith("(equal to the best)")


def test_quiet_training_writes_the_log_only(tmp_path, capsys):
    train(tmp_path)
    assert capsys.readouterr() == ("", "")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    steps = [(line["step"], "loss" in line) for line in lines]
    assert steps == [(2, True), (3, False), (4, True), (6, True), (6, False), (6, False)]
    assert set(lines[0]) == {"step", "epoch", "loss", "learning_rate", "examples_per_second"}
    assert lines[1].keys() == {"step", "validation", "best"}
    final = min((line["validation"] for line in lines if "validation" in line), key=lambda metrics: metrics["loss"])
    assert lines[-1].pop("seconds") > 0
    assert lines[-1] == {"step": 6, "final": final, "stop_reason": None, "calibration": ""}


def test_later_and_damaged_lines_are_dropped_on_resume(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 2, "loss": 1}\n{"step": 4, "loss": 1}\n[1]\n{"step": 6, "loss": 1}\n{"step": 8, "lo')
    trainer, log = SimpleNamespace(folder=tmp_path, step=4), MetricsFile()
    log.on_start(trainer)
    trainer.step = 5
    log.on_log(trainer, {"loss": 0.5})
    assert path.read_text() == '{"step": 2, "loss": 1}\n{"step": 4, "loss": 1}\n{"step": 5, "loss": 0.5}\n'


def test_tensorboard_events_equal_the_log_after_a_resume(tmp_path):
    train(tmp_path, tensorboard=True)
    for path in (tmp_path / "checkpoints").glob("step-00000006.*"):
        path.unlink()
    train(tmp_path, tensorboard=True, resume=True)
    assert events(tmp_path)["loss"] == [2, 4, 6]
    assert events(tmp_path)["validation/loss"] == [3, 6]


def test_missing_tensorboard_is_reported_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'sightline\[logs\]'"):
        train(tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()
