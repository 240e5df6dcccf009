import pytest

from class_folders import png, write_zip
from sightline.data.images import class_pool as pool
from sightline.data.images.formats import omniglot_runs as one_shot_runs
from sightline.data.images.formats.omniglot_runs import read_one_shot_runs

ANSWERS = {"item01": "class03", "item02": "class01", "item03": "class02"}


def files(above="", runs=2, answers=ANSWERS):
    written = {}
    for run in (f"run{number:02d}" for number in range(1, runs + 1)):
        for number in range(1, 4):
            written[f"{above}{run}/training/class{number:02d}.png"] = png(10 * number)
            written[f"{above}{run}/test/item{number:02d}.png"] = png(100 + 10 * number)
        lines = [f"{run}/test/{asked}.png {run}/training/{answer}.png" for asked, answer in answers.items()]
        written[f"{above}{run}/class_labels.txt"] = ("\n".join(lines) + "\n").encode()
    return written


@pytest.mark.parametrize("above", ["", "all_runs/"])
def test_runs_are_read_with_their_answers(above, tmp_path):
    runs = read_one_shot_runs(write_zip(tmp_path / "runs.zip", files(above)), size=7)
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
        ({"run01/class_labels.txt": None, "run02/class_labels.txt": None}, "must hold 1 to 1,000 runs"),
        ({"run01/test/item02.png": None}, r"must name each image of test once, got 'run01/test/item02\.png' in one"),
        ({"run01/test/item04.png": png()}, r"must name each image of test once, got 'run01/test/item04\.png' in one"),
        ({"run01/training/class03.png": None}, r"must name images of training, got 'run01/training/class03\.png'"),
        (
            {"run01/class_labels.txt": b"run01/test/item01.png"},
            "line 1 of class_labels.txt of run01 in .* must name two",
        ),
        ({"run01/class_labels.txt": b"a b\n\na c"}, "line 3 of class_labels.txt of run01 in .* must name a new image"),
        ({"run01/class_labels.txt": b"\xff\xfe\x00"}, "must be text in UTF-8"),
        ({"run01/class_labels.txt": b"../../a b"}, "must name each image of test once"),
        ({"run01/test/item02.png": b"no"}, r"run01/test/item02\.png in .*runs\.zip must be a PNG"),
        (
            {"run01/test/item02.png": png(size=(7, 7))},
            r"must be of one size, got \(5, 5\) and \(7, 7\) in .*; give size",
        ),
        ({f"run02/training/class{n:02d}.png": None for n in (1, 2, 3)}, "training of run02 in .* must hold 1 to 1,000"),
        (
            {f"run02/{k}0{n}.png": png(size=(7, 7)) for k in ("training/class", "test/item") for n in (1, 2, 3)},
            "give size",
        ),
    ],
)
def test_runs_that_do_not_fit_are_refused(changes, message, tmp_path):
    written = {name: data for name, data in (files() | changes).items() if data is not None}
    with pytest.raises(ValueError, match=message):
        read_one_shot_runs(write_zip(tmp_path / "runs.zip", written))


def test_runs_must_be_there_and_not_too_many(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"one-shot runs must be a zip file, got .* which is not there"):
        read_one_shot_runs(tmp_path / "none.zip")
    monkeypatch.setattr(one_shot_runs, "MOST_RUNS", 1)
    with pytest.raises(ValueError, match=r"must hold 1 to 1 runs, .* got 2"):
        read_one_shot_runs(write_zip(tmp_path / "runs.zip", files()))


@pytest.mark.parametrize(("most", "count"), [(5 * 5 * 2, 3), (5 * 5 * 7, 12)])
def test_more_than_memory_may_hold_is_refused(most, count, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "MOST_BYTES", most)
    with pytest.raises(
        ValueError, match=rf"must take at most {most} bytes of memory, got {25 * count} for {count} images"
    ):
        read_one_shot_runs(write_zip(tmp_path / "runs.zip", files()))
