import functools
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from processes import SMALL, CommandProcess, normalize_by_one_image, signal_at_step
from sightline.data.images import datasets as sets
from sightline.data.images.augmentation import Augment
from sightline.data.images.loading import ImageSet, Splits
from sightline.models.image_classifier import ImageClassifierConfig
from sightline.tasks.image_classification.evaluate import calibration_scale, metrics, tally
from sightline.tasks.image_classification.task import ImageData, ImageTask, Recipe
from sightline.training.config import TrainingConfig
from sightline.training.task import BatchSlice

CPU = torch.device("cpu")


def images(count=23, side=8):
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 1, side, side), dtype=torch.uint8, generator=random)
    return ImageSet(pixels, torch.arange(count) % 3, ("a", "b", "c"))


def made(count=23, *, augment=None, label_smoothing=0.0, validation=0.0):
    recipe = Recipe(
        data=ImageData(validation=validation),
        augment=augment or Augment(),
        model=ImageClassifierConfig(width=8, num_heads=2, depth=1),
        training=TrainingConfig(label_smoothing=label_smoothing),
    )
    return ImageTask(recipe, Splits(images(count)))


def batch(task, step, part=None, size=6):
    return next(task.batches(step, size, part or BatchSlice()))


def seen(task, step, size):
    """Which images a batch holds, found again by their pixels."""
    ((pixels, _, _),) = batch(task, step, size=size)
    every = task.train.pixels.float() / 255
    return [int((every == image).flatten(1).all(1).nonzero()[0]) for image in pixels]


def test_an_epoch_holds_every_image_once_in_an_order_of_its_own():
    task = made(24)
    first = [index for step in range(4) for index in seen(task, step, 6)]
    second = [index for step in range(4, 8) for index in seen(task, step, 6)]
    assert sorted(first) == sorted(second) == list(range(24))
    assert first != second
    assert task.steps_per_epoch(6) == 4


def test_a_batch_larger_than_the_set_holds_every_image():
    assert sorted(seen(made(7), 0, 14)) == sorted([*range(7)] * 2)


def test_a_step_is_the_same_wherever_training_began():
    task = made(augment=Augment(crop=1, rotate=10.0, mixup=0.3))
    stream = task.batches(0, 6, BatchSlice())
    later = [next(stream) for _ in range(6)][5]
    for one, two in zip(later[0], batch(task, 5)[0], strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_parts_and_pieces_make_up_the_batch():
    task = made(augment=Augment(crop=1, rotate=10.0, mixup=0.3))
    ((pixels, targets, total),) = batch(task, 3, size=12)
    parts = [piece for rank in range(2) for piece in batch(task, 3, BatchSlice(rank, 2, 3), size=12)]
    torch.testing.assert_close(torch.cat([part[0] for part in parts]), pixels, rtol=0, atol=0)
    torch.testing.assert_close(torch.cat([part[1] for part in parts]), targets, rtol=0, atol=0)
    assert {part[2] for part in parts} == {total} == {12}


def test_losses_of_pieces_sum_to_that_of_the_batch_and_labels_are_smoothed():
    for smoothing in (0.0, 0.2):
        task = made(label_smoothing=smoothing)
        ((pixels, labels, _),) = batch(task, 0)
        shares = F.one_hot(labels, 3) * (1 - smoothing) + smoothing / 3
        expected = -(shares * task.model(pixels).log_softmax(-1)).sum(-1).mean()
        found = sum(task.loss(task.model, piece) for piece in batch(task, 0, BatchSlice(0, 1, 3)))
        torch.testing.assert_close(found, expected)


def test_one_class_alone_is_refused():
    one = replace(images(), labels=torch.zeros(23, dtype=torch.int64))
    with pytest.raises(ValueError, match="data must have images of at least 2 classes to tell apart"):
        ImageTask(Recipe(), Splits(one))


def test_mixed_neighbors_must_come_to_the_same_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    recipe = Recipe(augment=Augment(mixup=0.2), training=TrainingConfig(batch_size=6))
    rule = "training.batch_size must be a multiple of 2 times processes times training.gradient_accumulation_steps, 2 x 2 x 1, where"
    with pytest.raises(ValueError, match=rule + " augment.mixup or augment.cutmix mixes neighbors, got 6"):
        ImageTask(recipe, Splits(images()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recipe(seed=2**63), "seed must be at most"),
        (
            lambda: Recipe(training=TrainingConfig(batch_size=2**40)),
            "training.batch_size must be at most 1,048,576, got",
        ),
        (lambda: ImageClassifierConfig(width=10**9), "width must be at most 16,384, got 1000000000"),
        (lambda: ImageClassifierConfig(head_dim=10**9), "head_dim must be at most"),
        (lambda: Augment(crop=10**20), "crop must be at most 4,096, got"),
    ],
)
def test_numbers_beyond_all_measure_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Fixed(nn.Module):
    """Says of every image what its first pixel says."""

    def forward(self, pixels):
        return F.one_hot((pixels[:, 0, 0, 0] * 255).round().long() % 3, 3) * 2.0


@pytest.mark.parametrize("world", [1, 2, 3, 5, 40])
def test_what_is_counted_does_not_depend_on_who_counts(world):
    """23 images among processes that cannot share them evenly; more processes than images too."""
    every = images()
    parts = [tally(Fixed(), every, BatchSlice(rank, world), CPU) for rank in range(world)]
    sums = {name: sum(part[name] for part in parts) for name in parts[0]}
    answers = every.pixels[:, 0, 0, 0].long() % 3
    right = (answers == every.labels).double().mean()
    found = metrics(sums)
    assert float(sums["seen"].sum()) == 23
    assert found["accuracy"] == pytest.approx(float(right))
    sure = float(torch.tensor([2.0, 0.0, 0.0]).softmax(-1)[0])
    assert found["calibration_error"] == pytest.approx(abs(sure - float(right)))
    logits = F.one_hot(answers, 3) * 2.0
    assert found["loss"] == pytest.approx(float(F.cross_entropy(logits, every.labels)))


def test_large_images_are_judged_a_few_at_a_time(monkeypatch):
    sizes = []
    model = Fixed()
    model.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    every = images(11, side=64)
    tally(model, every, BatchSlice(), CPU, most=4)
    assert sizes == [4, 4, 3]
    sizes.clear()
    monkeypatch.setattr(sets, "BYTES_AT_ONCE", 3 * 64 * 64 + 5)
    tally(model, every, BatchSlice(), CPU)
    calibration_scale(model, every, CPU)
    assert sizes == [3, 3, 3, 2] * 2
    monkeypatch.setattr(sets, "BYTES_AT_ONCE", 1)
    assert sets.at_once(every, 512) == 1


def test_no_more_images_are_judged_in_one_go_than_are_learned_from():
    recipe = Recipe(training=TrainingConfig(batch_size=48, gradient_accumulation_steps=3))
    assert (recipe.evaluated_at_once(), recipe.evaluated_at_once(2)) == (16, 8)
    assert Recipe(training=TrainingConfig(batch_size=4096)).evaluated_at_once(2) == 512


def test_images_are_normalized_by_their_mean_and_spread():
    task = made(23)
    pixels = task.train.pixels.double() / 255
    torch.testing.assert_close(task.model.mean.flatten(), pixels.mean((0, 2, 3)).float())
    torch.testing.assert_close(task.model.std.flatten(), pixels.std((0, 2, 3), correction=0).float())


@pytest.fixture
def folders(tmp_path):
    """Class folders of small pictures."""
    random = np.random.default_rng(0)
    for name, level in (("dark", 0), ("gray", 60), ("light", 120)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(9):
            pixels = (random.integers(0, 120, (8, 8)) + level).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    return tmp_path


TRAIN = ("train", "data.source=images", "data.validation_fraction=0.2", *SMALL)


def losses(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line.get("loss", line.get("validation")) for line in lines]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_read_while_training_gives_the_losses_of_one_in_memory(folders, workers):
    streams = CommandProcess(*TRAIN, "out=streams", "data.cache_mib=0", f"data.num_workers={workers}", cwd=folders)
    memory = CommandProcess(*TRAIN, "out=memory", cwd=folders)
    assert streams.wait() == 0, streams.output
    assert memory.wait() == 0, memory.output
    assert losses(folders / "streams") == losses(folders / "memory")
    weights = [(folders / run / "model.safetensors").read_bytes() for run in ("streams", "memory")]
    assert weights[0] == weights[1]


def test_images_that_stay_in_their_files_are_measured_a_few_at_a_time_and_the_user_sees_it(folders, monkeypatch):
    monkeypatch.setattr(sets, "BYTES_AT_ONCE", 10 * 64)
    data = ImageData(source=str(folders / "images"), memory=0, validation=0)
    done = []
    task = ImageTask(Recipe(data=data), progress=lambda *counts: done.append(counts))
    assert done == [(10, 27), (20, 27), (27, 27)]
    memory = ImageTask(Recipe(data=replace(data, memory=1)))
    torch.testing.assert_close(task.model.mean, memory.model.mean, rtol=0, atol=0)


def test_what_was_read_while_training_goes_on_in_memory_and_not_with_other_files(folders):
    words = (*TRAIN, "out=run", "data.num_workers=0")
    killing = functools.partial(signal_at_step, 6, signal.SIGKILL)
    assert CommandProcess(*words, "data.cache_mib=0", cwd=folders, prepare=killing).wait() == -signal.SIGKILL
    (folders / "images/gray/3.png").rename(folders / "images/gray/3x.png")
    child = CommandProcess(*words, "data.cache_mib=0", "--resume", cwd=folders)
    assert child.wait() == 2, child.output
    assert "data.source must hold what it held when run began, to go on with it: train.files must be" in child.output
    (folders / "images/gray/3x.png").rename(folders / "images/gray/3.png")
    child = CommandProcess(*words, "--resume", cwd=folders)
    assert child.wait() == 0, child.output


def children_of(pid):
    """Processes this one started, as the system knows them."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are looked up in /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
@pytest.mark.parametrize("everyone", [False, True], ids=["to the first process", "to all of them"])
def test_a_signal_leaves_no_process_behind(folders, number, code, everyone):
    """A terminal sends Ctrl-C, and a service manager SIGTERM, to the workers too."""
    words = ("out=run", "data.cache_mib=0", "training.steps=100000", "training.evaluate_every=100000")
    child = CommandProcess(*TRAIN, *words, cwd=folders)
    child.wait_for(lambda: "step 3/" in child.output)
    workers = children_of(child.process.pid)
    assert len(workers) == 2
    for pid in workers if everyone else ():
        os.kill(pid, number)
    assert child.send(number).wait(20) == code, child.output
    if number != signal.SIGKILL:
        assert "Traceback" not in child.output
        assert "saved at step" in child.output
    end = time.monotonic() + 20
    while any(map(alive, workers)):  # that a parent was killed is noticed within seconds
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_cannot_be_read_ends_training_in_one_line(folders, workers):
    """It is met in training: of a large set only some images are read before."""
    (folders / "images/gray/3.png").write_bytes((folders / "images/gray/4.png").read_bytes()[:60])
    words = ("out=run", "data.cache_mib=0", f"data.num_workers={workers}", "data.image_size=8", "data.channels=1")
    child = CommandProcess(*TRAIN, *words, cwd=folders, prepare=normalize_by_one_image)
    assert child.wait(30) == 2, child.output
    error = child.output.splitlines()[-1]
    assert error.startswith("error: ")
    assert "3.png" in error
    assert "Traceback" not in child.output
    assert (folders / "run").is_dir()


class _Fixed(torch.nn.Module):
    """Says for each image, by its first pixel, how sure it is of class 0 against class 1."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        odds = images[:, 0, 0, 0] * 255 / 50
        return torch.stack((odds, torch.zeros_like(odds)), 1)


@pytest.mark.parametrize("factor", [0.4, 1.0, 2.5])
def test_sharpness_makes_confidence_true(factor: float) -> None:
    random = torch.Generator().manual_seed(0)
    odds = torch.randint(0, 200, (4000,), generator=random)
    really = (factor * odds / 50).sigmoid()
    labels = (torch.rand(4000, generator=random) > really).long()
    images = ImageSet(odds.to(torch.uint8).view(-1, 1, 1, 1), labels, ("yes", "no"))
    found = calibration_scale(_Fixed(), images, torch.device("cpu"))
    assert found == pytest.approx(factor, rel=0.12)


def test_sharpness_is_not_certain_because_all_was_right() -> None:
    images = ImageSet(torch.full((10, 1, 1, 1), 100, dtype=torch.uint8), torch.zeros(10, dtype=torch.int64), ("a", "b"))
    found = calibration_scale(_Fixed(), images, torch.device("cpu"))
    assert torch.tensor(2.0 * found).sigmoid().item() == pytest.approx(10.5 / 11, abs=0.001)
