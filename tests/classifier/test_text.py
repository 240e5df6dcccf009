"""Few-shot classification of texts. The encoder is a small BERT whose embeddings follow the words of a text."""

import json
import re
import shutil
from pathlib import Path

import pytest
import tokenizers
import torch
from matplotlib.colors import to_rgba
from PIL import Image
from torch.testing import assert_close
from transformers import BertConfig, BertModel
from typer.testing import CliRunner

import sightline
from sightline import FewShotClassifier, record_attention
from sightline.classifier.data_checks import check_texts
from sightline.classifier.texts import read_table
from sightline.cli import app
from sightline.errors import SightlineError, SightlineWarning
from sightline.models.text_embedders import PACKAGES, SentenceEncoder, text_model_folder
from sightline.view.explanations import MAX_FIGURE_WORDS, explanation_figure
from sightline.view.figures import COLORS

ANIMALS = ["the dog barks", "a cat sleeps", "the horse runs", "a bird sings"]
FOOD = ["bread with cheese", "soup and rice", "cheese on bread", "rice with soup"]
WORDS = sorted({word for text in (*ANIMALS, *FOOD) for word in text.split()})


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A sentence encoder whose first embedding dimensions separate animals from food."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("encoder")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocab = {word: i for i, word in enumerate([*special, *WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(path / "tokenizer.json"))
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 11}
    model = BertModel(BertConfig(vocab_size=len(vocab), max_position_embeddings=29, **sizes)).eval()
    food = {word for text in FOOD for word in text.split()} - {"a", "the"}
    with torch.no_grad():
        table = model.embeddings.word_embeddings.weight
        for word, i in vocab.items():
            table[i, :6] += 0.3 * (1 if word in food else -1 if i > 3 else 0)
    model.save_pretrained(path)
    pooling = {"word_embedding_dimension": 12, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    types = ("Transformer", "Pooling", "Normalize")
    (path / "modules.json").write_text(json.dumps([{"type": f"sentence_transformers.models.{x}"} for x in types]))
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 17}')
    return path


@pytest.fixture(scope="session")
def fitted(folder):
    return FewShotClassifier.pretrained(folder).fit({"animals": ANIMALS, "food": FOOD})


def test_sentence_embeddings_are_normalized_means_of_tokens(folder):
    encoder, model = SentenceEncoder(folder), BertModel.from_pretrained(folder, local_files_only=True).eval()
    texts = ["the dog barks", "soup", "a cat " * 20]
    embeddings = encoder.embed(texts)
    for text, embedding in zip(texts, embeddings, strict=True):
        ids = encoder.tokenizer.encode(text).ids
        assert len(ids) <= 17
        with torch.no_grad():
            expected = model(torch.tensor([ids])).last_hidden_state.mean(1)
        assert_close(embedding[None], expected / expected.norm(), atol=1e-5, rtol=1e-4)


def test_raw_texts_are_classified_and_explained(fitted):
    prediction = fitted.predict("the soup with cheese")
    assert prediction.label == "food"
    explanation = prediction.explain()
    words = dict(explanation.words)
    assert list(words) == ["the", "soup", "with", "cheese"]
    assert words["the"] < 0 < min(words["soup"], words["cheese"])
    assert {example.name for example in explanation.support} <= {*ANIMALS, *FOOD}
    assert explanation.support[0].label == "food"
    page = explanation.page().html
    assert '"words": ["the", "soup", "with", "cheese"]' in page or '"words":["the","soup","with","cheese"]' in page
    assert [x.label for x in fitted.predict(["dog", "rice"])] == ["animals", "food"]
    assert fitted.predict(["dog", ""])[1].error is not None
    assert 0 <= fitted.calibration.auroc <= 1
    assert fitted.estimate().images == 8


def test_figure_of_an_explanation_shows_words_and_support_texts(fitted, tmp_path):
    explanation = fitted.predict("the soup with $cheese").explain()
    figure = explanation_figure(explanation.card())
    words, support, scores = figure.axes
    assert [label.get_text() for label in words.get_yticklabels()] == ["the", "soup", "with", r"\$cheese"]
    orange, blue = ({to_rgba(COLORS[name])} for name in ("amber", "blue"))  # as on the page
    assert {bar.get_facecolor() for bar in words.patches if bar.get_width() > 0} == orange
    assert {bar.get_facecolor() for bar in words.patches if bar.get_width() < 0} == blue
    widths = [bar.get_width() for bar in words.patches]
    assert widths == pytest.approx([effect for _, effect in explanation.words])
    shown = [label.get_text().replace("\n", " ") for label in support.get_yticklabels()]
    assert shown == [f"{example.label}: {example.name}" for example in explanation.support]
    assert [label.get_text() for label in scores.get_yticklabels()] == ["animals", "food"]
    assert explanation.save(tmp_path / "why.png").read_bytes().startswith(b"\x89PNG")


def test_figure_of_a_long_text_says_how_many_words_are_not_shown(fitted):
    figure = explanation_figure(fitted.predict(" ".join(WORDS)).explain().card())
    words, support, _ = figure.axes
    assert len(WORDS) > len(words.patches) == MAX_FIGURE_WORDS
    assert words.get_title() == f"Words ({len(WORDS) - MAX_FIGURE_WORDS} with smaller effects not shown)"
    figure.draw_without_rendering()
    assert words.title.get_window_extent().x1 <= support.title.get_window_extent().x0
    assert words.title.get_window_extent().x0 >= 0


def test_classifier_of_texts_is_saved_loaded_changed_and_evaluated(fitted, tmp_path):
    path = fitted.save(tmp_path / "topics.sightline")
    loaded = FewShotClassifier.load(path)
    assert loaded.predict("dog sleeps").scores == pytest.approx(fitted.predict("dog sleeps").scores)
    loaded.add("greetings", ["hello dog", "hello cat"])
    assert loaded.counts == {"animals": 4, "food": 4, "greetings": 2}
    with pytest.warns(
        SightlineWarning, match="^duplicate: “the dog barks”: the same text in 2 classes: animals, food$"
    ):
        loaded.add("food", "The dog  barks")
    evaluation = fitted.evaluate({"animals": ["dog", "cat runs"], "food": ["bread", ANIMALS[0]]})
    assert (evaluation.images, evaluation.support_images) == (4, 1)
    assert evaluation.accuracy == 0.75


def test_commands_fit_predict_and_evaluate_a_file_of_texts(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{text}\t{label}\n" for label, texts in (("animals", ANIMALS), ("food", FOOD)) for text in texts]
    (tmp_path / "topics.tsv").write_text("".join(rows))

    def run(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    summary = run("fit", "topics.tsv", "--model", folder)
    assert "wrote topics.sightline" in summary
    assert "on 8 held-out texts (95% interval" in summary
    assert "image" not in summary
    assert "food" in run("predict", "topics.sightline", "cheese and soup", "--show", "page.html")
    assert "cheese" in (tmp_path / "page.html").read_text()
    (tmp_path / "test.tsv").write_text("text\tlabel\nbread and soup\tanimals\nthe cat runs\tanimals\ndog\tpeople\n")
    report = run("evaluate", "topics.sightline", "--data", "test.tsv", "--show", "report.html")
    page = (tmp_path / "report.html").read_text()
    assert report.startswith("full set, 2 texts of 1 classes\n")
    for text in (report, page[page.index("<body") :]):
        assert "“bread and soup”" in text
        assert re.search(r"(?i)\b(an?|the|support|known|accepted|of) images?\b|\bfiles\b", text) is None


def test_info_of_a_classifier_of_texts_does_not_speak_of_images(fitted, tmp_path):
    values = sightline.info(fitted.save(tmp_path / "topics.sightline"))
    assert values["calibration"]["held_out_examples"] == 8
    assert "image" not in json.dumps(values)


def test_one_text_of_a_label_is_one_text(fitted):
    evaluation = fitted.evaluate({"animals": "the dog barks loud", "food": ["bread"]})
    assert (evaluation.images, evaluation.accuracy) == (2, 1.0)


TABLES = {
    "swapped": [("animals", text, "") for text in ANIMALS] + [("food", text, "") for text in FOOD],
    "ids": [(str(i), text, "animals" if text in ANIMALS else "food") for i, text in enumerate((*ANIMALS, *FOOD))],
}


@pytest.mark.parametrize(("name", "columns"), [("swapped", "2,1"), ("ids", "2,3")])
def test_other_columns_are_refused_until_they_are_named(name, columns, folder, tmp_path):
    path = tmp_path / "texts.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in (("nr", "words", "kind"), *TABLES[name])))

    def fit(*options):
        command = ["fit", str(path), "--model", str(folder), "--out", str(tmp_path / "x.sightline")]
        return CliRunner().invoke(app, [*command, *options])

    for options in ((), ("--header",)):
        result = fit(*options)
        assert result.exit_code == 2
        assert re.search("must be the text and column 2 its label, got . labels of . texts, such as", result.stderr)
        assert not (tmp_path / "x.sightline").exists()
    result = fit("--columns", columns, "--header")
    assert result.exit_code == 0, result.output
    assert "2 classes, 8 examples (4 per class)" in result.stdout
    assert "columns must be two numbers" in fit("--columns", "2", "--overwrite").stderr
    command = ["evaluate", str(tmp_path / "x.sightline"), "--data", str(tmp_path / "texts.tsv")]
    evaluation = CliRunner().invoke(app, [*command, "--columns", columns, "--header"])
    assert "8 texts" in evaluation.stdout, evaluation.output


def test_headers_are_found_by_their_names(tmp_path):
    path = tmp_path / "texts.tsv"

    def read(*rows):
        path.write_text("".join("\t".join(row) + "\n" for row in rows))
        return read_table(path)

    rows = [("a cat", "animals"), ("soup", "food")]
    with pytest.warns(SightlineWarning, match="it is skipped"):
        assert read(("Sentence", "Topic"), *rows) == {"animals": ["a cat"], "food": ["soup"]}
    assert list(read(("Where is it?", "question"), *rows, *rows)) == ["question", "animals", "food"]
    assert list(read(("question", "sports"), *rows)) == ["sports", "animals", "food"]
    short = [("cheap", "positive"), ("rude", "negative"), ("fine", "neutral"), ("odd", "undecided")]
    assert list(read(*short)) == ["positive", "negative", "neutral", "undecided"]  # one example of each class
    with pytest.warns(SightlineWarning, match=r"nearly every label of .*texts\.tsv occurs once, such as 'b19'"):
        assert len(read(*((f"a{i}", f"b{i}") for i in range(20)))) == 20


def test_repeated_texts_are_reported(folder, tmp_path):
    rows = {"animals": [*ANIMALS, "Soup  and rice"], "food": [*FOOD, FOOD[0]]}
    findings = [(f.kind, f.text) for f in check_texts(FewShotClassifier.pretrained(folder).fit(rows))]
    assert findings[:2] == [
        ("duplicate", "“Soup and rice”: the same text in 2 classes: animals, food"),
        ("duplicate", "“bread with cheese”: the same text 2 times in food"),
    ]
    (tmp_path / "texts.tsv").write_text("".join(f"{text}\t{label}\n" for label in rows for text in rows[label]))
    command = ["fit", str(tmp_path / "texts.tsv"), "--model", str(folder), "--out", str(tmp_path / "x.sightline")]
    assert f"  duplicate  {findings[0][1]}\n" in CliRunner().invoke(app, command).stdout


def test_texts_for_models_of_images_name_the_text_encoder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.tsv").write_text("a cat\tanimals\nsoup\tfood\n")
    (tmp_path / "texts.csv").write_text("a cat,animals\n")
    for examples in ({"animals": ANIMALS, "food": FOOD}, "texts.tsv"):
        with pytest.raises(SightlineError, match=r"for texts, use FewShotClassifier\.pretrained\('minilm'\)"):
            FewShotClassifier.pretrained("auto").fit(examples)
    with pytest.raises(SightlineError, match=r"one of auto, .*minilm.*; did you mean 'minilm'"):
        FewShotClassifier.pretrained("minilmm")
    for arguments, message in (
        (["texts.csv"], "a file of texts must be tab-separated"),
        (["texts.tsv", "--model", "glyphs"], "model must be a text encoder for a file of texts: minilm"),
    ):
        result = CliRunner().invoke(app, ["fit", *arguments])
        assert result.exit_code == 2
        assert message in result.stderr


def test_estimator_fits_texts(folder):
    from sightline.sklearn import FewShotEstimator

    estimator = FewShotEstimator(folder).fit([*ANIMALS, *FOOD], [0] * 4 + [1] * 4)
    assert estimator.predict(["the dog sleeps", "bread and rice"]).tolist() == [0, 1]


def test_classifier_of_texts_is_exported_with_its_encoder(fitted, tmp_path):
    sightline.export(fitted.save(tmp_path / "topics.sightline"), tmp_path / "out", format="torch")
    with (tmp_path / "out" / "model.pt2").open("rb") as file:
        program = torch.export.load(file).module()
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    for text in ("a horse runs", "a horse runs " * 9):  # the second one has more tokens than the encoder reads
        ids = torch.tensor([tokenizer.encode(text).ids])
        probabilities, known_score = program(input_ids=ids, attention_mask=torch.ones_like(ids, dtype=torch.bool))
        prediction = fitted.predict(text)
        assert_close(probabilities[0].tolist(), [prediction.scores[name] for name in fitted.classes], atol=1e-4, rtol=0)
        assert float(known_score) == pytest.approx(prediction.known_score, abs=1e-4)
    assert json.loads((tmp_path / "out" / "export.json").read_text())["max_tokens"] == 17


def test_wrong_examples_and_folders_are_refused(folder, fitted, tmp_path):
    classifier = FewShotClassifier.pretrained(folder)
    with pytest.raises(SightlineError, match="examples must be texts for a text encoder, got int"):
        classifier.fit({"a": ["x"], "b": [3]})
    with pytest.raises(SightlineError, match="class 'b': must have at least one text"):
        classifier.fit({"a": ["x"], "b": []})
    with pytest.raises(SightlineError, match="a text must be at most"):
        fitted.predict("word " * 30_000)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(SightlineError, match=r"weights in model\.safetensors, got none"):
        FewShotClassifier.pretrained(tmp_path)


def test_an_image_file_is_not_taken_for_a_text(folder, fitted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = "must be a text, got the image file 'photo.png'; use a model of images for it, or pass the text itself"
    assert fitted.predict("photo.png").error is None  # no such file
    Image.new("L", (7, 5)).save("photo.png")
    for item in ("photo.png", Path("photo.png")):
        with pytest.raises(SightlineError, match=message):
            fitted.predict(item)
    assert [prediction.error is None for prediction in fitted.predict(["the dog", "photo.png"])] == [True, False]
    with pytest.raises(SightlineError, match=f"class 'animals': .*{message}"):
        FewShotClassifier.pretrained(folder).fit({"animals": [*ANIMALS, "photo.png"], "food": FOOD})
    fitted.save("topics.sightline")
    for command in (["predict", "topics.sightline"], ["add", "topics.sightline", "food"]):
        result = CliRunner().invoke(app, [*command, "photo.png"])
        assert result.exit_code in (1, 2)
        assert message in result.output
    assert fitted.prepare("photo.png") == "photo.png"  # a server does not tell which files it has


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json", "config.json"])
@pytest.mark.parametrize("content", ["[[]]", "3", '{"architectures": 5}'])
def test_broken_files_of_an_encoder_are_refused(name, content, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "encoder")
    (tmp_path / "encoder" / name).write_text(content)
    with pytest.raises(SightlineError):
        FewShotClassifier.pretrained(tmp_path / "encoder")


@pytest.fixture
def minilm():
    try:
        return text_model_folder("minilm")
    except SightlineError:
        pytest.skip(f"{PACKAGES['minilm']} is not installed")


def test_minilm_gives_the_states_attention_and_embeddings_of_transformers(minilm):
    from transformers import AutoModel

    theirs = AutoModel.from_pretrained(minilm, attn_implementation="sdpa", local_files_only=True).eval()
    encoder = SentenceEncoder(minilm)
    ids, mask = encoder.encode(["A dog runs through the water.", "Two people."])
    with torch.no_grad():
        with record_attention(theirs) as expected_record:
            expected = theirs(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        with record_attention(encoder) as record:
            embeddings = encoder(ids, mask)
        states = encoder.encoder(ids, mask).states
    assert_close(states[mask], expected[mask], atol=1e-4, rtol=1e-4)
    pooled = (expected * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    assert_close(embeddings, torch.nn.functional.normalize(pooled, dim=-1), atol=1e-4, rtol=1e-4)
    tokens = encoder.tokenizer.encode("A dog runs through the water.").tokens
    for maps in (record, expected_record):
        assert len(maps) == 6
        assert "water" in maps.view(tokens).html
    assert_close(record[3].weights[0], expected_record[3].weights[0], atol=1e-4, rtol=1e-4)
