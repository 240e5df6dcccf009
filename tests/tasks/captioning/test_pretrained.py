"""A captioner with a fine-tuned EfficientNet as a pretrained model, and in use."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

import caption_run
import sightline
from sightline import limits, zoo
from sightline.cli import app
from sightline.data.captions import shapes
from sightline.data.images.reading import read_image
from sightline.errors import SightlineError
from sightline.files import CARD, CONFIG, WEIGHTS
from sightline.models import image_encoders
from sightline.shipping import model_bytes, ship
from state_dicts import lite0_state

LICENSE = "Drawn for a test; in the public domain."
BACKBONE = "efficientnet_lite0"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the evaluated run `runs/photos`, without the weights that it started from."""
    home = tmp_path_factory.mktemp("captions")
    with contextlib.chdir(home):
        torch.save(lite0_state(), "lite0.pth")
        caption_run.train_on_files(Path("runs/photos"), BACKBONE, Path("lite0.pth"))
        sightline.evaluate("runs/photos", device="cpu")
        Path("lite0.pth").unlink()
    return home


@pytest.fixture(scope="module")
def shipped(trained):
    """The run as a pretrained model."""
    with contextlib.chdir(trained):
        options = {"license": LICENSE, "command": "sightline train photos.yaml", "device": "cpu"}
        return ship("runs/photos", "caption", out=trained / "zoo", **options)


@pytest.fixture
def home(shipped, trained, monkeypatch):
    """The zoo has the model `caption`. The package with the weights of EfficientNet must not be looked for."""

    def refuse(*_):
        raise AssertionError("the weights of EfficientNet were read")

    monkeypatch.setattr(image_encoders, "_packaged_weights", refuse)
    monkeypatch.setattr(image_encoders, "_read_weights", refuse)
    monkeypatch.setattr(zoo, "HOME", trained / "zoo")
    monkeypatch.chdir(trained)
    return trained


def test_a_fine_tuned_backbone_is_stored_in_half_precision(home, shipped):
    assert sorted(path.name for path in shipped.iterdir()) == [
        CARD,
        CONFIG,
        "data.json",
        WEIGHTS,
        "tokenizer.json",
    ]
    state, before = load_file(shipped / WEIGHTS), sightline.load("runs/photos").model.state_dict()
    assert state.keys() == before.keys()
    backbone = {name: tensor for name, tensor in state.items() if name.startswith("backbone.")}
    assert {tensor.dtype for tensor in backbone.values() if tensor.dim() > 1} == {torch.float16}
    size, backbone_size = model_bytes(shipped, sightline.load("caption"))
    assert backbone_size == sum(tensor.nbytes for tensor in backbone.values())
    assert size + backbone_size == sum(path.stat().st_size for path in shipped.iterdir())
    assert backbone_size > 6_500_000 > 300_000 > size
    assert sightline.load("caption").config.data.weights is None


def test_the_card_names_the_data_of_the_backbone_and_its_license(shipped):
    card = (shipped / CARD).read_text()
    assert f"Data: `photos/captions.jsonl`. {LICENSE}\n" in card
    assert f"Its training started from `{BACKBONE}`, trained on ImageNet, Apache License 2.0.\n" in card
    assert "BLEU-1 to 4" in card
    assert "over the first 7 images of the test set" in card


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("MAX_ZOO_MODEL_BYTES", 10_000, r"at most 10,000 bytes without its backbone, got \d\d,\d\d\d"),
        ("MAX_ZOO_BACKBONE_BYTES", 6_000_000, r"backbone of .* at most 6,000,000 bytes, got 6,\d\d\d,\d\d\d"),
    ],
)
def test_decoder_and_backbone_each_have_a_size_limit(home, monkeypatch, limit, value, message):
    monkeypatch.setattr(limits, limit, value)
    with pytest.raises(SightlineError, match=message):
        ship("runs/photos", "large", license=LICENSE, command="sightline train photos.yaml", device="cpu")
    assert not (home / "zoo" / "large").exists()


def test_a_photo_is_captioned_without_the_package_of_the_encoder(home, tmp_path):
    path = tmp_path / "photo.jpg"
    Image.fromarray(np.random.default_rng(0).integers(256, size=(83, 211, 3), dtype=np.uint8)).save(path)
    page = tmp_path / "page.html"
    arguments = ["predict", "caption", str(path), "--format", "json", "--show", str(page), "--device", "cpu"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    [row] = json.loads(result.stdout)
    assert row["text"] == sightline.load("caption").predict(read_image(path, size=64, channels=3)).text
    assert "sightline-captions" in page.read_text()


def test_a_caption_does_not_depend_on_the_other_images(home):
    predictor = sightline.load("caption")
    paths = sorted(Path("photos").glob("*.png"))[:5]
    together = predictor.predict(paths)
    for path, caption in zip(paths, together, strict=True):
        alone = predictor.predict(path)
        assert alone.text == caption.text
        assert alone.score == pytest.approx(caption.score, abs=1e-4)


def write_pictures(folder, picture):
    """Images of all kinds in one folder; the names of those that cannot be read begin with `bad`."""
    folder.mkdir()
    image = Image.fromarray(picture)
    image.save(folder / "plain.png")
    image.convert("L").save(folder / "gray.png")
    image.convert("CMYK").save(folder / "cmyk.jpg")
    image.convert("P").save(folder / "palette.gif", save_all=True, append_images=[image.rotate(90).convert("P")])
    transparent = image.convert("RGBA")
    transparent.putalpha(Image.linear_gradient("L").resize(image.size))
    transparent.save(folder / "transparent.png")
    image.resize((1, 1)).save(folder / "tiny.png")
    image.resize((997, 3)).save(folder / "wide.jpg")
    (folder / "bad-corrupt.png").write_bytes((folder / "plain.png").read_bytes()[:71])
    (folder / "bad-empty.jpg").write_bytes(b"")
    (folder / "bad-text.jpg").write_text("not an image")
    Image.new("1", (9_001, 9_001)).save(folder / "bad-huge.png")


def test_bad_images_are_named_and_do_not_cost_the_others(home, tmp_path):
    write_pictures(tmp_path / "pictures", shapes.draw(1, seed=5).pixels[0].permute(1, 2, 0).numpy())
    page = tmp_path / "page.html"
    command = ["predict", "caption", str(tmp_path / "pictures"), "--format", "json", "--show", str(page)]
    result = CliRunner().invoke(app, [*command, "--device", "cpu"])
    assert result.exit_code == 2, result.output
    predictions = {Path(row["input"]).name: row for row in json.loads(result.stdout)}
    assert len(predictions) == 11
    for name, row in predictions.items():
        assert bool(row["error"]) == name.startswith("bad"), row
        assert bool(row.get("text")) != name.startswith("bad"), row
        assert not row["error"] or name in row["error"]
        assert name in page.read_text()
    assert "must have 1 to 80,000,000 pixels" in predictions["bad-huge.png"]["error"]
