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
    changed = TranslatorConfig(size=size, hidden=17, decoder_depth=1)
    assert tuple(changed.form.values()) == (form[0], 17, form[2], form[3], 1)


def test_options_reach_the_blocks():
    model = make("transformer", dropout=0.2, attention_dropout=0.4, score="cosine", norm="post")
    block = model.decoder.layers[2]
    assert (block.attention.dropout, block.cross_attention.dropout) == (0.4, 0.4)
    assert (block.around_attention.dropout.p, block.feed_forward.dropout.p, model.dropout.p) == (0.2, 0.2, 0.2)
    assert type(block.cross_attention.score).__name__ == "CosineScore"
    assert not block.around_attention.pre


@torch.no_grad()
def test_the_source_s_keys_are_made_once_and_shared_by_all_steps(monkeypatch):
    model, (source, real, target) = make("transformer"), batch()
    attention = type(model.decoder.layers[0].cross_attention)
    made = []
    plain = attention._project_context
    monkeypatch.setattr(attention, "_project_context", lambda self, x, maps: made.append(x.shape) or plain(self, x, maps))
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


def test_a_learnt_table_says_where_it_ends():
    model, (source, real, _) = make("transformer post learnt"), batch()
    with pytest.raises(ValueError, match="positions must be below 23, the length they were learnt for, got 23"):
        model(source, real, torch.ones(3, 24, dtype=torch.int64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "bass"}, "size must be one of base, small, tiny, got 'bass'; did you mean 'base'?"),
        ({"positions": "learned"}, "positions must be one of learnt, sinusoidal, got 'learned'"),
        ({"norm": "per"}, "norm must be one of post, pre, got 'per'; did you mean 'pre'?"),
        ({"score": "cosin"}, "score must be one of cosine, dot, got 'cosin'; did you mean 'cosine'?"),
        ({"heads": 5}, "heads must divide width=128, got 5"),
        ({"decoder_depth": 0}, "decoder_depth must be a whole number of at least 1, got 0"),
        ({"most_tokens": 1 << 15}, "most_tokens must be at most 16,384"),
    ],
)
def test_impossible_models_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TranslatorConfig(**options)
