"""`sightline fit` and `sightline predict FILE`."""

import json
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


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels[0].numpy()).save(path)


@pytest.fixture
def characters(tmp_path, monkeypatch, drawn):
    """A folder of class folders, beside a known and an unknown image, as the working folder."""
    monkeypatch.chdir(tmp_path)
    for number, images in enumerate(list(drawn.values())[:3]):
        for i, pixels in enumerate(images[:4]):
            write(tmp_path / "characters" / f"sign {number}" / f"{i}.png", pixels)
    write(tmp_path / "known.png", next(iter(drawn.values()))[2])
    write(tmp_path / "noise.png", torch.randint(256, (1, 28, 28), dtype=torch.uint8))
    return tmp_path / "characters"


def test_fit_predict_and_page(run, characters, tmp_path):
    output = call("fit", characters, "--model", run, "--out", "mine.sightline", "--device", "cpu")
    assert output.exit_code == 0, output.stderr
    lines = [line for line in output.stdout.splitlines() if "separates these images poorly" not in line]
    assert lines[0] == f"{run}: 3 classes, 12 examples (4 per class)"
    assert re.match(r"method      \w+, accuracy \d+\.\d% on 12 held-out images \(", lines[1])
    assert re.match(r"estimated   accuracy \d+\.\d% on 12 held-out images \(95% interval ", lines[2])
    assert re.fullmatch(r"confidence  logits scaled by \d+\.\d\d, calibrated on held-out images", lines[-5])
    assert lines[-4] == "unknown     too few images to estimate the AUROC"
    assert lines[-3] == "rejection   too few images to estimate the rates: one of 12 held-out images is 8%"
    assert lines[-2] == "wrote mine.sightline"
    assert lines[-1] == "next: sightline predict mine.sightline IMAGE... --show page.html"
    output = call("predict", "mine.sightline", "known.png", "noise.png", "--show", "page.html", "--device", "cpu")
    assert output.exit_code == 0, output.stderr
    lines = output.stdout.splitlines()
    assert re.fullmatch(r"known.png: sign 0 \d+\.\d%", lines[0])
    assert re.fullmatch(r"noise.png: unknown \(closest sign \d\)", lines[1])
    assert lines[2] == "wrote page.html"
    page = (tmp_path / "page.html").read_text()
    assert "known.png" in page
    assert "noise.png" in page
    assert sightline.load("mine.sightline").classes == ("sign 0", "sign 1", "sign 2")


def test_fit_reports_how_unknowns_are_estimated(run, characters, drawn):
    for number, images in enumerate(list(drawn.values())[:3]):
        for i, pixels in enumerate(images[4:8]):
            write(characters / f"sign {number}" / f"more {i}.png", pixels)
    lines = call("fit", characters, "--model", run, "--device", "cpu").stdout
    assert re.search(r"AUROC \d\.\d{3} against unknowns: 24 examples, each class left out in turn\n", lines)
    interval = r"\(95% interval \d+% to \d+% on 24 held-out images{}\)"
    rates = rf"rejection   about \d+% of known images are rejected {interval}, \d+% of similar images"
    assert re.search(rates.format(""), lines)
    lines = call("fit", characters, "--model", run, "--device", "cpu", "--reject", "0.01", "--overwrite").stdout
    assert re.search(rates.format(", too few for 1%"), lines)


def test_fit_lists_every_image_that_cannot_be_read(characters):
    for name in ("sign 0/0.png", "sign 0/1.png", "sign 2/3.png"):  # the first is one of those that show the kind
        (characters / name).write_text("no image")
    output = call("fit", characters, "--device", "cpu")
    assert output.exit_code == 2
    assert "all images must be readable, got 3 that are not:" in output.stderr
    assert all(name in output.stderr for name in ("sign 0/0.png", "sign 0/1.png", "sign 2/3.png"))


@pytest.mark.parametrize("model", ["auto", "glyphs"])
def test_fit_says_what_a_wrong_folder_is(characters, model):
    for name, found in (
        ("nosuch", "'nosuch', which does not exist\n"),
        ("data/cub200", "'data/cub200', which does not exist; to get it: sightline fetch cub200\n"),
        ("known.png", "'known.png', which is a file\n"),
        ("characters/sign 0", "which contains 4 images and no folders; move the images of each class into a folder\n"),
    ):
        output = call("fit", name, "--model", model, "--device", "cpu")
        assert output.exit_code == 2
        assert "examples must be a folder with one folder of images per class, got " in output.stderr
        assert output.stderr.endswith(found)


def test_fit_says_that_few_images_cannot_set_a_rate(run, characters):
    lines = call("fit", characters, "--model", run, "--device", "cpu", "--reject", "0.05").stdout
    assert "rejection   too few images to set a rate of 5% or estimate it: one of 12 held-out images is 8%\n" in lines


def test_fit_mentions_skipped_files_and_colors(run, characters, monkeypatch):
    (characters / "notes.txt").write_text("x")
    (characters / "sign 0" / "scan.pdf").write_text("x")
    (characters / "sign 0" / ".hidden").write_text("x")
    output = call("fit", characters, "--model", run, "--device", "cpu").stdout
    assert "skipped    1 file, not images (.pdf): sign 0/scan.pdf" in output.replace("skipped  ", "skipped    ")
    assert "look like" not in output
    pretrained = FewShotClassifier.pretrained
    monkeypatch.setattr(FewShotClassifier, "pretrained", lambda name, **options: pretrained(run, **options))
    assert "look like" not in call("fit", characters, "--model", "glyphs", "--device", "cpu", "--overwrite").stdout
    for path in characters.rglob("*.png"):
        gray = Image.open(path)
        Image.merge("RGB", (gray, gray.rotate(90), gray.point(lambda level: 255 - level))).save(path)  # several colors
    output = call("fit", characters, "--model", "glyphs", "--device", "cpu", "--overwrite").stdout
    assert "these images look like photos, and glyphs is for drawings; try --model photos\n" in output


def test_fit_suggests_by_the_images_and_never_the_model_that_was_used(run, characters, monkeypatch):
    monkeypatch.setattr("sightline.cli.fitting.MIN_SEPARATION", 2.0)
    options = ("--device", "cpu", "--overwrite")
    fix = "separates these images poorly; add images of each class"
    output = call("fit", characters, "--model", run, *options).stdout
    assert f"{run} {fix}, or try --model glyphs, which is for drawings\n" in output
    pretrained = FewShotClassifier.pretrained
    monkeypatch.setattr(FewShotClassifier, "pretrained", lambda name, **options: pretrained(run, **options))
    assert f"\nglyphs {fix}\n" in call("fit", characters, "--model", "glyphs", *options).stdout
    output = call("fit", characters, "--model", "photos", *options).stdout
    assert "these images look like drawings, and photos is for photos; try --model glyphs\n" in output


def test_records_of_predictions(fitted, characters):
    fitted.save("mine.sightline")
    output = call("predict", "mine.sightline", "known.png", "gone.png", "noise.png", "--format", "jsonl")
    assert output.exit_code == 2
    known, failed, unknown = (json.loads(line) for line in output.stdout.splitlines())
    assert [known["known"], unknown["known"]] == [True, False]
    assert known["label"] == known["closest"] == max(known["scores"], key=known["scores"].get)
    assert (unknown["label"], unknown["closest"]) == (None, max(unknown["scores"], key=unknown["scores"].get))
    assert set(known["scores"]) == set(unknown["scores"]) == set(fitted.classes)
    assert set(failed) == {"input", "error"}
    lines = call("predict", "mine.sightline", "known.png", "--format", "csv").stdout.splitlines()
    assert lines[0].startswith("input,label,closest,confidence,known,known_score,scores.")


def test_file_is_named_after_the_folder(run, characters, tmp_path):
    output = call("fit", characters, "--model", run, "--device", "cpu")
    assert output.exit_code == 0, output.stderr
    assert (tmp_path / "characters.sightline").is_file()
    for name in ("birds.v1", "birds.v2"):
        shutil.copytree(characters, tmp_path / name)
        assert call("fit", name, "--model", run, "--device", "cpu").exit_code == 0
        assert (tmp_path / f"{name}.sightline").is_file()


def test_many_images_are_predicted_in_batches(fitted, characters, monkeypatch):
    fitted.save("mine.sightline")
    sizes, references, max_alive = [], [], [0]
    predict_batch = FewShotClassifier.predict_batch

    def recorded(self, prepared, **options):
        max_alive[0] = max(max_alive[0], sum(reference() is not None for reference in references))
        sizes.append(len(prepared))
        predictions = predict_batch(self, prepared, **options)
        references.extend(map(weakref.ref, predictions))
        return predictions

    monkeypatch.setattr(FewShotClassifier, "batch_size", 3)
    monkeypatch.setattr(FewShotClassifier, "predict_batch", recorded)
    output = call("predict", "mine.sightline", *["known.png"] * 7)
    assert sizes == [3, 3, 1]
    assert max_alive[0] <= 3
    assert len(output.stdout.splitlines()) == 7


def test_bad_file_does_not_affect_the_others(fitted, characters, tmp_path):
    fitted.save("mine.sightline")
    (tmp_path / "bad.png").write_bytes(b"torn")
    for options in ([], ["--show", "page.html"]):
        output = call("predict", "mine.sightline", "known.png", "bad.png", "gone.png", "noise.png", *options)
        assert output.exit_code == 2
        lines = output.stdout.splitlines()
        assert [line.partition(": ")[0] for line in lines[:2]] == ["known.png", "noise.png"]
        assert lines[2:] == ["wrote page.html" for _ in options[1:]]
        torn, gone = output.stderr.splitlines()
        assert torn.startswith("error: bad.png must be a complete PNG")
        assert gone.startswith("error: an image must be a file, got 'gone.png'")
    (tmp_path / "page.html").unlink()
    output = call("predict", "mine.sightline", "bad.png", "--show", "page.html")
    assert (output.exit_code, output.stdout) == (2, "")
    assert not (tmp_path / "page.html").exists()


def test_folder_is_expanded_to_its_images(fitted, characters):
    fitted.save("mine.sightline")
    output = call("predict", "mine.sightline", characters / "sign 0", "known.png")
    assert output.exit_code == 0, output.stderr
    names = [line.partition(": ")[0] for line in output.stdout.splitlines()]
    assert names == [*(str(characters / "sign 0" / f"{i}.png") for i in range(4)), "known.png"]
    output = call("predict", "mine.sightline", "characters")
    assert len(output.stdout.splitlines()) == len(list(Path("characters").rglob("*.png")))


def test_commands_for_runs_refuse_a_classifier_file(fitted, characters):
    fitted.save("mine.sightline")
    for command, fix in (
        ("show", "sightline predict FILE IMAGE --show page.html"),
        ("compare", "for a fitted classifier use sightline evaluate"),
    ):
        output = call(command, "mine.sightline")
        assert output.exit_code == 2
        assert output.stderr.startswith("error: run")
        assert fix in output.stderr
    assert "data must be a folder of labeled images" in call("evaluate", "mine.sightline").stderr
    assert "which does not exist" in call("evaluate", "gone.sightline").stderr


def test_invalid_arguments_leave_no_files(run, characters, tmp_path):
    (tmp_path / "one" / "class").mkdir(parents=True)
    (tmp_path / "hollow").mkdir()
    for name in ("1.png", "2.PNG", "notes.txt"):
        (tmp_path / "flat").mkdir(exist_ok=True)
        (tmp_path / "flat" / name).write_bytes(b"")
    rule = "examples must be a folder with one folder of images per class, got "
    (characters / "empty").mkdir()
    (tmp_path / "torn.sightline").write_bytes(b"torn")
    before = sorted(tmp_path.rglob("*"))
    for arguments, message in (
        (["fit", "nowhere", "--model", run], f"{rule}'nowhere', which does not exist"),
        (["fit", "known.png", "--model", run], f"{rule}'known.png', which is a file"),
        (["fit", "hollow", "--model", run], f"{rule}'hollow', which contains neither folders nor images"),
        (["fit", "flat", "--model", run], f"{rule}'flat', which contains 2 images and no folders; move the images"),
        (["fit", "one", "--model", run], "one/class must contain at least one image"),
        (["fit", characters, "--model", run], "at least one image"),
        (["fit", characters, "--model", "glyps"], "model must be the folder of a few-shot run"),
        (["fit", characters, "--model", run, "--out", "x.zip"], "must end in .sightline"),
        (["predict", "torn.sightline", "known.png"], "must be a complete classifier file"),
        (["predict", "gone.sightline", "known.png"], "which does not exist"),
        (["predict", "gone.sightline", "known.png", "--show", "out.png"], "path must end in .html, got 'out.png'"),
    ):
        output = call(*arguments)
        assert output.exit_code == 2
        assert output.stderr.startswith("error: ")
        assert message in output.stderr
        assert "Traceback" not in output.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_classes_of_one_image_are_excluded_from_the_estimate(run, drawn):
    classes = dict(zip("abcd", drawn.values(), strict=False))
    examples = {name: images[: 1 if name in "ac" else 3] for name, images in classes.items()}
    summary = FewShotClassifier.pretrained(run).fit(examples).summary()
    assert re.search(r"estimated .* on 6 held-out images .*\n +not estimated for classes of one image: a, c\n", summary)


def test_fit_suggests_another_model_for_images_it_does_not_separate(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        (tmp_path / "noise" / name).mkdir(parents=True)
        for i in range(2):
            random = torch.Generator().manual_seed(ord(name) * 9 + i)
            noise = torch.randint(256, (20, 20), dtype=torch.uint8, generator=random)
            Image.fromarray(noise.numpy()).save(tmp_path / "noise" / name / f"{i}.png")
    refused = call("fit", "noise", "--model", "glyphs", "--device", "cpu")
    assert refused.exit_code == 2
    assert re.search(
        r"must be at least 7\d.\d%, 2 standard errors above chance \(33.3%\), got .* on 6 ", refused.stderr
    )
    assert "add images of each class, try --model photos, or write it anyway with --force\n" in refused.stderr
    assert not (tmp_path / "noise.sightline").exists()
    output = call("fit", "noise", "--model", "glyphs", "--force", "--device", "cpu").stdout
    assert (tmp_path / "noise.sightline").exists()
    assert output.startswith("glyphs: 3 classes")
    assert "these images look like photos, and glyphs is for drawings; try --model photos\n" in output
    monkeypatch.setattr(
        FewShotClassifier, "pretrained", lambda *_, real=FewShotClassifier.pretrained, **__: real("glyphs")
    )
    output = call("fit", "noise", "--model", "photos", "--force", "--device", "cpu", "--overwrite").stdout
    assert "photos separates these images poorly; add images of each class\n" in output


def test_fit_by_a_method_and_with_splits(run, characters, tmp_path):
    output = call("fit", characters, "--model", run, "--method", "ridge", "--out", "ridge.sightline")
    assert output.exit_code == 0, output.stderr
    assert "method      ridge, as requested" in output.stdout
    output = call("fit", characters, "--model", run, "--method", "svm", "--out", "svm.sightline")
    assert output.exit_code == 2
    assert "method must be" in output.stderr
    shutil.copytree(characters, tmp_path / "split" / "train")
    shutil.copytree(characters, tmp_path / "split" / "test")
    output = call("fit", tmp_path / "split", "--model", run, "--out", "split.sightline")
    assert "only the images of the split train are examples; left out: test 12" in output.stdout
    assert "3 classes, 12 examples" in output.stdout
    output = call("predict", "split.sightline", characters / "sign 0" / "0.png", "--show", "page.html")
    assert "sign 0/0.png" in (tmp_path / "page.html").read_text()
