"""Interrupted runs: real processes, real signals, and the files they leave."""

import functools
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

import sightline
from processes import (
    SMALL,
    SMALL_TASKS,
    TIMEOUT,
    CommandProcess,
    hang_in_step,
    kill_at_call,
    kill_in_finish,
    limit_file_size,
    signal_at_step,
    use_terminal,
    write_images,
    write_task_data,
)
from sightline.errors import SightlineWarning
from sightline.files import is_finished
from sightline.training.checkpoint import _with_digest

TRAIN = ("train", "data.source=images.npz", "data.validation_fraction=0.13", "training.ema_decay=0.8", *SMALL)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with images, and an uninterrupted run in `whole`."""
    home = tmp_path_factory.mktemp("crashes")
    write_images(home / "images.npz")
    assert_success(CommandProcess(*TRAIN, "out=whole", cwd=home))
    return home


@pytest.fixture
def cwd(home, tmp_path):
    """A copy of `home`."""
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    return tmp_path


def assert_success(command: CommandProcess) -> str:
    assert command.wait() == 0, command.output
    return command.output


def assert_killed(*arguments, cwd: Path, prepare) -> None:
    command = CommandProcess(*arguments, cwd=cwd, prepare=prepare)
    assert command.wait() == -signal.SIGKILL, command.output


def logged(run: Path) -> list[dict]:
    """The lines of metrics.jsonl without the speed."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if not key.endswith(("_per_second", "seconds"))} for line in lines
    ]


def assert_same_run(run: Path, whole: Path) -> None:
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert logged(run) == logged(whole)
    assert sorted(path.name for path in run.rglob("*")) == sorted(path.name for path in whole.rglob("*"))


def resume_option(cwd: Path) -> tuple[str, ...]:
    """--resume if the run has been started."""
    return ("--resume",) if (cwd / "run" / "config.yaml").exists() else ()


def resume(cwd: Path, *changes: str) -> str:
    return assert_success(CommandProcess(*TRAIN, *changes, "out=run", "--resume", cwd=cwd))


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"}


def test_weights_depend_on_the_seed_only(cwd):
    assert_success(CommandProcess(*TRAIN, "out=run", cwd=cwd))
    assert_same_run(cwd / "run", cwd / "whole")
    assert_success(CommandProcess(*TRAIN, "out=other", "seed=1", cwd=cwd))
    assert logged(cwd / "other")[0]["loss"] != logged(cwd / "whole")[0]["loss"]
    assert (cwd / "other" / "model.safetensors").read_bytes() != (cwd / "whole" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("name", "after_half"), [("Path.write_bytes", True), ("os.fsync", False), ("Path.replace", False)]
)
def test_run_killed_in_a_write_resumes_exactly(cwd, name, after_half):
    for count in (1, 4, 5, 7, 9, 6):  # in the config, in the log, in checkpoints, in the best weights, at the end
        kill = functools.partial(kill_at_call, name, count, after_half=after_half)
        assert_killed(*TRAIN, "out=run", *resume_option(cwd), cwd=cwd, prepare=kill)
    resume(cwd)
    assert_same_run(cwd / "run", cwd / "whole")


def test_run_killed_from_outside_resumes_exactly(cwd):
    run = cwd / "run"
    conditions = [
        lambda: (run / "config.yaml").exists(),
        lambda: (run / "metrics.jsonl").exists(),
        lambda: any(run.glob("checkpoints/step-*.json")),
        lambda: any(run.glob("checkpoints/.*.part")),
        lambda: (run / "checkpoints/step-00000008.json").exists(),
        lambda: '"step": 12, "loss"' in (run / "metrics.jsonl").read_text(),
        lambda: any(run.glob("checkpoints/.step-00000020.*")),
    ]
    kills = 0
    for condition in conditions:
        command = CommandProcess(*TRAIN, "out=run", *resume_option(cwd), cwd=cwd).wait_for(condition)
        kills += command.send(signal.SIGKILL).wait() == -signal.SIGKILL
    assert kills >= 4
    resume(cwd)
    assert_same_run(run, cwd / "whole")


def test_run_killed_before_its_first_checkpoint_starts_again(cwd):
    assert_killed(*TRAIN, "out=run", cwd=cwd, prepare=functools.partial(kill_at_call, "os.fsync", 4))
    assert "no checkpoint to resume from: starting at step 0" in resume(cwd)
    assert_same_run(cwd / "run", cwd / "whole")


def test_run_killed_in_calibration_loads_with_a_warning_and_resumes_exactly(cwd):
    validation = "data.validation_fraction=0.75"  # enough images to calibrate on
    assert_success(CommandProcess(*TRAIN, validation, "out=whole-calibrated", cwd=cwd))
    assert_killed(*TRAIN, validation, "out=run", cwd=cwd, prepare=kill_in_finish)
    assert not is_finished(cwd / "run")
    with pytest.warns(SightlineWarning, match=f"finish it with: sightline train {cwd / 'run'} --resume"):
        assert float(sightline.load(cwd / "run").model.calibration_scale) == 1.0
    assert_killed(*TRAIN, validation, "out=run", "--resume", cwd=cwd, prepare=kill_in_finish)
    assert not is_finished(cwd / "run")
    assert "resuming from step 20 of 20" in resume(cwd, validation)
    assert_same_run(cwd / "run", cwd / "whole-calibrated")
    assert is_finished(cwd / "run")
    assert float(sightline.load(cwd / "run").model.calibration_scale) != 1.0


def test_resume_of_a_finished_run_changes_nothing(cwd):
    before = files(cwd / "whole")
    output = assert_success(CommandProcess("train", "whole", "--resume", cwd=cwd))
    assert "whole is fully trained; nothing was changed; a larger training.steps extends it" in output
    assert files(cwd / "whole") == before


def test_card_of_a_resumed_run_has_the_first_command_and_the_total_time(cwd):
    assert_killed(*TRAIN, "out=run", cwd=cwd, prepare=kill_in_finish)
    path = max((cwd / "run" / "checkpoints").glob("step-*.json"))
    record = json.loads(path.read_text())
    del record["digest"]
    record["metadata"]["seconds"] += 1000
    path.write_bytes(_with_digest(record))
    resume(cwd)
    card = (cwd / "run" / "README.md").read_text()
    assert re.search(r"^    sightline train data.source=images.npz .* out=run$", card, re.M)
    assert re.search(r"20 steps, 10\d\d s;", card)


def test_second_trainer_in_a_folder_is_refused(cwd):
    first = CommandProcess(*TRAIN, "out=run", cwd=cwd, prepare=hang_in_step)
    first.wait_for(lambda: "hanging" in first.output)
    before = files(cwd / "run")
    for option in ([], ["--resume"]):
        second = CommandProcess(*TRAIN, "out=run", "seed=1", *option, cwd=cwd)
        assert second.wait() == 2
        assert second.output == (
            "error: out must not be in use, got 'run', which another process writes to; wait for it, or use "
            "another folder\n"
        )
    assert files(cwd / "run") == before
    assert first.send(signal.SIGKILL).wait() == -signal.SIGKILL
    resume(cwd)
    assert_same_run(cwd / "run", cwd / "whole")


@pytest.mark.parametrize(
    ("count", "shift", "brightness", "message"),
    [
        (29, 0, 0, "train.images must be 60, got 75"),
        (23, 1, 0, "train.labels must be"),
        (23, 0, 9, "train.levels must be"),
    ],
    ids=["more images", "other labels", "other pixels"],
)
def test_run_is_not_resumed_with_other_data(cwd, killed_late, count, shift, brightness, message):
    shutil.copytree(killed_late, cwd / "run")
    before, images = files(cwd / "run"), (cwd / "images.npz").read_bytes()
    with np.load(write_images(cwd / "images.npz", count)) as file:
        changed = {"images": file["images"] + np.uint8(brightness), "labels": np.roll(file["labels"], shift)}
    np.savez(cwd / "images.npz", **changed)
    command = CommandProcess(*TRAIN, "out=run", "--resume", cwd=cwd)
    assert command.wait() == 2, command.output
    assert "error: data.source must hold the data that run was started with, to resume it: " in command.output
    assert message in command.output
    assert files(cwd / "run") == before
    (cwd / "images.npz").write_bytes(images)
    resume(cwd)
    assert_same_run(cwd / "run", cwd / "whole")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def overwrite(path: Path) -> None:
    path.write_bytes(b"\x00\xff{]" * 9)


def nest(path: Path) -> None:
    path.write_text("[" * 100_000)


def change_value(path: Path) -> None:
    record = json.loads(path.read_text())
    record["metadata"]["evaluations_without_improvement"] += 1
    path.write_text(json.dumps(record, indent=1))


@pytest.fixture(scope="module")
def killed_late(home):
    """A run killed at step 18, with checkpoints of steps 12 and 16."""
    kill = functools.partial(signal_at_step, 18, signal.SIGKILL)
    assert_killed(*TRAIN, "out=killed", cwd=home, prepare=kill)
    records = sorted(path.name for path in (home / "killed/checkpoints").glob("*.json"))
    assert records == ["step-00000012.json", "step-00000016.json"]
    return home / "killed"


@pytest.mark.parametrize(
    ("damage", "suffix"),
    [
        (truncate, "safetensors"),
        (flip_bit, "safetensors"),
        (empty, "safetensors"),
        (Path.unlink, "safetensors"),
        (truncate, "json"),
        (flip_bit, "json"),
        (empty, "json"),
        (overwrite, "json"),
        (nest, "json"),
        (change_value, "json"),
    ],
)
def test_damaged_checkpoint_is_reported_and_the_previous_one_restored(killed_late, cwd, damage, suffix):
    shutil.copytree(killed_late, cwd / "run")
    damage(cwd / f"run/checkpoints/step-00000016.{suffix}")
    output = resume(cwd)
    assert "step-00000016 is damaged and was skipped" in output
    assert "resuming from step 12 of 20" in output
    assert_same_run(cwd / "run", cwd / "whole")


def test_damaged_older_checkpoint_does_not_matter(killed_late, cwd):
    shutil.copytree(killed_late, cwd / "run")
    overwrite(cwd / "run/checkpoints/step-00000012.json")
    assert "resuming from step 16 of 20" in resume(cwd)
    assert (cwd / "run/model.safetensors").read_bytes() == (cwd / "whole/model.safetensors").read_bytes()


def test_run_with_damaged_checkpoints_only_starts_again(killed_late, cwd):
    shutil.copytree(killed_late, cwd / "run")
    for path in (cwd / "run/checkpoints").glob("step-*.safetensors"):
        flip_bit(path)
    output = resume(cwd)
    assert output.count("is damaged and was skipped") == 2
    assert "starting at step 0" in output
    assert_same_run(cwd / "run", cwd / "whole")


def test_damaged_best_weights_are_reported(killed_late, cwd):
    shutil.copytree(killed_late, cwd / "run")
    best = max((cwd / "run/checkpoints").glob("best-*"))
    flip_bit(best)
    output = resume(cwd)
    assert f"the best weights are damaged and were discarded ({best.name} must match its digest" in output
    assert "validation accuracy" in output.splitlines()[-3]
    assert sightline.load(cwd / "run").classes == ("0", "1", "2")


def assert_stopped_by_disk(command: CommandProcess, reason: str) -> None:
    assert command.wait() == 1, command.output
    advice = "checkpoints are intact: free disk space and continue with --resume"
    assert re.fullmatch(rf"error: run/[\w./-]+: {reason}; {advice}", command.output.splitlines()[-1])
    assert "Traceback" not in command.output


def test_file_size_limit_stops_the_run_with_one_line(killed_late, cwd):
    """The weights fit below the limit, a checkpoint does not."""
    shutil.copytree(killed_late, cwd / "run")
    before = {path: path.read_bytes() for path in (cwd / "run/checkpoints").glob("step-*")}
    limit = functools.partial(limit_file_size, 8_000)
    assert_stopped_by_disk(CommandProcess(*TRAIN, "out=run", "--resume", cwd=cwd, prepare=limit), "File too large")
    assert {path: path.read_bytes() for path in (cwd / "run/checkpoints").glob("step-*")} == before
    assert "resuming from step 16 of 20" in resume(cwd)
    assert_same_run(cwd / "run", cwd / "whole")


def test_file_size_limit_before_training_names_the_file(cwd):
    command = CommandProcess(*TRAIN, "out=run", cwd=cwd, prepare=functools.partial(limit_file_size, 100))
    assert command.wait() == 1
    assert command.output.splitlines()[-1] == "error: run/data.json: File too large"
    assert "Traceback" not in command.output


def test_full_disk_stops_the_run_with_one_line(cwd):
    disk = cwd / "run"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting is not permitted")
    try:
        assert_stopped_by_disk(CommandProcess(*TRAIN, "out=run", cwd=cwd), "No space left on device")
        subprocess.run(["mount", "-o", "remount,size=1m", disk], check=True)
        assert "resuming from step" in resume(cwd)
        assert_same_run(cwd / "run", cwd / "whole")
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("step", [1, 7, 12, 20])
def test_signal_saves_a_checkpoint_and_the_run_resumes_exactly(cwd, number, code, step):
    """In the first step, between two logs, at a checkpoint, and in the last step, which ends the run anyway."""
    command = CommandProcess(*TRAIN, "out=run", cwd=cwd, prepare=functools.partial(signal_at_step, step, number))
    if step == 20:
        assert_success(command)
    else:
        assert command.wait() == code, command.output
        assert command.output.splitlines()[-1] == (
            f"stopped and saved at step {step} of 20; continue with: sightline train run --resume"
        )
        assert f"resuming from step {step} of 20" in resume(cwd)
    assert_same_run(cwd / "run", cwd / "whole")


def test_average_of_checkpoints_does_not_depend_on_signals(cwd):
    changes = ("training.average_checkpoints=3", "training.ema_decay=null")
    assert_success(CommandProcess(*TRAIN, *changes, "out=average", cwd=cwd))
    for step in (6, 6, 4):  # at 6, and at 12 and 16, which have scheduled checkpoints
        stop = functools.partial(signal_at_step, step, signal.SIGTERM)
        command = CommandProcess(*TRAIN, *changes, "out=run", *resume_option(cwd), cwd=cwd, prepare=stop)
        assert command.wait() == 143
    assert "kept the average of the last 3 checkpoints" in resume(cwd, *changes)
    assert_same_run(cwd / "run", cwd / "average")


def test_second_interrupt_stops_at_once(cwd):
    command = CommandProcess(*TRAIN, "out=run", cwd=cwd, prepare=hang_in_step)
    command.wait_for(lambda: "hanging" in command.output).send(signal.SIGINT)
    command.wait_for(lambda: "still hanging" in command.output)
    assert command.send(signal.SIGINT).wait() == 130
    assert "saved" not in command.output
    assert "Traceback" not in command.output
    resume(cwd)
    assert_same_run(cwd / "run", cwd / "whole")


def test_python_m_sightline_saves_on_sigterm(cwd):
    command = [sys.executable, "-m", "sightline", *TRAIN, "out=run", "training.steps=100000"]
    with subprocess.Popen(command, cwd=cwd, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("step"):
                process.send_signal(signal.SIGTERM)
                break
        output = process.stderr.read()
        assert process.wait(TIMEOUT) == 143
    assert "stopped and saved at step" in output
    assert "Traceback" not in output


def test_progress_bar_in_a_terminal_and_its_removal_on_ctrl_c(cwd):
    data = b""
    terminal, other_end = pty.openpty()
    prepare = functools.partial(use_terminal, os.ttyname(other_end))
    command = CommandProcess(*TRAIN, "out=run", "training.steps=100000", cwd=cwd, prepare=prepare)
    while b"(best)" not in data or b"left" not in data.rpartition(b"(best)")[2]:
        command.wait_for(lambda: select.select([terminal], [], [], 0)[0])
        assert command.process.is_alive(), data
        data += os.read(terminal, 4096)
    os.close(other_end)  # the command has it open now
    os.write(terminal, b"\x03")
    try:
        while more := os.read(terminal, 4096):
            data += more
    except OSError:  # the terminal is closed
        pass
    assert command.wait() == 130
    os.close(terminal)
    text = re.sub(r"\x1b\[[\d;]*m", "", data.decode())  # without colors
    assert re.search(r"training ━[━╸╺ ]+ +\d+/100000 \d+:\d\d:\d\d left loss \d", text)
    assert re.search(r"step 5: validation accuracy .*\(best\)", text)
    assert "continue with: sightline train" in text
    assert "\x1b[?25h" in text  # the cursor is visible
    assert "Traceback" not in text


TASKS = {
    "image_classification muon": ("training.optimizer=muon",),
    "few_shot": ("training.optimizer=adamw",),
    "few_shot resnet12 adam": ("model.backbone=resnet12", "training.optimizer=adam"),
    "few_shot muon": ("training.optimizer=muon",),
    "translation": (),
}


@pytest.mark.parametrize("name", TASKS)
def test_every_task_killed_at_random_steps_resumes_exactly(tmp_path, name):
    task = name.split()[0]
    words = ("train", *SMALL_TASKS[task], *TASKS[name])
    write_task_data(tmp_path)
    assert_success(CommandProcess(*words, "out=whole", cwd=tmp_path))
    random = np.random.default_rng(0)
    kills = [functools.partial(signal_at_step, int(random.integers(5, 8)), signal.SIGKILL, task) for _ in range(2)]
    for kill in (*kills, functools.partial(kill_in_finish, task)):
        assert_killed(*words, "out=run", *resume_option(tmp_path), cwd=tmp_path, prepare=kill)
    assert_success(CommandProcess(*words, "out=run", "--resume", cwd=tmp_path))
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    tensors = load_file(tmp_path / "run/checkpoints/step-00000012.safetensors")
    assert any(key.startswith("optimizer.momentum_buffer.") for key in tensors) == ("muon" in name)
