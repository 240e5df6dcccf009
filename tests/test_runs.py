"""A run as a folder: trained from Python, opened again, judged, and given away; and folders that lie."""

import json
import pickle
import re
import resource
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import sightline
from processes import RUN_FILES, SMALL, write_images
from sightline import runs
from sightline.runs import _recipe
from sightline.tasks.image_classification import predictor as image_predictor
from sightline.tasks.image_classification.predictor import ImagePredictor, wilson
from sightline.tasks.image_classification.task import Recipe
from sightline.training.config import TrainingConfig


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder of images, and in `run` a model that has seen them."""
    home = tmp_path_factory.mktemp("runs")
    write_images(home / "images.npz")
    words = [f"data.source={home / 'images.npz'}", f"out={home / 'run'}", *SMALL]
    sightline.train(None, words, quiet=True)
    return home


@pytest.fixture
def run(trained, tmp_path):
    return Path(shutil.copytree(trained / "run", tmp_path / "run"))


def pictures(count=5):
    random = np.random.default_rng(1)
    return [random.integers(0, 256, (8, 8), dtype=np.uint8) for _ in range(count)]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert len(re.findall(old, text, re.M)) == 1
    path.write_text(re.sub(old, new, text, flags=re.M))


def test_a_recipe_may_be_a_dict_an_object_or_a_file(tmp_path, trained):
    values = {
        "data": {"source": str(trained / "images.npz")},
        "model": {"width": 8, "heads": 2, "depth": 1},
        "training": {"batch_size": 6, "steps": 3, "device": "cpu"},
        "seed": 3,
    }
    first = sightline.train({**values, "out": str(tmp_path / "a")}, quiet=True)
    assert (first.folder, first.steps) == (tmp_path / "a", 3)
    recipe = sightline.load(first.folder).recipe
    sightline.train(recipe, [f"out={tmp_path / 'b'}"], quiet=True)
    sightline.train(tmp_path / "a", [f"out={tmp_path / 'c'}"], quiet=True)
    weights = {(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert len(weights) == 1


def test_what_is_loaded_answers_as_what_was_trained(trained):
    """The weights in the folder are those that were judged best, to the last bit."""
    predictor = sightline.load(trained / "run")
    score = predictor.judged()
    lines = [json.loads(line) for line in (trained / "run/metrics.jsonl").read_text().splitlines()]
    best = [line["validation"] for line in lines if line.get("best")][-1]
    assert score.split == "validation"
    assert score.accuracy == best["accuracy"]
    predictor.model.calibration_scale.fill_(1)  # as it was while training
    assert predictor.judged().loss == pytest.approx(best["loss"], rel=1e-6)
    assert score.interval == wilson(score.accuracy * score.images, score.images)


def test_answers_are_shares_of_all_classes_the_likeliest_first(trained):
    predictor = sightline.load(trained / "run")
    one, many = predictor.predict(pictures()[0]), predictor.predict(pictures())
    assert many[0].label == one.label
    assert list(one.scores.values()) == sorted(one.scores.values(), reverse=True)
    assert sum(one.scores.values()) == pytest.approx(1)
    assert (one.label, one.confidence) == next(iter(one.scores.items()))
    assert set(one.scores) == {"0", "1", "2"}
    assert str(one) == f"{one.label} ({one.confidence:.1%})"
    assert predictor.predict([]) == []


def test_a_copy_answers_alike(trained, tmp_path):
    predictor = sightline.load(trained / "run")
    copy = predictor.save_pretrained(tmp_path / "copy")
    assert sorted(path.name for path in copy.iterdir()) == RUN_FILES
    assert ImagePredictor.from_pretrained(copy).predict(pictures()) == predictor.predict(pictures())
    assert sightline.load(copy).predict(pictures()) == predictor.predict(pictures())


def test_other_data_judges_only_if_its_classes_are_the_model_s(trained, tmp_path):
    assert sightline.evaluate(trained / "run", str(write_images(tmp_path / "more.npz", 11)), "cpu").images == 33
    for number, name in enumerate(("cat", "dog", "emu")):
        (tmp_path / "animals" / name).mkdir(parents=True)
        for index in range(2):
            Image.new("L", (8, 8), 60 * number).save(tmp_path / "animals" / name / f"{index}.png")
    with pytest.raises(ValueError, match=r"data must have the classes of the model, \('0', '1', '2'\), got \('cat'"):
        sightline.evaluate(trained / "run", str(tmp_path / "animals"), "cpu")


def test_other_data_are_judged_by_their_test_set_or_whole(trained, tmp_path):
    with np.load(write_images(tmp_path / "more.npz", 11)) as file:
        x, y = file["images"], file["labels"]
    assert sightline.evaluate(trained / "run", str(tmp_path / "more.npz"), "cpu").split == "whole"
    np.savez(tmp_path / "parts.npz", x_train=x[:20], y_train=y[:20], x_val=x[20:], y_val=y[20:])
    parts = sightline.evaluate(trained / "run", str(tmp_path / "parts.npz"), "cpu")
    whole = sightline.evaluate(trained / "run", str(tmp_path / "more.npz"), "cpu")
    assert (parts.images, parts.accuracy, parts.split) == (33, whole.accuracy, "whole")
    np.savez(tmp_path / "tested.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    tested = sightline.evaluate(trained / "run", str(tmp_path / "tested.npz"), "cpu")
    assert (tested.images, tested.split) == (13, "test")
    own = sightline.evaluate(trained / "run", str(trained / "images.npz"), "cpu")  # which it has learned from
    assert (own.images, own.split) == (6, "validation")


def test_of_a_folder_only_what_is_judged_is_read(trained, tmp_path):
    for part, count in (("train", 3), ("test", 2)):
        for number in range(3):
            (tmp_path / "images" / part / str(number)).mkdir(parents=True)
            for index in range(count):
                path = tmp_path / "images" / part / str(number) / f"{index}.png"
                Image.new("L", (8, 8), 60 * number).save(path)
                if part == "train" and index == 2:
                    path.write_bytes(path.read_bytes()[:60])
    done = []
    score = sightline.load(trained / "run").judged(str(tmp_path / "images"), lambda *counts: done.append(counts))
    assert (score.images, score.split) == (6, "test")
    assert done == [(6, 6)]


def test_a_page_has_at_most_64_images_and_reads_each_once(trained, tmp_path, monkeypatch):
    predictor = sightline.load(trained / "run")
    with pytest.raises(ValueError, match="images must be 1 to 64 to be shown on one page, got 65"):
        predictor.page(pictures(65))
    read = []
    real = image_predictor.read_image
    monkeypatch.setattr(image_predictor, "read_image", lambda image, **form: read.append(1) or real(image, **form))
    predictor.page(pictures(5))
    assert len(read) == 5
    predictor.show(pictures(2), tmp_path / "drawn")
    assert len(read) == 7
    look = predictor.look(pictures(5))
    for one, two in zip(look.answers, predictor.predict(pictures(5)), strict=True):
        assert one.label == two.label
        assert one.confidence == pytest.approx(two.confidence, rel=1e-5)


def test_a_run_without_a_recipe_is_named_after_its_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "photos.npz")
    assert sightline.train(None, ["data.source=photos.npz", *SMALL, "training.steps=1"], quiet=True).folder == Path(
        "runs/photos"
    )
    command = re.search(r"^    (sightline.train\(.*\))$", Path("runs/photos/README.md").read_text(), re.M)[1]
    again = eval(command.replace("ANOTHER_FOLDER", "again"))
    assert (again.folder, again.steps) == (Path("again"), 1)


def test_a_folder_of_images_is_no_recipe(tmp_path):
    (tmp_path / "photos").mkdir()
    with pytest.raises(ValueError, match=r"which has no config.yaml; to learn from images in it: data.source=.*photos"):
        sightline.train(tmp_path / "photos")


def test_what_is_no_folder_may_be_on_the_hub(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr(runs, "pulled", lambda name: asked.append(name) or trained / "run")
    assert sightline.load("me/name").classes == ("0", "1", "2")
    (tmp_path / "runs").mkdir()
    with pytest.raises(ValueError, match="run must be the folder of a trained model"):
        sightline.load("runs/name")
    assert asked == ["me/name"]


@pytest.mark.parametrize(("world", "before"), [("1", ""), ("4", "torchrun --nnodes 2 --nproc-per-node 2 -m ")])
def test_the_card_says_how_many_trained(monkeypatch, world, before):
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(sys, "argv", ["/usr/bin/sightline", "train", "a b.yaml"])
    assert runs.command_line() == before + "sightline train 'a b.yaml'"


def hostile(run, what):
    """Make the folder lie."""
    config, classes, weights = run / "config.yaml", run / "classes.json", run / "model.safetensors"
    many = json.dumps([str(i) for i in range(1_000_000)])
    changes = {
        "a huge width": lambda: edit(config, "^  width: 8$", "  width: 80000000"),
        "a width beyond all numbers": lambda: edit(config, "^  width: 8$", f"  width: {2 * 10**30}"),
        "a huge depth": lambda: edit(config, "^  depth: 1$", "  depth: 1000000000"),
        "many heads": lambda: edit(config, "^  heads: 2$", "  heads: 1000000000\n  head_dim: 1000000000"),
        "a huge image": lambda: edit(config, "^  image_size: 8$", "  image_size: 400000"),
        "a huge image without positions": lambda: (
            edit(config, "^  image_size: 8$", "  image_size: 400000"),
            edit(config, "^  positions: learned$", "  positions: none"),
            edit(config, "^  mask: none$", "  mask: additive"),
        ),
        "many classes": lambda: edit(config, "^  classes: 3$", "  classes: 1000000000"),
        "many classes, all of them named": lambda: (
            edit(config, "^  classes: 3$", "  classes: 1000000"),
            classes.write_text(many),
        ),
        "endless mlp_ratio": lambda: edit(config, "^  mlp_ratio: 2.0$", "  mlp_ratio: .inf"),
        "huge mlp_ratio": lambda: edit(config, "^  mlp_ratio: 2.0$", "  mlp_ratio: 1e300"),
        "an unknown key": lambda: edit(config, "^  width: 8$", "  width: 8\n  wdth: 8"),
        "no task": lambda: edit(config, "^task: image_classifier$", ""),
        "another task": lambda: edit(config, "^task: image_classifier$", "task: [1]"),
        "no configuration": config.unlink,
        "a configuration of brackets": lambda: config.write_text("{" * 60_000),
        "a configuration of keys": lambda: config.write_text("".join(f"k{i}: 1\n" for i in range(6_000))),
        "a large configuration": lambda: config.write_text("#" * 10_000_000),
        "no classes": classes.unlink,
        "too few classes": lambda: classes.write_text('["a", "b"]'),
        "classes that are no names": lambda: classes.write_text("[1, 2, 3]"),
        "classes that are no list": lambda: classes.write_text('{"a": 1}'),
        "the same class twice": lambda: classes.write_text('["a", "a", "b"]'),
        "classes of brackets": lambda: classes.write_text("[" * 1_000_000),
        "classes that are no JSON": lambda: classes.write_bytes(b"\xff\xfe"),
        "no weights": weights.unlink,
        "truncated weights": lambda: weights.write_bytes(weights.read_bytes()[:-9]),
        "empty weights": lambda: weights.write_bytes(b""),
        "a pickle": lambda: weights.write_bytes(pickle.dumps({"a": Evil()})),
        "a torch file": lambda: torch.save({"a": torch.ones(3)}, weights),
        "a header that promises much": lambda: weights.write_bytes((2**40).to_bytes(8, "little") + b"{}"),
        "other weights": lambda: save_file({"a": torch.ones(3)}, weights),
        "one tensor more": lambda: save_file({**load_file(weights), "more": torch.ones(3)}, weights),
        "weights that are no floats": lambda: save_file(
            {name: tensor.to(torch.int8) for name, tensor in load_file(weights).items()}, weights
        ),
        "a tensor of another shape": lambda: save_file(
            {**load_file(weights), "classifier.answer.bias": torch.ones(4)}, weights
        ),
    }
    if what is None:
        return list(changes)
    return changes[what]()


class Evil:
    """Would end the test, were it ever unpickled."""

    def __reduce__(self):
        return (exit, (9,))


@pytest.mark.parametrize("what", hostile(Path(), None))
def test_a_folder_that_lies_is_refused_quickly_and_costs_no_memory(run, what):
    hostile(run, what)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(ValueError, match=r"must|a key here|maximum"):
        sightline.load(run)
    assert time.process_time() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB


def test_a_model_without_positions_costs_what_its_weights_cost_whatever_its_image_size(trained, tmp_path):
    """Masks are as large as the square of the tokens: they may not be made where none is asked for."""
    words = [f"data.source={trained / 'images.npz'}", f"out={tmp_path / 'run'}", *SMALL, "training.steps=1"]
    sightline.train(None, [*words, "model.positions=none", "model.pool=mean"], quiet=True)
    edit(tmp_path / "run/config.yaml", "^  image_size: 8$", "  image_size: 400000")
    predictor = sightline.load(tmp_path / "run")
    with pytest.raises(ValueError, match="size must be at most"):
        predictor.predict(pictures()[0])


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="run must be the folder of a trained model"):
        sightline.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"which has no config.yaml; to make a classifier .*: sightline fit "):
        sightline.load(tmp_path)


def test_what_a_killed_process_left_is_tidied_away_when_the_run_goes_on(run):
    (run / ".model.safetensors.0a1b2c3d.part").write_bytes(b"half")
    sightline.train(run, resume=True, quiet=True)
    assert not list(run.rglob("*.part"))


def test_what_is_told_for_one_section_leaves_the_rest_of_it_alone():
    """Without a recipe it is the starter; with one, what is not given is the default of its class."""
    assert _recipe(None, [])[0] == Recipe.starter()
    told = _recipe(None, ["training.ema_decay=0.5", "augment.flip=true"])[0]
    assert told == replace(
        Recipe.starter(),
        training=replace(Recipe.starter().training, ema=0.5),
        augment=replace(Recipe.starter().augment, flip=True),
    )
    given = {"data": {"source": "glyphs"}}
    assert _recipe(given, ["training.ema_decay=0.5"])[0] == Recipe(training=TrainingConfig(ema=0.5))


def test_epochs_told_take_the_place_of_steps():
    assert _recipe(None, ["training.epochs=2"])[0].training.steps is None
    given = {"training": {"epochs": 3.0}}
    told = _recipe(given, ["training.steps=7"])[0].training
    assert (told.epochs, told.steps) == (None, 7)
    with pytest.raises(ValueError, match="training: epochs and steps must not both be given"):
        _recipe(given, ["training.steps=7", "training.epochs=2"])
