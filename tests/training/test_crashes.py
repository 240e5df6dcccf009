"""Runs that are broken off: real processes, real signals, and what is left of them afterwards."""

import functools
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

import sightline
from processes import SMALL, CommandProcess, hang_in_step, kill_at_call, limit_file_size, signal_at_step, write_images

TRAIN = ("train", "data.source=images.npz", "data.validation_fraction=0.13", "training.ema_decay=0.8", *SMALL)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with images, and in `whole` the run that was never broken off."""
    home = tmp_path_factory.mktemp("crashes")
    write_images(home / "images.npz")
    child = CommandProcess(*TRAIN, "out=whole", cwd=home)
    assert child.wait() == 0, child.output
    return home


@pytest.fixture
def here(home, tmp_path):
    """The same in a folder of its own."""
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    return tmp_path


def lines(run: Path) -> list[dict]:
    """What was logged, less the speed."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "examples_per_second"} for line in found]


def assert_as_if_never_broken(run: Path, whole: Path) -> None:
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert lines(run) == lines(whole)
    assert sorted(path.name for path in run.rglob("*")) == sorted(path.name for path in whole.rglob("*"))


def resumed(here: Path, *changes: str) -> str:
    child = CommandProcess(*TRAIN, *changes, "out=run", "--resume", cwd=here)
    assert child.wait() == 0, child.output
    return child.output


def test_the_same_seed_gives_the_same_run_and_another_does_not(here):
    assert CommandProcess(*TRAIN, "out=run", cwd=here).wait() == 0
    assert_as_if_never_broken(here / "run", here / "whole")
    assert CommandProcess(*TRAIN, "out=other", "seed=1", cwd=here).wait() == 0
    assert lines(here / "other")[0]["loss"] != lines(here / "whole")[0]["loss"]
    assert (here / "other" / "model.safetensors").read_bytes() != (here / "whole" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("name", "half"),
    [
        ("Path.write_bytes", True),  # a file torn while it is written
        ("os.fsync", False),  # written, and not yet sure to be there
        ("Path.replace", False),  # there, and not yet in its place
    ],
)
def test_a_run_killed_while_it_writes_goes_on_as_if_it_had_not_been(here, name, half):
    killed = []
    for count in (1, 3, 4, 5, 6, 7, 9, 7, 8, 9, 6):  # at the start, in checkpoints, in the best weights, at the end
        dying = functools.partial(kill_at_call, name, count, half=half)
        child = CommandProcess(*TRAIN, "out=run", "--resume", cwd=here, prepare=dying)
        assert child.wait() in (-signal.SIGKILL, 0), child.output
        killed.append(child.process.exitcode == -signal.SIGKILL)
    assert sum(killed) >= 8
    resumed(here)
    assert_as_if_never_broken(here / "run", here / "whole")


def test_a_run_killed_from_outside_goes_on_as_if_it_had_not_been(here):
    """Nothing prepared: wherever the signal finds it."""
    run = here / "run"
    found = {
        "a start": lambda: (run / "config.yaml").exists(),
        "a log": lambda: (run / "metrics.jsonl").exists(),
        "a checkpoint": lambda: any(run.glob("checkpoints/step-*.json")),
        "a checkpoint being written": lambda: any(run.glob("checkpoints/.*.part")),
        "step 8": lambda: (run / "checkpoints/step-00000008.json").exists(),
        "a loss": lambda: '"step": 12, "loss"' in (run / "metrics.jsonl").read_text(),
        "nearly the end": lambda: any(run.glob("checkpoints/.step-00000020.*")),
    }
    killed = []
    for there in found.values():
        child = CommandProcess(*TRAIN, "out=run", "--resume", cwd=here).wait_for(there)
        killed.append(child.send(signal.SIGKILL).wait() == -signal.SIGKILL)
    assert sum(killed) >= 4
    resumed(here)
    assert_as_if_never_broken(run, here / "whole")


def test_a_run_with_muon_killed_between_checkpoints_goes_on_as_if_it_had_not_been(here):
    muon = (*TRAIN, "training.optimizer=muon")
    assert CommandProcess(*muon, "out=muon", cwd=here).wait() == 0
    for step in (6, 7, 10):  # of each process; a checkpoint is written at every fourth
        killing = functools.partial(signal_at_step, step, signal.SIGKILL)
        assert CommandProcess(*muon, "out=run", "--resume", cwd=here, prepare=killing).wait() == -signal.SIGKILL
    child = CommandProcess(*muon, "out=run", "--resume", cwd=here)
    assert child.wait() == 0, child.output
    assert "going on from step 16 of 20" in child.output
    assert_as_if_never_broken(here / "run", here / "muon")
    last = load_file(here / "run/checkpoints/step-00000020.safetensors")
    assert any(name.startswith("optimizer.momentum_buffer.") for name in last)


@pytest.mark.parametrize(
    ("count", "side", "shift", "differs"),
    [(29, 8, 0, "train.images must be 60, got 75"), (23, 8, 1, "train.labels must be"), (23, 8, 9, "train.levels")],
    ids=["more images", "other labels", "other pixels"],
)
def test_a_run_does_not_go_on_with_other_data(here, count, side, shift, differs):
    killing = functools.partial(signal_at_step, 6, signal.SIGKILL)
    assert CommandProcess(*TRAIN, "out=run", cwd=here, prepare=killing).wait() == -signal.SIGKILL
    before = {path: path.read_bytes() for path in sorted((here / "run").rglob("*.*")) if path.is_file()}
    original = (here / "images.npz").read_bytes()
    write_images(here / "images.npz", count, side)
    change(here / "images.npz", shift)
    child = CommandProcess(*TRAIN, "out=run", "--resume", cwd=here)
    assert child.wait() == 2, child.output
    assert "error: data.source must hold what it held when run began, to go on with it: " + differs in child.output
    assert {path: path.read_bytes() for path in sorted((here / "run").rglob("*.*")) if path.is_file()} == before
    (here / "images.npz").write_bytes(original)
    resumed(here)
    assert_as_if_never_broken(here / "run", here / "whole")


def change(path: Path, shift: int) -> None:
    """1 moves the labels on by one image, more makes the images brighter."""
    with np.load(path) as file:
        images, labels = file["images"], file["labels"]
    np.savez(path, images=images + np.uint8(shift if shift > 1 else 0), labels=np.roll(labels, shift == 1))


def test_a_run_killed_before_its_first_checkpoint_starts_anew_and_says_so(here):
    child = CommandProcess(*TRAIN, "out=run", cwd=here, prepare=functools.partial(kill_at_call, "os.fsync", 3))
    assert child.wait() == -signal.SIGKILL
    assert "nothing to go on from: starting at step 0" in resumed(here)
    assert_as_if_never_broken(here / "run", here / "whole")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garble(path: Path) -> None:
    path.write_bytes(b"\x00\xff{]" * 9)


def nest(path: Path) -> None:
    path.write_text("[" * 100_000)


def alter(path: Path) -> None:
    record = json.loads(path.read_text())
    record["facts"]["waited"] += 1
    path.write_text(json.dumps(record, indent=1))


@pytest.fixture(scope="module")
def broken_off(home):
    """A run killed late: it has checkpoints of steps 12 and 16."""
    child = CommandProcess(
        *TRAIN, "out=broken", cwd=home, prepare=functools.partial(signal_at_step, 18, signal.SIGKILL)
    )
    assert child.wait() == -signal.SIGKILL
    assert sorted(path.name for path in (home / "broken/checkpoints").glob("*.json")) == [
        "step-00000012.json",
        "step-00000016.json",
    ]
    return home / "broken"


@pytest.mark.parametrize(
    ("damage", "ending"),
    [
        (truncate, "safetensors"),
        (flip, "safetensors"),
        (empty, "safetensors"),
        (Path.unlink, "safetensors"),
        (truncate, "json"),
        (flip, "json"),
        (empty, "json"),
        (garble, "json"),
        (nest, "json"),
        (alter, "json"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(broken_off, here, damage, ending):
    shutil.copytree(broken_off, here / "run", dirs_exist_ok=True)
    damage(here / f"run/checkpoints/step-00000016.{ending}")
    said = resumed(here)
    assert "step-00000016 is torn or corrupt and was passed over" in said
    assert "going on from step 12 of 20" in said
    assert_as_if_never_broken(here / "run", here / "whole")


def test_an_older_damaged_checkpoint_does_no_harm(broken_off, here):
    shutil.copytree(broken_off, here / "run", dirs_exist_ok=True)
    garble(here / "run/checkpoints/step-00000012.json")
    assert "going on from step 16 of 20" in resumed(here)
    assert (here / "run/model.safetensors").read_bytes() == (here / "whole/model.safetensors").read_bytes()


def test_when_every_checkpoint_is_damaged_it_starts_anew(broken_off, here):
    shutil.copytree(broken_off, here / "run", dirs_exist_ok=True)
    for path in (here / "run/checkpoints").glob("step-*.safetensors"):
        flip(path)
    said = resumed(here)
    assert said.count("is torn or corrupt") == 2
    assert "starting at step 0" in said
    assert_as_if_never_broken(here / "run", here / "whole")


def test_damaged_best_weights_are_told_of(broken_off, here):
    shutil.copytree(broken_off, here / "run", dirs_exist_ok=True)
    best = max((here / "run/checkpoints").glob("best-*"))
    flip(best)
    said = resumed(here)
    assert f"the best weights are torn or corrupt; the search starts anew ({best.name} must match its digest" in said
    assert "validation accuracy" in said.splitlines()[-2]  # judged, though the last step is all there is to choose
    assert sightline.load(here / "run").classes == ("0", "1", "2")


def assert_stopped_by_the_disk(child: CommandProcess, reason: str) -> None:
    assert child.wait() == 1, child.output
    error = child.output.splitlines()[-1]
    assert error.startswith("error: run/")
    assert f"must be written, and the disk said: {reason}; what was saved before is intact: make room" in error
    assert error.endswith("go on with --resume")
    assert "Traceback" not in child.output


def test_a_disk_that_takes_no_more_stops_the_run_with_one_line(broken_off, here):
    """A limit on the size of a file stands for the disk: weights still fit, a checkpoint does not."""
    shutil.copytree(broken_off, here / "run", dirs_exist_ok=True)
    good = {path: path.read_bytes() for path in (here / "run/checkpoints").glob("step-*")}
    child = CommandProcess(*TRAIN, "out=run", "--resume", cwd=here, prepare=functools.partial(limit_file_size, 8_000))
    assert_stopped_by_the_disk(child, "File too large")
    assert {path: path.read_bytes() for path in (here / "run/checkpoints").glob("step-*")} == good
    assert "going on from step 16 of 20" in resumed(here)
    assert_as_if_never_broken(here / "run", here / "whole")


def test_a_disk_too_small_for_the_log_stops_the_run_with_one_line(here):
    child = CommandProcess(*TRAIN, "out=run", cwd=here, prepare=functools.partial(limit_file_size, 100))
    assert child.wait() == 1
    assert "must be written, and the disk said: File too large" in child.output.splitlines()[-1]
    assert "Traceback" not in child.output


def test_a_disk_that_is_full_stops_the_run_with_one_line(here):
    disk = here / "run"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        assert_stopped_by_the_disk(CommandProcess(*TRAIN, "out=run", cwd=here), "No space left on device")
        subprocess.run(["mount", "-o", "remount,size=1m", disk], check=True)
        assert "going on from step" in resumed(here)
        assert_as_if_never_broken(here / "run", here / "whole")
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("step", [1, 7, 12, 20])
def test_a_signal_saves_and_leaves_and_the_run_goes_on(here, number, code, step):
    """In the first step, inside a window of the log, at a checkpoint, and in the last step, which ends anyway."""
    child = CommandProcess(*TRAIN, "out=run", cwd=here, prepare=functools.partial(signal_at_step, step, number))
    if step == 20:
        assert child.wait() == 0, child.output
    else:
        assert child.wait() == code, child.output
        assert child.output.splitlines()[-1] == (
            f"stopped and saved at step {step} of 20; go on with: sightline train run --resume"
        )
        assert f"going on from step {step} of 20" in resumed(here)
    assert_as_if_never_broken(here / "run", here / "whole")


def test_a_mean_of_checkpoints_is_the_same_whatever_signals_came(here):
    means = ("training.average_checkpoints=3", "training.ema_decay=null")
    assert CommandProcess(*TRAIN, *means, "out=whole3", cwd=here).wait() == 0
    for step in (6, 6, 4):  # at 6, and then at 12 and 16, which have checkpoints of their own
        prepare = functools.partial(signal_at_step, step, signal.SIGTERM)
        assert CommandProcess(*TRAIN, *means, "out=run", "--resume", cwd=here, prepare=prepare).wait() == 143
    assert "kept the mean of the last 3 checkpoints" in resumed(here, *means)
    assert_as_if_never_broken(here / "run", here / "whole3")


def test_a_second_interrupt_breaks_off_at_once(here):
    child = CommandProcess(*TRAIN, "out=run", cwd=here, prepare=hang_in_step)
    child.wait_for(lambda: "hanging" in child.output).send(signal.SIGINT)
    child.wait_for(lambda: "still hanging" in child.output)
    assert child.send(signal.SIGINT).wait() == 130
    assert "saved" not in child.output
    assert "Traceback" not in child.output
    resumed(here)
    assert_as_if_never_broken(here / "run", here / "whole")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_python_m_sightline_obeys_signals_too(here, number, code):
    """As typed: no fork, nothing prepared."""
    command = [sys.executable, "-m", "sightline", *TRAIN, "out=run"]
    with subprocess.Popen([*command, "training.steps=100000"], cwd=here, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("step"):
                process.send_signal(number)
                break
        said = process.stderr.read()
        assert process.wait(60) == code
    assert ("stopped and saved at step" in said) == (code > 0)
    assert "Traceback" not in said


def test_in_a_terminal_a_bar_shows_the_time_left_and_a_stop_leaves_the_line_clean(here):
    seen = b""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(here)
        os.environ.update(TERM="xterm-256color", COLUMNS="80")
        os.execv(sys.executable, [sys.executable, "-m", "sightline", *TRAIN, "out=run", "training.steps=100000"])
    while b"(best)" not in seen or b"left" not in seen.rpartition(b"(best)")[2]:
        seen += os.read(terminal, 4096)
    os.write(terminal, b"\x03")  # as typed at the keyboard
    try:
        while more := os.read(terminal, 4096):
            seen += more
    except OSError:  # the terminal has gone
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    os.close(terminal)
    text = re.sub(r"\x1b\[[\d;]*m", "", seen.decode())  # colors aside
    assert re.search(r"training ━[━╸╺ ]+ +\d+/100000 \d+:\d\d:\d\d left loss \d", text)
    assert re.search(r"step 5: validation accuracy .*\(best\)", text)
    assert "go on with: sightline train" in text
    assert "\x1b[?25h" in text  # the cursor is back
    assert "Traceback" not in text


FEW_SHOT = (
    "train",
    "task=few_shot",
    "episode.way=3",
    "evaluation.selection_episodes=4",
    "evaluation.query=3",
    "training.steps=12",
    "training.checkpoint_every=4",
    "training.evaluate_every=6",
    "training.log_every=3",
    "training.device=cpu",
)
NUMBERS = (
    "train",
    "task=translation",
    "model.transformer.embed_dim=16",
    "model.transformer.ffn_dim=16",
    "model.transformer.encoder_layers=1",
    "model.transformer.decoder_layers=1",
    "data.max_tokens=48",
    "training.steps=12",
    "training.checkpoint_every=4",
    "training.evaluate_every=12",
    "training.log_every=3",
    "training.device=cpu",
)
TASKS = {
    "few-shot conv4": (*FEW_SHOT, "model.backbone_channels=[4,4,8,8]", "model.num_heads=2"),
    "few-shot resnet12": (
        *FEW_SHOT,
        "model.backbone=resnet12",
        "model.backbone_channels=[4,4,8,8]",
        "model.num_heads=2",
    ),
    "few-shot adam": (*FEW_SHOT, "model.backbone_channels=[4,4,8,8]", "model.num_heads=2", "training.optimizer=adam"),
    "few-shot muon": (*FEW_SHOT, "model.backbone_channels=[4,4,8,8]", "model.num_heads=2", "training.optimizer=muon"),
    "translation": NUMBERS,
}


@pytest.mark.parametrize("words", TASKS.values(), ids=TASKS)
def test_every_task_killed_at_random_moments_goes_on_as_if_it_had_not_been(tmp_path, words):
    assert CommandProcess(*words, "out=whole", cwd=tmp_path).wait() == 0
    random, run = np.random.default_rng(0), tmp_path / "run"
    for _ in range(3):
        step = int(random.integers(1, 12))
        child = CommandProcess(*words, "out=run", "--resume", cwd=tmp_path)
        child.wait_for(lambda step=step: newest(run) >= step)
        child.send(signal.SIGKILL if random.random() < 0.7 else signal.SIGTERM).wait()
    child = CommandProcess(*words, "out=run", "--resume", cwd=tmp_path)
    assert child.wait() == 0, child.output
    assert_as_if_never_broken(run, tmp_path / "whole")


def newest(run: Path) -> int:
    """The step of the newest checkpoint; -1 without one."""
    return max((int(path.stem[5:]) for path in run.glob("checkpoints/step-*.json")), default=-1)
