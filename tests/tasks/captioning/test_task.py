import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import caption_run
import sightline
from caption_run import SMALL
from sightline import config, limits
from sightline.data.captions import shapes
from sightline.data.captions.datasets import CaptionSplits
from sightline.data.images.datasets import ImageSet, Splits
from sightline.decoding import Hypothesis
from sightline.errors import SightlineError
from sightline.models import region_features
from sightline.models.image_encoders import Embedder
from sightline.models.preprocessing import Preprocessing
from sightline.tasks.captioning import self_critical
from sightline.tasks.captioning.config import CaptioningTaskConfig
from sightline.tasks.captioning.evaluate import GeneratedCaption, count_pointing
from sightline.tasks.captioning.predictor import CaptioningPredictor
from sightline.tasks.captioning.task import CaptioningTask
from sightline.training.task import BatchSlice


@pytest.fixture(scope="module")
def data():
    return caption_run.scenes()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return caption_run.train(tmp_path_factory.mktemp("captions") / "run")


def make_task(data, **changes):
    values = config.assign(SMALL, changes)
    return CaptioningTask(config.build(CaptioningTaskConfig, values), data)


def test_a_run_predicts_explains_and_evaluates(run, data, tmp_path, monkeypatch):
    predictor = sightline.load(run)
    assert isinstance(predictor, CaptioningPredictor)
    pictures = [image.permute(1, 2, 0).numpy() for image in data.test.pixels[:3]]
    path = tmp_path / "scene.png"
    Image.fromarray(pictures[0]).save(path)
    one, broken, two = predictor.predict([path, tmp_path / "missing.png", pictures[1]], top_k=2)
    assert broken.error
    assert len(one.alternatives) == 1
    assert one.score >= one.alternatives[0].score
    assert json.loads(json.dumps(two.to_dict()))["text"] == two.text
    explanations = predictor.explain([path, pictures[1]])
    words = explanations.predictions[0].words
    assert " ".join(word.word for word in words) == explanations.predictions[0].text
    for word in words:
        assert word.weights.shape == (2, 2, 6, 6)
        np.testing.assert_allclose(word.weights.sum((2, 3)), 1, rtol=1e-4)
    assert "sightline-captions" in explanations.page.html
    evaluation = predictor.evaluate(data, show=tmp_path / "page.html")
    assert evaluation.split == "test"
    assert evaluation.images == 11
    assert "reference: a" in (tmp_path / "page.html").read_text()
    assert json.dumps(evaluation.to_dict())


def test_figures_have_an_animation(run, data, tmp_path):
    files = sightline.load(run).show([data.test.pixels[0].permute(1, 2, 0).numpy()], tmp_path / "figures").files
    [gif] = [file for file in files if file.suffix == ".gif"]
    with Image.open(gif) as animation:
        assert animation.n_frames >= 1


def test_empty_captions_have_a_page_and_no_animation(run, data, tmp_path):
    predictor = sightline.load(run)
    predictor._search = lambda inputs, *_: [[GeneratedCaption("", Hypothesis((), 0.0, 0.0, True))] for _ in inputs]
    files = predictor.show([data.test.pixels[0].permute(1, 2, 0).numpy()], tmp_path / "figures").files
    assert not [file for file in files if file.suffix == ".gif"]
    [page] = [file for file in files if file.suffix == ".html"]
    assert '"has_attention":true,"maps":null' in page.read_text().replace(" ", "")


def test_runs_with_hard_attention_are_loaded(data, tmp_path):
    changes = {"model.kind": "rnn_attention", "model.hard": True, "out": str(tmp_path / "run")}
    sightline.train(config.assign(SMALL, changes), data=data, quiet=True)
    predictor = sightline.load(tmp_path / "run")
    assert predictor.model.decoder.attention.normalizer.has_baseline == 1
    [caption] = predictor.explain([data.test.pixels[0].permute(1, 2, 0).numpy()]).predictions
    assert caption.words
    for word in caption.words:
        assert word.weights.max() == 1


def test_training_starts_from_a_run_with_its_tokenizer(run, data, tmp_path):
    changes = {"out": str(tmp_path / "run"), "training.steps": 1, "training.learning_rate": 1e-9}
    values = config.assign(SMALL, changes)
    del values["model"]
    other = CaptionSplits(shapes.draw(13, seed=5), data.validation)
    sightline.train(values, data=other, start_from=run, quiet=True)
    ours, theirs = sightline.load(tmp_path / "run"), sightline.load(run)
    assert ours.config.model == theirs.config.model
    assert ours.tokenizer.to_json() == theirs.tokenizer.to_json()
    for name, tensor in theirs.model.state_dict().items():
        if "running" not in name and "num_batches" not in name:
            assert torch.allclose(ours.model.state_dict()[name], tensor, atol=1e-6), name


def test_a_held_out_set_must_be_as_in_training(tmp_path):
    scenes = shapes.draw(31, seed=4)
    for i, image in enumerate(scenes.pixels):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{i}.png")
    file = tmp_path / "captions.jsonl"

    def write(count):
        rows = [{"image": f"{i}.png", "captions": scenes.captions[i]} for i in range(count)]
        file.write_text("\n".join(map(json.dumps, rows)))

    write(31)
    changes = {"data.source": str(file), "data.image_size": 16, "out": str(tmp_path / "run"), "training.steps": 1}
    sightline.train(config.assign(SMALL, changes), quiet=True)
    predictor = sightline.load(tmp_path / "run")
    assert predictor.evaluate().split == "validation"
    write(29)
    with pytest.raises(SightlineError, match=r"must be as in training to hold out the same validation set, got other"):
        predictor.evaluate()


@pytest.mark.parametrize(
    "changes",
    [
        {"model.kind": "rnn"},
        {"model.kind": "rnn_attention", "model.decoder_layers": 1},
        {"model.kind": "rnn_attention", "model.hard": True, "model.decoder_layers": 1},
        {"model.kind": "rnn_attention", "model.hard": True, "model.hard_gradient": "straight_through"},
        {"model.encoder_layers": 1, "model.score": "cosine", "augment.crop": 2},
    ],
)
def test_every_model_has_gradients(data, changes):
    task = make_task(data, **changes)
    [batch] = next(task.batches(0, 256, BatchSlice()))
    task.model.train()
    task.loss(task.model, batch).backward()
    without = [name for name, parameter in task.model.named_parameters() if parameter.grad is None]
    assert not without or without == ["decoder.attention.score.temperature"]
    task.model.eval()
    assert set(task.metrics(task.evaluate(task.model, BatchSlice()))) == {"cider", "bleu_4", "exact"}


def test_self_critical_steps_raise_the_probability_of_rewarded_captions(data):
    task = make_task(data, self_critical_steps=2, self_critical_samples=3)
    batches = task.batches(0, 256, BatchSlice())
    kinds = [next(batches)[0].is_self_critical for _ in range(3)]
    assert kinds == [False, True, True]
    batch = next(task.batches(1, 256, BatchSlice()))[0]
    task.model.train()
    loss = task.loss(task.model, batch)
    loss.backward()
    assert loss.isfinite()
    reference = task.tokenizer.encode([data.train.captions[0][0]])[0]
    hypothesis = type("H", (), {"tokens": tuple(reference)})
    reward = task.self_critical.reward(0, hypothesis)
    assert reward > 1
    weighted = make_task(data, self_critical_steps=2, self_critical_bleu_weight=3.0).self_critical
    assert weighted.reward(0, hypothesis) == pytest.approx(reward + 3)  # BLEU-4 of a reference is 1


def test_self_critical_losses_of_parts_sum_to_that_of_the_batch(data, monkeypatch):
    task = make_task(data, self_critical_steps=3, self_critical_samples=2, **{"model.dropout": 0.0})
    [whole] = next(task.batches(0, 64, BatchSlice()))
    count = whole.num_captions
    assert count == len(whole.images) == 8
    task.model.eval()
    tokens = (Hypothesis((5, 6), 0.0, 0.0, True), Hypothesis((7,), 0.0, 0.0, False))
    monkeypatch.setattr(self_critical, "sample", lambda _, output, *__, **___: [tokens] * len(output.states))
    monkeypatch.setattr(task.self_critical, "reward", lambda image, h: (image + 1.0) * len(h.tokens))
    parts = next(task.batches(0, 64, BatchSlice(micro_batches=5)))
    assert [len(part.images) for part in parts] == [2, 2, 2, 2, 1]
    losses = [task.loss(task.model, part) for part in parts]
    assert losses[-1] == 0
    torch.testing.assert_close(sum(losses), task.loss(task.model, whole))


@pytest.mark.parametrize("kind", ["transformer", "rnn_attention"])
def test_the_self_critical_loss_is_that_of_a_model_without_dropout(data, monkeypatch, kind):
    tokens = (Hypothesis((5, 6), 0.0, 0.0, True), Hypothesis((7,), 0.0, 0.0, False))
    monkeypatch.setattr(self_critical, "sample", lambda _, output, *__, **___: [tokens] * len(output.states))
    monkeypatch.setattr(self_critical.SelfCritical, "reward", lambda _, image, h: (image + 1.0) * len(h.tokens))
    changes = {"model.kind": kind, "self_critical_steps": 3, "self_critical_samples": 2}
    task, without = (make_task(data, **changes, **{"model.dropout": rate}) for rate in (0.5, 0.0))
    without.model.load_state_dict(task.model.state_dict())
    [batch] = next(task.batches(0, 64, BatchSlice()))
    torch.testing.assert_close(task.loss(task.model.train(), batch), without.loss(without.model.train(), batch))
    logits = [task.model(batch.images, batch.target) for _ in range(2)]
    assert not torch.equal(*logits)  # dropout is on again


def test_long_captions_are_left_out_with_a_note(data):
    task = make_task(data, **{"data.max_tokens": 9})
    long = sum(len(ids) >= 9 for texts in data.train.captions for ids in task.tokenizer.encode(texts))
    assert 0 < long < data.train.num_captions
    assert len(task.captions) == data.train.num_captions - long
    [note] = task.notes
    assert note.startswith(f"{long} of {data.train.num_captions} captions have 9 tokens or more and are left out")
    assert make_task(data).notes == ()


def test_other_data_are_evaluated_on_their_test_set_then_on_their_validation_set(run, data):
    predictor = sightline.load(run)
    other = CaptionSplits(shapes.draw(5, seed=7), shapes.draw(4, seed=8), shapes.draw(3, seed=9))
    for splits, expected in (
        (other, (3, "test")),
        (replace(other, test=None), (4, "val")),
        (CaptionSplits(other.train), (5, "full")),
    ):
        images, split = predictor.evaluation_images(splits)
        assert (len(images), split) == expected


def test_a_target_can_have_several_rows_for_each_image(data):
    model = make_task(data).model.eval()
    images, target = data.train.pixels[:3], torch.randint(4, 9, (6, 5))
    torch.testing.assert_close(model(images, target), model(images.repeat_interleave(2, 0), target))


class MeanColors(Embedder):
    """The mean color of each cell of a 3 x 3 grid."""

    def __init__(self):
        preprocessing = Preprocessing(12, 3, (127.0,) * 3, (128.0,) * 3)
        super().__init__(nn.Linear(3, 3), "colors", preprocessing, embed_dim=3, grid=(3, 3))
        self.calls = 0

    def features(self, images):
        self.calls += 1
        patches = nn.functional.adaptive_avg_pool2d(images, 3).flatten(2).mT
        return patches, patches.mean(1)


def test_features_of_a_fixed_encoder_are_computed_once(data, tmp_path, monkeypatch):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path))
    torch.manual_seed(0)
    encoder = MeanColors()
    monkeypatch.setattr(region_features, "load_embedder", lambda *_, **__: encoder)
    changes = {"data.embedder": "colors", "data.augmented_copies": 1, "augment.flip": True}
    model = {**SMALL["model"], "backbone": "none"}
    del model["backbone_channels"]
    values = config.assign({**SMALL, "model": model}, changes)
    task = CaptioningTask(config.build(CaptioningTaskConfig, values), data)
    assert task.images.shape == (2, 37, 9, 3)
    assert task.config.model.num_regions == 9
    first = encoder.calls
    again = CaptioningTask(
        config.build(CaptioningTaskConfig, {**values, "data": {**values["data"], "augmented_copies": 0}}), data
    )
    assert encoder.calls == first
    assert again.images[0].equal(task.images[0])
    monkeypatch.setattr(limits, "MAX_EMBEDDINGS_BYTES", 2 * 37 * 9 * 3)  # enough without copies
    with pytest.raises(SightlineError, match=r"features must take at most .* for 37 images and 1 copies of each"):
        CaptioningTask(config.build(CaptioningTaskConfig, values), data)


def save_image_classifier(folder):
    images = ImageSet(shapes.draw(6, seed=3).pixels, torch.arange(6) % 2, ("a", "b"))
    values = {"task": "image_classification", "data": {"validation_fraction": 0}, "out": str(folder)}
    values["model"] = {"embed_dim": 8, "num_heads": 2, "depth": 1, "patch_size": 16}
    values["training"] = {"steps": 1, "batch_size": 3, "device": "cpu"}
    sightline.train(values, data=Splits(images), quiet=True)


def save_vision_transformer(folder):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=48, patch_size=16)).save_pretrained(folder)
    mean_and_std = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    preprocessing = {"size": {"shortest_edge": 48}, "do_normalize": True, "do_rescale": True, **mean_and_std}
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessing))


@pytest.mark.parametrize("save", [save_image_classifier, save_vision_transformer])
def test_a_folder_can_be_the_encoder(save, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIGHTLINE_CACHE", "cache")
    save(tmp_path / "encoder")
    changes = {"data.source": caption_run.write_photos(), "data.embedder": "encoder", "model.backbone": "none"}
    changes |= {"model.backbone_channels": None, "out": "run"}
    sightline.train(config.assign(SMALL, changes), quiet=True)
    predictor = sightline.load("run")
    assert (predictor.config.model.num_regions, predictor.config.model.feature_dim) == (9, 8)
    [caption] = predictor.explain(["photos/20.png"]).predictions
    assert all(word.weights.shape == (2, 2, 3, 3) for word in caption.words)
    assert predictor.evaluate().images == 7
    encoder = region_features.load_region_encoder("encoder")
    pixels = predictor.prepare("photos/20.png")[None]
    assert predictor.inputs.from_pixels(pixels).equal(encoder.embed(pixels, "patches").half())


def test_pointing_counts_words_in_their_objects(data):
    images = data.test.take(range(3))
    captions = [texts[1] for texts in images.captions]
    right, wrong = [], []
    for objects in images.objects:
        maps = []
        for item in objects:
            values = np.zeros((24, 24))
            values[int(item.y * 24), int(item.x * 24)] = 1
            maps += [(word, values.ravel()) for word in ("a", *item.words)]
        right.append(maps)
        wrong.append([(word, np.eye(24).ravel()[::-1]) for word, _ in maps])
    assert count_pointing(images, captions, right, (24, 24)).accuracy == 1
    result = count_pointing(images, captions, wrong, (24, 24))
    assert result.words == 12
    assert result.accuracy < 1


def test_pointing_ignores_case_and_punctuation(data):
    images = data.test.take(range(2))
    written = replace(images, captions=tuple((f"{a.capitalize()}.", b) for a, b in images.captions))
    values = np.zeros(9)
    maps = [[(word, values) for word in texts[0].split()] for texts in written.captions]
    result = count_pointing(written, [texts[0] for texts in images.captions], maps, (3, 3))
    assert result.words == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.embedder": "efficientnet_lite0"}, "model.backbone must be none with data.embedder"),
        ({"model.hard": True}, "hard must be false for kind 'transformer'"),
        ({"data.max_tokens": 20}, "model.max_positions must be at least"),
        ({"augment.mixup": 0.5}, "augment.mixup and augment.cutmix must be 0"),
        ({"self_critical_steps": 1, "training.steps": None}, "training.steps must be given with self_critical_steps"),
        (
            {"self_critical_steps": 1, "model.kind": "rnn_attention", "model.hard": True},
            "model.hard_gradient must be straight_through with self_critical_steps",
        ),
    ],
)
def test_bad_configs(changes, message):
    with pytest.raises(SightlineError, match=message):
        config.build(CaptioningTaskConfig, config.assign(SMALL, changes))
