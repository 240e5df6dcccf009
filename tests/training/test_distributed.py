"""Two processes started by torchrun, compared with a single process."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from processes import SMALL, SMALL_TASKS, TIMEOUT, CommandProcess, write_images, write_task_data
from shared_folder import shared_folder
from sightline.registry import task_spec
from sightline.run_config import resolve_config
from sightline.training.distributed import is_main_process, rank_and_world_size
from sightline.training.run import Run
from sightline.training.task import BatchSlice

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SCRIPT = Path(__file__).parents[1] / "distributed_runs.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
IMAGES = " ".join(
    (
        *SMALL_TASKS["image_classification"],
        "model.attention_bias=false",
        "model.dropout=0",  # differs between processes
        "augment.mixup=0.2",
        "training.ema_decay=0.5",
        "training.max_grad_norm=0.5",
        "training.log_every=1",
        "training.batch_size=12",
    )
)
FEW_SHOT = " ".join((*SMALL_TASKS["few_shot"], "model.dropout=0", "training.ema_decay=null", "training.batch_size=4"))
TRANSLATION = " ".join((*SMALL_TASKS["translation"], "model.transformer.dropout=0", "training.ema_decay=0.5"))
RUNS = {  # name: (config, changes for two processes, changes for one process)
    "ddp": (IMAGES, "", ""),
    "accumulation": (IMAGES, "training.gradient_accumulation_steps=3", ""),
    "fsdp": (f"{IMAGES} model.depth=2", "training.fsdp=true", ""),
    "fsdp-compiled": (IMAGES, "training.fsdp=true training.compile=true", ""),
    "ddp-compiled": (IMAGES, "training.compile=true", ""),
    "fsdp-average": (
        f"{IMAGES} training.average_checkpoints=2",
        "training.fsdp=true training.gradient_accumulation_steps=3",
        "",
    ),
    "translation": (TRANSLATION, "training.gradient_accumulation_steps=2", ""),
    # batch normalization uses the statistics of a micro-batch
    "few_shot": (FEW_SHOT, "", "training.gradient_accumulation_steps=2"),
}
RESUMED = ("ddp", "fsdp")


def logged(folder, key):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line[key] for line in lines if key in line}


def assert_close(run, other):
    """Losses, validation metrics and weights agree."""
    assert logged(run, "loss") == pytest.approx(logged(other, "loss"), abs=1e-5)
    assert logged(run, "validation").keys() == logged(other, "validation").keys()
    for step, metrics in logged(run, "validation").items():
        assert metrics == pytest.approx(logged(other, "validation")[step], abs=1e-4)
    weights, expected = (load_file(folder / "model.safetensors") for folder in (run, other))
    for name, tensor in weights.items():
        if not name.endswith("kv.bias"):  # the gradient of key biases is rounding noise, which Adam amplifies
            torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """All runs, by two processes in folders of their names and by one in `single-NAME`. Torchrun starts once."""
    return shared_folder(tmp_path_factory, "distributed", train_all)


def train_all(home):
    write_task_data(home)
    lines = [f"{config} {changes} out={name}" for name, (config, changes, _) in RUNS.items()]
    for name in RESUMED:
        config, changes, _ = RUNS[name]
        line = f"{config} {changes} out=resumed-{name}"
        lines += [f"{line} stop=7", f"{line} --resume", f"{line} out=stopped-{name} stop=7"]
    done = subprocess.run(
        [*TORCHRUN, SCRIPT, *lines], cwd=home, env=ENVIRONMENT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    singles = {
        name: CommandProcess("train", *f"{config} {changes} out=single-{name}".split(), cwd=home)
        for name, (config, _, changes) in RUNS.items()
    }
    for name, command in singles.items():
        assert command.wait() == 0, command.output
        assert ("kept the average of the last 2" in command.output) == (name == "fsdp-average")


@pytest.mark.parametrize("name", [name for name in RUNS if name != "few_shot"])
def test_two_processes_train_like_one(home, name):
    assert_close(home / name, home / f"single-{name}")


def test_validation_set_that_does_not_divide_by_the_processes_is_complete(home):
    config = resolve_config(None, f"{IMAGES} data.source={home / 'images.npz'}".split())[0]
    assert len(task_spec(config.task).task.load_data(config).validation) % 2
    assert sorted(logged(home / "ddp", "validation")) == [5, 10, 12]


@pytest.mark.parametrize("name", RESUMED)
def test_stopped_processes_resume_together_or_as_one(home, name):
    assert_close(home / f"resumed-{name}", home / f"single-{name}")
    stopped = home / f"stopped-{name}"
    assert len(list((stopped / "checkpoints").glob("*.json"))) == 2
    command = CommandProcess("train", stopped.name, "--resume", cwd=home)
    assert command.wait() == 0, command.output
    assert "resuming from step 7 of 12" in command.output
    assert_close(stopped, home / f"single-{name}")


def test_few_shot_processes_train_like_micro_batches_of_one(home):
    """Two processes are two micro-batches, each with its own batch statistics."""
    run, single = home / "few_shot", home / "single-few_shot"
    assert logged(run, "loss") == pytest.approx(logged(single, "loss"), abs=1e-5)
    weights, expected = (load_file(path / "checkpoints/step-00000012.safetensors") for path in (run, single))
    for name, tensor in weights.items():
        if name.startswith("model.") and not name.endswith(("running_mean", "running_var", "num_batches_tracked")):
            torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-5)


def test_few_shot_validation_metrics_are_those_of_the_saved_running_statistics(home, monkeypatch):
    """Every process evaluates with the averaged statistics, which are the saved ones."""
    monkeypatch.chdir(home)
    config = resolve_config(None, FEW_SHOT.split())[0]
    task_class = task_spec("few_shot").task
    task = task_class(config, task_class.load_data(config))
    validation = logged(home / "few_shot", "validation")
    best = {path.name: path for path in (home / "few_shot/checkpoints").glob("best-*")}
    assert best
    for step, metrics in validation.items():
        if (path := best.get(f"best-{step:08}.safetensors")) is not None:
            task.model.load_state_dict(load_file(path))
            task.model.eval()
            with torch.no_grad():
                sums = task.evaluate(task.model, BatchSlice())
            assert task.metrics(sums) == pytest.approx(metrics, abs=1e-6)


@pytest.mark.parametrize(
    ("rank", "world_size", "expected"),
    [(None, None, (0, 1)), ("1", None, (0, 1)), ("1", "1", (0, 1)), ("1", "2", (1, 2)), ("0", "2", (0, 2))],
)
def test_rank_is_used_with_several_processes_only(monkeypatch, rank, world_size, expected):
    """Some services set RANK for a single process."""
    for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert rank_and_world_size() == expected
    assert is_main_process() == Run(Path(), {}, 0, 0.0).is_main == (expected[0] == 0)


def test_torchrun_saves_on_sigterm_and_a_single_process_resumes(tmp_path):
    write_images(tmp_path / "images.npz")
    words = ["data.source=images.npz", *SMALL, "training.log_every=1", "training.steps=100000", "out=run"]
    command = [*TORCHRUN, "-m", "sightline", "train", *words]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("step 5/"):
                process.send_signal(signal.SIGTERM)
                break
        output = process.stderr.read()
        assert process.wait(TIMEOUT) != 0
    assert output.count("stopped and saved at step") == 1
    step = output.partition("stopped and saved at step ")[2].split()[0]
    command = CommandProcess("train", *words, "--resume", cwd=tmp_path)
    command.wait_for(lambda: command.output.count("step") > 2).send(signal.SIGTERM)
    assert command.wait() == 143
    assert f"resuming from step {step} of 100000" in command.output
    steps = sorted(logged(tmp_path / "run", "loss"))
    assert steps == list(range(1, len(steps) + 1))
