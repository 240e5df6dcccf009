"""What `sightline fit` and `sightline predict FILE` say and do."""

import re
import shutil
import weakref
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import sightline
from sightline import FewShotClassifier
from sightline.cli import app


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def write(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels[0].numpy()).save(path)


@pytest.fixture
def characters(tmp_path, monkeypatch, drawn):
    monkeypatch.chdir(tmp_path)
    for number, own in enumerate(list(drawn.values())[:3]):
        for i, pixels in enumerate(own[:4]):
            write(tmp_path / "characters" / f"sign {number}" / f"{i}.png", pixels)
    write(tmp_path / "asked.png", next(iter(drawn.values()))[2])
    write(tmp_path / "noise.png", torch.randint(256, (1, 28, 28), dtype=torch.uint8))
    return tmp_path / "characters"


def test_fit_then_predict_then_the_page(run, characters, tmp_path):
    answer = call("fit", characters, "--model", run, "--out", "mine.sightline", "--device", "cpu")
    assert answer.exit_code == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert lines[0] == f"{run}: 3 classes, 12 examples (4 of each)"
    assert "of 12 held-out images right (95% interval " in lines[1]
    assert re.fullmatch(r"confidence  (sharpened|softened)( a little)? \(x \d+\.\d\d\) to fit .*", lines[-4])
    assert re.fullmatch(r"unknown     \d+\.\d% of pairs of an example and a stranger are told apart", lines[-3])
    assert lines[-2] == "wrote mine.sightline"
    assert lines[-1] == "next: sightline predict mine.sightline IMAGE... --show page.html"
    answer = call("predict", "mine.sightline", "asked.png", "noise.png", "--show", "page.html", "--device", "cpu")
    assert answer.exit_code == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert lines[0].startswith("asked.png: sign 0 ")
    assert "% (known)" in lines[0]
    assert re.fullmatch(r"noise.png: none of these \(closest sign \d\)", lines[1])
    assert lines[2] == "wrote page.html"
    page = (tmp_path / "page.html").read_text()
    assert "asked.png" in page
    assert "none of these" in page
    assert sightline.load("mine.sightline").classes == ("sign 0", "sign 1", "sign 2")


def test_the_file_is_named_after_the_folder(run, characters, tmp_path):
    answer = call("fit", characters, "--model", run, "--device", "cpu")
    assert answer.exit_code == 0, answer.stderr
    assert (tmp_path / "characters.sightline").is_file()
    for name in ("birds.v1", "birds.v2"):
        shutil.copytree(characters, tmp_path / name)
        assert call("fit", name, "--model", run, "--device", "cpu").exit_code == 0
        assert (tmp_path / f"{name}.sightline").is_file()


def test_many_images_are_answered_some_at_a_time(fitted, characters, monkeypatch):
    fitted.save("mine.sightline")
    counts = []
    monkeypatch.setattr(sightline.cli, "ANSWERED_AT_ONCE", 3)
    before = FewShotClassifier.predict
    alive, most = [], [0]

    def predict(self, some):
        most[0] = max(most[0], sum(one() is not None for one in alive))
        counts.append(len(some))
        found = before(self, some)
        alive.extend(map(weakref.ref, found))
        return found

    monkeypatch.setattr(FewShotClassifier, "predict", predict)
    answer = call("predict", "mine.sightline", *["asked.png"] * 7)
    assert counts == [3, 3, 1]
    assert most[0] <= 3
    assert len(answer.stdout.splitlines()) == 7


def test_one_bad_file_does_not_keep_the_others_from_their_answers(fitted, characters, tmp_path):
    fitted.save("mine.sightline")
    (tmp_path / "bad.png").write_bytes(b"torn")
    for words in ([], ["--show", "page.html"]):
        answer = call("predict", "mine.sightline", "asked.png", "bad.png", "gone.png", "noise.png", *words)
        assert answer.exit_code == 2
        lines = answer.stdout.splitlines()
        assert [line.partition(": ")[0] for line in lines[:2]] == ["asked.png", "noise.png"]
        assert lines[2:] == ["wrote page.html" for _ in words[1:]]
        torn, gone = answer.stderr.splitlines()
        assert torn.startswith("error: bad.png must be a PNG")
        assert gone == "error: an image must be a file, got 'gone.png', which is not there"
    (tmp_path / "page.html").unlink()
    answer = call("predict", "mine.sightline", "bad.png", "--show", "page.html")
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert not (tmp_path / "page.html").exists()


def test_a_folder_stands_for_the_images_in_it(fitted, characters, tmp_path):
    fitted.save("mine.sightline")
    answer = call("predict", "mine.sightline", characters / "sign 0", "asked.png")
    assert answer.exit_code == 0, answer.stderr
    told = [line.partition(": ")[0] for line in answer.stdout.splitlines()]
    assert told == [*(str(characters / "sign 0" / f"{i}.png") for i in range(4)), "asked.png"]
    answer = call("predict", "mine.sightline", "characters")
    assert answer.exit_code == 2
    inside = Path("characters") / "sign 0"
    refused = "a folder of images must hold them directly, got 'characters', which holds none; it holds folders, give "
    assert f"{refused}each by name, such as {str(inside)!r}" in answer.stderr


def test_a_file_of_fit_is_no_run_and_the_fix_is_named(fitted, characters):
    fitted.save("mine.sightline")
    for words, fix in (
        (["evaluate"], "FewShotClassifier.load('mine.sightline').estimate()"),
        (["show"], "sightline predict mine.sightline IMAGE --show page.html"),
        (["compare"], "compare the runs that classifiers began with"),
    ):
        answer = call(*words, "mine.sightline")
        assert answer.exit_code == 2
        assert answer.stderr.startswith("error: run must be the folder of a trained model, got 'mine.sightline'")
        assert fix in answer.stderr
    assert "which is not there" in call("evaluate", "gone.sightline").stderr


def test_what_cannot_be_is_refused_in_one_line_and_leaves_nothing(run, characters, tmp_path):
    (tmp_path / "one" / "class").mkdir(parents=True)
    (tmp_path / "hollow").mkdir()
    for name in ("1.png", "2.PNG", "notes.txt"):
        (tmp_path / "flat").mkdir(exist_ok=True)
        (tmp_path / "flat" / name).write_bytes(b"")
    wanted = "examples must be a folder with one folder of images for each class, got "
    (characters / "empty").mkdir()
    (tmp_path / "torn.sightline").write_bytes(b"torn")
    before = sorted(tmp_path.rglob("*"))
    for words, message in (
        (["fit", "nowhere", "--model", run], f"{wanted}'nowhere', which is not there"),
        (["fit", "asked.png", "--model", run], f"{wanted}'asked.png', which is a file"),
        (["fit", "hollow", "--model", run], f"{wanted}'hollow', which holds neither folders nor images"),
        (["fit", "flat", "--model", run], f"{wanted}'flat', which holds 2 images and no folders; move each class"),
        (["fit", "one", "--model", run], "must hold at least two class folders, got only 'class'"),
        (["fit", characters, "--model", run], "must hold at least one image"),
        (["fit", characters, "--model", "glyps"], "a model must be the folder of a few-shot run"),
        (["fit", characters, "--model", run, "--out", "x.zip"], "must end in .sightline"),
        (["predict", "torn.sightline", "asked.png"], "must be a classifier that save wrote"),
        (["predict", "gone.sightline", "asked.png"], "which is not there"),
        (["predict", "gone.sightline", "asked.png", "--show", "out.png"], "path must end in .html, got 'out.png'"),
    ):
        answer = call(*words)
        assert answer.exit_code == 2
        assert answer.stderr.startswith("error: ")
        assert message in answer.stderr
        assert "Traceback" not in answer.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_class_of_one_image_is_said_to_be_missing_from_the_estimate(run, drawn):
    own = dict(zip("abcd", drawn.values(), strict=False))
    told = FewShotClassifier.pretrained(run).fit({name: some[: 1 if name in "ac" else 3] for name, some in own.items()})
    assert re.search(
        r"expected .* of 6 held-out images .*; without a, c, of which there is one image\n", told.summary()
    )


def test_a_model_that_makes_little_of_the_images_is_told(tmp_path, monkeypatch):
    """Noise, as photos are to a model of drawings."""
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        (tmp_path / "noise" / name).mkdir(parents=True)
        for i in range(2):
            noise = torch.randint(
                256, (20, 20, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(ord(name) * 9 + i)
            )
            Image.fromarray(noise.numpy()).save(tmp_path / "noise" / name / f"{i}.png")
    told = call("fit", "noise", "--device", "cpu").stdout
    assert told.startswith("glyphs: 3 classes")
    assert "glyphs knows drawings, and makes little of these images; for photos: --model photos" in told
