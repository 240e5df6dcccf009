import json
import logging
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from typer.testing import CliRunner

import caption_run
import glyph_run
import number_run
import sightline
from shared_folder import shared_folder
from sightline import FewShotClassifier
from sightline.attention import SCORES
from sightline.cli import app
from sightline.data.text.tokenizers import SpecialTokens, TokenizerConfig, train_tokenizer
from sightline.errors import MissingDependencyError, SightlineError
from sightline.exporting import BATCH, Export, Part, trace, write
from sightline.models.captioner import Captioner, CaptionerConfig
from sightline.models.decoding_parts import make_step
from sightline.models.embedders import BackboneEmbedder
from sightline.models.few_shot import FewShot
from sightline.models.few_shot_config import FewShotConfig
from sightline.models.image_classifier import ImageClassifier, ImageClassifierConfig
from sightline.models.masked_lm import MaskedLM, MaskedLMConfig
from sightline.models.seq2seq import RecurrentSeq2SeqConfig, Seq2Seq, TransformerSeq2SeqConfig
from sightline.models.text_classifier import TextClassifier, TextClassifierConfig
from sightline.tasks import text_export
from sightline.tasks.captioning.export import CaptionEncoder
from sightline.tasks.decoder_export import decoder_parts
from sightline.tasks.few_shot import export as few_shot_export
from sightline.tasks.translation import export as translation_export
from sightline.tasks.translation.export import TranslationEncoder, _source
from torch_reference import perturb


def traced(export):
    """The programs of an export by name, without the way through files."""
    with torch.no_grad():
        return {part.name: trace(part).module() for part in export.parts}


def onnx_sessions(export, folder):
    """Sessions of all parts of an export, which is checked against the original when it is written."""
    exported = write(export, folder, "onnx")
    assert max(exported.differences.values()) <= 1e-4
    return [onnxruntime.InferenceSession(folder / f"{part.name}.onnx") for part in export.parts]


def load_program(path):
    with path.open("rb") as file:
        return torch.export.load(file).module()


def test_image_classifier_runs_at_any_batch_size(tiny_run, tmp_path):
    result = CliRunner().invoke(app, ["export", str(tiny_run), "--out", str(tmp_path), "--format", "onnx"])
    assert result.exit_code == 0, result.output
    assert "checked on 3 inputs: largest difference" in result.stdout
    predictor, metadata = sightline.load(tiny_run), json.loads((tmp_path / "export.json").read_text())
    assert metadata["classes"] == list(predictor.classes)
    assert metadata["models"]["model"]["inputs"]["images"]["shape"] == ["batch", 1, 28, 28]
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for batch in (2, 5):
        images = torch.rand(batch, 1, 28, 28)
        [logits] = session.run(["logits"], {"images": images.numpy()})
        with torch.no_grad():
            assert_close(torch.from_numpy(logits), predictor.model(images), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("score", SCORES)
def test_every_score_and_mask_can_be_traced(score):
    masks = ("none", "additive", "multiplicative") if score == "cosine" else ("none",)
    for mask in masks:
        sizes = {"image_size": 14, "channels": 1, "num_classes": 3, "patch_size": 7, "depth": 1, "embed_dim": 8}
        model = ImageClassifier(ImageClassifierConfig(**sizes, num_heads=2, score=score, mask=mask)).eval()
        examples = [{"images": torch.rand(batch, 1, 14, 14)} for batch in (3, 1, 2)]
        part = Part(
            name="model", module=model, examples=examples, dimensions={"images": {0: BATCH}}, outputs=("logits",)
        )
        with torch.no_grad():
            program = trace(part).module()
            for example in examples:
                assert_close(program(**example), model(**example), atol=1e-5, rtol=1e-4)


CONFIGS = {
    "gru": RecurrentSeq2SeqConfig(hidden_size=8, embed_dim=6, num_layers=2, attention="additive"),
    "lstm": RecurrentSeq2SeqConfig(hidden_size=8, embed_dim=6, cell="lstm"),
    "transformer": TransformerSeq2SeqConfig(embed_dim=8, num_heads=2, ffn_dim=11, encoder_layers=1, decoder_layers=2),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_decoder_steps_are_those_of_the_model(name):
    from dataclasses import replace

    model = Seq2Seq(replace(CONFIGS[name], source_vocab_size=23, target_vocab_size=19)).eval()
    step = make_step(model.decoder)
    encoder, inputs = TranslationEncoder(model, step).eval(), _source(3, 5, 23)
    target = torch.randint(19, (3, 4))
    with torch.no_grad():
        expected = model(inputs["input_ids"], inputs["attention_mask"], target)
        state = dict(zip(step.names, encoder(**inputs), strict=True))
        for t in range(4):
            logits, *new = step(target[:, t], attention_mask=inputs["attention_mask"], **state)
            assert_close(logits, expected[:, t], atol=1e-5, rtol=1e-4)
            state |= dict(zip(step.state_names, new, strict=True))


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    return shared_folder(tmp_path_factory, "exported-numbers", number_run.train) / "run"


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_recurrent_translator_runs_at_any_length(recurrent, tmp_path, format):
    exported = sightline.export(recurrent, tmp_path, format=format)
    suffix = {"onnx": "onnx", "torch": "pt2"}[format]
    assert {path.name for path in exported.files} == {
        f"encoder.{suffix}",
        f"decoder.{suffix}",
        "source_tokenizer.json",
        "target_tokenizer.json",
        "export.json",
    }
    assert exported.checks == 8
    assert max(exported.differences.values()) <= 1e-4


def test_transformer_translator_runs_with_its_cache_in_onnx(tmp_path):
    """docs/export.md does the same with the torch programs of the pretrained model."""
    sizes = ("embed_dim=16", "num_heads=2", "ffn_dim=11", "encoder_layers=1", "decoder_layers=1")
    changes = ["model.kind=transformer", *(f"model.transformer.{size}" for size in sizes)]
    predictor = sightline.load(number_run.train(tmp_path / "run", *changes))
    export = translation_export.export(predictor)
    encoder, decoder = onnx_sessions(export, tmp_path / "onnx")
    metadata, names = export.metadata, export.parts[0].outputs
    for text in ("dreihundertelf", "eins"):
        ids = np.array([predictor.tokenizers[0].encode([text])[0] + [metadata["source_eos"]]])
        inputs = {"attention_mask": np.ones_like(ids, dtype=bool)}
        values = encoder.run(None, {"input_ids": ids, **inputs})
        state, token, found = dict(zip(names, values, strict=True)), metadata["bos"], []
        while token != metadata["eos"] and len(found) < 20:
            logits, state["past"] = decoder.run(None, {"tokens": np.array([token]), **inputs, **state})
            logits[:, metadata["suppressed_ids"]] = -np.inf
            token = int(logits[0].argmax())
            found.append(token)
        expected = predictor.predict(text, num_beams=1).tokens[:20]
        assert tuple(predictor.tokenizers[1].tokens(found)) == expected


def test_captioner_runs_at_two_batch_sizes(tmp_path):
    run = caption_run.train(tmp_path / "run")
    exported = sightline.export(run, tmp_path / "export")
    assert max(exported.differences.values()) <= 1e-4
    predictor, metadata = sightline.load(run), json.loads((tmp_path / "export" / "export.json").read_text())
    encoder, decoder = (
        onnxruntime.InferenceSession(tmp_path / "export" / f"{name}.onnx") for name in ("encoder", "decoder")
    )
    for batch in (2, 5):
        pixels = caption_run.scenes().test.pixels[:batch]
        names = metadata["models"]["encoder"]["outputs"]
        values = encoder.run(None, {"images": pixels.numpy().astype(np.float32) / 255})
        state, target = dict(zip(names, values, strict=True)), torch.randint(len(predictor.tokenizer), (batch, 3))
        with torch.no_grad():
            expected = predictor.model(pixels, target)
        for t in range(3):
            logits, state["past"] = decoder.run(None, {"tokens": target[:, t].numpy(), **state})
            assert_close(torch.from_numpy(logits), expected[:, t], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", [{"kind": "rnn_attention", "hard": True}, {"kind": "rnn"}])
def test_recurrent_captioners_are_traced(kind):
    sizes = {"channels": 3, "feature_dim": 7, "num_regions": 9, "vocab_size": 13, "embed_dim": 8, "num_heads": 2}
    model = Captioner(CaptionerConfig(backbone="none", ffn_dim=11, encoder_layers=1, decoder_layers=1, **sizes, **kind))
    step = make_step(model.eval().decoder)
    encoder, examples = CaptionEncoder(model, FixedFeatures(), step), [torch.rand(n, 3, 6, 6) for n in (3, 1)]
    parts = decoder_parts(
        encoder.eval(),
        step,
        [{"images": x} for x in examples],
        [2, 0],
        vocab_size=13,
        dimensions={"images": {0: BATCH}},
    )
    with torch.no_grad():
        for part in parts:
            program = trace(part).module()
            for example in part.examples:
                assert_close(program(**example), part.module(**example), atol=1e-5, rtol=1e-4)


class FixedFeatures:
    """An encoder with fixed weights: the values of a 3 x 3 grid, seven for each cell."""

    model = nn.Identity()

    def embed_batch(self, pixels, tokens):
        values = nn.functional.adaptive_avg_pool2d(pixels, 3).flatten(2).mT
        return torch.cat((values, values, values[..., :1]), -1)


@pytest.fixture(scope="module")
def few_shot(tmp_path_factory):
    return shared_folder(tmp_path_factory, "exported-few-shot", partial(glyph_run.train, steps=30))


def test_few_shot_model_takes_support_and_query_in_onnx(few_shot, tmp_path):
    """docs/export.md uses the torch program of the pretrained model."""
    predictor = sightline.load(few_shot)
    [session], model = onnx_sessions(few_shot_export.export(predictor), tmp_path), predictor.model
    for way, shot in ((4, 5), (3, 2)):
        drawn = [torch.as_tensor(x) for images in glyph_run.characters(way).values() for x in images[:shot]]
        images, labels = torch.stack(drawn).float() / 255, torch.arange(way).repeat_interleave(shot)
        inputs = {"support": images, "labels": labels, "query": images[::3], "classes": torch.arange(way)}
        [got] = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        with torch.no_grad():
            x = model.embed(images)
            expected = model.head(x[None], labels[None], x[None, ::3], way=way)[0]
        assert_close(torch.from_numpy(got), expected, atol=1e-4, rtol=1e-4)


TEXT = {"embed_dim": 12, "num_heads": 2, "ffn_dim": 19, "depth": 1, "max_positions": 17}


@pytest.mark.parametrize(("task", "score"), [("masked_lm", "cosine"), ("text_classification", "dot")])
def test_text_models_run_at_any_size_in_onnx(task, score, tmp_path):
    sentences = ["a dog runs in the park .", "two men ride a bike", "the cat sleeps"]
    special = SpecialTokens(mask="[MASK]")
    tokenizer = train_tokenizer(TokenizerConfig(kind="word", special_tokens=special), sentences)
    sizes, classes = {**TEXT, "vocab_size": len(tokenizer), "score": score}, ("x", "y", "z")
    model = (
        MaskedLM(MaskedLMConfig(**sizes))
        if task == "masked_lm"
        else TextClassifier(TextClassifierConfig(**sizes, num_classes=len(classes)))
    )
    perturb(model.eval())
    run = {"tokenizer": tokenizer, "model": model, "config": SimpleNamespace(task=task), "max_input_tokens": 15}
    predictor = SimpleNamespace(**run, classes=classes)
    [session] = onnx_sessions(text_export.export(predictor), tmp_path)
    metadata = json.loads((tmp_path / "export.json").read_text())
    assert (metadata["classes"], metadata["special_ids"]["mask"]) == (list(classes), special.id("mask"))
    assert metadata["max_input_tokens"] == 15
    for batch, tokens in ((2, 7), (4, 3), (1, 17)):
        ids = torch.randint(len(tokenizer), (batch, tokens))
        mask = torch.arange(tokens) < torch.randint(1, tokens + 1, (batch, 1))
        [logits] = session.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
        got, expected = torch.from_numpy(logits), model(ids, mask).detach()
        rows = mask if task == "masked_lm" else slice(None)
        assert_close(got[rows], expected[rows], atol=1e-4, rtol=1e-4)


def test_fitted_classifier_is_exported_whole(few_shot, tmp_path, monkeypatch):
    drawn = glyph_run.characters(4)
    classifier = FewShotClassifier.pretrained(few_shot).fit({name: images[:3] for name, images in drawn.items()})
    path = classifier.save(tmp_path / "drawn.sightline")
    monkeypatch.chdir(tmp_path)
    sightline.export(path)
    session = onnxruntime.InferenceSession(tmp_path / "drawn-export" / "model.onnx")
    queries = [images[i] for images in drawn.values() for i in (4, 6)]
    pixels = torch.stack([classifier.prepare(image) for image in queries]).float() / 255
    probabilities, known_scores = session.run(None, {"images": pixels.numpy()})
    for row, score, prediction in zip(probabilities, known_scores, classifier.predict(queries), strict=True):
        expected = [prediction.scores[name] for name in classifier.classes]
        np.testing.assert_allclose(row, expected, atol=1e-4)
        assert score == pytest.approx(prediction.known_score, abs=1e-4)


def test_classifier_of_photos_is_exported_at_any_batch_size(tmp_path):
    drawn = glyph_run.characters(4)
    classifier = FewShotClassifier.pretrained("photos").fit({name: images[:2] for name, images in drawn.items()})
    sightline.export(classifier.save(tmp_path / "drawn.sightline"), tmp_path / "out", format="torch")
    module = torch.export.load(tmp_path / "out" / "model.pt2").module()
    queries = [images[i] for images in drawn.values() for i in (4, 6)]
    pixels = torch.stack([classifier.prepare(image) for image in queries]).float() / 255
    for batch in (1, len(queries)):
        probabilities, _ = module(images=pixels[:batch])
        for row, prediction in zip(probabilities, classifier.predict(queries[:batch]), strict=True):
            expected = [prediction.scores[name] for name in classifier.classes]
            assert_close(row, torch.tensor(expected), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("views", "normalize_drawings", "tokens"), [(3, True, "pooled"), (2, False, "patches")])
def test_views_are_exported(views, normalize_drawings, tokens, tmp_path):
    torch.manual_seed(0)
    options = {"image_size": 28, "channels": 1, "backbone_channels": (4, 8), "num_heads": 2, "tokens": tokens}
    model = FewShot(FewShotConfig(**options, normalize_drawings=normalize_drawings, views=views)).eval()
    run = {"embedder": BackboneEmbedder(model), "model": model, "config": SimpleNamespace(task="few_shot")}
    [session] = onnx_sessions(few_shot_export.export(SimpleNamespace(**run)), tmp_path)
    images = torch.stack([torch.as_tensor(x[0]) for x in glyph_run.characters(5).values()]).float() / 255
    labels = torch.tensor([0, 0, 1])
    inputs = {"support": images[:3], "labels": labels, "query": images[3:], "classes": torch.arange(2)}
    [got] = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    with torch.no_grad():
        x, one_view = model.embed_views(images), model.embed(images)
        expected = model.head(x[None, :3], labels[None], x[None, 3:], way=2)[0]
    assert_close(torch.from_numpy(got), expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(x, one_view, atol=1e-4)


def test_classifier_of_embeddings_takes_embeddings(tmp_path):
    classifier = FewShotClassifier().fit({"a": torch.randn(3, 7), "b": torch.randn(4, 7)})
    sightline.export(classifier.save(tmp_path / "vectors.sightline"), tmp_path / "out", format="torch")
    vectors = torch.randn(5, 7)
    probabilities, _ = load_program(tmp_path / "out" / "model.pt2")(embeddings=vectors[:, None])
    expected = [[prediction.scores[name] for name in ("a", "b")] for prediction in classifier.predict(list(vectors))]
    assert_close(probabilities, torch.tensor(expected), atol=1e-4, rtol=1e-4)


class Drifting(nn.Module):
    """Gives another output in every call."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def test_export_that_differs_is_refused(tmp_path):
    examples = [{"x": torch.ones(batch, 3)} for batch in (2, 5)]
    part = Part(name="model", module=Drifting(), examples=examples, dimensions={"x": {0: BATCH}}, outputs=("y",))
    with pytest.raises(SightlineError, match=r"must give the output y of the original to 0\.0001, got a difference"):
        write(Export(parts=[part], metadata={}), tmp_path, "torch")
    assert not list(tmp_path.glob("*.pt2"))


class SplitWeight(nn.Module):
    """The optimizer of ONNX warns that it does not compute the split beforehand."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3))

    def forward(self, x):
        first, second = self.weight.split_with_sizes([2, 4])
        return x @ first.mT, x @ second.mT


def test_exporter_of_onnx_prints_nothing(tmp_path, capfd, caplog):
    examples = [{"x": torch.rand(batch, 3)} for batch in (5, 2)]
    options = {"examples": examples, "dimensions": {"x": {0: BATCH}}, "outputs": ("y", "z")}
    levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript")}
    write(Export(parts=[Part(name="model", module=SplitWeight(), **options)], metadata={}), tmp_path, "onnx")
    assert capfd.readouterr() == ("", "")
    assert not [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert levels == {name: logging.getLogger(name).level for name in levels}


def test_missing_packages_and_formats_are_named(tiny_run, tmp_path, monkeypatch):
    with pytest.raises(SightlineError, match="format must be"):
        sightline.export(tiny_run, tmp_path, format="onxx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'sightline\[export\]'"):
        sightline.export(tiny_run, tmp_path)


def test_a_regression_is_exported_for_torch_only(tmp_path):
    """As in `photos`, whose head fits a ridge regression to the support images."""
    config = FewShotConfig(backbone="none", embed_dim=7, depth=0, power=0.5, readout="ridge")
    module = few_shot_export.EpisodeClassifier(torch.nn.Identity(), FewShot(config).eval().head)

    def example(images, queries, classes):
        embeddings, others = torch.rand(images, 1, 7), torch.rand(queries, 1, 7)
        labels = torch.arange(images) % classes
        return {"support": embeddings, "labels": labels, "query": others, "classes": torch.arange(classes)}

    support, query, way = few_shot_export.SUPPORT, few_shot_export.QUERY, few_shot_export.WAY
    dimensions = {"support": {0: support}, "labels": {0: support}, "query": {0: query}, "classes": {0: way}}
    examples = [example(4, 3, 2), example(11, 5, 3)]  # fewer and more images than dimensions
    part = Part(name="head", module=module, examples=examples, dimensions=dimensions, outputs=("logits",))
    program = trace(part)
    for values in examples:
        torch.testing.assert_close(program.module()(**values), module(**values), rtol=1e-4, atol=1e-4)
    export = Export(parts=[part], metadata={})
    with pytest.raises(
        SightlineError, match="format must be torch for the part 'head', which has operations that ONNX"
    ):
        write(export, tmp_path / "onnx", format="onnx")
