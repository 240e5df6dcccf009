"""Training of an image classifier: batches, loss, validation metrics, calibration and images read from files."""

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

from processes import SMALL, TIMEOUT, CommandProcess, normalize_by_one_image, signal_at_step
from sightline.data.images import datasets
from sightline.data.images.augmentation import AugmentConfig
from sightline.data.images.datasets import ImageSet, Splits
from sightline.errors import SightlineError
from sightline.metrics import classification_metrics, fit_calibration_scale
from sightline.models.image_classifier import ImageClassifierConfig
from sightline.tasks.image_classification.config import ImageClassificationTaskConfig, ImageData
from sightline.tasks.image_classification.evaluate import evaluate, logits_and_labels
from sightline.tasks.image_classification.task import ImageClassificationTask
from sightline.training.config import TrainingConfig
from sightline.training.task import BatchSlice

OPTIONS = {"device": torch.device("cpu"), "batch_size": 512, "num_workers": 0}


def random_images(count=23, side=8):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 1, side, side), dtype=torch.uint8, generator=generator)
    return ImageSet(pixels, torch.arange(count) % 3, ("a", "b", "c"))


def make_task(count=23, **options):
    model = ImageClassifierConfig(embed_dim=8, num_heads=2, depth=1)
    data = ImageData(validation_fraction=0)
    config = ImageClassificationTaskConfig(data=data, model=model, **options)
    return ImageClassificationTask(config, Splits(random_images(count)))


def batch_at(task, step, batch_slice=None, batch_size=6):
    return next(task.batches(step, batch_size, batch_slice or BatchSlice()))


def image_indices(task, step, batch_size):
    """Indices of the images of a batch, found by their pixels."""
    ((pixels, _, _),) = batch_at(task, step, batch_size=batch_size)
    images = task.train.pixels.float() / 255
    return [int((images == image).flatten(1).all(1).nonzero()[0]) for image in pixels]


def test_an_epoch_contains_every_image_once_in_its_own_order():
    task = make_task(24)
    first = [index for step in range(4) for index in image_indices(task, step, 6)]
    second = [index for step in range(4, 8) for index in image_indices(task, step, 6)]
    assert sorted(first) == sorted(second) == list(range(24))
    assert first != second
    assert task.steps_per_epoch(6) == 4


def test_a_batch_larger_than_the_data_repeats_every_image():
    assert sorted(image_indices(make_task(7), 0, 14)) == sorted([*range(7)] * 2)


def test_a_batch_does_not_depend_on_the_first_step():
    task = make_task(augment=AugmentConfig(crop=1, rotate=10.0, mixup=0.3))
    batches = task.batches(0, 6, BatchSlice())
    sixth = [next(batches) for _ in range(6)][5]
    torch.testing.assert_close(sixth[0], batch_at(task, 5)[0], rtol=0, atol=0)


def test_micro_batches_of_all_processes_concatenate_to_the_batch():
    task = make_task(augment=AugmentConfig(crop=1, rotate=10.0, mixup=0.3))
    ((pixels, targets, batch_size),) = batch_at(task, 3, batch_size=12)
    slices = [BatchSlice(rank, 2, 3) for rank in range(2)]
    micro_batches = [micro_batch for part in slices for micro_batch in batch_at(task, 3, part, 12)]
    torch.testing.assert_close(torch.cat([batch[0] for batch in micro_batches]), pixels, rtol=0, atol=0)
    torch.testing.assert_close(torch.cat([batch[1] for batch in micro_batches]), targets, rtol=0, atol=0)
    assert {batch[2] for batch in micro_batches} == {batch_size} == {12}


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_losses_of_micro_batches_add_up_to_the_smoothed_cross_entropy(smoothing):
    task = make_task(label_smoothing=smoothing)
    ((pixels, labels, _),) = batch_at(task, 0)
    targets = F.one_hot(labels, 3) * (1 - smoothing) + smoothing / 3
    expected = -(targets * task.model(pixels).log_softmax(-1)).sum(-1).mean()
    actual = sum(task.loss(task.model, micro_batch) for micro_batch in batch_at(task, 0, BatchSlice(0, 1, 3)))
    torch.testing.assert_close(actual, expected)


def test_images_are_normalized_by_their_mean_and_standard_deviation():
    task = make_task()
    pixels = task.train.pixels.double() / 255
    torch.testing.assert_close(task.model.mean.flatten(), pixels.mean((0, 2, 3)).float())
    torch.testing.assert_close(task.model.std.flatten(), pixels.std((0, 2, 3), correction=0).float())


def test_data_of_one_class_is_refused():
    images = replace(random_images(), labels=torch.zeros(23, dtype=torch.int64))
    with pytest.raises(SightlineError, match="data must have images of at least 2 classes"):
        ImageClassificationTask(ImageClassificationTaskConfig(), Splits(images))


def test_mixed_pairs_must_be_in_one_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    config = ImageClassificationTaskConfig(augment=AugmentConfig(mixup=0.2), training=TrainingConfig(batch_size=6))
    message = "training.batch_size must be a multiple of 2 x 2 .* where augment.mixup or augment.cutmix is used, got 6"
    with pytest.raises(SightlineError, match=message):
        ImageClassificationTask(config, Splits(random_images()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ImageClassificationTaskConfig(seed=2**63), "seed must be an integer of at most 63 bits"),
        (
            lambda: ImageClassificationTaskConfig(training=TrainingConfig(batch_size=2**40)),
            "training.batch_size must be at most 1,048,576, got",
        ),
        (lambda: ImageClassificationTaskConfig(label_smoothing=1.0), "label_smoothing must be at least 0 and below 1"),
        (lambda: ImageClassifierConfig(embed_dim=10**9), "embed_dim must be at most 16,384, got 1000000000"),
        (lambda: ImageClassifierConfig(head_dim=10**9), "head_dim must be at most"),
        (lambda: AugmentConfig(crop=10**18), "crop must be at most 4,096, got"),
    ],
)
def test_values_beyond_a_limit_are_refused(make, message):
    with pytest.raises(SightlineError, match=message):
        make()


class FixedModel(nn.Module):
    """Predicts the class from the first pixel of an image."""

    def forward(self, pixels):
        return F.one_hot((pixels[:, 0, 0, 0] * 255).round().long() % 3, 3) * 2.0


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 40])
def test_validation_metrics_do_not_depend_on_the_number_of_processes(world_size):
    """23 images do not divide evenly; 40 processes are more than there are images."""
    images = random_images()
    slices = [BatchSlice(rank, world_size) for rank in range(world_size)]
    sums_by_rank = [evaluate(FixedModel(), images, batch_slice=part, **OPTIONS) for part in slices]
    sums = {name: sum(part[name] for part in sums_by_rank) for name in sums_by_rank[0]}
    predicted = images.pixels[:, 0, 0, 0].long() % 3
    accuracy = float((predicted == images.labels).double().mean())
    confidence = float(torch.tensor([2.0, 0.0, 0.0]).softmax(-1)[0])
    metrics = classification_metrics(sums)
    assert float(sums["total"].sum()) == 23
    assert metrics["accuracy"] == pytest.approx(accuracy)
    assert metrics["calibration_error"] == pytest.approx(abs(confidence - accuracy))
    assert metrics["loss"] == pytest.approx(float(F.cross_entropy(F.one_hot(predicted, 3) * 2.0, images.labels)))


def test_evaluation_batches_are_limited_by_size_and_by_bytes(monkeypatch):
    sizes, model, images = [], FixedModel(), random_images(11, side=64)
    model.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    evaluate(model, images, **OPTIONS | {"batch_size": 4})
    assert sizes == [4, 4, 3]
    sizes.clear()
    monkeypatch.setattr(datasets, "CHUNK_BYTES", 3 * 64 * 64 + 5)
    evaluate(model, images, **OPTIONS)
    logits_and_labels(model, images, **OPTIONS)
    assert sizes == [3, 3, 3, 2] * 2
    monkeypatch.setattr(datasets, "CHUNK_BYTES", 1)
    assert datasets.chunk_size(images, 512) == 1


def test_evaluation_batch_is_at_most_a_training_micro_batch():
    config = ImageClassificationTaskConfig(training=TrainingConfig(batch_size=48, gradient_accumulation_steps=3))
    assert [config.evaluation_options(processes)["batch_size"] for processes in (1, 2)] == [16, 8]
    config = ImageClassificationTaskConfig(training=TrainingConfig(batch_size=4096))
    assert config.evaluation_options(2)["batch_size"] == 512


class ConfidenceModel(nn.Module):
    """The logit of the first of two classes is given by the first pixel of an image."""

    def forward(self, pixels):
        logit = pixels[:, 0, 0, 0] * 255 / 50
        return torch.stack((logit, torch.zeros_like(logit)), 1)


@pytest.mark.parametrize("scale", [0.4, 1.0, 2.5])
def test_calibration_scale_recovers_the_scale_of_the_labels(scale):
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 200, (4000,), generator=generator)
    labels = (torch.rand(4000, generator=generator) > (scale * values / 50).sigmoid()).long()
    images = ImageSet(values.to(torch.uint8).view(-1, 1, 1, 1), labels, ("yes", "no"))
    fitted = fit_calibration_scale([logits_and_labels(ConfidenceModel(), images, **OPTIONS)])
    assert fitted == pytest.approx(scale, rel=0.12)


def test_calibration_scale_is_finite_where_every_prediction_is_correct():
    pixels, labels = torch.full((10, 1, 1, 1), 100, dtype=torch.uint8), torch.zeros(10, dtype=torch.int64)
    images = ImageSet(pixels, labels, ("a", "b"))
    fitted = fit_calibration_scale([logits_and_labels(ConfidenceModel(), images, **OPTIONS)])
    assert torch.tensor(2.0 * fitted).sigmoid().item() == pytest.approx(10.5 / 11, abs=0.001)


def test_finish_calibrates_on_the_validation_set():
    task = make_task()
    before = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
    assert task.finish(before) == (before, {})  # no validation set
    task.validation = random_images(49)
    assert task.finish(before) == (before, {})
    task.validation = random_images(50)
    weights, metrics = task.finish(before)
    assert [name for name in before if not weights[name].equal(before[name])] == ["calibration_scale"]
    with torch.no_grad():
        uncalibrated = classification_metrics(evaluate(task.model.eval(), task.validation, **OPTIONS))
    assert metrics["loss"] < uncalibrated["loss"]
    assert metrics["accuracy"] == uncalibrated["accuracy"]


@pytest.fixture
def home(tmp_path):
    """A folder with class folders of small images in `images`."""
    random = np.random.default_rng(0)
    for name, level in (("dark", 0), ("gray", 60), ("light", 120)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(9):
            pixels = (random.integers(0, 120, (8, 8)) + level).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    return tmp_path


TRAIN = ("train", "data.source=images", "data.validation_fraction=0.2", *SMALL)


def logged_metrics(run):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record.get("loss", record.get("validation")) for record in records]


@pytest.mark.parametrize("workers", [0, 2])
def test_images_read_from_files_give_the_weights_of_images_in_memory(home, workers):
    files = CommandProcess(*TRAIN, "out=files", "data.cache_mib=0", f"data.num_workers={workers}", cwd=home)
    memory = CommandProcess(*TRAIN, "out=memory", cwd=home)
    assert files.wait() == 0, files.output
    assert memory.wait() == 0, memory.output
    assert logged_metrics(home / "files") == logged_metrics(home / "memory")
    weights = [(home / run / "model.safetensors").read_bytes() for run in ("files", "memory")]
    assert weights[0] == weights[1]


def test_normalization_of_images_in_files_reports_progress(home, monkeypatch):
    monkeypatch.setattr(datasets, "CHUNK_BYTES", 10 * 64)
    calls, tasks = [], []
    for cache_mib in (0, 1):
        data = ImageData(source=str(home / "images"), cache_mib=cache_mib, validation_fraction=0)
        config = ImageClassificationTaskConfig(data=data)
        splits = ImageClassificationTask.load_data(config)
        tasks.append(ImageClassificationTask(config, splits, lambda *progress: calls.append(progress)))
    assert calls == [(10, 27), (20, 27), (27, 27)]
    torch.testing.assert_close(tasks[0].model.mean, tasks[1].model.mean, rtol=0, atol=0)


def test_a_run_that_reads_files_resumes_in_memory_but_not_with_other_files(home):
    arguments = (*TRAIN, "out=run", "data.num_workers=0")
    kill = functools.partial(signal_at_step, 6, signal.SIGKILL)
    assert CommandProcess(*arguments, "data.cache_mib=0", cwd=home, prepare=kill).wait() == -signal.SIGKILL
    (home / "images/gray/3.png").rename(home / "images/gray/3x.png")
    process = CommandProcess(*arguments, "data.cache_mib=0", "--resume", cwd=home)
    assert process.wait() == 2, process.output
    assert "data.source must hold the data that run was started with, to resume it: train.files" in process.output
    (home / "images/gray/3x.png").rename(home / "images/gray/3.png")
    process = CommandProcess(*arguments, "--resume", cwd=home)
    assert process.wait() == 0, process.output


def child_processes(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
@pytest.mark.parametrize("to_workers", [False, True], ids=["main process", "all processes"])
def test_a_signal_leaves_no_process_behind(home, number, code, to_workers):
    """A terminal sends SIGINT, and a service manager SIGTERM, to the data workers too."""
    options = ("out=run", "data.cache_mib=0", "training.steps=100000", "training.evaluate_every=100000")
    process = CommandProcess(*TRAIN, *options, cwd=home)
    process.wait_for(lambda: "step 3/" in process.output)
    workers = child_processes(process.process.pid)
    assert len(workers) == 2
    for pid in workers if to_workers else ():
        os.kill(pid, number)
    assert process.send(number).wait() == code, process.output
    if number != signal.SIGKILL:
        assert "Traceback" not in process.output
        assert "saved at step" in process.output
    end = time.monotonic() + TIMEOUT
    while any(map(is_running, workers)):  # a worker notices the death of its parent within seconds
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_ends_training_with_one_line(home, workers):
    """The image is first read during training, since normalization reads a sample only."""
    (home / "images/gray/3.png").write_bytes((home / "images/gray/4.png").read_bytes()[:60])
    options = ("out=run", "data.cache_mib=0", f"data.num_workers={workers}", "data.image_size=8", "data.channels=1")
    process = CommandProcess(*TRAIN, *options, cwd=home, prepare=normalize_by_one_image)
    assert process.wait() == 2, process.output
    error = process.output.splitlines()[-1]
    assert error.startswith("error: ")
    assert "3.png" in error
    assert "Traceback" not in process.output
    assert (home / "run").is_dir()
