"""Figures of an image classifier: each shows the numbers of the weights, the log or the attention."""

import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from sightline import limits, load
from sightline.errors import SightlineError
from sightline.models.image_classifier import ImageClassifier
from sightline.tasks.figures import NoFigure
from sightline.tasks.image_classification import figures
from sightline.tasks.image_classification.predictor import ImageClassificationPredictor
from sightline.view.plots import rollout

MARKUP_NAME = "a $x^2$ <b>&amp;.png"


@pytest.fixture(scope="module")
def predictor(tiny_run):
    return load(tiny_run)


@pytest.fixture(scope="module")
def weights(tiny_run):
    state = safetensors.torch.load_file(tiny_run / "model.safetensors")
    return {name: tensor.numpy() for name, tensor in state.items()}


@pytest.fixture
def image(tmp_path):
    path = tmp_path / MARKUP_NAME
    pixels = np.random.default_rng(0).integers(0, 256, (28, 28), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def untrained(folder, predictor, **options):
    config = replace(predictor.config.model, **options)
    task_config = replace(predictor.config, model=config)
    return ImageClassificationPredictor(folder, task_config, predictor.classes, ImageClassifier(config))


def draw(name, predictor):
    return figures.FIGURES[name](predictor.model, predictor.folder)


def draw_attention(predictor, image):
    pixels, [prediction], record = predictor._recorded([predictor.prepare(image)])
    lines = [prediction.summary(), getattr(image, "name", "")]
    return figures.attention(predictor.model, record, pixels[0], 0, lines)


def image_arrays(axes):
    return [np.asarray(image.get_array()) for image in axes.images]


def has_contrast(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("L")).std() > 5


def test_show_writes_every_figure_to_the_folder_of_the_run(predictor, tiny_run, image):
    result = predictor.show([image, str(image), Image.new("L", (28, 28), 90)])
    names = ["filters", "positions", "similarity", "masks", "temperatures", "training", "image-1", "image-2", "image-3"]
    folder = tiny_run / "figures"
    assert result.files == [*(folder / f"{name}.png" for name in names), folder / "page.html"]
    assert result.skipped == {}
    assert all(has_contrast(path) for path in result.files[:-1])
    assert sorted(folder.iterdir()) == sorted(result.files)
    shutil.rmtree(folder)


def test_filters_are_the_kernels_in_the_order_of_their_norm(predictor, weights):
    kernels = weights["patch_embedding.proj.weight"][:, 0]
    order = np.argsort(-np.linalg.norm(kernels.reshape(len(kernels), -1), axis=1), kind="stable")
    np.testing.assert_allclose(image_arrays(draw("filters", predictor).axes[0]), kernels[order])


def test_positions_are_the_table_and_similarity_its_cosines(predictor, weights):
    table = weights["positions.table"]
    np.testing.assert_allclose(draw("positions", predictor).axes[0].images[0].get_array(), table)
    unit = table[1:] / np.linalg.norm(table[1:], axis=1, keepdims=True)
    (pixels,) = image_arrays(draw("similarity", predictor).axes[0])
    pixels = pixels[:, ~np.isnan(pixels).all(0)][~np.isnan(pixels).all(1)][::2, ::2]  # a cell is 2 x 2 pixels
    cells = pixels.reshape(4, 4, 4, 4).transpose(0, 2, 1, 3).reshape(16, 16)
    np.testing.assert_allclose(cells, unit @ unit.T, atol=1e-6)


def test_sinusoidal_positions_are_drawn(tmp_path, predictor):
    model = untrained(tmp_path, predictor, positions="sinusoidal")
    table = np.asarray(draw("positions", model).axes[0].images[0].get_array())
    np.testing.assert_allclose(table, model.model.positions.table[:17], atol=1e-6)


def test_masks_are_the_learned_tables(predictor, weights):
    tables = [weights[f"encoder.layers.{i}.attention.mask.table"] for i in range(3)]
    assert np.abs(tables[0]).max() > 0
    np.testing.assert_allclose(image_arrays(draw("masks", predictor).axes[0]), np.concatenate(tables))


def test_the_color_scale_of_a_multiplicative_mask_is_centered_at_one(tmp_path, predictor):
    axes = draw("masks", untrained(tmp_path, predictor, mask="multiplicative")).axes[0]
    assert (np.asarray(image_arrays(axes)) == 1).all()
    assert sum(axes.images[0].get_clim()) / 2 == 1


def test_temperatures_are_those_of_the_model(predictor):
    texts = [text.get_text() for text in draw("temperatures", predictor).axes[0].texts]
    layers = [layer.attention.score.temperature().flatten().tolist() for layer in predictor.model.encoder.layers]
    assert texts[:6] == [f"{value:#.3g}" for layer in layers for value in layer]


def test_training_curves_are_the_records_of_the_log(predictor, tiny_run):
    records = [json.loads(line) for line in (tiny_run / "metrics.jsonl").read_text().splitlines()]
    validation = [(record["step"], record["validation"]) for record in records if "validation" in record]
    loss, accuracy, learning_rate = draw("training", predictor).axes
    for line, points in (
        (loss.lines[0], [(record["step"], record["loss"]) for record in records if "loss" in record]),
        (loss.lines[1], [(step, metrics["loss"]) for step, metrics in validation]),
        (accuracy.lines[0], [(step, metrics["accuracy"]) for step, metrics in validation]),
        (
            learning_rate.lines[0],
            [(record["step"], record["learning_rate"]) for record in records if "learning_rate" in record],
        ),
    ):
        assert len(points) > 1
        np.testing.assert_allclose(line.get_xydata(), points)


def test_invalid_lines_of_a_log_are_skipped(tmp_path, predictor):
    model = untrained(tmp_path, predictor)
    with pytest.raises(NoFigure, match=r"has no metrics.jsonl with metrics"):
        draw("training", model)
    with (tmp_path / "metrics.jsonl").open("wb") as file:
        file.truncate(limits.MAX_RUN_FILE_BYTES + 1)
    with pytest.raises(NoFigure, match=r"metrics.jsonl is larger than 16,777,216 bytes"):
        draw("training", model)
    valid = '{"step": 1, "loss": 2.5}'
    invalid = ['{"step": 2, "lo', "[]", "7", '{"loss": 3}', '{"step": "x", "loss": 1}', '{"step": 3, "loss": NaN}']
    invalid += ['{"step": 4, "loss": true, "validation": 7}', "[" * 5000, '{"step": 5, "loss": 1e999}']
    (tmp_path / "metrics.jsonl").write_text("\n".join([*invalid, valid, ""]))
    (loss,) = draw("training", model).axes
    assert loss.lines[0].get_xydata().tolist() == [[1, 2.5]]


@pytest.mark.parametrize("pool", ["class_token", "mean"])
def test_attention_is_that_of_the_class_token_or_the_mean_over_queries(tmp_path, predictor, image, pool):
    model = predictor if pool == "class_token" else untrained(tmp_path, predictor, pool=pool, score="dot")
    axes = draw_attention(model, image).axes[0]
    maps = image_arrays(axes)[9:18]  # after the pixels under each: three blocks of two heads, three rollouts
    weights = model.record([image]).stack()[:, 0].numpy()  # (3, 2, T, T)
    by_key = weights[:, :, 0, 1:] if pool == "class_token" else weights.mean(2)
    np.testing.assert_allclose(maps[:6], by_key.reshape(6, 4, 4), rtol=1e-5)
    flow = rollout(list(weights))[-1]
    flow = flow[0, 1:] if pool == "class_token" else flow.mean(0)
    np.testing.assert_allclose(maps[8], flow.reshape(4, 4), rtol=1e-5)
    texts = " ".join(text.get_text() for text in axes.texts)
    prediction = model.predict(image)
    assert f"{prediction.label} {prediction.confidence:.1%}" in texts
    assert MARKUP_NAME.replace("$", r"\$") in texts


def test_figures_that_do_not_apply_are_skipped_with_a_reason(tmp_path, predictor):
    model = untrained(tmp_path, predictor, score="dot", mask="causal", pool="mean", positions="none")
    result = model.show(out=tmp_path / "new" / "folder", format="svg")
    assert [path.name for path in result.files] == ["filters.svg"]
    assert result.skipped["masks"] == "model.mask is causal, which has no parameters"
    assert result.skipped["temperatures"] == "model.score is dot, which has no temperature"
    assert result.skipped["positions"] == result.skipped["similarity"] == "model.positions is none"
    assert result.skipped["training"].endswith("has no metrics.jsonl with metrics")


def test_color_images_are_drawn_in_color(tmp_path, predictor):
    torch.manual_seed(1)
    model = untrained(tmp_path, predictor, channels=3, depth=1)
    assert image_arrays(draw("filters", model).axes[0])[0].shape == (7, 7, 3)
    pixels = np.random.default_rng(0).integers(0, 256, (28, 28, 3), dtype=np.uint8)
    axes = draw_attention(model, pixels).axes[0]
    np.testing.assert_allclose(image_arrays(axes)[-1], pixels / 255, atol=1e-6)


def test_show_leaves_out_an_image_that_cannot_be_read(tmp_path, predictor, image):
    (tmp_path / "torn.png").write_bytes(image.read_bytes()[:60])
    result = predictor.show([tmp_path / "torn.png", image], tmp_path / "out")
    assert [path.name for path in result.files if path.name.startswith("image-")] == ["image-1.png"]
    [(name, error)] = result.failures
    assert name == "torn.png"
    assert "torn.png must be" in error
    page = (tmp_path / "out" / "page.html").read_text()
    assert "1 input" in page
    assert "torn.png" in page


def test_show_writes_nothing_where_an_argument_is_wrong(tmp_path, predictor, image):
    out = tmp_path / "out"
    (tmp_path / "torn.png").write_bytes(image.read_bytes()[:60])
    with pytest.raises(SightlineError, match=r"torn.png must be"):
        predictor.show([tmp_path / "torn.png"], out)
    with pytest.raises(SightlineError, match="format must be one of png, svg, got 'gif'"):
        predictor.show(out=out, format="gif")
    with pytest.raises(SightlineError, match="inputs must be 1 to 64 to be shown on one page, got 65"):
        predictor.show([image] * 65, out)
    assert not out.exists()
    with pytest.raises(SightlineError, match=r"out must be a folder, got .*, which is a file"):
        predictor.show(out=image)


def test_a_missing_matplotlib_is_named_with_the_extra(tmp_path, predictor, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SightlineError, match=r"matplotlib.*pip install 'sightline\[plot\]'"):
        predictor.show(out=tmp_path / "out")
