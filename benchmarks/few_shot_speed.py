"""Few-shot speed against easyfsl 1.5: the same Conv4, images and episode shapes, measured alternately.

easyfsl runs in its own environment and process (see easyfsl_peer.py):

    python -m venv .peers/easyfsl
    .peers/easyfsl/bin/pip install torch==2.13.0 numpy pillow pandas matplotlib tqdm
    .peers/easyfsl/bin/pip install --no-deps easyfsl==1.5.0 torchvision==0.28.0
    python benchmarks/few_shot_speed.py --data data/omniglot/omniglot_105_packed.npz --peer .peers/easyfsl/bin/python

Without --peer, only Sightline is measured; without --data, on the drawn glyphs. On a GPU, Sightline computes in
bfloat16 with many episodes per batch.

Evaluation is 5-way 1-shot with 15 queries per class. Sightline embeds every test image once and evaluates 10,000
episodes with the head. easyfsl evaluates `PEER_EPISODES` with its `evaluate`, scaled to 10,000: it computes one episode
at a time. Training is the rate of the training loop with log and schedule, with the head on top. easyfsl trains its
prototypical network as its tutorials do. Neither augments images, and both have them in memory. Ratios are those of
medians over `ROUNDS`.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from clock import machine

from sightline.data.images.class_splits import ClassSplits, load_classes
from sightline.data.images.datasets import ImageSet
from sightline.models.baselines import BASELINES
from sightline.models.few_shot import FewShotConfig
from sightline.tasks.few_shot.config import EpisodeConfig, FewShotTaskConfig, Setting
from sightline.tasks.few_shot.evaluate import episode_classes, evaluate_episodes
from sightline.tasks.few_shot.task import FewShotTask
from sightline.training.config import TrainingConfig
from sightline.training.distributed import ProcessGroup
from sightline.training.hooks import MetricsFile
from sightline.training.loop import Trainer

SIZE, ROUNDS = 28, 3
EPISODES, PEER_EPISODES = 10_000, 100
EVALUATION = {"way": 5, "shot": 1, "query": 15}
TRAINING = {"20w5s": {"way": 20, "shot": 5, "query": 5}, "20w1s": {"way": 20, "shot": 1, "query": 5}}
STEPS = {"cpu": 8, "cuda": 30}
BATCH_SIZES = {"cpu": 1, "cuda": 128}
"""Episodes per step; larger batches are not faster on a CPU."""


def make_task(splits: ClassSplits, shape: dict[str, int], device: str) -> FewShotTask:
    """A Conv4 with the head, and its training episodes."""
    training = TrainingConfig(
        steps=2 * STEPS[device],
        batch_size=BATCH_SIZES[device],
        log_every=STEPS[device],
        evaluate_every=10**9,
        device=device,
        compile=device == "cuda",
    )
    torch.manual_seed(0)
    model = FewShotConfig(backbone="conv4", pool="flat")
    return FewShotTask(FewShotTaskConfig(episode=EpisodeConfig(**shape), model=model, training=training), splits)


def training_rate(task: FewShotTask, device: str) -> float:
    """Episodes per second of the training loop, from the second half of its log."""
    training = task.config.training
    with tempfile.TemporaryDirectory() as folder:
        group = ProcessGroup(0, 1, torch.device(device))
        Trainer(task, training, Path(folder), group, hooks=[MetricsFile()]).fit()
        records = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [record["episodes_per_second"] for record in records if "loss" in record][-1]


def evaluation_times(task: FewShotTask, images: ImageSet, device: str) -> dict[str, tuple[float, ...]]:
    """Seconds for the embeddings; seconds for all episodes and accuracy of each classifier."""
    model, classes = task.model.to(device).eval(), episode_classes(images)
    start = time.perf_counter()
    embeddings = model.embed_pixels(images.pixels)
    if device == "cuda":
        torch.cuda.synchronize()
    times: dict[str, tuple[float, ...]] = {"embedding": (time.perf_counter() - start,)}
    setting = Setting(EVALUATION["way"], EVALUATION["shot"])
    options = {"query": EVALUATION["query"], "episodes": EPISODES, "with_unknown": False}
    for name, classifier in {"head": model.head, "protonet": BASELINES["protonet"]}.items():
        start = time.perf_counter()
        accuracy, _ = evaluate_episodes(classifier, embeddings, classes, setting, **options).interval()
        times[name] = (time.perf_counter() - start, accuracy)
    return times


class Peer:
    """easyfsl in its own process."""

    def __init__(self, python: str, task: FewShotTask, splits: ClassSplits, folder: Path, device: str):
        weights = task.model.backbone.blocks.state_dict()
        np.savez(folder / "weights.npz", **{name: tensor.numpy() for name, tensor in weights.items()})
        for split in ("train", "test"):
            images: ImageSet = getattr(splits, split)
            normalized = (images.pixels.float() / 255 - task.model.mean) / task.model.std
            np.savez(folder / f"{split}.npz", images=normalized.numpy(), labels=images.labels.numpy())
        script, threads = str(Path(__file__).with_name("easyfsl_peer.py")), str(torch.get_num_threads())
        command = [python, script, str(folder), threads, device]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.torch = self._read()["torch"]

    def measure(self, job: str, episodes: int, shape: dict[str, int]) -> tuple[float, float | None]:
        """Seconds per episode of `train` or `evaluate`, and the accuracy of the latter."""
        self.process.stdin.write(json.dumps({"job": job, "episodes": episodes, **shape}) + "\n")
        self.process.stdin.flush()
        result = self._read()
        return result["seconds"] / episodes, result.get("accuracy")

    def _read(self) -> dict[str, float]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("easyfsl has ended; its error is above")
        return json.loads(line)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def medians(rows: list[tuple[float, ...]]) -> list[float]:
    """The median of each column."""
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def evaluation(task: FewShotTask, images: ImageSet, peer: Peer | None, device: str) -> None:
    """Measure evaluation alternately and print the results."""
    times: list[dict[str, tuple[float, ...]]] = []
    peer_times: list[tuple[float, ...]] = []
    for _ in range(ROUNDS):
        times.append(evaluation_times(task, images, device))
        if peer is not None:
            peer_times.append(peer.measure("evaluate", PEER_EPISODES, EVALUATION))
    (embedding,) = medians([times_of_round["embedding"] for times_of_round in times])
    print(f"evaluation, {EPISODES:,} episodes of 5w1s; {len(images):,} images embedded in {embedding:.2f} s")
    for name in ("head", "protonet"):
        seconds, accuracy = medians([times_of_round[name] for times_of_round in times])
        total, rate = embedding + seconds, EPISODES / seconds
        text = f"  {name:8}  {total:7.2f} s in total, {rate:,.0f} episodes/s once embedded, accuracy {accuracy:.4f}"
        ratio = f"; easyfsl takes {EPISODES * medians(peer_times)[0] / total:.1f} times as long" if peer_times else ""
        print(text + ratio)
    if peer_times:
        seconds, accuracy = medians(peer_times)
        total = EPISODES * seconds
        print(f"  easyfsl   {total:7.2f} s, scaled from {PEER_EPISODES} episodes, accuracy {accuracy:.4f}")


def training(splits: ClassSplits, peer: Peer | None, device: str) -> None:
    """Measure training alternately and print the results."""
    for name, shape in TRAINING.items():
        task, rows = make_task(splits, shape, device), []
        for _ in range(ROUNDS):
            peer_rate = 0.0 if peer is None else 1 / peer.measure("train", STEPS[device], shape)[0]
            rows.append((training_rate(task, device), peer_rate))
        rate, peer_rate = medians(rows)
        ratio = f"; easyfsl {peer_rate:.1f}; ratio {rate / peer_rate:.2f}" if peer is not None else ""
        print(
            f"training, {name}, {shape['query']} queries  {rate:,.1f} episodes/s, {BATCH_SIZES[device]} per step{ratio}"
        )


def main() -> None:
    """Measure evaluation and training."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="glyphs", help="Omniglot as folders or packed (default: drawn glyphs)")
    parser.add_argument("--peer", help="Python of the environment of easyfsl")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    arguments = parser.parse_args()
    splits = load_classes(arguments.data, size=SIZE, channels=1)
    if splits.test is None:
        raise SystemExit(f"data must have test classes, got none in {arguments.data}")
    splits = replace(splits, validation=None)
    task = make_task(splits, TRAINING["20w1s"], arguments.device)
    print(f"{Path(arguments.data).name}, {SIZE} px, Conv4 of 64 channels; {machine(arguments.device)}")
    with tempfile.TemporaryDirectory() as folder:
        peer = Peer(arguments.peer, task, splits, Path(folder), arguments.device) if arguments.peer else None
        if peer is not None:
            print(f"easyfsl 1.5 with torch {peer.torch}")
        evaluation(task, splits.test, peer, arguments.device)
        training(splits, peer, arguments.device)
        if peer is not None:
            peer.close()


if __name__ == "__main__":
    main()
