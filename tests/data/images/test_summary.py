import numpy as np
import pytest
import torch
from PIL import Image

from sightline.data import ImageSet, Splits, load
from sightline.data.images.summary import contact_sheet, summarize
from sightline.errors import SightlineError


def random_images(channels, classes=("cat", "dog", "owl"), size=7, count=12):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=generator)
    return ImageSet(pixels, torch.arange(count) % 2, classes)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_summary_has_counts_and_statistics(channels):
    train = random_images(channels)
    summary = summarize(Splits(train, None, train.take([0, 1, 2]), format="npz"))
    assert (summary.format, summary.classes) == ("npz", ("cat", "dog", "owl"))
    assert list(summary.splits) == ["train", "test"]
    train_summary = summary.splits["train"]
    assert summary.splits["test"].counts == {"cat": 2, "dog": 1, "owl": 0}
    assert (train_summary.num_images, train_summary.size, train_summary.channels) == (12, 7, channels)
    floats = train.pixels.double() / 255
    assert train_summary.mean == pytest.approx(floats.mean((0, 2, 3)).tolist())
    assert train_summary.std == pytest.approx(floats.std((0, 2, 3), correction=0).tolist())


def test_statistics_of_image_files_use_a_sample(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("L", (8, 8), 51).save(tmp_path / name / f"{number}.png")
    splits = load(tmp_path, max_memory=0)
    train = summarize(splits).splits["train"]
    assert train.counts == {"a": 3, "b": 3}
    assert train.mean == pytest.approx((0.2,))
    assert train.std == pytest.approx((0.0,), abs=1e-9)
    assert contact_sheet(splits.train).mode == "L"


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_a_contact_sheet_has_a_row_for_each_class(channels, mode):
    images = random_images(channels, size=50)
    sheet = contact_sheet(images, per_class=4)
    assert sheet.mode == mode
    assert sheet.height == 3 * 54 + 4
    array = np.asarray(sheet)
    first = images.pixels[0].permute(1, 2, 0).squeeze(-1).numpy()
    assert (array[4:54, -4 * 54 : -4 * 54 + 50] == first).all()  # cat, the first of four
    assert (array[:, :60] < 128).any()  # the names
    assert (array[-50:, -4 * 54 :] == 255).all()  # no owls


def test_a_contact_sheet_shortens_names_and_limits_classes():
    names = ("猫\n", "a" * 300, *(f"class {number}" for number in range(118)))
    sheet = contact_sheet(random_images(1, names), per_class=2)
    assert sheet.height < 110 * 68
    assert sheet.width < 600


def test_large_images_are_shown_as_thumbnails():
    assert contact_sheet(random_images(3, size=300), per_class=1).width < 200


def test_a_contact_sheet_needs_a_column():
    with pytest.raises(SightlineError, match="per_class must be an integer of at least 1, got 0"):
        contact_sheet(random_images(1), per_class=0)


def test_columns_of_a_summary_are_aligned():
    train = random_images(3, ("cat", "猫猫", "e\N{COMBINING ACUTE ACCENT}l"))
    lines = str(summarize(Splits(train, None, train.take([0, 1, 2]), format="npz"))).splitlines()
    assert lines[0] == "npz, 3 classes"
    assert [line.split()[0] for line in lines[3:5]] == ["train", "test"]
    counts = lines[-4:]
    assert [line.split() for line in counts[1:]] == [
        ["cat", "6", "2"],
        ["猫猫", "6", "1"],
        ["e\N{COMBINING ACUTE ACCENT}l", "0", "0"],
    ]
    assert [len(line) for line in counts] == [18, 18, 16, 19]  # two characters are wide, one is combining
