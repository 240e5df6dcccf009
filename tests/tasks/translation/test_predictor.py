"""Translations, explanations and evaluations of a trained translator."""

import csv
import io
import json
import re
import resource
import shutil
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import sightline
from number_run import write_corpus
from sightline import limits
from sightline.cli import app
from sightline.data.text import corpora
from sightline.errors import SightlineError
from sightline.tasks.translation.predictor import Translation, TranslationPredictor
from sightline.tasks.translation.task import tokenizer_files

SMALL = (
    "task=translation",
    "model.transformer.embed_dim=32",
    "model.transformer.ffn_dim=32",
    "model.transformer.encoder_layers=1",
    "model.transformer.decoder_layers=1",
    "model.rnn.hidden_size=16",
    "model.rnn.embed_dim=12",
    "training.steps=50",
    "training.batch_size=512",
    "training.evaluate_every=50",
    "training.device=cpu",
)
TEXTS = ["siebenundvierzig", "eins", "dreihundertelf", "Zwei <s> \x00 \ud800"]
KOREAN = "좋은 저녁"


def train(corpus, out, *changes):
    return sightline.train(None, [*SMALL, f"data.source={corpus}", f"out={out}", *changes], quiet=True).folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"), train=200, validation=9, test=13, max_chars=32)


@pytest.fixture(scope="module", params=["rnn", "rnn_attention", "transformer"])
def each_run(request, corpus, tmp_path_factory):
    """One run of each kind of model."""
    changes = [f"model.kind={request.param}"]
    if request.param == "transformer":
        changes += ["tokenizer.shared_vocab=true", "model.transformer.tie_embeddings=all"]
    return train(corpus, tmp_path_factory.mktemp("runs") / request.param, *changes)


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    return train(corpus, tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def predictor(trained):
    return sightline.load(trained)


@pytest.fixture
def run(trained, tmp_path):
    """A copy that a test can change."""
    return shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))


def command(*arguments, **options):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)


def test_every_model_translates_the_same_in_any_batch(each_run):
    predictor = sightline.load(each_run)
    translations = predictor.predict(TEXTS)
    assert predictor.predict([]) == []
    for text, translation in zip(TEXTS, translations, strict=True):
        alone = predictor.predict(text)
        assert isinstance(alone, Translation)
        assert alone.text == translation.text
        assert alone.score == pytest.approx(translation.score, abs=1e-4)
        assert translation.source_tokens[-1] == "</s>"
        scores = [translation.score, *(alternative.score for alternative in translation.alternatives)]
        assert len(scores) == 5
        assert scores == sorted(scores, reverse=True)
        assert scores[0] <= 0
    assert [bool(translation.unknown_tokens) for translation in translations] == [False, False, False, True]


def test_every_model_is_evaluated_on_its_test_set(each_run):
    evaluation = sightline.evaluate(each_run, device="cpu")
    assert (evaluation.split, evaluation.pairs, evaluation.num_beams) == ("test", 13, 5)
    assert sum(group["pairs"] for group in evaluation.by_length) == 13
    assert json.loads((each_run / "evaluation.json").read_text())["bleu"] == evaluation.bleu
    assert evaluation.summary() in (each_run / "README.md").read_text()
    assert sightline.evaluate(each_run, device="cpu") == evaluation


def test_attention_needs_a_model_with_attention(each_run):
    predictor = sightline.load(each_run)
    if predictor.config.model.kind == "rnn":
        for request in (predictor.explain, lambda texts: predictor.predict(texts, attention=True)):
            with pytest.raises(SightlineError, match=r"model.kind must be one with attention to show it, got 'rnn'"):
                request(["eins"])
    else:
        assert "eins →" in predictor.explain(["eins"]).page.html


def test_recorded_attention_has_one_row_per_token_and_no_padding(predictor):
    batched = predictor.predict(TEXTS, attention=True)
    single = [predictor.predict([text], attention=True)[0] for text in TEXTS]
    for translation, alone in zip(with_alternatives(batched), with_alternatives(single), strict=True):
        assert {attention_map.kind for attention_map in translation.attention} == {"encoder", "decoder", "cross"}
        for attention_map, other in zip(translation.attention, alone.attention, strict=True):
            queries = translation.source_tokens if attention_map.kind == "encoder" else translation.tokens
            keys = translation.tokens if attention_map.kind == "decoder" else translation.source_tokens
            weights = attention_map.weights
            assert weights.shape[2:] == (len(queries), len(keys))
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
            torch.testing.assert_close(weights, other.weights, atol=1e-5, rtol=1e-4)
    assert predictor.predict("eins").attention is None


def with_alternatives(translations):
    return [item for translation in translations for item in (translation, *translation.alternatives)]


BAD_TEXTS = [
    ("", "text must have at least one word, got ''"),
    (" \n\t", "text must have at least one word"),
    ("eins " * 200, "text must be at most 127 tokens, the limit in training, got .*one by one"),
    ("x" * 100_001, "text must be at most 100,000 characters, got 100,001; translate it in parts"),
    (7, "text must be a string, got int"),
    (None, "text must be a string, got NoneType"),
    (KOREAN, rf"text must be in the source language 'de', got \d+ unknown of \d+ tokens in '{KOREAN}'"),
    ("👩‍👩‍👧", "text must be in the source language 'de'"),
]


@pytest.mark.parametrize(("text", "message"), BAD_TEXTS, ids=lambda value: repr(value)[:20])
def test_a_bad_text_raises_alone_and_is_an_error_in_a_list(predictor, text, message):
    with pytest.raises(SightlineError, match=message):
        predictor.predict(text)
    before, failed, after = predictor.predict(["eins", text, "zwei"])
    assert re.search(message, failed.error)
    assert [before.text, after.text] == [predictor.predict(word).text for word in ("eins", "zwei")]


def test_invalid_options_raise(predictor):
    for options, message in (
        ({"num_beams": 101}, "num_beams must be at most 100, got 101"),
        ({"top_k": 101}, "top_k must be at most 100, got 101"),
        ({"top_k": 0}, "top_k must be an integer of at least 1, got 0"),
        ({"num_beams": 1, "top_k": 2}, r"top_k \(--top\) must be at most num_beams \(--beams\), 1, got 2"),
        ({"length_penalty": -1.0}, "length_penalty must be from 0 to 10"),
        ({"beams": 2}, "got 'beams'; did you mean 'num_beams'"),
    ):
        with pytest.raises(SightlineError, match=message):
            predictor.predict("eins", **options)
    with pytest.raises(SightlineError, match="inputs must be 1 to 64 to be shown on one page, got 65"):
        predictor.explain(["eins"] * 65)


def test_top_k_is_the_number_of_translations(predictor):
    assert predictor.predict("eins", num_beams=1).alternatives == ()
    assert len(predictor.predict("eins", top_k=2).alternatives) == 1
    assert len(predictor.predict("eins", top_k=7).alternatives) == 6  # more than the config's beams


def test_predictions_are_plain_json(predictor):
    translation = predictor.predict("zwei 👍", top_k=2, attention=True)
    record = json.loads(json.dumps(translation.to_dict()))
    assert record["text"] == str(translation) == translation.text
    assert (record["score"], record["error"], record["skipped_symbols"]) == (translation.score, None, "👍")
    assert tuple(record["tokens"]) == translation.tokens
    assert [set(alternative) for alternative in record["alternatives"]] == [
        {"text", "quality", "score", "tokens", "finished"}
    ]
    assert set(predictor.columns()) <= set(record)
    assert predictor.columns(2)[-3:] == ["text.2", "quality.2", "score.2"]


def test_emoji_outside_the_vocabulary_are_skipped(predictor):
    plain, emoji = predictor.predict(["zwei und drei", "zwei 👍🏽 und ❤️ drei"])
    assert (emoji.text, emoji.skipped_symbols, emoji.unknown_tokens) == (plain.text, "👍🏽❤️", 0)
    assert emoji.summary().endswith("(skipped: 👍🏽❤️)")
    assert "skipped" not in plain.summary()


def test_unknown_words_are_not_another_language(corpus, tmp_path):
    run = train(corpus, tmp_path / "run", "tokenizer.kind=word", "training.steps=2")
    translation = sightline.load(run).predict("Katze Hund")
    assert translation.unknown_tokens == 2
    assert "(2 of 2 tokens unknown)" in translation.summary()


def test_entities_in_translations_are_decoded(trained, monkeypatch):
    predictor = sightline.load(trained)
    monkeypatch.setattr(predictor.tokenizers[1], "decode", lambda ids: "salt &amp; pepper, &notice it")
    assert predictor.predict("eins").text == "salt & pepper, &notice it"


def test_inputs_are_texts_files_or_standard_input(predictor, tmp_path, monkeypatch):
    def parse(*arguments):
        return list(predictor.parse_inputs(arguments))

    (tmp_path / "lines.txt").write_bytes(b"\xef\xbb\xbfdrei\r\n\nvier")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"f\xc3\xbcnf\n \n")))
    arguments = ["eins\nzwei\n\n", str(tmp_path / "lines.txt"), "-"]
    assert parse(*arguments) == ["eins", "zwei", "drei", "vier", "fünf"]
    assert parse(" ") == [" "]
    for text in ("see notes.txt", "x" * 5000 + ".txt", "\0.txt"):  # not names of files
        assert parse(text) == [text]
    for path, state in ((tmp_path, "is a folder"), (tmp_path / "no.txt", "does not exist"), ("a/b.md", "does not")):
        [item] = parse(str(path))
        [failed] = predictor.predict([item])
        assert failed.error.startswith(f"a file of sentences must be a .txt file, got '{path}', which {state}")
    (tmp_path / "blank.txt").write_text("\n \n")
    with pytest.raises(SightlineError, match=r"blank.txt must have at least one line of text, got none"):
        parse(str(tmp_path / "blank.txt"))
    (tmp_path / "latin1.txt").write_bytes("eins\nfünf\n".encode("latin-1"))
    with pytest.raises(SightlineError, match=r"must be UTF-8, got the byte 0xfc in line 2; .*iconv -f LATIN1"):
        parse(str(tmp_path / "latin1.txt"))


def test_a_long_line_is_an_error_of_that_line_only(predictor, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_LINE_CHARS", 50)
    (tmp_path / "lines.txt").write_text(f"eins\n{'ü' * 5000}\nzwei\n{'x' * 51}\n")
    texts = list(predictor.parse_inputs([str(tmp_path / "lines.txt")]))
    assert [len(text) for text in texts] == [4, 51, 4, 51]
    errors = [translation.error for translation in predictor.stream(texts)]
    assert [bool(error) for error in errors] == [False, True, False, True]


def test_predictions_come_before_the_input_ends(predictor):
    consumed = 0

    def texts():
        nonlocal consumed
        while True:
            consumed += 1
            yield "eins"

    stream = predictor.stream(texts(), num_beams=1)
    assert next(stream).error is None
    assert consumed == TranslationPredictor.batch_size


def test_memory_does_not_grow_with_the_input(predictor, tmp_path, monkeypatch):
    """7 MB of text, with a translation that costs nothing."""
    path = tmp_path / "large.txt"
    path.write_text(f"{'siebenundvierzig und noch ein Wort ' * 4}\n" * 50_000)
    monkeypatch.setattr(predictor, "prepare", lambda text: text)
    monkeypatch.setattr(
        predictor, "predict_batch", lambda prepared, **_: [Translation(t, 0.0, (), ()) for t in prepared]
    )
    count = 0
    tracemalloc.start()
    try:
        for _ in predictor.stream(predictor.parse_inputs([str(path)])):
            count += 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 50_000
    assert peak < 3_000_000


def test_other_data_is_evaluated_whole(trained, tmp_path):
    (tmp_path / "more.tsv").write_text("eins\tone\nzwei\ttwo\nvierzehn\tfourteen\n")
    evaluation = sightline.evaluate(trained, str(tmp_path / "more.tsv"), "cpu")
    assert (evaluation.split, evaluation.pairs) == ("full", 3)


def test_loaded_data_is_evaluated(predictor, corpus):
    splits = corpora.load_parallel(corpus)
    assert predictor.evaluation_pairs(splits) == (splits.test, "test")
    other = corpora.TextSplits(corpora.ParallelText(("eins",), ("one",)))
    assert predictor.evaluation_pairs(other) == (other.train, "full")
    with pytest.raises(SightlineError, match=r"data must not be the training data of .*, got loaded data"):
        predictor.evaluation_pairs(corpora.TextSplits(splits.train))


def test_the_own_corpus_is_recognized_by_its_path(predictor, corpus, monkeypatch):
    expected = predictor.evaluation_pairs()
    monkeypatch.chdir(corpus.parent)
    for path in (corpus, f"./{corpus.name}", corpus / ".." / corpus.name):
        assert predictor.evaluation_pairs(path) == expected
    with pytest.raises(SightlineError, match=r"data must not be the training data of .* got '.*train'; pass a test"):
        predictor.evaluation_pairs(f"{corpus.name}/train")
    assert predictor.evaluation_pairs(f"{corpus.name}/test")[1] == "full"


@pytest.fixture
def split_run(tmp_path, monkeypatch):
    """A run whose test set is held out of one file, with an extra source; the current folder has both files."""
    monkeypatch.chdir(tmp_path)
    Path("all.tsv").write_text("".join(f"wort {i}\tword {i}\n" for i in range(60)))
    Path("extra.tsv").write_text("eins\tone\nzwei\ttwo\n")
    changes = [f"data.extra_sources=[{tmp_path / 'extra.tsv'}]", "data.test_fraction=0.2", "tokenizer.vocab_size=300"]
    return sightline.load(train(tmp_path / "all.tsv", tmp_path / "run", "training.steps=2", *changes))


def test_held_out_pairs_are_recognized_by_path_and_by_content(split_run, tmp_path):
    shutil.copy("all.tsv", "copy.tsv")
    for path in ("all.tsv", "./all.tsv", str(tmp_path / "all.tsv"), "copy.tsv"):
        pairs, split = split_run.evaluation_pairs(path)
        assert (len(pairs), split) == (12, "test")
    for text in ("[1]", '{"test": 3, "validation": {}}', "{}"):  # a damaged data.json recognizes nothing
        (split_run.folder / "data.json").write_text(text)
        assert split_run.evaluation_pairs("copy.tsv")[1] == "full"


def test_extra_sources_are_training_data(split_run, tmp_path):
    message = r"data must not be the training data of .*, got 'extra.tsv'"
    with pytest.raises(SightlineError, match=message):
        split_run.evaluation_pairs("extra.tsv")
    Path("folder").mkdir()
    Path("folder/train.tsv").write_text("drei\tthree\n")
    Path("folder/test.tsv").symlink_to(tmp_path / "extra.tsv")
    with pytest.raises(SightlineError, match=r"data must not be the training data of .*, got 'folder'"):
        split_run.evaluation_pairs("folder")


def test_a_missing_corpus_is_reported(split_run):
    Path("all.tsv").unlink()
    with pytest.raises(SightlineError, match=r"the data of .* must exist for an evaluation, got .* with --data PATH"):
        split_run.evaluation_pairs()


@pytest.mark.parametrize("data", [None, "copy.tsv", "all.tsv"])
def test_a_corpus_is_read_once_for_an_evaluation(split_run, monkeypatch, data):
    shutil.copy("all.tsv", "copy.tsv")
    reads, iter_lines = [], corpora.iter_lines
    monkeypatch.setattr(corpora, "iter_lines", lambda path: reads.append(path.name) or iter_lines(path))
    split_run.evaluation_pairs(data)
    assert reads == [data or "all.tsv"]


def test_predict_command(trained, tmp_path):
    result = command("predict", trained, "siebenundvierzig", "zwei", "--show", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    assert re.search(r"^siebenundvierzig: .*[^)]$", result.output, re.M)
    assert "siebenundvierzig → " in (tmp_path / "page.html").read_text()
    (tmp_path / "lines.txt").write_text("eins\n\nzwei\n")
    assert len(command("predict", trained, tmp_path / "lines.txt").output.splitlines()) == 2
    output = command("predict", trained, "-", input="eins\r\nzwei\n\ndrei").output
    assert [line.partition(": ")[0] for line in output.splitlines()] == ["eins", "zwei", "drei"]
    result = command("predict", trained, "zwei", "--format", "csv")
    assert result.output.startswith(
        "input,text,quality,score,finished,unknown_tokens,unfamiliar_words,skipped_symbols,error\n"
    )
    header, row = csv.reader(command("predict", trained, "zwei", "--format", "csv", "--top", "2").stdout.splitlines())
    assert header[-4:] == ["text.2", "quality.2", "score.2", "error"]
    assert float(row[-2]) <= float(row[3])


@pytest.mark.parametrize(("top", "count"), [((), 4), (("--top", 2), 1)])
def test_json_has_the_scores_of_all_beams(trained, tmp_path, top, count):
    for show in ((), ("--show", tmp_path / "page.html")):
        [record] = json.loads(command("predict", trained, "zwei", "--format", "json", *top, *show).stdout)
        scores = [record["score"], *(alternative["score"] for alternative in record["alternatives"])]
        assert len(record["alternatives"]) == count
        assert scores == sorted(scores, reverse=True)


def test_show_and_evaluate_commands(trained, tmp_path):
    result = command("show", trained, "siebenundvierzig", "--out", tmp_path / "figures")
    assert result.exit_code == 0, result.output
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {"training.png", "sentence-1.png", "page.html"}
    assert command("evaluate", trained).output.startswith("test set, 13 pairs, 5 beams\nBLEU  ")
    shutil.copytree(trained, tmp_path / "without log")
    (tmp_path / "without log" / "metrics.jsonl").unlink()
    folder = tmp_path / "without log" / "figures"
    assert f"nothing was written to {folder}; give an input" in command("show", tmp_path / "without log").output


@pytest.mark.parametrize("top", [1, 3, 7])
def test_top_is_the_number_of_printed_translations(trained, tmp_path, top):
    lines = command("predict", trained, "zwei", "--top", top).output.splitlines()
    assert len(lines) == top
    shown = command("predict", trained, "zwei", "--top", top, "--show", tmp_path / "page.html").output.splitlines()
    assert shown == [*lines, f"wrote {tmp_path / 'page.html'}"]


def test_too_many_translations_are_refused_in_one_line(trained):
    result = command("predict", trained, "zwei", "--top", 101)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", "error: top_k must be at most 100, got 101\n")


def test_a_bad_text_is_printed_to_stderr_and_listed_on_the_page(trained, tmp_path):
    page = tmp_path / "page.html"
    result = command("predict", trained, KOREAN, "--show", page)
    assert (result.exit_code, result.stdout, page.exists()) == (2, "", False)
    result = command("predict", trained, KOREAN, "eins", "--show", page)
    assert (result.exit_code, len(result.stdout.splitlines())) == (2, 2)
    assert result.stderr.startswith("error: text must be in the source language 'de'")
    assert page.read_text().count("<b>좋은 저녁</b>: text must be in the source language") == 1


def test_control_characters_are_not_printed(trained):
    assert "\x1b" not in command("predict", trained, "\x1b[31m eins").output
    assert command("predict", trained, "").exit_code == 2


def test_a_run_is_copied_with_its_tokenizers(predictor, tmp_path):
    copy = sightline.load(predictor.save_pretrained(tmp_path / "copy"))
    assert copy.predict("dreizehn") == predictor.predict("dreizehn")
    names = {path.name for path in (tmp_path / "copy").glob("tokenizer*")}
    assert names == set(tokenizer_files(predictor.config.tokenizer))


def edit(path, old, new):
    text = path.read_text()
    assert re.search(old, text, re.M), old
    path.write_text(re.sub(old, new, text, count=1, flags=re.M))


def remove_last_token(path):
    content = json.loads(path.read_text())
    vocab = content["model"]["vocab"]
    last = max(vocab, key=vocab.get)
    del vocab[last]
    content["model"]["merges"] = [merge for merge in content["model"]["merges"] if "".join(merge) != last]
    path.write_text(json.dumps(content))


def config_edit(old, new, times=1):
    return lambda run: [edit(run / "config.yaml", old, new) for _ in range(times)]


VOCAB_EDIT = r"^    source_vocab_size: \d+$", "    source_vocab_size: 1000000"
DAMAGES = {
    "large embed_dim": config_edit("^    embed_dim: 32$", "    embed_dim: 16000"),
    "many layers": config_edit("^    encoder_layers: 1$", "    encoder_layers: 16000"),
    "large vocabulary": config_edit(*VOCAB_EDIT),
    "another model": config_edit("^  kind: transformer$", "  kind: rnn"),
    "another tokenizer": config_edit("^  kind: bpe$", "  kind: word"),
    "no tokenizer": lambda run: (run / "tokenizer.source.json").unlink(),
    "nested tokenizer": lambda run: (run / "tokenizer.source.json").write_text("[" * 1_000_000),
    "large tokenizer": lambda run: (run / "tokenizer.source.json").write_text(" " * (1 << 25)),
    "binary tokenizer": lambda run: (run / "tokenizer.source.json").write_bytes(b"\xff\xfe"),
    "fewer tokens": lambda run: remove_last_token(run / "tokenizer.source.json"),
    "other weights": lambda run: save_file({"a": torch.ones(3)}, run / "model.safetensors"),
    "missing tensor": lambda run: save_file(
        dict(list(load_file(run / "model.safetensors").items())[1:]), run / "model.safetensors"
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_refused_quickly_without_memory(run, damage):
    DAMAGES[damage](run)
    memory, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(SightlineError, match="must"):
        sightline.load(run)
    assert time.process_time() - start < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 300_000  # KiB
