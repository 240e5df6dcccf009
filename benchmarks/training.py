"""Throughput of the training loop relative to bare forward and backward passes.

    python benchmarks/training.py configs/cifar10.yaml [key=value ...]

The baseline runs forward and backward on one fixed batch on the device, with the precision and compilation of the
config: no data loading, no augmentation, no optimizer. Both are measured alternately; the ratio of medians is printed.
"""

import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

from sightline import config
from sightline.tasks.image_classification.config import ImageClassificationTaskConfig
from sightline.tasks.image_classification.task import ImageClassificationTask
from sightline.training.device import autocast, choose_device, compile_model
from sightline.training.distributed import ProcessGroup
from sightline.training.hooks import MetricsFile
from sightline.training.loop import Trainer

ROUNDS, WARMUP_STEPS = 5, 30


def measure_baseline(task: ImageClassificationTask, steps: int, device: torch.device) -> float:
    """Return the examples per second of forward and backward passes alone."""
    training, shape = task.config.training, task.config.model
    model = task.model.to(device).train()
    cuda_graphs = training.gradient_accumulation_steps == 1
    forward = compile_model(model, device, cuda_graphs=cuda_graphs) if training.compile else model
    images = torch.rand(training.batch_size, shape.channels, shape.image_size, shape.image_size, device=device)
    labels = torch.randint(shape.num_classes, (training.batch_size,), device=device)

    def run(count: int) -> None:
        for _ in range(count):
            with autocast(training, device):
                loss = F.cross_entropy(forward(images).float(), labels)
            loss.backward()
            model.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize()

    run(WARMUP_STEPS if device.type == "cuda" else 2)
    started = time.perf_counter()
    run(steps)
    return steps * training.batch_size / (time.perf_counter() - started)


def measure_loop(task: ImageClassificationTask, steps: int, device: torch.device) -> float:
    """Return the examples per second of the training loop, from the second half of its log."""
    training = replace(
        task.config.training, epochs=None, steps=2 * steps, log_every=steps, evaluate_every=10**9, checkpoint_every=None
    )
    with tempfile.TemporaryDirectory() as folder:
        Trainer(task, training, Path(folder), ProcessGroup(0, 1, device), hooks=[MetricsFile()]).fit()
        lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [line["examples_per_second"] for line in lines if "loss" in line][-1]


def main() -> None:
    """Measure and print both."""
    path, *changes = sys.argv[1:]
    task_config = config.build(ImageClassificationTaskConfig, config.change(config.read(Path(path)), changes))
    task = ImageClassificationTask(task_config, ImageClassificationTask.load_data(task_config))
    device = choose_device(task_config.training.device)
    steps = 200 if device.type == "cuda" else 5
    rates = [(measure_baseline(task, steps, device), measure_loop(task, steps, device)) for _ in range(ROUNDS)]
    baseline, loop = (statistics.median(column) for column in zip(*rates, strict=True))
    print(f"{path}  torch {torch.__version__}  {torch.cuda.get_device_name() if device.type == 'cuda' else 'CPU'}")
    print(f"forward and backward  {baseline:12,.0f} images/s")
    print(f"training loop         {loop:12,.0f} images/s")
    print(f"ratio                 {loop / baseline:12.2f}")


if __name__ == "__main__":
    main()
