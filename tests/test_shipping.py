"""Conversion of runs to pretrained models."""

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import number_run
import sightline
from sightline import FewShotClassifier, limits, registry, shipping, zoo
from sightline.cli import app
from sightline.errors import SightlineError
from sightline.files import CARD, CONFIG, EVALUATION, WEIGHTS
from sightline.shipping import ship

LICENSE = "Drawn for a test; in the public domain."
COMMAND = "sightline train grays.yaml out=/local/path data.weights=/local/weights seed=0"
CLASSES, PER_CLASS, SIDE = 17, 9, 16


def write_images(path):
    """Images of classes that differ in brightness."""
    random = np.random.default_rng(0)
    labels = np.arange(CLASSES * PER_CLASS) % CLASSES
    pixels = random.integers(24, size=(len(labels), SIDE, SIDE)) + (labels * 220 // CLASSES)[:, None, None]
    np.savez(path, images=pixels.astype(np.uint8), labels=labels)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with two evaluated runs: the few-shot model `runs/grays` and the translator `text/run`."""
    home = tmp_path_factory.mktemp("home")
    write_images(home / "images.npz")
    config = {
        "task": "few_shot",
        "out": "runs/grays",
        "data": {"source": "images.npz", "validation_fraction": 0.4},
        "episode": {"way": 3, "shot": 1, "query": 3},
        "evaluation": {"settings": ["3w1s", "5w2s"], "query": 3, "episodes": 20, "selection_setting": "3w1s"},
        "model": {"backbone_channels": [4, 4, 4, 8], "num_heads": 2},
        "auxiliary_loss_weight": 0.5,
        "training": {"steps": 2, "batch_size": 2, "device": "cpu"},
    }
    with contextlib.chdir(home):
        sightline.train(config, quiet=True, command=COMMAND)
        sightline.evaluate("runs/grays", device="cpu")
        Path("text").mkdir()
        number_run.train(Path("text"))
        sightline.evaluate("text/run", device="cpu")
    return home


@pytest.fixture
def home(runs, tmp_path, monkeypatch):
    """A copy of the runs as the working folder, and an empty zoo."""
    shutil.copytree(runs, tmp_path / "home", ignore=shutil.ignore_patterns("checkpoints"))
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setattr(zoo, "HOME", tmp_path / "zoo")
    return tmp_path


def ship_grays(**options):
    return ship("runs/grays", "grays", **{"license": LICENSE, "device": "cpu", **options})


def file_names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_few_shot_model_is_stored_without_what_only_training_needs(home):
    arguments = ["ship", "runs/grays", "grays", "--license", LICENSE, "--device", "cpu"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    folder = home / "zoo" / "grays"
    assert result.stdout == f"wrote {folder}\n"
    assert file_names(home / "zoo") == ["grays"]
    assert file_names(folder) == [CARD, CONFIG, WEIGHTS]
    before, after = load_file(f"runs/grays/{WEIGHTS}"), load_file(folder / WEIGHTS)
    assert before.keys() - after.keys() == {"classifier.weight", "classifier.bias"}
    for key, tensor in after.items():
        is_matrix = sum(size > 1 for size in tensor.shape) > 1
        assert tensor.dtype == (torch.float16 if is_matrix else torch.float32)
        assert tensor.equal(before[key].to(tensor.dtype))
    assert any(tensor.dim() > 1 and tensor.dtype == torch.float32 for tensor in after.values())  # temperatures
    pretrained = sightline.load("grays")
    assert (pretrained.config.model.num_classes, pretrained.config.out) == (0, None)
    assert pretrained.evaluate().classes == 7
    assert FewShotClassifier.pretrained("grays").model.classifier is None


def test_the_card_names_command_data_license_metrics_and_versions(home):
    card = (ship_grays() / CARD).read_text()
    evaluation = json.loads(Path(f"runs/grays/{EVALUATION}").read_text())
    assert "\n    sightline train grays.yaml seed=0\n" in card
    assert f"Data: `images.npz`. {LICENSE}" in card
    assert 'FewShotClassifier.pretrained("grays").fit("folder/")' in card
    for line in evaluation["report"].splitlines():
        assert f"\n    {line}\n" in card
    assert "over 200 episodes of the validation set" in card
    assert f"torch {torch.__version__}" in card


def test_a_translator_is_stored_with_its_tokenizers_and_gives_the_same_translation(home):
    folder = ship("text/run", "de-en", license=LICENSE, command="sightline train x.yaml", device="cpu")
    names = set(file_names(folder))
    assert {CONFIG, WEIGHTS, CARD, "data.json"} < names  # data.json identifies the held-out sentences
    assert any(name.startswith("tokenizer") for name in names)
    assert not {EVALUATION, "metrics.jsonl"} & names
    before, after = (sightline.load(run).predict("siebzehn") for run in ("text/run", "de-en"))
    assert after.text == before.text
    card = (folder / CARD).read_text()
    assert "BLEU, lower-cased" in card
    assert "over the first 11 sentences of the test set" in card


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "Grays"}, "name must be 1 to 40 lowercase letters, digits and hyphens, got 'Grays'"),
        ({"name": "../grays"}, "name must be 1 to 40 lowercase letters"),
        ({"license": " "}, "license must name the license of the data and their owner"),
        ({"run": "nowhere"}, "run must be trained and evaluated, got 'nowhere' without config.yaml"),
        (
            {"command": "sightline train /local/x.yaml"},
            "the command must hold no absolute path, got '/local/x.yaml'; give another one",
        ),
        ({"command": "sightline train data.source=~/x"}, "must hold no absolute path, got '~/x'"),
        ({"data": "nowhere.npz"}, "nowhere.npz"),
    ],
)
def test_wrong_arguments_are_refused_and_leave_nothing(home, options, message):
    arguments = {"run": "runs/grays", "name": "grays", "license": LICENSE, "device": "cpu", **options}
    with pytest.raises(SightlineError, match=message):
        ship(**arguments)
    assert file_names(home / "zoo") == []


def test_an_image_classifier_is_stored_with_its_classes_and_gives_the_same_answer(home, tiny_run):
    shutil.copytree(tiny_run, "tiny")
    shutil.copy(tiny_run.parent / "images.npz", "images.npz")
    path = Path(f"tiny/{CONFIG}")
    path.write_text(path.read_text().replace(str(tiny_run.parent / "images.npz"), "images.npz"))
    accuracy = sightline.evaluate("tiny", device="cpu").accuracy
    folder = ship("tiny", "images", license=LICENSE, command="sightline train images.yaml", device="cpu")
    assert file_names(folder) == [CARD, "classes.json", CONFIG, WEIGHTS]
    image = np.load("images.npz")["images"][0]
    before, after = (sightline.load(run).predict(image) for run in ("tiny", "images"))
    assert after.scores == pytest.approx(before.scores, abs=1e-2)
    card = (folder / CARD).read_text()
    assert "\n    accuracy           " in card
    assert f"accuracy {accuracy:.4f} before and {accuracy:.4f} after, over 9 images of the validation set" in card


def test_a_run_must_be_evaluated_and_of_a_supported_task(home, tiny_run, monkeypatch):
    with pytest.raises(SightlineError, match=r"trained and evaluated, got .* without evaluation.json"):
        ship(tiny_run, "images", license=LICENSE)
    shutil.copytree(tiny_run, "tiny")
    Path(f"tiny/{EVALUATION}").write_text("{}")
    unsupported = dataclasses.replace(registry.TASKS["image_classification"], compare_precision=None)
    monkeypatch.setitem(registry.TASKS, "image_classification", unsupported)
    with pytest.raises(SightlineError, match=r"must be one of .*few_shot, .*translation, got 'image_classification'"):
        ship("tiny", "images", license=LICENSE)


def test_an_existing_name_is_refused(home):
    (home / "zoo" / "grays").mkdir(parents=True)
    with pytest.raises(SightlineError, match="name must be new, got 'grays'"):
        ship_grays()


def test_a_config_with_an_absolute_path_is_refused(home):
    path = Path(f"runs/grays/{CONFIG}")
    path.write_text(path.read_text().replace("source: images.npz", "source: /local/images.npz"))
    with pytest.raises(SightlineError, match=r"config.yaml must hold no absolute path, got '/local/images.npz'"):
        ship_grays(data="images.npz")


def test_a_model_beyond_the_size_limit_is_refused(home, monkeypatch):
    monkeypatch.setattr(limits, "MAX_ZOO_MODEL_BYTES", 5_000)
    with pytest.raises(SightlineError, match=r"at most 5,000 bytes, got \d\d?,\d\d\d"):
        ship_grays()
    assert file_names(home / "zoo") == []


def test_weights_that_overflow_in_half_precision_are_refused(home):
    path = Path(f"runs/grays/{WEIGHTS}")
    state = load_file(path)
    name = next(name for name, tensor in state.items() if name.startswith("head.") and tensor.dim() == 2)
    state[name][0, 0] = 7e4
    save_file(state, path)
    with pytest.raises(SightlineError, match=f"weights must be finite in half precision, got {name}"):
        ship_grays()
    assert file_names(home / "zoo") == []


def test_a_model_whose_metric_changes_is_refused(home, monkeypatch):
    monkeypatch.setattr(shipping, "_half", lambda key, tensor: torch.ones_like(tensor))
    with pytest.raises(SightlineError, match=r"accuracy .*must .*by at most .*, got .* before and .* after"):
        ship_grays()
    assert file_names(home / "zoo") == []


def test_an_evaluation_without_a_report_is_refused(home):
    Path(f"runs/grays/{EVALUATION}").write_text('{"settings": 3}')
    with pytest.raises(SightlineError, match=r"evaluation.json must hold a report, got none; evaluate the run again"):
        ship_grays()
    assert file_names(home / "zoo") == []


def test_the_folder_of_a_killed_ship_is_not_listed_and_does_not_block_the_name(home, monkeypatch):
    class Killed(BaseException):
        """Ends the process without cleanup."""

    def kill(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(shipping, "_card", kill)
        patch.setattr(shipping.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(Killed):
            ship_grays()
    [left] = file_names(home / "zoo")
    assert left.startswith(".grays.")
    assert zoo.names() == ()
    ship_grays()
    assert zoo.names() == ("grays",)
