"""Models that ship: found by name, wherever a folder is taken. But for the last tests, tiny ones stand in for them."""

import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import glyph_run
import number_run
import sightline
from sightline import FewShotClassifier, zoo
from sightline.classifier.calibration import ask
from sightline.classifier.queries import embedded
from sightline.cli import app
from sightline.data.images.glyphs import draw_alphabets
from sightline.hub import WEIGHTS


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return number_run.train(tmp_path_factory.mktemp("translator"))


@pytest.fixture(scope="module")
def few_shot(tmp_path_factory):
    return glyph_run.train(tmp_path_factory.mktemp("runs"), steps=1)


@pytest.fixture
def home(few_shot, translator, tmp_path, monkeypatch):
    """A zoo of two, in half precision; and here is a folder of its own."""
    home = tmp_path / "zoo"
    shutil.copytree(few_shot, home / "glyphs")
    shutil.copytree(translator, home / "de-en", ignore=shutil.ignore_patterns("checkpoints", "metrics.jsonl"))
    for name in ("glyphs", "de-en"):
        state = load_file(home / name / WEIGHTS)
        save_file({key: tensor.half() for key, tensor in state.items()}, home / name / WEIGHTS)
    (home / "__pycache__").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(zoo, "HOME", home)
    return home


def test_every_door_knows_the_names(home):
    assert zoo.names() == ("de-en", "glyphs")
    assert sightline.load("glyphs").folder == home / "glyphs"
    assert FewShotClassifier.pretrained("glyphs").model is not None
    answer = CliRunner().invoke(app, ["predict", "de-en", "zwei", "--device", "cpu"])
    assert answer.stdout.startswith("zwei: "), answer.output
    for page in ([], ["--show", "page.html"]):
        answer = CliRunner().invoke(app, ["predict", "glyphs", "image.png", *page])
        assert "sightline fit FOLDER" in answer.stderr


def test_half_precision_is_opened_as_float32(home):
    for model in (sightline.load("de-en").model, FewShotClassifier.pretrained("glyphs").model):
        assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}


def test_a_run_of_that_name_wins_and_another_folder_does_not(home, few_shot, tmp_path):
    here = tmp_path / "here"
    (here / "glyphs").mkdir()  # such as a folder of images
    assert zoo.folder("glyphs") == home / "glyphs"
    shutil.copytree(few_shot, here / "glyphs", dirs_exist_ok=True)
    assert sightline.load("glyphs").folder.resolve() == here / "glyphs"
    assert zoo.folder("./de-en").resolve() == here / "de-en"  # a path, not a name


def test_a_name_that_does_not_ship_is_answered_with_the_nearest(home):
    with pytest.raises(ValueError, match="one of de-en, glyphs, got 'glyps'; did you mean 'glyphs'"):
        sightline.load("glyps")
    with pytest.raises(ValueError, match="one of efficientnet_lite0, glyphs, got 'glyps'; did you mean 'glyphs'"):
        FewShotClassifier.pretrained("glyps")


def test_where_nothing_ships_the_message_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "HOME", tmp_path)
    with pytest.raises(ValueError, match=r"one that ships \(none do\), got 'glyphs'"):
        sightline.load("glyphs")
    with pytest.raises(ValueError, match="or one of efficientnet_lite0, got 'glyphs'"):
        FewShotClassifier.pretrained("glyphs")


def test_nothing_is_written_into_the_zoo(home, tmp_path):
    def held():
        return {path: path.stat().st_mtime_ns for path in sorted(home.rglob("*"))}

    before = held()
    (tmp_path / "here" / "de-en").mkdir()
    score = sightline.evaluate("de-en", device="cpu")
    drawn = sightline.load("de-en").show(["eins"])
    assert score.pairs > 0
    assert [path.parent.resolve() for path in drawn.files] == [tmp_path / "here" / "pictures"] * 2
    assert held() == before
    assert not list((tmp_path / "here" / "de-en").iterdir())


@pytest.mark.parametrize("name", zoo.names())
def test_what_ships_is_small_and_has_a_card(name):
    folder = zoo.folder(name)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 8_000_000
    card = (folder / "README.md").read_text()
    assert f"# {name}\n" in card
    assert "not installed" not in card
    data = yaml.safe_load((folder / "config.yaml").read_text())["data"]
    for one in (data, *data.get("more", ())):
        assert f"`{one if isinstance(one, str) else one['source']}`" in card
    assert {tensor.dtype for tensor in load_file(folder / WEIGHTS).values() if tensor.numel() > 1000} == {torch.float16}


def test_glyphs_tells_drawn_characters_apart(tmp_path):
    drawn = draw_alphabets(alphabets=1, characters=10, drawers=8).pixels.unflatten(0, (10, 8))
    model = FewShotClassifier.pretrained("glyphs").fit({str(i): list(drawn[i, :3]) for i in range(5)})
    asked = list(drawn[:5, 3:].flatten(0, 1))
    answers = model.predict(asked)
    assert sum(answer.label == str(i // 5) for i, answer in enumerate(answers)) >= 24
    assert sum(answer.known for answer in answers) >= 20
    assert sum(answer.known for answer in model.predict(list(drawn[5:].flatten(0, 1)))) <= 10
    again = FewShotClassifier.load(model.save(tmp_path / "drawn.sightline"))
    assert [answer.scores for answer in again.predict(asked)] == [answer.scores for answer in answers]


def test_logits_of_glyphs_do_not_depend_on_how_many_are_asked():
    drawn = draw_alphabets(alphabets=1, characters=5, drawers=16).pixels.unflatten(0, (5, 16))
    model = FewShotClassifier.pretrained("glyphs").fit({str(i): list(drawn[i, :1]) for i in range(5)})
    head, memory = model.model.head, model._fitted.memory
    query, _ = embedded(list(drawn[:, 1:].flatten(0, 1)), model._fitted.support, model._embeds)
    alone = torch.cat([ask(head, memory, one[None]) for one in query])
    torch.testing.assert_close(ask(head, memory, query), alone, rtol=0, atol=1e-5)


def test_de_en_translates_everyday_sentences_and_shows_where_it_looked():
    translator = sightline.load("de-en")
    wanted = {
        "guten abend": "good evening",
        "Hast du Hunger?": "are you hungry?",
        "Meine Schwester wohnt in Berlin.": "my sister lives in berlin.",
        "Das Buch liegt auf dem Tisch.": "the book is on the table.",
    }
    assert {text: answer.text for text, answer in zip(wanted, translator.predict(list(wanted)), strict=True)} == wanted
    answer = translator.predict("guten abend", attention=True)
    looked = answer.attention.of("cross")[-1].weights[0].mean(0)  # (tokens written, tokens read)
    assert list(answer.tokens[:2]) == ["good", "evening"]
    assert looked[0].argmax() < looked[1].argmax()
