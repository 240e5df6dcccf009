"""Few-shot runs beside each other: on the same episodes, or refused."""

import re
import shutil

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import sightline
from processes import SMALL, write_images
from sightline import comparison, zoo
from sightline.cli import app
from sightline.comparison import compare

SIDE, EACH, EPISODES = 9, 7, 23
TINY = (
    "task=few_shot",
    "data.validation=0",
    "model.backbone=conv4",
    "model.backbone_channels=[6]",
    "model.num_heads=2",
    "episode.way=3",
    "episode.query=2",
    "evaluation.settings=[3w2s,2w1s]",
    "evaluation.query=3",
    "evaluation.episodes=11",
    "training.steps=1",
    "training.batch_size=2",
    "training.device=cpu",
)
CLASSES = (*(f"background/Latin/{letter}" for letter in "abcd"), *(f"evaluation/Greek/{letter}" for letter in "efghij"))


def write_classes(path, classes=CLASSES, each=EACH):
    """Omniglot in small: noisy copies of one pattern for each class."""
    random = np.random.default_rng(0)
    labels = np.arange(len(classes)).repeat(each)
    patterns = random.integers(0, 2, (len(classes), SIDE * SIDE))
    ink = patterns[labels] ^ (random.random((len(labels), SIDE * SIDE)) < 0.25)
    packed = np.packbits(ink.astype(np.uint8), axis=1)
    np.savez(path, images_packed=packed, label=labels, classes=np.array(classes), shape=np.array([SIDE, SIDE]))


def train(home, name, *words, data="letters.npz"):
    words = [*TINY, f"data.source={home / data}", f"out={home / name}", *words]
    return sightline.train(None, words, quiet=True).folder


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("compared")
    write_classes(home / "letters.npz")
    train(home, "one")
    train(home, "two", "seed=1", "model.depth=0", "data.image_size=7")
    return home


def test_a_run_beside_itself_differs_by_nothing(home):
    found = compare([home / "one", home / "one"], device="cpu")
    assert (found.split, found.classes, found.episodes) == ("test", 6, 11)
    (_, first), (_, again) = found.standings
    assert list(first) == ["3w2s", "2w1s"]
    for setting, one in again.items():
        assert (one.difference, one.difference_half) == (0, 0)
        assert (one.accuracy, one.half) == (first[setting].accuracy, first[setting].half)
        assert one.half > 0


def test_accuracies_are_those_of_evaluate(home):
    found = compare([home / "two", home / "one"], device="cpu")
    for (_, standing), run in zip(found.standings, ("two", "one"), strict=True):
        judged = sightline.load(home / run).judged().settings
        for setting, one in standing.items():
            assert (one.accuracy, one.half) == (judged[setting].accuracy, judged[setting].half)


def test_other_data_judge_as_they_do_for_evaluate(home):
    """All classes of a set without a test part, at each run's own size."""
    write_classes(home / "signs.npz", [f"Signs/{letter}" for letter in "klmnopq"])
    found = compare([home / "one", home / "two"], data=str(home / "signs.npz"), baselines=["nearest"], device="cpu")
    assert (found.split, found.classes) == ("whole", 7)
    standings = dict(found.standings)
    for run in ("one", "two"):
        judged = sightline.evaluate(home / run, str(home / "signs.npz"), "cpu")
        assert (judged.split, judged.classes) == (found.split, found.classes)
        for setting, one in standings[run].items():
            assert (one.accuracy, one.half) == (judged.settings[setting].accuracy, judged.settings[setting].half)


def test_a_handful_of_images_of_one_s_own_can_judge(home, tmp_path):
    """Fewer of each class than the recipe asks, and fewer classes than some of its settings have."""
    write_classes(tmp_path / "few.npz", [f"Signs/{letter}" for letter in "kl"], each=4)
    path = str(tmp_path / "few.npz")
    score = sightline.evaluate(home / "one", path, "cpu", episodes=5)
    assert (list(score.settings), score.left_out, score.query, score.episodes) == (["2w1s"], ("3w2s",), None, 5)
    assert "too few classes or images for 3w2s" in score.lines()[0]
    found = compare([home / "one"], data=path, device="cpu")
    assert (list(found.standings[0][1]), found.left_out) == (["2w1s"], ("3w2s",))
    write_classes(tmp_path / "few.npz", [f"Signs/{letter}" for letter in "klm"], each=3)
    answer = CliRunner().invoke(app, ["evaluate", str(home / "one"), "--data", path, "--device", "cpu"])
    assert answer.stdout.startswith("whole set, 3 classes, 11 episodes of each setting, 1 images asked of each class\n")
    found = compare([home / "one"], data=path, device="cpu")
    assert found.query == 1
    assert "of each setting for all, 1 images asked of each class; accuracy" in found.title
    write_classes(tmp_path / "few.npz", [f"Signs/{letter}" for letter in "klm"], each=2)
    assert list(sightline.evaluate(home / "one", path, "cpu").settings) == ["2w1s"]
    write_classes(tmp_path / "few.npz", [f"Signs/{letter}" for letter in "klm"], each=1)
    with pytest.raises(
        ValueError, match=r"3w2s: each class must have at least 3 images, shot and query together, got 1 .*--settings"
    ):
        sightline.evaluate(home / "one", path, "cpu")


def test_evaluate_at_other_settings_leaves_the_run_as_it_is(home):
    folder, before = home / "one", (home / "one/README.md").read_text()
    words = ["evaluate", str(folder), "--settings", "2w1s,4w1s", "--episodes", "7", "--device", "cpu"]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.stderr
    assert [line.split()[0] for line in answer.stdout.splitlines()[:4]] == ["test", "setting", "2w1s", "4w1s"]
    assert "7 episodes of each setting" in answer.stdout
    assert (folder / "README.md").read_text() == before
    with pytest.raises(
        ValueError, match="settings and episodes must be left out for a run of task image_classification"
    ):
        sightline.evaluate(sightline.train(None, [*SMALL, f"out={home / 'images'}"], quiet=True).folder, episodes=7)


def test_judging_tells_how_far_it_is(home):
    told = []
    sightline.load(home / "one").judged(progress=lambda done, count: told.append((done, count)))
    assert told[-1] == (22, 22)


def test_a_run_s_own_data_by_another_path_are_its_own(home):
    """Not all of them, among which are those that it has learned from."""
    write_classes(home / "own.npz", [f"Own/{letter}" for letter in "abcdefgh"])
    predictor = sightline.load(
        train(home, "owner", "data.validation=0.4", "evaluation.selection_setting=2w1s", data="own.npz")
    )
    for path in (None, f"{home}/../{home.name}/own.npz"):
        images, split = predictor.evaluation_split(path)
        assert (len(images.classes), split) == (3, "validation")


def test_a_model_that_ships_is_compared_on_data_that_are_named(home, tmp_path, monkeypatch):
    shutil.copytree(home / "one", tmp_path / "signs")
    recipe = tmp_path / "signs/config.yaml"
    recipe.write_text(recipe.read_text().replace(str(home / "letters.npz"), "data/away.npz"))
    monkeypatch.setattr(zoo, "HOME", tmp_path)
    words = ["compare", "signs", str(home / "two"), "--settings", "2w1s", "--episodes", "5", "--device", "cpu"]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 2
    assert answer.stderr.startswith("error: the data of signs must be there to judge by, got 'data/away.npz', which is")
    answer = CliRunner().invoke(app, [*words, "--data", str(home / "letters.npz")])
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.startswith("test set, 6 classes, the same 5 episodes")
    assert [line.split()[0] for line in answer.stdout.splitlines()[2:]] == ["signs", "two"]


def test_the_difference_is_paired(home):
    found = compare(
        [home / "one", home / "two"], baselines=["protonet"], settings=["2w1s"], episodes=EPISODES, device="cpu"
    )
    assert [name for name, _ in found.standings] == ["one", "protonet", "two"]
    one, two = (sightline.load(home / name) for name in ("one", "two"))
    shares = []
    for run in (one, two):
        images, _ = run.evaluation_split()
        classes = comparison.classes_of(images)
        seen = comparison.tally(
            run.model.head, run.embedded(images), classes, way=2, shot=1, query=3, episodes=EPISODES
        )
        shares.append(torch.cat(seen.accuracies))
    apart = shares[1] - shares[0]
    standing = found.standings[2][1]["2w1s"]
    assert standing.difference == pytest.approx(float(apart.mean()), abs=1e-12)
    assert standing.difference_half == pytest.approx(1.96 * float(apart.std()) / EPISODES**0.5, rel=1e-9)
    assert standing.accuracy == pytest.approx(float(shares[1].mean()), abs=1e-12)


def test_an_answer_that_is_worse_is_said_to_be(home, monkeypatch):
    def contrary(support, labels, query, *, way):
        return -comparison.BASELINES["protonet"](support, labels, query, way=way)

    monkeypatch.setitem(comparison.BASELINES, "contrary", contrary)
    found = compare([home / "one"], baselines=["contrary"], settings=["3w2s"], episodes=EPISODES, device="cpu")
    standing = found.standings[1][1]["3w2s"]
    assert standing.difference + standing.difference_half < 0


def test_the_table_can_be_read(home):
    found = compare([home / "one", home / "two"], baselines=["nearest"], episodes=EPISODES, device="cpu")
    lines = found.lines()
    assert lines[0].startswith("test set, 6 classes, the same 23 episodes of each setting for all")
    assert lines[1].split() == ["3w2s", "difference", "2w1s", "difference"]
    assert re.fullmatch(r"two( +\d+\.\d\d% ± \d+\.\d\d%  [+-]\d+\.\d\d ± \d+\.\d\d){2}", lines[-1])
    rows = found.markdown().splitlines()
    assert rows[2:4] == ["|  | 3w2s | difference | 2w1s | difference |", "| --- | --- | --- | --- | --- |"]
    assert [row.split(" | ")[0] for row in rows[4:]] == ["| one", "| nearest", "| two"]
    assert {row.count("|") for row in rows[2:]} == {6}


def test_two_runs_of_one_name_are_told_apart(home, tmp_path):
    train(home, "other/one")
    found = compare([home / "one", home / "other/one"], settings=["2w1s"], episodes=2, device="cpu")
    assert [name for name, _ in found.standings] == [str(home / "one"), str(home / "other/one")]


@pytest.fixture(scope="module")
def strangers(home):
    """Runs that cannot be compared with the first."""
    write_classes(home / "renamed.npz", (*CLASSES[:-1], "evaluation/Greek/x"))
    write_classes(home / "fewer.npz", CLASSES[:-1])
    write_classes(home / "longer.npz", each=EACH + 1)
    write_images(home / "images.npz")
    for name in ("renamed", "fewer", "longer"):
        train(home, name, data=f"{name}.npz")
    words = [f"data.source={home / 'images.npz'}", f"out={home / 'classifier'}", *SMALL, "training.steps=1"]
    sightline.train(None, words, quiet=True)
    return home


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ([], {}, "runs must name at least one run, got none"),
        (["one", "renamed"], {}, r"on the same classes .* got 'Greek/j' in those of \S+one but not of \S+renamed"),
        (["fewer", "one"], {}, r"on the same classes .* got 'Greek/j' in those of \S+one but not of \S+fewer"),
        (["one", "longer"], {}, r"with the same images, got others for \S+longer than for \S+one"),
        (["one", "classifier"], {}, r"must be of task few_shot, got '\S+classifier' of task image_classification"),
        (["one"], {"baselines": ["protonets"]}, "a baseline must be one of .* did you mean 'protonet'"),
        (["one"], {"settings": ["5x1"]}, "a setting must read like 5w1s"),
        (["one"], {"settings": ["7w1s"]}, "way must be at most the number of classes, 6, got 7"),
        (["one"], {"settings": ["2w5s"]}, "each class must have at least 8 images"),
        (["one"], {"episodes": 0}, "episodes must be an integer of at least 1, got 0"),
        (["one"], {"episodes": 10**7}, "episodes must be at most 1,000,000"),
    ],
)
def test_what_cannot_be_compared_is_refused(strangers, names, options, message):
    with pytest.raises(ValueError, match=message):
        compare([strangers / name for name in names], **options)


def test_the_command_prints_the_table_and_writes_it(home, tmp_path):
    words = ["compare", home / "one", home / "two", "--with", "protonet, svm", "--settings", "2w1s"]
    words += ["--episodes", 5, "--device", "cpu", "--out", tmp_path / "new/table.md"]
    answer = CliRunner().invoke(app, [str(word) for word in words])
    assert answer.exit_code == 0, answer.stderr
    assert [line.split()[0] for line in answer.stdout.splitlines()[2:]] == ["one", "protonet", "svm", "two", "wrote"]
    assert "| svm | " in (tmp_path / "new/table.md").read_text()
    answer = CliRunner().invoke(app, ["compare", str(home / "one"), "--with", "svn", "--out", str(tmp_path / "no.md")])
    assert answer.exit_code == 2
    assert answer.stderr.startswith("error: a baseline must be one of ")
    assert not (tmp_path / "no.md").exists()
