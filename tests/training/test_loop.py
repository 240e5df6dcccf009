import json
import math
import os
import random
import re
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from toy import COUNT, Line

from sightline.training import device, loop
from sightline.training.averaging import mean
from sightline.training.config import TrainingConfig

SETTINGS = {
    "steps": 11,
    "batch_size": 6,
    "log_every": 3,
    "evaluate_every": 4,
    "checkpoint_every": 2,
    "learning_rate": 0.02,
    "device": "cpu",
}


def train(folder, *, task=None, validation=7, resume=False, seed=0, **changes):
    """Train the line, or another task; the outcome, and its task."""
    made = []

    def make():
        made.append(task or Line(validation=validation))
        return made[0]

    settings = TrainingConfig(**{**SETTINGS, **changes})
    outcome = loop.train(make, settings, folder, resume=resume, seed=seed, quiet=True)
    return outcome, made[0]


def weights(folder):
    return load_file(folder / "model.safetensors")


def checkpoint(folder, step):
    return load_file(folder / f"checkpoints/step-{step:08}.safetensors")


def model_of(state, prefix="model."):
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def logged(folder, key="loss"):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line[key] for line in lines if key in line}


class Killed(BaseException):
    """Stands for SIGKILL: from then on this process does nothing to the disk any more."""


class Disk:
    """Counts what is done to the disk, and dies at the `fatal`-th time."""

    def __init__(self, patch, fatal=None):
        self.done, self.fatal = 0, fatal
        for home, name in ((Path, "write_bytes"), (os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir")):
            patch.setattr(home, name, self._counted(getattr(home, name), tears=name == "write_bytes"))

    def _counted(self, original, *, tears):
        def act(*args, **kwargs):
            self.done += 1
            if self.fatal is None or self.done < self.fatal:
                return original(*args, **kwargs)
            if tears and self.done == self.fatal:
                original(args[0], args[1][: random.Random(self.done).randrange(len(args[1]))])
            raise Killed

        return act


@pytest.mark.parametrize(
    ("changes", "every"),
    [({"ema": 0.7}, 1), ({"average_checkpoints": 3}, 3), ({"average_checkpoints": 3, "validation": 0, "steps": 11}, 3)],
    ids=["best", "best or mean", "mean"],
)
def test_a_run_broken_off_at_any_act_on_the_disk_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch, changes, every):
    changes = {"steps": 7, "evaluate_every": 3, **changes}
    monkeypatch.setattr(os, "fsync", lambda file: None)  # takes its time, and no machine loses power here
    whole = tmp_path / "whole"
    with monkeypatch.context() as patch:
        disk = Disk(patch)
        train(whole, **changes)
    assert disk.done > 70
    for fatal in range(1, disk.done + 1, every):
        folder = tmp_path / str(fatal)
        with monkeypatch.context() as patch:
            Disk(patch, fatal)
            with pytest.raises(Killed):
                train(folder, **changes)
        train(folder, resume=True, **changes)
        assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes(), fatal
        assert logged(folder) == logged(whole), fatal
        assert logged(folder, "validation") == logged(whole, "validation"), fatal
        assert not [path for path in folder.glob("checkpoints/*") if path.suffix == ".part"], fatal


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "muon"])
def test_a_run_broken_off_at_every_step_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch, optimizer):
    train(tmp_path / "whole", optimizer=optimizer)
    run = tmp_path / "run"
    kills = 0
    while kills < 9:  # a step or two further on each time
        with monkeypatch.context() as patch:
            patch.setattr(Line, "loss", dying(Line.loss, 4))
            try:
                train(run, resume=True, optimizer=optimizer)
                break
            except Killed:
                kills += 1
    assert kills == 4
    assert any("momentum_buffer" in name for name in checkpoint(run, 11)) == (optimizer == "muon")
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    assert logged(run) == logged(tmp_path / "whole")


def dying(loss, count):
    def last(*args):
        nonlocal count
        count -= 1
        if not count:
            raise Killed
        return loss(*args)

    return last


def test_the_same_seed_gives_the_same_losses_and_another_does_not(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        train(tmp_path / name, seed=seed)
    assert logged(tmp_path / "a") == logged(tmp_path / "b")
    assert logged(tmp_path / "a") != logged(tmp_path / "c")


def plain(steps, *, decay, clip=None, rate=0.02, kind=torch.optim.AdamW, task=None):
    """The same training written down without the loop, dropout aside; the weights after each step."""
    torch.manual_seed(0)
    task = task or Line()
    task.model[2].p = 0.0
    groups = [
        {"params": [p for p in task.model.parameters() if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in task.model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer, states = kind(groups, lr=rate), []
    for step in range(steps):
        rows = (torch.arange(6) + step * 6) % COUNT
        optimizer.zero_grad()
        (task.model(task.x[rows]) - task.y[rows]).square().sum().div(6).backward()
        if clip is not None:
            norm = torch.cat([p.grad.flatten() for p in task.model.parameters()]).norm()
            for parameter in task.model.parameters():
                parameter.grad *= min(1.0, clip / (float(norm) + 1e-6))
        optimizer.step()
        states.append({name: tensor.clone() for name, tensor in task.model.state_dict().items()})
    return states


def without_dropout(**options):
    task = Line(**options)
    task.model[2].p = 0.0
    return task


def fresh(seed=0, **options):
    """A task whose weights are those `train` would give it."""
    torch.manual_seed(seed)
    return without_dropout(**options)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"optimizer": "adamw", "weight_decay": 0.5, "clip": None}, {"decay": 0.5}),
        ({"optimizer": "adam", "weight_decay": 0.1, "clip": None}, {"decay": 0.1, "kind": torch.optim.Adam}),
        ({"optimizer": "adamw", "weight_decay": 0.5, "clip": 0.05}, {"decay": 0.5, "clip": 0.05}),
    ],
    ids=["decay on matrices alone", "adam", "clipping"],
)
def test_a_step_is_the_plain_one(tmp_path, changes, rule):
    train(tmp_path, task=fresh(validation=0), schedule="constant", **changes)
    torch.testing.assert_close(weights(tmp_path), plain(11, **rule)[-1])


def test_pieces_give_the_update_of_the_whole_batch(tmp_path):
    for pieces in (1, 2, 3, 6):
        train(tmp_path / str(pieces), task=fresh(), gradient_accumulation_steps=pieces)
        torch.testing.assert_close(weights(tmp_path / str(pieces)), weights(tmp_path / "1"))
        assert logged(tmp_path / str(pieces)) == pytest.approx(logged(tmp_path / "1"), rel=1e-6)


def test_logged_losses_are_the_means_of_their_windows(tmp_path):
    train(tmp_path / "every", task=fresh(), log_every=1)
    every = logged(tmp_path / "every")
    train(tmp_path / "third", task=fresh(), log_every=3)
    means = {last: sum(every[step] for step in steps) / len(steps) for last, steps in windows().items()}
    assert logged(tmp_path / "third") == pytest.approx(means)


def windows():
    return {3: (1, 2, 3), 6: (4, 5, 6), 9: (7, 8, 9), 11: (10, 11)}


def test_the_learning_rate_is_that_of_the_schedule(tmp_path):
    train(tmp_path, schedule="cosine", warmup=3, min_temperature=0.1, log_every=1)
    rates = logged(tmp_path, "learning_rate")
    assert rates[1] == pytest.approx(0.02 / 3)
    assert rates[3] == rates[4] == pytest.approx(0.02)
    assert rates[11] == pytest.approx(0.02 * (0.1 + 0.9 * (0.5 + 0.5 * math.cos(math.pi * 7 / 8))))


def test_the_running_mean_is_the_one_written_down(tmp_path):
    torch.manual_seed(0)
    start = without_dropout().model.state_dict()
    task = fresh(validation=0)
    train(tmp_path, task=task, ema=0.7, schedule="constant", weight_decay=0.5, clip=None)
    average = {name: tensor.clone() for name, tensor in start.items()}
    for step, state in enumerate(plain(11, decay=0.5), start=1):
        kept = min(0.7, step / (step + 10))
        average = {name: kept * average[name] + (1 - kept) * state[name] for name in average}
    torch.testing.assert_close(weights(tmp_path), average)


def test_the_mean_of_the_last_checkpoints_is_theirs(tmp_path):
    outcome, _ = train(tmp_path, task=fresh(validation=0), average_checkpoints=3)
    states = [model_of(checkpoint(tmp_path, step)) for step in (8, 10, 11)]
    expected = {name: sum(state[name] for state in states) / 3 for name in states[0]}
    torch.testing.assert_close(weights(tmp_path), expected)
    torch.testing.assert_close(weights(tmp_path), mean(states))
    assert outcome.metrics == {}


def test_a_torn_checkpoint_among_the_last_is_told_of_and_left_out_of_the_mean(tmp_path, capsys):
    run, changes = tmp_path / "run", {"average_checkpoints": 3}
    train(run, validation=0, **changes)
    (run / "checkpoints/step-00000008.safetensors").write_bytes(b"torn")
    settings = TrainingConfig(**{**SETTINGS, **changes})
    loop.train(lambda: Line(validation=0), settings, run, resume=True)
    assert "step-00000008 is torn or corrupt and was passed over" in capsys.readouterr().err
    torch.testing.assert_close(weights(run), mean([model_of(checkpoint(run, step)) for step in (10, 11)]))


class Judged(Line):
    """A task whose validation losses are given."""

    def __init__(self, values):
        super().__init__()
        self.values = list(values)

    def evaluate(self, model, part):
        self.seen = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        return {"loss": torch.tensor(self.values.pop(0)), "count": torch.tensor(1)}


def test_the_best_weights_are_kept_and_not_the_last(tmp_path):
    outcome, _ = train(tmp_path, task=Judged([3.0, 1.0, 2.0]), checkpoint_every=1, keep=20)
    assert outcome.metrics == {"loss": 1.0}
    torch.testing.assert_close(weights(tmp_path), model_of(checkpoint(tmp_path, 8)))
    assert weights(tmp_path)["0.weight"].ne(model_of(checkpoint(tmp_path, 11))["0.weight"]).any()


@pytest.mark.parametrize("rising", [False, True])
@pytest.mark.parametrize(("mean_s", "wins"), [(1.0, True), (0.5, True), (2.5, False), (math.nan, False)])
def test_of_the_mean_and_the_best_the_better_is_kept_and_told(tmp_path, capsys, rising, mean_s, wins):
    sign = -1 if rising else 1
    task = Judged(sign * value for value in (3.0, 1.0, 2.0, mean_s))
    task.rising = rising
    settings = TrainingConfig(**{**SETTINGS, "average_checkpoints": 3, "checkpoint_every": 1, "keep": 20})
    outcome = loop.train(lambda: task, settings, tmp_path)
    average = mean([model_of(checkpoint(tmp_path, step)) for step in (9, 10, 11)])
    torch.testing.assert_close(task.seen, average)  # judged last
    torch.testing.assert_close(weights(tmp_path), average if wins else model_of(checkpoint(tmp_path, 8)))
    assert outcome.metrics == {"loss": sign * (mean_s if wins else 1.0)}
    told = [
        f"the mean of the last 3 checkpoints, validation loss {sign * mean_s:.4g}",
        f"the best of one step, 8, validation loss {sign * 1.0:.4g}",
    ]
    assert "kept {}; not {}\n".format(*(told if wins else reversed(told))) in capsys.readouterr().err
    task.values.append(sign * mean_s)
    loop.train(lambda: task, settings, tmp_path, resume=True, quiet=True)  # there is nothing left to do but this
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["best"] for line in lines if "average" in line] == [wins]
    assert lines[-1]["step"] == 11


@pytest.mark.parametrize("rising", [False, True])
def test_a_metric_that_is_no_number_is_never_the_best(tmp_path, rising):
    task = Judged([math.nan, 2.0, math.nan])
    task.rising = rising
    outcome, _ = train(tmp_path / "some", task=task, checkpoint_every=1, keep=20)
    assert outcome.metrics == {"loss": 2.0}
    torch.testing.assert_close(weights(tmp_path / "some"), model_of(checkpoint(tmp_path / "some", 8)))
    train(tmp_path / "none", task=Judged([math.nan, math.inf, -math.inf, 0.0]))
    torch.testing.assert_close(weights(tmp_path / "none"), model_of(checkpoint(tmp_path / "none", 11)))


def test_without_a_validation_set_the_last_weights_are_kept(tmp_path):
    outcome, _ = train(tmp_path, task=Line(validation=0))
    assert outcome.metrics == {}
    torch.testing.assert_close(weights(tmp_path), model_of(checkpoint(tmp_path, 11)))


def test_a_rising_goal_keeps_the_highest(tmp_path):
    task = Judged([3.0, 1.0, 2.0])
    task.rising = True
    outcome, _ = train(tmp_path, task=task)
    assert outcome.metrics == {"loss": 3.0}


def test_training_stops_after_so_many_evaluations_without_a_better_one(tmp_path):
    values = [5.0, 4.0, 4.5, 4.0, 9.0]
    outcome, _ = train(tmp_path, task=Judged(values), patience=2, evaluate_every=2, checkpoint_every=5)
    assert outcome.steps == 8
    assert outcome.metrics == {"loss": 4.0}
    outcome, task = train(tmp_path, task=Judged([]), patience=2, evaluate_every=2, checkpoint_every=5, resume=True)
    assert (outcome.steps, task.losses) == (8, 0)


@pytest.mark.parametrize("log_every", [1, 50])
def test_a_loss_that_is_no_number_stops_before_anything_is_kept(tmp_path, log_every):
    """Whether or not a line was to be logged before the next checkpoint."""
    changes = {"log_every": log_every, "evaluate_every": 2}
    with pytest.raises(ValueError, match=r"loss must be finite, got nan at step \d+; lower training.learning_rate"):
        train(tmp_path, task=Line(spoil=6), **changes)
    for path in tmp_path.rglob("*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(path).values()), path
    train(tmp_path, resume=True, **changes)
    train(tmp_path / "whole", **changes)
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_weights_that_are_no_numbers_are_not_kept_though_the_loss_was_one(tmp_path):
    task = Line()
    task.model[3].bias.register_hook(lambda gradient: gradient * (math.nan if task.losses == 6 else 1))
    with pytest.raises(ValueError, match="loss must be finite, got nan at step 6"):
        train(tmp_path, task=task, clip=None, log_every=50)
    assert [path.name for path in sorted(tmp_path.glob("checkpoints/*.json"))] == [
        "step-00000002.json",
        "step-00000004.json",
    ]


def test_half_precision_runs_on_a_cpu_and_keeps_weights_whole(tmp_path):
    train(tmp_path / "half", task=fresh(), precision="bfloat16")
    train(tmp_path / "full", task=fresh(), precision="float32")
    train(tmp_path / "auto", task=fresh(), precision="auto")
    assert {tensor.dtype for tensor in weights(tmp_path / "half").values()} == {torch.float32}
    assert logged(tmp_path / "half") == pytest.approx(logged(tmp_path / "full"), rel=0.05)
    assert logged(tmp_path / "half") != logged(tmp_path / "full")
    assert logged(tmp_path / "auto") == logged(tmp_path / "full")


def test_only_so_many_checkpoints_are_kept(tmp_path):
    train(tmp_path, keep=3)
    kept = [path.name for path in sorted((tmp_path / "checkpoints").glob("step-*.json"))]
    assert kept == ["step-00000008.json", "step-00000010.json", "step-00000011.json"]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3 * 2 + len(bests(tmp_path))


def bests(folder):
    records = [json.loads(path.read_text()) for path in (folder / "checkpoints").glob("step-*.json")]
    return {record["facts"]["best"]["file"] for record in records}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"gradient_accumulation_steps": 4},
            "batch_size must be a multiple of processes times gradient_accumulation_steps, 1 x 4, got 6",
        ),
        ({"device": "cuda:99"}, "device must be one that is here"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        train(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_the_speed_is_that_of_learning_alone(tmp_path):
    class Slow(Line):
        def evaluate(self, model, part):
            time.sleep(0.3)
            return super().evaluate(model, part)

    train(tmp_path, task=Slow(), log_every=3, evaluate_every=2)
    assert min(logged(tmp_path, "examples_per_second").values()) > 3 * 6 / 0.3


def test_epochs_are_rounds_through_the_data(tmp_path):
    outcome, _ = train(tmp_path, steps=None, epochs=1.5, batch_size=6)
    assert outcome.steps == round(1.5 * COUNT / 6)


def test_frozen_parameters_stay(tmp_path):
    task = fresh()
    task.model[0].weight.requires_grad_(False)
    before = task.model[0].weight.clone()
    train(tmp_path, task=task, weight_decay=0.5)
    torch.testing.assert_close(weights(tmp_path)["0.weight"], before, rtol=0, atol=0)


def test_compiled_or_not_the_weights_have_their_names(tmp_path, monkeypatch):
    """torch.compile itself is torch's: here its wrapper must not show in what is saved."""
    asked = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: asked.append(model) or nn.Sequential(model))
    train(tmp_path / "plain", task=fresh(), compile=True)
    assert not asked  # on a CPU it would take minutes
    monkeypatch.setattr(device, "worth_compiling", lambda place: True)
    train(tmp_path, task=fresh(), compile=True)
    assert asked
    assert set(weights(tmp_path)) == set(Line().model.state_dict())
