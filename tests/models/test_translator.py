import pytest
import torch
from torch.testing import assert_close

from sightline.models.translator import Translator, TranslatorConfig
from translators import WORDS, batch, make


@pytest.mark.parametrize(
    ("size", "form"),
    [("tiny", (128, 256, 4, 4, 4)), ("small", (256, 1024, 4, 3, 3)), ("base", (512, 2048, 8, 6, 6))],
)
def test_sizes_are_what_their_names_promise(size, form):
    config = TranslatorConfig(size=size, **WORDS)
    assert tuple(config.form.values()) == form
    with torch.device("meta"):
        model = Translator(config)
    assert (len(model.encoder.layers), len(model.decoder.layers)) == form[3:]
    assert model.encoder.layers[0].feed_forward.widen.weight.shape == (form[1], form[0])
    changed = TranslatorConfig(size=size, ffn_dim=17, decoder_layers=1)
    assert tuple(changed.form.values()) == (form[0], 17, form[2], form[3], 1)


def test_options_reach_the_blocks():
    model = make("transformer", dropout=0.2, attention_dropout=0.4, score="cosine", norm="post")
    block = model.decoder.layers[2]
    assert (block.attention.dropout, block.cross_attention.dropout) == (0.4, 0.4)
    assert (block.norm1.dropout.p, block.feed_forward.dropout.p, model.dropout.p) == (0.2, 0.2, 0.2)
    assert type(block.cross_attention.score).__name__ == "CosineScore"
    assert not block.norm1.pre


@torch.no_grad()
def test_the_source_s_keys_are_made_once_and_shared_by_all_steps(monkeypatch):
    model, (source, real, target) = make("transformer"), batch()
    attention = type(model.decoder.layers[0].cross_attention)
    made = []
    plain = attention._project_context
    monkeypatch.setattr(
        attention, "_project_context", lambda self, x, *how: made.append(x.shape) or plain(self, x, *how)
    )
    state = model.start(model.encode(source, real))
    for tokens in target.T:
        _, state = model.step(state, tokens)
    assert len(made) == len(model.decoder.layers)


@torch.no_grad()
def test_a_batch_without_padding_needs_no_mask():
    model, (source, real, target) = make("transformer"), batch()
    whole = torch.ones_like(real)
    state = model.start(model.encode(source, whole))
    assert state.mask is None
    assert_close(model.step(state, target[:, 0])[0], model(source, whole, target)[:, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"norm": "post", "score": "cosine", "tied": "none"}])
def test_what_a_cpu_learns_without_filling_is_what_it_would_learn_with_it(options):
    model, (source, real, target) = make("transformer", dropout=0.0, **options).train(), batch()
    wanted = target.roll(-1, 1)
    wanted[0, 1], wanted[1, 3:] = -100, -100  # one word in the middle, and the filling of a shorter sentence
    seen = []
    model.encoder.layers[0].feed_forward.register_forward_hook(lambda _, given, __: seen.append(given[0].shape[:2]))
    model(source, real, target, wanted=wanted, smoothing=0.1).backward()
    packed = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    loss = model.words.loss(model.decode(model.encode(source, real), target), wanted, smoothing=0.1)
    loss.backward()
    assert seen == [(1, 7 + 3 + 1), (3, 7)]
    assert_close(model(source, real, target, wanted=wanted, smoothing=0.1), loss)
    for name, p in model.named_parameters():
        assert_close(packed[name], p.grad, atol=1e-5, rtol=1e-4, msg=name)


def test_a_batch_of_which_nothing_is_wanted_costs_nothing_and_reaches_every_weight():
    model, (source, real, target) = make("transformer").train(), batch()
    loss = model(source, real, target, wanted=torch.full_like(target, -100))
    loss.backward()
    assert loss == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_a_sentence_without_a_word_is_no_number_gone_wrong():
    model, (source, real, target) = make("transformer"), batch()
    real[1] = False
    logits = model(source, real, target)
    assert logits.isfinite().all()
    alone = model(source[[0, 2]], real[[0, 2]], target[[0, 2]])
    assert_close(logits[[0, 2]], alone, atol=1e-5, rtol=1e-5)


def test_compiled_it_is_one_graph_for_one_shape_and_one_for_all_others():
    model = make("transformer", encoder_layers=1, decoder_layers=1, dropout=0.0).train()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    run = torch.compile(model, backend=backend, fullgraph=True)  # a break would raise
    for rows, places, words in ((5, 16, 16), (7, 24, 24), (3, 8, 16), (16, 16, 8), (11, 40, 32)):
        real = torch.arange(places) < torch.randint(1, places + 1, (rows, 1))
        source, target = torch.randint(4, 13, (rows, places)), torch.randint(4, 17, (rows, words))
        wanted = target.roll(-1, 1).masked_fill(torch.arange(words) >= words - 2, -100)
        loss = run(source, real, target, wanted=wanted, smoothing=0.1)
        assert_close(loss, model(source, real, target, wanted=wanted, smoothing=0.1), atol=1e-3, rtol=1e-4)
    torch.compiler.reset()
    assert len(graphs) == 2


def test_a_learned_table_says_where_it_ends():
    model, (source, real, _) = make("transformer post learned"), batch()
    with pytest.raises(ValueError, match="positions must be below 23, the length they were learned for, got 23"):
        model(source, real, torch.ones(3, 24, dtype=torch.int64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "bass"}, "size must be one of base, small, tiny, got 'bass'; did you mean 'base'?"),
        ({"positions": "learned"}, "positions must be one of learned, sinusoidal, got 'learned'"),
        ({"norm": "per"}, "norm must be one of post, pre, got 'per'; did you mean 'pre'?"),
        ({"score": "cosin"}, "score must be one of cosine, dot, got 'cosin'; did you mean 'cosine'?"),
        ({"heads": 5}, "heads must divide width=128, got 5"),
        ({"decoder_layers": 0}, "decoder_layers must be an integer of at least 1, got 0"),
        ({"max_tokens": 1 << 15}, "max_tokens must be at most 16,384"),
    ],
)
def test_impossible_models_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TranslatorConfig(**options)
