"""A profile of the training steps of each task: the speed of the training loop relative to the bare model, the share
of the device's peak, and the speed with cosine attention relative to dot-product attention.

The bare model runs forward and backward passes on one fixed batch on the device, with the precision and compilation of
the config: no data, no augmentation, no optimizer, no log. What is missing to a ratio of 1 is time outside the model.
The achieved rate counts the floating-point operations of matrix products, convolutions and torch's attention, forward
and backward; those of our own kernels are not counted. The peak is the one of the data sheet where it is known, else
the rate of one large matrix product. If the data of a config are missing, generated data of the same size replace them.
"""

import json
import os
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from sightline import config, registry
from sightline.training.device import autocast, compile_model
from sightline.training.distributed import ProcessGroup
from sightline.training.hooks import MetricsFile
from sightline.training.loop import Trainer
from sightline.training.task import BatchSlice, Task

from .clock import alternate, device_name, timer, wall_seconds
from .peers import ROOT
from .record import Report
from .suite import Settings

CONFIGS: dict[str, list[str]] = {
    "cifar10": ["data.image_size=32", "data.channels=3"],
    "fashion-mnist": ["data.image_size=28", "data.channels=1"],
    "few-shot-omniglot": ["data.image_size=28", "data.channels=1", "data.extra_sources=[]"],
    "few-shot-cub": ["data.image_size=84", "data.channels=3"],
    "multi30k-transformer": [],
    "masked-lm-captions": ["data.group_stride=null"],
    "captioning-flickr8k": ["data.image_size=null"],
    "text-classification-languages": [],
}
"""Configs to profile, and the size of generated data in place of theirs."""
GENERATED = {
    "image_classification": ["data.source=glyphs"],
    "few_shot": ["data.source=glyphs", "data.split=null"],
    "translation": ["data.source=numbers", "data.columns=[1,2]"],
    "masked_lm": ["data.source=sentences"],
    "captioning": ["data.source=shapes"],
    "text_classification": ["data.source=sentences"],
}
SMALL = {
    "image_classification": ["model.embed_dim=8", "model.num_heads=2", "model.depth=1", "training.batch_size=4"],
    "few_shot": ["model.backbone_channels=[8,8,8,8]", "episode.way=2", "episode.query=1", "training.batch_size=1"],
    "translation": ["training.batch_size=64"],
    "masked_lm": ["training.batch_size=64"],
    "text_classification": ["training.batch_size=64"],
    "captioning": ["model.backbone_channels=[4,8]", "training.batch_size=64"],
}
"""Config changes on a CPU."""
SCORE_KEYS = {"translation": "model.transformer.score"}
"""Config key of the score by task, if it is not model.score."""
PEAK_FLOPS = {"NVIDIA H200": 989e12, "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA A100-SXM4-80GB": 312e12}
"""Dense bfloat16 matrix products, from the data sheets."""


def run(settings: Settings, report: Report) -> None:
    """Profile every config; on a CPU, small models of every task."""
    peak = PEAK_FLOPS.get(device_name(settings.device)) if settings.device == "cuda" else None
    peak = peak or product_rate(settings)
    report.add("peak", peak / 1e12, "TFLOP/s")
    sources: dict[str, Any] = {name: ROOT / "configs" / f"{name}.yaml" for name in CONFIGS}
    if settings.device == "cpu":
        sources = {task: {"task": task} for task in GENERATED}
    failed = []
    for name, source in sources.items():
        try:
            profile(name, source, peak, settings, report)
        except Exception:  # the other configs are still profiled
            traceback.print_exc()
            failed.append(name)
    if failed:
        raise RuntimeError(f"no profile of {', '.join(failed)}")


def profile(name: str, source: Path | dict[str, Any], peak: float, settings: Settings, report: Report) -> None:
    """Measure the training loop with both scores, and the bare model."""
    values = config.read(source) if isinstance(source, Path) else source
    steps = settings.pick(tiny=1, cpu=4, gpu=60)
    changes = data_changes(name, values, settings, report)
    changes += [f"training.steps={2 * steps}", "training.epochs=null", f"training.log_every={steps}"]
    changes += ["data.validation_images=0"] if values["task"] == "captioning" else ["data.validation_fraction=0"]
    changes += ["self_critical_steps=0"] if values.get("self_critical_steps") else []
    changes += [
        "training.evaluate_every=1000000000",
        "training.checkpoint_every=null",
        f"training.device={settings.device}",
    ]
    changes += SMALL[values["task"]] if settings.device == "cpu" else []
    spec = registry.task_spec(values["task"])
    key = SCORE_KEYS.get(spec.name, "model.score")
    tasks: dict[str, Task] = {}
    data = None
    for score in ("dot", "cosine"):
        task_config = config.build(spec.config, config.change(values, [*changes, f"{key}={score}"]))
        data = replace(spec.task.load_data(task_config), validation=None) if data is None else data
        torch.manual_seed(0)
        tasks[score] = spec.task(task_config, data)
    device, training = torch.device(settings.device), tasks["dot"].config.training
    bare_step, flops = bare(tasks["dot"], device)
    timers = {score: partial(loop_seconds, task, device) for score, task in tasks.items()}
    timers["bare"] = (
        timer(bare_step, settings.device) if settings.device == "cuda" else partial(wall_seconds, bare_step)
    )
    seconds = alternate(timers, settings.pick(tiny=1, cpu=3, gpu=3))
    unit = f"{tasks['dot'].unit}/s"
    rates = {key: samples.rate(training.batch_size) for key, samples in seconds.items()}
    report.compare(name, ("training loop", rates["dot"]), ("bare model", rates["bare"]), unit=unit)
    report.compare(name, ("training loop, cosine", rates["cosine"]), ("training loop, dot", rates["dot"]), unit=unit)
    achieved = seconds["dot"].map(lambda step: flops / step)
    report.add(f"{name}, achieved by the loop", achieved.map(lambda rate: rate / 1e12), "TFLOP/s")
    report.add(f"{name}, share of the peak", achieved.map(lambda rate: 100 * rate / peak), "%")
    if settings.device == "cuda":
        report.note(f"{name}: {top_operations(bare_step)}")


def data_changes(name: str, values: dict[str, Any], settings: Settings, report: Report) -> list[str]:
    """Config changes that point to the data folder, or to generated data if they are missing there."""
    source = values.get("data", {}).get("source")
    if source is None:
        return []
    path = settings.data / Path(source).relative_to("data")
    if path.exists():
        split = values["data"].get("split")
        splits = [f"data.split={settings.data / Path(split).relative_to('data')}"] if split else []
        return [f"data.source={path}", *splits]
    report.note(f"{name}: generated data, {os.fspath(source)} is missing.")
    return [*GENERATED[values["task"]], *CONFIGS[name]]


def bare(task: Task, device: torch.device) -> tuple[Callable[[], None], int]:
    """A forward and backward pass on one batch, and its floating-point operations."""
    training = task.config.training
    task.to(device)
    batches = task.batches(0, training.batch_size, BatchSlice(micro_batches=training.gradient_accumulation_steps))
    micro_batches = next(batches)
    batches.close()
    model = task.model.train()
    is_single = training.gradient_accumulation_steps == 1
    forward = compile_model(model, device, cuda_graphs=is_single) if training.compile else model

    def step(model_to_run: Any = forward) -> None:
        for batch in micro_batches:
            with autocast(training, device):
                loss = task.loss(model_to_run, batch)
            loss.backward()
        model.zero_grad(set_to_none=True)

    with FlopCounterMode(display=False) as counter:
        step(model)
    step()
    return step, counter.get_total_flops()


def loop_seconds(task: Task, device: torch.device) -> float:
    """Seconds per step of the training loop, from the second half of its log."""
    training = replace(task.config.training, average_checkpoints=1)
    with tempfile.TemporaryDirectory() as folder:
        Trainer(task, training, Path(folder), ProcessGroup(0, 1, device), hooks=[MetricsFile()]).fit()
        lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return training.batch_size / [line[f"{task.unit}_per_second"] for line in lines if "loss" in line][-1]


def top_operations(step: Callable[[], None]) -> str:
    """The GPU kernels that take most of the time, with their shares."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    kernels = {
        event.key: event.self_device_time_total
        for event in profiler.key_averages()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.key.startswith("## Call")
    }  # not the operators and compiled graphs that start them
    total = max(1e-9, sum(kernels.values()))
    top = sorted(kernels.items(), key=lambda item: -item[1])[:5]
    return "; ".join(f"{100 * time / total:.0f}% {kernel[:60]}" for kernel, time in top)


def product_rate(settings: Settings) -> float:
    """Floating-point operations per second of one large matrix product."""
    size = settings.pick(tiny=128, cpu=1024, gpu=8192)
    a = torch.randn(size, size, device=settings.device, dtype=settings.dtype)
    multiply = timer(lambda: a @ a, settings.device)
    return 2 * size**3 / alternate({"product": multiply}, 5)["product"].median
