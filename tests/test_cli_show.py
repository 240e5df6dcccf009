"""The verbs that show: `show`, `data`, `predict --show`."""

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from class_folders import omniglot, write_files, write_zip
from sightline import load
from sightline.cli import app


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def images(tmp_path):
    for number in range(2):
        pixels = np.random.default_rng(number).integers(0, 256, (30, 28, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number} $x$.png")
    return sorted(tmp_path.glob("*.png"))


def test_show_draws_the_weights_and_says_what_it_wrote(tiny_run, images, tmp_path):
    answer = run("show", tiny_run, *images, "--out", tmp_path / "out", "--format", "svg")
    assert answer.exit_code == 0, answer.output
    names = ["filters", "positions", "similarity", "masks", "temperatures", "training", "image-1", "image-2"]
    files = [tmp_path / "out" / f"{name}.svg" for name in names] + [tmp_path / "out" / "page.html"]
    assert answer.stdout.splitlines() == [f"wrote {path}" for path in files]
    assert all(path.read_text().startswith(("<?xml", "<!doctype html>")) for path in files)


def test_show_says_what_there_is_none_of(tiny_run, tmp_path):
    load(tiny_run).save_pretrained(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    answer = run("show", tmp_path / "run")
    assert answer.exit_code == 0, answer.output
    assert f"wrote {tmp_path / 'run' / 'pictures' / 'filters.png'}" in answer.stdout
    assert "no training: there is no metrics.jsonl with measurements in" in answer.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "pdf"], "error: format must be one of png, svg, got 'pdf'"),
        (["missing.png"], "missing.png"),
    ],
)
def test_show_refuses_in_one_line(tiny_run, words, message):
    answer = run("show", tiny_run, *words)
    assert answer.exit_code == 2
    assert message in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
    assert not (tiny_run / "pictures").exists()


def test_show_wants_a_run(tmp_path):
    answer = run("show", tmp_path / "none")
    assert (answer.exit_code, answer.stderr.startswith("error: run must be the folder of a trained model")) == (2, True)


def test_predict_writes_a_page_with_the_answers(tiny_run, images, tmp_path):
    answer = run("predict", tiny_run, *images, "--show", tmp_path / "page.html", "--top", 1)
    assert answer.exit_code == 0, answer.output
    *told, wrote = answer.stdout.splitlines()
    assert wrote == f"wrote {tmp_path / 'page.html'}"
    page = (tmp_path / "page.html").read_text()
    for path, line, said in zip(images, told, load(tiny_run).predict(images), strict=True):
        assert line == f"{path}: {said.label} {said.confidence:.1%}"
        assert str(said) in page


def test_predict_prints_odd_file_names_harmlessly(tiny_run, images, tmp_path):
    odd = images[0].rename(tmp_path / "\x1b[31m\n.png")
    answer = run("predict", tiny_run, odd)
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.splitlines()[0].startswith(f"{tmp_path}/\ufffd[31m\ufffd.png: ")
    assert len(answer.stdout.splitlines()) == 1


def test_data_is_told_as_a_table():
    lines = run("data", "glyphs").stdout.splitlines()
    assert lines[0] == "glyphs, 20 classes"
    assert lines[2].split() == ["split", "images", "size", "channels", "mean", "spread"]
    assert lines[3].split()[:7] == ["train", "2,400", "28", "x", "28", "1,", "gray"]
    assert ["ka", "120", "20", "60"] in [line.split() for line in lines]


def test_data_with_hostile_and_many_classes_stays_plain_and_short(tmp_path):
    names = ["\x1b[31mred", "猫", "a" * 200, *(f"class {number:02}" for number in range(30))]
    for name in names:
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8), "teal").save(tmp_path / name / "1.png")
    Image.new("RGB", (8, 8), "teal").save(tmp_path / "猫" / "2.png")
    answer = run("data", tmp_path, "--show", tmp_path / "sheet.png")
    assert answer.exit_code == 0, answer.output
    assert "\x1b" not in answer.stdout
    assert "\ufffd[31mred" in answer.stdout
    assert "a" * 23 + "…" in answer.stdout
    assert "and 13 more; each class has from 1 to 2 images to learn from" in answer.stdout
    assert "3, color" in answer.stdout
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.height > 33 * 60


def test_data_describes_sets_that_are_divided_by_class(tmp_path):
    folder, packed = write_files(tmp_path / "omniglot", omniglot()), write_zip(tmp_path / "set.zip", omniglot())
    for source in (folder, packed):
        answer = run("data", source, "--show", tmp_path / "sheet.png")
        assert answer.exit_code == 0, answer.output
        lines = answer.stdout.splitlines()
        assert lines[0] == "Omniglot, 14 classes in 5 groups"
        assert lines[3].split()[:4] == ["train", "9", "27", "3"]
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")
