import json
import math
import os
import random
import re
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from sightline.training import device, loop
from sightline.training.averaging import average_states
from sightline.training.checkpoint import _with_digest
from sightline.training.config import TrainingConfig
from sightline.training.distributed import ProcessGroup
from sightline.training.hooks import TerminalProgress
from sightline.training.loop import Trainer
from toy_task import CONFIG, COUNT, ToyTask, logged, train, weights


def checkpoint(folder, step):
    return load_file(folder / f"checkpoints/step-{step:08}.safetensors")


def model_state(tensors, prefix="model."):
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


class Killed(BaseException):
    """Stands for SIGKILL: nothing is written to the disk from then on."""


class DiskFailure:
    """Counts the operations on the disk and raises `Killed` from the `fatal`-th on."""

    def __init__(self, patch, fatal=None):
        self.operations, self.fatal = 0, fatal
        for owner, name in ((Path, "write_bytes"), (os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir")):
            patch.setattr(owner, name, self._counted(getattr(owner, name), writes=name == "write_bytes"))

    def _counted(self, original, *, writes):
        def operation(*args, **kwargs):
            self.operations += 1
            if self.fatal is None or self.operations < self.fatal:
                return original(*args, **kwargs)
            if writes and self.operations == self.fatal:
                original(args[0], args[1][: random.Random(self.operations).randrange(len(args[1]))])
            raise Killed

        return operation


@pytest.mark.parametrize(
    ("changes", "every"),
    [
        ({"ema_decay": 0.7}, 1),
        ({"average_checkpoints": 3}, 3),
        ({"average_checkpoints": 3, "validation": 0, "steps": 11}, 3),
    ],
    ids=["best", "best or average", "average"],
)
def test_run_killed_at_any_disk_operation_resumes_exactly(tmp_path, monkeypatch, changes, every):
    changes = {"steps": 7, "evaluate_every": 3, **changes}
    monkeypatch.setattr(os, "fsync", lambda file: None)  # slow, and only needed against power failures
    whole = tmp_path / "whole"
    with monkeypatch.context() as patch:
        disk = DiskFailure(patch)
        train(whole, **changes)
    assert disk.operations > 70
    for fatal in range(1, disk.operations + 1, every):
        folder = tmp_path / str(fatal)
        with monkeypatch.context() as patch:
            DiskFailure(patch, fatal)
            with pytest.raises(Killed):
                train(folder, **changes)
        train(folder, resume=True, **changes)
        assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes(), fatal
        assert logged(folder) == logged(whole), fatal
        assert logged(folder, "validation") == logged(whole, "validation"), fatal
        assert not [path for path in folder.glob("checkpoints/*") if path.suffix == ".part"], fatal


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "muon"])
def test_run_killed_at_every_step_resumes_exactly(tmp_path, monkeypatch, optimizer):
    train(tmp_path / "whole", optimizer=optimizer)
    run = tmp_path / "run"
    kills = 0
    while kills < 9:  # a step or two further each time
        with monkeypatch.context() as patch:
            patch.setattr(ToyTask, "loss", killed_at_call(ToyTask.loss, 4))
            try:
                train(run, resume=True, optimizer=optimizer)
                break
            except Killed:
                kills += 1
    assert kills == 4
    assert any("momentum_buffer" in name for name in checkpoint(run, 11)) == (optimizer == "muon")
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    assert logged(run) == logged(tmp_path / "whole")


def killed_at_call(loss, count):
    def counted(*args):
        nonlocal count
        count -= 1
        if not count:
            raise Killed
        return loss(*args)

    return counted


def test_losses_depend_on_the_seed_only(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        train(tmp_path / name, seed=seed)
    assert logged(tmp_path / "a") == logged(tmp_path / "b")
    assert logged(tmp_path / "a") != logged(tmp_path / "c")


def reference_states(steps, *, weight_decay, max_grad_norm=None, kind=torch.optim.AdamW):
    """Train without the loop and without dropout; return the weights after each step."""
    task = without_dropout()
    groups = [
        {"params": [p for p in task.model.parameters() if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in task.model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer, states = kind(groups, lr=0.02), []
    for step in range(steps):
        indices = (torch.arange(6) + step * 6) % COUNT
        optimizer.zero_grad()
        (task.model(task.x[indices]) - task.y[indices]).square().sum().div(6).backward()
        if max_grad_norm is not None:
            norm = torch.cat([p.grad.flatten() for p in task.model.parameters()]).norm()
            for parameter in task.model.parameters():
                parameter.grad *= min(1.0, max_grad_norm / (float(norm) + 1e-6))
        optimizer.step()
        states.append({name: tensor.clone() for name, tensor in task.model.state_dict().items()})
    return states


def without_dropout(**options):
    """A task with the weights of seed 0."""
    torch.manual_seed(0)
    task = ToyTask(**options)
    task.model[2].p = 0.0
    return task


@pytest.mark.parametrize(
    ("changes", "reference"),
    [
        ({"weight_decay": 0.5, "max_grad_norm": None}, {"weight_decay": 0.5}),
        (
            {"optimizer": "adam", "weight_decay": 0.1, "max_grad_norm": None},
            {"weight_decay": 0.1, "kind": torch.optim.Adam},
        ),
        ({"weight_decay": 0.5, "max_grad_norm": 0.05}, {"weight_decay": 0.5, "max_grad_norm": 0.05}),
    ],
    ids=["weight decay on matrices", "adam", "gradient clipping"],
)
def test_steps_match_the_reference(tmp_path, changes, reference):
    train(tmp_path, task=without_dropout(validation=0), schedule="constant", **changes)
    torch.testing.assert_close(weights(tmp_path), reference_states(11, **reference)[-1])


def test_the_backbone_has_its_own_learning_rate(tmp_path):
    task = without_dropout(validation=0)
    first, *others = task.model
    task.model = nn.Sequential(OrderedDict(backbone=first, head=nn.Sequential(*others)))
    before = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
    train(tmp_path, task=task, schedule="constant", backbone_lr_ratio=1e-9)
    after = weights(tmp_path)
    torch.testing.assert_close(after["backbone.weight"], before["backbone.weight"])
    assert (after["head.2.weight"] - before["head.2.weight"]).abs().max() > 1e-3


def test_gradient_accumulation_gives_the_update_of_the_whole_batch(tmp_path):
    for count in (1, 2, 3, 6):
        train(tmp_path / str(count), task=without_dropout(), gradient_accumulation_steps=count)
        torch.testing.assert_close(weights(tmp_path / str(count)), weights(tmp_path / "1"))
        assert logged(tmp_path / str(count)) == pytest.approx(logged(tmp_path / "1"), rel=1e-6)


def test_logged_loss_is_the_mean_since_the_last_log(tmp_path):
    train(tmp_path / "1", task=without_dropout(), log_every=1)
    train(tmp_path / "3", task=without_dropout(), log_every=3)
    every = logged(tmp_path / "1")
    windows = {3: (1, 2, 3), 6: (4, 5, 6), 9: (7, 8, 9), 11: (10, 11)}
    means = {last: sum(every[step] for step in steps) / len(steps) for last, steps in windows.items()}
    assert logged(tmp_path / "3") == pytest.approx(means)


def test_learning_rate_follows_the_schedule(tmp_path):
    train(tmp_path, schedule="cosine", warmup_steps=3, min_lr_ratio=0.1, log_every=1)
    rates = logged(tmp_path, "learning_rate")
    assert rates[1] == pytest.approx(0.02 / 3)
    assert rates[3] == rates[4] == pytest.approx(0.02)
    assert rates[11] == pytest.approx(0.02 * (0.1 + 0.9 * (0.5 + 0.5 * math.cos(math.pi * 7 / 8))))


def test_ema_matches_the_reference(tmp_path):
    average = {name: tensor.clone() for name, tensor in without_dropout().model.state_dict().items()}
    task = without_dropout(validation=0)
    train(tmp_path, task=task, ema_decay=0.7, schedule="constant", weight_decay=0.5, max_grad_norm=None)
    for step, state in enumerate(reference_states(11, weight_decay=0.5), start=1):
        decay = min(0.7, step / (step + 10))
        average = {name: decay * average[name] + (1 - decay) * state[name] for name in average}
    torch.testing.assert_close(weights(tmp_path), average)


def test_last_checkpoints_are_averaged(tmp_path):
    result, _ = train(tmp_path, task=without_dropout(validation=0), average_checkpoints=3)
    states = [model_state(checkpoint(tmp_path, step)) for step in (8, 10, 11)]
    expected = {name: sum(state[name] for state in states) / 3 for name in states[0]}
    torch.testing.assert_close(weights(tmp_path), expected)
    torch.testing.assert_close(weights(tmp_path), average_states(states))
    assert result.metrics == {}


def test_damaged_checkpoint_is_reported_and_left_out_of_the_average(tmp_path, capsys):
    train(tmp_path, validation=0, average_checkpoints=3)
    (tmp_path / "checkpoints/step-00000008.safetensors").write_bytes(b"damaged")
    train(tmp_path, validation=0, average_checkpoints=3, resume=True, hooks=[TerminalProgress()])
    assert "step-00000008 is damaged and was skipped" in capsys.readouterr().err
    states = [model_state(checkpoint(tmp_path, step)) for step in (10, 11)]
    torch.testing.assert_close(weights(tmp_path), average_states(states))


class GivenLosses(ToyTask):
    """A task with given validation losses."""

    def __init__(self, values, *, higher_is_better=False):
        super().__init__()
        self.values, self.higher_is_better = list(values), higher_is_better

    def evaluate(self, model, batch_slice):
        self.evaluated = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        return {"loss": torch.tensor(self.values.pop(0)), "count": torch.tensor(1)}


def test_best_weights_are_kept(tmp_path):
    result, _ = train(tmp_path, task=GivenLosses([3.0, 1.0, 2.0]), checkpoint_every=1, keep_checkpoints=20)
    assert result.metrics == {"loss": 1.0}
    torch.testing.assert_close(weights(tmp_path), model_state(checkpoint(tmp_path, 8)))
    assert weights(tmp_path)["0.weight"].ne(model_state(checkpoint(tmp_path, 11))["0.weight"]).any()


def test_highest_value_is_kept_if_higher_is_better(tmp_path):
    result, _ = train(tmp_path, task=GivenLosses([3.0, 1.0, 2.0], higher_is_better=True))
    assert result.metrics == {"loss": 3.0}


@pytest.mark.parametrize("higher_is_better", [False, True])
@pytest.mark.parametrize(("average_loss", "wins"), [(1.0, True), (0.5, True), (2.5, False), (math.nan, False)])
def test_better_of_average_and_best_is_kept_and_reported(tmp_path, capsys, higher_is_better, average_loss, wins):
    sign = -1 if higher_is_better else 1
    losses = [sign * value for value in (3.0, 1.0, 2.0, average_loss)]
    task = GivenLosses(losses, higher_is_better=higher_is_better)
    changes = {"average_checkpoints": 3, "checkpoint_every": 1, "keep_checkpoints": 20}
    result, _ = train(tmp_path, task=task, hooks=[TerminalProgress()], **changes)
    average = average_states([model_state(checkpoint(tmp_path, step)) for step in (9, 10, 11)])
    torch.testing.assert_close(task.evaluated, average)  # the last evaluation
    torch.testing.assert_close(weights(tmp_path), average if wins else model_state(checkpoint(tmp_path, 8)))
    assert result.metrics == {"loss": sign * (average_loss if wins else 1.0)}
    names = [
        f"the average of the last 3 checkpoints (validation loss {sign * average_loss:.4g})",
        f"the best weights, of step 8 (validation loss {sign * 1.0:.4g})",
    ]
    assert "kept {} over {}\n".format(*(names if wins else reversed(names))) in capsys.readouterr().err
    task.values.append(sign * average_loss)
    train(tmp_path, task=task, resume=True, **changes)  # only the average is left to do
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["best"] for line in lines if "average" in line] == [wins]
    assert lines[-1]["step"] == 11


@pytest.mark.parametrize("higher_is_better", [False, True])
def test_metric_that_is_not_finite_is_never_the_best(tmp_path, higher_is_better):
    task = GivenLosses([math.nan, 2.0, math.nan], higher_is_better=higher_is_better)
    result, _ = train(tmp_path / "some", task=task, checkpoint_every=1, keep_checkpoints=20)
    assert result.metrics == {"loss": 2.0}
    torch.testing.assert_close(weights(tmp_path / "some"), model_state(checkpoint(tmp_path / "some", 8)))
    train(tmp_path / "none", task=GivenLosses([math.nan, math.inf, -math.inf, 0.0]))
    torch.testing.assert_close(weights(tmp_path / "none"), model_state(checkpoint(tmp_path / "none", 11)))


def test_last_weights_are_kept_without_a_validation_set(tmp_path):
    result, _ = train(tmp_path, task=ToyTask(validation=0))
    assert result.metrics == {}
    torch.testing.assert_close(weights(tmp_path), model_state(checkpoint(tmp_path, 11)))


def test_early_stopping_after_evaluations_without_improvement(tmp_path):
    changes = {"early_stopping_patience": 2, "evaluate_every": 2, "checkpoint_every": 5}
    result, _ = train(tmp_path, task=GivenLosses([5.0, 4.0, 4.5, 4.0, 9.0]), **changes)
    assert (result.steps, result.stop_reason) == (8, "no improvement in 2 evaluations")
    assert result.metrics == {"loss": 4.0}
    result, task = train(tmp_path, task=GivenLosses([]), resume=True, **changes)
    assert (result.steps, task.loss_calls) == (8, 0)


@pytest.mark.parametrize("log_every", [1, 50])
def test_nan_loss_raises_before_anything_is_saved(tmp_path, log_every):
    """Whether or not a line is logged before the next checkpoint."""
    changes = {"log_every": log_every, "evaluate_every": 2}
    message = (
        r"loss must be finite, got nan at step \d+; checkpoints are intact: .* --resume training\.learning_rate=0\.0067"
    )
    with pytest.raises(ValueError, match=message):
        train(tmp_path, task=ToyTask(nan_step=6), **changes)
    for path in tmp_path.rglob("*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(path).values()), path
    train(tmp_path, resume=True, **changes)
    train(tmp_path / "whole", **changes)
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_nan_weights_are_not_saved_if_the_loss_is_finite(tmp_path):
    task = ToyTask()
    task.model[3].bias.register_hook(lambda gradient: gradient * (math.nan if task.loss_calls == 6 else 1))
    with pytest.raises(ValueError, match="loss must be finite, got nan at step 6"):
        train(tmp_path, task=task, max_grad_norm=None, log_every=50)
    assert [path.name for path in sorted(tmp_path.glob("checkpoints/*.json"))] == [
        "step-00000002.json",
        "step-00000004.json",
    ]


def test_bfloat16_on_cpu_keeps_float32_weights(tmp_path):
    for precision in ("bfloat16", "float32", "auto"):
        train(tmp_path / precision, task=without_dropout(), precision=precision)
    assert {tensor.dtype for tensor in weights(tmp_path / "bfloat16").values()} == {torch.float32}
    assert logged(tmp_path / "bfloat16") == pytest.approx(logged(tmp_path / "float32"), rel=0.05)
    assert logged(tmp_path / "bfloat16") != logged(tmp_path / "float32")
    assert logged(tmp_path / "auto") == logged(tmp_path / "float32")


def test_old_checkpoints_are_removed(tmp_path):
    train(tmp_path, keep_checkpoints=3)
    records = sorted((tmp_path / "checkpoints").glob("step-*.json"))
    assert [path.name for path in records] == ["step-00000008.json", "step-00000010.json", "step-00000011.json"]
    best = {json.loads(path.read_text())["metadata"]["best"]["file"] for path in records}
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3 * 2 + len(best)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"gradient_accumulation_steps": 4},
            "batch_size must be a multiple of processes times gradient_accumulation_steps, 1 x 4, got 6",
        ),
        ({"device": "cuda:99"}, "device must be one of 2 CUDA devices, got 'cuda:99'"),
    ],
)
def test_invalid_config_is_refused_before_anything_is_written(tmp_path, monkeypatch, changes, message):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=re.escape(message)):
        train(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_cuda_is_refused_without_a_cuda_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match=r"device must be cpu, got 'cuda': this machine has no CUDA device; use --dev"):
        device.choose_device("cuda")


def test_logged_speed_excludes_evaluation(tmp_path, monkeypatch):
    now = 0.0

    def perf_counter():
        nonlocal now
        now += 1  # every look at the clock takes a second
        return now

    class SlowEvaluation(ToyTask):
        def evaluate(self, model, batch_slice):
            nonlocal now
            now += 1000
            return super().evaluate(model, batch_slice)

    monkeypatch.setattr(loop.time, "perf_counter", perf_counter)
    train(tmp_path, task=SlowEvaluation(), log_every=3, evaluate_every=2)
    assert min(logged(tmp_path, "examples_per_second").values()) > 3 * 6 / 100


def test_epochs_are_converted_to_steps(tmp_path):
    result, _ = train(tmp_path, steps=None, epochs=1.5, batch_size=6)
    assert result.steps == round(1.5 * COUNT / 6)


def test_frozen_parameters_do_not_change(tmp_path):
    task = without_dropout()
    task.model[0].weight.requires_grad_(False)
    before = task.model[0].weight.clone()
    train(tmp_path, task=task, weight_decay=0.5)
    torch.testing.assert_close(weights(tmp_path)["0.weight"], before, rtol=0, atol=0)


def test_compiled_model_saves_plain_parameter_names(tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: compiled.append(model) or nn.Sequential(model))
    train(tmp_path / "plain", task=without_dropout(), compile=True)
    assert not compiled  # a CPU does not compile
    monkeypatch.setattr(device, "supports_compile", lambda device: True)
    train(tmp_path, task=without_dropout(), compile=True)
    assert compiled
    assert set(weights(tmp_path)) == set(ToyTask().model.state_dict())


class WiderTask(ToyTask):
    def __init__(self):
        super().__init__()
        self.model[3] = nn.Linear(5, 3)


def test_checkpoint_of_another_config_is_refused(tmp_path):
    train(tmp_path, config_digest="a")
    message = r"a checkpoint must have the config of the run, got another one in step 11 .* out=FOLDER"
    with pytest.raises(ValueError, match=message):
        train(tmp_path, resume=True, config_digest="b")


@pytest.mark.parametrize("key", ["best", "evaluations_without_improvement", "loss_sum"])
def test_checkpoint_without_a_part_of_its_metadata_is_refused(tmp_path, key):
    train(tmp_path)
    path = tmp_path / "checkpoints/step-00000011.json"
    record = json.loads(path.read_bytes())
    del record["digest"], record["metadata"][key]
    path.write_bytes(_with_digest(record))
    with pytest.raises(ValueError, match=f"a checkpoint must have {key} in its metadata, got none in step 11 .* out="):
        train(tmp_path, resume=True)


def test_finished_run_is_reported_as_training_did(tmp_path):
    """With the metrics of the average that was kept, and why training ended early."""
    changes = {"early_stopping_patience": 2, "evaluate_every": 2, "checkpoint_every": 2, "average_checkpoints": 3}
    task = GivenLosses([5.0, 4.0, 4.5, 4.0, 3.0])
    result, _ = train(tmp_path, task=task, **changes)
    assert (result.metrics, result.stop_reason) == ({"loss": 3.0}, "no improvement in 2 evaluations")
    (tmp_path / "README.md").write_text("the card")
    config = TrainingConfig(**{**CONFIG, **changes})
    trainer = Trainer(GivenLosses([]), config, tmp_path, ProcessGroup(0, 1, torch.device("cpu")))
    assert trainer.finished_run() is None
    trainer.restore()
    assert replace(trainer.finished_run(), seconds=result.seconds) == result


def test_checkpoint_of_another_architecture_is_refused(tmp_path):
    train(tmp_path)
    message = r"the checkpoint must fit the model: model\.3\.weight must be torch.float32 \(3, 5\), got torch.float32 "
    with pytest.raises(ValueError, match=message):
        train(tmp_path, task=WiderTask(), resume=True)
    with pytest.raises(ValueError, match=r"ema\.0\.weight must be torch\.float32 \(5, 3\), got none"):
        train(tmp_path, ema_decay=0.9, resume=True)


def test_float8_checkpoint_is_refused(tmp_path, monkeypatch):
    from sightline.training import loop

    def state_in_float8(*args):
        return {name: tensor.to(torch.float8_e4m3fn) for name, tensor in original(*args).items()}

    original = loop.training_state
    monkeypatch.setattr(loop, "training_state", state_in_float8)
    train(tmp_path)
    with pytest.raises(ValueError, match=r"must be torch\.float32 \(5, 3\), got torch\.float8_e4m3fn"):
        train(tmp_path, resume=True)
