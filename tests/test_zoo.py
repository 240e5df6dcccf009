"""Pretrained models by name. All tests but the last use a zoo of tiny models."""

import contextlib
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import sightline
from processes import SMALL_TASKS, write_task_data
from sightline import FewShotClassifier, limits, shipping, zoo
from sightline.cli import app
from sightline.data.images.class_splits import load_classes
from sightline.data.images.glyphs import draw_alphabets
from sightline.errors import SightlineError, SightlineWarning
from sightline.files import CARD, CONFIG, WEIGHTS

EXAMPLES = Path(sightline.__file__).parent / "web" / "examples"
"""Images that the page offers to try."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The data of two tasks, and their runs by the names of the pretrained models."""
    home = tmp_path_factory.mktemp("runs")
    write_task_data(home)
    with contextlib.chdir(home):
        for name, task in (("glyphs", "few_shot"), ("de-en", "translation")):
            sightline.train(None, [*SMALL_TASKS[task], "training.steps=1", f"out={name}"], quiet=True)
    return home


@pytest.fixture
def home(runs, tmp_path, monkeypatch):
    """A zoo of two models in half precision. The working folder has their data."""
    home, working_folder = tmp_path / "zoo", tmp_path / "here"
    for name in ("glyphs", "de-en"):
        shutil.copytree(runs / name, home / name, ignore=shutil.ignore_patterns("checkpoints", "metrics.jsonl"))
        state = load_file(home / name / WEIGHTS)
        save_file({key: tensor.half() for key, tensor in state.items()}, home / name / WEIGHTS)
    (home / "__pycache__").mkdir()
    working_folder.mkdir()
    for name in ("classes.npz", "pairs.tsv"):
        shutil.copy(runs / name, working_folder)
    monkeypatch.chdir(working_folder)
    monkeypatch.setattr(zoo, "HOME", home)
    return home


def run_cli(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_names_are_accepted_wherever_a_run_is(home):
    assert zoo.names() == ("de-en", "glyphs")
    assert sightline.load("glyphs").folder == home / "glyphs"
    assert FewShotClassifier.pretrained("glyphs").model is not None
    result = run_cli("predict", "de-en", "eins", "--device", "cpu")
    assert result.stdout.startswith("eins: "), result.output
    assert run_cli("evaluate", "glyphs", "--device", "cpu").exit_code == 0


def test_a_model_that_is_not_fitted_says_how_to_fit_it(home):
    for page in ([], ["--show", "page.html"]):
        result = run_cli("predict", "glyphs", "image.png", *page)
        assert result.exit_code == 2
        assert "sightline fit FOLDER --model glyphs" in result.stderr


def test_half_precision_is_loaded_in_single_precision(home):
    for model in (sightline.load("de-en").model, FewShotClassifier.pretrained("glyphs").model):
        assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}


def test_a_run_takes_precedence_over_a_name_and_another_folder_does_not(home, runs):
    Path("glyphs").mkdir()  # such as a folder of images
    assert zoo.folder("glyphs") == home / "glyphs"
    shutil.copytree(runs / "glyphs", "glyphs", dirs_exist_ok=True)
    for load in (sightline.load, FewShotClassifier.pretrained):
        with pytest.warns(SightlineWarning, match=r"glyphs is the run in the folder ./glyphs here, not the pretrained"):
            load("glyphs")
    assert sightline.load("./glyphs").folder == Path("glyphs")
    assert zoo.folder("./de-en") == Path("de-en")  # a path, not a name


def test_an_unknown_name_is_refused_with_the_closest(home):
    with pytest.raises(SightlineError, match="a pretrained model, one of de-en, glyphs, got 'glyps'; did you mean"):
        sightline.load("glyps")
    with pytest.raises(SightlineError, match="got 'glyps'; did you mean 'glyphs'"):
        FewShotClassifier.pretrained("glyps")


def test_an_empty_zoo_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "HOME", tmp_path)
    assert zoo.names() == ()
    with pytest.raises(SightlineError, match=r"a pretrained model \(none\), got 'glyphs'"):
        sightline.load("glyphs")


@pytest.mark.parametrize("missing", [CONFIG, WEIGHTS, CARD])
def test_an_incomplete_folder_is_not_a_model(home, missing):
    """A killed `ship` leaves a hidden folder, or a folder without all files."""
    shutil.copytree(home / "glyphs", home / ".other.0a1b2c3d.part")
    shutil.copytree(home / "glyphs", home / "other")
    assert zoo.names() == ("de-en", "glyphs", "other")
    (home / "other" / missing).unlink()
    assert zoo.names() == ("de-en", "glyphs")
    with pytest.raises(SightlineError, match="one of de-en, glyphs, got 'other'"):
        sightline.load("other")


def test_nothing_is_written_to_the_zoo(home):
    def modified():
        return {path: path.stat().st_mtime_ns for path in sorted(home.rglob("*"))}

    before = modified()
    Path("de-en").mkdir()
    assert sightline.evaluate("de-en", device="cpu").to_dict()
    figures = sightline.load("de-en").show(["eins"])
    assert figures.files
    assert {path.parent for path in figures.files} == {Path("figures")}
    assert modified() == before
    assert not list(Path("de-en").iterdir())


@pytest.mark.parametrize("name", zoo.names())
def test_a_pretrained_model_is_small_and_has_a_card(name):
    folder = zoo.folder(name)
    size, backbone_size = shipping.model_bytes(folder, sightline.load(name))
    assert size <= limits.MAX_ZOO_MODEL_BYTES
    assert backbone_size <= limits.MAX_ZOO_BACKBONE_BYTES
    card = (folder / CARD).read_text()
    assert f"# {name}\n" in card
    assert "not installed" not in card
    data = yaml.safe_load((folder / CONFIG).read_text())["data"]
    for source in (data, *data.get("extra_sources", ())):
        assert f"`{source if isinstance(source, str) else source['source']}`" in card
    assert {
        tensor.dtype for tensor in load_file(folder / WEIGHTS).values() if tensor.dim() > 1 and tensor.numel() > 1000
    } == {torch.float16}


def test_glyphs_separates_drawn_characters(tmp_path):
    drawn = draw_alphabets(alphabets=1, characters=10, drawers=8).pixels.unflatten(0, (10, 8))
    classifier = FewShotClassifier.pretrained("glyphs").fit({str(i): list(drawn[i, :3]) for i in range(5)})
    images = list(drawn[:5, 3:].flatten(0, 1))
    predictions = classifier.predict(images)
    assert sum(prediction.label == str(i // 5) for i, prediction in enumerate(predictions)) >= 24
    assert sum(prediction.known for prediction in predictions) >= 20
    assert sum(prediction.known for prediction in classifier.predict(list(drawn[5:].flatten(0, 1)))) <= 10
    loaded = FewShotClassifier.load(classifier.save(tmp_path / "drawn.sightline"))
    assert [prediction.scores for prediction in loaded.predict(images)] == [
        prediction.scores for prediction in predictions
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("glyphs", [2.560353, 3.681885, 6.007399, 6.656114, 4.966304]),
        ("photos", [2.705499, 2.461055, 2.59519, 2.614798, 2.783146]),
    ],
)
def test_logits_of_pretrained_heads_equal_the_recorded_ones(name, expected):
    head = sightline.load(name).model.head
    random = torch.Generator().manual_seed(1)
    embed_dim = sightline.load(name).model.embed_dim
    support, query = (torch.randn(2, count, 1, embed_dim, generator=random) for count in (10, 7))
    labels = torch.arange(5).repeat_interleave(2).expand(2, -1)
    with torch.no_grad():
        logits = head(support, labels, query, way=5)
    torch.testing.assert_close(logits[0, 0], torch.tensor(expected), rtol=0, atol=1e-5)


def test_predictions_of_glyphs_equal_the_recorded_ones():
    test = load_classes("glyphs", size=28).test
    images = {name: test.pixels[test.labels == i][:5] for i, name in enumerate(test.classes[:8])}
    examples = {name: images[name][:3] for name in test.classes[:6]}
    classifier = FewShotClassifier.pretrained("glyphs").fit(examples, method="head")
    predictions = classifier.predict([images[name][4] for name in test.classes[:8]])
    expected = [
        ("Gapu/ka", 0.999598, 0.907850),
        ("Gapu/mo", 0.999867, 0.942662),
        ("Gapu/ti", 0.999994, 0.971838),
        ("Gapu/nu", 0.998606, 0.711669),
        ("Gapu/se", 0.999999, 0.964335),
        ("Gapu/la", 0.998216, 0.847866),
        ("Gapu/nu", 0.821012, 0.111346),  # the classes of the last two are unknown
        ("Gapu/ka", 0.515757, 0.010943),
    ]
    assert [prediction.label for prediction in predictions] == [label for label, _, _ in expected]
    values = torch.tensor([[prediction.confidence, prediction.known_score] for prediction in predictions])
    torch.testing.assert_close(values, torch.tensor([row[1:] for row in expected]), rtol=0, atol=1e-5)


def test_scores_of_glyphs_do_not_depend_on_the_number_of_images():
    drawn = draw_alphabets(alphabets=1, characters=5, drawers=8).pixels.unflatten(0, (5, 8))
    classifier = FewShotClassifier.pretrained("glyphs").fit({str(i): list(drawn[i, :1]) for i in range(5)})
    images = list(drawn[:, 1:].flatten(0, 1))
    for single, prediction in zip(map(classifier.predict, images), classifier.predict(images), strict=True):
        assert prediction.scores == pytest.approx(single.scores, abs=1e-5)


def test_de_en_translates_everyday_sentences_and_aligns_their_words():
    translator = sightline.load("de-en")
    expected = {
        "guten abend": ("good evening", -0.048379),
        "Hast du Hunger?": ("are you hungry?", -0.066178),
        "Meine Schwester wohnt in Berlin.": ("my sister lives in berlin.", -0.130286),
        "Das Buch liegt auf dem Tisch.": ("the book is on the table.", -0.272050),
    }
    predictions = translator.predict(list(expected))
    assert [prediction.text for prediction in predictions] == [text for text, _ in expected.values()]
    scores = [prediction.score for prediction in predictions]
    assert scores == pytest.approx([score for _, score in expected.values()], abs=1e-4)
    prediction = translator.predict("guten abend", attention=True)
    weights = prediction.attention.of("cross")[-1].weights[0].mean(0)  # (target tokens, source tokens)
    assert list(prediction.tokens[:2]) == ["good", "evening"]
    assert weights[0].argmax() < weights[1].argmax()


def test_fill_mask_predicts_plausible_words():
    prediction = sightline.load("fill-mask").predict("A man rides a [MASK].")
    words = prediction.masks[0].words
    assert {"motorcycle", "bike", "bicycle", "horse"} == {word for word, _ in words[:4]}
    assert words[0][1] == pytest.approx(0.255, abs=0.01)


def test_caption_describes_photos_in_one_sentence():
    predictor = sightline.load("caption")
    assert predictor.external_model == "efficientnet_lite0"  # of the extra `photos`
    people = {"man", "woman", "boy", "girl", "person", "people", "child", "lady", "guy"}
    expected = {"astronaut.jpg": people, "camera.jpg": people, "chelsea.jpg": {"cat", "dog", "animal", "puppy"}}
    captions = predictor.predict([EXAMPLES / "caption" / name for name in expected])
    for caption, words in zip(captions, expected.values(), strict=True):
        assert caption.finished
        assert set(re.findall(r"\w+", caption.text)) & words, caption.text
        assert re.fullmatch(r"[a-z0-9' ,-]+\.?", caption.text)
    assert len({caption.text for caption in captions}) == len(captions)


def test_fashion_names_the_clothing_on_its_examples():
    predictor = sightline.load("fashion")
    expected = {"ankle-boot.png": "Ankle boot", "bag.png": "Bag", "trouser.png": "Trouser"}
    predictions = predictor.predict([EXAMPLES / "fashion" / name for name in expected])
    assert [prediction.label for prediction in predictions] == [*expected.values()]
    assert min(prediction.confidence for prediction in predictions) > 0.8
    assert len(predictor.classes) == 10
