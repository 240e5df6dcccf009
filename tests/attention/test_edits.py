"""Gradients of attention weights and ablations in every form of attention, against a model that is written out."""

import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from sightline import ablate_edges, ablate_heads, record_attention
from sightline.attention import MultiHeadAttention
from sightline.errors import SightlineError, SightlineWarning
from sightline.layers import Encoder
from sizes import B, K, Q

NUM_HEADS, HEAD_DIM = 3, 4
EMBED_DIM = NUM_HEADS * HEAD_DIM


class Attention(nn.Module):
    """Self-attention in one of several forms. `edit` changes the weights (B, H, Q, K) of the form `plain`."""

    def __init__(self, form):
        super().__init__()
        self.num_heads, self.form, self.edit = NUM_HEADS, form, lambda weights: weights
        self.qkv, self.out = nn.Linear(EMBED_DIM, 3 * EMBED_DIM), nn.Linear(EMBED_DIM, EMBED_DIM)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.form == "sdpa":
            out = F.scaled_dot_product_attention(q, k, v)
        elif self.form == "sdpa of flat heads":
            out = F.scaled_dot_product_attention(*(part.flatten(0, 1) for part in (q, k, v))).unflatten(0, (len(x), -1))
        else:
            scores = q @ k.mT / HEAD_DIM**0.5
            if self.form == "softmax":
                out = scores.softmax(-1) @ v
            elif self.form == "softmax of flat heads":
                out = F.softmax(scores.flatten(0, 1), dim=-1).unflatten(0, (len(x), -1)) @ v
            elif self.form == "softmax of queries before heads":
                out = torch.softmax(scores.transpose(1, 2), -1).transpose(1, 2) @ v
            elif self.form == "by hand":
                out = scores.exp() / scores.exp().sum(-1, keepdim=True) @ v
            elif self.form == "by hand in place":
                out = scores.exp().div_(scores.exp().sum(-1, keepdim=True)) @ v
            else:
                out = self.edit(torch.exp(scores.log_softmax(-1))) @ v
        return self.out(out.transpose(1, 2).flatten(2))


class Stack(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.first, self.second = Attention(form), Attention(form)

    def forward(self, x):
        return x + self.second(x + self.first(x))


FORMS = (
    "sdpa",
    "sdpa of flat heads",
    "softmax",
    "softmax of flat heads",
    "softmax of queries before heads",
    "by hand",
)


def same_stacks(form):
    """A model with this form of attention, and the same model written out, whose weights can be edited."""
    plain, model = Stack("plain"), Stack(form)
    model.load_state_dict(plain.state_dict())
    return plain, model


def options(form):
    return {"modules": ["first", "second"]} if form.startswith("by hand") else {}


@pytest.mark.parametrize("form", FORMS)
def test_perturbations_have_the_gradient_of_the_weights(form):
    plain, model = same_stacks(form)
    x, kept = torch.randn(B, Q, EMBED_DIM), []

    def keep(weights):
        kept.append(weights)
        weights.retain_grad()
        return weights

    plain.first.edit = plain.second.edit = keep
    plain(x)[:, 1, 2].sum().backward()
    with record_attention(model, gradients=True, **options(form)) as record:
        y = model(x)
    assert_close(y, plain(x), atol=1e-6, rtol=0)
    assert [m.name for m in record] == ["first", "second"]
    gradients = torch.autograd.grad(y[:, 1, 2].sum(), [m.perturbation for m in record])
    for gradient, weights in zip(gradients, kept, strict=False):
        assert_close(gradient, weights.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("form", [*FORMS, "by hand in place"])
@pytest.mark.parametrize("layer", ["second", 1])
def test_ablated_heads_contribute_nothing(form, layer):
    plain, model = same_stacks(form)
    plain.second.edit = lambda weights: weights * torch.tensor([0.0, 1.0, 0.0]).view(-1, 1, 1)
    x = torch.randn(B, Q, EMBED_DIM)
    before = model(x)
    with torch.no_grad(), ablate_heads(model, {layer: [0, 2]}, **options(form)):
        ablated = model(x)
    assert_close(ablated, plain(x), atol=1e-6, rtol=0)
    assert not torch.allclose(ablated, before, atol=1e-3)
    assert_close(model(x), before, atol=0, rtol=0)


@pytest.mark.parametrize("form", FORMS)
def test_removed_edges_are_as_masked(form):
    plain, model = same_stacks(form)
    is_removed = torch.zeros(NUM_HEADS, Q, Q, dtype=torch.bool)
    is_removed[1, 2, 3] = is_removed[1, 4, 0] = True

    def mask(weights):
        kept = weights.masked_fill(is_removed, 0.0)
        return kept / kept.sum(-1, keepdim=True)

    plain.first.edit = mask
    x = torch.randn(B, Q, EMBED_DIM)
    with ablate_edges(model, {"fir*": [(2, 3), (-1, 0)]}, heads=1, **options(form)):
        assert_close(model(x), plain(x), atol=1e-6, rtol=0)


def test_a_query_without_keys_gets_zeros():
    model = Attention("sdpa")
    with ablate_edges(model, {"Attention": [(0, None)]}):
        y = model(torch.randn(B, Q, EMBED_DIM))
    assert_close(y[:, 0], model.out.bias.expand(B, -1))


def multihead(**kwargs):
    return nn.MultiheadAttention(EMBED_DIM, NUM_HEADS, batch_first=True, **kwargs)


@pytest.mark.parametrize("kwargs", [{}, {"add_bias_kv": True, "add_zero_attn": True}, {"kdim": 5, "vdim": 7}])
@pytest.mark.parametrize("training", [True, False])
def test_torch_multihead_attention_can_be_edited(kwargs, training):
    model = multihead(**kwargs).train(training)
    nn.init.normal_(model.in_proj_bias)
    nn.init.normal_(model.out_proj.bias)
    q, k, v = (torch.randn(B, n, size) for n, size in ((Q, EMBED_DIM), (K, kwargs.get("kdim", 12)), (K, model.vdim)))
    with record_attention(model, gradients=True) as record:
        y, _ = model(q, k, v)
    assert_close(y, model(q, k, v)[0], atol=1e-6, rtol=0)
    (gradient,) = torch.autograd.grad(y[:, 1].sum(), record[0].perturbation)
    with ablate_edges(model, {0: [(1, None)]}, heads=2), record_attention(model) as ablated:
        without, weights = model(q, k, v, average_attn_weights=False)
    assert not weights[:, 2, 1].any()
    assert_close(ablated[0].weights, weights)
    drop = (record[0].weights * gradient)[:, 2].sum((1, 2))  # the output is linear in the weights
    assert_close((y - without)[:, 1].sum(1), drop, atol=1e-5, rtol=1e-4)
    with torch.no_grad(), ablate_heads(model, {"MultiheadAttention": None}):
        assert_close(model(q, k, v)[0], model.out_proj.bias.expand_as(y))


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_padded_positions_of_torch_encoders_remain_zero_on_the_fast_path(frozen):
    layer = nn.TransformerEncoderLayer(EMBED_DIM, NUM_HEADS - 1, 24, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    model.requires_grad_(not frozen)
    x, padding = torch.randn(B, Q, EMBED_DIM), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    plain = model(x, src_key_padding_mask=padding)
    with record_attention(model, gradients=True) as record:
        y = model(x, src_key_padding_mask=padding)
    assert_close(y, plain, atol=1e-6, rtol=0)
    assert len(record.relevance(y[:, 0, 1])) == 1
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=padding)
        with ablate_heads(model, {0: 1}), record_attention(model) as record:
            ablated = model(x, src_key_padding_mask=padding)
        assert not record[0].weights[:, 1].any()
        assert record[0].weights[:, 0].any()
    assert ((ablated == 0) == (plain == 0)).all()
    assert not torch.allclose(ablated, plain, atol=1e-3)


def test_nested_inputs_are_refused_by_name():
    model = multihead().eval()
    nested = torch.nested.nested_tensor([torch.randn(3, EMBED_DIM), torch.randn(5, EMBED_DIM)])
    with (
        pytest.raises(SightlineError, match="inputs must be padded tensors, got nested ones"),
        torch.no_grad(),
        ablate_heads(model, {0: 1}),
    ):
        model(nested, nested, nested)


@pytest.mark.parametrize("ablation_first", [True, False])
@pytest.mark.parametrize("form", ["sdpa", "softmax", "attend"])
def test_a_recording_has_the_weights_that_are_used(form, ablation_first):
    model = MultiHeadAttention(EMBED_DIM, NUM_HEADS) if form == "attend" else Attention(form)
    ablation, recording = ablate_heads(model, {0: [1]}), record_attention(model)
    x = torch.randn(B, Q, EMBED_DIM)
    if ablation_first:
        with ablation, recording as record:
            y = model(x)
    else:
        with recording as record, ablation:
            y = model(x)
    assert len(record) == 1
    assert not record[0].weights[:, 1].any()
    assert_close(record[0].weights[:, [0, 2]].sum(-1), torch.ones(B, 2, Q))
    with ablate_heads(model, {0: [1]}):
        assert_close(model(x), y)


def test_grouped_heads_and_layout_of_the_kernel_are_kept():
    class Grouped(nn.Module):
        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    model, (q, k, v) = Grouped(), (torch.randn(B, heads, Q, 8) for heads in (6, 2, 2))
    expected = model(q, k, v)
    with record_attention(model, gradients=True) as record:
        y = model(q, k, v)
    assert_close(y, expected, atol=0, rtol=0)
    assert y.stride() == expected.stride()
    (gradient,) = torch.autograd.grad(y[:, 3].sum(), record[0].perturbation)
    assert_close(gradient[:, 3], v[:, 1].sum(-1)[:, None].expand(-1, Q, -1))
    with ablate_heads(model, {0: [3]}):
        ablated = model(q, k, v)
    assert not ablated[:, 3].any()
    kept = [0, 1, 2, 4, 5]
    assert_close(ablated[:, kept], expected[:, kept], atol=1e-6, rtol=1e-5)


def test_sightline_models_can_be_edited():
    model = Encoder(EMBED_DIM, num_heads=NUM_HEADS, ffn_dim=24, depth=2, score="cosine").eval()
    x = torch.randn(B, Q, EMBED_DIM)
    names = {f"layers.{i}.attention" for i in range(2)}
    with record_attention(model, gradients=True) as record:
        y = model(x)
    assert set(record.names()) == names
    assert_close(y, model(x), atol=1e-5, rtol=0)
    assert all(g.abs().sum() > 0 for g in torch.autograd.grad(y[0, 0, 0], [m.perturbation for m in record]))
    with ablate_heads(model, {"*": None}):
        without = model(x)
    for block in model.layers:
        nn.init.zeros_(block.attention.out_proj.weight)
    assert_close(model(x), without, atol=1e-6, rtol=0)


def test_threads_do_not_see_the_ablations_of_others():
    model, x = Attention("sdpa"), torch.randn(B, Q, EMBED_DIM)
    expected, outputs, barrier = model(x), {}, threading.Barrier(2)

    def run(heads):
        with torch.no_grad():
            if heads is None:
                barrier.wait()
                outputs[heads] = model(x)
                barrier.wait()
            else:
                with ablate_heads(model, {0: heads}):
                    barrier.wait()
                    outputs[heads] = model(x)
                    barrier.wait()

    threads = [threading.Thread(target=run, args=(heads,)) for heads in (None, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_close(outputs[None], expected, atol=0, rtol=0)
    assert not torch.allclose(outputs[1], expected, atol=1e-3)


def test_nothing_remains_after_an_error():
    model = Attention("sdpa")
    before = model(torch.ones(B, Q, EMBED_DIM))
    with pytest.raises(SightlineError, match=r"heads must be below 3, the number of heads of Attention, got \[3\]"):  # noqa: SIM117
        with ablate_heads(model, {0: 3}):
            model(torch.ones(B, Q, EMBED_DIM))
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert torch.equal(model(torch.ones(B, Q, EMBED_DIM)), before)


@pytest.mark.parametrize(
    ("ablation", "message"),
    [
        (lambda model: ablate_heads(model, {"thrid": 0}), r"layers must match one of first, second, got \['thrid'\]"),
        (lambda model: ablate_heads(model, {2: 0}), r"layers must match one of first, second, got \[2\]"),
        (lambda model: ablate_heads(model, {0: -1}), "heads must be indices of at least 0, or None for all, got -1"),
        (lambda model: ablate_heads(model, [0]), "heads and edges must be a dict with names or indices of layers"),
        (lambda model: ablate_heads(3, {0: 0}), "model must be a torch.nn.Module, got int"),
        (lambda model: ablate_edges(model, {0: 3}), r"edges must be pairs \(query, key\), got 3"),
        (lambda model: ablate_edges(model, {0: [(1,)]}), r"edges must be pairs \(query, key\) of integers or None"),
        (
            lambda model: ablate_edges(model, {0: [(0, 5)]}),
            r"edges must be positions of the 5 queries and 5 keys of first, got \(0, 5\)",
        ),
    ],
)
def test_invalid_ablations_are_refused(ablation, message):
    model = Stack("sdpa")
    with pytest.raises(SightlineError, match=message), ablation(model):
        model(torch.randn(B, Q, EMBED_DIM))


def test_attention_that_cannot_be_ablated_is_named():
    class LinearAttention(nn.Module):
        def forward(self, x):
            return x * 2

    model, x = nn.Sequential(Attention("sdpa"), LinearAttention()), torch.randn(B, Q, EMBED_DIM)
    with (
        pytest.warns(SightlineWarning, match=r"the ablation of Sequential is partial; not recorded: 1 \(of an unknown"),
        ablate_heads(model, {"*": 0}),
    ):
        model(x)
    with warnings.catch_warnings(action="error"), ablate_heads(model, {"0": 0}):
        ablated = model(x)
    assert (ablated - model(x)).abs().max() > 1e-3


def test_kernels_and_eager_models_of_hugging_face_agree():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": EMBED_DIM, "num_hidden_layers": 2, "num_attention_heads": NUM_HEADS}
    config = transformers.BertConfig(**sizes, intermediate_size=24, vocab_size=11)
    ids, mask = torch.randint(0, 11, (B, Q)), torch.tensor([[1] * Q, [1] * 3 + [0] * 2])
    results, state = [], None
    for implementation in ("sdpa", "eager"):
        model = transformers.BertModel._from_config(config, attn_implementation=implementation).eval()
        state = model.state_dict() if state is None else state
        model.load_state_dict(state)
        expected = model(ids, attention_mask=mask).last_hidden_state
        with record_attention(model, gradients=True) as record:
            y = model(ids, attention_mask=mask).last_hidden_state
        assert_close(y, expected, atol=0, rtol=0)
        with ablate_heads(model, {"encoder.layer.1.*": 2, 0: 0}):
            ablated = model(ids, attention_mask=mask).last_hidden_state
        results.append((record.relevance(y[:, 0, 3])[0].weights, ablated))
    (relevance, ablated), (eager_relevance, eager_ablated) = results
    assert_close(relevance, eager_relevance, atol=1e-6, rtol=1e-3)
    assert_close(ablated, eager_ablated, atol=1e-5, rtol=0)
    assert not relevance[1, 0, 0, 3:].any()  # padding
    assert not torch.allclose(ablated, expected, atol=1e-4)


def test_gradients_need_a_graph_and_all_heads():
    model, x = Stack("sdpa"), torch.randn(B, Q, EMBED_DIM)
    message = r"gradients=True must be used with gradients enabled, got torch.no_grad\(\)"
    with pytest.raises(SightlineError, match=message), torch.no_grad(), record_attention(model, gradients=True):
        model(x)
    with (
        pytest.raises(SightlineError, match="gradients=True must be used with all heads"),
        record_attention(model, gradients=True, heads=1),
    ):
        model(x)


def test_an_integer_selects_a_layer_by_its_index_and_not_by_its_name():
    def attention():
        return MultiHeadAttention(EMBED_DIM, NUM_HEADS)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), attention(), nn.Identity(), attention()).eval()
    x = torch.randn(B, Q, EMBED_DIM)
    with torch.no_grad():
        with record_attention(model) as record, ablate_heads(model, {1: None}):
            model(x)
        zero = [float(attention_map.weights.abs().max()) == 0 for attention_map in record]
    assert zero == [False, True]


def test_a_backward_pass_through_ablated_torch_attention_is_refused():
    torch.manual_seed(0)
    model = Attention("sdpa").eval()
    with ablate_heads(model, {0: 0}):
        output = model(torch.randn(B, Q, EMBED_DIM))
    with pytest.raises(SightlineError, match=r"run ablations under torch\.no_grad"):
        output.sum().backward()
