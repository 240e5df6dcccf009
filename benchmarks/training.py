"""How much of the model's own speed the loop leaves: training against a bare forward and backward.

    python benchmarks/training.py configs/cifar10.yaml [key=value ...]

The bare rate is forward and backward on one fixed batch that lies on the device, same precision, compiled where the
recipe is: no data, no augmentation, no optimizer. Both are taken in turns, and the ratio of medians is printed.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from sightline import config
from sightline.tasks.image_classification.task import ImageTask, Recipe
from sightline.training import loop
from sightline.training.device import choose_device, compiled, precision

ROUNDS, WARM = 5, 30


def bare(task: ImageTask, steps: int, device: torch.device) -> float:
    """Examples per second of forward and backward alone."""
    settings, model = task.recipe.training, task.model.to(device).train()
    called = compiled(model, device, graphs=settings.gradient_accumulation_steps == 1) if settings.compile else model
    form = task.recipe.model
    images = torch.rand(settings.batch_size, form.channels, form.image_size, form.image_size, device=device)
    labels = torch.randint(form.classes, (settings.batch_size,), device=device)

    def run(count: int) -> None:
        for _ in range(count):
            with precision(settings, device):
                loss = F.cross_entropy(called(images).float(), labels)
            loss.backward()
            model.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize()

    run(WARM if device.type == "cuda" else 2)
    began = time.perf_counter()
    run(steps)
    return steps * settings.batch_size / (time.perf_counter() - began)


def trained(task: ImageTask, steps: int) -> float:
    """Examples per second of the loop, from its own log, the first lines left out."""
    settings = config.build(
        type(task.recipe.training),
        {
            **config.plain(task.recipe.training),
            "epochs": None,
            "steps": 2 * steps,
            "log_every": steps,
            "evaluate_every": 10**9,
        },
    )
    with tempfile.TemporaryDirectory() as folder:
        loop.train(lambda: task, settings, Path(folder), quiet=True)
        lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [line["examples_per_second"] for line in lines if "loss" in line][-1]


def main() -> None:
    """Both, in turns."""
    path, *changes = sys.argv[1:]
    recipe = config.build(Recipe, config.change(config.read(Path(path)), changes))
    task, device = ImageTask(recipe), choose_device(recipe.training.device)
    steps = 200 if device.type == "cuda" else 5
    rates = [(bare(task, steps, device), trained(task, steps)) for _ in range(ROUNDS)]
    floor, ours = (statistics.median(column) for column in zip(*rates, strict=True))
    print(f"{path}  torch {torch.__version__}  {torch.cuda.get_device_name() if device.type == 'cuda' else 'CPU'}")
    print(f"bare forward and backward  {floor:12,.0f} images/s")
    print(f"the loop                   {ours:12,.0f} images/s")
    print(f"ratio                      {ours / floor:12.2f}")


if __name__ == "__main__":
    main()
