"""Forms in which public models compute attention, each as a small module."""

import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import _get_current_function_mode
from torch.testing import assert_close

from sightline import ablate_heads, record_attention
from sightline.errors import SightlineWarning
from sizes import B, D, H, K, Q


def queries_and_keys():
    return torch.randn(B, H, Q, D), torch.randn(B, H, K, D)


def recorded(model, *args, **options):
    """The record of one call, whose output must be unchanged."""
    plain = model(*args)
    with record_attention(model, **options) as record:
        assert torch.equal(model(*args), plain)
    return record


class FlatAttention(nn.Module):
    """Heads in the batch dimension, as in SpeechT5, fairseq and Segment Anything."""

    def __init__(self, attribute):
        super().__init__()
        setattr(self, attribute, H)

    def forward(self, q, k):
        return (q.flatten(0, 1) @ k.flatten(0, 1).mT).softmax(-1)


@pytest.mark.parametrize("attribute", ["num_heads", "num_attention_heads", "heads", "n_heads"])
def test_heads_in_the_batch_dimension_are_split(attribute):
    q, k = queries_and_keys()
    record = recorded(FlatAttention(attribute), q, k, scores=True)
    assert_close(record[0].weights, (q @ k.mT).softmax(-1))
    assert_close(record[0].scores, q @ k.mT)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_heads_in_the_batch_dimension_are_found_by_the_input(fused, batch_first):
    class FlatSelfAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.h, self.project = H, nn.Linear(H * D, H * D)

        def forward(self, x):
            x = self.project(x if batch_first else x.transpose(0, 1))
            x = x.unflatten(-1, (self.h, -1)).transpose(1, 2).flatten(0, 1)
            if fused:
                return F.scaled_dot_product_attention(x, x, x)
            return (x @ x.mT / D**0.5).softmax(-1) @ x

    model, x = FlatSelfAttention(), torch.randn(B, Q, H * D)
    record = recorded(model, x if batch_first else x.transpose(0, 1))
    heads = model.project(x).unflatten(-1, (H, -1)).transpose(1, 2)
    assert_close(record[0].weights, (heads @ heads.mT / D**0.5).softmax(-1).detach())


def test_fused_attention_with_heads_in_the_batch_dimension_is_split():
    class Attention(nn.Module):
        heads = H

        def forward(self, q, k):
            return F.scaled_dot_product_attention(q.flatten(0, 1), k.flatten(0, 1), k.flatten(0, 1), scale=1.0)

    q, k = queries_and_keys()
    assert_close(recorded(Attention(), q, k)[0].weights, (q @ k.mT).softmax(-1))


def test_groups_of_tokens_are_in_the_batch_dimension():
    class GroupedAttn(nn.Module):
        num_heads = H

        def forward(self, x):
            return (x @ x.mT).softmax(-1)

    x = torch.randn(B, 4, H, Q, D)
    for groups in (x, x.transpose(1, 2)):
        assert_close(recorded(GroupedAttn(), groups)[0].weights, (x @ x.mT).softmax(-1).flatten(0, 1))


class Attend(nn.Module):
    """As in x-transformers, whose attention calls the softmax in a module of its own."""

    def __init__(self, normalize):
        super().__init__()
        self.normalize = normalize

    def forward(self, scores):
        return self.normalize(scores)


class OuterAttention(nn.Module):
    """An attention module around another one."""

    def __init__(self, inner):
        super().__init__()
        self.linear, self.inner = nn.Linear(2, 2), inner

    def forward(self, q, k):
        return self.inner(q @ k.mT)


class PlainSoftmax(nn.Module):
    def forward(self, scores):
        return torch.softmax(scores, dim=-1)


@pytest.mark.parametrize(
    ("inner", "name"),
    [
        (lambda: Attend(lambda scores: F.softmax(scores, dim=-1)), "inner"),
        (lambda: Attend(lambda scores: torch.special.softmax(scores, -1)), "inner"),
        (PlainSoftmax, "OuterAttention"),
        (lambda: nn.Softmax(dim=-1), "OuterAttention"),
    ],
)
def test_a_softmax_in_a_child_module_is_recorded(inner, name):
    q, k = queries_and_keys()
    record = recorded(OuterAttention(inner()), q, k)
    assert record.names() == [name]
    assert_close(record[0].weights, (q @ k.mT).softmax(-1))


def test_a_softmax_in_a_child_module_with_parameters_is_not_attention():
    class Router(nn.Linear):
        def forward(self, scores):
            return super().forward(scores).softmax(-1)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = Router(D, D)

        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x) + self.router(x)

    record = recorded(Attention(), torch.randn(B, H, Q, D))
    assert [tuple(m.weights.shape) for m in record] == [(B, H, Q, Q)]


class ByHand(nn.Module):
    """A softmax by hand, in a module without attention in its name."""

    def __init__(self, form):
        super().__init__()
        self.form, self.gate = form, nn.Linear(D, D)

    def forward(self, q, k):
        q, scores = q * self.gate(q).exp() / D, q @ k.mT
        if self.form == "divide":
            return scores.exp() / scores.exp().sum(-1, keepdim=True)
        if self.form == "in place":
            weights = scores.exp()
            weights /= weights.sum(-1, keepdim=True)
            return weights
        if self.form == "normalize":
            return F.normalize(scores.exp(), p=1, dim=-1)
        return (scores - scores.logsumexp(-1, keepdim=True)).exp()


class Model(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, *args):
        return self.block(*args)


@pytest.mark.parametrize("form", ["divide", "in place", "normalize", "logsumexp"])
def test_a_softmax_by_hand_is_recorded_in_named_modules(form):
    (q, k), model = queries_and_keys(), Model(ByHand(form))
    for modules in ("bl*", [model.block]):
        with torch.no_grad():
            record = recorded(model, q, k, modules=modules, scores=True)
        assert record.names() == ["block"]
        assert_close(record[0].weights, (q @ k.mT).softmax(-1))
        assert_close(record[0].scores.softmax(-1), record[0].weights)


def test_unknown_modules_raise():
    model = nn.Linear(2, 2)
    for modules, got in (("block.*", "'block.*'"), ([nn.GELU()], "another GELU"), (3, "3")):
        with pytest.raises(ValueError, match=f"modules must be .*, got {re.escape(got)}"):
            record_attention(model, modules=modules).__enter__()


def test_models_with_a_softmax_by_hand_say_what_to_pass():
    model, x = ByHand("divide"), torch.randn(B, H, Q, D)
    with pytest.raises(ValueError, match="for other modules pass their names as modules="), record_attention(model):
        model(x, x)


def test_flex_attention_is_recorded():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    slopes = torch.rand(6)
    block_mask = create_block_mask(lambda b, h, q, k: (q >= k) & (k != b + 1), B, None, Q, Q, device="cpu")

    class Flex(nn.Module):
        def forward(self, q, k, v):
            def score_mod(score, b, h, q, k):
                return score - slopes[h] * (q - k)

            return flex_attention(q, k, v, score_mod, block_mask, scale=0.3, enable_gqa=True)

    q, k, model = torch.randn(B, 6, Q, 4), torch.randn(B, 2, Q, 4), Flex()
    values = torch.eye(Q).expand(B, 2, Q, Q)  # with the identity as values, the output equals the weights
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without")
        record = recorded(model, q, k, values)
        assert_close(record[0].weights, model(q, k, values), atol=1e-6, rtol=1e-5)
    assert record[0].kind == "decoder"


def test_a_failed_recording_does_not_break_the_model(monkeypatch):
    class Attention(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x)

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Attention(), Attention()

        def forward(self, x):
            return self.second(self.first(x)[:, :1])

    def fail(query, key, *args, **kwargs):
        assert query.shape[1] > 1, "no weights"
        return weights(query, key, *args, **kwargs)

    from sightline.attention import torch_functions

    weights = torch_functions.sdpa_weights
    monkeypatch.setattr(torch_functions, "sdpa_weights", fail)
    with pytest.warns(SightlineWarning, match=r"partial; not recorded: second \(AssertionError: no weights"):
        record = recorded(Two(), torch.randn(B, H, Q, D))
    assert record.names() == ["first"]


class LinearAttention(nn.Module):
    """Attention without weights."""

    def forward(self, x):
        return x.exp() @ (x.exp().mT @ x)


def test_parts_of_an_attention_module_are_not_missed():
    class AttentionProjection(nn.Linear):
        pass

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.projection = AttentionProjection(D, D)

        def forward(self, x):
            x = self.projection(x)
            return F.scaled_dot_product_attention(x, x, x)

    assert not recorded(Attention(), torch.randn(B, H, Q, D)).missed


def test_attention_modules_that_are_not_recorded_are_named():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear_attention, self.attention = LinearAttention(), OuterAttention(nn.Softmax(dim=-1))

        def forward(self, x):
            return self.attention(self.linear_attention(x), x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block() for _ in range(12)])

        def forward(self, x):
            return torch.cat([block(x) for block in self.blocks])

    with pytest.warns(SightlineWarning, match="the record of Net is partial") as warned:
        record = recorded(Net(), torch.randn(1, 1, Q, D), layers=0)
    names = ", ".join(f"blocks.{i}.linear_attention" for i in range(8))
    text = f"not recorded: {names} and 4 more (of an unknown form; if it is a softmax by hand, pass modules=)"
    assert str(warned[0].message).endswith(text)
    assert repr(record).endswith(text)
    assert warned[0].filename == __file__


def nested(*lengths):
    return torch.nested.nested_tensor([torch.randn(length, 16) for length in lengths])


@pytest.mark.parametrize(
    ("model", "num_inputs"),
    [
        (nn.MultiheadAttention(16, 2, batch_first=True), 3),
        (nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 1),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 2), 1),
    ],
)
def test_torch_modules_with_nested_tensors_are_recorded(model, num_inputs):
    model, x = model.eval(), nested(3, 5)
    with torch.no_grad():
        plain = model(*[x] * num_inputs)
        with record_attention(model) as record:
            output = model(*[x] * num_inputs)
        alone = [sequence[None] for sequence in x.unbind()]
        with record_attention(model) as expected:
            model(*alone[:1] * num_inputs), model(*alone[1:] * num_inputs)
    for a, b in zip(output[0].unbind(), plain[0].unbind(), strict=True):
        assert torch.equal(a, b)
    layers = record.names()
    for i, layer in enumerate(layers):
        assert record[i].weights.shape == (2, 2, 5, 5)
        assert_close(record[i].weights[:1, :, :3, :3], expected[i].weights)
        assert_close(record[i].weights[1:], expected[len(layers) + i].weights)
        assert (record[layer].weights[0, :, :, 3:] == 0).all()


def test_fused_attention_of_nested_tensors_is_recorded():
    class Attention(nn.Module):
        def forward(self, x):
            heads = x.view(2, -1, 2, 8).transpose(1, 2).contiguous()
            return F.scaled_dot_product_attention(heads, heads, heads)

    x, model = nested(3, 5), Attention()
    with torch.no_grad(), record_attention(model) as record:
        model(x)
    for i, sequence in enumerate(x.unbind()):
        q = sequence.view(-1, 2, 8).transpose(0, 1)
        size = len(sequence)
        assert_close(record[0].weights[i, :, :size, :size], (q @ q.mT / 8**0.5).softmax(-1))


def test_a_model_that_fails_on_nested_tensors_fails_alike_in_a_recording():
    model = nn.MultiheadAttention(15, 3, batch_first=True).eval()  # torch supports even numbers of heads only
    x = torch.nested.nested_tensor([torch.randn(3, 15)])
    with torch.no_grad(), pytest.raises(AssertionError, match="num_heads is not even"), record_attention(model):
        model(x, x, x)


class SinkAttention(nn.Module):
    """A learned score of each head beside those of the keys, as in GPT-OSS."""

    def __init__(self, form):
        super().__init__()
        self.form, self.sinks = form, nn.Parameter(torch.randn(H))

    def forward(self, q, k):
        scores = q @ k.mT
        if self.form == "scale":
            sink_scale = (scores.logsumexp(-1) - self.sinks[:, None]).sigmoid()
            return scores.softmax(-1) * sink_scale.unsqueeze(-1)
        scores = torch.cat([scores, self.sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
        if self.form == "shifted":
            scores = scores - scores.amax(-1, keepdim=True)
        return scores.softmax(-1)[..., :-1]


@pytest.mark.parametrize("form", ["direct", "shifted"])
def test_the_column_of_an_attention_sink_is_dropped(form):
    (q, k), model = queries_and_keys(), SinkAttention(form)
    with torch.no_grad():
        record = recorded(model, q, k, scores=True)
        assert_close(record[0].weights, model(q, k))
    assert record[0].scores.shape == (B, H, Q, K)
    assert repr(record).endswith("without its attention sink, so rows sum to less than 1")


def test_an_attention_sink_after_the_softmax_is_noted():
    q, k = queries_and_keys()
    with torch.no_grad():
        record = recorded(SinkAttention("scale"), q, k)
    assert_close(record[0].weights, (q @ k.mT).softmax(-1))
    assert record[0].note == "before its attention sink"


class HeadMixingAttention(nn.Module):
    """Computes and does not use a softmax over the heads of each token, as SAM 2 does."""

    num_heads = H

    def forward(self, x):
        x = x.unflatten(-1, (H, -1))
        _ = (x @ x.mT).softmax(-1)
        x = x.transpose(1, 2)
        return F.scaled_dot_product_attention(x, x, x)


def test_a_softmax_over_heads_is_no_map():
    record = recorded(HeadMixingAttention(), torch.randn(B, Q, H * D))
    assert [tuple(m.weights.shape) for m in record] == [(B, H, Q, Q)]


class TokenPooling(nn.Module):
    """Attention that the class name does not tell, as MGP-STR's A3 modules."""

    def __init__(self):
        super().__init__()
        self.scores, self.attention = nn.Linear(D, 13), SdpaAttention()

    def forward(self, x):
        return self.scores(self.attention(x)).mT.softmax(-1) @ x


class SdpaAttention(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


def test_a_softmax_over_tokens_elsewhere_is_named_and_recorded_on_request():
    model, x = TokenPooling(), torch.randn(B, Q, D)
    with pytest.warns(SightlineWarning, match=r"TokenPooling \(a softmax over \(2, 13, 5\) may be attention; pass"):
        record = recorded(model, x)
    assert record.names() == ["attention"]
    with record_attention(model, modules="TokenPooling") as record:
        model(x)
    assert tuple(record["TokenPooling"].weights.shape) == (B, 1, 13, Q)
    assert not record.missed


class NgramAttention(nn.Module):
    """Two streams of queries, and another name for the number of heads, as in ProphetNet."""

    num_attn_heads = H

    def forward(self, x):
        return (x @ x.mT).softmax(-1)


def test_streams_of_queries_are_in_the_batch_dimension():
    x = torch.randn(B, 2, H, Q, D)
    assert tuple(recorded(NgramAttention(), x)[0].weights.shape) == (B * 2, H, Q, Q)


class LayerWithAttentionOutput(nn.Module):
    """A projection with attention in its class name beside the attention, as in LXMERT."""

    class AttentionOutput(nn.Linear):
        pass

    def __init__(self):
        super().__init__()
        self.attention, self.output = SdpaAttention(), self.AttentionOutput(D, D)

    def forward(self, x):
        return self.output(self.attention(x))


def test_the_output_projection_of_attention_is_not_missed():
    record = recorded(LayerWithAttentionOutput(), torch.randn(B, H, Q, D))
    assert (record.names(), record.missed) == (["attention"], {})


class Steps(nn.Module):
    """A feed-forward module that runs beside attention, several times."""

    def __init__(self):
        super().__init__()
        self.attention, self.mlp = SdpaAttention(), self.Mlp()

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fails, self.modes = nn.Linear(D, D), False, []

        def forward(self, x):
            self.modes.append(_get_current_function_mode())
            if self.fails:
                raise KeyboardInterrupt
            return self.fc1(x).relu()

    def forward(self, x):
        return self.mlp(self.attention(x)) + x


def test_interception_is_suspended_in_modules_that_ran_without_attention():
    model, x = Steps(), torch.randn(B, H, Q, D)
    expected = model(x)
    with record_attention(model) as record:
        outputs = [model(x) for _ in range(3)]
    assert [mode is None for mode in model.mlp.modes] == [True, False, False, True]
    assert [m.name for m in record] == ["attention"] * 3
    assert all(torch.equal(output, expected) for output in outputs)


def test_interception_is_suspended_only_for_the_innermost_recording():
    model, x = Steps(), torch.randn(B, H, Q, D)
    with record_attention(model) as outer, record_attention(model) as inner:
        for _ in range(3):
            model(x)
        assert _get_current_function_mode() is not None
    assert len(outer) == len(inner) == 3
    assert _get_current_function_mode() is None


def test_an_interrupt_in_a_suspended_module_leaves_no_mode():
    model, x = Steps(), torch.randn(B, H, Q, D)

    def run():
        with torch.device("cpu"), record_attention(model):
            model(x)
            model.mlp.fails = True
            model(x)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert _get_current_function_mode() is None


class XCA(nn.Module):
    """Attention that only the number of heads tells, as in XCiT."""

    num_heads = H

    def forward(self, x):
        x = x.unflatten(-1, (H, -1)).permute(0, 2, 3, 1)
        return (x @ x.mT).softmax(-1) @ x


def test_a_softmax_with_the_heads_that_a_module_states_is_recorded():
    record = recorded(XCA(), torch.randn(B, Q, H * D))
    assert (tuple(record[0].weights.shape), record[0].over) == ((B, H, D, D), "channels")


class GroupedAttention(nn.Module):
    """Two heads for each head of the keys. With one query, the heads of a group are its queries, as in transformers."""

    num_heads, num_key_value_groups = 4, 2

    def __init__(self, packs=True):
        super().__init__()
        self.packs, self.q = packs, nn.Linear(16, 16)
        self.k, self.v = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, hidden_states, context):
        q, k, v = (
            layer(x).unflatten(-1, (-1, 4)).transpose(1, 2)
            for layer, x in ((self.q, hidden_states), (self.k, context), (self.v, context))
        )
        if self.packs:
            out = F.scaled_dot_product_attention(q.reshape(len(q), 2, 2, 4), k, v).reshape(q.shape)
        else:
            out = F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))
        return out.transpose(1, 2).flatten(2)


def test_heads_that_are_packed_as_queries_are_recorded_and_ablated_as_heads():
    packed, plain = GroupedAttention(), GroupedAttention(packs=False)
    plain.load_state_dict(packed.state_dict())
    x, context = torch.randn(3, 1, 16), torch.randn(3, 5, 16)
    records, outputs = [], []
    for model in (packed, plain):
        with torch.no_grad(), record_attention(model) as record:
            model(x, context)
        with torch.no_grad(), ablate_heads(model, {0: [1, 2]}):
            outputs.append(model(x, context))
        records.append(record[0].weights)
    assert records[0].shape == (3, 4, 1, 5)
    assert_close(*records)
    assert_close(*outputs)
    assert not outputs[0][..., 4:12].any()


def test_as_many_queries_as_heads_in_a_group_are_queries():
    """Also if the first dimension is that of tokens, and there is one example."""

    class SequenceFirst(GroupedAttention):
        def forward(self, hidden_states):
            x = hidden_states.transpose(0, 1)
            q = self.q(x).unflatten(-1, (-1, 4)).transpose(1, 2)
            return F.scaled_dot_product_attention(q, q, q)

    model = SequenceFirst()
    with torch.no_grad(), record_attention(model) as record:
        model(torch.randn(2, 1, 16))
    assert record[0].weights.shape == (1, 4, 2, 2)
