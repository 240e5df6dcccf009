import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from seq2seq_models import (
    KINDS,
    TARGET_VOCAB_SIZE,
    VOCAB_SIZES,
    B,
    S,
    T,
    has_attention,
    make_batch,
    make_model,
)
from sightline import record_attention
from sightline.config import for_data
from sightline.models.seq2seq import RecurrentSeq2SeqConfig, Seq2Seq, TransformerSeq2SeqConfig

CONFIGS = [TransformerSeq2SeqConfig, RecurrentSeq2SeqConfig]


def step_logits(model, source, attention_mask, target):
    """Logits of one step after another."""
    state, logits = model.decoder.start(model.encode(source, attention_mask)), []
    for tokens in target.T:
        step, state = model.decoder.step(state, tokens)
        logits.append(step)
    return torch.stack(logits, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_cached_steps_match_teacher_forcing(kind, mode):
    model, (source, attention_mask, target) = make_model(kind), make_batch()
    with mode():
        logits = model(source, attention_mask, target)
        assert logits.shape == (B, T, TARGET_VOCAB_SIZE)
        assert_close(step_logits(model, source, attention_mask, target), logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_rows_do_not_depend_on_the_batch(kind):
    model, (source, attention_mask, target) = make_model(kind), make_batch()
    logits = model(source, attention_mask, target)
    for row, length in enumerate(attention_mask.sum(1).tolist()):
        alone = model(source[row : row + 1, :length], attention_mask[row : row + 1, :length], target[row : row + 1])
        assert_close(alone[0], logits[row], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_padding_tokens_do_not_affect_logits(kind):
    model, (source, attention_mask, target) = make_model(kind), make_batch()
    changed = torch.where(attention_mask, source, 5)
    assert not changed.equal(source)
    assert_close(model(changed, attention_mask, target), model(source, attention_mask, target), atol=0, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_logits_depend_on_the_past_and_the_source_only(kind):
    model, (source, attention_mask, target) = make_model(kind), make_batch()
    before = model(source, attention_mask, target)
    changed = target.clone()
    changed[:, 3] = 4 + (changed[:, 3] + 1) % 9
    after = model(source, attention_mask, changed)
    assert_close(after[:, :3], before[:, :3], atol=1e-6, rtol=1e-6)
    assert not torch.allclose(after[:, 3], before[:, 3])
    source[:, 0] = 4 + (source[:, 0] + 1) % 9
    assert (model(source, attention_mask, target) - before).abs().amax((1, 2)).min() > 1e-6


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_reorder_selects_rows_of_the_state(kind):
    model, (source, attention_mask, target) = make_model(kind), make_batch()
    decoder, rows = model.decoder, torch.tensor([2, 0, 0, 1, 2])
    state = decoder.start(model.encode(source, attention_mask))
    for tokens in target.T[:2]:
        _, state = decoder.step(state, tokens)
    state = decoder.reorder(state, rows)
    _, state = decoder.step(state, target[rows, 2])
    swap = torch.tensor([0, 2, 1, 3, 4])  # rows 1 and 2 have the same source
    state = decoder.reorder(state, swap, same_source=True)
    kept = torch.tensor([3, 1])
    _, state = decoder.step(state, target[rows, 3])
    state = decoder.reorder(state, kept)
    logits, state = decoder.step(state, target[rows[kept], 4])
    assert_close(logits, model(source, attention_mask, target)[rows[kept], 4], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if has_attention(kind)])
@torch.no_grad()
def test_recorded_attention_of_steps_matches_teacher_forcing(kind):
    model, (source, attention_mask, target) = make_model(kind), make_batch()
    with record_attention(model) as forced:
        model(source, attention_mask, target)
    with record_attention(model) as stepped:
        step_logits(model, source, attention_mask, target)
    kinds = {"cross"} if kind.startswith("rnn") else {"encoder", "decoder", "cross"}
    assert {attention_map.kind for attention_map in forced} == kinds
    assert set(stepped.names()) == set(forced.names())
    for name in forced.names():
        maps = [attention_map for attention_map in stepped if attention_map.name == name]
        assert {attention_map.kind for attention_map in maps} == {forced[name].kind}
        num_keys = forced[name].weights.shape[3]
        weights = torch.cat([F.pad(m.weights, (0, num_keys - m.weights.shape[3])) for m in maps], 2)
        assert_close(weights, forced[name].weights, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if has_attention(kind)])
def test_attention_weights_of_padding_are_zero(kind):
    model, (source, attention_mask, target) = make_model(kind), make_batch()
    with record_attention(model) as record:
        model(source, attention_mask, target)
    for attention_map in record.of("cross"):
        weights = attention_map.weights
        assert weights.shape == (B, 1 if kind.startswith("rnn") else 3, T, S)
        assert weights.masked_select(~attention_mask[:, None, None, :]).eq(0).all()
        assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        if kind == "rnn hard":
            assert set(weights.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("tie_embeddings", ["none", "target", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_has_a_gradient(kind, tie_embeddings):
    model = make_model(kind, tie_embeddings=tie_embeddings, source_vocab_size=TARGET_VOCAB_SIZE)
    source, attention_mask, target = make_batch()
    logits = model.train()(source, attention_mask, target)
    F.cross_entropy(logits.flatten(0, 1), target.roll(-1, 1).flatten()).backward()
    assert not {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}


@pytest.mark.parametrize("kind", ["transformer", "rnn general"])
def test_tied_embeddings_are_stored_once(kind):
    num_parameters = {}
    for tie_embeddings in ("none", "target", "all"):
        model = make_model(kind, tie_embeddings=tie_embeddings, source_vocab_size=TARGET_VOCAB_SIZE)
        num_parameters[tie_embeddings] = sum(p.numel() for p in model.parameters())
        tensors = list(model.state_dict().values())
        assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)
        assert model.load_state_dict(model.state_dict()).missing_keys == []
    table = TARGET_VOCAB_SIZE * (12 if kind == "transformer" else 6)
    assert num_parameters["none"] - num_parameters["target"] == table
    assert num_parameters["target"] - num_parameters["all"] == table


def test_parameter_names():
    names = set(make_model("transformer cosine untied").state_dict())
    assert {"encoder.embedding.weight", "decoder.embedding.weight", "decoder.output_embedding.weight"} <= names
    assert {"encoder.stack.layers.0.attention.qkv.weight", "decoder.stack.norm.weight"} <= names
    tied = set(make_model("transformer", tie_embeddings="all", source_vocab_size=TARGET_VOCAB_SIZE).state_dict())
    assert {name for name in tied if "embedding" in name} == {"decoder.embedding.weight"}


@pytest.mark.parametrize("kind", ["transformer", "rnn none", "rnn general", "rnn hard"])
def test_models_learn_to_copy(kind):
    torch.manual_seed(0)
    sizes = (
        {"hidden_size": 32, "embed_dim": 32}
        if kind.startswith("rnn")
        else {"embed_dim": 32, "ffn_dim": 64, "num_heads": 4}
    )
    model = make_model(kind, dropout=0.0, source_vocab_size=11, target_vocab_size=11, **sizes).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(150):
        tokens = torch.randint(4, 11, (32, 3))
        target = F.pad(tokens, (1, 0), value=1)
        logits = model(tokens, torch.ones_like(tokens, dtype=torch.bool), target)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.5  # chance is log 7 = 1.95


@pytest.mark.parametrize("kind", ["transformer", "rnn general", "rnn lstm deep"])
def test_bfloat16_autocast_is_close_to_float32(kind):
    model, (source, attention_mask, target) = make_model(kind), make_batch()
    exact = model(source, attention_mask, target)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(source, attention_mask, target)
        steps = step_logits(model, source, attention_mask, target)
    assert_close(logits.float(), exact, atol=0.1, rtol=0.1)
    assert_close(steps.float(), exact, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("options", [{}, {"norm": "post", "score": "cosine", "tie_embeddings": "none"}])
def test_packed_training_loss_matches_the_padded_loss(options):
    model, (source, attention_mask, target) = make_model("transformer", dropout=0.0, **options).train(), make_batch()
    labels = target.roll(-1, 1)
    labels[0, 1], labels[1, 3:] = -100, -100  # one label in the middle, and the padding of a shorter target
    shapes = []
    model.encoder.stack.layers[0].mlp.register_forward_hook(lambda _, args, __: shapes.append(args[0].shape[:2]))
    model(source, attention_mask, target, labels=labels, label_smoothing=0.1).backward()
    packed = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    logits = model.decoder(model.encode(source, attention_mask), target)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=0.1)
    loss.backward()
    assert shapes == [(1, 7 + 3 + 1), (3, 7)]
    assert_close(model(source, attention_mask, target, labels=labels, label_smoothing=0.1), loss)
    assert_close(model.eval()(source, attention_mask, target, labels=labels, label_smoothing=0.1), loss)
    for name, p in model.named_parameters():
        assert_close(packed[name], p.grad, atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("kind", ["transformer", "rnn general"])
def test_loss_without_labels_is_zero_with_zero_gradients(kind):
    model, (source, attention_mask, target) = make_model(kind).train(), make_batch()
    loss = model(source, attention_mask, target, labels=torch.full_like(target, -100))
    loss.backward()
    assert loss == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("kind", ["transformer", "rnn general"])
def test_rows_without_tokens_are_finite(kind):
    model, (source, attention_mask, target) = make_model(kind), make_batch()
    attention_mask[1] = False
    logits = model(source, attention_mask, target)
    assert logits.isfinite().all()
    others = model(source[[0, 2]], attention_mask[[0, 2]], target[[0, 2]])
    assert_close(logits[[0, 2]], others, atol=1e-5, rtol=1e-5)


def test_compiled_model_has_one_graph_for_static_and_one_for_dynamic_shapes():
    model = make_model("transformer", encoder_layers=1, decoder_layers=1, dropout=0.0).train()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True)  # a graph break raises
    for rows, num_source, num_target in ((5, 16, 16), (7, 24, 24), (3, 8, 16), (16, 16, 8), (11, 40, 32)):
        attention_mask = torch.arange(num_source) < torch.randint(1, num_source + 1, (rows, 1))
        source, target = torch.randint(4, 13, (rows, num_source)), torch.randint(4, 17, (rows, num_target))
        labels = target.roll(-1, 1).masked_fill(torch.arange(num_target) >= num_target - 2, -100)
        loss = compiled(source, attention_mask, target, labels=labels, label_smoothing=0.1)
        expected = model(source, attention_mask, target, labels=labels, label_smoothing=0.1)
        assert_close(loss, expected, atol=1e-3, rtol=1e-4)
    torch.compiler.reset()
    assert len(graphs) == 2


@pytest.mark.parametrize(
    ("size", "dimensions"),
    [("tiny", (128, 256, 4, 4, 4)), ("small", (256, 1024, 4, 3, 3)), ("base", (512, 2048, 8, 6, 6))],
)
def test_sizes_set_the_dimensions(size, dimensions):
    config = TransformerSeq2SeqConfig(size=size, **VOCAB_SIZES)
    assert tuple(config.dimensions.values()) == dimensions
    with torch.device("meta"):
        model = Seq2Seq(config)
    assert (len(model.encoder.stack.layers), len(model.decoder.stack.layers)) == dimensions[3:]
    assert model.encoder.stack.layers[0].mlp.fc1.weight.shape == (dimensions[1], dimensions[0])
    changed = TransformerSeq2SeqConfig(size=size, ffn_dim=17, decoder_layers=1)
    assert tuple(changed.dimensions.values()) == (dimensions[0], 17, dimensions[2], dimensions[3], 1)


def test_options_reach_the_blocks():
    model = make_model("transformer", dropout=0.2, attention_dropout=0.4, score="cosine", norm="post")
    block = model.decoder.stack.layers[2]
    assert (block.attention.dropout, block.cross_attention.dropout) == (0.4, 0.4)
    assert (block.dropout.p, block.mlp.dropout.p, model.decoder.dropout.p, model.encoder.dropout.p) == (0.2,) * 4
    assert type(block.cross_attention.score).__name__ == "CosineScore"
    assert not block.pre_norm


def test_learned_positions_are_limited():
    model, (source, attention_mask, _) = make_model("transformer post learned"), make_batch()
    with pytest.raises(ValueError, match="positions must be below max_positions=23, got 23"):
        model(source, attention_mask, torch.ones(3, 24, dtype=torch.int64))


@pytest.mark.parametrize("kind", ["transformer", "rnn general"])
@pytest.mark.parametrize(
    ("tokens", "attention_mask", "message"),
    [
        (torch.ones(2, 3), torch.ones(2, 3).bool(), r"tokens must be int64 .* got torch.float32 \(2, 3\)"),
        (torch.ones(2, 0).long(), torch.ones(2, 0).bool(), r"at least one token, got torch.int64 \(2, 0\)"),
        (
            torch.ones(2, 3).long(),
            torch.ones(2, 3),
            r"attention_mask must be of bools or integers and of shape \(2, 3\), got torch.float32",
        ),
        (torch.ones(2, 3).long(), torch.ones(2, 1).bool(), r"got torch.bool \(2, 1\)"),
        (torch.ones(1, 3).long(), torch.tensor([[1, 0, 1]]), "padding must come last in attention_mask"),
    ],
)
def test_invalid_sources_raise(kind, tokens, attention_mask, message):
    with pytest.raises(ValueError, match=message):
        make_model(kind).encode(tokens, attention_mask)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source_vocab_size": 3}, "source_vocab_size must be an integer of at least 4, got 3"),
        ({"target_vocab_size": 1 << 21}, "target_vocab_size must be at most 1,048,576, got 2097152"),
        ({"tie_embeddings": "both"}, "tie_embeddings must be one of none, target, all, got 'both'"),
        (
            {"tie_embeddings": "all", "source_vocab_size": 5, "target_vocab_size": 7},
            "tie_embeddings must be target or none for different vocabularies, got all with 5 and 7",
        ),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"embed_dim": 0}, "embed_dim must be an integer of at least 1, got 0"),
        ({"embed_dim": 1 << 20}, "embed_dim must be at most 16,384"),
    ],
)
def test_invalid_configs_raise(config, options, message):
    with pytest.raises(ValueError, match=message):
        config(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "bass"}, "size must be one of tiny, small, base, got 'bass'; did you mean 'base'?"),
        ({"positions": "learnt"}, "positions must be one of sinusoidal, learned, got 'learnt'"),
        ({"norm": "per"}, "norm must be one of post, pre, got 'per'; did you mean 'pre'?"),
        (
            {"score": "cosin"},
            "score must be one of additive, cosine, dot, general, got 'cosin'; did you mean 'cosine'?",
        ),
        ({"num_heads": 5}, "num_heads must divide embed_dim=128, got 5"),
        ({"embed_dim": 7, "num_heads": 7}, "embed_dim must be even for sinusoidal positions, got 7"),
        ({"decoder_layers": 0}, "decoder_layers must be an integer of at least 1, got 0"),
        ({"max_positions": 1 << 15}, "max_positions must be at most 16,384"),
    ],
)
def test_invalid_transformer_configs_raise(options, message):
    with pytest.raises(ValueError, match=message):
        TransformerSeq2SeqConfig(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": "rnn"}, "cell must be one of gru, lstm, got 'rnn'"),
        ({"attention": "generel"}, "got 'generel'; did you mean 'general'?"),
        ({"hard": True}, "hard must be false without attention, got True; set attention"),
        ({"hidden_size": 15}, "hidden_size must be even for a bidirectional encoder, got 15"),
    ],
)
def test_invalid_recurrent_configs_raise(options, message):
    with pytest.raises(ValueError, match=message):
        RecurrentSeq2SeqConfig(**options)
    assert RecurrentSeq2SeqConfig(hidden_size=15, bidirectional=False).hidden_size == 15


@pytest.mark.parametrize("config", CONFIGS)
def test_vocab_sizes_come_from_the_data(config):
    sized = for_data(config(tie_embeddings="all"), source_vocab_size=11, target_vocab_size=11)
    assert sized.vocab_sizes == (11, 11)
    with pytest.raises(ValueError, match=r"model\.target_vocab_size must be null or that of the data, 13, got 11"):
        for_data(sized, source_vocab_size=11, target_vocab_size=13)
    with pytest.raises(ValueError, match="tie_embeddings must be target or none for different vocabularies"):
        for_data(config(tie_embeddings="all"), source_vocab_size=11, target_vocab_size=13)
    with pytest.raises(ValueError, match="source_vocab_size and target_vocab_size must be set, got None and None"):
        config().vocab_sizes  # noqa: B018
