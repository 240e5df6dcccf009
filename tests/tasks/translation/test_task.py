from dataclasses import replace

import pytest
import torch

from sightline.data.text import tokenized
from sightline.data.text.batching import IGNORE_INDEX
from sightline.data.text.corpora import ParallelText, TextSplits
from sightline.data.text.tokenizers import Tokenizer, TokenizerConfig
from sightline.models.seq2seq import RecurrentSeq2SeqConfig, TransformerSeq2SeqConfig
from sightline.run_config import resolve_config
from sightline.tasks.translation import evaluate as evaluate_module
from sightline.tasks.translation.config import ModelConfig, TextData, TranslationTaskConfig
from sightline.tasks.translation.task import TranslationTask
from sightline.training.config import TrainingConfig
from sightline.training.task import BatchSlice

PAD, BOS, EOS = range(3)


def model_configs(hidden_size, embed_dim, ffn_dim, num_heads):
    recurrent = RecurrentSeq2SeqConfig(hidden_size=hidden_size, embed_dim=embed_dim, dropout=0.0)
    transformer = TransformerSeq2SeqConfig(
        embed_dim=ffn_dim // 2, ffn_dim=ffn_dim, num_heads=num_heads, encoder_layers=1, decoder_layers=1, dropout=0.0
    )
    return {
        "rnn": ModelConfig(kind="rnn", rnn=recurrent),
        "rnn_attention": ModelConfig(kind="rnn_attention", rnn=recurrent),
        "transformer": ModelConfig(transformer=transformer),
    }


TINY = model_configs(hidden_size=8, embed_dim=6, ffn_dim=16, num_heads=2)


def make_pairs(count=47):
    """Numbers of one to five digits, and their digits as letters."""
    numbers = [str(i * i * 7919 % 100_003)[: 1 + i % 5] for i in range(count)]
    letters = [" ".join("abcdefghij"[int(digit)] for digit in number) for number in numbers]
    return ParallelText(tuple(numbers), tuple(letters))


def make_task(kind="transformer", *, validation=None, label_smoothing=0.0):
    config = TranslationTaskConfig(
        tokenizer=TokenizerConfig(kind="character", vocab_size=50),
        model=TINY[kind],
        label_smoothing=label_smoothing,
        training=TrainingConfig(batch_size=96),
    )
    return TranslationTask(config, TextSplits(make_pairs(), validation))


def get_batch(task, step, batch_slice=None):
    return next(task.batches(step, 96, batch_slice or BatchSlice()))


def decode_pairs(task, micro_batches):
    """The labeled pairs of micro-batches as text."""
    source_tokenizer, target_tokenizer = task.tokenizers
    return [
        (source_tokenizer.decode(source.tolist()), target_tokenizer.decode(labels[labels != IGNORE_INDEX].tolist()))
        for batch, _ in micro_batches
        for source, labels in zip(batch.source, batch.labels, strict=True)
        if (labels != IGNORE_INDEX).any()
    ]


def test_every_epoch_has_each_pair_once_in_another_order():
    task = make_task()
    steps = task.steps_per_epoch(96)
    first, second = (
        [pair for step in range(start, start + steps) for pair in decode_pairs(task, get_batch(task, step))]
        for start in (0, steps)
    )
    expected = sorted(zip(make_pairs().source, make_pairs().target, strict=True))
    assert sorted(first) == sorted(second) == expected
    assert first != second


def test_a_batch_depends_on_its_step_only():
    task = make_task()
    stream = task.batches(0, 96, BatchSlice())
    ((batch, num_labels),) = [next(stream) for _ in range(23)][-1]
    ((other, other_num_labels),) = get_batch(task, 22)
    assert num_labels == other_num_labels
    for name in ("source", "attention_mask", "target", "labels"):
        assert torch.equal(getattr(batch, name), getattr(other, name))


@pytest.mark.parametrize("kind", TINY)
def test_losses_of_micro_batches_sum_to_the_mean_over_tokens(kind):
    task = make_task(kind, label_smoothing=0.2)
    task.model.eval()
    for step in range(task.steps_per_epoch(96)):
        ((batch, num_labels),) = get_batch(task, step)
        is_labeled = batch.labels != IGNORE_INDEX
        assert num_labels == int(is_labeled.sum())
        log_probs = task.model(batch.source, batch.attention_mask, batch.target).log_softmax(-1)
        chosen = log_probs.gather(-1, batch.labels.clamp_min(0)[..., None])[..., 0]
        expected = -(0.8 * chosen + 0.2 * log_probs.mean(-1))[is_labeled].mean()
        parts = [part for rank in range(3) for part in get_batch(task, step, BatchSlice(rank, 3, 5))]
        assert len(parts) == 15
        assert sorted(decode_pairs(task, parts)) == sorted(decode_pairs(task, [(batch, num_labels)]))
        torch.testing.assert_close(sum(task.loss(task.model, part) for part in parts), expected)


def test_decoder_inputs_are_labels_shifted_by_one():
    ((batch, _),) = get_batch(make_task(), 0)
    assert (batch.target[:, 0] == BOS).all()
    assert torch.equal(batch.target[:, 1:], batch.labels[:, :-1].clamp_min(PAD))
    assert ((batch.labels == EOS).sum(1) == 1).all()
    assert torch.equal(batch.attention_mask, batch.source != PAD)


@pytest.mark.parametrize("kind", TINY)
def test_validation_does_not_depend_on_processes_or_batch_size(kind, monkeypatch):
    pairs = make_pairs(13)
    task = make_task(kind, validation=pairs)
    task.model.eval()

    with torch.no_grad():
        whole = task.evaluate(task.model, BatchSlice())
        monkeypatch.setitem(evaluate_module.TOKENS_PER_BATCH, "cpu", 20)
        parts = [task.evaluate(task.model, BatchSlice(rank, 3)) for rank in range(3)]
    for name, value in whole.items():
        torch.testing.assert_close(sum(part[name] for part in parts), value, rtol=1e-5, atol=1e-5)
    assert int(whole["tokens"]) == sum(len(text) + 1 for text in pairs.target)
    assert task.metrics(whole)["perplexity"] == pytest.approx(2.718281828 ** task.metrics(whole)["loss"])


def test_a_second_task_on_the_same_data_does_not_tokenize_again(monkeypatch):
    data = TextSplits(make_pairs(), make_pairs(13))
    config = TranslationTaskConfig(
        tokenizer=TokenizerConfig(kind="character", vocab_size=50), model=TINY["transformer"]
    )
    first = TranslationTask(config, data)
    trained, encoded = [], []
    train_tokenizer, encode = tokenized.train_tokenizer, Tokenizer.encode
    monkeypatch.setattr(tokenized, "train_tokenizer", lambda *args: trained.append(args) or train_tokenizer(*args))
    monkeypatch.setattr(Tokenizer, "encode", lambda self, texts: encoded.append(texts) or encode(self, texts))
    second = TranslationTask(replace(config, model=TINY["rnn"], seed=1), data)
    assert not trained
    assert not encoded
    assert second.tokenizers is first.tokenizers
    other = TranslationTask(replace(config, tokenizer=TokenizerConfig(kind="word", vocab_size=50)), data)
    assert len(trained) == 2
    assert other.tokenizers is not first.tokenizers
    assert TranslationTask(config, data).tokenizers is first.tokenizers


def test_long_training_pairs_are_dropped_and_counted():
    pairs = ParallelText((*make_pairs().source, "1" * 200), (*make_pairs().target, "a"))
    config = TranslationTaskConfig(tokenizer=TokenizerConfig(kind="character"))
    task = TranslationTask(config, TextSplits(pairs))
    assert len(task.train) == 47
    assert task.data_fingerprint["train"]["dropped_long"] == 1
    with pytest.raises(ValueError, match="data must have a pair of at most 2 tokens"):
        TranslationTask(replace(config, data=TextData(max_tokens=2)), TextSplits(ParallelText(("12",), ("a b",))))


@pytest.fixture
def table(tmp_path):
    """A file of 60 pairs with different target sentences."""
    lines = [f"{source}\tx {i} y" for i, source in enumerate(make_pairs(60).source)]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines))
    return tmp_path / "pairs.tsv"


def test_fractions_are_held_out_where_the_data_has_no_sets(table):
    splits = TextData(source=str(table), validation_fraction=0.1, test_fraction=0.2).load(seed=5)
    assert [len(pairs) for pairs in (splits.train, splits.validation, splits.test)] == [42, 6, 12]
    splits = TextData(source=str(table), validation_fraction=0.0).load(seed=5)
    assert (len(splits.train), splits.validation, splits.test) == (60, None, None)
    with pytest.raises(ValueError, match=r"must sum to less than 1, got 0\.5 and 0\.6"):
        TextData(source=str(table), validation_fraction=0.5, test_fraction=0.6).load(seed=5)


def test_extra_sources_extend_the_training_set_only(table):
    (table.parent / "extra.tsv").write_text(f"7\tseven\n{table.read_text()}")
    data = TextData(source=str(table), validation_fraction=0.1, test_fraction=0.2)
    plain = data.load(seed=5)
    extended = replace(data, extra_sources=(str(table.parent / "extra.tsv"),)).load(seed=5)
    assert (extended.validation, extended.test) == (plain.validation, plain.test)
    repeated = sorted(plain.train.target, key=lambda text: int(text[2:-2]))
    assert extended.train.target == (*plain.train.target, "seven", *repeated)
    with pytest.raises(ValueError, match="data must be a folder, a tab-separated file"):
        replace(data, extra_sources=(str(table.parent / "missing.tsv"),)).load(seed=5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("seed=-1", "seed must be an integer"),
        ("label_smoothing=1", "label_smoothing must be at least 0 and below 1"),
        ("training.fsdp=true", "training.fsdp must be false for translation"),
        ("training.batch_size=99999999", "training.batch_size must be at most"),
        ("data.columns=[2,2]", "data: columns must be two different columns, got 2 twice"),
        ("data.columns=[0,2]", r"data.columns\[0\] must be an integer of at least 1"),
        ("data.languages=[de,de]", "data: languages must be two different languages, got 'de' twice"),
        ("data.languages=[../de,en]", r"data.languages\[0\] must be a file suffix such as de"),
        ("data.max_tokens=1", "data.max_tokens must be an integer of at least 2"),
        ("data.validation_fraction=1.5", "data.validation_fraction must be at least 0 and below 1"),
        ("model.kind=rn", "model.kind must be one of rnn, rnn_attention, transformer"),
        ("model.transformer.score=cosin", "score must be one of additive, cosine, dot, general, got 'cosin'"),
        (
            "model.transformer.tie_embeddings=all",
            "tokenizer.shared_vocab must be true if the model's tie_embeddings is all, one table for both languages",
        ),
        ("search.num_beams=0", "search.num_beams must be an integer of at least 1"),
        ("search.length_penalty=-1", "search.length_penalty must be from 0 to 10"),
        ("tokenizer.vocab_size=99", "tokenizer: vocab_size must be at least 262 for bpe"),
    ],
)
def test_invalid_configs_raise(change, message):
    with pytest.raises(ValueError, match=message):
        resolve_config(None, ["task=translation", change])


def test_learned_positions_must_cover_the_longest_sentence():
    model = ModelConfig(transformer=TransformerSeq2SeqConfig(positions="learned", max_positions=100))
    with pytest.raises(ValueError, match=r"max_positions must be at least 104, data.max_tokens rounded up .*got 100"):
        TranslationTaskConfig(data=TextData(max_tokens=100), model=model)


def test_the_kind_of_model_determines_its_attention():
    assert ModelConfig(kind="rnn_attention").rnn.attention == "general"
    additive = RecurrentSeq2SeqConfig(attention="additive")
    assert ModelConfig(kind="rnn_attention", rnn=additive).rnn.attention == "additive"
    with pytest.raises(ValueError, match=r"rnn.attention must be none for kind rnn, got 'additive'"):
        ModelConfig(kind="rnn", rnn=additive)


@pytest.mark.parametrize("kind", TINY)
def test_every_model_learns_to_spell_numbers(kind):
    """Trains on 29 pairs until it reproduces them."""
    torch.manual_seed(3)
    model = model_configs(hidden_size=64, embed_dim=32, ffn_dim=64, num_heads=4)[kind]
    config = replace(make_task().config, model=model)
    task = TranslationTask(config, TextSplits(make_pairs(29), make_pairs(29)))
    optimizer = torch.optim.AdamW(task.model.parameters(), 1e-2)
    stream = task.batches(0, 512, BatchSlice())
    for _ in range(80):
        for micro_batch in next(stream):
            task.loss(task.model, micro_batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    task.model.eval()
    with torch.no_grad():
        result = task.metrics(task.evaluate(task.model, BatchSlice()))
    assert result["bleu"] > 90
    assert result["loss"] < 0.1
