"""A finished run becomes a small folder with a card, or is refused and leaves nothing behind."""

import contextlib
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import number_run
import sightline
from sightline import FewShotClassifier, shipping, zoo
from sightline.cli import app
from sightline.shipping import ship

LICENCE = "Drawn for a test; anyone may have it."
CLASSES, EACH, SIDE = 17, 9, 16


def write_images(path):
    """Every class has a gray of its own, and a little noise."""
    random = np.random.default_rng(0)
    labels = np.arange(CLASSES * EACH) % CLASSES
    pixels = random.integers(24, size=(len(labels), SIDE, SIDE)) + (labels * 220 // CLASSES)[:, None, None]
    np.savez(path, images=pixels.astype(np.uint8), labels=labels)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """In it two runs, trained and judged: a few-shot model and a translator."""
    home = tmp_path_factory.mktemp("home")
    write_images(home / "images.npz")
    recipe = {
        "task": "few_shot",
        "out": "runs/grays",
        "data": {"source": "images.npz", "validation": 0.4},
        "episode": {"way": 3, "shot": 1, "query": 3},
        "evaluation": {"settings": ["3w1s", "5w2s"], "query": 3, "episodes": 20, "selection_setting": "3w1s"},
        "model": {"widths": [4, 4, 4, 8], "heads": 2},
        "auxiliary": 0.5,
        "training": {"steps": 2, "batch_size": 2, "device": "cpu"},
    }
    with contextlib.chdir(home):
        sightline.train(recipe, quiet=True, command="sightline train grays.yaml out=/far/away data.weights=/x seed=0")
        sightline.evaluate("runs/grays", device="cpu")
        (home / "text").mkdir()
        number_run.train(home / "text")
        text = (home / "text" / "run" / "config.yaml").read_text()
        (home / "text" / "run" / "config.yaml").write_text(text.replace(str(home / "text"), "text"))
        sightline.evaluate("text/run", device="cpu")
    return home


@pytest.fixture
def here(home, tmp_path, monkeypatch):
    """A copy of it to work in, and a zoo that is empty."""
    shutil.copytree(home, tmp_path / "home", ignore=shutil.ignore_patterns("checkpoints"))
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setattr(zoo, "HOME", tmp_path / "zoo")
    return tmp_path


def test_a_few_shot_model_ships_without_what_was_for_training(here):
    answer = CliRunner().invoke(app, ["ship", "runs/grays", "grays", "--license", LICENCE, "--device", "cpu"])
    assert answer.exit_code == 0, answer.output
    assert sorted(path.name for path in (here / "zoo").iterdir()) == ["grays"]
    assert sorted(path.name for path in (here / "zoo" / "grays").iterdir()) == [
        "README.md",
        "config.yaml",
        "model.safetensors",
    ]
    before = load_file("runs/grays/model.safetensors")
    after = load_file(here / "zoo" / "grays" / "model.safetensors")
    assert {key for key in before if key not in after} == {"classifier.weight", "classifier.bias"}
    for key, tensor in after.items():
        matrix = sum(size > 1 for size in tensor.shape) > 1
        assert tensor.dtype == (torch.float16 if matrix else torch.float32)
        assert tensor.equal(before[key].to(tensor.dtype))
    assert any(tensor.dim() > 1 and tensor.dtype == torch.float32 for tensor in after.values())  # temperatures
    shipped = sightline.load("grays")
    assert (shipped.recipe.model.classes, shipped.recipe.out) == (0, None)
    assert shipped.judged().classes == 7
    assert FewShotClassifier.pretrained("grays").model.classifier is None


def test_the_card_says_what_it_is_and_how_it_came_to_be(here):
    card = (ship("runs/grays", "grays", license=LICENCE, device="cpu") / "README.md").read_text()
    kept = json.loads((here / "home" / "runs" / "grays" / "evaluation.json").read_text())
    assert "\n    sightline train grays.yaml seed=0\n" in card
    assert f"Data: `images.npz`. {LICENCE}" in card
    assert "sightline fit folder/ --model grays" in card
    for setting in ("3w1s", "5w2s"):
        assert f"{setting}     {kept['settings'][setting]['accuracy']:7.2%} ±" in card
    assert "hardest" not in card
    assert "over 200 episodes of the validation set" in card
    assert f"torch {torch.__version__}" in card


def test_a_translator_ships_with_its_tokenizers_and_says_the_same(here):
    folder = ship("text/run", "de-en", license=LICENCE, command="sightline train x.yaml", device="cpu")
    names = {path.name for path in folder.iterdir()}
    assert {"config.yaml", "model.safetensors", "README.md"} < names
    assert {name for name in names if name.startswith("tokenizer")}
    assert "data.json" in names  # by which it knows what it held out
    assert not {"evaluation.json", "metrics.jsonl"} & names
    before, after = (sightline.load(run).predict("siebzehn") for run in ("text/run", "de-en"))
    assert after.text == before.text
    card = (folder / "README.md").read_text()
    assert "BLEU, lower-cased" in card
    assert "over the first 11 sentences of the test set" in card


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"name": "Grays"}, "name must be 1 to 40 small letters, digits and hyphens, got 'Grays'"),
        ({"name": "../grays"}, "name must be 1 to 40 small letters"),
        ({"license": " "}, "license must say whose the data are"),
        ({"run": "nowhere"}, "run must be trained and evaluated, got 'nowhere' without config.yaml"),
        (
            {"command": "sightline train /home/me/x.yaml"},
            "the command must hold no path of this machine, got '/home/me/x.yaml'",
        ),
        ({"command": "sightline train data.source=~/x"}, "must hold no path of this machine, got '~/x'"),
        ({"data": "nowhere.npz"}, "a data set must be a path that is there"),
    ],
)
def test_what_cannot_ship_is_refused_and_leaves_nothing(here, choices, message):
    how = {"run": "runs/grays", "name": "grays", "license": LICENCE, "device": "cpu", **choices}
    with pytest.raises(ValueError, match=message):
        ship(**how)
    assert not (here / "zoo").exists() or not list((here / "zoo").iterdir())


def test_what_was_not_judged_or_is_another_task_or_is_there_already_is_refused(here, tiny_run):
    with pytest.raises(ValueError, match=r"trained and evaluated, got .* without evaluation.json"):
        ship(tiny_run, "images", license=LICENCE)
    shutil.copytree(tiny_run, "tiny")
    (here / "home" / "tiny" / "evaluation.json").write_text("{}")
    with pytest.raises(ValueError, match="must be one of few_shot, translation, got 'image_classifier'"):
        ship("tiny", "images", license=LICENCE)
    (here / "zoo" / "grays").mkdir(parents=True)
    with pytest.raises(ValueError, match="name must be new, got 'grays'"):
        ship("runs/grays", "grays", license=LICENCE)


def test_a_path_of_this_machine_does_not_travel_in_the_configuration(here):
    path = here / "home" / "runs" / "grays" / "config.yaml"
    path.write_text(path.read_text().replace("source: images.npz", "source: /home/me/images.npz"))
    with pytest.raises(ValueError, match=r"config.yaml must hold no path of this machine, got '/home/me/images.npz'"):
        ship("runs/grays", "grays", license=LICENCE, data="images.npz", device="cpu")


def test_a_model_that_is_too_large_is_refused_with_its_size(here, monkeypatch):
    monkeypatch.setattr("sightline.limits.MAX_ZOO_MODEL_BYTES", 5_000)
    with pytest.raises(ValueError, match=r"at most 5,000 bytes, got \d\d?,\d\d\d"):
        ship("runs/grays", "grays", license=LICENCE, device="cpu")
    assert not list((here / "zoo").iterdir())


@pytest.mark.parametrize("value", [7e4, 0.0])
def test_a_model_that_half_precision_harms_is_refused(here, monkeypatch, value):
    path = "runs/grays/model.safetensors"
    if value:
        state = load_file(path)
        state["head.blocks.0.attention.out.weight"][0, 0] = value
        save_file(state, path)
        message = "finite in half precision, got head.blocks.0.attention.out.weight"
    else:
        monkeypatch.setattr(shipping, "_halved", lambda key, tensor: torch.ones_like(tensor))
        message = "accuracy may differ by 0.005, got .* before and .* after"
    with pytest.raises(ValueError, match=message):
        ship("runs/grays", "grays", license=LICENCE, device="cpu")
    assert not list((here / "zoo").iterdir())


def test_scores_that_were_changed_by_hand_are_refused(here):
    (here / "home" / "runs" / "grays" / "evaluation.json").write_text('{"settings": 3}')
    with pytest.raises(ValueError, match=r"evaluation.json must be as evaluate writes it"):
        ship("runs/grays", "grays", license=LICENCE, device="cpu")
