"""Heads on frozen embeddings: an embedder of a few numbers takes the place of a large one."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import sightline
from sightline import FewShotClassifier
from sightline.data.images.augmentation import Augment
from sightline.data.images.class_splits import ClassSplits
from sightline.data.images.loading import ImageSet
from sightline.models import embedders
from sightline.models.embedders import Embedder
from sightline.models.few_shot import FewShotConfig
from sightline.tasks.few_shot import frozen_embedder as few_shot_embeddings
from sightline.tasks.few_shot.frozen_embedder import Frozen
from sightline.tasks.few_shot.task import Episode, Evaluation, FewShotData, FewShotTask, Recipe
from sightline.training.config import TrainingConfig
from sightline.training.task import BatchSlice

SIDE, WIDTH = 6, 12
CPU = torch.device("cpu")


class Thumbs(Embedder):
    """An image is its four quarters, each a thumbnail of 2 x 2 in color."""

    looks = 0

    def __init__(self, weights=None):
        levels = {"mean": [127.0] * 3, "std": [128.0] * 3}
        super().__init__(nn.Linear(1, 1), name="thumbs", image_size=8, channels=3, width=WIDTH, grid=(2, 2), **levels)

    def look(self, images):
        Thumbs.looks += len(images)
        small = nn.functional.avg_pool2d(images, 2)
        parts = small.unflatten(3, (2, 2)).unflatten(2, (2, 2)).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return parts, parts.mean(1)


@pytest.fixture(autouse=True)
def _thumbs(monkeypatch):
    monkeypatch.setitem(embedders.EMBEDDERS, "thumbs", Thumbs)
    monkeypatch.setattr(Thumbs, "looks", 0)


def images(classes: int, prefix: str, each: int = 7, channels: int = 3) -> ImageSet:
    """Every class is a picture of its own, and a little noise; left and right differ."""
    random = torch.Generator().manual_seed(classes)
    labels = torch.arange(classes * each) % classes
    own = torch.randint(200, (classes, channels, SIDE, SIDE), generator=random)
    pixels = own[labels] + torch.randint(40, (len(labels), channels, SIDE, SIDE), generator=random)
    return ImageSet(pixels.to(torch.uint8), labels, tuple(f"{prefix} {i}" for i in range(classes)))


def splits(channels: int = 3, **others) -> ClassSplits:
    parts = {"train": 11, "validation": 7, "test": 8}
    return ClassSplits(**{**{name: images(n, name, channels=channels) for name, n in parts.items()}, **others})


def recipe(data=None, model=None, **changes) -> Recipe:
    return Recipe(
        **{
            "data": FewShotData(embedder="thumbs", **(data or {})),
            "model": FewShotConfig(**{"backbone": "none", "widths": (WIDTH,), "heads": 2, **(model or {})}),
            "episode": Episode(way=5, shot=2, query=3),
            "evaluation": Evaluation(
                settings=("3w1s", "5w2s"), query=3, episodes=13, selection_setting="3w1s", selection_episodes=5
            ),
            "training": TrainingConfig(batch_size=4, steps=4, device="cpu"),
            **changes,
        }
    )


def pieces(task: FewShotTask, step: int = 0, part: BatchSlice | None = None):
    return next(task.batches(step, 4, part or BatchSlice()))


def test_each_image_is_seen_once_and_episodes_are_drawn_from_what_was_seen(monkeypatch):
    monkeypatch.setitem(few_shot_embeddings.AT_ONCE, "cpu", 13)
    told = []
    task = FewShotTask(recipe(), splits(), lambda done, count: told.append((done, count)))
    task.to(CPU)
    ((vectors, labels, answers, known, total),) = pieces(task)
    assert known is None
    task.evaluate(task.model, BatchSlice())
    assert Thumbs.looks == 7 * (11 + 7)
    assert told[:3] == [(13, 77), (26, 77), (39, 77)]
    assert told[-1] == (49, 49)
    assert (vectors.shape, vectors.dtype, total) == ((4, 25, 1, WIDTH), torch.float32, 4)
    expected = Thumbs().embed_pooled(task.train.pixels).half().float()
    for vector, label in zip(vectors.flatten(0, 2), labels, strict=True):
        found = (expected == vector).all(1).nonzero().flatten()
        assert task.train.labels[found].tolist() == [label]
    assert answers.shape == (4, 15)
    torch.testing.assert_close(task.seen(task.model), Thumbs().embed_pooled(splits().validation.pixels)[:, None])


def test_a_step_is_the_same_however_it_is_cut_and_copies_are_drawn_anew():
    task = FewShotTask(recipe({"copies": 2}, augment=Augment(flip=True, crop=1)), splits())
    whole = pieces(task, 2)[0][0]
    parts = [piece[0] for rank in range(2) for piece in pieces(task, 2, BatchSlice(rank, 2, 2))]
    assert torch.cat(parts).equal(whole)
    assert not pieces(task, 3)[0][0].equal(whole)
    plain, *changed = task.embedded.train
    assert task.embedded.train.shape == (3, 77, 1, WIDTH)
    assert not changed[0].equal(changed[1])
    for copy in changed:
        assert (copy != plain).any(-1).float().mean() > 0.5  # a crop by nothing, unflipped, is the image itself
    drawn = torch.cat([pieces(task, step)[0][0].flatten(0, 2) for step in range(3)])
    for vectors in task.embedded.train.float().squeeze(2):
        share = (drawn[:, None] == vectors).all(-1).any(1).float().mean()
        assert 0.2 < share < 0.6


def test_a_flipped_copy_is_the_embedding_of_the_flipped_image():
    task = FewShotTask(recipe({"copies": 1}, augment=Augment(flip=True)), splits())
    plain, copy = task.embedded.train.squeeze(2)
    mirrored = Thumbs().embed_pooled(task.train.pixels.flip(3)).half()
    flipped = (copy == mirrored).all(1)
    assert 0.3 < flipped.float().mean() < 0.7
    assert copy[~flipped].equal(plain[~flipped])


def test_support_images_may_be_passed_over_here_too():
    task = FewShotTask(recipe(episode=Episode(way=5, shot=3, query=2, min_shot=1)), splits())
    piece = pieces(task)[0]
    assert piece.known.shape == (4, 15)
    assert (piece.known == -1).any()
    assert task.loss(task.model, piece).isfinite()


def test_patches_and_grey_images_go_in_too():
    task = FewShotTask(recipe(model={"tokens": "patches"}), splits(channels=1))
    assert pieces(task)[0][0].shape == (4, 25, 4, WIDTH)
    gray = task.train.pixels[:5].expand(-1, 3, -1, -1)
    torch.testing.assert_close(task.embedded.train[0, :5], Thumbs().embed(gray).half())


def test_without_classes_to_choose_by_it_learns_all_the_same():
    task = FewShotTask(recipe(), splits(validation=None))
    assert task.evaluate(task.model, BatchSlice()) == {}
    assert pieces(task)[0][0].shape == (4, 25, 1, WIDTH)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recipe(data=FewShotData(copies=2)), "copies must be left out where there is no data.embedder"),
        (lambda: Recipe(data=FewShotData(weights="w.pt")), "must be left out where there is no data.embedder"),
        (lambda: recipe({"copies": -1}), "data.copies must be an integer of at least 0, got -1"),
        (lambda: recipe({"copies": 101}), "data.copies must be at most 100, got 101"),
        (lambda: recipe(model={"backbone": "conv4", "widths": None}), "must be none with a data.embedder.*'conv4'"),
        (lambda: Recipe(model=FewShotConfig(backbone="none", embed_dim=8)), "and only then, got 'none' and None"),
        (lambda: recipe(augment=Augment(flip=True)), "augment must say how the copies .* got 0 data.copies"),
        (lambda: recipe({"copies": 2}), "augment must say how the copies .* got 2 data.copies"),
        (lambda: FewShotTask(recipe(model={"widths": (8,)}), splits()), r"model.widths must be \[12\].*got \(8,\)"),
    ],
)
def test_what_does_not_fit_together_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_more_than_memory_holds_is_refused_before_anything_is_seen(monkeypatch):
    monkeypatch.setattr("sightline.limits.MAX_EMBEDDINGS_BYTES", 2 * 77 * WIDTH)
    FewShotTask(recipe(), splits())
    Thumbs.looks = 0
    with pytest.raises(ValueError, match="embeddings must take at most 1,848 bytes of memory, got 3,696"):
        FewShotTask(recipe({"copies": 1}, augment=Augment(flip=True)), splits())
    assert Thumbs.looks == 0


def packed(path, images: ImageSet):
    np.savez(path, images=images.pixels.permute(0, 2, 3, 1).numpy(), labels=images.labels.numpy())
    return str(path)


def test_a_head_is_trained_judged_and_learned_with(tmp_path):
    source = packed(tmp_path / "images.npz", images(19, "class"))
    wanted = recipe({"source": source, "validation": 0.4}, {"narrow": 6}, out=str(tmp_path / "run"))
    folder = sightline.train(wanted, quiet=True).folder
    score = sightline.evaluate(folder, device="cpu")
    kept = json.loads((folder / "evaluation.json").read_text())
    assert (score.split, score.classes) == ("validation", 8)
    assert kept["settings"]["3w1s"]["accuracy"] == score.settings["3w1s"].accuracy > 0.6
    predictor = sightline.load(folder)
    assert predictor.model.head.narrow.weight.shape == (6, WIDTH)
    assert predictor.evaluation_split()[0].size == SIDE
    other = images(9, "other")
    found, split = predictor.evaluation_split(packed(tmp_path / "other.npz", other))
    assert (found.size, found.channels, split, len(found.classes)) == (8, 3, "whole", 9)  # as the embedder takes them
    classifier = FewShotClassifier.pretrained(folder).fit({"a": list(other.pixels[:2]), "b": list(other.pixels[2:4])})
    assert classifier.embedder == "thumbs"
    assert classifier.predict(other.pixels[0]).label == "a"


def test_the_embedder_of_a_run_is_opened_when_it_is_needed():
    assert Frozen.of(Recipe()) is None
    assert isinstance(Frozen.of(recipe()).embedder, Thumbs)
