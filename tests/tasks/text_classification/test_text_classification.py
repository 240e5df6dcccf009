"""A text classifier through the commands, from scratch and from a masked language model; `--from` for every task."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
import tokenizers
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

import sightline
from number_run import write_corpus
from sightline.cli import app
from sightline.data.text.corpora import TextSplits
from sightline.data.text.labeled import LabeledText
from sightline.errors import SightlineError, SightlineWarning
from sightline.run_config import resolve_config
from sightline.tasks.text_classification.config import TextClassificationTaskConfig
from sightline.tasks.text_classification.task import TextClassificationTask
from sightline.tasks.text_data import earlier_tokenizer
from sightline.training.task import BatchSlice

MODEL = ("model.embed_dim=16", "model.ffn_dim=24", "model.depth=1")
TRAINING = (
    "training.batch_size=512",
    "training.device=cpu",
    "training.learning_rate=1e-2",
    "training.evaluate_every=20",
)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text_classification") / "pretrained"
    sightline.train(None, ["task=masked_lm", *MODEL, *TRAINING, "training.steps=2", f"out={folder}"], quiet=True)
    return folder


@pytest.fixture(scope="module")
def run(pretrained):
    folder = pretrained.with_name("topics")
    invoke("train", "task=text_classification", "--from", pretrained, *TRAINING, "training.steps=40", f"out={folder}")
    return folder


def invoke(*arguments, status=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output
    return result.output


def test_a_classifier_from_a_masked_language_model_has_its_encoder_and_tokenizer(pretrained, run):
    config = sightline.config.read(run / "config.yaml")
    assert config["model"]["embed_dim"] == 16  # from the earlier run, not from the starter config
    assert config["start_from"] == str(pretrained)
    assert (run / "tokenizer.json").read_bytes() == (pretrained / "tokenizer.json").read_bytes()
    evaluation = sightline.evaluate(run, device="cpu")
    assert evaluation.accuracy > 0.5
    assert (evaluation.split, evaluation.texts) == ("test", 500)
    assert "texts" in evaluation.summary()


def test_weights_are_copied_before_the_first_step(pretrained, tmp_path):
    message = invoke(
        "train", "task=text_classification", "--from", pretrained, *TRAINING, "training.steps=1",
        "training.learning_rate=1e-9", f"out={tmp_path / 'run'}",
    )  # fmt: skip
    assert "starting from" in message
    assert "new: classifier.weight, classifier.bias" in message
    ours, theirs = (sightline.load(folder).model.encoder.state_dict() for folder in (tmp_path / "run", pretrained))
    for name, tensor in theirs.items():
        assert torch.allclose(ours[name], tensor, atol=1e-6), name


def test_head_is_kept_for_the_same_classes_and_new_for_others(run, tmp_path):
    changes = [*TRAINING, "training.steps=1", "training.learning_rate=1e-9"]
    same = sightline.train(
        None, ["task=text_classification", *changes, f"out={tmp_path / 'same'}"], start_from=run, quiet=True
    )
    assert torch.allclose(
        sightline.load(same.folder).model.classifier.weight, sightline.load(run).model.classifier.weight
    )
    table = tmp_path / "other.tsv"
    table.write_text("".join(f"A dog runs {i}.\t{'abcd'[i % 4]}\n" for i in range(20)), encoding="utf-8")
    other = sightline.train(
        None, ["task=text_classification", *changes, f"data.source={table}", f"out={tmp_path / 'other'}"],
        start_from=run, quiet=True,
    )  # fmt: skip
    weight = sightline.load(other.folder).model.classifier.weight
    assert weight.shape == (4, 16)
    assert not torch.allclose(weight, sightline.load(run).model.classifier.weight)


def test_a_started_run_is_resumed_without_the_earlier_run(pretrained, tmp_path):
    folder, earlier = tmp_path / "run", tmp_path / "earlier"
    shutil.copytree(pretrained, earlier)
    changes = ["task=text_classification", *TRAINING, "training.steps=2", f"out={folder}"]
    sightline.train(None, changes, start_from=earlier, quiet=True)
    shutil.rmtree(earlier)
    assert sightline.train(folder, ["training.steps=3"], resume=True, quiet=True).steps == 3
    assert (folder / "tokenizer.json").read_bytes() == (pretrained / "tokenizer.json").read_bytes()
    with pytest.raises(SightlineError, match="start_from must be"):
        sightline.train(folder, ["training.steps=4", "start_from=null"], resume=True, quiet=True)


def test_the_tokenizer_is_that_of_the_named_run_beside_another_one(pretrained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pretrained, tmp_path / "runs")
    other = json.loads((pretrained / "tokenizer.json").read_text())
    other["model"]["vocab"]["zebra"] = len(other["model"]["vocab"])
    (tmp_path / "runs" / "tokenizer.json").write_text(json.dumps(other))
    task_config, _ = resolve_config(None, ["task=text_classification", f"start_from={pretrained}"])
    tokenizer = earlier_tokenizer(task_config)
    assert len(tokenizer) == len(other["model"]["vocab"]) - 1


def test_a_model_of_another_kind_is_refused(pretrained, tmp_path):
    with pytest.raises(SightlineError, match=r"start_from must be a run with a model like that of task few_shot, got"):
        sightline.train(None, ["task=few_shot", f"out={tmp_path / 'run'}"], start_from=pretrained)
    with pytest.raises(SightlineError, match=r"tokenizer must be that of .*leave the section tokenizer out"):
        sightline.train(
            None,
            ["task=text_classification", "tokenizer.kind=character", f"out={tmp_path / 'run'}"],
            start_from=pretrained,
        )


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("image_classification", ["training.batch_size=32", "model.embed_dim=16", "model.depth=1"]),
        (
            "few_shot",
            ["training.batch_size=2", "model.backbone_channels=[8,8,8,8]", "evaluation.selection_episodes=9"],
        ),
        ("translation", ["training.batch_size=256", "model.kind=rnn", "model.rnn.hidden_size=8", "data.max_tokens=64"]),
    ],
)
def test_from_works_for_other_tasks(task, changes, tmp_path):
    common = [f"task={task}", "training.device=cpu", "training.steps=1"]
    if task == "translation":
        corpus = write_corpus(tmp_path / "corpus", train=60, validation=5, test=11, max_chars=24)
        common.append(f"data.source={corpus}")
    sightline.train(None, [*common, *changes, f"out={tmp_path / 'first'}"], quiet=True)
    limits = [change for change in changes if not change.startswith("model.")]
    output = invoke("train", *common, *limits, "--from", tmp_path / "first", f"out={tmp_path / 'second'}")
    new = "classifier.weight, classifier.bias" if task == "few_shot" else "none"  # the auxiliary head starts anew
    assert f"new: {new}" in output
    configs = [sightline.config.read(tmp_path / name / "config.yaml") for name in ("first", "second")]
    assert configs[0]["model"] == configs[1]["model"]


def test_predictions_compare_page_and_figures(run, tmp_path):
    page = tmp_path / "page.html"
    output = invoke("predict", run, "Two ducks swim in the sea.", "--show", page, "--device", "cpu")
    assert "Two ducks swim in the sea.: " in output
    assert page.is_file()
    record = json.loads(invoke("predict", run, "A dog runs.", "--format", "json", "--device", "cpu"))
    record = record[0] if isinstance(record, list) else record
    assert record["tokens"] == ["[CLS]", "a", "dog", "runs", ".", "[SEP]"]
    assert sum(record["scores"].values()) == pytest.approx(1)
    assert "McNemar" in invoke("compare", run, run, "--device", "cpu")
    invoke("show", run, "A dog runs.", "--out", tmp_path / "figures")
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"training.png", "text-1.png", "page.html"}


def test_files_of_texts_are_read_or_refused(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("texts.tsv").write_text("A dog runs.\tfarm\n")
    Path("texts.txt.gz").write_bytes(gzip.compress(b"A dog runs.\nA man sits.\n"))
    result = CliRunner().invoke(app, ["predict", str(run), "texts.tsv", "missing.csv", "texts.txt.gz", "old.gz"])
    assert result.exit_code == 2
    rule = "a file of sentences must be a .txt file, got "
    assert f"{rule}'texts.tsv', which is another file; write one text per line to a .txt file" in result.stderr
    for name in ("missing.csv", "old.gz"):
        assert f"{rule}{name!r}, which does not exist" in result.stderr
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == ["A dog runs.", "A man sits."]


def test_texts_that_are_cut_are_reported_once(run):
    long = "dog " * 50
    result = CliRunner().invoke(app, ["predict", str(run), "A dog runs.", long, long, "--format", "jsonl"])
    assert result.exit_code == 0
    assert [json.loads(line)["cut_tokens"] for line in result.stdout.splitlines()] == [0, 20, 20]
    predictor = sightline.load(run)
    with pytest.warns(SightlineWarning, match="is cut"):
        prepared = predictor.prepare(long)
    assert predictor._without_tokens(prepared, frozenset([1])).num_cut == 20
    assert result.stderr.count("warning: a text of 50 tokens is cut to 30, as in training (data.max_tokens)") == 1


def test_unknown_words_are_counted(run):
    known, unknown = sightline.load(run).predict(["a dog runs", "xyzzy dog plugh"])
    assert (known.unknown_tokens, unknown.to_dict()["unknown_tokens"]) == (0, 2)


def test_an_exported_classifier_states_how_much_of_a_text_it_reads(run, tmp_path):
    sightline.export(run, tmp_path / "out", format="torch")
    metadata = json.loads((tmp_path / "out" / "export.json").read_text())
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    tokenizer.enable_truncation(metadata["max_input_tokens"])
    text, special = "a dog runs in the park " * 9, metadata["special_ids"]
    ids = torch.tensor([[special["bos"], *tokenizer.encode(text, add_special_tokens=False).ids, special["eos"]]])
    with (tmp_path / "out" / "model.pt2").open("rb") as file:
        logits = torch.export.load(file).module()(input_ids=ids, attention_mask=torch.ones_like(ids, dtype=torch.bool))
    with pytest.warns(SightlineWarning, match="is cut to 30"):
        scores = sightline.load(run).predict(text).scores
    assert_close(logits[0].softmax(-1).tolist(), [scores[name] for name in metadata["classes"]], atol=1e-4, rtol=0)


def test_training_says_how_many_lines_are_cut(tmp_path):
    path = tmp_path / "texts.tsv"
    path.write_text("".join(f"{'yes ' * (2 + 30 * (i % 3 == 0))}\t{'ab'[i % 2]}\n" for i in range(30)))
    changes = [*MODEL, *TRAINING, "training.steps=1", "data.validation_fraction=0", f"data.source={path}"]
    output = invoke("train", "task=text_classification", *changes, f"out={tmp_path / 'run'}")
    assert "10 of 30 training lines are longer than 32 tokens (data.max_tokens) and are cut" in output


def test_a_wrong_name_of_the_run_to_start_from_is_refused(tmp_path):
    output = invoke("train", "task=text_classification", "--from", tmp_path / "nosuch", status=2)
    assert "--from (start_from) must be the folder of a trained model, or a pretrained model, one of" in output
    assert "nosuch'; there is no such folder" in output
    assert "the folder has no config.yaml" in invoke("train", "task=masked_lm", "--from", tmp_path, status=2)


def make_task():
    starter = TextClassificationTaskConfig.starter()
    text = LabeledText(tuple(f"dog {'runs ' * (i % 7)}" for i in range(41)), tuple("ab"[i % 2] for i in range(41)))
    return TextClassificationTask(starter, TextSplits(text, text.take(range(13))))


def test_micro_batches_add_up_and_validation_is_divided():
    task = make_task()
    task.model.eval()
    losses = []
    for world_size, micro_batches in ((1, 1), (2, 1), (1, 3)):
        slices = [BatchSlice(rank, world_size, micro_batches) for rank in range(world_size)]
        with torch.no_grad():
            losses.append(sum(float(task.loss(task.model, b)) for s in slices for b in next(task.batches(1, 96, s))))
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)
    with torch.no_grad():
        alone = task.evaluate(task.model, BatchSlice())
        shares = [task.evaluate(task.model, BatchSlice(rank, 3)) for rank in range(3)]
    for name, value in alone.items():
        assert torch.allclose(value, sum(share[name] for share in shares))


def test_unknown_labels_are_refused():
    text = LabeledText(("x", "y", "z"), ("a", "b", "c"))
    with pytest.raises(SightlineError, match="labels must be classes of the training set, a, b, got 'c'"):
        TextClassificationTask(TextClassificationTaskConfig.starter(), TextSplits(text.take([0, 1]), text.take([2])))


def test_a_class_of_one_text_stays_in_the_training_set():
    texts = tuple(f"text {i}" for i in range(24))
    corpus = LabeledText(texts, tuple(f"class {i}" if i < 12 else "common" for i in range(24)))
    data = TextClassificationTaskConfig().data
    for seed in range(5):
        splits = data.split(corpus, 0.0, 0.5, seed)
        held_out = splits.validation.labels if splits.validation else ()
        assert {*held_out} <= {*splits.train.labels} == {*corpus.labels}
        assert len(splits.train) + len(held_out) == 24


def test_data_that_changed_after_training_is_not_evaluated_as_held_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{'yes' if i % 2 else 'no'} number {i}\t{'yes' if i % 2 else 'no'}" for i in range(60)]
    path = tmp_path / "texts.tsv"
    path.write_text("\n".join(rows))
    changes = [*MODEL, *TRAINING, "training.steps=2", "tokenizer.kind=word", f"data.source={path}", "out=run"]
    sightline.train(None, ["task=text_classification", *changes], quiet=True)
    assert sightline.evaluate("run", device="cpu").split == "validation"
    path.write_text("\n".join(rows[7:]))
    with pytest.raises(SightlineError, match="must be as in training to hold out the same validation set"):
        sightline.evaluate("run", device="cpu")
