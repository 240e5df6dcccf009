import json
import re
import resource
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import sightline
from sightline.cli import app
from sightline.data.text.corpora import load_parallel
from sightline.tasks.translation import predictor as translation_predictor
from sightline.tasks.translation.evaluate import Score, scored

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


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder with aligned files: numbers below a hundred or so."""
    folder = tmp_path_factory.mktemp("corpus")
    train = load_parallel("numbers").train
    short = [(s, t) for s, t in zip(train.source, train.target, strict=True) if len(s) < 32]
    for name, some in (("train", short[:200]), ("val", short[200:209]), ("test", short[209:222])):
        (folder / f"{name}.de").write_text("".join(f"{s}\n" for s, _ in some))
        (folder / f"{name}.en").write_text("".join(f"{t}\n" for _, t in some))
    return folder


@pytest.fixture(scope="module", params=["rnn", "rnn_attention", "transformer"])
def each(request, corpus, tmp_path_factory):
    """A run of each kind."""
    out = tmp_path_factory.mktemp("runs") / request.param
    words = [*SMALL, f"data.source={corpus}", f"model.kind={request.param}", f"out={out}"]
    if request.param == "transformer":
        words += ["tokenizer.shared_vocab=true", "model.transformer.tie_embeddings=all"]
    return sightline.train(None, words, quiet=True).folder


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "one"
    return sightline.train(None, [*SMALL, f"data.source={corpus}", f"out={out}"], quiet=True).folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))


TEXTS = ["siebenundvierzig", "eins", "dreihundertelf", "좋은 👩‍👩‍👧 저녁", "Zwei <s> \x00 \ud800"]


def test_every_kind_translates_whatever_it_is_given(each):
    predictor = sightline.load(each)
    answers = predictor.predict(TEXTS)
    assert [answer.source_tokens[-1] for answer in answers] == ["</s>"] * 5
    for text, answer in zip(TEXTS, answers, strict=True):
        alone = predictor.predict(text)
        assert alone.text == answer.text
        assert alone.score == pytest.approx(answer.score, abs=1e-4)
        assert answer.score <= 0
        assert len(answer.others) == 4
        scores = [answer.score, *(other.score for other in answer.others)]
        assert scores == sorted(scores, reverse=True)
    assert [bool(answer.unknown) for answer in answers] == [False, False, False, True, True]
    assert predictor.predict([]) == []


def test_every_kind_is_judged_by_its_test_set(each):
    score = sightline.evaluate(each, device="cpu")
    assert (score.split, score.pairs, score.beams) == ("test", 13, 5)
    assert sum(group["pairs"] for group in score.by_length) == 13
    assert "tok:13a" in score.signature
    kept = json.loads((each / "evaluation.json").read_text())
    assert kept["bleu"] == score.bleu
    assert score.sentence() in (each / "README.md").read_text()
    assert sightline.evaluate(each, device="cpu") == score


def test_a_model_without_attention_says_so(each):
    predictor = sightline.load(each)
    if predictor.recipe.model.kind == "rnn":
        with pytest.raises(ValueError, match=r"model.kind must be one with attention for it to be shown, got 'rnn'"):
            predictor.page(["eins"])
    else:
        assert "eins →" in predictor.page(["eins"]).html


def test_attention_has_a_row_for_every_token_and_no_filling(trained):
    predictor = sightline.load(trained)
    answers = predictor.predict(TEXTS, attention=True)
    assert all(len(answer.others) == 4 for answer in answers)
    one_by_one = [predictor.predict([text], attention=True)[0] for text in TEXTS]
    for answer, alone in zip(flat(answers), flat(one_by_one), strict=True):
        assert {seen.kind for seen in answer.attention} == {"encoder", "decoder", "cross"}
        for seen, other in zip(answer.attention, alone.attention, strict=True):
            sizes = {"encoder": answer.source_tokens, "decoder": answer.tokens, "cross": answer.tokens}
            keys = answer.tokens if seen.kind == "decoder" else answer.source_tokens
            assert seen.weights.shape[2:] == (len(sizes[seen.kind]), len(keys))
            torch.testing.assert_close(seen.weights.sum(-1), torch.ones_like(seen.weights.sum(-1)))
            torch.testing.assert_close(seen.weights, other.weights, atol=1e-5, rtol=1e-4)
    assert predictor.predict("eins").attention is None


def flat(answers):
    """Every hypothesis."""
    return [one for answer in answers for one in (answer, *answer.others)]


def test_what_is_no_sentence_is_refused_by_name(trained):
    predictor = sightline.load(trained)
    for text, message in (
        ("", "text must hold at least one word, got ''"),
        (" \n\t", "text must hold at least one word"),
        ("eins " * 200, "text must be less than 128 tokens, as the model has learned from, got .*one by one"),
        ("x" * 100_001, "text must be at most 100,000 characters, got 100,001"),
        (7, "text must be a string, got int"),
        (None, "text must be a string, got NoneType"),
    ):
        with pytest.raises(ValueError, match=message):
            predictor.predict(text)
    with pytest.raises(ValueError, match="beams must be at most 100, got 101"):
        predictor.predict("eins", beams=101)
    with pytest.raises(ValueError, match="texts must be 1 to 64 to be shown on one page, got 65"):
        predictor.look(["eins"] * 65)


def test_one_beam_is_greedy_and_n_best_widens_the_search(trained):
    predictor = sightline.load(trained)
    assert predictor.predict("eins", beams=1).others == ()
    assert len(predictor.predict("eins", n_best=7).others) == 6
    assert len(predictor.predict("eins", n_best=2).others) == 1
    with pytest.raises(ValueError, match="n_best must be at most beams=1, got 2"):
        predictor.predict("eins", beams=1, n_best=2)


def test_what_cannot_be_the_name_of_a_file_is_a_sentence(trained):
    predictor = sightline.load(trained)
    for word in ("see notes.txt", "x" * 5000 + ".txt", "\0.txt"):
        assert predictor.read([word]) == [word]


def test_other_data_of_the_same_form_can_judge(trained, tmp_path):
    (tmp_path / "more.tsv").write_text("eins\tone\nzwei\ttwo\nvierzehn\tfourteen\n")
    score = sightline.evaluate(trained, str(tmp_path / "more.tsv"), "cpu")
    assert (score.split, score.pairs) == ("whole", 3)


def test_its_own_data_by_another_path_are_its_own_and_what_it_has_learned_is_no_test(
    trained, corpus, tmp_path, monkeypatch
):
    own = sightline.load(trained).evaluation_split()
    monkeypatch.chdir(corpus.parent)
    for path in (corpus, f"./{corpus.name}", corpus / ".." / corpus.name):
        assert sightline.load(trained).evaluation_split(str(path)) == own
    with pytest.raises(
        ValueError, match=r"data must be other than what .* has learned from, got '.*train'; name a test"
    ):
        sightline.load(trained).evaluation_split(f"{corpus.name}/train")
    assert sightline.load(trained).evaluation_split(f"{corpus.name}/test")[1] == "whole"
    (tmp_path / "all.tsv").write_text("".join(f"wort {i}\tword {i}\n" for i in range(60)))
    (tmp_path / "own.tsv").write_text("eins\tone\nzwei\ttwo\n")
    words = [f"data.source={tmp_path / 'all.tsv'}", f"data.more=[{tmp_path / 'own.tsv'}]", "data.test=0.2"]
    run = sightline.train(
        None, [*SMALL, *words, "tokenizer.vocab_size=300", f"out={tmp_path / 'run'}"], quiet=True
    ).folder
    monkeypatch.chdir(tmp_path)
    for path in ("all.tsv", "./all.tsv", str(tmp_path / "all.tsv")):
        pairs, split = sightline.load(run).evaluation_split(path)
        assert (len(pairs), split) == (12, "test")
    with pytest.raises(ValueError, match=r"data must be other than what .* has learned from, got 'own.tsv'"):
        sightline.load(run).evaluation_split("own.tsv")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/train.tsv").write_text("drei\tthree\n")
    (tmp_path / "folder/test.tsv").symlink_to(tmp_path / "own.tsv")
    with pytest.raises(ValueError, match=r"data must be other than what .* has learned from, got 'folder'"):
        sightline.load(run).evaluation_split("folder")
    shutil.copy("all.tsv", "elsewhere.tsv")  # known by what was held out of it
    pairs, split = sightline.load(run).evaluation_split("elsewhere.tsv")
    assert (len(pairs), split) == (12, "test")
    for text in ("[1]", '{"test": 3, "validation": {}}', "{}"):  # a run from elsewhere may bring anything
        (run / "data.json").write_text(text)
        assert sightline.load(run).evaluation_split("elsewhere.tsv")[1] == "whole"
    (tmp_path / "all.tsv").unlink()
    with pytest.raises(ValueError, match=r"the data of .* must be there to judge by, got .* with --data PATH"):
        sightline.load(run).evaluation_split()


def test_scores_are_those_of_sacrebleu_and_groups_are_by_words():
    from sacrebleu import BLEU, CHRF

    sources = ["a b", "a b c d e f", "a " * 60]
    texts = ["The cat sat there.", "A dog ran to the park.", "x y z w"]
    wrote = ["the cat sat there .", "A dog ran to a park.", "x y z w"]
    score = scored("test", sources, texts, wrote, beams=3, length_penalty=0.5)
    assert score.bleu == BLEU().corpus_score(wrote, [texts]).score
    assert score.bleu_lowercase == BLEU(lowercase=True).corpus_score(wrote, [texts]).score > score.bleu
    assert score.chrf == CHRF().corpus_score(wrote, [texts]).score
    groups = [(group["least"], group["most"], group["pairs"]) for group in score.by_length]
    assert groups == [(1, 5, 1), (6, 10, 1), (51, None, 1)]
    assert score.by_length[-1]["bleu"] == pytest.approx(100)
    assert score.lines()[-1].split() == ["51+", "100.0", "1", "pairs"]
    assert isinstance(score, Score)
    json.dumps(score.by_length, allow_nan=False)


def test_a_model_that_writes_lower_case_is_judged_by_lower_case_first(corpus, tmp_path):
    words = [*SMALL, f"data.source={corpus}", f"out={tmp_path / 'run'}", "tokenizer.lowercase=true", "training.steps=1"]
    small = sightline.evaluate(sightline.train(None, words, quiet=True).folder, device="cpu")
    assert small.lowercase
    assert "; the model writes lower case. `" in small.sentence()
    assert (tmp_path / "run/README.md").read_text().count(small.sentence()) == 1
    lowercase, cased, chrf = small.lines()[1:4]
    assert lowercase.startswith("BLEU, lower-cased  ")
    assert cased.startswith(f"BLEU               {small.bleu:.1f}  cased, but the model writes lower case  (nrefs:1|")
    assert chrf == f"chrF               {small.chrf:.1f}  cased, but the model writes lower case"


def test_of_a_model_that_writes_as_it_has_read_nothing_is_said_of_case():
    score = scored("test", ["a b"], ["Two cats sat."], ["two cats sat."], beams=1, length_penalty=1.0)
    assert "lower case" not in "".join([*score.lines(), score.sentence()])
    assert score.lines()[1].startswith("BLEU               ")
    assert f"BLEU {score.bleu:.1f} cased, {score.bleu_lowercase:.1f} lower-cased (13a)" in score.sentence()


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_command_translates_and_draws(trained, tmp_path):
    answer = command("predict", trained, "siebenundvierzig", "zwei", "--show", tmp_path / "page.html")
    assert answer.exit_code == 0, answer.output
    assert re.search(r"^siebenundvierzig: .+  \(-\d+\.\d\d\)$", answer.output, re.M)
    page = (tmp_path / "page.html").read_text()
    assert "siebenundvierzig → " in page
    (tmp_path / "lines.txt").write_text("eins\n\nzwei\n")
    assert len(command("predict", trained, tmp_path / "lines.txt").output.splitlines()) == 2
    drawn = command("show", trained, "siebenundvierzig", "--out", tmp_path / "pictures")
    assert drawn.exit_code == 0, drawn.output
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert names == {"training.png", "sentence-1.png", "page.html"}
    assert command("evaluate", trained).output.startswith("test set, 13 pairs, beam 5\nBLEU  ")


@pytest.mark.parametrize("top", [1, 3, 7])
def test_the_command_tells_as_many_translations_as_are_asked_for(trained, tmp_path, top):
    """Also more than the recipe has beams, which are 5, and beside a page."""
    told = command("predict", trained, "zwei", "--top", top).output.splitlines()
    assert len(told) == top
    shown = command("predict", trained, "zwei", "--top", top, "--show", tmp_path / "page.html").output.splitlines()
    assert shown == [*told, f"wrote {tmp_path / 'page.html'}"]


def test_what_cannot_be_read_is_refused_and_the_rest_is_not(trained):
    answer = command("predict", trained, "👩‍👩‍👧", "siebenundvierzig")
    assert answer.exit_code == 2
    assert answer.stdout.startswith("siebenundvierzig: ")
    assert len(answer.stdout.splitlines()) == 1
    assert re.match(r"error: text must be of the language the model reads, 'de', got \d+ of \d+ tokens", answer.stderr)


def test_what_cannot_be_read_is_on_no_page(trained, tmp_path):
    page = tmp_path / "page.html"
    answer = command("predict", trained, "좋은 저녁", "--show", page)
    assert (answer.exit_code, answer.stdout, page.exists()) == (2, "", False)
    answer = command("predict", trained, "좋은 저녁", "eins", "--show", page)
    assert (answer.exit_code, len(answer.stdout.splitlines())) == (2, 2)
    assert "좋" not in page.read_text()
    assert sightline.load(trained).predict("좋은 저녁").problem


def test_a_word_that_is_unknown_may_be_of_the_language(corpus, tmp_path):
    words = [f"data.source={corpus}", "tokenizer.kind=word", "training.steps=2", f"out={tmp_path / 'run'}"]
    run = sightline.train(None, [*SMALL, *words], quiet=True).folder
    answer = sightline.load(run).predict("Katze Hund")
    assert (answer.unknown, answer.problem) == (2, None)


def test_emoji_are_left_out_and_told(trained):
    plain, joyful = sightline.load(trained).predict(["zwei und drei", "zwei 👍🏽 und ❤️ drei"])
    assert (joyful.text, joyful.left_out, joyful.unknown) == (plain.text, "👍🏽❤️", 0)
    assert joyful.told().endswith("(left out: 👍🏽❤️)")
    assert "left out" not in plain.told()


def test_sentences_come_in_one_to_a_line(trained, tmp_path):
    texts = ["eins", "zwei", "drei"]
    assert sightline.load(trained).read(["eins\nzwei\n\n", "drei"]) == texts
    told = CliRunner().invoke(app, ["predict", str(trained), "-"], input="eins\r\nzwei\n\ndrei").output
    assert [line.partition(": ")[0] for line in told.splitlines()] == texts
    assert sightline.load(trained).read([" "]) == [" "]
    (tmp_path / "blank.txt").write_text("\n \n")
    with pytest.raises(ValueError, match=r"blank.txt must hold at least one sentence, got none"):
        sightline.load(trained).read([str(tmp_path / "blank.txt")])


def test_entities_of_the_data_are_read_as_what_they_stand_for(trained, monkeypatch):
    predictor = sightline.load(trained)
    monkeypatch.setattr(predictor.tokenizers[1], "decode", lambda ids: "salt &amp; pepper, &notice it")
    assert predictor.predict("eins").text == "salt & pepper, &notice it"


def test_more_translations_than_can_be_searched_for_are_refused(trained):
    answer = command("predict", trained, "zwei", "--top", 101)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert answer.stderr == "error: translations of a sentence must be at most 100, got 101; ask for fewer\n"


def test_what_the_terminal_could_stumble_over_is_replaced(trained):
    answer = command("predict", trained, "\x1b[31m eins")
    assert "\x1b" not in answer.output
    assert command("predict", trained, "").exit_code == 2


def test_a_run_travels_with_its_tokenizers(trained, tmp_path):
    predictor = sightline.load(trained)
    copy = sightline.load(predictor.save_pretrained(tmp_path / "copy"))
    assert copy.predict("dreizehn") == predictor.predict("dreizehn")
    assert {path.name for path in (tmp_path / "copy").glob("tokenizer*")} == set(translation_predictor.APART)


def edit(path, old, new):
    text = path.read_text()
    assert re.search(old, text, re.M), old
    path.write_text(re.sub(old, new, text, count=1, flags=re.M))


def hostile(run, what):
    config, tokenizer, weights = run / "config.yaml", run / "tokenizer.source.json", run / "model.safetensors"
    changes = {
        "a huge width": lambda: edit(config, "^    width: 32$", "    width: 16000"),
        "a huge depth": lambda: edit(config, "^    encoder_layers: 1$", "    encoder_layers: 16000"),
        "a huge vocabulary": lambda: edit(config, r"^    source_vocab_size: \d+$", "    source_vocab_size: 1000000"),
        "a huge vocabulary of both": lambda: (
            edit(config, r"^    source_vocab_size: \d+$", "    source_vocab_size: 1000000"),
            edit(config, r"^    source_vocab_size: \d+$", "    source_vocab_size: 1000000"),
        ),
        "another kind": lambda: edit(config, "^  kind: transformer$", "  kind: rnn"),
        "other tokens": lambda: edit(config, "^  kind: bpe$", "  kind: word"),
        "no tokenizer": tokenizer.unlink,
        "a tokenizer of brackets": lambda: tokenizer.write_text("[" * 1_000_000),
        "a large tokenizer": lambda: tokenizer.write_text(" " * (1 << 25)),
        "a tokenizer that is no JSON": lambda: tokenizer.write_bytes(b"\xff\xfe"),
        "fewer tokens": lambda: shrink(tokenizer),
        "other weights": lambda: save_file({"a": torch.ones(3)}, weights),
        "a tensor less": lambda: save_file(dict(list(load_file(weights).items())[1:]), weights),
    }
    if what is None:
        return list(changes)
    return changes[what]()


def shrink(path):
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.get)
    del vocabulary[last]
    content["model"]["merges"] = [merge for merge in content["model"]["merges"] if "".join(merge) != last]
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("what", hostile(Path(), None))
def test_a_folder_that_lies_is_refused_quickly_and_costs_no_memory(run, what):
    hostile(run, what)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(ValueError, match="must"):
        sightline.load(run)
    assert time.process_time() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB
