"""What the command says and does; every refusal is one line, exit code 2, and nothing left behind."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from processes import SMALL, write_images
from sightline.cli import app

QUICK = ("data.source=images.npz", *SMALL)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "images.npz")


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def train(*words):
    answer = call("train", *QUICK, *words)
    assert answer.exit_code == 0, answer.stderr
    return answer


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["training.epoch=3"], "training.epoch: a key here must be one of "),
        (["training.epoch=3"], "; did you mean 'epochs'?"),
        (["trainig.epochs=3"], "did you mean 'training'?"),
        (["training.steps=many"], "training.steps must be an integer or null, got 'many'"),
        (["training.learning_rate=-1e-4"], "training: learning_rate must be above 0 and finite, got -0.0001"),
        (["model.num_heads=3", "model.embed_dim=8"], "model: heads must divide width=8 or head_dim be given, got 3"),
        (["model.mlp_ratio=.inf"], "model: mlp_ratio must leave at least one channel of width=8, got inf"),
        (["task=image_clasifier"], "got 'image_clasifier'; did you mean 'image_classifier'?"),
        (["model.patch_size=3"], "model: patch_size must divide image_size=8, got 3"),
        (["model.classes=4"], "model.classes must be that of the data, 3, or null, got 4"),
        (["training.device=tpu"], "training: device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
        (["training.device=cuda:77"], "device must be one that is here"),
        (
            ["training.gradient_accumulation_steps=4"],
            "batch_size must be a multiple of processes times gradient_accumulation_steps, 1 x 4, got 6",
        ),
        (
            ["training.gradient_accumulation_steps=2", "augment.mixup=0.2"],
            "training.batch_size must be a multiple of 2 times processes times training.gradient_accumulation_steps, 2 x 1 x 2",
        ),
        (["data.source=nowhere"], "a data set must be a path that is there, or one of glyphs, got 'nowhere'"),
        (["data.validation=1"], "data: validation must be at least 0 and below 1, got 1.0"),
        (["seed=-1"], "seed must be an integer of at least 0, got -1"),
        (["missing.yaml"], "a change must read key=value, got 'missing.yaml'"),
        (["out=images.npz"], "out must be a folder, got 'images.npz', which is a file"),
    ],
)
def test_a_wrong_recipe_is_refused_in_one_line_and_leaves_nothing(tmp_path, words, message):
    answer = call("train", *QUICK, *words)
    assert answer.exit_code == 2
    assert message in answer.stderr
    assert answer.stderr.startswith("error: ")
    assert answer.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["images.npz"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "a configuration must be a YAML file, got 'recipe.yaml', which is not a file"),
        ("training: {epoch: 3}", "did you mean 'epochs'?"),
        ("task: [image_classifier]", "task must be one of "),
        ("task: translater", "got 'translater'; did you mean 'translation'?"),
        ("[" * 1000, "recipe.yaml must be a configuration in YAML"),
        ("data: 3", "data must be a section of keys and values, got 3"),
    ],
)
def test_a_wrong_file_is_refused_likewise(tmp_path, text, message):
    if text is not None:
        (tmp_path / "recipe.yaml").write_text(text)
    answer = call("train", "recipe.yaml")
    assert answer.exit_code == 2
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not (tmp_path / "runs").exists()


def test_a_recipe_is_read_changed_and_kept_in_the_run(tmp_path):
    (tmp_path / "small.yaml").write_text(
        "data: {source: images.npz}\nmodel: {width: 8, heads: 2, depth: 1}\n"
        "training: {batch_size: 6, steps: 2, learning_rate: 1e-4, device: cpu}\n"
    )
    answer = call("train", "small.yaml", "training.weight_decay=1e-2")
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.startswith("runs/small: 2 steps, validation accuracy ")
    assert answer.stdout.endswith("next: sightline evaluate runs/small\n")
    kept = (tmp_path / "runs/small/config.yaml").read_text()
    assert "learning_rate: 0.0001" in kept
    assert "weight_decay: 0.01" in kept
    assert "classes: 3" in kept
    card = (tmp_path / "runs/small/README.md").read_text()
    assert "Data: `images.npz`. 2 steps" in card
    assert "sightline 0." in card
    assert "On the validation set: accuracy" in card


def test_changes_alone_keep_the_rest_of_the_default_recipe(tmp_path):
    train("out=run")
    kept = (tmp_path / "run/config.yaml").read_text()
    assert "warmup: 50" in kept  # the recipe's, not that of every training
    assert "learning_rate: 0.003" in kept
    assert "rotate: 10.0" in kept


def test_with_nothing_at_all_the_embedded_glyphs_are_learned(tmp_path):
    small = [word for word in SMALL if not word.startswith("training.evaluate")]
    answer = call("train", *small, "training.steps=2")
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.startswith("runs/glyphs: 2 steps")
    assert (tmp_path / "runs/glyphs/model.safetensors").is_file()


def test_a_run_that_is_there_is_not_overwritten_but_goes_on_if_asked(tmp_path):
    train("out=run")
    weights = (tmp_path / "run/model.safetensors").read_bytes()
    answer = call("train", *QUICK, "out=run")
    assert answer.exit_code == 2
    assert "out must be a new folder, got 'run', which holds a run; pass --resume to go on with it" in answer.stderr
    answer = call("train", "run", "--resume")
    assert answer.exit_code == 0, answer.stderr
    assert "going on from step 20 of 20" in answer.stderr
    assert (tmp_path / "run/model.safetensors").read_bytes() == weights
    assert call("train", *QUICK, "out=run", "data.num_workers=0", "--resume").exit_code == 0
    (tmp_path / "run/config.yaml").unlink()
    assert "which holds a run" in call("train", *QUICK, "out=run").stderr


def test_a_run_goes_on_only_as_it_began(tmp_path):
    train("out=run")
    before = (tmp_path / "run/config.yaml").read_bytes()
    answer = call("train", *QUICK, "out=run", "training.learning_rate=3e-4", "--resume")
    assert answer.exit_code == 2
    assert "training.learning_rate must be 0.003, as run began, to go on with it, got 0.0003" in answer.stderr
    assert (tmp_path / "run/config.yaml").read_bytes() == before


def test_a_batch_larger_than_the_data_holds_images_twice(tmp_path):
    train("out=run", "training.batch_size=200", "training.steps=2")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["validation"]["accuracy"] >= 0


def test_evaluate_says_how_good_and_the_card_says_so_once(tmp_path):
    train("out=run")
    for _ in range(2):
        answer = call("evaluate", "run", "--device", "cpu")
        assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.startswith("validation set, 6 images\naccuracy ")
    card = (tmp_path / "run/README.md").read_text()
    assert card.count("On the validation set") == 1
    assert "On the validation set (6 images): accuracy" in card
    assert "## Versions" in card
    assert json.loads((tmp_path / "run/evaluation.json").read_text())["images"] == 6


def test_predict_names_classes_and_writes_the_page(tmp_path):
    train("out=run")
    Image.fromarray(np.full((8, 8), 200, np.uint8)).save(tmp_path / "bright.png")
    answer = call("predict", "run", "bright.png", "--show", "page.html", "--top", "2")
    assert answer.exit_code == 0, answer.stderr
    first, second = answer.stdout.splitlines()
    assert first.startswith("bright.png: ")
    assert first.count("%") == 2
    assert second == "wrote page.html"
    assert "<html" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluate", "nowhere"), "run must be the folder of a trained model, or "),
        (("predict", "run", "nowhere.png"), "nowhere.png"),
        (("predict", "run", "images.npz"), "images.npz"),
        (("predict", ".", "images.npz"), "got '.', which has no config.yaml; to make a classifier from images in it: "),
        (("predict", "run", "images.npz", "--device", "cuda:77"), "device must be one that is here"),
        (("show", "run", "--device", "cuda:77"), "device must be one that is here"),
        (
            ("predict", "run", *["x.png"] * 65, "--show", "x.html"),
            "inputs must be 1 to 64 to be shown on one page, got 65; show fewer, or ask without a page",
        ),
    ],
)
def test_what_cannot_be_opened_is_named(words, message):
    if words[1] == "run":
        train("out=run", "training.steps=1")
    answer = call(*words)
    assert answer.exit_code == 2
    assert message in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that none may write to")
def test_what_a_disk_refuses_is_told_with_its_name(tmp_path):
    answer = call("train", *QUICK, "out=/proc/self/run")
    assert answer.exit_code == 1
    assert answer.stderr.startswith("error: /proc/self/run/")
    assert answer.stderr.count("\n") == 1


def test_the_whole_of_it_as_a_process(tmp_path):
    """As typed in a shell, from a wrong word to a right one."""
    command = [sys.executable, "-m", "sightline", "train", *QUICK, "training.steps=2"]
    answer = subprocess.run([*command, "out=run"], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr.splitlines()[-1].startswith("step 2/2  validation accuracy")
    assert answer.stdout.startswith("run: 2 steps")
