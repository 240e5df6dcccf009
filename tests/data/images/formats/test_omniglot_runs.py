import pytest

from class_folders import png, write_zip
from sightline import limits
from sightline.data.images.formats.omniglot_runs import read_one_shot_runs
from sightline.errors import SightlineError

LABELS = {"item01": "class03", "item02": "class01", "item03": "class02"}


def files(prefix="", runs=2, labels=LABELS):
    written = {}
    for run in (f"run{number:02d}" for number in range(1, runs + 1)):
        for number in range(1, 4):
            written[f"{prefix}{run}/training/class{number:02d}.png"] = png(10 * number)
            written[f"{prefix}{run}/test/item{number:02d}.png"] = png(100 + 10 * number)
        lines = [f"{run}/test/{query}.png {run}/training/{support}.png" for query, support in labels.items()]
        written[f"{prefix}{run}/class_labels.txt"] = ("\n".join(lines) + "\n").encode()
    return written


@pytest.mark.parametrize("prefix", ["", "all_runs/"])
def test_runs_are_read_with_their_labels(prefix, tmp_path):
    runs = read_one_shot_runs(write_zip(tmp_path / "runs.zip", files(prefix)), size=7)
    assert [run.name for run in runs] == ["run01", "run02"]
    for run in runs:
        assert run.support.shape == run.query.shape == (3, 1, 7, 7)
        assert run.support[:, 0, 0, 0].tolist() == [10, 20, 30]
        assert run.query[:, 0, 0, 0].tolist() == [110, 120, 130]
        assert run.labels.tolist() == [2, 0, 1]
    assert read_one_shot_runs(tmp_path / "runs.zip")[0].support.shape == (3, 1, 5, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run01/class_labels.txt": None, "run02/class_labels.txt": None}, "must have 1 to 1,000 runs"),
        ({"run01/test/item02.png": None}, r"must list each test image once, got 'run01/test/item02\.png' in only one"),
        ({"run01/test/item04.png": png()}, r"must list each test image once, got 'run01/test/item04\.png' in only one"),
        ({"run01/training/class03.png": None}, r"must list training images, got 'run01/training/class03\.png'"),
        (
            {"run01/class_labels.txt": b"run01/test/item01.png"},
            "line 1 of class_labels.txt of run01 in .* must have two names",
        ),
        ({"run01/class_labels.txt": b"a b\n\na c"}, "line 3 of class_labels.txt of run01 in .* must have a new image"),
        ({"run01/class_labels.txt": b"\xff\xfe\x00"}, "must be UTF-8 text"),
        ({"run01/class_labels.txt": b"../../a b"}, "must list each test image once"),
        ({"run01/test/item02.png": b"no"}, r"run01/test/item02\.png in .*runs\.zip must be a complete PNG"),
        (
            {"run01/test/item02.png": png(size=(7, 7))},
            r"must have the same size, got \(5, 5\) and \(7, 7\) in .*; give size",
        ),
        ({f"run02/training/class{n:02d}.png": None for n in (1, 2, 3)}, "training of run02 in .* must have 1 to 1,000"),
        (
            {f"run02/{k}0{n}.png": png(size=(7, 7)) for k in ("training/class", "test/item") for n in (1, 2, 3)},
            "give size",
        ),
    ],
)
def test_invalid_runs_are_rejected(changes, message, tmp_path):
    written = {name: data for name, data in (files() | changes).items() if data is not None}
    with pytest.raises(SightlineError, match=message):
        read_one_shot_runs(write_zip(tmp_path / "runs.zip", written))


def test_the_file_must_exist_and_have_few_runs(tmp_path, monkeypatch):
    with pytest.raises(SightlineError, match=r"one-shot runs must be a zip file, got .* which does not exist"):
        read_one_shot_runs(tmp_path / "none.zip")
    monkeypatch.setattr(limits, "MAX_ONE_SHOT_RUNS", 1)
    with pytest.raises(SightlineError, match=r"must have 1 to 1 runs .* got 2"):
        read_one_shot_runs(write_zip(tmp_path / "runs.zip", files()))


@pytest.mark.parametrize(("maximum", "count"), [(5 * 5 * 2, 3), (5 * 5 * 7, 12)])
def test_memory_is_limited(maximum, count, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_IMAGE_SET_BYTES", maximum)
    with pytest.raises(
        SightlineError, match=rf"must take at most {maximum} bytes, got {25 * count} for {count} images"
    ):
        read_one_shot_runs(write_zip(tmp_path / "runs.zip", files()))
