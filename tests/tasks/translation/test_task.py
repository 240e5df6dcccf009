from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import sightline
from sightline.data.text.batching import IGNORE_INDEX
from sightline.data.text.corpora import ParallelText, TextSplits
from sightline.data.text.tokenizers import SpecialTokens, TokenizerConfig
from sightline.models.rnn_translator import RNNTranslatorConfig
from sightline.models.translator import TranslatorConfig
from sightline.runs import _recipe
from sightline.tasks.translation import evaluate as translation_judging
from sightline.tasks.translation.evaluate import metrics, tally
from sightline.tasks.translation.task import Model, Recipe, TextData, TranslationTask, divide
from sightline.training.config import TrainingConfig
from sightline.training.task import BatchSlice

PAD, BOS, EOS = (SpecialTokens().ids[name] for name in ("pad", "bos", "eos"))

TINY = {
    "rnn": Model(kind="rnn", rnn=RNNTranslatorConfig(width=8, embed_dim=6, dropout=0.0)),
    "rnn_attention": Model(kind="rnn_attention", rnn=RNNTranslatorConfig(width=8, embed_dim=6, dropout=0.0)),
    "transformer": Model(
        transformer=TranslatorConfig(width=8, ffn_dim=8, num_heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0)
    ),
}
WORDS = (
    "task=translation",
    "data.validation=0.1",
    "tokenizer.kind=character",
    "model.transformer.embed_dim=8",
    "model.transformer.ffn_dim=8",
    "model.transformer.num_heads=2",
    "model.transformer.encoder_layers=1",
    "model.transformer.decoder_layers=1",
    "model.transformer.dropout=0.1",
    "training.steps=12",
    "training.batch_size=256",
    "training.log_every=1",
    "training.evaluate_every=5",
    "training.checkpoint_every=4",
    "training.warmup_steps=2",
    "training.device=cpu",
)


def pairs(count=47):
    numbers = [str(i * i * 7919 % 100_003)[: 1 + i % 5] for i in range(count)]
    words = [" ".join("abcdefghij"[int(digit)] for digit in number) for number in numbers]
    return ParallelText(tuple(numbers), tuple(words))


def made(kind="transformer", count=47, validation=None, **training):
    recipe = Recipe(
        tokenizer=TokenizerConfig(kind="character", vocab_size=50),
        model=TINY[kind],
        training=TrainingConfig(batch_size=96, **training),
    )
    return TranslationTask(recipe, TextSplits(pairs(count), validation))


def batch(task, step, part=None, size=96):
    return next(task.batches(step, size, part or BatchSlice()))


def sentences(task, pieces):
    decoded = []
    for one, _ in pieces:
        for source, wanted in zip(one.source, one.labels, strict=True):
            if (wanted != IGNORE_INDEX).any():
                decoded.append((task.tokenizers[0].decode(source.tolist()), task.tokenizers[1].decode(wanted.tolist())))
    return decoded


def test_an_epoch_holds_every_pair_once_and_each_has_an_order_of_its_own():
    task = made()
    steps = task.steps_per_epoch(96)
    first, second = (
        [one for step in range(start, start + steps) for one in sentences(task, batch(task, step))]
        for start in (0, steps)
    )
    expected = sorted(zip(pairs().source, pairs().target, strict=True))
    assert sorted(first) == sorted(second) == expected
    assert first != second


def test_a_step_is_the_same_wherever_training_began():
    task = made()
    stream = task.batches(0, 96, BatchSlice())
    later = [next(stream) for _ in range(23)][-1]
    ((one, total),), ((two, again),) = later, batch(task, 22)
    assert total == again
    for name in ("source", "real", "target", "wanted"):
        assert torch.equal(getattr(one, name), getattr(two, name))


@pytest.mark.parametrize("kind", TINY)
def test_losses_of_parts_and_pieces_sum_to_the_mean_over_the_tokens_of_the_batch(kind):
    task = made(kind, label_smoothing=0.2)
    task.model.eval()
    for step in range(task.steps_per_epoch(96)):
        ((whole, total),) = batch(task, step)
        assert total == int((whole.wanted != IGNORE_INDEX).sum())
        logits = task.model(whole.source, whole.real, whole.target).log_softmax(-1)
        real = whole.wanted != IGNORE_INDEX
        picked = logits.gather(-1, whole.wanted.clamp_min(0)[..., None])[..., 0]
        expected = -(0.8 * picked + 0.2 * logits.mean(-1))[real].mean()
        parts = [piece for rank in range(3) for piece in batch(task, step, BatchSlice(rank, 3, 5))]
        assert len(parts) == 15
        assert sorted(sentences(task, parts)) == sorted(sentences(task, [(whole, total)]))
        torch.testing.assert_close(sum(task.loss(task.model, piece) for piece in parts), expected)


def test_what_a_decoder_reads_is_one_behind_what_it_writes():
    ((one, _),) = batch(made(), 0)
    assert (one.target[:, 0] == BOS).all()
    assert torch.equal(one.target[:, 1:], one.labels[:, :-1].clamp_min(PAD))
    assert ((one.labels == EOS).sum(1) == 1).all()
    assert torch.equal(one.attention_mask, one.source != PAD)


@pytest.mark.parametrize("kind", TINY)
def test_validation_is_the_same_by_one_process_or_by_three_and_whatever_goes_together(kind, monkeypatch):
    task = made(kind, validation=pairs(13))
    task.model.eval()
    with torch.no_grad():
        what = task.model, task.validation, pairs(13).target, task.tokenizers[1]
        alone = tally(*what, BatchSlice(), 64)
        monkeypatch.setitem(translation_judging.AT_ONCE, "cpu", 20)
        parts = [
            tally(task.model, task.validation, pairs(13).target, task.tokenizers[1], BatchSlice(rank, 3), 64)
            for rank in range(3)
        ]
    for name, found in alone.items():
        torch.testing.assert_close(sum(part[name] for part in parts), found, rtol=1e-5, atol=1e-5)
    assert int(alone["tokens"]) == sum(len(text) + 1 for text in pairs(13).target)
    assert metrics(alone)["perplexity"] == pytest.approx(2.718281828 ** metrics(alone)["loss"])


def test_bleu_from_counts_is_that_of_sacrebleu():
    from sacrebleu import BLEU

    wrote, texts = ["a b c d e", "f g h i", "a b c"], ["a b c d f", "f g h i", "a b d c"]
    found = [translation_judging.bleu(wrote[i::2], texts[i::2]) for i in range(2)]
    counts = sum(
        torch.tensor([*one.counts, *one.totals, one.sys_len, one.ref_len], dtype=torch.float64) for one in found
    )
    sums = {"loss": torch.tensor(3.0), "tokens": torch.tensor(2.0), "bleu": counts}
    assert metrics(sums)["bleu"] == pytest.approx(BLEU().corpus_score(wrote, [texts]).score)


def test_pairs_that_are_too_long_are_not_learned_from():
    long = ParallelText((*pairs().source, "1" * 200), (*pairs().target, "a"))
    task = TranslationTask(made().recipe.__class__(tokenizer=TokenizerConfig(kind="character")), TextSplits(long))
    assert len(task.train) == 47
    assert task.held["train"]["left_out_long"] == 1
    recipe = Recipe(tokenizer=TokenizerConfig(kind="character"), data=TextData(max_tokens=2))
    with pytest.raises(ValueError, match="data must have a pair of at most 2 tokens"):
        TranslationTask(recipe, TextSplits(ParallelText(("12",), ("a b",))))


def test_shares_are_held_out_where_a_set_brings_none(tmp_path):
    lines = "\n".join(f"{source}\tx {i} y" for i, source in enumerate(pairs(60).source))
    (tmp_path / "pairs.tsv").write_text(lines)
    splits = divide(TextData(source=str(tmp_path / "pairs.tsv"), validation=0.1, test=0.2), seed=5)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [42, 6, 12]
    none = divide(TextData(source=str(tmp_path / "pairs.tsv"), validation=0.0), seed=5)
    assert (len(none.train), none.validation, none.test) == (60, None, None)


def test_more_pairs_are_learned_from_and_change_nothing_that_is_held_out(tmp_path):
    lines = [f"{source}\tx {i} y" for i, source in enumerate(pairs(60).source)]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines))
    (tmp_path / "own.tsv").write_text("\n".join(["7\tseven", *lines]))
    data = TextData(source=str(tmp_path / "pairs.tsv"), validation=0.1, test=0.2)
    plain, more = divide(data, 5), divide(replace(data, more=(str(tmp_path / "own.tsv"),)), 5)
    assert (more.validation, more.test) == (plain.validation, plain.test)
    assert more.train.target == (*plain.train.target, "seven", *sorted(plain.train.target, key=lambda t: int(t[2:-2])))
    with pytest.raises(ValueError, match="data must be a folder, a tab-separated file"):
        divide(replace(data, more=(str(tmp_path / "gone.tsv"),)), 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("seed=-1", "seed must be an integer"),
        ("training.fsdp=true", "training.fsdp must be false for translation"),
        ("training.batch_size=99999999", "training.batch_size must be at most"),
        ("data.columns=[2,2]", "data: columns must be two different ones, got 2 twice"),
        ("data.columns=[0,2]", r"data: columns\[0\] must be an integer of at least 1"),
        ("data.languages=[de,de]", "data: languages must be two different ones, got 'de' twice"),
        ("data.languages=[../de,en]", "data: languages must be two endings"),
        ("data.max_tokens=1", "data: max_tokens must be an integer of at least 2"),
        ("data.validation=1.5", "data: validation must be at least 0 and below 1"),
        ("model.kind=rn", "model.kind must be one of rnn, rnn_attention, transformer"),
        ("model.transformer.tie_embeddings=all", "tokenizer.shared_vocab must be true where the model's tied is all"),
        ("search.beams=0", "search: beams must be an integer of at least 1"),
        ("search.length_penalty=-1", "search: length_penalty must be from 0 to 10"),
        ("tokenizer.vocab_size=99", "tokenizer: vocab_size must be at least 262 for bpe"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        _recipe(None, ["task=translation", change])


def test_places_that_are_learned_must_be_enough():
    with pytest.raises(ValueError, match=r"max_tokens must be at least data.max_tokens, filled up to 104, .*100"):
        Recipe(
            data=TextData(max_tokens=100),
            model=Model(transformer=TranslatorConfig(positions="learned", max_tokens=100)),
        )


def test_the_kind_decides_whether_there_is_attention():
    assert Model(kind="rnn_attention").rnn.attention == "general"
    additive = RNNTranslatorConfig(attention="additive")
    assert Model(kind="rnn_attention", rnn=additive).rnn.attention == "additive"
    with pytest.raises(ValueError, match=r"rnn.attention must be none where kind is rnn, got 'additive'"):
        Model(kind="rnn", rnn=additive)


@pytest.fixture
def corpus(tmp_path):
    """The change that makes a recipe learn from a small file."""
    lines = "\n".join(f"{source}\t{target}" for source, target in zip(pairs().source, pairs().target, strict=True))
    (tmp_path / "pairs.tsv").write_text(lines)
    return f"data.source={tmp_path / 'pairs.tsv'}"


def test_a_run_that_was_stopped_ends_with_the_weights_it_would_have_had(tmp_path, corpus):
    whole = sightline.train(None, [*WORDS, corpus, f"out={tmp_path / 'whole'}"], quiet=True)
    sightline.train(None, [*WORDS, corpus, f"out={tmp_path / 'broken'}"], quiet=True)
    for path in sorted((tmp_path / "broken/checkpoints").glob("step-*"))[2:]:  # back to step 8
        path.unlink()
    (tmp_path / "broken/model.safetensors").unlink()
    again = sightline.train(tmp_path / "broken", resume=True, quiet=True)
    assert (again.steps, again.metrics) == (whole.steps, whole.metrics)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "broken"))
    for name, tensor in one.items():
        assert torch.equal(tensor, two[name]), name
    with pytest.raises(ValueError, match=r"tokenizer.lowercase must be False, as .* began"):
        sightline.train(tmp_path / "broken", ["tokenizer.lowercase=true"], resume=True, quiet=True)


@pytest.mark.parametrize("kind", TINY)
def test_each_kind_learns_to_spell_numbers(kind):
    """A few hundred steps on one-digit and two-digit numbers, which it then knows by heart."""
    model = {
        "rnn": Model(kind="rnn", rnn=RNNTranslatorConfig(width=64, embed_dim=32, dropout=0.0)),
        "rnn_attention": Model(kind="rnn_attention", rnn=RNNTranslatorConfig(width=64, embed_dim=32, dropout=0.0)),
        "transformer": Model(
            transformer=TranslatorConfig(
                width=32, ffn_dim=64, num_heads=4, encoder_layers=1, decoder_layers=1, dropout=0.0
            )
        ),
    }[kind]
    recipe = replace(made().recipe, model=model)
    task = TranslationTask(recipe, TextSplits(pairs(29), pairs(29)))
    optimizer = torch.optim.AdamW(task.model.parameters(), 1e-2)
    stream = task.batches(0, 512, BatchSlice())
    for _ in range(80):
        for piece in next(stream):
            task.loss(task.model, piece).backward()
        optimizer.step()
        optimizer.zero_grad()
    task.model.eval()
    with torch.no_grad():
        found = task.metrics(task.evaluate(task.model, BatchSlice()))
    assert found["bleu"] > 90
    assert found["loss"] < 0.1
