import copy
import re
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.testing import assert_close

from sightline import ablate_heads, record_attention
from sightline.attention import SCORES, MultiHeadAttention, attend, attention_weights, recording
from sightline.attention.masks import Causal, Padding
from sightline.attention.torch_functions import TorchAttentionMode
from sightline.errors import SightlineWarning
from sightline.layers import Transformer
from sizes import B, K, Q

EMBED_DIM, NUM_HEADS = 12, 3


def traces(model):
    """State that a recording changes and must restore."""
    return [
        (name, sorted(vars(module)), len(module._forward_hooks), len(module._forward_pre_hooks), module.training)
        for name, module in model.named_modules()
    ] + [len(hooks) for name, hooks in sorted(vars(nn.modules.module).items()) if name.startswith("_global_forward")]


def record_and_check(model, *args, **kwargs):
    """Run with and without recording; outputs and state must not change."""
    before = traces(model)
    options = kwargs.pop("options", {})
    plain = model(*args, **kwargs)
    with record_attention(model, **options) as record:
        recorded = model(*args, **kwargs)
    assert traces(model) == before
    plain, recorded = (out[0] if isinstance(out, tuple) else out for out in (plain, recorded))
    assert_close(recorded, plain, atol=1e-5, rtol=0)
    for attention_map in record:
        sums = attention_map.weights.sum(-1)
        assert (((sums - 1).abs() < 1e-4) | (sums == 0)).all()
        assert not attention_map.weights.requires_grad
    return record


def test_sightline_transformer_is_recorded_layer_by_layer():
    model = Transformer(EMBED_DIM, NUM_HEADS, 24, 2).eval()
    record = record_and_check(model, torch.randn(B, K, EMBED_DIM), torch.randn(B, Q, EMBED_DIM))
    assert [
        (attention_map.name, attention_map.kind, tuple(attention_map.weights.shape)) for attention_map in record
    ] == [
        ("encoder.layers.0.attention", "encoder", (B, NUM_HEADS, K, K)),
        ("encoder.layers.1.attention", "encoder", (B, NUM_HEADS, K, K)),
        ("decoder.layers.0.attention", "decoder", (B, NUM_HEADS, Q, Q)),
        ("decoder.layers.0.cross_attention", "cross", (B, NUM_HEADS, Q, K)),
        ("decoder.layers.1.attention", "decoder", (B, NUM_HEADS, Q, Q)),
        ("decoder.layers.1.cross_attention", "cross", (B, NUM_HEADS, Q, K)),
    ]


@pytest.mark.parametrize("score", SCORES)
def test_recorded_weights_equal_attention_weights(score):
    model = MultiHeadAttention(EMBED_DIM, NUM_HEADS, score=score)
    x = torch.randn(B, Q, EMBED_DIM)
    mask = Padding(torch.tensor([[True] * Q, [True] * 3 + [False] * 2]))
    record = record_and_check(model, x, mask=mask)
    q, k, _ = (part.unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2) for part in model.qkv(x).chunk(3, -1))
    assert_close(record[0].weights, attention_weights(q, k, score=model.score, mask=mask))
    assert (record[0].weights[1, :, :, 3:] == 0).all()


def test_kinds_of_multihead_attention():
    model = MultiHeadAttention(EMBED_DIM, NUM_HEADS)
    x, context = torch.randn(B, Q, EMBED_DIM), torch.randn(B, K, EMBED_DIM)
    assert record_and_check(model, x)[0].kind == "encoder"
    assert record_and_check(model, x, mask=Causal())[0].kind == "decoder"
    assert record_and_check(model, x, context)[0].kind == "cross"


def test_modules_that_call_attend_are_recorded():
    class Custom(nn.Module):
        def forward(self, x):
            return attend(x, x, x, normalizer="standardize", kind="cross")

    model = Custom()
    with record_attention(model) as record:
        model(torch.randn(B, Q, EMBED_DIM))
    assert (record[0].name, record[0].kind, tuple(record[0].weights.shape)) == ("Custom", "cross", (B, 1, Q, Q))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_torch_multihead_attention_is_recorded(training, batch_first, grad):
    model = nn.MultiheadAttention(EMBED_DIM, 2, batch_first=batch_first).train(training)
    x = torch.randn(B, Q, EMBED_DIM)
    inputs = x if batch_first else x.transpose(0, 1)
    padded = torch.tensor([[False] * Q, [False] * 3 + [True] * 2])
    with torch.set_grad_enabled(grad):
        for need_weights in (True, False):
            record = record_and_check(model, inputs, inputs, inputs, key_padding_mask=padded, need_weights=need_weights)
            expected = model(inputs, inputs, inputs, key_padding_mask=padded, average_attn_weights=False)[1]
            assert_close(record[0].weights, expected, atol=1e-6, rtol=1e-5)
            assert (record[0].weights[1, :, :, 3:] == 0).all()


def test_torch_attention_with_extra_keys_other_dims_and_no_batch_is_recorded():
    extra = nn.MultiheadAttention(EMBED_DIM, NUM_HEADS, add_bias_kv=True, add_zero_attn=True)
    x = torch.randn(Q, EMBED_DIM)
    assert record_and_check(extra, x, x, x)[0].weights.shape == (1, NUM_HEADS, Q, Q + 2)
    wide = nn.MultiheadAttention(EMBED_DIM, NUM_HEADS, kdim=5, vdim=7, batch_first=True).eval()
    record = record_and_check(wide, torch.randn(B, Q, EMBED_DIM), torch.randn(B, K, 5), torch.randn(B, K, 7))
    assert (record[0].kind, tuple(record[0].weights.shape)) == ("cross", (B, NUM_HEADS, Q, K))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("padding", [True, False])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_torch_encoder_is_recorded_in_eval_mode_with_unchanged_output(norm_first, grad, padding):
    layer = nn.TransformerEncoderLayer(EMBED_DIM, 2, 24, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2).eval()
    padded = torch.tensor([[False] * 4 + [True], [False] * 3 + [True] * 2]) if padding else None
    with torch.set_grad_enabled(grad):
        record = record_and_check(model, torch.randn(B, Q, EMBED_DIM), src_key_padding_mask=padded)
    assert [attention_map.name for attention_map in record] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert all(attention_map.kind == "encoder" for attention_map in record)
    if padding:
        assert (record[1].weights[1, :, :, 3:] == 0).all()


def test_torch_encoder_layer_is_recorded_on_its_fast_path():
    model = nn.TransformerEncoderLayer(EMBED_DIM, 2, 24, batch_first=True).eval()
    with torch.no_grad():
        record = record_and_check(model, torch.randn(B, Q, EMBED_DIM))
    assert record.names() == ["self_attn"]


@pytest.mark.parametrize("training", [True, False])
def test_torch_transformer_is_recorded_with_all_three_kinds(training):
    model = nn.Transformer(EMBED_DIM, 2, 2, 2, 24, dropout=0.0, batch_first=True).train(training)
    causal = nn.Transformer.generate_square_subsequent_mask(Q)
    with torch.no_grad():
        record = record_and_check(model, torch.randn(B, K, EMBED_DIM), torch.randn(B, Q, EMBED_DIM), tgt_mask=causal)
    assert [attention_map.kind for attention_map in record] == [
        "encoder",
        "encoder",
        "decoder",
        "cross",
        "decoder",
        "cross",
    ]
    assert (record.of("decoder")[0].weights.triu(1) == 0).all()
    assert record.of("cross").stack().shape == (2, B, 2, Q, K)


def test_torch_decoder_is_recorded():
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(EMBED_DIM, 2, 24, batch_first=True), 2).eval()
    with torch.no_grad():
        record = record_and_check(model, torch.randn(B, Q, EMBED_DIM), torch.randn(B, K, EMBED_DIM))
    assert [attention_map.kind for attention_map in record] == ["decoder", "cross", "decoder", "cross"]


class BareSDPA(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **self.options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": (torch.arange(K) < 4).expand(Q, K)},
        {"attn_mask": torch.randn(Q, K)},
        {"attn_mask": torch.zeros(Q, K).masked_fill(torch.arange(K) > 4, float("-inf"))},
    ],
)
def test_calls_of_torch_sdpa_are_recorded(options):
    q, k = torch.randn(B, NUM_HEADS, Q, 4), torch.randn(B, NUM_HEADS, K, 4)
    values = torch.eye(K).expand(B, NUM_HEADS, K, K)  # with the identity as values, the output equals the weights
    model = BareSDPA(**options)
    record = record_and_check(model, q, k, values)
    assert_close(record[0].weights, model(q, k, values), atol=1e-6, rtol=1e-5)


def test_grouped_query_attention_is_recorded():
    q, k = torch.randn(B, 6, Q, 4), torch.randn(B, 2, K, 4)
    values = torch.eye(K).expand(B, 2, K, K)
    model = BareSDPA(enable_gqa=True)
    assert_close(record_and_check(model, q, k, values)[0].weights, model(q, k, values), atol=1e-6, rtol=1e-5)


def test_attention_outside_the_model_is_not_recorded():
    q = torch.randn(B, NUM_HEADS, Q, 4)
    model, another = BareSDPA(), BareSDPA()
    with record_attention(model) as record:
        another(q, q, q)
        F.scaled_dot_product_attention(q, q, q)
        attend(q, q, q)
        assert len(record) == 0
        model(q, q, q)
        assert len(record) == 1


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_hugging_face_models_are_recorded(implementation):
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0}
    bert = transformers.BertConfig(
        **small, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=24
    )
    gpt2 = transformers.GPT2Config(**small, n_embd=12, n_layer=2, n_head=3)
    marian = transformers.MarianConfig(
        vocab_size=50, d_model=12, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3,
        decoder_attention_heads=3, encoder_ffn_dim=24, decoder_ffn_dim=24, pad_token_id=0, eos_token_id=0,
        forced_eos_token_id=None, decoder_start_token_id=0,
    )  # fmt: skip
    llama = transformers.LlamaConfig(
        **small, hidden_size=12, intermediate_size=24, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3
    )
    t5 = transformers.T5Config(
        vocab_size=50, d_model=12, d_kv=4, d_ff=24, num_layers=2, num_heads=3, decoder_start_token_id=0, pad_token_id=0
    )
    vit = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=24, image_size=8, patch_size=4
    )
    text = {"input_ids": torch.randint(1, 50, (B, Q)), "attention_mask": torch.tensor([[1] * 5, [1] * 3 + [0] * 2])}
    cases = [
        (transformers.BertModel, bert, text, ["encoder"] * 2, (B, 3, Q, Q)),
        (transformers.GPT2Model, gpt2, text, ["decoder"] * 2, (B, 3, Q, Q)),
        (transformers.LlamaModel, llama, text, ["decoder"] * 2, (B, 6, Q, Q)),
        (transformers.ViTModel, vit, {"pixel_values": torch.randn(B, 3, 8, 8)}, ["encoder"] * 2, (B, 3, 5, 5)),
        *(
            (
                kind,
                config,
                {**text, "decoder_input_ids": torch.randint(1, 50, (B, 4))},
                ["encoder", "encoder", "decoder", "cross", "decoder", "cross"],
                (B, 3, Q, Q),
            )
            for kind, config in ((transformers.MarianModel, marian), (transformers.T5Model, t5))
        ),
    ]
    for kind, config, inputs, kinds, shape in cases:
        model = kind._from_config(config, attn_implementation=implementation).eval()
        eager = kind._from_config(config, attn_implementation="eager").eval()
        eager.load_state_dict(model.state_dict())
        with torch.no_grad():
            plain = model(**inputs)[0]
            with record_attention(model) as record:
                assert_close(model(**inputs)[0], plain, atol=1e-5, rtol=0)
            expected_outputs = eager(**inputs, output_attentions=True)
        assert [attention_map.kind for attention_map in record] == kinds
        assert record[0].weights.shape == shape
        for attention_kind, names in {
            "encoder": ("attentions", "encoder_attentions"),
            "decoder": ("attentions", "decoder_attentions"),
            "cross": ("cross_attentions",),
        }.items():
            theirs = next((expected_outputs[name] for name in names if expected_outputs.get(name) is not None), ())
            ours = record.of(attention_kind)
            for attention_map, expected in zip(ours, theirs if len(ours) else (), strict=True):
                assert_close(attention_map.weights, expected, atol=1e-5, rtol=1e-4)


class SoftmaxModule(nn.Module):
    def forward(self, scores):
        return scores.softmax(-1)


class AttentionWithSoftmaxModule(nn.Module):
    """Self-attention whose softmax is a module inside it."""

    num_heads = NUM_HEADS

    def __init__(self):
        super().__init__()
        self.project, self.softmax = nn.Linear(EMBED_DIM, 3 * EMBED_DIM), SoftmaxModule()

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2) for y in self.project(x).chunk(3, -1))
        return (self.softmax(q @ k.mT) @ v).transpose(1, 2).flatten(2)


def test_every_call_of_a_softmax_module_is_recorded():
    model = nn.Sequential(AttentionWithSoftmaxModule(), AttentionWithSoftmaxModule())
    with record_attention(model) as record:
        for _ in range(3):
            model(torch.randn(B, Q, EMBED_DIM))
    assert [m.name for m in record.maps] == ["0", "1"] * 3
    assert not record.missed


def test_modules_without_attention_are_not_intercepted_again(monkeypatch):
    """Their first two calls are. Neither is the code of modules with attention inside only, also after an error."""

    class Tanh(nn.Tanh):
        """A module of another package."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend, self.mlp = MultiHeadAttention(EMBED_DIM, NUM_HEADS), nn.Sequential(nn.Sequential(Tanh()))

        def forward(self, x, fails=False):
            x = self.mlp(self.attend(x))
            return x.unflatten(0, (-1, B + 1)) if fails else x.cosh()

    intercepted, intercept = [], TorchAttentionMode.__torch_function__

    def count(mode, function, *args):
        intercepted.append(getattr(function, "__name__", ""))
        return intercept(mode, function, *args)

    monkeypatch.setattr(TorchAttentionMode, "__torch_function__", count)
    model, x = nn.Sequential(Block(), Block()).eval(), torch.randn(B, Q, EMBED_DIM)
    with torch.no_grad(), record_attention(model) as record:
        for _ in range(2):
            model(x)
        assert [intercepted.count(name) for name in ("tanh", "cosh")] == [4, 4]
        with pytest.raises(RuntimeError, match="unflatten"):
            model[0](x, fails=True)
        intercepted.clear()
        model(x)
        assert [intercepted.count(name) for name in ("tanh", "cosh")] == [0, 0]
        x.sinh()  # outside of the model
        assert intercepted.count("sinh") == 1
    assert len(record) == 7


def test_attention_that_starts_with_the_second_call_is_recorded():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend, self.calls = MultiHeadAttention(EMBED_DIM, NUM_HEADS), 0

        def forward(self, x):
            self.calls += 1
            return self.attend(x) if self.calls == 1 else F.scaled_dot_product_attention(x, x, x)

    model = nn.Sequential(Block())
    with record_attention(model) as record:
        for _ in range(3):
            model(torch.randn(B, Q, EMBED_DIM))
    assert [m.name for m in record.maps] == ["0.attend", "0", "0"]


def test_torch_encoders_take_no_fast_path_in_later_calls():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)

        def forward(self, x):
            return self.encoder(x).cos()

    model, x = nn.Sequential(Encoder()).eval(), torch.randn(B, Q, 8)
    with torch.no_grad(), record_attention(model) as record:
        for _ in range(4):
            model(x)
    assert len(record) == 8
    assert not record.missed


def test_a_module_that_attends_in_one_of_its_places_is_recorded_there_in_every_call():
    class GatedBlock(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = AttentionWithSoftmaxModule()

        def forward(self, x):
            return self.attend(x * self.attend.softmax(x))

    model = GatedBlock()
    with record_attention(model) as record:
        for _ in range(3):
            model(torch.randn(B, Q, EMBED_DIM))
    assert [m.name for m in record.maps] == ["attend"] * 3
    assert not record.missed


@pytest.mark.parametrize("heads", [2, 3])  # with an even number, torch makes nested tensors of padded ones
def test_every_call_of_a_padded_encoder_has_the_same_maps_and_ablations(heads):
    layer = nn.TransformerEncoderLayer(6 * heads, heads, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=heads % 2 == 0)
    model = nn.ModuleDict({"inner": encoder}).eval()
    model.forward = lambda *args, **kwargs: encoder(*args, **kwargs)
    x, padding = torch.randn(2, 5, 6 * heads), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad(), record_attention(model) as record:
        outputs = [model(x, src_key_padding_mask=padding) for _ in range(3)]
    maps = [m.weights for m in record]
    assert len(maps) == 6
    for i in range(2):
        assert_close(maps[i + 2], maps[i])
        assert_close(maps[i + 4], maps[i])
    with torch.no_grad(), ablate_heads(model, {"*": 0}):
        ablated = [model(x, src_key_padding_mask=padding) for _ in range(3)]
    for first, *others in (outputs, ablated):
        for other in others:
            assert_close(other, first)
    assert (ablated[0] - outputs[0]).abs().max() > 1e-3


def test_repeated_forward_passes_of_checkpointing_are_not_calls():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(EMBED_DIM, EMBED_DIM)

        def forward(self, x):
            q = self.project(x).unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2)
            return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block()])

        def forward(self, x):
            for block in self.blocks:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            return x

    model = Model()
    with record_attention(model) as record:
        for _ in range(3):
            model(torch.randn(B, Q, EMBED_DIM)).sum().backward()
    assert [(m.call_index, m.name) for m in record.maps] == [(i, f"blocks.{j}") for i in range(3) for j in range(2)]
    assert not record.missed


def test_softmax_outside_attention_is_not_recorded():
    class Gate(nn.Module):
        def forward(self, x):
            return x * x.softmax(-1)

    class StemAttention(nn.Module):
        num_heads = 5

        def forward(self, x):
            x.softmax(1)  # not over the last dimension
            return x.softmax(-1)  # of 2 heads instead of 5

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.stem, self.attend = Gate(), StemAttention(), MultiHeadAttention(EMBED_DIM, NUM_HEADS)

        def forward(self, x):
            self.gate(x[:, None]), self.stem(torch.randn(B, 2, Q, Q))
            return self.attend(x), torch.zeros(1, 1, Q, Q)

    with pytest.warns(SightlineWarning, match=r"partial; not recorded: stem \(a softmax over \(2, 2, 5, 5\) is not"):
        record = record_and_check(Net().eval(), torch.randn(B, Q, EMBED_DIM))
    assert record.names() == ["attend"]
    assert list(record.missed) == ["stem"]


def test_custom_attention_is_recorded_before_dropout():
    class CustomAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.normalizer = nn.Softmax(dim=-1)

        def forward(self, x):
            return F.dropout(self.normalizer(x @ x.mT), 0.5)

    model = CustomAttention()
    with record_attention(model, scores=True) as record:
        model(torch.randn(B, NUM_HEADS, Q, 4))
    assert record.names() == ["CustomAttention"]
    assert_close(record[0].weights.sum(-1), torch.ones(B, NUM_HEADS, Q))
    assert_close(record[0].scores.softmax(-1), record[0].weights)


def test_attention_without_a_head_dimension_keeps_its_batch():
    x = torch.randn(7, Q, 4)
    assert record_and_check(BareSDPA(), x, x, x)[0].weights.shape == (7, 1, Q, Q)
    assert record_and_check(BareSDPA(), x[0], x[0], x[0])[0].weights.shape == (1, 1, Q, Q)


def test_half_precision_does_not_overflow():
    x = torch.full((1, 2, Q, 64), 40.0, dtype=torch.float16)
    weights = record_and_check(BareSDPA(), x, x, x)[0].weights
    assert_close(weights.float(), torch.full((1, 2, Q, Q), 1 / Q), atol=1e-3, rtol=0)


def test_kinds_depend_on_inputs_rather_than_names():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.multihead_attn = nn.MultiheadAttention(EMBED_DIM, NUM_HEADS, batch_first=True)

        def forward(self, x, mask=None):
            shifted = x + 1
            return self.multihead_attn(shifted, shifted, x, attn_mask=mask)[0]

    x = torch.randn(B, Q, EMBED_DIM)
    assert record_and_check(Block(), x)[0].kind == "encoder"
    causal = torch.ones(Q, Q, dtype=torch.bool).triu(1)
    assert record_and_check(Block(), x, causal)[0].kind == "decoder"


def test_equal_queries_and_keys_in_different_tensors_are_self_attention():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = nn.MultiheadAttention(EMBED_DIM, NUM_HEADS)

        def forward(self, x):
            return self.attend(x + 1, x + 1, x)[0]

    assert record_and_check(Block(), torch.randn(B, Q, EMBED_DIM))[0].kind == "encoder"


def test_softmax_with_keyword_arguments_is_recorded():
    class CustomAttention(nn.Module):
        def forward(self, x):
            return torch.softmax(input=x @ x.mT, dim=-1) + F.softmax(input=x, dim=0).sum()

    assert len(record_and_check(CustomAttention(), torch.randn(B, NUM_HEADS, Q, 4))) == 1


def test_scores_of_torch_modules_are_recorded():
    model = nn.MultiheadAttention(EMBED_DIM, NUM_HEADS, batch_first=True)
    x = torch.randn(B, Q, EMBED_DIM)
    causal = torch.ones(Q, Q, dtype=torch.bool).triu(1)
    record = record_and_check(model, x, x, x, attn_mask=causal, options={"scores": True, "heads": 1})
    assert record[0].scores.shape == (B, 1, Q, Q)
    assert_close(record[0].scores.softmax(-1), record[0].weights)
    mean = record_and_check(model, x, x, x, options={"scores": True, "average_heads": True})
    assert mean[0].scores.shape == (B, 1, Q, Q)


def test_masked_scores_are_minus_infinity():
    model = MultiHeadAttention(EMBED_DIM, NUM_HEADS, mask=Causal())
    record = record_and_check(model, torch.randn(B, Q, EMBED_DIM), options={"scores": True})
    assert_close(record[0].scores.softmax(-1), record[0].weights)


def test_compiled_models_are_recorded():
    for inner, args in (
        (MultiHeadAttention(EMBED_DIM, NUM_HEADS), 1),
        (nn.MultiheadAttention(EMBED_DIM, 2, batch_first=True), 3),
    ):
        model = torch.compile(inner.eval(), backend="eager")
        x = torch.randn(B, Q, EMBED_DIM)
        model(*[x] * args)
        for recorded in (model, inner):
            with record_attention(recorded) as record:
                model(*[x] * args)
            assert [name.rpartition(".")[2] for name in record.names()] == [type(inner).__name__]


def test_checkpointed_attention_is_recorded_once():
    model = MultiHeadAttention(EMBED_DIM, NUM_HEADS)
    with record_attention(model) as record:
        x = torch.randn(B, Q, EMBED_DIM, requires_grad=True)
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
    assert len(record) == 1


def test_attention_of_another_thread_is_not_recorded():
    model, x = MultiHeadAttention(EMBED_DIM, NUM_HEADS), torch.randn(B, Q, EMBED_DIM)
    with record_attention(model) as record:
        thread = threading.Thread(target=model, args=(x,))
        thread.start(), thread.join()
        assert len(record) == 0
        model(x)
    assert len(record) == 1


def test_an_error_in_the_model_ends_its_call():
    class Net(nn.Module):
        def forward(self, x, fail):
            if fail:
                raise RuntimeError("no")
            return attend(x, x, x)

    model, x = Net(), torch.randn(B, Q, EMBED_DIM)
    with record_attention(model) as record:
        with pytest.raises(RuntimeError, match="no"):
            model(x, fail=True)
        attend(x, x, x), F.scaled_dot_product_attention(x, x, x)
        assert len(record) == 0
        model(x, fail=False)
    assert len(record) == 1


def test_recursive_models_are_recorded_at_every_depth():
    class Recursive(nn.Module):
        def forward(self, x, times):
            x = self(x, times - 1) if times else x
            return attend(x, x, x)

    model = Recursive()
    with record_attention(model) as record:
        model(torch.randn(B, Q, EMBED_DIM), 2)
    assert len(record) == 3


def test_user_hooks_fire_once():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(EMBED_DIM, 2, 24, batch_first=True), 1).eval()
    fired = []
    model.layers[0].register_forward_hook(lambda *args: fired.append(1))
    with torch.no_grad(), record_attention(model):
        model(torch.randn(B, Q, EMBED_DIM))
    assert len(fired) == 1


def test_fully_masked_rows_of_torch_are_zero():
    model = nn.MultiheadAttention(EMBED_DIM, NUM_HEADS, batch_first=True)
    x = torch.randn(1, Q, EMBED_DIM)
    with record_attention(model) as record:
        model(x, x, x, key_padding_mask=torch.ones(1, Q, dtype=torch.bool))
    assert (record[0].weights == 0).all()


def test_cpu_option_moves_maps_to_the_cpu(monkeypatch):
    moved = []
    to_cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: moved.append(1) or to_cpu(self))
    model = MultiHeadAttention(EMBED_DIM, NUM_HEADS)
    for cpu in (False, True):
        record_and_check(model, torch.randn(B, Q, EMBED_DIM), options={"cpu": cpu})
        assert bool(moved) == cpu


def test_layers_are_selected_by_name_or_index():
    model = Transformer(EMBED_DIM, NUM_HEADS, 24, 2).eval()
    inputs = torch.randn(B, K, EMBED_DIM), torch.randn(B, Q, EMBED_DIM)
    names = record_and_check(model, *inputs).names()
    by_name = record_and_check(model, *inputs, options={"layers": "decoder.*.cross_attention"})
    assert by_name.names() == [name for name in names if "cross" in name]
    by_index = record_and_check(model, *inputs, options={"layers": [0, 3]})
    assert by_index.names() == [names[0], names[3]]


def test_unselected_layers_use_fused_attention(monkeypatch):
    calls = []
    forward = MultiHeadAttention(EMBED_DIM, NUM_HEADS).normalizer.__class__.forward
    monkeypatch.setattr(
        "sightline.attention.normalizers.Softmax.forward", lambda *args: calls.append(1) or forward(*args)
    )
    model = Transformer(EMBED_DIM, NUM_HEADS, 24, 2).eval()
    with record_attention(model, layers=0):
        model(torch.randn(B, K, EMBED_DIM), torch.randn(B, Q, EMBED_DIM))
    assert len(calls) == 1


def test_heads_are_selected_and_averaged():
    model = MultiHeadAttention(EMBED_DIM, NUM_HEADS)
    x = torch.randn(B, Q, EMBED_DIM)
    whole = record_and_check(model, x)[0].weights
    assert_close(record_and_check(model, x, options={"heads": [2, 0]})[0].weights, whole[:, [2, 0]])
    assert_close(record_and_check(model, x, options={"heads": 1})[0].weights, whole[:, [1]])
    mean = record_and_check(model, x, options={"average_heads": True})[0]
    assert_close(mean.weights, whole.mean(1, keepdim=True))
    assert "heads averaged" in repr(record_and_check(model, x, options={"average_heads": True}))


def test_scores_option_keeps_scores_before_the_normalizer():
    model = MultiHeadAttention(EMBED_DIM, NUM_HEADS, score="cosine")
    record = record_and_check(model, torch.randn(B, Q, EMBED_DIM), options={"scores": True, "cpu": True})
    assert_close(record[0].scores.softmax(-1), record[0].weights)
    assert record[0].scores.abs().max() <= 20.001
    assert record_and_check(model, torch.randn(B, Q, EMBED_DIM))[0].scores is None


def test_recorded_weights_do_not_include_dropout():
    x = torch.randn(B, Q, EMBED_DIM)
    for model, args in (
        (MultiHeadAttention(EMBED_DIM, NUM_HEADS, dropout=0.5), (x,)),
        (nn.MultiheadAttention(EMBED_DIM, NUM_HEADS, dropout=0.5, batch_first=True), (x, x, x)),
    ):
        model.train()
        with record_attention(model) as record:
            model(*args)
        assert_close(record[0].weights.sum(-1), torch.ones(B, NUM_HEADS, Q))
        assert (record[0].weights > 0).all()


def test_recording_does_not_change_random_numbers_of_torch_modules():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(EMBED_DIM, 2, 24, dropout=0.3, batch_first=True), 2)
    x = torch.randn(B, Q, EMBED_DIM)
    torch.manual_seed(5)
    plain = model(x)
    torch.manual_seed(5)
    with record_attention(model):
        assert torch.equal(model(x), plain)


def test_gradients_are_unchanged_while_recording():
    model, x = MultiHeadAttention(EMBED_DIM, NUM_HEADS, score="cosine"), torch.randn(B, Q, EMBED_DIM)
    twin = copy.deepcopy(model)
    with record_attention(model):
        model(x).square().sum().backward()
    twin(x).square().sum().backward()
    for ours, expected in zip(model.parameters(), twin.parameters(), strict=True):
        assert_close(ours.grad, expected.grad, atol=1e-4, rtol=1e-4)


def test_recordings_can_be_nested():
    model = Transformer(EMBED_DIM, NUM_HEADS, 24, 1).eval()
    with record_attention(model) as outer, record_attention(model.encoder) as inner:
        model(torch.randn(B, K, EMBED_DIM), torch.randn(B, Q, EMBED_DIM))
    assert (len(outer), inner.names()) == (3, ["layers.0.attention"])
    theirs, x = nn.MultiheadAttention(EMBED_DIM, NUM_HEADS), torch.randn(B, Q, EMBED_DIM)
    with record_attention(theirs) as outer, record_attention(theirs) as inner:
        theirs(x, x, x)
    assert (len(outer), len(inner)) == (1, 1)


def test_an_error_in_the_block_is_raised_and_leaves_no_traces():
    model = Transformer(EMBED_DIM, NUM_HEADS, 24, 1)
    before = traces(model)
    with pytest.raises(ValueError, match="x must have shape"), record_attention(model):
        model(torch.randn(B, K, 5), torch.randn(B, Q, 5))
    assert traces(model) == before
    with record_attention(model) as record:
        model(torch.randn(B, K, EMBED_DIM), torch.randn(B, Q, EMBED_DIM))
    assert len(record) == 3


class PlainDecoder(nn.Module):
    """Self-attention with a cache and cross-attention, in modules with neutral names."""

    class Attention(nn.Module):
        def forward(self, x, past):
            heads = [part.unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2) for part in (x, past, past)]
            return (
                F.scaled_dot_product_attention(*heads, is_causal=1 < x.shape[1] == past.shape[1])
                .transpose(1, 2)
                .flatten(2)
            )

    def __init__(self):
        super().__init__()
        self.first, self.second = self.Attention(), self.Attention()
        self.past = torch.zeros(1, 0, EMBED_DIM)

    def forward(self, x, source):
        self.past = torch.cat([self.past, x], 1)
        return self.second(self.first(x, self.past), source)


@pytest.mark.parametrize("steps", [(1, 1, 1), (3, 1, 1)], ids=["from the first token", "after a prompt"])
def test_kinds_are_inferred_from_all_calls(steps):
    model, source = PlainDecoder(), torch.randn(1, K, EMBED_DIM)
    with record_attention(model) as record:
        for size in steps:
            model(torch.randn(1, size, EMBED_DIM), source)
    assert {attention_map.kind for attention_map in record if attention_map.name == "first"} == {"decoder"}
    assert {attention_map.kind for attention_map in record if attention_map.name == "second"} == {"cross"}


@pytest.mark.parametrize("window", [2, 4])
def test_sliding_windows_are_decoder_attention_beside_a_whole_cache(window):
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.whole, self.local = PlainDecoder.Attention(), PlainDecoder.Attention()
            self.past = torch.zeros(1, 0, EMBED_DIM)

        def forward(self, x):
            self.past = torch.cat([self.past, x], 1)
            local = self.past[:, -max(window, x.shape[1]) :]
            return self.local(self.whole(x, self.past), local)

    model = Layers()
    with record_attention(model) as record:
        for size in (4, 1, 1):
            model(torch.randn(1, size, EMBED_DIM))
    assert {attention_map.kind for attention_map in record} == {"decoder"}


def test_single_queries_over_unrelated_keys_are_cross_attention():
    model = PlainDecoder.Attention()
    with record_attention(model) as record:
        for size in (4, 5, 6):  # unrelated sequences of growing length
            model(torch.randn(1, 1, EMBED_DIM), torch.randn(1, size, EMBED_DIM))
    assert {attention_map.kind for attention_map in record} == {"cross"}


def test_cached_decoding_is_recorded_step_by_step():
    model = Transformer(EMBED_DIM, NUM_HEADS, 24, 1).eval()
    source, target = torch.randn(B, K, EMBED_DIM), torch.randn(B, Q, EMBED_DIM)
    cache = model.decoder.new_cache()
    with torch.no_grad(), record_attention(model.decoder, layers="*.cross_attention") as record:
        for i in range(Q):
            model.decoder(target[:, i : i + 1], source, cache=cache)
    with torch.no_grad(), record_attention(model.decoder, layers="*.cross_attention") as whole:
        model.decoder(target, source)
    assert_close(
        torch.cat([attention_map.weights for attention_map in record], 2), whole[0].weights, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: (nn.Linear(3, 3), {}), "got Linear without any; supported are Sightline's attention"),
        (lambda: (nn.Conv2d(3, 3, 1), {}), 'load a Hugging Face model with attn_implementation="sdpa"'),
    ],
)
def test_models_without_attention_raise(make, message):
    model, options = make()
    with pytest.raises(ValueError, match=re.escape(message)), record_attention(model, **options):
        model(torch.randn(3, 3, 3))


def test_a_model_that_is_not_called_raises():
    with (
        pytest.raises(ValueError, match="must see Linear called inside the with block and in its thread"),
        record_attention(nn.Linear(2, 2)),
    ):
        pass


def test_layers_that_match_nothing_raise():
    model = MultiHeadAttention(EMBED_DIM, NUM_HEADS)
    message = "layers must match one of MultiHeadAttention, got ['encoder.*']"
    with pytest.raises(ValueError, match=re.escape(message)), record_attention(model, layers="encoder.*"):
        model(torch.randn(B, Q, EMBED_DIM))


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("bert", {}, "record_attention must be given a torch.nn.Module, got str"),
        (nn.Linear(2, 2), {"layers": -1}, "layers must be names or indices of at least 0, got -1"),
        (nn.Linear(2, 2), {"heads": []}, "heads must be indices of at least 0, got []"),
        (nn.Linear(2, 2), {"heads": [True]}, "heads must be indices of at least 0, got [True]"),
    ],
)
def test_invalid_options_raise(model, options, message):
    with pytest.raises(ValueError, match=re.escape(message)), record_attention(model, **options):
        pass


def test_head_index_out_of_range_raises():
    model = MultiHeadAttention(EMBED_DIM, NUM_HEADS)
    with (
        pytest.raises(ValueError, match="heads must be below 3, the number of heads, got 3"),
        record_attention(model, heads=3),
    ):
        model(torch.randn(B, Q, EMBED_DIM))


def compile_stance():
    import torch._dynamo.eval_frame

    return torch._dynamo.eval_frame._stance.stance


def run_threads(*functions):
    """Run each function in a thread and raise the first of their exceptions."""
    with ThreadPoolExecutor(len(functions)) as pool:
        for future in [pool.submit(function) for function in functions]:
            future.result(timeout=180)


def test_overlapping_recordings_in_threads_restore_process_wide_state():
    model, x = MultiHeadAttention(EMBED_DIM, NUM_HEADS), torch.randn(B, Q, EMBED_DIM)
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    before, filters = traces(model), list(warnings.filters)
    first_started, second_started, first_ended = (threading.Event() for _ in range(3))

    def first():
        with record_attention(model):
            first_started.set()
            assert second_started.wait(120)
            model(x)
        first_ended.set()

    def second():
        assert first_started.wait(120)
        with record_attention(model) as record:
            second_started.set()
            assert first_ended.wait(120)
            assert compile_stance() == "force_eager"
            compiled(x)
        assert len(record) == 1

    assert compile_stance() == "default"
    run_threads(first, second)
    assert compile_stance() == "default"
    assert traces(model) == before
    assert list(warnings.filters) == filters


class PausingLock:
    """A lock after which each thread waits until all threads have released it."""

    def __init__(self, threads):
        self.lock, self.barrier = threading.RLock(), threading.Barrier(threads, timeout=120)

    def __enter__(self):
        self.lock.acquire()

    def __exit__(self, *error):
        self.lock.release()
        self.barrier.wait()


def test_threads_that_start_recording_at_once_both_see_the_calls(monkeypatch):
    monkeypatch.setattr(recording._eager_compilation, "lock", PausingLock(threads=2))
    model, x = MultiHeadAttention(EMBED_DIM, NUM_HEADS), torch.randn(B, Q, EMBED_DIM)
    before = traces(model)

    def record():
        with record_attention(model) as record:
            model(x)
        assert len(record) == 1

    run_threads(record, record)
    assert traces(model) == before


def test_threads_recording_one_padded_encoder_do_not_change_its_outputs():
    layer = nn.TransformerEncoderLayer(EMBED_DIM, 2, 24, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(B, Q, EMBED_DIM)
    padded = torch.tensor([[False] * 4 + [True], [False] * 3 + [True] * 2])
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=padded)
    before = traces(model)
    barrier = threading.Barrier(8)

    @torch.no_grad()
    def record():
        barrier.wait(120)
        for _ in range(20):
            with record_attention(model) as record:
                output = model(x, src_key_padding_mask=padded)
            assert_close(output, plain, atol=1e-5, rtol=0)
            assert record.names() == ["layers.0.self_attn", "layers.1.self_attn"]
            assert_close(model(x, src_key_padding_mask=padded), plain, atol=1e-5, rtol=0)

    run_threads(*[record] * 8)
    assert traces(model) == before


def test_threads_that_do_not_record_are_not_affected():
    """Attention of another thread neither enters the record nor ends the attention that is being recorded."""
    model, x = MultiHeadAttention(EMBED_DIM, NUM_HEADS), torch.randn(B, Q, EMBED_DIM)
    plain, stop = model(x), threading.Event()

    def run():
        while not stop.is_set():
            assert_close(model(x), plain, atol=1e-5, rtol=0)

    def record():
        try:
            for _ in range(50):
                with record_attention(model) as record:
                    model(x)
                assert len(record) == 1
        finally:
            stop.set()

    run_threads(run, record)
