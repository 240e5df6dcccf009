"""Problems reported for torch's attention, one test each. The numbers are issues of pytorch/pytorch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from sightline import record_attention
from sightline.attention import MultiHeadAttention, attend
from sightline.attention.masks import Allow, Causal, Padding, forbid
from sightline.layers import Decoder, Encoder
from sizes import B, K, Q

EMBED_DIM, NUM_HEADS = 12, 2


class UsesSDPA(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


@pytest.fixture
def x():
    return torch.randn(B, Q, EMBED_DIM)


def test_1_fused_attention_returns_weights_98505_119811(x):
    model = UsesSDPA()
    with record_attention(model) as record:
        out = model(x)
    assert_close(record[0].weights[:, 0] @ x, out)


def test_2_transformer_encoder_exposes_its_weights_99304(x):
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(EMBED_DIM, NUM_HEADS, 24, batch_first=True), 3)
    with record_attention(model) as record:
        model(x)
    assert record.stack().shape == (3, B, NUM_HEADS, Q, Q)


def test_3_all_layers_are_recorded_on_the_eval_fast_path_128413_132700(x):
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(EMBED_DIM, NUM_HEADS, 24, batch_first=True), 3).eval()
    with torch.inference_mode(), record_attention(model) as record:
        model(x)
    assert len(record) == 3


@pytest.mark.parametrize("recorded", [True, False])
def test_4_a_fully_masked_row_gives_zeros_and_finite_gradients_160064_41508(x, recorded):
    model = MultiHeadAttention(EMBED_DIM, NUM_HEADS)
    x.requires_grad_()
    allowed = torch.ones(B, Q, Q, dtype=torch.bool)
    allowed[0, 2] = False
    if recorded:
        with record_attention(model):
            out = model(x, mask=Allow(allowed))
    else:
        out = model(x, mask=Allow(allowed))
    assert_close(out[0, 2], model.out_proj.bias)  # attention is zero, which leaves the bias of the output projection
    out.sum().backward()
    for tensor in (out, x.grad, *(p.grad for p in model.parameters())):
        assert tensor.isfinite().all()


def test_5_true_means_may_attend_in_the_function_and_in_the_module_170400(x):
    allowed_pairs = torch.ones(Q, Q, dtype=torch.bool).tril()
    model = MultiHeadAttention(EMBED_DIM, NUM_HEADS)
    assert_close(model(x, mask=Allow(allowed_pairs)), model(x, mask=Causal()))
    assert_close(model(x, mask=forbid(~allowed_pairs)), model(x, mask=Causal()))
    assert_close(attend(x, x, x, mask=Allow(allowed_pairs)), attend(x, x, x, mask=Causal()))
    with pytest.raises(ValueError, match=r"mask must be given a Mask, got a torch\.bool tensor"):
        model(x, mask=allowed_pairs)


def test_6_causal_combines_with_padding_118972_100709(x):
    model = MultiHeadAttention(EMBED_DIM, NUM_HEADS)
    assert_close(attend(x, x, x, mask=Causal())[:, :1], x[:, :1])
    padded = model(x, mask=Causal() & Padding(torch.tensor([[True] * 5, [True] * 3 + [False] * 2])))
    assert_close(padded[1, :3], model(x[1:, :3], mask=Causal())[0])


def test_7_causal_aligns_queries_to_the_last_keys_108108_144858(x):
    full = attend(x, x, x, mask=Causal())
    assert_close(attend(x[:, 3:], x, x, mask=Causal()), full[:, 3:])


def test_8_padded_output_keeps_its_length_97111(x):
    model = Encoder(EMBED_DIM, NUM_HEADS, 24, 2).eval()
    attention_mask = torch.tensor([[True] * 3 + [False] * 2] * B)  # the last position is padding in all rows
    with torch.no_grad():
        assert model(x, mask=Padding(attention_mask)).shape == (B, Q, EMBED_DIM)


def test_9_a_float_padding_mask_is_rejected_92554():
    with pytest.raises(ValueError, match=r"Padding must be given a bool tensor of 2 dimensions, got a torch\.float32"):
        Padding(torch.tensor([[1.0, 0.0]]))


def test_10_recorded_weights_do_not_include_dropout_42929(x):
    model = MultiHeadAttention(EMBED_DIM, NUM_HEADS, dropout=0.5).train()
    with record_attention(model) as record:
        model(x)
    assert_close(record[0].weights.sum(-1), torch.ones(B, NUM_HEADS, Q))


def test_11_the_decoder_has_a_key_value_cache_107573(x):
    model, source = Decoder(EMBED_DIM, NUM_HEADS, 24, 2).eval(), torch.randn(B, K, EMBED_DIM)
    with torch.no_grad():
        cache = model.new_cache()
        steps = [model(x[:, i : i + 1], source, cache=cache) for i in range(Q)]
        assert_close(torch.cat(steps, 1), model(x, source), atol=1e-5, rtol=1e-5)


def test_12_scores_before_the_softmax_are_recorded_100293(x):
    theirs = nn.TransformerEncoderLayer(EMBED_DIM, NUM_HEADS, 24, batch_first=True)
    for model in (MultiHeadAttention(EMBED_DIM, NUM_HEADS), UsesSDPA(), theirs):
        with record_attention(model, scores=True) as record:
            model(x)
        assert_close(record[0].scores.softmax(-1), record[0].weights)
