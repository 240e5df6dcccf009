"""The `sightline` command in a separate process that tests can kill.

Processes are forked from a server that has torch loaded, which takes milliseconds instead of seconds.
"""

import multiprocessing
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import ClassVar

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(
    [
        "sightline.cli",
        "sightline.runs",
        "sightline.training.loop",
        "sightline.training.hooks",
        "sightline.search",
        "sightline.tasks.image_classification.predictor",
        "sightline.tasks.few_shot.task",
        "sightline.tasks.translation.task",
        "sightline.tasks.image_classification.export",
        "sightline.tasks.few_shot.export",
        "sightline.tasks.translation.export",
        "torch._dynamo",
        "numpy.ma",
        "rich._emoji_codes",
        "sightline.web.app",
    ]
)

TIMEOUT = 600
"""Seconds after which a process is considered to hang, also on a busy machine."""
RUN_FILES = ["README.md", "classes.json", "config.yaml", "data.json", "metrics.jsonl", "model.safetensors"]
"""Files of an image classification run, without checkpoints."""
SMALL = (
    "model.embed_dim=8",
    "model.num_heads=2",
    "model.depth=1",
    "model.dropout=0.1",
    "augment.crop=1",
    "training.optimizer=adamw",
    "training.batch_size=6",
    "training.steps=20",
    "training.log_every=3",
    "training.evaluate_every=5",
    "training.checkpoint_every=4",
    "training.device=cpu",
)
"""A fast config in which logging, evaluation, checkpoints and epochs (of 10 steps) happen at different steps."""

_STEPS = ("training.steps=12", "training.log_every=3", "training.checkpoint_every=4", "training.device=cpu")
SMALL_TASKS = {
    "image_classification": ("data.source=images.npz", "data.validation_fraction=0.13", *SMALL, *_STEPS),
    "few_shot": (
        "task=few_shot",
        "data.source=classes.npz",
        "episode.way=3",
        "episode.query=2",
        "evaluation.settings=[2w1s]",
        "evaluation.selection_setting=2w1s",
        "evaluation.selection_episodes=4",
        "evaluation.query=3",
        "model.num_heads=2",
        "model.backbone_channels=[4,4,8,8]",
        "training.evaluate_every=6",
        *_STEPS,
    ),
    "translation": (
        "task=translation",
        "data.source=pairs.tsv",
        "data.max_tokens=24",
        "model.transformer.embed_dim=8",
        "model.transformer.num_heads=2",
        "model.transformer.ffn_dim=8",
        "model.transformer.encoder_layers=1",
        "model.transformer.decoder_layers=1",
        "training.batch_size=64",
        "training.evaluate_every=12",
        *_STEPS,
    ),
}
"""Fast configs of each task; their data is in the current folder."""


def write_images(path: Path, count: int = 23, side: int = 8) -> Path:
    """Write an .npz file with `count` images of each of three separable classes."""
    random = np.random.default_rng(0)
    labels = np.arange(3 * count) % 3
    images = random.integers(0, 120, (3 * count, side, side)) + 60 * labels[:, None, None]
    np.savez(path, images=images.astype(np.uint8), labels=labels)
    return path


def write_task_data(folder: Path) -> None:
    """Write the data of `SMALL_TASKS`."""
    write_images(folder / "images.npz")
    random = np.random.default_rng(0)
    labels = np.arange(20 * 6) % 20
    images = random.integers(0, 200, (20, 16, 16))[labels] + random.integers(0, 55, (len(labels), 16, 16))
    np.savez(folder / "classes.npz", images=images.astype(np.uint8), labels=labels)
    (folder / "pairs.tsv").write_text("".join(f"{i} eins zwei\t{i} one two\n" for i in range(40)))


class CommandProcess:
    """A running `sightline` command; `prepare` is called in its process first."""

    started: ClassVar[list["CommandProcess"]] = []

    def __init__(self, *arguments: object, cwd: Path, prepare=None):
        self.log = cwd / f"stderr-{time.monotonic_ns()}"
        arguments = [str(argument) for argument in arguments]
        self.process = FORKSERVER.Process(target=_run, args=(arguments, cwd, self.log, prepare))
        self.process.start()
        self.started.append(self)

    @classmethod
    def kill_all(cls) -> None:
        """Kill the processes that a failed test left."""
        for command in cls.started:
            command.process.kill()
        cls.started.clear()

    def send(self, number: int) -> "CommandProcess":
        """Send a signal, unless the process has ended."""
        if self.process.is_alive():
            os.kill(self.process.pid, number)
        return self

    def wait(self, seconds: float = TIMEOUT) -> int:
        """Return the exit code, or the negative number of the signal that ended the process."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            raise TimeoutError(f"still running after {seconds} s: {self.output}")
        return self.process.exitcode

    def wait_for(self, condition, seconds: float = TIMEOUT) -> "CommandProcess":
        """Wait until `condition()` is true or the process has ended."""
        end = time.monotonic() + seconds
        while not condition() and self.process.is_alive():
            assert time.monotonic() < end, self.output
            time.sleep(0.001)
        return self

    @property
    def output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


def _run(arguments, cwd, log, prepare):
    multiprocessing.set_start_method("fork", force=True)  # the default of a process started from a shell
    os.chdir(cwd)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["sightline", *arguments]
    from sightline.cli import app

    if prepare is not None:
        prepare()
    app()


def kill_at_call(name: str, count: int, *, after_half: bool = False) -> None:
    """Kill this process at the `count`-th call of a function: before it, or after half of its bytes are written."""
    module, _, attribute = name.rpartition(".")
    owner = {"os": os, "Path": Path}[module]
    original = getattr(owner, attribute)
    calls = 0

    def counted(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == count:
            if after_half:
                original(args[0], args[1][: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, attribute, counted)


def limit_file_size(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def signal_at_step(step: int, number: int, task: str = "image_classification") -> None:
    """Send this process a signal in the middle of a step, counted from 1 in this process."""
    task_class = _task_class(task)
    loss, calls = task_class.loss, 0

    def counted(*args):
        nonlocal calls
        calls += 1
        if calls == step:
            os.kill(os.getpid(), number)
        return loss(*args)

    task_class.loss = counted


def kill_in_finish(task: str = "image_classification") -> None:
    """Kill this process when the final weights are calibrated."""
    _task_class(task).finish = lambda *args: os.kill(os.getpid(), signal.SIGKILL)


def hang_in_step() -> None:
    """Let every step wait for signals."""

    def hang(*args):
        reader, writer = os.pipe()  # unlike a pause, a read also ends if the signal came before it
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        for message in (b"hanging\n", b"still hanging\n"):
            os.write(2, message)
            os.read(reader, 1)

    _task_class("image_classification").loss = hang


def use_terminal(path: str) -> None:
    """Let this process control a terminal, which is its standard input and output."""
    os.setsid()
    terminal = os.open(path, os.O_RDWR)
    for number in range(3):
        os.dup2(terminal, number)
    os.environ.update(TERM="xterm-256color", COLUMNS="80")


def normalize_by_one_image() -> None:
    """Read a single image before training starts."""
    from sightline.data.images import statistics

    statistics.NORMALIZATION_IMAGES = 1


def _task_class(name: str):
    from sightline.registry import task_spec

    return task_spec(name).task
