"""Several runs one after the other, for torchrun: each argument is one command line.

The second process is always late. With `stop=N` among its words it, and it alone, is sent SIGTERM in step N. Models are
compiled without making machine code: that is torch's affair, and takes minutes. Processes that wait for each other for
ever say where, and fail.
"""

import faulthandler
import functools
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from processes import signal_at_step
from sightline.runs import train
from sightline.tasks.image_classification.task import ImageTask
from sightline.training import device
from sightline.training.signals import Interrupted

torch.compile = functools.partial(torch.compile, backend="eager")
device.worth_compiling = lambda place: True
loss = ImageTask.loss
dist.init_process_group("gloo")
for line in sys.argv[1:]:
    faulthandler.dump_traceback_later(60, exit=True)
    if os.environ["RANK"] == "1":
        time.sleep(0.3)
    words = line.split()
    stops = [int(word.removeprefix("stop=")) for word in words if word.startswith("stop=")]
    ImageTask.loss = loss
    if stops and os.environ["RANK"] == "1":
        signal_at_step(stops[0], signal.SIGTERM)
    changes = [word for word in words if word != "--resume" and not word.startswith("stop=")]
    try:
        train(None, changes, resume="--resume" in words, quiet=True)
    except Interrupted:
        stops.clear()
    assert not stops, f"should have stopped at {stops}"
dist.destroy_process_group()
faulthandler.cancel_dump_traceback_later()
