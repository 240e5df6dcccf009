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
from sightline.models.image_classifier import ImageClassifier
from sightline.tasks.image_classification import figures as image_pictures
from sightline.tasks.image_classification.predictor import ImagePredictor
from sightline.view.overlays import rollout

ODD = "a $x^2$ <b>&amp;.png"


@pytest.fixture(scope="module")
def predictor(tiny_run):
    return load(tiny_run)


@pytest.fixture(scope="module")
def kept(tiny_run):
    return {
        name: tensor.numpy() for name, tensor in safetensors.torch.load_file(tiny_run / "model.safetensors").items()
    }


@pytest.fixture
def image(tmp_path):
    path = tmp_path / ODD
    pixels = np.random.default_rng(0).integers(0, 256, (28, 28), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def untrained(tmp_path, predictor, **options):
    config = replace(predictor.recipe.model, **options)
    return ImagePredictor(tmp_path, replace(predictor.recipe, model=config), predictor.classes, ImageClassifier(config))


def tiles(axes):
    return [np.asarray(image.get_array()) for image in axes.images]


def not_blank(path):
    with Image.open(path) as opened:
        return np.asarray(opened.convert("L")).std() > 5


def test_everything_is_drawn_into_the_folder_of_the_run(predictor, tiny_run, image):
    drawn = predictor.show([image, str(image), Image.new("L", (28, 28), 90)])
    names = ["filters", "positions", "similarity", "masks", "temperatures", "training"]
    names += ["image-1", "image-2", "image-3"]
    assert drawn.files == [tiny_run / "pictures" / f"{name}.png" for name in names] + [
        tiny_run / "pictures" / "page.html"
    ]
    assert drawn.left_out == {}
    assert all(not_blank(path) for path in drawn.files[:-1])
    assert sorted(path.name for path in (tiny_run / "pictures").iterdir()) == sorted(p.name for p in drawn.files)
    shutil.rmtree(tiny_run / "pictures")


def test_the_filters_are_the_kernels_of_the_file(predictor, kept):
    kernels = kept["patches.project.weight"][:, 0]
    order = np.argsort(-np.linalg.norm(kernels.reshape(len(kernels), -1), axis=1), kind="stable")
    np.testing.assert_allclose(tiles(image_pictures.filters(predictor).axes[0]), kernels[order])


def test_the_positions_are_those_of_the_file(predictor, kept):
    table = kept["positions.table"]
    np.testing.assert_allclose(image_pictures.positions(predictor).axes[0].images[0].get_array(), table)
    unit = table[1:] / np.linalg.norm(table[1:], axis=1, keepdims=True)
    (shown,) = tiles(image_pictures.similarity(predictor).axes[0])
    shown = shown[:, ~np.isnan(shown).all(0)][~np.isnan(shown).all(1)][::2, ::2]  # a cell is two pixels wide
    shown = shown.reshape(4, 4, 4, 4).transpose(0, 2, 1, 3).reshape(16, 16)
    np.testing.assert_allclose(shown, unit @ unit.T, atol=1e-6)


def test_the_masks_are_those_of_the_file(predictor, kept):
    tables = [kept[f"encoder.layers.{i}.attention.mask.table"] for i in range(3)]
    assert np.abs(tables[0]).max() > 0  # it has begun to learn
    np.testing.assert_allclose(tiles(image_pictures.masks(predictor).axes[0]), np.concatenate(tables))


def test_a_multiplicative_mask_is_white_at_one(tmp_path, predictor):
    ax = image_pictures.masks(untrained(tmp_path, predictor, mask="multiplicative")).axes[0]
    assert (np.asarray(tiles(ax)) == 1).all()
    assert sum(ax.images[0].get_clim()) / 2 == 1


def test_the_temperatures_are_those_of_the_model(predictor):
    texts = [text.get_text() for text in image_pictures.temperatures(predictor).axes[0].texts]
    layers = [layer.attention.score.temperature().flatten().tolist() for layer in predictor.model.encoder.layers]
    assert texts[:6] == [f"{value:#.3g}" for layer in layers for value in layer]


def test_the_curves_are_those_of_the_log(predictor, tiny_run):
    lines = [json.loads(line) for line in (tiny_run / "metrics.jsonl").read_text().splitlines()]
    loss, accuracy, rate = image_pictures.training(predictor).axes
    for line, wanted in (
        (loss.lines[0], [(one["step"], one["loss"]) for one in lines if "loss" in one]),
        (loss.lines[1], [(one["step"], one["validation"]["loss"]) for one in lines if "validation" in one]),
        (accuracy.lines[0], [(one["step"], one["validation"]["accuracy"]) for one in lines if "validation" in one]),
        (rate.lines[0], [(one["step"], one["learning_rate"]) for one in lines if "learning_rate" in one]),
    ):
        assert len(wanted) > 1
        np.testing.assert_allclose(line.get_xydata(), wanted)


def test_a_log_with_broken_lines_is_read_as_far_as_it_can_be(tmp_path, predictor):
    model = untrained(tmp_path, predictor)
    with pytest.raises(image_pictures.Missing, match=r"there is no metrics.jsonl with measurements in"):
        image_pictures.training(model)
    with (model.folder / "metrics.jsonl").open("wb") as file:
        file.truncate(limits.MAX_RUN_FILE_BYTES + 1)
    with pytest.raises(image_pictures.Missing, match=r"metrics.jsonl is over 16,777,216 bytes"):
        image_pictures.training(model)
    good = '{"step": 1, "loss": 2.5}'
    bad = ['{"step": 2, "lo', "[]", "7", '{"loss": 3}', '{"step": "x", "loss": 1}', '{"step": 3, "loss": NaN}']
    bad += ['{"step": 4, "loss": true, "validation": 7}', "[" * 5000, '{"step": 5, "loss": 1e999}']
    (tmp_path / "metrics.jsonl").write_text("\n".join([*bad, good, ""]))
    (loss,) = image_pictures.training(model).axes
    assert loss.lines[0].get_xydata().tolist() == [[1, 2.5]]


@pytest.mark.parametrize("pool", ["class_token", "mean"])
def test_attention_is_that_of_the_answer_or_of_all(tmp_path, predictor, image, pool):
    model = predictor if pool == "class_token" else untrained(tmp_path, predictor, pool=pool, score="dot")
    drawn = image_pictures.attention(model, model.look([image]), 0)
    ax = drawn.axes[0]
    shown = tiles(ax)[9:18]  # three blocks of two heads, and the rollout of each, over as many pictures
    weights = model.record([image]).stack()[:, 0].numpy()  # (3, 2, N, N)
    rows = weights[:, :, 0, 1:] if pool == "class_token" else weights.mean(2)
    np.testing.assert_allclose(shown[:6], rows.reshape(6, 4, 4), rtol=1e-5)
    flow = rollout(list(weights))[-1]
    flow = flow[0, 1:] if pool == "class_token" else flow.mean(0)
    np.testing.assert_allclose(shown[8], flow.reshape(4, 4), rtol=1e-5)
    texts = [text.get_text() for text in ax.texts]
    answer = model.predict(image)
    assert f"{answer.confidence:.1%} {answer.label}" in texts
    assert ODD.replace("$", r"\$") in texts


def test_what_a_model_has_none_of_is_left_out_with_a_word(tmp_path, predictor):
    model = untrained(tmp_path, predictor, score="dot", mask="causal", pool="mean", positions="none")
    drawn = model.show(out=tmp_path / "new" / "folder", format="svg")
    assert [path.name for path in drawn.files] == ["filters.svg"]
    assert drawn.left_out["masks"] == "model.mask is causal, so there are none to learn"
    assert drawn.left_out["temperatures"] == "model.score is dot, which has no temperature"
    assert drawn.left_out["positions"] == drawn.left_out["similarity"] == "model.positions is none"
    assert drawn.left_out["training"].startswith("there is no metrics.jsonl")


def test_fixed_waves_are_drawn_too(tmp_path, predictor):
    model = untrained(tmp_path, predictor, positions="sinusoidal")
    table = np.asarray(image_pictures.positions(model).axes[0].images[0].get_array())
    np.testing.assert_allclose(table, model.model.positions.table[:17], atol=1e-6)


def test_colored_images_are_drawn_in_color(tmp_path, predictor):
    torch.manual_seed(1)
    model = untrained(tmp_path, predictor, channels=3, depth=1)
    kernel = tiles(image_pictures.filters(model).axes[0])[0]
    assert kernel.shape == (7, 7, 3)
    pixels = np.random.default_rng(0).integers(0, 256, (28, 28, 3), dtype=np.uint8)
    drawn = image_pictures.attention(model, model.look([pixels]), 0)
    np.testing.assert_allclose(tiles(drawn.axes[0])[-1], pixels / 255, atol=1e-6)


def test_nothing_is_written_where_something_is_wrong(tmp_path, predictor, image):
    out = tmp_path / "out"
    (tmp_path / "torn.png").write_bytes(image.read_bytes()[:60])
    with pytest.raises(ValueError, match=r"torn.png must be a PNG.* and whole"):
        predictor.show([image, tmp_path / "torn.png"], out)
    with pytest.raises(ValueError, match="format must be one of png, svg, got 'gif'"):
        predictor.show(out=out, format="gif")
    with pytest.raises(ValueError, match="images must be 1 to 64 to be shown on one page, got 65"):
        predictor.show([image] * 65, out)
    assert not out.exists()
    with pytest.raises(ValueError, match=r"out must be a folder, got .*, which is a file"):
        predictor.show(out=image)


def test_without_matplotlib_it_says_what_to_install(tmp_path, predictor, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pictures must have matplotlib: pip install 'sightline\[plot\]'"):
        predictor.show(out=tmp_path / "out")
