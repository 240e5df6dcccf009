"""Checkpoints: whose files are touched, and what a record from somebody else may ask for."""

import hashlib
import json

import pytest
import torch

import sightline
from sightline.training.checkpoint import Checkpoints

CHANGES = (
    "model.patch_size=14",
    "model.embed_dim=8",
    "model.num_heads=2",
    "model.depth=1",
    "training.steps=6",
    "training.batch_size=8",
    "training.evaluate_every=2",
    "training.checkpoint_every=1",
    "training.device=cpu",
)


def sealed(record):
    seal = hashlib.sha256(json.dumps(record).encode()).hexdigest()
    return json.dumps({**record, "seal": seal}, indent=1).encode()


def saved(folder, steps=(1, 2, 3, 4)):
    checkpoints = Checkpoints(folder, keep=2)
    for step in steps:
        tensors = {"model.weight": torch.full((2,), float(step))}
        best = {"step": step, **checkpoints.save_best(step, tensors)}
        checkpoints.save(step, tensors, {"best": best})
    return checkpoints


@pytest.mark.parametrize("linked", [False, True], ids=["folder", "symlink"])
def test_files_of_others_beside_checkpoints_are_left_alone(tmp_path, linked):
    folder = tmp_path / "checkpoints"
    if linked:
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
    foreign = ["sd_xl.safetensors", "step-9.safetensors", "step-final.json", ".download.part", ".x.safetensors.part"]
    for name in foreign:
        (folder / name).write_text("mine")
    saved(folder).newest()
    assert {path.name for path in folder.iterdir()} == {
        *foreign,
        "best-00000003.safetensors",
        "best-00000004.safetensors",
        "step-00000003.json",
        "step-00000003.safetensors",
        "step-00000004.json",
        "step-00000004.safetensors",
    }
    assert all((folder / name).read_text() == "mine" for name in foreign)


def test_leftovers_of_a_killed_write_are_removed(tmp_path):
    saved(tmp_path, steps=(1,))
    (tmp_path / ".step-00000002.safetensors.0123abcd.part").write_text("half")
    (tmp_path / "step-00000002.safetensors").write_text("whole, but without its record")
    saved(tmp_path, steps=(3,))
    assert not list(tmp_path.glob("*00000002*")) + list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize("where", ["file", "best"])
def test_a_record_that_names_a_file_elsewhere_touches_nothing(tmp_path, where):
    folder, victim = tmp_path / "run/checkpoints", tmp_path / "victim"
    victim.mkdir()
    for name in ("important.safetensors", "important.json"):
        (victim / name).write_text("mine")
    saved(folder)
    record = json.loads((folder / "step-00000003.json").read_bytes())
    del record["seal"]
    named = "../../victim/important.safetensors"
    if where == "file":
        record["file"] = named
    else:
        record["facts"]["best"]["file"] = named
    (folder / "step-00000003.json").write_bytes(sealed(record))
    checkpoints = saved(folder, steps=(5, 6, 7))
    assert checkpoints.newest().step == 7
    assert {path.name for path in victim.iterdir()} == {"important.safetensors", "important.json"}
    assert "step-00000003 is torn or corrupt and was passed over" in checkpoints.complaints[0]


def test_training_touches_no_file_of_others_and_resumes_runs_alone(tmp_path):
    models = tmp_path / "models"
    (models / "checkpoints").mkdir(parents=True)
    (models / "checkpoints" / "sd_xl.safetensors").write_text("mine")
    with pytest.raises(ValueError, match=r"which has checkpoints and no config\.yaml"):
        sightline.train(None, [*CHANGES, f"out={models}"], resume=True, quiet=True)
    assert (models / "checkpoints" / "sd_xl.safetensors").read_text() == "mine"

    run = tmp_path / "run"
    run.mkdir()
    (run / ".film.mkv.part").write_text("mine")
    (run / ".config.yaml.0123abcd.part").write_text("ours")
    sightline.train(None, [*CHANGES, f"out={run}"], quiet=True)
    (run / "checkpoints" / "sd_xl.safetensors").write_text("mine")
    sightline.train(str(run), resume=True, quiet=True)
    assert (run / ".film.mkv.part").read_text() == "mine"
    assert (run / "checkpoints" / "sd_xl.safetensors").read_text() == "mine"
    assert not (run / ".config.yaml.0123abcd.part").exists()
