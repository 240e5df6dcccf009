"""A masked language model through the commands: train, evaluate, predict, compare, ship."""

import json
import math
import re

import pytest
import torch
from typer.testing import CliRunner

import sightline
from sightline import shipping, zoo
from sightline.cli import app
from sightline.data.text.corpora import MonolingualText, TextSplits
from sightline.data.text.tokenized import encode_sentences
from sightline.errors import SightlineError
from sightline.tasks.masked_lm.config import MaskedLMTaskConfig, SentenceData
from sightline.tasks.masked_lm.evaluate import pseudo_log_likelihoods
from sightline.tasks.masked_lm.task import MaskedLMTask
from sightline.training.task import BatchSlice

SMALL = (
    "task=masked_lm", "model.embed_dim=16", "model.ffn_dim=24", "model.depth=1", "training.steps=120",
    "training.batch_size=512", "training.evaluate_every=30", "training.device=cpu", "training.learning_rate=1e-2",
)  # fmt: skip
TEXT = "Two dogs run [MASK] the [MASK]."


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masked_lm") / "run"
    sightline.train(None, [*SMALL, f"out={folder}"], quiet=True)
    sightline.evaluate(folder, device="cpu")
    return folder


@pytest.fixture(scope="module")
def predictor(run):
    return sightline.load(run)


def invoke(*arguments, status=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output
    return result.output


def test_training_learns_and_evaluation_reports_accuracy_and_pseudo_perplexity(run):
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert evaluation["split"] == "test"
    assert evaluation["accuracy"] > 0.2  # the most frequent token, the full stop, has about 0.13
    assert 1 < evaluation["pseudo_perplexity"] < 60  # about 120 without training
    assert evaluation["lines"] == evaluation["scored_lines"] == 500
    assert "masked accuracy" in evaluation["report"]


def test_best_words_of_several_masks_with_probabilities(predictor):
    filled = predictor.predict(TEXT, top_k=7)
    assert [len(mask.words) for mask in filled.masks] == [7, 7]
    assert [filled.tokens[mask.position] for mask in filled.masks] == ["[MASK]"] * 2
    for mask in filled.masks:
        probabilities = [probability for _, probability in mask.words]
        assert probabilities == sorted(probabilities, reverse=True)
        assert 0 < sum(probabilities) <= 1
        assert not any(word.startswith("[") for word, _ in mask.words)
    words = [mask.words[0][0] for mask in filled.masks]
    assert filled.text == f"two dogs run {words[0]} the {words[1]}."
    assert json.loads(json.dumps(filled.to_dict()))["masks"][1]["words"][0]["word"] == words[1]


def test_predictions_do_not_depend_on_the_other_texts_and_record_attention(predictor):
    alone = predictor.predict(TEXT, attention=True)
    together = predictor.predict([TEXT, "A [MASK] in a red dress sits slowly on the sofa."], attention=True)[0]
    assert alone.text == together.text
    size = len(alone.tokens)
    assert alone.attention[0].weights.shape == together.attention[0].weights.shape == (1, 4, size, size)
    assert torch.allclose(alone.attention[0].weights, together.attention[0].weights, atol=1e-5)


def test_predict_command_writes_words_and_a_page(run, tmp_path):
    page = tmp_path / "page.html"
    output = invoke("predict", run, TEXT, "A [MASK] sleeps.", "--show", page, "--device", "cpu")
    assert "two dogs run" in output
    assert "  2. " in output
    assert "[MASK] the [MASK]. →" in page.read_text(encoding="utf-8")
    meta = re.search(r'id="sightline-meta">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)[1]
    first, second = (example["scores"] for example in json.loads(meta)["examples"])
    assert [words["title"] for words in first] == ["Words for mask 1", "Words for mask 2"]
    assert [words["title"] for words in second] == ["Words for the mask"]
    for words in (*first, *second):
        assert len(words["shown"]) == 5
        assert words["areProbabilities"]
    table = invoke("predict", run, "no mask here", "A [MASK] sleeps.", "--format", "csv", status=2)
    assert "input,text,words,probabilities,error\n" in table
    assert "text must have at least one [MASK], got 'no mask here'" in table


def test_show_draws_curves_and_attention(run, tmp_path):
    output = invoke("show", run, TEXT, "--out", tmp_path)
    assert "training.png" in output
    assert {path.name for path in tmp_path.iterdir()} == {"training.png", "text-1.png", "page.html"}


def test_compare_reports_paired_differences(run):
    output = invoke("compare", run, run, "--device", "cpu")
    assert "pseudo-perplexity" in output
    assert "+0.00 to +0.00" in output


def test_a_shipped_run_is_used_by_its_name(run, tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "HOME", tmp_path)
    folder = shipping.ship(run, "fill-mask", license="MIT", command="sightline train task=masked_lm", device="cpu")
    assert sum(path.stat().st_size for path in folder.iterdir()) < 8_000_000
    assert "masked accuracy" in (folder / "README.md").read_text()
    output = invoke("predict", "fill-mask", "A man sits on a [MASK].", "--device", "cpu")
    assert "A man sits on a [MASK].: " in output
    assert "%" in output


def test_pseudo_log_likelihood_masks_one_token_at_a_time(predictor):
    encoded = encode_sentences(["A dog runs.", "Two men sit on the sofa."], predictor.tokenizer, 32)
    with torch.no_grad():
        scores = pseudo_log_likelihoods(predictor.model, encoded, predictor.masker)[0]
        ids, mask = encoded.take(torch.tensor([0]), int(encoded.lengths[0]))
        expected = 0.0
        for i in range(1, ids.shape[1] - 1):
            masked = ids.clone()
            masked[0, i] = 4
            expected += float(predictor.model(masked, mask)[0, i].log_softmax(-1)[ids[0, i]])
    assert math.isclose(float(scores[0]), expected, rel_tol=1e-5)


def make_task():
    starter = MaskedLMTaskConfig.starter()
    texts = MonolingualText(tuple(f"a dog runs {'and runs ' * (i % 5)}." for i in range(37)))
    return MaskedLMTask(starter, TextSplits(texts, texts.take(range(11))))


def test_micro_batches_add_up_to_the_loss_of_the_batch():
    task = make_task()
    task.model.eval()
    losses = []
    for world_size, micro_batches in ((1, 1), (2, 1), (1, 3)):
        total = 0.0
        for rank in range(world_size):
            batches = next(task.batches(2, 128, BatchSlice(rank, world_size, micro_batches)))
            assert len(batches) == micro_batches
            with torch.no_grad():
                total += sum(float(task.loss(task.model, batch)) for batch in batches)
        losses.append(total)
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)


def test_validation_sums_do_not_depend_on_the_number_of_processes():
    task = make_task()
    task.model.eval()
    with torch.no_grad():
        alone = task.evaluate(task.model, BatchSlice())
        shares = [task.evaluate(task.model, BatchSlice(rank, 3)) for rank in range(3)]
    for name, value in alone.items():
        assert float(value) == pytest.approx(sum(float(share[name]) for share in shares))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["tokenizer.special_tokens.mask=null"], "tokenizer.special_tokens.mask must be a token such as"),
        (["data.max_tokens=2"], "data.max_tokens must be at least 3, got 2"),
        (["data.max_tokens=33"], "model.max_positions must be at least 40"),
        (["masking.fraction=0"], "masking.fraction must be above 0 and below 1"),
    ],
)
def test_config_refuses_what_does_not_fit(changes, message):
    with pytest.raises(SightlineError, match=message):
        sightline.train(None, ["task=masked_lm", *changes])


def test_captions_are_held_out_by_image(tmp_path):
    path = tmp_path / "captions.txt"
    path.write_text("".join(f"image {i % 20} caption {i}\n" for i in range(100)), encoding="utf-8")
    splits = SentenceData(source=str(path), group_stride=20, validation_fraction=0.1, test_fraction=0.2).load(seed=0)
    images = [{text.split()[1] for text in part.sentences} for part in (splits.train, splits.validation, splits.test)]
    assert [len(part) for part in images] == [14, 2, 4]
    assert len(set.union(*images)) == 20
