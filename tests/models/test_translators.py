"""What every translator must do, whatever it is made of."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from sightline import record_attention
from sightline.models.rnn_translator import RNNTranslatorConfig
from sightline.models.translator import TranslatorConfig
from translators import KINDS, TARGET_WORDS, B, S, T, attends, batch, make


def stepped(model, source, real, target):
    """Logits of each step, one token after the other."""
    state, logits = model.start(model.encode(source, real)), []
    for tokens in target.T:
        step, state = model.step(state, tokens)
        logits.append(step)
    return torch.stack(logits, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_steps_with_the_cache_give_what_one_pass_gives(kind, mode):
    model, (source, real, target) = make(kind), batch()
    with mode():
        logits = model(source, real, target)
        assert logits.shape == (B, T, TARGET_WORDS)
        assert_close(stepped(model, source, real, target), logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_sentence_says_the_same_alone_and_in_a_batch(kind):
    model, (source, real, target) = make(kind), batch()
    together = model(source, real, target)
    for row, length in enumerate(real.sum(1).tolist()):
        alone = model(source[row : row + 1, :length], real[row : row + 1, :length], target[row : row + 1])
        assert_close(alone[0], together[row], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_what_stands_in_the_padding_does_not_matter(kind):
    model, (source, real, target) = make(kind), batch()
    junk = torch.where(real, source, 5)
    assert not junk.equal(source)
    assert_close(model(junk, real, target), model(source, real, target), atol=0, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_target_never_sees_its_future_but_does_see_the_source(kind):
    model, (source, real, target) = make(kind), batch()
    before = model(source, real, target)
    changed = target.clone()
    changed[:, 3] = 4 + (changed[:, 3] + 1) % 9
    after = model(source, real, changed)
    assert_close(after[:, :3], before[:, :3], atol=1e-6, rtol=1e-6)
    assert not torch.allclose(after[:, 3], before[:, 3])
    source[:, 0] = 4 + (source[:, 0] + 1) % 9
    assert (model(source, real, target) - before).abs().amax((1, 2)).min() > 1e-6


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_state_follows_its_rows(kind):
    model, (source, real, target) = make(kind), batch()
    rows = torch.tensor([2, 0, 0, 1, 2])
    state = model.start(model.encode(source, real))
    for tokens in target.T[:2]:
        _, state = model.step(state, tokens)
    state = model.reorder(state, rows)
    _, state = model.step(state, target[rows, 2])
    swap = torch.tensor([0, 2, 1, 3, 4])  # the second and third stand for one sentence
    state = model.reorder(state, swap, same_source=True)
    few = torch.tensor([3, 1])
    _, state = model.step(state, target[rows, 3])
    state = model.reorder(state, few)
    logits, state = model.step(state, target[rows[few], 4])
    assert_close(logits, model(source, real, target)[rows[few], 4], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if attends(kind)])
@torch.no_grad()
def test_attention_is_recorded_the_same_step_by_step(kind):
    model, (source, real, target) = make(kind), batch()
    with record_attention(model) as whole:
        model(source, real, target)
    with record_attention(model) as steps:
        stepped(model, source, real, target)
    assert set(steps.names()) == set(whole.names())
    assert {seen.kind for seen in whole} == ({"cross"} if kind.startswith("rnn") else {"encoder", "decoder", "cross"})
    for name in whole.names():
        seen = [one for one in steps if one.name == name]
        assert {one.kind for one in seen} == {whole[name].kind}
        rows = torch.cat(
            [F.pad(one.weights, (0, whole[name].weights.shape[3] - one.weights.shape[3])) for one in seen], 2
        )
        assert_close(rows, whole[name].weights, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if attends(kind)])
def test_padding_weighs_nothing_at_all(kind):
    model, (source, real, target) = make(kind), batch()
    with record_attention(model) as record:
        model(source, real, target)
    for seen in record.of("cross"):
        assert seen.weights.shape == (B, 1 if kind.startswith("rnn") else 3, T, S)
        assert seen.weights.masked_select(~real[:, None, None, :]).eq(0).all()
        assert_close(seen.weights.sum(-1), torch.ones(seen.weights.shape[:-1]))
        if kind == "rnn hard":
            assert set(seen.weights.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("tied", ["none", "target", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_everything_learns(kind, tied):
    model, (source, real, target) = make(kind, tie_embeddings=tied, source_vocab_size=TARGET_WORDS), batch()
    logits = model.train()(source, real, target)
    F.cross_entropy(logits.flatten(0, 1), target.roll(-1, 1).flatten()).backward()
    silent = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert not silent


@pytest.mark.parametrize("kind", ["transformer", "rnn general"])
def test_tied_tables_are_one(kind):
    sizes = {}
    for tied in ("none", "target", "all"):
        model = make(kind, tie_embeddings=tied, source_vocab_size=TARGET_WORDS)
        sizes[tied] = sum(p.numel() for p in model.parameters())
        tensors = list(model.state_dict().values())
        assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)  # each is saved once
        assert model.load_state_dict(model.state_dict()).missing_keys == []
    table = TARGET_WORDS * (12 if kind == "transformer" else 6)
    assert sizes["none"] - sizes["target"] == sizes["target"] - sizes["all"] == table


@pytest.mark.parametrize("kind", ["transformer", "rnn none", "rnn general", "rnn hard"])
def test_a_model_learns_to_copy(kind):
    torch.manual_seed(0)
    wide = {"width": 32, "embed_dim": 32} if kind.startswith("rnn") else {"width": 32, "hidden": 64, "heads": 4}
    model = make(kind, dropout=0.0, source_vocab_size=11, target_vocab_size=11, **wide).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(150):
        words = torch.randint(4, 11, (32, 3))
        target = F.pad(words, (1, 0), value=1)
        logits = model(words, torch.ones_like(words, dtype=torch.bool), target)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), words.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.5  # chance is log 7 = 1.95


@pytest.mark.parametrize("kind", ["transformer", "rnn general", "rnn lstm deep"])
def test_half_precision_runs(kind):
    model, (source, real, target) = make(kind), batch()
    exact = model(source, real, target)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(source, real, target)
        steps = stepped(model, source, real, target)
    assert_close(logits.float(), exact, atol=0.1, rtol=0.1)
    assert_close(steps.float(), exact, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("kind", ["transformer", "rnn general"])
@pytest.mark.parametrize(
    ("source", "real", "message"),
    [
        (torch.ones(2, 3), torch.ones(2, 3).bool(), r"source must be int64 .* got torch.float32 \(2, 3\)"),
        (torch.ones(2, 0).long(), torch.ones(2, 0).bool(), r"with a token at least, got torch.int64 \(2, 0\)"),
        (torch.ones(2, 3).long(), torch.ones(2, 3), "real must be bool and of source's shape"),
        (torch.ones(2, 3).long(), torch.ones(2, 1).bool(), r"got torch.bool \(2, 1\)"),
    ],
)
def test_sources_that_are_none_are_refused(kind, source, real, message):
    with pytest.raises(ValueError, match=message):
        make(kind).encode(source, real)


@pytest.mark.parametrize("config", [TranslatorConfig, RNNTranslatorConfig])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source_vocab_size": 3}, "source_vocab_size must be an integer of at least 4, got 3"),
        ({"target_vocab_size": 1 << 21}, "target_vocab_size must be at most 1,048,576, got 2097152"),
        ({"tied": "both"}, "tied must be one of all, none, target, got 'both'"),
        (
            {"tied": "all", "source_vocab_size": 5, "target_vocab_size": 7},
            "got all with 5 and 7; or let both languages",
        ),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"width": 0}, "width must be an integer of at least 1, got 0"),
        ({"width": 1 << 20}, "width must be at most 16,384"),
        ({"width": 7, "heads": 7}, "width must be even where"),
    ],
)
def test_impossible_models_are_refused(config, options, message):
    if config is RNNTranslatorConfig:
        options = {name: value for name, value in options.items() if name != "heads"}
    with pytest.raises(ValueError, match=message):
        config(**options)


@pytest.mark.parametrize("config", [TranslatorConfig, RNNTranslatorConfig])
def test_vocabularies_are_those_of_the_data(config):
    known = config(tie_embeddings="all").of_data(source_vocab_size=11, target_vocab_size=11)
    assert known.vocabularies == (11, 11)
    with pytest.raises(ValueError, match=r"model\.target_vocab_size must be that of the data, 13, or null, got 11"):
        known.of_data(source_vocab_size=11, target_vocab_size=13)
    with pytest.raises(ValueError, match="model: tied must be target or none where the vocabularies differ"):
        config(tie_embeddings="all").of_data(source_vocab_size=11, target_vocab_size=13)
    with pytest.raises(ValueError, match="source_vocab_size and target_vocab_size must be given, got None and None"):
        config().vocabularies  # noqa: B018
