"""Few-shot speed against easyfsl 1.5: the same Conv4, the same images, episodes of the same shape, in turns.

easyfsl lives in an environment of its own and runs there in a process of its own (easyfsl_peer.py says what it takes):

    python -m venv .peers/easyfsl
    .peers/easyfsl/bin/pip install torch==2.13.0 numpy pillow pandas matplotlib tqdm
    .peers/easyfsl/bin/pip install --no-deps easyfsl==1.5.0 torchvision==0.28.0
    python benchmarks/few_shot_speed.py --data data/omniglot/omniglot_105_packed.npz --peer .peers/easyfsl/bin/python

Without --peer only ours runs, without --data on the drawn glyphs. On a GPU both compute there, ours in bfloat16 with
many episodes at once.

Evaluation is 5-way 1-shot with 15 queries of each class. Ours is all of it: every test image embedded once, then 10,000
episodes with the head. easyfsl does `PEER_EPISODES` with its own `evaluate`, scaled up to 10,000: it does one after the
other, so time is in proportion. Training is the rate of our loop, its log and schedule included, with the head on top;
easyfsl trains its prototypical network as its tutorials do. Neither augments. Its images lie in memory, ready to use.
Ratios are of medians over `ROUNDS` turns.
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

from sightline.data.episodes import ClassIndex
from sightline.data.images.class_splits import ClassSplits, load_classes
from sightline.data.images.datasets import ImageSet
from sightline.models.baselines import BASELINES
from sightline.models.few_shot import FewShotConfig
from sightline.tasks.few_shot.evaluate import embed_all, tally
from sightline.tasks.few_shot.task import Episode, FewShotTask, Recipe
from sightline.training import loop
from sightline.training.config import TrainingConfig

SIZE, ROUNDS = 28, 3
EPISODES, PEER_EPISODES = 10_000, 100
JUDGED = {"way": 5, "shot": 1, "query": 15}
TRAINED = {"20w5s": {"way": 20, "shot": 5, "query": 5}, "20w1s": {"way": 20, "shot": 1, "query": 5}}
STEPS = {"cpu": 8, "cuda": 30}
TOGETHER = {"cpu": 1, "cuda": 128}
"""Episodes behind one update: on a CPU many at once do not pay."""


def task(splits: ClassSplits, shape: dict[str, int], device: str) -> FewShotTask:
    """A model of Conv4 and the head, and its episodes."""
    training = TrainingConfig(
        steps=2 * STEPS[device],
        batch_size=TOGETHER[device],
        log_every=STEPS[device],
        evaluate_every=10**9,
        device=device,
        compile=device == "cuda",
    )
    torch.manual_seed(0)
    return FewShotTask(
        Recipe(episode=Episode(**shape), model=FewShotConfig(backbone="conv4", pool="flat"), training=training), splits
    )


def trained(of: FewShotTask) -> float:
    """Episodes per second of the loop, from its own log, the first half left out."""
    with tempfile.TemporaryDirectory() as folder:
        loop.train(lambda: of, of.recipe.training, Path(folder), quiet=True)
        lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [line["examples_per_second"] for line in lines if "loss" in line][-1]


def judged(of: FewShotTask, images: ImageSet, device: str) -> dict[str, tuple[float, ...]]:
    """Seconds for the embeddings, and for all episodes after that by each way to answer, with its accuracy."""
    model, place = of.model.to(device).eval(), torch.device(device)
    classes = ClassIndex.from_labels(images.labels, images.classes)
    begun = time.perf_counter()
    embeddings = embed_all(model, images.pixels, place)
    if device == "cuda":
        torch.cuda.synchronize()
    found: dict[str, tuple[float, ...]] = {"embedding": (time.perf_counter() - begun,)}
    for name, answer in {"head": model.head, "protonet": BASELINES["protonet"]}.items():
        begun = time.perf_counter()
        accuracy, _ = tally(answer, embeddings, classes, **JUDGED, episodes=EPISODES, unknown=False).interval()
        found[name] = (time.perf_counter() - begun, accuracy)
    return found


class Peer:
    """easyfsl in a process of its own."""

    def __init__(self, python: str, of: FewShotTask, splits: ClassSplits, folder: Path, device: str):
        weights = of.model.backbone.blocks.state_dict()
        np.savez(folder / "weights.npz", **{name: tensor.numpy() for name, tensor in weights.items()})
        for part in ("train", "test"):
            images: ImageSet = getattr(splits, part)
            ready = (images.pixels.float() / 255 - of.model.mean) / of.model.std
            np.savez(folder / f"{part}.npz", images=ready.numpy(), labels=images.labels.numpy())
        script, threads = str(Path(__file__).with_name("easyfsl_peer.py")), str(torch.get_num_threads())
        words = [python, script, str(folder), threads, device]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.torch = self._answer()["torch"]

    def does(self, verb: str, episodes: int, shape: dict[str, int]) -> tuple[float, float | None]:
        """Seconds for an episode, and the accuracy where it was judged."""
        self.process.stdin.write(json.dumps({"do": verb, "episodes": episodes, **shape}) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        return answer["seconds"] / episodes, answer.get("accuracy")

    def _answer(self) -> dict[str, float]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("easyfsl has ended; its message stands above")
        return json.loads(line)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def middle(rows: list[tuple[float, ...]]) -> list[float]:
    """The median of each column."""
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def evaluation(of: FewShotTask, images: ImageSet, peer: Peer | None, device: str) -> None:
    """All turns of it, and what they come to."""
    ours: list[dict[str, tuple[float, ...]]] = []
    theirs: list[tuple[float, ...]] = []
    for _ in range(ROUNDS):
        ours.append(judged(of, images, device))
        if peer is not None:
            theirs.append(peer.does("evaluate", PEER_EPISODES, JUDGED))
    (embedding,) = middle([turn["embedding"] for turn in ours])
    print(f"evaluation, {EPISODES:,} episodes of 5w1s; {len(images):,} images embedded in {embedding:.2f} s")
    for name in ("head", "protonet"):
        seconds, accuracy = middle([turn[name] for turn in ours])
        total, rate = embedding + seconds, EPISODES / seconds
        print(
            f"  {name:8}  {total:7.2f} s in all, {rate:,.0f} episodes/s once embedded, accuracy {accuracy:.4f}", end=""
        )
        print(f"; easyfsl takes {EPISODES * middle(theirs)[0] / total:.1f} times as long" if theirs else "")
    if theirs:
        each, accuracy = middle(theirs)
        print(f"  easyfsl   {EPISODES * each:7.2f} s, scaled up from {PEER_EPISODES} episodes, accuracy {accuracy:.4f}")


def training(splits: ClassSplits, peer: Peer | None, device: str) -> None:
    """Likewise."""
    for name, shape in TRAINED.items():
        of = task(splits, shape, device)
        rows = []
        for _ in range(ROUNDS):
            rows.append((trained(of), 0.0 if peer is None else 1 / peer.does("train", STEPS[device], shape)[0]))
        ours, theirs = middle(rows)
        beside = f"; easyfsl {theirs:.1f}; ratio {ours / theirs:.2f}" if peer is not None else ""
        print(f"training, {name}, {shape['query']} queries  {ours:,.1f} episodes/s, {TOGETHER[device]} at once{beside}")


def main() -> None:
    """Both, here or on a GPU."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--data", default="glyphs", help="Omniglot as folders or packed; drawn glyphs if not given")
    words.add_argument("--peer", help="the Python of the environment that easyfsl is in")
    words.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    given = words.parse_args()
    read = load_classes(given.data, size=SIZE, channels=1)
    if read.test is None:
        raise SystemExit(f"data must have test classes, got none in {given.data}")
    splits = replace(read, validation=None)
    judge = task(splits, TRAINED["20w1s"], given.device)
    print(f"{Path(given.data).name}, {SIZE} px, Conv4 of 64 channels; {machine(given.device)}")
    with tempfile.TemporaryDirectory() as folder:
        peer = Peer(given.peer, judge, splits, Path(folder), given.device) if given.peer else None
        if peer is not None:
            print(f"easyfsl 1.5 beside torch {peer.torch}")
        evaluation(judge, splits.test, peer, given.device)
        training(splits, peer, given.device)
        if peer is not None:
            peer.close()


if __name__ == "__main__":
    main()
