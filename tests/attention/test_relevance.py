import pytest
import torch
from torch import nn
from torch.testing import assert_close

from sightline import head_importance, record_attention
from sightline.attention import AttentionMap, MultiHeadAttention, Record, attend
from sightline.errors import SightlineError
from sightline.layers import Transformer
from sizes import B, K, Q

EMBED_DIM, NUM_HEADS = 12, 3


def identity(size):
    return torch.eye(size).expand(B, -1, -1)


class Encoder(nn.Module):
    """Two layers of attention with residual connections, and a readout of some tokens."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([MultiHeadAttention(EMBED_DIM, NUM_HEADS) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def weighted(record, score):
    """Positive part of attention times gradient, the mean over heads: (B, Q, K) of each map"""
    gradients = torch.autograd.grad(score.sum(), [m.perturbation for m in record], retain_graph=True)
    return [(m.weights * g).clamp(min=0).mean(1) for m, g in zip(record, gradients, strict=True)]


def test_relevance_of_an_encoder_is_that_of_the_paper():
    model = Encoder()
    with record_attention(model, gradients=True) as record:
        y = model(torch.randn(B, Q, EMBED_DIM))
    first, second = y[:, 0, 3], y[:, 0, 3] - y[:, 0, 5]
    relevance = record.relevance({"three": first, "three rather than five": second})
    assert [(m.name, m.kind, m.measure) for m in relevance] == [("relevance", "encoder", "relevance")]
    assert relevance[0].queries == ("three", "three rather than five")
    assert relevance[0].weights.shape == (B, 1, 2, Q)
    for row, score in enumerate((first, second)):
        a, b = weighted(record, score)
        expected = (identity(Q) + b) @ (identity(Q) + a) - identity(Q)
        assert_close(relevance[0].weights[:, 0, row], expected[:, 0])


def test_targets_of_several_tokens_have_the_mean_relevance_of_these():
    model, is_valid = Encoder(), torch.tensor([[1.0] * Q, [1.0] * 3 + [0.0] * 2])
    with record_attention(model, gradients=True) as record:
        y = model(torch.randn(B, Q, EMBED_DIM))
    score = (y[:, :, 1] * is_valid).sum(1)
    a, b = weighted(record, score)
    expected = (identity(Q) + b) @ (identity(Q) + a) - identity(Q)
    assert_close(record.relevance(score)[0].weights[0, 0, 0], expected[0].mean(0))
    assert_close(record.relevance(score)[0].weights[1, 0, 0], expected[1, :3].mean(0))


def test_relevance_of_an_encoder_decoder_is_that_of_the_paper():
    model = Transformer(EMBED_DIM, NUM_HEADS, 24, 1).eval()
    source, target = torch.randn(B, K, EMBED_DIM), torch.randn(B, Q, EMBED_DIM)
    with record_attention(model, gradients=True) as record:
        y = model(source, target)
    assert_close(y, model(source, target), atol=1e-5, rtol=0)
    score = y[:, -1, 2]
    encoder, decoder, cross = weighted(record, score)

    def normalized(x):
        return x / x.sum(-1, keepdim=True).clamp(min=1e-30)

    over_target, over_source = record.relevance(score)
    assert (over_target.kind, over_source.kind) == ("decoder", "encoder")
    assert_close(over_target.weights[:, 0, 0], decoder[:, -1])
    normal = (identity(Q) + normalized(decoder)).mT @ cross @ (identity(K) + normalized(encoder))
    assert_close(over_source.weights[:, 0, 0], normal[:, -1])


def test_relevance_finds_the_only_token_that_matters():
    class Copy(nn.Module):
        """The first query attends to all tokens; only the value of token 3 reaches the output."""

        def forward(self, x):
            values = x * (torch.arange(Q) == 3).float()[:, None]
            return attend(x, x, values)[:, 0].sum(-1)

    model = Copy()
    with record_attention(model, gradients=True) as record:
        score = model(torch.rand(B, Q, EMBED_DIM))
    row = record.relevance(score)[0].weights[:, 0, 0]
    assert (row[:, 3] > 0).all()
    assert_close(row.sum(1), row[:, 3])
    assert (record[0].weights[:, 0, 0, :3] > 0).all()  # raw attention names all tokens


def test_calls_of_the_model_have_maps_of_their_own():
    model = Encoder()
    with record_attention(model, gradients=True) as record:
        y = model(torch.randn(B, Q, EMBED_DIM))[:, 0], model(torch.randn(B, K, EMBED_DIM))[:, 0]
    relevance = record.relevance(torch.cosine_similarity(*y))
    assert [tuple(m.weights.shape) for m in relevance] == [(B, 1, 1, Q), (B, 1, 1, K)]
    assert [m.call_index for m in relevance] == [0, 1]


def test_rollout_multiplies_layers_and_identities():
    model = Encoder().eval()
    with record_attention(model) as record:
        model(torch.randn(B, Q, EMBED_DIM))
    (rollout,) = record.rollout()
    a, b = (m.weights.mean(1) for m in record)
    assert_close(rollout.weights[:, 0], (identity(Q) + b) @ (identity(Q) + a) / 4)
    assert (rollout.measure, rollout.kind, rollout.heads) == ("rollout", "encoder", ())
    (one,) = record.rollout("layers.1*")
    assert_close(one.weights[:, 0], (identity(Q) + b) / 2)


def test_rollout_of_an_encoder_decoder_distributes_weight_over_both():
    model = Transformer(EMBED_DIM, NUM_HEADS, 24, 2).eval()
    with torch.no_grad(), record_attention(model) as record:
        model(torch.randn(B, K, EMBED_DIM), torch.randn(B, Q, EMBED_DIM))
    rollout = {m.kind: m.weights for m in record.rollout()}
    assert_close(rollout["encoder"].sum(-1), torch.ones(B, 1, K))
    assert_close(rollout["decoder"].sum(-1) + rollout["cross"].sum(-1), torch.ones(B, 1, Q))
    assert not rollout["decoder"].triu(1).any()


def test_relevance_is_saved_and_added_to_a_record(tmp_path):
    model = Encoder()
    with record_attention(model, gradients=True) as record:
        score = model(torch.randn(B, Q, EMBED_DIM))[:, 0, 1]
    both = record + record.relevance({"one": score}) + record.rollout()
    assert len(both.of("encoder")) == len(both.of("attention")) == 2
    assert len(both.of("relevance")) == len(both.of("rollout")) == 1
    both.save(tmp_path / "record.safetensors")
    loaded = Record.load(tmp_path / "record.safetensors")
    assert repr(loaded) == repr(both)
    assert loaded.of("relevance")[0].queries == ("one",)
    with pytest.raises(SightlineError, match="relevance must be given a record with gradients, got none; record with"):
        loaded.relevance(score)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (lambda y: y[:, 0], r"targets must be tensors \(\) or \(B,\) with a gradient, .* got \(2, 12\)"),
        (lambda y: {"a": y[0, 0, 0].item()}, "targets must be tensors .* for 'a'"),
        (lambda y: y.detach()[:, 0, 0], "targets must be tensors .* requires_grad=False for 'target'"),
        (lambda y: {}, "targets must contain at least one target, got none"),
    ],
)
def test_invalid_targets_are_refused(targets, message):
    model = Encoder()
    with record_attention(model, gradients=True) as record:
        y = model(torch.randn(B, Q, EMBED_DIM))
    with pytest.raises(SightlineError, match=message):
        record.relevance(targets(y))


def test_maps_of_different_sizes_are_refused():
    maps = [AttentionMap(name=f"{n}", kind="encoder", weights=torch.full((1, 1, n, n), 1 / n)) for n in (Q, K)]
    with pytest.raises(
        SightlineError, match="rollout must be over maps with one number of source tokens, got 5 and 7 in 7; record one"
    ):
        Record("Toy", maps).rollout()
    assert Record("Toy", maps).rollout("7")[0].weights.shape == (1, 1, K, K)
    with pytest.raises(SightlineError, match="layers must match a map between tokens, got 'x'; the record has 5, 7"):
        Record("Toy", maps).rollout("x")


@pytest.fixture
def one_head_model():
    """An encoder whose last layer uses its head 2 only."""
    model = Encoder()
    weight = model.layers[1].out_proj.weight
    with torch.no_grad():
        weight[:, : 2 * EMBED_DIM // NUM_HEADS] = 0
    return model


@pytest.mark.parametrize("method", ["ablation", "gradient"])
def test_head_importance_is_the_drop_without_the_head(one_head_model, method):
    model, x, calls = one_head_model, torch.randn(B, Q, EMBED_DIM), []

    def run():
        return model(x)[:, 0, 4]

    def progress(done, total):
        calls.append((done, total))

    with torch.no_grad():
        importance = head_importance(model, run, layers="layers.1*", method=method, progress=progress)
    drops = importance["layers.1"]
    assert_close(importance.target, run().detach().mean().item())
    assert_close(drops[:2], torch.zeros(2), atol=1e-6, rtol=0)
    residual = x + model.layers[0](x)
    bias = model.layers[1].out_proj.bias
    assert_close(drops[2], (run() - residual[:, 0, 4] - bias[4]).mean(), atol=1e-5, rtol=0)
    layer, head, drop = importance.ranking()[0 if drops[2] > 0 else -1]
    assert (layer, head, drop) == ("layers.1", 2, float(drops[2]))
    assert f"layers.1, head 2: {drop:+.4g}" in repr(importance)
    assert calls == ([(1, 3), (2, 3), (3, 3)] if method == "ablation" else [])


def test_invalid_runs_are_refused(one_head_model):
    x = torch.randn(B, Q, EMBED_DIM)
    with pytest.raises(SightlineError, match=r"run must return a tensor \(\) or \(B,\), got"):
        head_importance(one_head_model, lambda: one_head_model(x))
    with pytest.raises(SightlineError, match="run must return a tensor with a gradient"):
        head_importance(one_head_model, lambda: one_head_model(x)[:, 0, 0].detach(), method="gradient")
    with pytest.raises(SightlineError, match="method must be one of ablation, gradient, got 'magic'"):
        head_importance(one_head_model, lambda: one_head_model(x)[:, 0, 0], method="magic")


def test_a_target_without_the_recorded_attention_is_refused():
    model, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 3, 8)
    with record_attention(model, gradients=True) as record:
        out = model(x, x, x)[0]
    with pytest.raises(
        SightlineError, match="must be computed from the outputs of the recorded calls, got 'other', wh"
    ):
        record.relevance({"one": out.sum(), "other": torch.ones(1, requires_grad=True) * 2})
    out.sum().backward()
    with pytest.raises(SightlineError, match=r"got one after backward\(\); call relevance before it"):
        record.relevance(out.sum())
