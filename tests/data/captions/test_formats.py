import gzip
import json
import re
import zipfile

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from sightline import limits
from sightline.cli import app
from sightline.data.captions.datasets import hold_out
from sightline.data.captions.formats import has_captions, load_captions
from sightline.errors import SightlineError, SightlineWarning

NAMES = ("a.jpg", "b.jpg", "c.jpg")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "Images").mkdir()
    for i, name in enumerate(NAMES):
        Image.fromarray(np.full((11, 13, 3), 40 * i, dtype=np.uint8)).save(tmp_path / "Images" / name)
    return tmp_path


def test_flickr_table(folder):
    lines = ["image,caption", "a.jpg,A dog , running .", 'b.jpg,"A ""big"" cat, asleep"', "a.jpg,  Another   dog"]
    (folder / "captions.txt").write_text("\n".join(lines))
    train = load_captions(folder).train
    assert train.names == ("a.jpg", "b.jpg")
    assert train.captions == (("A dog , running .", "Another dog"), ('A "big" cat, asleep',))
    assert train.load(7, 3).shape == (2, 3, 7, 7)


def test_flickr_tokens_with_splits(folder):
    rows = [f"{name}#{i}\tcaption {i} of {name}" for name in (*NAMES, "d.jpg") for i in range(2)]
    (folder / "Flickr8k.token.txt").write_text("\n".join(rows))
    for split, name in zip(("train", "dev", "test"), NAMES, strict=True):
        (folder / f"Flickr_8k.{split}Images.txt").write_text(f"{name}\n")
    splits = load_captions(folder)
    assert [images.names for images in splits.available.values()] == [("a.jpg",), ("b.jpg",), ("c.jpg",)]
    assert splits.test.captions == (("caption 0 of c.jpg", "caption 1 of c.jpg"),)


def test_coco(folder, monkeypatch):
    for split, names in (("train2014", NAMES[:2]), ("val2014", NAMES[2:])):
        images = [{"id": i, "file_name": name} for i, name in enumerate(names)]
        notes = [{"image_id": i, "caption": f"{name} {k}"} for i, name in enumerate(names) for k in range(3)]
        path = folder / "annotations" / f"captions_{split}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"images": images, "annotations": notes}))
    splits = load_captions(folder)
    assert splits.train.num_captions == 6
    assert splits.validation.names == ("c.jpg",)
    compressed = path.with_name(f"{path.name}.gz")
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert load_captions(folder).validation.names == ("c.jpg",)
    monkeypatch.setattr(limits, "MAX_CAPTIONS_BYTES", 100)
    with pytest.raises(SightlineError, match="must be at most 100 bytes, got more"):
        load_captions(compressed, images=folder)


def test_json_lines_with_named_splits_and_a_zip_of_images(folder, tmp_path):
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for name in NAMES:
            archive.write(folder / "Images" / name, f"photos/{name}")
    rows = [
        {"image": name, "captions": ["one", "two"], "split": split}
        for name, split in zip(NAMES, ("train", "dev", "extra"), strict=True)
    ]
    with gzip.open(tmp_path / "captions.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, rows)))
    with pytest.warns(SightlineWarning, match=r"splits of .* are left out: extra \(1 images\); see data.validation"):
        splits = load_captions(tmp_path / "captions.jsonl.gz", images=tmp_path / "images.zip", test_split="dev")
    assert splits.validation is None
    assert splits.test.names == ("b.jpg",)
    assert splits.train.load(5, 1).shape == (1, 1, 5, 5)
    assert len({*splits.train.content_digests(), *splits.test.content_digests()}) == 2


def write_rows(path, rows):
    path.write_text("\n".join(json.dumps({"image": image, "caption": "text", "split": split}) for image, split in rows))


def test_images_of_a_zip_file_are_found_by_their_path(folder):
    with zipfile.ZipFile(folder / "images.zip", "w") as archive:
        for name, entry in zip(NAMES, ("all/train/1.jpg", "all/test/1.jpg", "all/2.jpg"), strict=True):
            archive.write(folder / "Images" / name, entry)
    file = folder / "captions.jsonl"
    write_rows(file, [("train/1.jpg", "train"), ("all/test/1.jpg", "test"), ("other/2.jpg", "train")])
    splits = load_captions(file, images=folder / "images.zip")
    assert [path.as_posix() for path in splits.train.paths] == ["all/2.jpg", "all/train/1.jpg"]
    assert [path.as_posix() for path in splits.test.paths] == ["all/test/1.jpg"]
    write_rows(file, [("1.jpg", "train")])
    with pytest.raises(SightlineError, match=r"must be those of one file of .*, got '1.jpg' for 'all/t"):
        load_captions(file, images=folder / "images.zip")


def test_splits(folder):
    file = folder / "captions.jsonl"
    write_rows(file, [("a.jpg", "train"), ("b.jpg", "train"), ("a.jpg", "test")])
    with pytest.raises(SightlineError, match=r"must be in one split, got 'a.jpg' in 'train' and 'test'"):
        load_captions(file)
    write_rows(file, [("a.jpg", "test"), ("b.jpg", "test")])
    splits = load_captions(file)
    assert splits.train.names == ("a.jpg", "b.jpg")
    assert splits.test is None
    write_rows(file, [("a.jpg", "train"), ("b.jpg", None)])
    with pytest.raises(SightlineError, match=r"must have a split, or none, got 1 without one"):
        load_captions(file)
    write_rows(file, [("a.jpg", None), ("./a.jpg", None)])
    assert load_captions(file).train.captions == (("text", "text"),)


def test_empty_captions_are_left_out_with_a_warning(folder):
    (folder / "captions.txt").write_text("image,caption\na.jpg,text\na.jpg,  \nb.jpg,\n")
    with pytest.warns(SightlineWarning, match="has 2 empty captions, which are left out"):
        splits = load_captions(folder)
    assert (splits.train.names, splits.train.captions) == (("a.jpg",), (("text",),))


def test_captions_are_valid_unicode(folder):
    (folder / "captions.jsonl").write_text('{"image": "a.jpg", "caption": "x\\ud800y"}')
    with pytest.raises(SightlineError, match=r"the caption of a.jpg must be valid Unicode, got an error"):
        load_captions(folder)


def test_flickr_images_are_in_one_split(folder):
    (folder / "Flickr8k.token.txt").write_text("a.jpg#0\ttext\n")
    for split in ("train", "dev"):
        (folder / f"Flickr_8k.{split}Images.txt").write_text("a.jpg\n")
    with pytest.raises(SightlineError, match=r"must be in one split, got 'a.jpg' in 'train' and 'dev'"):
        load_captions(folder / "Flickr8k.token.txt")


def test_a_file_of_coco_finds_its_images(folder):
    (folder / "annotations").mkdir()
    content = {"images": [{"id": 5, "file_name": "a.jpg"}], "annotations": [{"image_id": 5, "caption": "text"}]}
    file = folder / "annotations" / "captions_val2014.json"
    file.write_text(json.dumps(content))
    assert load_captions(file).train.names == ("a.jpg",)
    content["annotations"][0]["image_id"] = 6
    file.write_text(json.dumps(content))
    with pytest.raises(SightlineError, match=r"must be the id of one of its images, got 6"):
        load_captions(file)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["image,caption", "missing.jpg,text"], "1 without a file, such as 'missing.jpg'"),
        (["image,caption", "../a.jpg,text"], "must be relative paths"),
        (["name;text"], "must start with the header image,caption"),
        (["image,caption"], "must have a split named train"),
    ],
)
def test_bad_tables_name_the_problem(folder, lines, message):
    (folder / "captions.txt").write_text("\n".join(lines))
    with pytest.raises(SightlineError, match=message):
        load_captions(folder)


def test_missing_data():
    with pytest.raises(SightlineError, match="does not exist"):
        load_captions("nowhere/captions.txt")


def test_held_out_images_keep_their_captions(folder):
    (folder / "captions.txt").write_text(
        "image,caption\n" + "\n".join(f"{name},{name} {i}" for name in NAMES for i in range(5))
    )
    rest, held_out = hold_out(load_captions(folder).train, 1, seed=3)
    assert {*rest.names, *held_out.names} == {*NAMES}
    assert all(
        text.startswith(name)
        for part in (rest, held_out)
        for name, texts in zip(part.names, part.captions, strict=True)
        for text in texts
    )


def test_data_with_captions_has_a_summary_and_a_contact_sheet(folder, tmp_path):
    long = "a very long caption " * 9
    lines = ["image,caption", *(f"{name},A dog runs" for name in NAMES), f"a.jpg,{long}"]
    (folder / "captions.txt").write_text("\n".join(lines))
    sheet = tmp_path / "sheet.png"
    result = CliRunner().invoke(app, ["data", str(folder), "--show", str(sheet)])
    assert result.exit_code == 0, result.output
    assert re.search(r"train +3 +4 +1 to 2 +11.2, at most 36 +6\n", result.stdout)
    assert "most frequent words: a," in result.stdout
    with Image.open(sheet) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    for i in range(len(NAMES)):  # the images, side by side
        np.testing.assert_allclose(pixels[60, 90 + 172 * i], 40 * i, atol=3)
    dark = (pixels[190:] < 60).all(-1)
    assert dark[:, 12:172].sum() > 2 * dark[:, 184:344].sum() > 0  # the first image has a long caption as well


@pytest.mark.parametrize(("name", "expected"), [("captions.txt", True), ("rows.jsonl", True), ("notes.txt", False)])
def test_sources_with_captions_are_recognized(folder, name, expected):
    assert not has_captions(folder)
    (folder / name).write_text("image,caption")
    assert has_captions(folder / name) == expected
    assert has_captions(folder) == (name == "captions.txt")
    assert has_captions("shapes")
    assert not has_captions("glyphs")
