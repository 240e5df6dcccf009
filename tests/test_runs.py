"""Run folders: training from Python, resuming, loading, and damaged folders."""

import json
import pickle
import re
import resource
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import sightline
from processes import SMALL, SMALL_TASKS, write_images, write_task_data
from sightline import hub
from sightline.errors import SightlineError
from sightline.registry import task_spec
from sightline.run_config import resolve_config

ImageClassificationTaskConfig = task_spec("image_classification").config


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with images, and a run on them in `run`."""
    home = tmp_path_factory.mktemp("runs")
    write_images(home / "images.npz")
    sightline.train(None, [f"data.source={home / 'images.npz'}", f"out={home / 'run'}", *SMALL], quiet=True)
    return home


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the run."""
    return Path(shutil.copytree(trained / "run", tmp_path / "run"))


def edit(path: Path, pattern: str, replacement: str) -> None:
    text = path.read_text()
    assert len(re.findall(pattern, text, re.M)) == 1
    path.write_text(re.sub(pattern, replacement, text, flags=re.M))


def test_config_is_a_dict_an_object_a_file_or_a_run_folder(tmp_path, trained):
    values = {
        "data": {"source": str(trained / "images.npz")},
        "model": {"embed_dim": 8, "num_heads": 2, "depth": 1},
        "training": {"batch_size": 6, "steps": 3, "device": "cpu"},
        "seed": 3,
    }
    first = sightline.train({**values, "out": str(tmp_path / "a")}, quiet=True)
    assert (first.folder, first.steps) == (tmp_path / "a", 3)
    sightline.train(sightline.load(first.folder).config, [f"out={tmp_path / 'b'}"], quiet=True)
    sightline.train(tmp_path / "a", [f"out={tmp_path / 'c'}"], quiet=True)
    sightline.train(tmp_path / "a" / "config.yaml", [f"out={tmp_path / 'd'}"], quiet=True)
    weights = {(tmp_path / name / "model.safetensors").read_bytes() for name in "abcd"}
    assert len(weights) == 1


@pytest.mark.parametrize("task", SMALL_TASKS)
def test_loaded_data_is_not_read_again(tmp_path, monkeypatch, task):
    monkeypatch.chdir(tmp_path)
    write_task_data(tmp_path)
    changes = [*SMALL_TASKS[task], "training.steps=1"]
    task_class = task_spec(task).task
    data = task_class.load_data(resolve_config(None, changes)[0])
    sightline.train(None, [*changes, "out=read"], quiet=True)
    monkeypatch.setattr(task_class, "load_data", lambda *args: pytest.fail("data was read again"))
    for name in "ab":
        sightline.train(None, [*changes, f"out={name}"], data=data, quiet=True)
    assert len({(tmp_path / name / "model.safetensors").read_bytes() for name in ("read", "a", "b")}) == 1


def test_run_without_a_config_is_named_after_its_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "photos.npz")
    run = sightline.train(None, ["data.source=photos.npz", *SMALL, "training.steps=1"], quiet=True)
    assert run.folder == Path("runs/photos")
    command = re.search(r"^    (sightline.train\(.*\))$", Path("runs/photos/README.md").read_text(), re.M)[1]
    again = eval(command.replace("ANOTHER_FOLDER", "again"))
    assert (again.folder, again.steps) == (Path("again"), 1)


def test_folder_of_images_is_not_a_config(tmp_path):
    (tmp_path / "photos").mkdir()
    message = r"which has no config.yaml; to train on the images in it: data.source=.*photos"
    with pytest.raises(SightlineError, match=message):
        sightline.train(tmp_path / "photos")


def remove_checkpoint(run, step):
    for path in (run / "checkpoints").glob(f"step-{step:08}.*"):
        path.unlink()


def test_learning_rate_can_be_changed_on_resume(run):
    """As the message about a NaN loss advises."""
    remove_checkpoint(run, 20)
    assert sightline.train(run, ["training.learning_rate=0.0001"], resume=True, quiet=True).steps == 20
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rates = {line["step"]: line["learning_rate"] for line in lines if "loss" in line}
    assert rates[15] > 1e-4 > rates[18]
    assert "  learning_rate: 0.0001\n" in (run / "config.yaml").read_text()


def test_a_finished_run_is_extended(run, capfd):
    assert sightline.train(run, ["training.steps=26"], resume=True).steps == 26
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rates = {line["step"]: line["learning_rate"] for line in lines if "loss" in line}
    assert list(rates) == [3, 6, 9, 12, 15, 18, 20, 21, 24, 26]
    assert rates[21] > rates[20]  # the cosine schedule of 26 steps
    losses = {line["step"]: line["loss"] for line in lines if "loss" in line}
    assert losses[21] > losses[20] / 2  # the mean of one step, not a third of it
    assert [line["step"] for line in lines if "final" in line] == [26]
    assert "  steps: 26\n" in (run / "config.yaml").read_text()
    assert "26 steps" in (run / "README.md").read_text()
    message = re.search(r"changed from 20 to 26 steps: .*", capfd.readouterr().err)[0]
    assert "from step 21 on, the learning rate follows the cosine schedule of 26 steps, 0.000" in message
    assert sightline.train(run, ["training.epochs=3"], resume=True, quiet=True).steps == 30


def test_a_run_that_stopped_early_says_how_to_go_on(tmp_path, capfd):
    source = write_images(tmp_path / "images.npz")
    changes = [f"data.source={source}", f"out={tmp_path / 'run'}", *SMALL, "training.early_stopping_patience=1"]
    changes += ["training.learning_rate=1e-9", "training.evaluate_every=2"]
    run = sightline.train(None, changes, quiet=True)
    assert run.steps < 20
    assert sightline.train(run.folder, ["training.steps=30"], resume=True).steps == run.steps
    assert "training ends at once; pass training.early_stopping_patience=null" in capfd.readouterr().err
    going_on = ["training.steps=30", "training.early_stopping_patience=null"]
    assert sightline.train(run.folder, going_on, resume=True, quiet=True).steps == 30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("seed=1", "seed must be 0, as in .*, to resume it, got 1"),
        ("model.depth=2", "model.depth must be 1"),
        ("training.steps=19", "must be at least the 20 steps that .* has, to resume it, got 19 steps"),
        ("training.optimizer=adam", "training.optimizer must be 'adamw'"),
    ],
)
def test_other_changes_are_refused_on_resume(run, change, message):
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    with pytest.raises(SightlineError, match=message):
        sightline.train(run, [change], resume=True, quiet=True)
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("change", ["seed=1", "model.depth=2", "model.embed_dim=4", "training.optimizer=adam"])
def test_checkpoints_of_another_run_are_refused(trained, run, tmp_path, change):
    changes = [f"data.source={trained / 'images.npz'}", *SMALL, "training.steps=4", change]
    sightline.train(None, [*changes, f"out={tmp_path / 'other'}"], quiet=True)
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", run / "checkpoints")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(SightlineError, match="a checkpoint must have the config of the run, got another one in step 4"):
        sightline.train(run, resume=True, quiet=True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_card_names_a_path_that_loads_the_run(tmp_path, monkeypatch):
    """Also where a pretrained model has the name of the folder."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "images.npz")
    changes = ["data.source=images.npz", *SMALL, "training.steps=1"]
    for out in ("runs/glyphs", str(tmp_path / "elsewhere" / "glyphs")):
        sightline.train(None, [*changes, f"out={out}"], quiet=True)
        card = Path(out, "README.md").read_text()
        assert "\n# glyphs\n" in card
        [path] = re.findall(r'sightline.load\("(.*)"\).predict', card)
        assert sightline.load(path).folder == Path(out)


@pytest.mark.parametrize(("count", "expected"), [(23, "not calibrated, which takes 50"), (300, "after calibration")])
def test_report_says_whether_the_confidence_is_calibrated(tmp_path, count, expected):
    source = write_images(tmp_path / "images.npz", count)
    run = sightline.train(None, [f"data.source={source}", f"out={tmp_path / 'run'}", *SMALL], quiet=True)
    assert expected in str(run).splitlines()[-1]
    assert expected in (run.folder / "README.md").read_text()
    resumed = sightline.train(run.folder, resume=True, quiet=True)
    assert (resumed.metrics, str(resumed)) == (run.metrics, str(run))
    assert (float(sightline.load(run.folder).model.calibration_scale) == 1) == (count == 23)


@pytest.mark.parametrize("finished", [True, False])
def test_leftovers_of_a_killed_process_are_removed_on_resume(run, finished):
    if not finished:
        (run / "README.md").unlink()
    (run / ".model.safetensors.0a1b2c3d.part").write_bytes(b"half")
    sightline.train(run, resume=True, quiet=True)
    assert not list(run.rglob("*.part"))


def test_refused_training_leaves_no_folder(tmp_path):
    with pytest.raises(SightlineError):
        sightline.train(None, ["data.source=missing", f"out={tmp_path / 'runs' / 'a'}"], quiet=True)
    assert not (tmp_path / "runs").exists()


def test_hub_is_asked_for_prefixed_names_only(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = []
    monkeypatch.setattr(hub, "resolve", lambda name: names.append(name) or trained / "run")
    assert sightline.load("hub:me/name").classes == ("0", "1", "2")
    with pytest.raises(SightlineError, match=r"run must be the folder of a trained model, .* write hub:me/name"):
        sightline.load("me/name")
    assert names == ["hub:me/name"]


def test_folder_without_a_run_is_refused(tmp_path):
    message = r"the folder of a trained model, .* there is no such folder: train a model with sightline train"
    with pytest.raises(SightlineError, match=message):
        sightline.load(tmp_path / "nowhere")
    (tmp_path / "notes.txt").touch()
    message = r"a .sightline file of sightline fit, .*notes.txt'; this file does not end in .sightline: "
    with pytest.raises(SightlineError, match=message):
        sightline.load(tmp_path / "notes.txt")
    with pytest.raises(SightlineError, match=r"which has no config.yaml; to fit a classifier .*: sightline fit "):
        sightline.load(tmp_path)


def damage(run, what):
    """Damage a run folder, or list the kinds of damage."""
    config, classes, weights = run / "config.yaml", run / "classes.json", run / "model.safetensors"
    many = json.dumps([str(i) for i in range(1_000_000)])
    changes = {
        "a huge embed_dim": lambda: edit(config, "^  embed_dim: 8$", "  embed_dim: 80000000"),
        "an embed_dim beyond 64 bits": lambda: edit(config, "^  embed_dim: 8$", f"  embed_dim: {2 * 10**30}"),
        "a huge depth": lambda: edit(config, "^  depth: 1$", "  depth: 1000000000"),
        "many heads": lambda: (
            edit(config, "^  num_heads: 2$", "  num_heads: 1000000000"),
            edit(config, "^  head_dim: null$", "  head_dim: 1000000000"),
        ),
        "a huge image": lambda: edit(config, "^  image_size: 8$", "  image_size: 400000"),
        "a huge image without positions": lambda: (
            edit(config, "^  image_size: 8$", "  image_size: 400000"),
            edit(config, "^  positions: learned$", "  positions: none"),
            edit(config, "^  mask: none$", "  mask: additive"),
        ),
        "many classes": lambda: edit(config, "^  num_classes: 3$", "  num_classes: 1000000000"),
        "many classes with names": lambda: (
            edit(config, "^  num_classes: 3$", "  num_classes: 1000000"),
            classes.write_text(many),
        ),
        "an infinite mlp_ratio": lambda: edit(config, "^  mlp_ratio: 2.0$", "  mlp_ratio: .inf"),
        "a huge mlp_ratio": lambda: edit(config, "^  mlp_ratio: 2.0$", "  mlp_ratio: 1e300"),
        "an unknown key": lambda: edit(config, "^  embed_dim: 8$", "  embed_dim: 8\n  embed_dims: 8"),
        "no task": lambda: edit(config, "^task: image_classification$", ""),
        "another task": lambda: edit(config, "^task: image_classification$", "task: [1]"),
        "no config": config.unlink,
        "a config of brackets": lambda: config.write_text("{" * 60_000),
        "a config of many keys": lambda: config.write_text("".join(f"k{i}: 1\n" for i in range(6_000))),
        "a large config": lambda: config.write_text("#" * 10_000_000),
        "no classes": classes.unlink,
        "too few classes": lambda: classes.write_text('["a", "b"]'),
        "classes that are not names": lambda: classes.write_text("[1, 2, 3]"),
        "classes that are not a list": lambda: classes.write_text('{"a": 1}'),
        "a duplicate class": lambda: classes.write_text('["a", "a", "b"]'),
        "classes of brackets": lambda: classes.write_text("[" * 1_000_000),
        "classes that are not JSON": lambda: classes.write_bytes(b"\xff\xfe"),
        "no weights": weights.unlink,
        "truncated weights": lambda: weights.write_bytes(weights.read_bytes()[:-9]),
        "empty weights": lambda: weights.write_bytes(b""),
        "a pickle": lambda: weights.write_bytes(pickle.dumps({"a": Evil()})),
        "a torch file": lambda: torch.save({"a": torch.ones(3)}, weights),
        "a header with a huge size": lambda: weights.write_bytes((2**40).to_bytes(8, "little") + b"{}"),
        "weights of another model": lambda: save_file({"a": torch.ones(3)}, weights),
        "an additional tensor": lambda: save_file({**load_file(weights), "more": torch.ones(3)}, weights),
        "integer weights": lambda: save_file(
            {name: tensor.to(torch.int8) for name, tensor in load_file(weights).items()}, weights
        ),
        "float8 weights": lambda: save_file(
            {name: tensor.to(torch.float8_e4m3fn) for name, tensor in load_file(weights).items()}, weights
        ),
        "a tensor of another shape": lambda: save_file(
            {**load_file(weights), "classifier.bias": torch.ones(4)}, weights
        ),
    }
    if what is None:
        return list(changes)
    return changes[what]()


class Evil:
    """Ends the test process when unpickled."""

    def __reduce__(self):
        return (exit, (9,))


@pytest.mark.parametrize("what", damage(Path(), None))
def test_damaged_folder_is_refused_quickly_without_memory(run, what):
    damage(run, what)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(SightlineError, match=r"must|a key here|maximum"):
        sightline.load(run)
    assert time.process_time() - started < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB
