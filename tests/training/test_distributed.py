"""Two processes on one machine, as torchrun starts them, against one process alone."""

import json
import re
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from processes import SMALL, CommandProcess, write_images
from sightline.runs import Run
from sightline.training.distributed import is_main_process, rank_and_world_size

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TOGETHER = Path(__file__).parents[1] / "together.py"
RECIPE = (
    # without the biases of attention: those of the keys change nothing, and what Adam makes of their noise differs
    "data.source=images.npz data.validation_fraction=0.13 model.attention_bias=false training.ema_decay=0.5 training.max_grad_norm=0.5 "
    + " ".join(word for word in SMALL if not word.startswith("model.dropout"))  # which differs for every process
    + " training.log_every=1 training.steps=12 training.batch_size=12 augment.mixup=0.2"
)
RUNS = {  # by two processes, and the same by one
    "copies": ("", ""),
    "pieces": ("training.gradient_accumulation_steps=3", ""),
    "shares": ("training.fsdp=true model.depth=2", "model.depth=2"),
    "shares-compiled": ("training.fsdp=true training.compile=true", ""),
    "copies-compiled": ("training.compile=true", ""),
    "shares-mean": (
        "training.fsdp=true training.gradient_accumulation_steps=3 training.average_checkpoints=2",
        "training.average_checkpoints=2",
    ),
}


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def losses(folder):
    return {line["step"]: line["loss"] for line in lines(folder) if "loss" in line}


def metrics(folder):
    return {line["step"]: line["validation"] for line in lines(folder) if "validation" in line}


def assert_alike(run, other):
    assert losses(run) == pytest.approx(losses(other), abs=1e-5)
    assert metrics(run).keys() == metrics(other).keys()
    for step, found in metrics(run).items():
        assert found == pytest.approx(metrics(other)[step], abs=1e-5)
    torch.testing.assert_close(
        load_file(run / "model.safetensors"), load_file(other / "model.safetensors"), rtol=1e-4, atol=1e-5
    )


def run_together(folder, runs, *, again=True):
    """By two processes. Under load, two of some two hundred starts died in native code (a segmentation fault, memory
    freed twice), why is not known; that is told as a warning, and tried once more. Whatever else goes wrong, a process
    that waits for ever among it, fails at once."""
    before = set(folder.iterdir())
    done = subprocess.run([*TORCHRUN, TOGETHER, *runs], cwd=folder, capture_output=True, text=True, timeout=200)
    if again and re.search(r"SIGSEGV|SIGABRT", done.stderr):
        warnings.warn(f"two processes broke off: {done.stderr}", stacklevel=2)
        for made in set(folder.iterdir()) - before:
            shutil.rmtree(made)
        run_together(folder, runs, again=False)
    else:
        assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("default:two processes broke off")
def test_two_processes_learn_what_one_does_with_the_same_batch(tmp_path):
    """Every kind of run by two processes and by one; some are stopped on the way and taken up again by two, or by one.

    One test, for it costs one start of torchrun.
    """
    write_images(tmp_path / "images.npz")
    runs = [f"{RECIPE} {two} out={name}" for name, (two, _) in RUNS.items()]
    for name in ("copies", "shares"):
        begun = f"{RECIPE} {RUNS[name][0]} out=again-{name}"
        runs += [f"{begun} stop=7", f"{begun} --resume", f"{begun} out=left-{name} stop=7"]
    run_together(tmp_path, runs)

    for name, (_, one) in RUNS.items():
        child = CommandProcess("train", *f"{RECIPE} {one} out=alone-{name}".split(), cwd=tmp_path)
        assert child.wait() == 0, child.output
        assert ("kept the mean of the last 2" in child.output) == ("average_checkpoints" in one)
        assert sorted(losses(tmp_path / name)) == list(range(1, 13))
        assert sorted(metrics(tmp_path / name)) == [5, 10, 12]  # over 9 images, which two cannot share evenly
        assert_alike(tmp_path / name, tmp_path / f"alone-{name}")

    for name in ("copies", "shares"):
        assert_alike(tmp_path / f"again-{name}", tmp_path / f"alone-{name}")
        left = tmp_path / f"left-{name}"
        assert len(list((left / "checkpoints").glob("*.json"))) == 2
        child = CommandProcess("train", f"left-{name}", "--resume", cwd=tmp_path)
        assert child.wait() == 0, child.output
        assert "going on from step 7 of 12" in child.output
        assert_alike(left, tmp_path / f"alone-{name}")


@pytest.mark.parametrize(
    ("rank", "world", "expected"),
    [(None, None, (0, 1)), ("1", None, (0, 1)), ("1", "1", (0, 1)), ("1", "2", (1, 2)), ("0", "2", (0, 2))],
)
def test_a_rank_counts_only_among_several(monkeypatch, rank, world, expected):
    """Some services set RANK for a process that is alone: it leads all the same."""
    for name, value in (("RANK", rank), ("WORLD_SIZE", world)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert rank_and_world_size() == expected
    assert is_main_process() == Run(Path(), {}, 0, 0.0).leads == (expected[0] == 0)


def test_torchrun_is_told_to_stop_and_what_it_saved_goes_on(tmp_path):
    write_images(tmp_path / "images.npz")
    words = [*RECIPE.split(), "training.steps=100000", "out=run"]
    command = [*TORCHRUN, "-m", "sightline", "train", *words]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("step 5/"):
                process.send_signal(signal.SIGTERM)
                break
        said = process.stderr.read()
        assert process.wait(60) != 0
    assert said.count("stopped and saved at step") == 1
    step = said.partition("stopped and saved at step ")[2].split()[0]
    child = CommandProcess("train", *words, "--resume", cwd=tmp_path)
    child.wait_for(lambda: child.output.count("step") > 2).send(signal.SIGTERM)
    assert child.wait() == 143
    assert f"going on from step {step} of 100000" in child.output
    assert sorted(losses(tmp_path / "run")) == list(range(1, len(losses(tmp_path / "run")) + 1))
