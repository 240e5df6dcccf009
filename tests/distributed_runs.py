"""A script for torchrun: runs `train` once for each argument, a line of `key=value` words.

Rank 1 always starts late. With `stop=N` among the words, rank 1 alone gets SIGTERM in step N. Models are compiled
without code generation, which takes minutes. A deadlock prints the stacks of all threads and fails.
"""

import faulthandler
import functools
import gc
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from processes import signal_at_step
from sightline.registry import task_spec
from sightline.runs import train
from sightline.training import device
from sightline.training.distributed import ProcessGroup
from sightline.training.signals import Interrupted

RANK = int(os.environ["RANK"])


def check_running_statistics() -> None:
    """Running statistics of the model and of state dicts are averaged; weights and constants are not touched."""
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Linear(3, 3))
    for tensor in model.state_dict().values():
        tensor.fill_(RANK)
    average = {name: tensor + 10 for name, tensor in model.state_dict().items()}
    ProcessGroup(RANK, 2, torch.device("cpu")).average_running_statistics(model, average)
    for name, tensor in model.state_dict().items():
        expected = 0.5 if "running" in name else RANK
        assert tensor.eq(expected).all(), name
        assert average[name].eq(expected + 10).all(), name


def run(line: str) -> None:
    words = line.split()
    stops = [int(word.removeprefix("stop=")) for word in words if word.startswith("stop=")]
    changes = [word for word in words if word != "--resume" and not word.startswith("stop=")]
    task_class = task_spec("image_classification").task
    loss = task_class.loss
    if RANK == 1:
        time.sleep(0.3)
        if stops:
            signal_at_step(stops[0], signal.SIGTERM)
    try:
        train(None, changes, resume="--resume" in words, quiet=True)
        assert not stops, f"training should have stopped at step {stops[0]}"
    except Interrupted:
        assert stops
    task_class.loss = loss


torch.compile = functools.partial(torch.compile, backend="eager")
device.supports_compile = lambda device: True
dist.init_process_group("gloo")
check_running_statistics()
for line in sys.argv[1:]:
    faulthandler.dump_traceback_later(300, exit=True)
    run(line)
faulthandler.cancel_dump_traceback_later()
gc.collect()  # wrapped models refer to the process group
dist.destroy_process_group()
