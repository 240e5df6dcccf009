"""The command in a process of its own, to be broken off.

Each is forked from a server that has torch loaded already, so that it costs a moment and not seconds.
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
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    ["sightline.training.loop", "sightline.tasks.image_classification.predictor", "torch._dynamo"]
)

RUN_FILES = ["README.md", "classes.json", "config.yaml", "data.json", "metrics.jsonl", "model.safetensors"]
"""What of a run travels."""
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
"""A recipe that takes a moment; logging, evaluation, checkpoints and epochs (of 10 steps) do not fall together."""


def write_images(path: Path, count: int = 23, side: int = 8) -> Path:
    """An .npz of three classes that can be told apart, `count` of each."""
    random = np.random.default_rng(0)
    labels = np.arange(3 * count) % 3
    images = random.integers(0, 120, (3 * count, side, side)) + 60 * labels[:, None, None]
    np.savez(path, images=images.astype(np.uint8), labels=labels)
    return path


class Child:
    """`sightline …` as a process of its own; `prepare` is called in it first."""

    started: ClassVar[list["Child"]] = []

    def __init__(self, *words: object, cwd: Path, prepare=None):
        self.log = cwd / f"stderr-{time.monotonic_ns()}"
        self.process = FORKED.Process(target=_run, args=([str(word) for word in words], cwd, self.log, prepare))
        self.process.start()
        self.started.append(self)

    @classmethod
    def end_all(cls) -> None:
        """Those that a failed test left."""
        for child in cls.started:
            child.process.kill()
        cls.started.clear()

    def send(self, number: int) -> "Child":
        """A signal, if it is not too late."""
        if self.process.is_alive():
            os.kill(self.process.pid, number)
        return self

    def wait(self, seconds: float = 60) -> int:
        """The exit code, or minus the signal that ended it."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            raise TimeoutError(f"still running after {seconds} s: {self.said}")
        return self.process.exitcode

    def wait_for(self, there, seconds: float = 60) -> "Child":
        """Until `there()` is true, or the process has ended."""
        end = time.monotonic() + seconds
        while not there() and self.process.is_alive():
            assert time.monotonic() < end, self.said
            time.sleep(0.001)
        return self

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


def _run(words, cwd, log, prepare):
    multiprocessing.set_start_method("fork", force=True)  # as in a process started from a shell
    os.chdir(cwd)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["sightline", *words]
    from sightline.cli import app

    if prepare is not None:
        prepare()
    app()


def die_at(name: str, count: int, *, half: bool = False) -> None:
    """Be killed at the `count`-th call of this function, before it does anything, or with half of its bytes written."""
    module, _, attribute = name.rpartition(".")
    home = {"os": os, "Path": Path}[module]
    original = getattr(home, attribute)
    left = count

    def dying(*args, **kwargs):
        nonlocal left
        left -= 1
        if left == 0:
            if half:
                original(args[0], args[1][: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(home, attribute, dying)


def limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def signal_at(step: int, number: int) -> None:
    """Send this process a signal in the middle of this step, counted from 1."""
    from sightline.tasks.image_classification.task import ImageTask

    loss, left = ImageTask.loss, step

    def signalled(*args):
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)
        return loss(*args)

    ImageTask.loss = signalled


def hang_in_a_step() -> None:
    from sightline.tasks.image_classification.task import ImageTask

    def hang(*args):
        os.write(2, b"hanging\n")
        signal.pause()
        os.write(2, b"still hanging\n")
        signal.pause()

    ImageTask.loss = hang


def see_little_before_training() -> None:
    """Normalize by one image."""
    from sightline.tasks.image_classification import task as image_classification

    image_classification.SEEN_FOR_NORMALIZATION = 1
