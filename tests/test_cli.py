"""The command line: arguments, output formats, errors and exit codes."""

import contextlib
import csv
import errno
import io
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import sightline
from class_folders import omniglot, png, write_files, write_zip
from processes import SMALL, SMALL_TASKS, write_images, write_task_data
from sightline import registry
from sightline.cli import app
from sightline.cli.training import command_line
from sightline.errors import MissingDependencyError
from sightline.tasks.image_classification import predictor as image_predictor
from sightline.tasks.image_classification.predictor import ImageClassificationPredictor

TRAIN = ("train", "data.source=images.npz", *SMALL)
ESCAPE = "\x1b[31m"
FORMATS = ("text", "json", "jsonl", "csv")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 20 steps."""
    home = tmp_path_factory.mktemp("home")
    write_images(home / "images.npz")
    return sightline.train(
        None, [f"data.source={home / 'images.npz'}", f"out={home / 'run'}", *SMALL], quiet=True
    ).folder


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The working folder, with the data set `images.npz`."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "images.npz")
    return tmp_path


@pytest.fixture
def run(home, trained):
    """A copy of the run, `run` in the working folder."""
    shutil.copytree(trained, home / "run")
    return Path("run")


@pytest.fixture
def images(home):
    """Three images in the working folder; the second is truncated."""
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(f"{number}.png")
    Path("1.png").write_bytes(Path("1.png").read_bytes()[:60])
    return ["0.png", "1.png", "2.png"]


def run_cli(*arguments, status=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output
    return result


def parse_records(text, format):
    if format == "json":
        return json.loads(text)
    if format == "jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["training.epoch=3"], "training.epoch must be a known key; did you mean 'epochs'?; known keys are "),
        (["epochs=3"], "epochs must be a known key; did you mean 'training.epochs'?; known keys are "),
        (["trainig.epochs=3"], "did you mean 'training'?"),
        (["training.steps=many"], "training.steps must be an integer or null, got 'many'"),
        (["training.learning_rate=-1e-4"], "training.learning_rate must be above 0 and finite, got -0.0001"),
        (["model.num_heads=3", "model.embed_dim=8"], "model: num_heads must divide embed_dim=8"),
        (["model.mlp_ratio=.inf"], "model.mlp_ratio must be above 0 and at most 100, got inf"),
        (["model.mlp_ratio=1e300"], "model.mlp_ratio must be above 0 and at most 100, got 1e+300"),
        (["task=few_shot", "model.mlp_ratio=1e300"], "model.mlp_ratio must be above 0 and at most 100, got 1e+300"),
        (["training.epochs=1e300"], "training.epochs must be at most 1,000,000,000, got 1e+300"),
        (["seed=0x" + "f" * 5000], "seed must be an integer of at most 63 bits, got one of 20000 bits"),
        (["training.steps=0x" + "f" * 5000], "training.steps must be an integer of at most 63 bits, got one of 20000"),
        (["task=image_clasification"], "got 'image_clasification'; did you mean 'image_classification'?"),
        (["model.patch_size=3"], "patch_size must divide image_size=8, got 3"),
        (["model.num_classes=4"], "model.num_classes must"),
        (["training.device=tpu"], "training.device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
        (["training.device=cuda:77"], "device must be "),
        (
            ["training.gradient_accumulation_steps=4"],
            "batch_size must be a multiple of processes times gradient_accumulation_steps, 1 x 4, got 6",
        ),
        (
            ["training.gradient_accumulation_steps=2", "augment.mixup=0.2"],
            "training.batch_size must be a multiple of 2 x 2 (processes times training.gradient_accumulation_steps)",
        ),
        (["data.source=nowhere"], "or glyphs for generated characters, got 'nowhere'"),
        (["data.validation_fraction=1"], "data.validation_fraction must be at least 0 and below 1, got 1.0"),
        (["label_smoothing=1"], "label_smoothing must be at least 0 and below 1, got 1.0"),
        (["seed=-1"], "seed must be an integer of at least 0, got -1"),
        (["missing.yaml"], "a change must read key=value, got 'missing.yaml'"),
        (["out=images.npz"], "out must be a folder, got 'images.npz', which is a file"),
    ],
)
def test_train_refuses_a_wrong_config_in_one_line_and_writes_nothing(home, arguments, message):
    result = run_cli(*TRAIN, *arguments, status=2)
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert [path.name for path in home.iterdir()] == ["images.npz"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "a config must be a YAML file, got 'config.yaml', which is not a file"),
        ("training: {epoch: 3}", "did you mean 'epochs'?"),
        ("task: [image_classification]", "task must be one of "),
        ("task: translater", "got 'translater'; did you mean 'translation'?"),
        ("[" * 1000, "config.yaml must be a config in YAML"),
        ("data: 3", "data must be a section of keys and values, got 3"),
    ],
)
def test_train_refuses_a_wrong_file(home, text, message):
    if text is not None:
        Path("config.yaml").write_text(text)
    result = run_cli("train", "config.yaml", status=2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not Path("runs").exists()


def test_train_reads_a_config_applies_changes_and_stores_it(home):
    Path("small.yaml").write_text(
        "data: {source: images.npz}\nmodel: {embed_dim: 8, num_heads: 2, depth: 1}\n"
        "training: {batch_size: 6, steps: 2, learning_rate: 1e-4, device: cpu}\n"
    )
    result = run_cli("train", "small.yaml", "training.weight_decay=1e-2")
    assert result.stdout.startswith("runs/small: 2 steps, validation accuracy ")
    assert "so expect less on new data; these data have no test set\n" in result.stdout
    assert result.stdout.endswith("next: sightline evaluate runs/small --data PATH\n")
    stored = Path("runs/small/config.yaml").read_text()
    assert "learning_rate: 0.0001" in stored
    assert "weight_decay: 0.01" in stored
    assert "num_classes: 3" in stored
    card = Path("runs/small/README.md").read_text()
    assert "Data: `images.npz`. 2 steps" in card
    assert "sightline 0" in card
    assert "On the validation set: accuracy" in card


def test_train_without_a_config_applies_changes_to_the_starter_config(home):
    run_cli(*TRAIN, "out=run", "training.steps=1")
    stored = Path("run/config.yaml").read_text()
    assert "warmup_steps: 50" in stored
    assert "learning_rate: 0.003" in stored
    assert "rotate: 10.0" in stored


def test_help_of_train_names_every_task():
    text = " ".join(run_cli("train", "--help").stdout.replace("│", " ").split())
    assert f"task=NAME selects one of {', '.join(registry.TASKS)};" in text


def test_train_without_data_uses_the_embedded_glyphs(home):
    result = run_cli("train", *SMALL, "training.steps=2", "training.evaluate_every=2")
    assert result.stdout.startswith("runs/glyphs: 2 steps")
    assert Path("runs/glyphs/model.safetensors").is_file()


def test_train_does_not_overwrite_a_run_but_resumes_it(run):
    weights = (run / "model.safetensors").read_bytes()
    result = run_cli(*TRAIN, "out=run", status=2)
    assert "out must be a new folder, got 'run', which holds a run; pass --resume to continue it" in result.stderr
    card = (run / "README.md").read_bytes()
    run_cli("train", "run", "--resume")
    assert (run / "model.safetensors").read_bytes() == weights
    assert (run / "README.md").read_bytes() == card
    (run / "README.md").unlink()
    result = run_cli("train", "run", "data.num_workers=0", "--resume")
    assert "20 of 20" in result.stderr
    assert (run / "model.safetensors").read_bytes() == weights
    (run / "config.yaml").unlink()
    assert "which holds a run" in run_cli(*TRAIN, "out=run", status=2).stderr


def test_resume_without_a_run_is_refused(home):
    result = run_cli("train", "runs/nope", "--resume", status=2)
    assert result.stderr.startswith("error: --resume must name a run, got no run in runs/nope; ")
    Path("small.yaml").write_text("data: {source: images.npz}\n")
    for arguments, folder in ((["--resume"], "runs/glyphs"), (["small.yaml", "--resume"], "runs/small")):
        result = run_cli("train", *arguments, status=2)
        expected = f"--resume must name a run, got no run in {folder}; train it without --resume first"
        assert result.stderr == f"error: {expected}\n"
    assert not Path("runs").exists()


def test_a_run_is_resumed_with_the_same_config_only(run):
    before = (run / "config.yaml").read_bytes()
    result = run_cli("train", "run", "model.depth=2", "--resume", status=2)
    assert "model.depth must be 1, as in run, to resume it, got 2" in result.stderr
    assert (run / "config.yaml").read_bytes() == before


def test_a_batch_may_be_larger_than_the_data(home):
    run_cli(*TRAIN, "out=run", "training.batch_size=200", "training.steps=2")
    records = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [record["validation"]["accuracy"] >= 0 for record in records if "validation" in record] == [True]


def test_evaluate_prints_metrics_and_stores_them_once(run):
    for _ in range(2):
        result = run_cli("evaluate", run, "--device", "cpu")
    assert result.stdout.startswith("validation set, 6 images; it also selected and calibrated the model, ")
    card = (run / "README.md").read_text()
    assert card.count("On the validation set") == 1
    assert "On the validation set (6 images; it also selected" in card
    assert "## Versions" in card
    stored = json.loads((run / "evaluation.json").read_text())
    assert stored["images"] == 6
    assert stored["report"] == result.stdout.rstrip("\n")


@pytest.mark.parametrize("format", FORMATS)
def test_evaluate_writes_every_format(run, format):
    result = run_cli("evaluate", run, "--format", format, "--out", "out/metrics")
    assert result.stdout == ""
    text = Path("out/metrics").read_text()
    if format == "text":
        assert text.startswith("validation set, 6 images; ")
        return
    [record] = parse_records(text, format)
    assert record["run"] == "run"
    assert float(record["accuracy"]) == pytest.approx(sightline.evaluate(run).accuracy)
    assert ("per_class.0" if format == "csv" else "per_class") in record
    assert run_cli("evaluate", run, "--format", format).stdout == text


def test_evaluate_refuses_options_of_other_tasks(run):
    for option in (("--settings", "5w1s"), ("--episodes", "3")):
        result = run_cli("evaluate", run, *option, status=2)
        rule = f"{option[0]} must be left out for a run of image_classification"
        assert result.stderr == f"error: {rule}, got it for run\n"


def test_unknown_devices_are_refused_in_one_line(run):
    result = run_cli("evaluate", run, "--device", "gpu", status=2)
    assert result.stderr == "error: device must be auto, cpu, cuda or cuda:N, got 'gpu'\n"


def test_cuda_without_a_cuda_device_is_refused(run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    result = run_cli("evaluate", run, "--device", "cuda", status=2)
    assert "this machine has no CUDA device; use --device cpu" in result.stderr


def test_evaluate_on_a_read_only_run_prints_the_metrics_and_warns(run, monkeypatch):
    def refuse(path, data):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr("sightline.files.write_bytes", refuse)
    result = run_cli("evaluate", run)
    assert result.stdout.startswith("validation set, 6 images; it also selected and calibrated the model, ")
    assert result.stderr.startswith("warning: the evaluation was not stored in run: ")
    assert "Read-only file system" in result.stderr
    assert result.stderr.count("\n") == 1


def test_evaluate_on_the_training_data_by_another_path_uses_the_held_out_images(home):
    run_cli(*TRAIN, "out=run", "training.steps=1")
    Path("link.npz").symlink_to("images.npz")
    for path in ("./images.npz", home / "images.npz", "link.npz"):
        assert run_cli("evaluate", "run", "--data", path).stdout.startswith("validation set, 6 images; ")


def test_a_run_that_is_not_fully_trained_is_used_with_a_warning(run, images):
    (run / "README.md").unlink()
    for arguments in (("evaluate", run), ("predict", run, "0.png"), ("show", run, "--out", "figures")):
        result = run_cli(*arguments)
        expected = "warning: run is not fully trained; finish it with: sightline train run --resume\n"
        assert result.stderr == expected
    shutil.rmtree(run / "checkpoints")  # a copy of the weights alone
    assert run_cli("predict", run, "0.png").stderr == ""


@pytest.mark.parametrize("command", [("evaluate",), ("predict", "x.png"), ("show",)])
def test_a_path_that_is_not_a_run_is_not_looked_up_on_the_hub(home, monkeypatch, command):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asks the hub"))
    result = run_cli(command[0], "runs/numbers", *command[1:], status=2)
    assert "run must be the folder of a trained model, a .sightline file of sightline fit, or " in result.stderr
    assert "got 'runs/numbers'; there is no such folder: train a model with sightline train, " in result.stderr
    assert result.stderr.endswith("; for a model on the hub write hub:runs/numbers\n")


@pytest.mark.parametrize("command", [("compare", "runs/numbers"), ("fit", ".", "--model", "runs/numbers")])
def test_compare_and_fit_do_not_look_up_a_path_on_the_hub(home, monkeypatch, command):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asks the hub"))
    result = run_cli(*command, status=2)
    assert "got 'runs/numbers'" in result.stderr
    assert "hub:" in result.stderr


def test_predict_writes_one_line_per_image(run, images):
    result = run_cli("predict", run, "0.png", "2.png", "--top", "2")
    first, last = result.stdout.splitlines()
    prediction = sightline.load(run).predict("0.png")
    assert first == f"0.png: {prediction.summary(2)}"
    assert first.count("%") == 2
    assert last.startswith("2.png: ")


@pytest.mark.parametrize("format", FORMATS[1:])
def test_predict_writes_a_record_with_all_scores_per_image(run, images, format):
    result = run_cli("predict", run, *images, "--format", format, status=2)
    records = parse_records(result.stdout, format)
    assert [record["input"] for record in records] == images
    predictions = sightline.load(run).predict(images)
    for record, prediction in zip(records, predictions, strict=True):
        if prediction.error:
            assert record["error"] == prediction.error
        elif format == "csv":
            scores = {name: float(record[f"scores.{name}"]) for name in prediction.scores}
            assert (record["label"], record["error"], scores) == (prediction.label, "", prediction.scores)
        else:
            assert record == {"input": record["input"], **prediction.to_dict()}
    assert result.stderr == f"error: {predictions[1].error}\n"


def test_predict_prints_a_bad_image_to_stderr(run, images):
    result = run_cli("predict", run, *images, status=2)
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == ["0.png", "2.png"]
    assert "1.png" in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("format", FORMATS)
def test_predict_writes_every_format_to_a_file(run, images, format):
    result = run_cli("predict", run, *images, "--format", format, "--out", "out.txt", status=2)
    assert result.stdout == ""
    *_, wrote, rate = result.stderr.splitlines()
    assert wrote == "wrote out.txt"
    assert re.fullmatch(r"3 inputs in [\d.]+ s, [\d,.]+ per second", rate)
    assert not Path("out.txt.parts").exists()
    text = Path("out.txt").read_text()
    if format == "text":
        assert [line.partition(":")[0] for line in text.splitlines()] == images
        assert ": error: " in text.splitlines()[1]
    else:
        assert [record["input"] for record in parse_records(text, format)] == images


def test_the_format_is_that_of_the_ending_of_the_file(run, images):
    for arguments in (("predict", run, "0.png", "2.png"), ("predict", run, "0.png", "2.png", "--show", "page.html")):
        run_cli(*arguments, "--out", "out.csv")
        assert [row["input"] for row in parse_records(Path("out.csv").read_text(), "csv")] == ["0.png", "2.png"]
    run_cli("info", run, "--out", "info.json")
    assert len(json.loads(Path("info.json").read_text())) == 1


def test_an_interrupted_predict_leaves_the_old_file(run, images, monkeypatch):
    Path("out.csv").write_text("old")
    monkeypatch.setattr(ImageClassificationPredictor, "batch_size", 1)
    predict_batch, calls = ImageClassificationPredictor.predict_batch, []

    def interrupted(self, prepared, **options):
        calls.append(len(prepared))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return predict_batch(self, prepared, **options)

    monkeypatch.setattr(ImageClassificationPredictor, "predict_batch", interrupted)
    run_cli("predict", run, "0.png", "2.png", "--format", "csv", "--out", "out.csv", status=130)
    assert Path("out.csv").read_text() == "old"
    assert not list(Path().glob(".out.csv.*"))


def test_one_bad_image_costs_no_forward_pass(run, images, monkeypatch):
    predict_batch, calls = ImageClassificationPredictor.predict_batch, []
    monkeypatch.setattr(
        ImageClassificationPredictor,
        "predict_batch",
        lambda self, prepared, **options: calls.append(1) or predict_batch(self, prepared, **options),
    )
    arguments = ["0.png"] * 100 + ["1.png"] + ["2.png"] * 50
    run_cli("predict", run, *arguments, status=2)
    assert len(calls) == math.ceil(151 / 64)


def test_a_missing_dependency_is_one_error(run, images, monkeypatch):
    def refuse(*_, **__):
        raise MissingDependencyError("images must have a reader: pip install it")

    monkeypatch.setattr(image_predictor, "read_image", refuse)
    result = run_cli("predict", run, *images, status=2)
    assert result.stderr == "error: images must have a reader: pip install it\n"
    assert result.stdout == ""


def test_predict_writes_a_page_of_the_usable_images_and_lists_the_others(run, images):
    result = run_cli("predict", run, *images, "--show", "page.html", "--top", "1", status=2)
    *lines, last = result.stdout.splitlines()
    assert last == "wrote page.html"
    page = Path("page.html").read_text()
    for name, line in zip(("0.png", "2.png"), lines, strict=True):
        prediction = sightline.load(run).predict(name)
        assert line == f"{name}: {prediction.label} {prediction.confidence:.1%}"
        assert f"{name}: {prediction}" in page
    [error] = result.stderr.splitlines()
    assert "<p>1 input without a prediction:</p>" in page
    assert f"<li><b>1.png</b>{error.removeprefix('error: 1.png')}</li>" in page


def test_predict_writes_a_page_and_records(run, images):
    result = run_cli("predict", run, *images, "--show", "page.html", "--format", "json", status=2)
    assert [record["input"] for record in json.loads(result.stdout)] == images
    assert result.stderr.splitlines()[-1] == "wrote page.html"


def test_predict_without_a_usable_image_writes_no_page(run, images):
    result = run_cli("predict", run, "1.png", "--show", "page.html", status=2)
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1] == "page.html is not written: there is no prediction to show"
    assert not Path("page.html").exists()


def test_predict_reads_the_images_of_a_folder(run, images):
    Path("folder").mkdir()
    for name in ("0.png", "2.png"):
        shutil.copy(name, "folder")
    Path("folder/notes.txt").write_text("not an image")
    Path("empty").mkdir()
    result = run_cli("predict", run, "folder", "empty", "0.png", status=2)
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == ["folder/0.png", "folder/2.png", "0.png"]
    assert result.stderr == "error: a folder of images must contain images, got none in 'empty'\n"
    records = parse_records(run_cli("predict", run, "empty", "0.png", "--format", "json", status=2).stdout, "json")
    assert [record["error"] is None for record in records] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "nowhere"), "run must be the folder of a trained model, a .sightline file of sightline fit, or "),
        (("predict", "run", "nowhere.png"), "nowhere.png"),
        (("predict", "run", "images.npz"), "images.npz"),
        (
            ("predict", ".", "images.npz"),
            "got '.', which has no config.yaml; to fit a classifier to the images in it: ",
        ),
        (("predict", "run", "images.npz", "--device", "cuda:77"), "device must be "),
        (("predict", "run", "images.npz", "--show", "page.txt"), "page.txt"),
        (("predict", "run", "images.npz", "--beams", "3"), "--beams must be left out for "),
        (("show", "run", "--device", "cuda:77"), "device must be "),
        (("show", "run", "missing.png"), "missing.png"),
        (("show", "nowhere"), "run must be the folder of a trained model, a .sightline file of sightline fit, or "),
        (
            ("predict", "run", *["x.png"] * 65, "--show", "x.html"),
            "inputs must be 1 to 64 to be shown on one page, got 65; show fewer, or leave out the page",
        ),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(run, arguments, message):
    before = set(Path().rglob("*"))
    result = run_cli(*arguments, status=2)
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert set(Path().rglob("*")) == before


@pytest.mark.parametrize("arguments", [("predict", "run", "0.png", "2.png"), ("evaluate", "run")])
def test_other_exceptions_are_not_reported_as_user_errors(run, images, monkeypatch, arguments):
    def broken(*_, **__):
        list(zip([1], [], strict=True))

    monkeypatch.setattr(image_predictor.ImageClassifier, "forward", broken)
    result = run_cli(*arguments, status=1)
    assert type(result.exception) is ValueError
    assert "error:" not in result.output


def test_other_exceptions_show_their_traceback(home):
    code = (
        "import sightline.runs, sightline.cli\n"
        "sightline.runs.load = lambda run, **options: list(zip([1], [], strict=True))\n"
        "sightline.cli.app(['predict', 'run', 'image.png'])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("ValueError: zip()")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that cannot be written to")
def test_an_error_of_the_file_system_names_the_path(home):
    result = run_cli(*TRAIN, "out=/proc/self/run", status=1)
    assert result.stderr.startswith("error: /proc/self/run")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("format", FORMATS)
def test_escape_sequences_in_file_names_do_not_reach_the_terminal(run, images, format):
    good, bad, missing = f"{ESCAPE}\n good.png", f"{ESCAPE}bad.png", f"{ESCAPE}missing.png"
    Path("0.png").rename(good)
    Path("1.png").rename(bad)
    result = run_cli("predict", run, good, bad, missing, "--format", format, status=2)
    assert "\x1b" not in result.stdout + result.stderr
    assert "\ufffd[31mbad.png" in result.stderr
    if format == "text":
        assert result.stdout.startswith("\ufffd[31m\ufffd good.png: ")
        assert result.stdout.count("\n") == 1
    if format in ("json", "jsonl"):
        records = parse_records(result.stdout, format)
        assert [record["input"] for record in records] == [good, bad, missing]


@pytest.mark.parametrize(
    "arguments",
    [
        ("evaluate", ESCAPE),
        ("show", ESCAPE),
        ("data", ESCAPE),
        ("fit", ESCAPE),
        ("compare", ESCAPE),
        ("train", f"{ESCAPE}.yaml"),
        ("train", f"{ESCAPE}=3"),
        ("evaluate", "run", "--data", ESCAPE),
        ("evaluate", "run", "--out", f"{ESCAPE}file/out.json"),
        ("predict", "run", "0.png", "--show", f"{ESCAPE}file/page.html"),
    ],
)
def test_escape_sequences_in_error_messages_do_not_reach_the_terminal(run, images, arguments):
    Path(f"{ESCAPE}file").write_text("not a folder")
    result = run_cli(*arguments, status=2)
    assert "\x1b" not in result.stdout + result.stderr
    assert "[31m" in result.stderr


def test_escape_sequences_in_paths_that_are_written_do_not_reach_the_terminal(run, images):
    run.rename(ESCAPE)
    result = run_cli("show", ESCAPE, "0.png")
    result = result.stdout + run_cli("predict", ESCAPE, "0.png", "--show", f"{ESCAPE}.html").stdout
    assert "wrote \ufffd[31m/figures/filters.png" in result
    assert "wrote \ufffd[31m.html" in result
    assert "\x1b" not in result


def test_file_names_that_are_not_unicode_are_escaped(run, images):
    name = b"\xff.png".decode(errors="surrogateescape")
    Path("0.png").rename(name)
    for format in FORMATS:
        run_cli("predict", run, name, "--format", format, "--out", "out")
        assert Path("out").read_text()
    assert "\\udcff.png" in run_cli("predict", run, name, "--format", "json").stdout


def test_a_closed_pipe_is_not_an_error(run, images):
    command = f"{sys.executable} -m sightline predict run {'0.png ' * 2000} | head -n 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert result.stdout.startswith("0.png: ")
    assert result.stderr == ""


def test_show_writes_the_figures_and_lists_them(tiny_run, home, images):
    for name in ("0.png", "2.png"):
        Path(name).rename(f"{name} $x$.png")
    result = run_cli("show", tiny_run, "0.png $x$.png", "2.png $x$.png", "--out", "out", "--format", "svg")
    names = ["filters", "positions", "similarity", "masks", "temperatures", "training", "image-1", "image-2"]
    files = [f"out/{name}.svg" for name in names] + ["out/page.html"]
    assert result.stdout.splitlines() == [f"wrote {path}" for path in files]
    assert all(Path(path).read_text().startswith(("<?xml", "<!doctype html>")) for path in files)


def test_show_reports_a_bad_image_and_draws_the_others(tiny_run, home, images):
    Path("torn.png").write_bytes(Path("0.png").read_bytes()[:60])
    result = run_cli("show", tiny_run, "torn.png", "0.png", "--out", "out", status=2)
    assert "wrote out/image-1.png" in result.stdout
    assert result.stderr.startswith("error: torn.png must be")
    assert result.stderr.count("\n") == 1


def test_show_refuses_images_for_a_model_without_classes(home, images):
    result = run_cli("show", "glyphs", "0.png", status=2)
    assert result.stderr.endswith("fit it with: sightline fit FOLDER --model glyphs\n")


def test_show_lists_the_figures_that_do_not_apply(run):
    (run / "metrics.jsonl").unlink()
    result = run_cli("show", run)
    assert "wrote run/figures/filters.png" in result.stdout
    assert "no training: run has no metrics.jsonl with metrics" in result.stdout
    assert "no temperatures: model.score is dot, which has no temperature" in result.stdout


def test_data_says_what_is_wrong_with_a_folder(home):
    write_files(home, {"flat/1.png": png(), "flat/2.png": png()})
    result = run_cli("data", "flat", status=2)
    assert "which contains 2 images and no folders; move the images of each class into a folder" in result.stderr
    write_files(home, {"bad/a/1.png": png(), "bad/a/2.png": png()[:40], "bad/b/3.png": b"text"})
    result = run_cli("data", "bad", status=2)
    assert "got 2 that cannot" in result.stderr
    assert "2.png must be" in result.stderr
    assert "3.png must be" in result.stderr


def test_data_prints_a_table():
    lines = run_cli("data", "glyphs").stdout.splitlines()
    assert lines[0] == "glyphs, 20 classes"
    assert lines[3].split()[:7] == ["train", "2,400", "28", "x", "28", "1,", "gray"]
    assert ["ka", "120", "20", "60"] in [line.split() for line in lines]


def test_data_shortens_names_and_lists_of_classes(home):
    names = [f"{ESCAPE}red", "猫", "a" * 200, *(f"class {number:02}" for number in range(30))]
    for name in names:
        Path("photos", name).mkdir(parents=True)
        Image.new("RGB", (8, 8), "teal").save(Path("photos", name, "1.png"))
    Image.new("RGB", (8, 8), "teal").save(Path("photos/猫/2.png"))
    result = run_cli("data", "photos", "--show", "sheet.png")
    assert "\x1b" not in result.stdout
    assert "\ufffd[31mred" in result.stdout
    assert "a" * 23 + "…" in result.stdout
    assert "and 13 more" in result.stdout
    assert "3, color" in result.stdout
    with Image.open("sheet.png") as sheet:
        assert sheet.height > 33 * 60


def test_data_describes_sets_with_disjoint_classes(home):
    folder, archive = write_files(home / "omniglot", omniglot()), write_zip(home / "set.zip", omniglot())
    for source, name in ((folder, "Omniglot"), (archive, "zip file")):
        lines = run_cli("data", source, "--show", "sheet.png").stdout.splitlines()
        assert lines[0] == f"{name}, 14 classes in 5 groups"
        assert lines[3].split()[:4] == ["train", "9", "27", "3"]
    assert Path("sheet.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def few_shot_run(tmp_path_factory):
    """A few-shot run of one step; its data is in the same folder."""
    home = tmp_path_factory.mktemp("few_shot")
    write_task_data(home)
    with contextlib.chdir(home):
        return (
            home / sightline.train(None, [*SMALL_TASKS["few_shot"], "training.steps=1", "out=run"], quiet=True).folder
        )


@pytest.mark.parametrize("format", [*FORMATS, "markdown"])
def test_compare_writes_every_format(few_shot_run, tmp_path, monkeypatch, format):
    monkeypatch.chdir(few_shot_run.parent)
    monkeypatch.setattr("sightline.tasks.few_shot.compare.time.perf_counter", lambda: 0.0)
    arguments = ("compare", "run", "--with", "protonet", "--episodes", "4", "--device", "cpu", "--format", format)
    out = tmp_path / "comparison"
    assert run_cli(*arguments, "--out", out).stdout == ""
    text = out.read_text()
    assert run_cli(*arguments).stdout == text
    if format in ("text", "markdown"):
        assert "protonet" in text
        assert ("| --- |" in text) == (format == "markdown")
        return
    records = parse_records(text, format)
    assert len(records) == 2
    assert {"setting", "accuracy"} <= records[0].keys()
    assert 0 <= float(records[1]["accuracy"]) <= 1


def test_other_formats_are_refused(run):
    formats = {"predict": FORMATS, "evaluate": FORMATS, "compare": [*FORMATS, "markdown"], "show": ["png", "svg"]}
    for command, names in formats.items():
        result = run_cli(command, run, "--format", "html", status=2)
        assert result.stdout == ""
        assert "'html' is not one of " in result.stderr
        assert all(f"'{name}'" in result.stderr for name in names)


@pytest.mark.parametrize(("world_size", "prefix"), [("1", ""), ("4", "torchrun --nnodes 2 --nproc-per-node 2 -m ")])
def test_command_line_includes_torchrun(monkeypatch, world_size, prefix):
    monkeypatch.setenv("WORLD_SIZE", world_size)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(sys, "argv", ["/usr/bin/sightline", "train", "a b.yaml"])
    assert command_line() == prefix + "sightline train 'a b.yaml'"


def test_train_in_a_process(home):
    command = [sys.executable, "-m", "sightline", *TRAIN, "training.steps=2", "out=run"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "step 2/2" in result.stderr.splitlines()[-1]
    assert result.stdout.startswith("run: 2 steps")
