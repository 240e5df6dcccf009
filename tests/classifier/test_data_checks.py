"""What `fit`, `data` and `train` say about a folder with wrong labels."""

import shutil

import pytest
from PIL import Image
from typer.testing import CliRunner

from class_folders import write_zip
from sightline.cli import app
from sightline.data.images.glyphs import draw


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three characters of five drawings; a drawing of c is in a, and beside them is a file that is no image."""
    home = tmp_path_factory.mktemp("data")
    images = draw(classes=3, per_class=6, size=28)
    for i in range(18):
        label = "abc"[int(images.labels[i])] if i != 17 else "a"
        (home / "pets" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(images.pixels[i, 0].numpy()).save(home / "pets" / label / f"{i}.png")
    (home / "pets" / "notes.txt").write_text("x")
    return home / "pets"


def invoke(*arguments, status=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.stderr
    return result


def test_fit_lists_doubtful_labels_and_does_not_overwrite(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = invoke("fit", folder, "--out", "pets.sightline", "--device", "cpu").stdout
    assert "2 findings" in output
    assert "  skipped  1 file, not images (.txt): notes.txt\n" in output
    assert "  label    a/17.png looks like c (" in output
    assert "model              glyphs\n" in invoke("info", "pets.sightline").stdout
    before = (tmp_path / "pets.sightline").stat().st_mtime_ns
    error = invoke("fit", folder, "--out", "pets.sightline", status=2).stderr
    assert "out must be a new file, got 'pets.sightline', which exists; pass --overwrite" in error
    assert (tmp_path / "pets.sightline").stat().st_mtime_ns == before
    shutil.rmtree(tmp_path / "c", ignore_errors=True)
    invoke("fit", folder, "--out", "pets.sightline", "--overwrite", "--device", "cpu")
    assert (tmp_path / "pets.sightline").stat().st_mtime_ns > before


def test_data_lists_the_same_findings(folder):
    output = invoke("data", folder, "--image-size", "28").stdout
    assert "2 findings" in output
    assert "a/17.png looks like c (" in output


def test_findings_about_a_zip_file_name_the_file_in_it(folder, tmp_path):
    files = {f"pets/{path.parent.name}/{path.name}": path.read_bytes() for path in folder.glob("*/*.png")}
    path = write_zip(tmp_path / "pets.zip", files)
    finding = "  label  pets/a/17.png looks like c ("
    assert finding in invoke("data", path, "--image-size", "28").stdout
    options = ("--model", "glyphs", "--out", tmp_path / "pets.sightline", "--device", "cpu")
    assert finding in invoke("fit", path, *options).stdout


def test_train_on_a_small_folder_lists_findings_and_suggests_fit(folder, tmp_path):
    changes = ["data.image_size=8", "model.patch_size=4", "model.embed_dim=8", "model.num_heads=2", "model.depth=1"]
    training = ["training.steps=2", "training.batch_size=6", "training.device=cpu"]
    result = invoke("train", f"data.source={folder}", *changes, *training, f"out={tmp_path / 'run'}")
    assert "a/17.png looks like c (" in result.stderr
    assert "6 images per class are few to train a model on; a few-shot classifier" in result.stderr
    assert f"likely to be better: sightline fit {folder}\n" in result.stderr
    assert "the validation set selected these weights" in result.stdout
    assert f"these data have no test set\nnext: sightline evaluate {tmp_path / 'run'} --data PATH\n" in result.stdout
