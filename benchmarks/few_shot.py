"""Few-shot episodes against the prototypical network of easyfsl: the same Conv4 with the same weights, images and
episode shapes.

Evaluation is 5-way 1-shot with 15 queries per class. Sightline embeds every test image once and evaluates 10,000
episodes with its head, or with prototypes as easyfsl does; the rate includes the embedding. easyfsl computes one
episode at a time with its `evaluate`, so its rate is measured on 100 episodes. Training is the rate of our training
loop, with the head on top, and of the loop of easyfsl's tutorials. Neither augments images, and both have them in
memory. On a GPU, Sightline trains in bfloat16 with 128 episodes in a step; on a CPU with one.
"""

import json
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from sightline.data.images.class_splits import ClassSplits, load_classes
from sightline.data.images.datasets import ImageSet
from sightline.models.baselines import BASELINES
from sightline.models.few_shot_config import FewShotConfig
from sightline.tasks.few_shot.config import EpisodeConfig, FewShotTaskConfig, Setting
from sightline.tasks.few_shot.evaluate import episode_classes, evaluate_episodes
from sightline.tasks.few_shot.task import FewShotTask
from sightline.training.config import TrainingConfig
from sightline.training.distributed import ProcessGroup
from sightline.training.hooks import MetricsFile
from sightline.training.loop import Trainer

from .clock import alternate
from .peers import PeerProcess
from .record import Report
from .suite import Settings

OMNIGLOT = "omniglot/omniglot_105_packed.npz"
SIZE = 28
EVALUATION = {"way": 5, "shot": 1, "query": 15}
TRAINING = {"20-way 5-shot": {"way": 20, "shot": 5, "query": 5}, "20-way 1-shot": {"way": 20, "shot": 1, "query": 5}}
TINY_TRAINING = {"2-way 1-shot": {"way": 2, "shot": 1, "query": 1}}


def run(settings: Settings, report: Report) -> None:
    """Measure evaluation and training."""
    path = settings.data / OMNIGLOT
    source = str(path) if path.exists() and not settings.tiny else "glyphs"
    splits = replace(load_classes(source, size=SIZE, channels=1), validation=None)
    assert splits.test is not None
    report.note(f"Images are those of {'Omniglot' if source != 'glyphs' else 'drawn glyphs'}, {SIZE} pixels.")
    shapes = settings.pick(tiny=TINY_TRAINING, cpu=TRAINING, gpu=TRAINING)
    tasks = {name: make_task(splits, shape, settings) for name, shape in shapes.items()}
    task = next(iter(tasks.values()))
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(task, splits, Path(folder))
        with settings.peer("easyfsl", report, folder) as peer:
            compare_evaluation(task, splits.test, peer, settings, report)
            for name, shape in shapes.items():
                compare_training(name, tasks[name], shape, peer, settings, report)


def write_inputs(task: FewShotTask, splits: ClassSplits, folder: Path) -> None:
    """Write weights and normalized images for the peer."""
    weights = task.model.backbone.blocks.state_dict()
    np.savez(folder / "weights.npz", **{name: tensor.numpy() for name, tensor in weights.items()})
    for split in ("train", "test"):
        images: ImageSet = getattr(splits, split)
        normalized = (images.pixels.float() / 255 - task.model.mean) / task.model.std
        np.savez(folder / f"{split}.npz", images=normalized.numpy(), labels=images.labels.numpy())


def make_task(splits: ClassSplits, shape: dict[str, int], settings: Settings) -> FewShotTask:
    """A Conv4 with the head, and its training episodes."""
    steps = settings.pick(tiny=1, cpu=8, gpu=30)
    training = TrainingConfig(
        steps=2 * steps,
        batch_size=settings.pick(tiny=1, cpu=1, gpu=128),
        log_every=steps,
        evaluate_every=10**9,
        device=settings.device,
        compile=settings.device == "cuda",
    )
    torch.manual_seed(0)
    model = FewShotConfig(backbone="conv4", pool="flat")
    return FewShotTask(FewShotTaskConfig(episode=EpisodeConfig(**shape), model=model, training=training), splits)


def compare_evaluation(
    task: FewShotTask, images: ImageSet, peer: PeerProcess | None, settings: Settings, report: Report
) -> None:
    """Episodes per second of evaluation."""
    episodes, peer_episodes = settings.pick(tiny=(20, 2), cpu=(10_000, 100), gpu=(10_000, 100))
    model = task.model.to(settings.device).eval()
    classifiers = {"head": model.head, "prototypes": BASELINES["protonet"]}
    timers = {
        name: partial(evaluation_seconds, task, images, classifier, episodes, settings)
        for name, classifier in classifiers.items()
    }
    if peer is not None:
        timers["easyfsl"] = lambda: (
            peer.call(job="evaluate", episodes=peer_episodes, **EVALUATION)["seconds"] * episodes / peer_episodes
        )
    for timer in timers.values():
        timer()
    samples = {name: seconds.rate(episodes) for name, seconds in alternate(timers, 3).items()}
    for name in classifiers:
        row = f"evaluation, {episodes:,} episodes"
        if peer is None:
            report.add(f"{row}, {name}", samples[name], "episodes/s")
        else:
            report.compare(row, (name, samples[name]), ("easyfsl", samples["easyfsl"]), unit="episodes/s")


def evaluation_seconds(
    task: FewShotTask, images: ImageSet, classifier: object, episodes: int, settings: Settings
) -> float:
    """Seconds to embed all images and to evaluate episodes."""
    start = time.perf_counter()
    embeddings = task.model.eval().embed_pixels(images.pixels)
    setting = Setting(EVALUATION["way"], EVALUATION["shot"])
    options = {"query": EVALUATION["query"], "episodes": episodes, "with_unknown": False}
    evaluate_episodes(classifier, embeddings, episode_classes(images), setting, **options).interval()
    if settings.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare_training(
    name: str, task: FewShotTask, shape: dict[str, int], peer: PeerProcess | None, settings: Settings, report: Report
) -> None:
    """Episodes per second of training."""
    episodes = settings.pick(tiny=1, cpu=8, gpu=30)
    timers = {"ours": partial(training_seconds, task, settings)}
    if peer is not None:
        timers["easyfsl"] = lambda: peer.call(job="train", episodes=episodes, **shape)["seconds"] / episodes
    samples = {name: seconds.rate() for name, seconds in alternate(timers, settings.pick(tiny=1, cpu=3, gpu=3)).items()}
    if peer is None:
        report.add(f"training, {name}", samples["ours"], "episodes/s")
    else:
        both = ("training loop", samples["ours"]), ("easyfsl, training", samples["easyfsl"])
        report.compare(f"training, {name}", *both, unit="episodes/s")


def training_seconds(task: FewShotTask, settings: Settings) -> float:
    """Seconds per episode of the training loop, from the second half of its log."""
    with tempfile.TemporaryDirectory() as folder:
        group = ProcessGroup(0, 1, torch.device(settings.device))
        Trainer(task, task.config.training, Path(folder), group, hooks=[MetricsFile()]).fit()
        records = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return 1 / [record["episodes_per_second"] for record in records if "loss" in record][-1]
