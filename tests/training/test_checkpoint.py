"""Checkpoint files: which files a run touches, and records from untrusted sources."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

import sightline
from processes import SMALL, write_images
from sightline.errors import SightlineError
from sightline.training.checkpoint import CheckpointFolder


def with_digest(record):
    digest = hashlib.sha256(json.dumps(record).encode()).hexdigest()
    return json.dumps({**record, "digest": digest}, indent=1).encode()


def save_checkpoints(folder, steps=(1, 2, 3, 4)):
    checkpoints = CheckpointFolder(folder, keep=2)
    for step in steps:
        tensors = {"model.weight": torch.full((2,), float(step))}
        best = {"step": step, **checkpoints.save_best(step, tensors)}
        checkpoints.save(step, tensors, {"best": best})
    return checkpoints


@pytest.mark.parametrize("linked", [False, True], ids=["folder", "symlink"])
def test_foreign_files_beside_checkpoints_are_kept(tmp_path, linked):
    folder = tmp_path / "checkpoints"
    if linked:
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
    foreign = ["sd_xl.safetensors", "step-9.safetensors", "step-final.json", ".download.part", ".x.safetensors.part"]
    for name in foreign:
        (folder / name).write_text("foreign")
    save_checkpoints(folder).latest()
    assert {path.name for path in folder.iterdir()} == {
        *foreign,
        "best-00000003.safetensors",
        "best-00000004.safetensors",
        "step-00000003.json",
        "step-00000003.safetensors",
        "step-00000004.json",
        "step-00000004.safetensors",
    }
    assert all((folder / name).read_text() == "foreign" for name in foreign)


def test_files_of_a_killed_writer_are_removed(tmp_path):
    save_checkpoints(tmp_path, steps=(1,))
    (tmp_path / ".step-00000002.safetensors.0123abcd.part").write_text("half")
    (tmp_path / "step-00000002.safetensors").write_text("without a record")
    save_checkpoints(tmp_path, steps=(3,))
    assert not list(tmp_path.glob("*00000002*")) + list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize("key", ["step", "scheduled", "file", "bytes", "sha256", "metadata"])
def test_record_without_a_key_is_skipped(tmp_path, key):
    save_checkpoints(tmp_path)
    record = json.loads((tmp_path / "step-00000004.json").read_bytes())
    del record["digest"], record[key]
    (tmp_path / "step-00000004.json").write_bytes(with_digest(record))
    checkpoints = CheckpointFolder(tmp_path, keep=2)
    with pytest.warns(UserWarning, match=f"{key} of step-00000004.json must be"):
        assert checkpoints.latest().step == 3


def test_record_of_empty_best_weights_is_skipped(tmp_path):
    save_checkpoints(tmp_path)
    record = json.loads((tmp_path / "step-00000004.json").read_bytes())
    del record["digest"]
    record["metadata"]["best"] = {}
    (tmp_path / "step-00000004.json").write_bytes(with_digest(record))
    with pytest.warns(UserWarning, match="step-00000004 is damaged and was skipped"):
        assert CheckpointFolder(tmp_path, keep=2).latest().step == 3


def test_tensor_file_of_another_size_is_not_read(tmp_path, monkeypatch):
    checkpoints = save_checkpoints(tmp_path)
    with (tmp_path / "step-00000004.safetensors").open("r+b") as file:
        file.truncate(3 << 30)
    read_bytes = Path.read_bytes

    def read_small(path):
        assert path.stat().st_size < 1 << 20
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read_small)
    with pytest.warns(UserWarning, match=r"step-00000004.safetensors must have \d+ bytes, got 3221225472"):
        assert checkpoints.latest().step == 3


@pytest.mark.parametrize("key", ["file", "best"])
def test_record_with_a_path_outside_the_folder_is_skipped(tmp_path, key):
    folder, outside = tmp_path / "run/checkpoints", tmp_path / "outside"
    outside.mkdir()
    for name in ("important.safetensors", "important.json"):
        (outside / name).write_text("foreign")
    save_checkpoints(folder)
    record = json.loads((folder / "step-00000003.json").read_bytes())
    del record["digest"]
    (record if key == "file" else record["metadata"]["best"])["file"] = "../../outside/important.safetensors"
    (folder / "step-00000003.json").write_bytes(with_digest(record))
    with pytest.warns(UserWarning, match="step-00000003 is damaged and was skipped"):
        checkpoints = save_checkpoints(folder, steps=(5, 6, 7))
    assert checkpoints.latest().step == 7
    assert {path.name for path in outside.iterdir()} == {"important.safetensors", "important.json"}


def test_training_keeps_foreign_files_and_resumes_runs_only(tmp_path):
    changes = [f"data.source={write_images(tmp_path / 'images.npz')}", *SMALL, "training.steps=6"]
    models = tmp_path / "models"
    (models / "checkpoints").mkdir(parents=True)
    (models / "checkpoints" / "sd_xl.safetensors").write_text("foreign")
    with pytest.raises(SightlineError, match=r"which has checkpoints and no config\.yaml"):
        sightline.train(None, [*changes, f"out={models}"], resume=True, quiet=True)
    assert (models / "checkpoints" / "sd_xl.safetensors").read_text() == "foreign"

    run = tmp_path / "run"
    run.mkdir()
    (run / ".film.mkv.part").write_text("foreign")
    (run / ".config.yaml.0123abcd.part").write_text("half")
    sightline.train(None, [*changes, f"out={run}"], quiet=True)
    (run / "checkpoints" / "sd_xl.safetensors").write_text("foreign")
    sightline.train(str(run), resume=True, quiet=True)
    assert (run / ".film.mkv.part").read_text() == "foreign"
    assert (run / "checkpoints" / "sd_xl.safetensors").read_text() == "foreign"
    assert not (run / ".config.yaml.0123abcd.part").exists()
