import itertools
import json
import math
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sightline
from sightline import zoo
from sightline.data import episodes
from sightline.data.episodes import Classes, Episodes
from sightline.data.images.augmentation import Augment
from sightline.data.images.class_splits import ClassSplits, with_others
from sightline.data.images.loading import ImageSet
from sightline.models.few_shot import FewShotConfig
from sightline.tasks.few_shot import evaluate as few_shot_judging
from sightline.tasks.few_shot import task as few_shot
from sightline.tasks.few_shot.evaluate import Setting, Tally, mean_and_half, metrics, tally
from sightline.tasks.few_shot.task import Episode, Evaluation, FewShotData, FewShotTask, More, Recipe
from sightline.training.config import TrainingConfig
from sightline.training.task import BatchSlice

CPU = torch.device("cpu")


def images(classes: int, each: int = 7, side: int = 16, prefix: str = "train") -> ImageSet:
    """Every class has a gray of its own, and a little noise."""
    random = torch.Generator().manual_seed(classes)
    labels = torch.arange(classes * each) % classes
    pixels = torch.randint(24, (classes * each, 1, side, side), generator=random)
    pixels = (pixels + (labels * 220 // classes)[:, None, None, None]).to(torch.uint8)
    return ImageSet(pixels, labels, tuple(f"{prefix}{i % 3}/{prefix} {i}" for i in range(classes)))


def splits(**others: ImageSet | None) -> ClassSplits:
    parts = {"train": images(11), "validation": images(7, prefix="v"), "test": images(8, prefix="t"), **others}
    return ClassSplits(**parts)


def recipe(**changes) -> Recipe:
    return Recipe(
        **{
            "episode": Episode(way=5, shot=2, query=3),
            "evaluation": Evaluation(
                settings=("3w1s", "5w2s"), query=3, episodes=13, selection_setting="3w1s", selection_episodes=5
            ),
            "model": FewShotConfig(backbone_channels=(4, 4, 4, 8), num_heads=2),
            "training": TrainingConfig(batch_size=4, steps=4),
            **changes,
        }
    )


def pieces(task: FewShotTask, step: int = 0, size: int = 4, part: BatchSlice | None = None):
    return next(task.batches(step, size, part or BatchSlice()))


def test_a_batch_is_whole_episodes_with_their_labels():
    task = FewShotTask(recipe(), splits())
    ((pixels, labels, answers, known, total),) = pieces(task)
    assert known is None
    assert pixels.shape == (4, 25, 1, 16, 16)
    assert total == 4
    assert answers.tolist() == [[c for c in range(5) for _ in range(3)]] * 4
    own = labels.view(4, 25)
    for row in own.tolist():
        support, query = row[:10], row[10:]
        assert len(set(support)) == 5
        assert query == [support[2 * c] for c in range(5) for _ in range(3)]
    gray = (pixels * 255).round().to(torch.uint8).flatten(1)
    shown = task.train.pixels[:, :, :, :].flatten(1)
    assert all((shown == row).all(1).any() for row in gray.view(100, -1)[:7])


def test_a_step_is_the_same_however_it_is_come_to_and_cut():
    task = FewShotTask(recipe(augment=Augment(rotate=20.0)), splits())
    stream = task.batches(0, 4, BatchSlice())
    third = [next(stream) for _ in range(3)][2][0]
    torch.testing.assert_close(pieces(task, 2)[0][0], third[0], rtol=0, atol=0)
    assert not pieces(task, 3)[0][0].equal(third[0])
    parts = [pieces(task, 2, part=BatchSlice(rank, 2, 2)) for rank in range(2)]
    torch.testing.assert_close(torch.cat([one[0] for part in parts for one in part]), third[0], rtol=0, atol=0)


def test_classes_may_have_unequal_numbers_of_examples():
    task = FewShotTask(recipe(episode=Episode(way=5, shot=4, min_shot=2, query=3)), splits())
    ((_, _, _, known, _),) = pieces(task, size=40)
    counts = torch.stack([(known == c).sum(1) for c in range(5)])
    assert sorted(counts.unique().tolist()) == [2, 3, 4]
    halves = [pieces(task, size=40, part=BatchSlice(rank, 2))[0].known for rank in range(2)]
    assert torch.cat(halves).equal(known)
    task.model.eval()
    piece = pieces(task, size=4)[0]
    other = piece.images.clone()
    other[:, :20][piece.known < 0] = 0.5  # what is passed over makes no difference
    torch.testing.assert_close(task.loss(task.model, piece), task.loss(task.model, piece._replace(images=other)))


def test_episodes_of_judging_can_stay_within_a_group():
    test = images(9)
    places = test.pixels.float().flatten(1).mean(1)[:, None, None]
    classes = few_shot.classes_of(test)
    seen = []

    def listen(support, labels, query, *, way):
        seen.append(support)
        return by_grey(support, labels, query, way=way)

    tally(listen, places, classes, way=3, shot=1, query=2, within=True, episodes=20, unknown=False)
    for row in seen[0][:, :, 0, 0]:
        own = {int(test.labels[(places.flatten() == gray).nonzero()[0]]) % 3 for gray in row}
        assert len(own) == 1
    with pytest.raises(ValueError, match="classes in groups"):
        Setting(3, 1, within=True).check(Classes.of(test.labels, test.classes), 2)


def test_the_loss_of_pieces_adds_up_to_that_of_the_batch():
    task = FewShotTask(recipe(auxiliary=0.5), splits())
    task.model.eval()
    whole = task.loss(task.model, pieces(task)[0])
    parts = [task.loss(task.model, piece) for rank in range(2) for piece in pieces(task, part=BatchSlice(rank, 2, 2))]
    torch.testing.assert_close(torch.stack(parts).sum(), whole)


def test_the_second_loss_is_of_all_training_classes():
    plain, both = FewShotTask(recipe(), splits()), FewShotTask(recipe(auxiliary=2.0), splits())
    assert plain.model.classifier is None
    assert both.model.classifier is not None
    assert both.model.classifier.out_features == 11
    both.model.eval()
    both.model.load_state_dict({**both.model.state_dict(), **plain.model.state_dict()})
    plain.model.eval()
    piece = pieces(both)[0]
    x = both.model.embed(piece[0].flatten(0, 1)).mean(1)
    second = F.cross_entropy(both.model.classifier(x), piece[1], label_smoothing=0.1)
    torch.testing.assert_close(both.loss(both.model, piece), plain.loss(plain.model, piece) + 2 * second)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"episode": Episode(way=12)}, "way must be at most the number of classes, 11, got 12"),
        ({"episode": Episode(way=5, shot=5, query=3)}, "each class must have at least 8 images"),
        (
            {"evaluation": Evaluation(selection_setting="8w1s", query=3)},
            "way must be at most the number of classes, 7, got 8",
        ),
    ],
)
def test_episodes_that_cannot_be_drawn_are_refused_with_the_fix(change, message):
    with pytest.raises(ValueError, match=message):
        FewShotTask(recipe(**change), splits())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Evaluation(settings=("5w",)), "a setting must read like 5w1s"),
        (lambda: Evaluation(settings=("1w1s",)), "a setting must read like 5w1s"),
        (lambda: Evaluation(settings=()), "settings must name at least one"),
        (lambda: Episode(shot=2, min_shot=3), "min_shot must be at most shot, 2, got 3"),
        (lambda: Episode(within=1.5), "within must be 0 to 1, got 1.5"),
        (lambda: Recipe(augment=Augment(mixup=0.5)), "mixup and augment.cutmix must be 0"),
        (lambda: Recipe(auxiliary=-1.0), "auxiliary must be at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_several_sets_are_learned_from_and_one_is_judged_by():
    others = {"a": (images(6, prefix="other"), 0.25), "b": (images(5, prefix="train"), 0.5)}
    both = with_others(splits(), others)
    first = others["a"][0]
    assert both.train.classes[11:] == tuple(f"{name}/{own}" for name in others for own in others[name][0].classes)
    assert both.train.pixels[both.train.labels == 12].equal(first.pixels[first.labels == 1])
    assert both.test.classes == splits().test.classes
    task = FewShotTask(recipe(auxiliary=1.0), both)
    assert task.model.classifier.out_features == 22
    (piece,) = pieces(task)
    labels = piece.labels.view(4, -1)
    assert sorted(sorted({*row}) for row in (labels >= 11).long().add(labels >= 17).tolist()) == [[0], [1], [2], [2]]
    third = list(itertools.islice(task.batches(0, 4, BatchSlice()), 3))[2][0]
    again = pieces(FewShotTask(recipe(auxiliary=1.0), both), step=2)[0]
    assert third.images.equal(again.images)
    assert third.labels.equal(again.labels)


def test_what_is_judged_by_is_not_learned_from_under_another_name():
    own = splits()
    for part in (own.validation, own.test):
        twin = ImageSet(part.pixels.clone(), part.labels, tuple(f"twin {name}" for name in part.classes))
        others = {"apart": (images(5, prefix="other"), 0.25), "twins": (twin, 0.25)}
        with pytest.raises(
            ValueError, match=rf"is chosen or judged by, got {len(part)} of them in 'twins'; leave it out"
        ):
            with_others(own, others)


def test_a_set_beside_is_too_small_for_the_way():
    both = with_others(splits(), {"small": (images(4), 0.5)})
    with pytest.raises(ValueError, match="way must be at most the number of classes, 4, got 5"):
        FewShotTask(recipe(), both)


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        ([{"source": "a/birds"}, {"source": "b/birds.zip", "share": 0.1}], "different names, got birds, birds"),
        ([{"source": "a", "share": 0.5}, {"source": "b", "share": 0.5}], "leave some episodes to data.source, got 1 "),
        ([{"source": one, "share": share} for one, share in (("a", 0.7), ("b", 0.2), ("c", 0.1))], "got 1 together"),
        ([{"source": "glyphs", "share": 0.1}], "must be other data than 'glyphs', got 'glyphs'; leave it out"),
        ([{"source": "a", "share": 0.0}], "share must be above 0 and below 1, got 0.0"),
    ],
)
def test_sets_that_do_not_go_together_are_refused(beside, message):
    with pytest.raises(ValueError, match=message):
        FewShotData(more=tuple(More(**one) for one in beside))


def test_a_run_of_two_sets_is_judged_by_what_it_has_not_seen_of_either(tmp_path):
    for name, part in (("mine", images(12, side=28)), ("other", images(9, side=20, prefix="o"))):
        np.savez(tmp_path / f"{name}.npz", images=part.pixels[:, 0].numpy(), labels=part.labels.numpy())
    named = {"train": [str(i) for i in range(5)], "test": [str(i) for i in range(5, 9)]}
    (tmp_path / "split.json").write_text(json.dumps(named))
    beside = {"source": str(tmp_path / "other.npz"), "split": str(tmp_path / "split.json"), "share": 0.5}
    values = {
        "task": "few_shot",
        "out": str(tmp_path / "run"),
        "data": {"source": str(tmp_path / "mine.npz"), "validation": 0.3, "more": [beside]},
        "episode": {"way": 3, "shot": 1, "query": 2},
        "evaluation": {
            "settings": ["3w1s"],
            "query": 2,
            "episodes": 5,
            "selection_setting": "3w1s",
            "selection_episodes": 5,
        },
        "model": {"widths": [4, 4, 4, 8], "heads": 2},
        "training": {"steps": 2, "batch_size": 4, "device": "cpu"},
    }
    run = sightline.train(values, quiet=True)
    assert f"Data: `{values['data']['source']}`, `{beside['source']}`." in (run.folder / "README.md").read_text()
    assert sightline.train(tmp_path / "run", ["training.keep_checkpoints=2"], resume=True, quiet=True).steps == 2
    with pytest.raises(ValueError, match=r"data\.more"):
        sightline.train(values | {"data": values["data"] | {"more": []}}, resume=True, quiet=True)
    assert sightline.evaluate(run.folder, device="cpu").split == "validation"
    score = sightline.evaluate(run.folder, beside["source"], device="cpu")
    assert (score.split, score.classes) == ("test", 4)
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "other.npz").hardlink_to(beside["source"])
    with pytest.raises(ValueError, match=r"data\.more must be other data than '.*other.npz', got '.*alone'"):
        FewShotData(more=(More(source=beside["source"]), More(source=str(tmp_path / "alone"), share=0.1)))
    score = sightline.evaluate(run.folder, str(tmp_path / "alone"), device="cpu")
    assert (score.split, score.classes) == ("test", 4)
    (tmp_path / "split.json").write_text(json.dumps({"train": named["train"]}))
    with pytest.raises(ValueError, match=r"data must have test classes, since .* has learned from it, got none in"):
        sightline.evaluate(run.folder, beside["source"], device="cpu")


def test_a_class_in_two_splits_is_caught():
    with pytest.raises(ValueError, match="a class must be in one split alone"):
        splits(validation=images(5))


def test_an_image_that_is_shown_and_asked_is_caught(monkeypatch):
    def leaky(*args, **options):
        drawn = episodes.draw(*args, **options)
        return Episodes(drawn.classes, drawn.support, torch.cat((drawn.support[:, :1], drawn.query[:, 1:]), 1))

    task = FewShotTask(recipe(), splits())
    monkeypatch.setattr(few_shot, "draw_from", lambda sources, **options: leaky(sources[0].classes, **options))
    with pytest.raises(ValueError, match="support and query must not share an image"):
        pieces(task)
    monkeypatch.setattr(few_shot_judging, "draw", leaky)
    with pytest.raises(ValueError, match="support and query must not share an image"):
        task.evaluate(task.model, BatchSlice())


def by_grey(support, labels, query, *, way):
    """Knows the classes of `images`: the nearest mean."""
    means = torch.stack([support[:, labels[0] == c].mean((1, 2)) for c in range(way)], 1)
    return -(query.mean(2)[:, :, None] - means[:, None]).square().sum(-1)


def guess(support, labels, query, *, way):
    return torch.zeros(len(query), query.shape[1], way)


def judged(answer, part=None, **changes):
    test = images(8)
    places = test.pixels.float().flatten(1).mean(1)[:, None, None]
    how = {"way": 5, "shot": 2, "query": 3, "episodes": 40, **changes}
    return tally(answer, places, Classes.of(test.labels, test.classes), part=part or BatchSlice(), **how)


def test_one_who_knows_is_right_and_one_who_guesses_is_not():
    knows, guesses = metrics(judged(by_grey).sums), metrics(judged(guess).sums)
    assert knows["accuracy"] == 1
    assert guesses["accuracy"] == pytest.approx(1 / 5)
    assert guesses["loss"] == pytest.approx(math.log(5))
    assert guesses["calibration_error"] == pytest.approx(0, abs=1e-6)
    assert judged(by_grey).auroc() == 1
    assert judged(guess).auroc() == 0.5


def test_without_a_class_to_spare_nothing_is_unknown():
    assert judged(guess, way=8).auroc() is None
    assert judged(guess, unknown=False).auroc() is None


@pytest.mark.parametrize("chunk", [7, 250])  # of 40 episodes: with the second, one process has none
def test_two_processes_see_what_one_sees(chunk, monkeypatch):
    monkeypatch.setattr(few_shot_judging, "CHUNK", chunk)
    parts = [judged(by_grey, BatchSlice(rank, 2)).sums for rank in range(2)]
    for name, value in judged(by_grey).sums.items():
        torch.testing.assert_close(parts[0][name] + parts[1][name], value)


def test_without_strangers_the_episodes_are_the_same():
    asked = []

    def listen(support, labels, query, *, way):
        asked.append((support, query[:, : 5 * 3]))
        return by_grey(support, labels, query, way=way)

    judged(listen)
    judged(listen, unknown=False)
    (support, query), (again, likewise) = asked
    assert again.equal(support)
    assert likewise.equal(query)


def test_how_many_are_worked_on_at_once_changes_nothing(monkeypatch):
    before = judged(by_grey)
    monkeypatch.setitem(few_shot_judging.FLOATS_AT_ONCE, "cpu", 1)
    after = judged(by_grey)
    assert torch.cat(after.accuracies).equal(torch.cat(before.accuracies))
    assert after.auroc() == before.auroc()


def test_auroc_counts_pairs():
    seen = Tally(known=[torch.tensor([3.0, 1.0])], unknown=[torch.tensor([2.0, 1.0, 0.0])])
    assert seen.auroc() == pytest.approx((3 + 1.5) / 6)


def test_the_interval_is_that_of_the_mean():
    mean, half = mean_and_half(torch.tensor([0.0, 1.0] * 50))
    assert mean == 0.5
    assert half == pytest.approx(1.96 * 0.5025 / 10, rel=1e-3)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("few-shot") / "run"
    words = (
        "task=few_shot",
        f"out={folder}",
        "model.backbone_channels=[4,4,4,8]",
        "model.num_heads=2",
        "episode.way=3",
        "evaluation.settings=[3w1s,5w2s]",
        "evaluation.query=3",
        "evaluation.episodes=20",
        "evaluation.selection_episodes=10",
        "training.steps=4",
        "training.evaluate_every=2",
        "training.device=cpu",
    )
    sightline.train(None, words, quiet=True)
    return folder


def test_a_run_is_judged_on_classes_it_has_not_seen(run):
    score = sightline.evaluate(run, device="cpu")
    assert score.split == "test"
    assert score.classes == 40
    assert set(score.settings) == {"3w1s", "5w2s"}
    kept = json.loads((run / "evaluation.json").read_text())
    assert kept["settings"]["3w1s"]["accuracy"] == score.settings["3w1s"].accuracy
    card = (run / "README.md").read_text()
    assert "3w1s" in card
    assert '`FewShotClassifier.pretrained("folder").fit("images/")`' in card
    assert score.lines()[2].startswith("3w1s")
    again = sightline.evaluate(run, device="cpu")
    assert again == score


def test_temperatures_and_entropies_are_logged_and_drawn(run, tmp_path):
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seen = [line["validation"] for line in logged if "validation" in line]
    assert len(seen) == 2
    for head in (1, 2):
        assert seen[0][f"temperature/block 1 head {head}"] == pytest.approx(0.05, rel=0.1)
        assert 0 < seen[0][f"entropy/block 1 head {head}"] < 4
    drawn = sightline.load(run).show(out=tmp_path / "pictures")
    assert [path.name for path in drawn.files] == ["training.png", "attention.png"]
    assert not drawn.left_out


def test_images_alone_are_answered_with_what_to_do_first(run):
    with pytest.raises(ValueError, match="sightline fit FOLDER --model"):
        sightline.load(run).predict("image.png")


def test_what_ships_is_called_by_its_name_and_judged_by_data_that_are_named(run, tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "HOME", tmp_path)
    shutil.copytree(run, tmp_path / "signs", ignore=shutil.ignore_patterns("checkpoints", "metrics.jsonl"))
    path = tmp_path / "signs" / "config.yaml"
    path.write_text(path.read_text().replace("source: glyphs", "source: data/away.npz"))
    with pytest.raises(ValueError, match=r"--model signs --out mine.sightline"):
        sightline.load("signs").predict("image.png")
    with pytest.raises(ValueError, match=r"got 'data/away.npz', which is not; .* with --data PATH"):
        sightline.evaluate("signs", device="cpu")
    assert sightline.evaluate("signs", "glyphs", device="cpu").split == "test"
    drawn = sightline.load("signs").show(out=tmp_path / "out")
    assert [reason.rpartition(" ")[2] for reason in drawn.left_out.values()] == ["signs"] * 2


def test_confidence_is_set_by_validation_classes(run):
    assert float(sightline.load(run).model.head.calibration_scale) != 1
