"""The file of a fitted classifier."""

import json
import os
import shutil
import sys

import pytest
import safetensors.torch
import torch
from PIL import Image
from safetensors import safe_open

from sightline import FewShotClassifier
from sightline.classifier import file
from sightline.errors import SightlineError


def test_loaded_classifier_gives_equal_predictions(fitted, drawn, tmp_path):
    path = fitted.save(tmp_path / "characters.sightline")
    loaded = FewShotClassifier.load(path)
    images = [image for class_images in drawn.values() for image in class_images[::3]]
    before, after = fitted.predict(images), loaded.predict(images)
    assert before == after
    assert (loaded.classes, loaded.counts, loaded.calibration) == (fitted.classes, fitted.counts, fitted.calibration)
    first, second = (prediction.explain(grid=3) for prediction in (before[0], after[0]))
    assert (first.image.regions == second.image.regions).all()
    assert [image.contribution for image in first.support] == [image.contribution for image in second.support]
    assert [path.name for path in tmp_path.iterdir()] == ["characters.sightline"]


def test_loaded_classifier_can_be_changed(fitted, drawn, tmp_path):
    loaded = FewShotClassifier.load(fitted.save(tmp_path / "a.sightline"))
    name, images = list(drawn.items())[6]
    loaded.add(name, images[:2]).remove(loaded.classes[0])
    assert loaded.predict(images[0]).label == name


def test_classifier_of_embeddings_is_saved(tmp_path):
    classifier = FewShotClassifier().fit({"a": torch.eye(3)[:2], "b": -torch.eye(3)})
    loaded = FewShotClassifier.load(classifier.save(tmp_path / "a.sightline"))
    assert loaded.predict(torch.eye(3)) == classifier.predict(torch.eye(3))


def rewrite(path, change):
    """Change the tensors or the metadata of a file."""
    tensors = safetensors.torch.load_file(path)
    with safe_open(path, framework="pt") as opened:
        header = opened.metadata()
    metadata = json.loads(header["metadata"])
    change(tensors, metadata)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(tensors, path, {**header, "metadata": json.dumps(metadata)})


def test_invalid_files_are_refused(fitted, tmp_path):
    good, bad = fitted.save(tmp_path / "good.sightline"), tmp_path / "bad.sightline"

    def check(message):
        with pytest.raises(SightlineError, match=message):
            FewShotClassifier.load(bad)

    check("must be a file written by sightline fit or `save`, got .*bad.sightline', which does not exist")
    for data in (b"", b"PK\x03\x04" * 99, good.read_bytes()[:-7], b"\xff" * 8 + good.read_bytes()[8:]):
        bad.write_bytes(data)
        rule = "bad.sightline must be a complete classifier file written by sightline fit or `save`"
        check(f"{rule}, got .*; fit it again")
        check(r"got a damaged file or one of another format \(")
    safetensors.torch.save_file({"x": torch.ones(1)}, bad)
    check("got another format")
    for change, message in (
        (
            lambda t, m: m.pop("classes"),
            "bad.sightline must be .* got classes must be given, got nothing; fit it again",
        ),
        (lambda t, m: m.update(more=1), "got more must be a known key"),
        (lambda t, m: m["calibration"].update(scale=float("nan")), "calibration.scale must be above 0 and finite"),
        (lambda t, m: m["calibration"].update(threshold_scale=0.0), "threshold_scale must be above 0 and finite"),
        (lambda t, m: m["calibration"].update(threshold=float("inf")), "calibration.threshold must be finite, got inf"),
        (lambda t, m: m.update(embedder=["x"]), "embedder must be text or null, got "),
        (lambda t, m: m.update(weights=1), "weights must be text or null, got 1"),
        (lambda t, m: m["names"].__setitem__(0, "x" * 4097), "must be at most 4,096 characters, got 4,097"),
        (lambda t, m: m["names"].extend(["x"] * 20_000), "number of examples must be at most 20,000, got 20,015"),
        (lambda t, m: m["model"].update(depth=10**6), "must hold the weights of 1000000 layers"),
        (lambda t, m: m["model"].update(backbone_channels=[10**6] * 4), "must fit its config"),
        (lambda t, m: m["model"].update(unknown=1), r"bad.sightline must be .* got model.unknown must be a known key"),
        (lambda t, m: m["model"].update(depth=-1), r"bad.sightline must be .* got model.depth must be"),
        (lambda t, m: m["classes"].append("more"), "got inconsistent examples"),
        (lambda t, m: m["classes"].__setitem__(1, m["classes"][0]), "class names must differ"),
        (lambda t, m: t["labels"].fill_(99), "got inconsistent examples"),
        (lambda t, m: t["embeddings"][0].fill_(float("nan")), "got no finite numbers for embeddings"),
        (lambda t, m: t.update(embeddings=t["embeddings"].to(torch.float8_e5m2)), "got no finite numbers"),
        (lambda t, m: t.update(images=t["images"][1:]), "got inconsistent examples"),
        (lambda t, m: t.update(images=t["images"][:, :, 1:]), "got inconsistent examples"),
        (lambda t, m: t.update(images=t["images"].repeat(1, 3, 1, 1)), "got inconsistent examples"),
        (lambda t, m: t.update(images=t["images"][..., :0, :0]), "got inconsistent examples"),
        (lambda t, m: t.update(embeddings=t["embeddings"][:, :0]), "got inconsistent examples"),
        (lambda t, m: t.update(embeddings=t["embeddings"][:, 1:]), "got inconsistent examples"),
        (lambda t, m: t["embeddings"].fill_(1e30), "got inconsistent examples"),
        (lambda t, m: m.update(classes=["a", "a", "b", "c", "d"]), "class names must differ, got 'a' and 'a'"),
        (lambda t, m: t.pop("labels"), "got inconsistent examples"),
    ):
        shutil.copy(good, bad)
        rewrite(bad, change)
        check(message)


def test_number_of_channels_is_checked_before_the_model_is_built(fitted, tmp_path, monkeypatch):
    """A file of 46 KB with 1,000 channels of 512 x 512 pixels took 3 GB."""
    path = fitted.save(tmp_path / "a.sightline")

    def change(tensors, metadata):
        metadata["model"].update(channels=1000, image_size=512)
        weight = tensors["model.backbone.blocks.0.0.weight"]
        tensors["model.backbone.blocks.0.0.weight"] = weight[:, :1].repeat(1, 1000, 1, 1)
        tensors |= {name: tensors[name].repeat(1000, 1, 1) for name in ("model.mean", "model.std")}

    rewrite(path, change)
    monkeypatch.setattr(file, "FewShot", None)  # nothing is built
    with pytest.raises(SightlineError, match="channels must be 1 or 3, got 1000"):
        FewShotClassifier.load(path)


def test_images_without_an_encoder_are_refused(tmp_path):
    path = FewShotClassifier().fit({"a": torch.eye(3)[:2], "b": -torch.eye(3)}).save(tmp_path / "a.sightline")
    rewrite(path, lambda t, m: t.update(images=torch.zeros(5, 1, 7, 7, dtype=torch.uint8)))
    with pytest.raises(SightlineError, match="got inconsistent examples"):
        FewShotClassifier.load(path)


def test_weights_that_give_nan_are_refused_in_predict(fitted, drawn, tmp_path):
    path = fitted.save(tmp_path / "a.sightline")
    rewrite(path, lambda t, m: t["model.std"].zero_())
    with pytest.raises(SightlineError, match="logits must be finite, got NaN or infinity"):
        FewShotClassifier.load(path).predict(next(iter(drawn.values()))[0])


def test_weights_of_a_model_without_an_embedder_are_refused(fitted, tmp_path):
    path = fitted.save(tmp_path / "a.sightline")
    with pytest.raises(SightlineError, match=r"weights must be left out for a model without an embedder, got 'x.pth'"):
        FewShotClassifier.load(path, weights="x.pth")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_file_name_that_is_not_text(run, drawn, tmp_path):
    for label, images in list(drawn.items())[:2]:
        folder = tmp_path / "characters" / label.replace("/", " ")
        folder.mkdir(parents=True)
        Image.fromarray(images[0][0].numpy()).save(folder / "image.png")
        (folder / "image.png").rename(os.fsdecode(os.fsencode(folder) + b"/\xff.png"))
    classifier = FewShotClassifier.pretrained(run).fit(tmp_path / "characters")
    loaded = FewShotClassifier.load(classifier.save(tmp_path / "a.sightline"))
    assert loaded.predict(images[1]).explain(grid=2).page().html


def test_file_has_default_permissions(fitted, tmp_path):
    (tmp_path / "plain").touch()
    assert fitted.save(tmp_path / "a.sightline").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_path_with_another_suffix_is_refused(fitted, tmp_path):
    with pytest.raises(SightlineError, match=r"must end in .sightline and not be a folder, got '.*a.zip'"):
        fitted.save(tmp_path / "a.zip")
    assert not list(tmp_path.iterdir())
