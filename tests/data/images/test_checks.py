"""Checks of a messy folder: skipped files, duplicates, blank and damaged images, in one list."""

import shutil

import numpy as np
import pytest
from PIL import Image

from sightline.data.images import checks, paths, reading
from sightline.data.images.glyphs import draw
from sightline.data.images.loading import load, read_source
from sightline.errors import SightlineError


@pytest.fixture
def folder(tmp_path):
    images = draw(classes=3, per_class=5, size=29)
    for i in range(15):
        path = tmp_path / "pets" / "abc"[int(images.labels[i])] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images.pixels[i, 0].numpy()).save(path)
    return tmp_path / "pets"


def findings(folder):
    found = checks.skipped_files(checks.list_folder(folder))
    return found + checks.image_findings(checks.read_thumbnails(read_source(folder, 8, 1)[0], folder))


def test_a_clean_folder_has_no_findings(folder):
    assert findings(folder) == []
    assert checks.as_text([], folder) == ""


def test_skipped_files_duplicates_and_blank_images_are_one_list(folder):
    (folder / "notes.txt").write_text("x")
    (folder / "a" / "a.pdf").write_text("x")
    (folder / "a" / ".DS_Store").write_text("x")
    shutil.copy(folder / "a" / "1.png", folder / "loose.png")
    shutil.copy(folder / "a" / "0.png", folder / "a" / "copy.png")
    shutil.copy(folder / "a" / "1.png", folder / "b" / "wrong.png")
    image = Image.open(folder / "c" / "12.png").resize((61, 61))
    image.save(folder / "c" / "small.jpg", quality=85)
    Image.new("L", (29, 29), 255).save(folder / "c" / "blank.png")
    text = checks.as_text(findings(folder), folder)
    assert text.startswith(f"7 findings in {folder}:\n")
    for line in (
        "skipped    1 file, images outside the class folders: loose.png",
        "skipped    1 file, not images (.pdf): a/a.pdf",
        "skipped    1 file, not images (.txt): notes.txt",
        "blank      c/blank.png: all pixels are alike",
        "duplicate  a/1.png, b/wrong.png: the same image in 2 classes",
        "duplicate  a/0.png, a/copy.png: the same image",
        "similar    c/12.png, c/small.jpg: nearly the same image",
    ):
        assert f"  {line}" in text.splitlines()


def test_duplicates_of_one_name_are_told_apart_by_their_classes():
    thumbnails = checks.Thumbnails(
        ("0.png", "0.png", "1.png"),
        ("b", "a", "a"),
        ("train",) * 3,
        np.zeros((3, 16, 16)),
        np.zeros(3, bool),
        (),
        (),
        3,
    )
    assert (
        checks._worded(thumbnails, [0, 1], "the same image")[1] == "0.png, 2 times: the same image in 2 classes: a, b"
    )
    assert checks._worded(thumbnails, [1, 2], "the same image")[1] == "0.png, 1.png: the same image"


def test_an_image_of_colors_or_of_a_fine_texture_is_not_blank(folder):
    colors = np.full((29, 29, 3), 100, dtype=np.uint8)
    colors[5:12, 5:12], colors[5:12, 17:24] = (151, 78, 90), (50, 123, 120)  # about as bright as the background
    Image.fromarray(colors).save(folder / "a" / "colors.png")
    colors[5:12, 5:12], colors[5:12, 17:24] = (50, 123, 120), (151, 78, 90)
    Image.fromarray(colors).save(folder / "b" / "other colors.png")
    checkerboard = np.uint8(255) * (np.indices((256, 256)).sum(0) % 2).astype(np.uint8)
    Image.fromarray(checkerboard).save(folder / "c" / "texture.png")
    assert findings(folder) == []


def test_an_image_in_train_and_test_is_reported(folder, tmp_path):
    for split in ("train", "test"):
        shutil.copytree(folder, tmp_path / "split" / split)
    text = checks.as_text(findings(tmp_path / "split"), "split")
    assert "test/a/0.png" in text
    assert "the same image in test and train, which makes the accuracy too high" in text


def test_all_errors_of_a_folder_are_one_error(folder):
    (folder / "d").mkdir()
    (folder / "e").mkdir()
    (folder / "a" / "0.png").write_bytes(b"no image")
    (folder / "b" / "5.png").write_bytes((folder / "b" / "5.png").read_bytes()[:60])
    with pytest.raises(SightlineError, match="got 4 that cannot:") as error:
        load(folder, size=8)
    text = str(error.value)
    assert text.count("must contain at least one image") == 2
    assert all(f"{folder / name} must be a complete" in text for name in ("a/0.png", "b/5.png"))


def heic(path):
    pytest.importorskip("pillow_heif").register_heif_opener()
    pixels = np.zeros((48, 64, 3), dtype=np.uint8)
    pixels[:, :32] = (200, 30, 30)
    Image.fromarray(pixels).save(path, "HEIF", quality=95)


def test_heic_is_read_beside_other_images(folder):
    heic(folder / "a" / "phone.heic")
    assert [path.name for path in paths.list_images(folder / "a")][-1] == "phone.heic"
    pixels = reading.read_image(folder / "a" / "phone.heic")
    assert pixels.shape == (3, 48, 64)
    assert pixels[0, 24, 8] > 150 > 60 > pixels[0, 24, 56]
    assert reading.read_header(folder / "a" / "phone.heic") == (64, 48, True)
    assert len(load(folder, size=8).train) == 16


def test_heic_without_its_reader_is_listed_as_skipped(folder, monkeypatch):
    heic(folder / "a" / "phone.HEIC")
    for module in (checks, paths, reading):
        monkeypatch.setattr(module, "has_heif", lambda: False)
    assert len(load(folder, size=8).train) == 15
    [finding] = findings(folder)
    fix = "which need pillow-heif: pip install 'sightline[heif]'"
    assert finding.text == f"1 file, HEIC images, {fix}: a/phone.HEIC"
    with pytest.raises(SightlineError, match="got HEIC, which need pillow-heif"):
        reading.read_image(folder / "a" / "phone.HEIC")
