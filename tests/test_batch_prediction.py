"""Predictions for many inputs: shared over processes, interrupted and continued."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import sightline
from sightline import batch_prediction
from sightline.cli import app
from sightline.tasks.image_classification.predictor import ImageClassificationPredictor
from sightline.training.distributed import ProcessGroup

NUM_INPUTS = 9


@pytest.fixture(autouse=True)
def _images(tmp_path, monkeypatch):
    """Nine images in folders of folders, the fourth of which is damaged; two inputs are predicted at a time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ImageClassificationPredictor, "batch_size", 2)
    for i in range(NUM_INPUTS):
        path = Path("images", str(i // 4), f"{i}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 256, (28, 28), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    Path("images/0/3.png").write_bytes(b"damaged")


def predict(run, *options, status=2):
    result = CliRunner().invoke(app, ["predict", str(run), "images", *map(str, options)])
    assert result.exit_code == status, result.output
    return result


def interrupt_at(monkeypatch, number):
    """Raise KeyboardInterrupt in this batch; returns the sizes of all batches that are predicted."""
    predict_batch, sizes = ImageClassificationPredictor.predict_batch, []

    def interrupted(self, prepared, **options):
        if len(sizes) + 1 == number:
            raise KeyboardInterrupt
        sizes.append(len(prepared))
        return predict_batch(self, prepared, **options)

    monkeypatch.setattr(ImageClassificationPredictor, "predict_batch", interrupted)
    return sizes


@pytest.mark.parametrize("format", ["text", "json", "jsonl", "csv"])
def test_the_file_is_what_the_terminal_shows(tiny_run, format):
    shown = predict(tiny_run, "--format", format).stdout
    predict(tiny_run, "--format", format, "--out", "out")
    written = Path("out").read_text()
    if format == "text":  # which shows errors on standard error
        written = "".join(line for line in written.splitlines(keepends=True) if ": error: " not in line)
    assert written == shown


def test_an_interrupted_prediction_is_continued(tiny_run, monkeypatch):
    predict(tiny_run, "--format", "csv", "--out", "whole.csv")
    with monkeypatch.context() as patch:
        interrupt_at(patch, 4)
        predict(tiny_run, "--format", "csv", "--out", "out.csv", status=130)
    assert not Path("out.csv").exists()
    assert Path("out.csv.parts").is_dir()
    with monkeypatch.context() as patch:
        sizes = interrupt_at(patch, 99)
        result = predict(tiny_run, "--format", "csv", "--out", "out.csv")
    assert sizes == [2, 1]
    assert result.stderr.startswith("continuing out.csv: 6 inputs are done\n")
    assert "3 inputs in " in result.stderr
    assert Path("out.csv").read_bytes() == Path("whole.csv").read_bytes()
    assert not Path("out.csv.parts").exists()


def test_a_line_that_was_being_written_is_predicted_again(tiny_run, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 4)
        predict(tiny_run, "--out", "out.txt", status=130)
    [journal] = Path("out.txt.parts").glob("*.jsonl")
    journal.write_bytes(journal.read_bytes()[:-20])
    sizes = interrupt_at(monkeypatch, 99)
    assert "continuing out.txt: 4 inputs are done" in predict(tiny_run, "--out", "out.txt").stderr
    assert sizes == [2, 2, 1]
    assert len(Path("out.txt").read_text().splitlines()) == NUM_INPUTS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--format", "csv"), "got another format; remove the folder to start again"),
        (("--top", "2"), "got another top; "),
        ((), "inputs must be those of the interrupted prediction in out.parts, got others among the first 4; "),
    ],
)
def test_another_prediction_is_not_mixed_with_an_interrupted_one(tiny_run, monkeypatch, change, message):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 4)
        predict(tiny_run, "--format", "json", "--out", "out", status=130)
    if not change:
        Path("images/0/2.png").rename("images/0/2b.png")
    assert message in predict(tiny_run, "--format", "json", "--out", "out", *change).stderr
    assert not Path("out").exists()


def test_another_model_does_not_continue(tiny_run, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 4)
        predict(tiny_run, "--out", "out", status=130)
    other = tmp_path / "other"
    sightline.load(tiny_run).save_pretrained(other)
    (other / "config.yaml").write_text((other / "config.yaml").read_text() + "# changed\n")
    assert "to continue it, got another model; " in predict(other, "--out", "out").stderr


class SharedGroup(ProcessGroup):
    """Processes that are threads of this one."""

    all_here = threading.Barrier(3, timeout=300)

    def barrier(self):
        self.all_here.wait()


def test_processes_share_the_inputs_and_leave_one_file(tiny_run, monkeypatch):
    predict(tiny_run, "--format", "jsonl", "--out", "whole.jsonl")
    predicted = {}

    def run(rank):
        predictor = sightline.load(tiny_run)
        predict_together = predictor.predict_together

        def counted(batch, **options):
            predicted.setdefault(rank, []).append(len(batch))
            return predict_together(batch, **options)

        predictor.predict_together = counted
        group = SharedGroup(rank, 3, torch.device("cpu"))
        items, lines = predictor.parse_inputs(["images"]), []
        results[rank] = batch_prediction._predict_to_file(
            predictor, items, Path("out.jsonl"), "jsonl", {"model": "x"}, group, {"top_k": None}, None, lines.append
        )

    results = {}
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert predicted == {0: [2, 2], 1: [2, 1], 2: [2]}
    assert Path("out.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    assert results[1] is results[2] is None
    assert (results[0].inputs, results[0].errors, results[0].predicted) == (NUM_INPUTS, 1, NUM_INPUTS)
    assert not Path("out.jsonl.parts").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "predictions of several processes must be written to a file, got none; pass --out FILE"),
        (("--out", "out", "-"), "inputs must be files, folders or texts on 2 processes, got standard input"),
    ],
)
def test_several_processes_need_a_file_and_inputs_that_all_can_read(tiny_run, monkeypatch, options, message):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert message in predict(tiny_run, *options).stderr


def test_progress_counts_the_inputs(tiny_run):
    seen = []
    batch_prediction.predict_to_file(
        tiny_run, ["images"], Path("out"), "json", progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(2, 9), (4, 9), (6, 9), (8, 9), (9, 9)]
    assert len(json.loads(Path("out").read_text())) == NUM_INPUTS
