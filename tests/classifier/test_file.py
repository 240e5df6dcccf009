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


def test_answers_after_load_are_the_same_to_the_last_bit(fitted, drawn, tmp_path):
    path = fitted.save(tmp_path / "characters.sightline")
    again = FewShotClassifier.load(path)
    images = [image for own in drawn.values() for image in own[::3]]
    before, after = fitted.predict(images), again.predict(images)
    assert [answer.scores for answer in before] == [answer.scores for answer in after]
    assert [answer.known_score for answer in before] == [answer.known_score for answer in after]
    assert before == after
    assert (again.classes, again.counts, again.confidence) == (fitted.classes, fitted.counts, fitted.confidence)
    why = [answer.explain(parts=3) for answer in (before[0], after[0])]
    assert (why[0].parts == why[1].parts).all()
    assert [example.worth for example in why[0].examples] == [example.worth for example in why[1].examples]
    assert [file.name for file in tmp_path.iterdir()] == ["characters.sightline"]


def test_what_is_loaded_goes_on_learning(fitted, drawn, tmp_path):
    again = FewShotClassifier.load(fitted.save(tmp_path / "a.sightline"))
    name, own = list(drawn.items())[6]
    again.add(name, own[:2]).remove(again.classes[0])
    assert again.predict(own[0]).label == name


def test_a_classifier_of_embeddings_is_kept_too(tmp_path):
    made = FewShotClassifier().fit({"a": torch.eye(3)[:2], "b": -torch.eye(3)})
    again = FewShotClassifier.load(made.save(tmp_path / "a.sightline"))
    assert again.predict(torch.rand(5, 3)) is not None
    assert again.predict(torch.eye(3)) == made.predict(torch.eye(3))


def rewritten(path, change):
    """The file with its tensors or its header changed."""
    tensors = safetensors.torch.load_file(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    about = json.loads(metadata["about"])
    change(tensors, about)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(tensors, path, {**metadata, "about": json.dumps(about)})


def test_foreign_and_damaged_files_are_refused(fitted, tmp_path):
    good = fitted.save(tmp_path / "good.sightline")
    bad = tmp_path / "bad.sightline"

    def refused(message):
        with pytest.raises(ValueError, match=message):
            FewShotClassifier.load(bad)

    refused("must be a file that save wrote, got .*bad.sightline', which is not there")
    for data in (b"", b"PK\x03\x04" * 99, good.read_bytes()[:-7], b"\xff" * 8 + good.read_bytes()[8:]):
        bad.write_bytes(data)
        refused("bad.sightline must be a classifier that save wrote, and whole, got .*; fit it again")
    safetensors.torch.save_file({"x": torch.ones(1)}, bad)
    refused("got another format")
    for change, message in (
        (lambda t, a: a.pop("classes"), "got a header that says something else"),
        (lambda t, a: a["confidence"].update(calibration_scale=float("nan")), "got a header that says something else"),
        (lambda t, a: a["confidence"].update(scale=0.0), "got a header that says something else"),
        (lambda t, a: a.update(embedder=["x"]), "got a header that says something else"),
        (lambda t, a: a.update(weights=1), "got a header that says something else"),
        (lambda t, a: a["model"].update(depth=10**6), "must hold the weights of 1000000 blocks"),
        (lambda t, a: a["model"].update(backbone_channels=[10**6] * 4), "must fit its configuration"),
        (lambda t, a: a["model"].update(nonsense=1), r"bad.sightline must be .* got model.nonsense: a key here must"),
        (lambda t, a: a["model"].update(depth=-1), r"bad.sightline must be .* depth must be"),
        (lambda t, a: a["classes"].append("more"), "got examples that do not fit together"),
        (lambda t, a: a["classes"].__setitem__(1, a["classes"][0]), "classes must have different names"),
        (lambda t, a: t["labels"].fill_(99), "got examples that do not fit together"),
        (lambda t, a: t["embeddings"][0].fill_(float("nan")), "got no finite numbers for embeddings"),
        (lambda t, a: t.update(pictures=t["pictures"][1:]), "got examples that do not fit together"),
        (lambda t, a: t.update(pictures=t["pictures"][:, :, 1:]), "got examples that do not fit together"),
        (lambda t, a: t.update(pictures=t["pictures"].repeat(1, 3, 1, 1)), "got examples that do not fit together"),
        (lambda t, a: t.update(pictures=t["pictures"][..., :0, :0]), "got examples that do not fit together"),
        (lambda t, a: t.update(embeddings=t["embeddings"][:, :0]), "got examples that do not fit together"),
        (lambda t, a: t.update(embeddings=t["embeddings"][:, 1:]), "got examples that do not fit together"),
        (lambda t, a: t["embeddings"].fill_(1e30), "got examples that do not fit together"),
        (
            lambda t, a: a.update(classes=["a", "a", "b", "c", "d"]),
            "classes must have different names, got 'a' and 'a'",
        ),
        (lambda t, a: t.pop("labels"), "got examples that do not fit together"),
    ):
        shutil.copy(good, bad)
        rewritten(bad, change)
        refused(message)


def test_files_of_before_weights_could_be_named_are_read(fitted, drawn, tmp_path):
    path = fitted.save(tmp_path / "a.sightline")
    rewritten(path, lambda t, a: a.pop("weights"))
    image = next(iter(drawn.values()))[0]
    assert FewShotClassifier.load(path).predict(image) == fitted.predict(image)
    with pytest.raises(ValueError, match=r"weights must be left out where there is no embedder, got 'x.pth'"):
        FewShotClassifier.load(path, weights="x.pth")


def test_pictures_without_anything_that_sees_are_refused(tmp_path):
    path = FewShotClassifier().fit({"a": torch.eye(3)[:2], "b": -torch.eye(3)}).save(tmp_path / "a.sightline")
    rewritten(path, lambda t, a: t.update(pictures=torch.zeros(5, 1, 7, 7, dtype=torch.uint8)))
    with pytest.raises(ValueError, match="got examples that do not fit together"):
        FewShotClassifier.load(path)


def test_weights_that_lead_nowhere_are_refused_when_asked(fitted, drawn, tmp_path):
    path = fitted.save(tmp_path / "a.sightline")
    rewritten(path, lambda t, a: t["model.std"].zero_())
    with pytest.raises(ValueError, match="answers must be finite, got NaN or infinity"):
        FewShotClassifier.load(path).predict(next(iter(drawn.values()))[0])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems allow no such names")
def test_a_file_whose_name_is_no_text_is_kept(run, drawn, tmp_path):
    for label, own in list(drawn.items())[:2]:
        home = tmp_path / "characters" / label.replace("/", " ")
        home.mkdir(parents=True)
        Image.fromarray(own[0][0].numpy()).save(home / "image.png")
        (home / "image.png").rename(os.fsdecode(os.fsencode(home) + b"/\xff.png"))
    made = FewShotClassifier.pretrained(run).fit(tmp_path / "characters")
    again = FewShotClassifier.load(made.save(tmp_path / "a.sightline"))
    assert again.predict(own[1]).explain(parts=2).page().html


def test_others_may_read_the_file(fitted, tmp_path):
    (tmp_path / "plain").touch()
    assert fitted.save(tmp_path / "a.sightline").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_file_of_another_name_is_not_written(fitted, tmp_path):
    with pytest.raises(ValueError, match=r"must end in .sightline and be no folder, got '.*a.zip'"):
        fitted.save(tmp_path / "a.zip")
    assert not list(tmp_path.iterdir())
