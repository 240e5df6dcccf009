"""Training of a head on the embeddings of a fixed encoder, with a small encoder."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import sightline
from sightline import FewShotClassifier, limits
from sightline.data.images.augmentation import AugmentConfig
from sightline.data.images.class_splits import ClassSplits
from sightline.data.images.datasets import ImageSet
from sightline.errors import SightlineError
from sightline.models import embedders, image_encoders
from sightline.models.few_shot_config import FewShotConfig
from sightline.models.image_encoders import Embedder
from sightline.models.preprocessing import Preprocessing
from sightline.tasks.few_shot.config import EpisodeConfig, EvaluationConfig, FewShotData, FewShotTaskConfig
from sightline.tasks.few_shot.task import FewShotTask
from sightline.training.config import TrainingConfig
from sightline.training.task import BatchSlice

SIDE, M = 6, 12


class ThumbnailEmbedder(Embedder):
    """The four quarters of an image, each as a color image of 2 x 2 pixels."""

    embedded = 0

    def __init__(self, weights=None):
        preprocessing = Preprocessing(8, 3, (127.0,) * 3, (128.0,) * 3)
        super().__init__(nn.Linear(1, 1), "thumbnails", preprocessing, embed_dim=M, grid=(2, 2))

    def features(self, images):
        ThumbnailEmbedder.embedded += len(images)
        small = nn.functional.avg_pool2d(images, 2)
        patches = small.unflatten(3, (2, 2)).unflatten(2, (2, 2)).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return patches, patches.mean(1)


@pytest.fixture(autouse=True)
def _thumbnail_embedder(monkeypatch):
    monkeypatch.setitem(embedders.EMBEDDERS, "thumbnails", ThumbnailEmbedder)
    monkeypatch.setattr(ThumbnailEmbedder, "embedded", 0)


def make_images(classes: int, prefix: str, per_class: int = 7, channels: int = 3) -> ImageSet:
    """A random image per class with noise."""
    random = torch.Generator().manual_seed(classes)
    labels = torch.arange(classes * per_class) % classes
    patterns = torch.randint(200, (classes, channels, SIDE, SIDE), generator=random)
    pixels = patterns[labels] + torch.randint(40, (len(labels), channels, SIDE, SIDE), generator=random)
    return ImageSet(pixels.to(torch.uint8), labels, tuple(f"{prefix} {i}" for i in range(classes)))


def make_splits(channels: int = 3, **changes) -> ClassSplits:
    sizes = {"train": 11, "validation": 7, "test": 8}
    return ClassSplits(**{**{name: make_images(n, name, channels=channels) for name, n in sizes.items()}, **changes})


def make_config(data=None, model=None, **changes) -> FewShotTaskConfig:
    return FewShotTaskConfig(
        **{
            "data": FewShotData(embedder="thumbnails", **(data or {})),
            "model": FewShotConfig(**{"backbone": "none", "embed_dim": M, "num_heads": 2, **(model or {})}),
            "episode": EpisodeConfig(way=5, shot=2, query=3),
            "evaluation": EvaluationConfig(
                settings=("3w1s", "5w2s"), query=3, episodes=13, selection_setting="3w1s", selection_episodes=5
            ),
            "training": TrainingConfig(batch_size=4, steps=4, device="cpu"),
            **changes,
        }
    )


def get_batch(task: FewShotTask, step: int = 0, batch_slice: BatchSlice | None = None):
    return next(task.batches(step, 4, batch_slice or BatchSlice()))


def test_every_image_is_embedded_once(monkeypatch):
    monkeypatch.setitem(image_encoders.BATCH_SIZES, "cpu", 13)
    calls = []
    task = FewShotTask(make_config(), make_splits(), lambda done, total: calls.append((done, total)))
    task.to(torch.device("cpu"))
    (batch,) = get_batch(task)
    task.evaluate(task.model, BatchSlice())
    assert ThumbnailEmbedder.embedded == 7 * (11 + 7)
    assert calls[:3] == [(13, 77), (26, 77), (39, 77)]
    assert calls[-1] == (49, 49)
    assert (batch.images.shape, batch.images.dtype, batch.batch_size) == ((4, 25, 1, M), torch.float32, 4)
    assert batch.query_labels.shape == (4, 15)
    assert batch.support_labels is None
    expected = ThumbnailEmbedder().embed(task.train.pixels)[:, 0].half().float()
    for embedding, label in zip(batch.images.flatten(0, 2), batch.labels, strict=True):
        indices = (expected == embedding).all(1).nonzero().flatten()
        assert task.train.labels[indices].tolist() == [label]
    validation = ThumbnailEmbedder().embed(make_splits().validation.pixels)
    torch.testing.assert_close(task.validation_embeddings(task.model), validation)


def test_embeddings_are_kept_with_the_loaded_data(monkeypatch):
    splits = make_splits()
    first = FewShotTask(make_config(), splits)
    count = ThumbnailEmbedder.embedded
    second = FewShotTask(make_config(model={"depth": 2}, training=TrainingConfig(batch_size=2, device="cpu")), splits)
    assert ThumbnailEmbedder.embedded == count  # images are not embedded again
    assert second.embedded is first.embedded
    copies = make_config({"augmented_copies": 1}, augment=AugmentConfig(flip=True))
    others = [make_config(model={"tokens": "patches"}), copies, replace(copies, seed=1)]
    embedded = [FewShotTask(config, splits).embedded for config in (*others, *others)]
    assert len({*embedded}) == 3
    assert len(splits.embeddings) == 4
    assert ThumbnailEmbedder.embedded == count + 7 * (11 + 7) + 2 * 7 * (2 * 11 + 7)
    assert not replace(splits, test=None).embeddings  # other data has its own
    with pytest.raises(SightlineError, match=r"model.embed_dim must be 12, .* thumbnails, got 8"):
        FewShotTask(make_config(model={"embed_dim": 8}), splits)
    monkeypatch.setattr(limits, "MAX_EMBEDDINGS_BYTES", 2 * 77 * 2 * M)
    FewShotTask(replace(copies, seed=2), splits)
    assert len(splits.embeddings) == 1  # the others are dropped to stay within the limit


def test_batch_depends_on_the_step_only_and_copies_are_drawn_at_random():
    config = make_config({"augmented_copies": 2}, augment=AugmentConfig(flip=True, crop=1))
    task = FewShotTask(config, make_splits())
    expected = get_batch(task, 2)[0].images
    parts = [batch.images for rank in range(2) for batch in get_batch(task, 2, BatchSlice(rank, 2, 2))]
    assert torch.cat(parts).equal(expected)
    assert not get_batch(task, 3)[0].images.equal(expected)
    unchanged, *copies = task.embedded.train
    assert task.embedded.train.shape == (3, 77, 1, M)
    assert not copies[0].equal(copies[1])
    for copy in copies:
        assert (copy != unchanged).any(-1).float().mean() > 0.5  # some are neither cropped nor flipped
    drawn = torch.cat([get_batch(task, step)[0].images.flatten(0, 2) for step in range(3)])
    for version in task.embedded.train.float().squeeze(2):
        fraction = (drawn[:, None] == version).all(-1).any(1).float().mean()
        assert 0.2 < fraction < 0.6


def test_flipped_copy_is_the_embedding_of_the_flipped_image():
    task = FewShotTask(make_config({"augmented_copies": 1}, augment=AugmentConfig(flip=True)), make_splits())
    unchanged, copy = task.embedded.train.squeeze(2)
    mirrored = ThumbnailEmbedder().embed(task.train.pixels.flip(3))[:, 0].half()
    is_flipped = (copy == mirrored).all(1)
    assert 0.3 < is_flipped.float().mean() < 0.7
    assert copy[~is_flipped].equal(unchanged[~is_flipped])


def test_min_shot_works_with_embeddings():
    task = FewShotTask(make_config(episode=EpisodeConfig(way=5, shot=3, query=2, min_shot=1)), make_splits())
    (batch,) = get_batch(task)
    assert batch.support_labels.shape == (4, 15)
    assert (batch.support_labels == -1).any()
    assert task.loss(task.model, batch).isfinite()


def test_patches_of_grayscale_images():
    task = FewShotTask(make_config(model={"tokens": "patches"}), make_splits(channels=1))
    assert get_batch(task)[0].images.shape == (4, 25, 4, M)
    color = task.train.pixels[:5].expand(-1, 3, -1, -1)
    torch.testing.assert_close(task.embedded.train[0, :5], ThumbnailEmbedder().embed(color, "patches").half())


def test_training_without_validation_classes():
    task = FewShotTask(make_config(), make_splits(validation=None))
    assert task.evaluate(task.model, BatchSlice()) == {}
    assert get_batch(task)[0].images.shape == (4, 25, 1, M)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FewShotData(augmented_copies=2), "augmented_copies must be left out without an embedder"),
        (lambda: FewShotData(weights="w.pt"), "must be left out without an embedder"),
        (lambda: make_config({"augmented_copies": -1}), "augmented_copies must be an integer of at least 0, got -1"),
        (lambda: make_config({"augmented_copies": 101}), "augmented_copies must be at most 100, got 101"),
        (
            lambda: make_config(model={"backbone": "conv4", "embed_dim": None}),
            "must be none with a data.embedder.*'conv4'",
        ),
        (
            lambda: FewShotTaskConfig(model=FewShotConfig(backbone="none", embed_dim=8)),
            "and only then, got 'none' and None",
        ),
        (lambda: make_config(augment=AugmentConfig(flip=True)), "augment must be set .* got 0 copies"),
        (lambda: make_config({"augmented_copies": 2}), "augment must be set .* got 2 copies"),
        (
            lambda: FewShotTask(make_config(model={"embed_dim": 8}), make_splits()),
            "model.embed_dim must be 12, .* thumbnails, got 8",
        ),
    ],
)
def test_invalid_configs_are_refused(make, message):
    with pytest.raises(SightlineError, match=message):
        make()


def test_embeddings_beyond_the_memory_limit_are_refused_before_any_is_computed(monkeypatch):
    monkeypatch.setattr(limits, "MAX_EMBEDDINGS_BYTES", 2 * 77 * M)
    FewShotTask(make_config(), make_splits())
    ThumbnailEmbedder.embedded = 0
    with pytest.raises(SightlineError, match="embeddings must take at most 1,848 bytes, got 3,696"):
        FewShotTask(make_config({"augmented_copies": 1}, augment=AugmentConfig(flip=True)), make_splits())
    assert ThumbnailEmbedder.embedded == 0


def save_npz(path, images: ImageSet) -> str:
    np.savez(path, images=images.pixels.permute(0, 2, 3, 1).numpy(), labels=images.labels.numpy())
    return str(path)


def test_head_is_trained_evaluated_and_fitted(tmp_path):
    source = save_npz(tmp_path / "images.npz", make_images(19, "class"))
    data = {"source": source, "validation_fraction": 0.4}
    config = make_config(data, {"bottleneck_dim": 6}, out=str(tmp_path / "run"))
    folder = sightline.train(config, quiet=True).folder
    evaluation = sightline.evaluate(folder, device="cpu")
    stored = json.loads((folder / "evaluation.json").read_text())
    assert (evaluation.split, evaluation.classes) == ("validation", 8)
    assert stored["settings"]["3w1s"]["accuracy"] == evaluation.settings["3w1s"].accuracy > 0.6
    predictor = sightline.load(folder)
    assert predictor.model.head.bottleneck.weight.shape == (6, M)
    assert predictor.evaluation_split()[0].size == SIDE
    other = make_images(9, "other")
    images, split = predictor.evaluation_split(save_npz(tmp_path / "other.npz", other))
    assert (images.size, images.channels) == (8, 3)  # other data has the image format of the embedder
    assert (split, len(images.classes)) == ("full", 9)
    classifier = FewShotClassifier.pretrained(folder).fit({"a": list(other.pixels[:2]), "b": list(other.pixels[2:4])})
    assert classifier.predict(other.pixels[0]).label == "a"


def test_embedder_of_a_run_is_loaded_on_first_use(tmp_path):
    source = save_npz(tmp_path / "images.npz", make_images(19, "class"))
    folder = sightline.train(make_config({"source": source}, out=str(tmp_path / "run")), quiet=True).folder
    predictor = sightline.load(folder)
    assert predictor.embedder.loaded is None
    assert isinstance(predictor.embedder.encoder, ThumbnailEmbedder)
