import numpy as np
import pytest
import torch
from PIL import Image

from sightline.data import ImageSet, Splits, load
from sightline.data.images.loading import contact_sheet, summary


def some(channels, classes=("cat", "dog", "owl"), size=7, count=12):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=generator)
    return ImageSet(pixels, torch.arange(count) % 2, classes)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_summary_counts_and_measures(channels):
    train = some(channels)
    found = summary(Splits(train, None, train.take([0, 1, 2]), kind="npz"))
    assert (found.kind, found.classes) == ("npz", ("cat", "dog", "owl"))
    assert found.validation is None
    assert found.test.counts == {"cat": 2, "dog": 1, "owl": 0}
    assert (found.train.images, found.train.size, found.train.channels) == (12, 7, channels)
    floats = train.pixels.double() / 255
    assert found.train.mean == pytest.approx(floats.mean((0, 2, 3)).tolist())
    assert found.train.std == pytest.approx(floats.std((0, 2, 3), correction=0).tolist())


def test_images_that_stay_in_their_files_are_measured_by_a_sample(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("L", (8, 8), 51).save(tmp_path / name / f"{number}.png")
    splits = load(tmp_path, keep_in_memory=0)
    found = summary(splits).train
    assert found.counts == {"a": 3, "b": 3}
    assert found.mean == pytest.approx((0.2,))
    assert found.std == pytest.approx((0.0,), abs=1e-9)
    assert contact_sheet(splits.train).mode == "L"


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_a_sheet_shows_a_row_of_each_class(channels, mode):
    images = some(channels, size=50)
    sheet = contact_sheet(images, per_class=4)
    assert sheet.mode == mode
    assert sheet.height == 3 * 54 + 4
    array = np.asarray(sheet)
    first = images.pixels[0].permute(1, 2, 0).squeeze(-1).numpy()
    assert (array[4:54, -4 * 54 : -4 * 54 + 50] == first).all()  # cat, the first of four
    assert (array[:, :60] < 128).any()  # the names
    assert (array[-50:, -4 * 54 :] == 255).all()  # no owls


def test_a_sheet_bears_odd_names_and_many_classes():
    names = ("猫\n", "a" * 300, *(f"class {number}" for number in range(118)))
    sheet = contact_sheet(some(1, names), per_class=2)
    assert sheet.height < 110 * 68
    assert sheet.width < 600


def test_large_images_are_shown_small():
    assert contact_sheet(some(3, size=300), per_class=1).width < 200


def test_a_sheet_must_have_columns():
    with pytest.raises(ValueError, match="per_class must be an integer of at least 1, got 0"):
        contact_sheet(some(1), per_class=0)


def test_a_summary_reads_as_columns_that_end_together():
    train = some(3, ("cat", "猫猫", "e\N{COMBINING ACUTE ACCENT}l"))
    lines = str(summary(Splits(train, None, train.take([0, 1, 2]), kind="npz"))).splitlines()
    assert lines[0] == "npz, 3 classes"
    assert [line.split()[0] for line in lines[3:5]] == ["train", "test"]
    counts = lines[-4:]
    assert [line.split() for line in counts[1:]] == [
        ["cat", "6", "2"],
        ["猫猫", "6", "1"],
        ["e\N{COMBINING ACUTE ACCENT}l", "0", "0"],
    ]
    assert [len(line) for line in counts] == [18, 18, 16, 19]  # two letters are wide, one mark is not
