import itertools
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from peak_memory import ATTENTION, HEAD_DIM, HEADS, TOKENS, peak_of_attention
from processes import FORKSERVER
from sightline.attention import CosineScore, DotScore, attend, attention_weights, self_attention
from sightline.attention.functional import observe
from sightline.attention.masks import Additive, Allow, Bias, Causal, Episode, Multiplicative, Padding, Window
from sightline.attention.scores import make_score
from sightline.kernels import episode_attention, window_attention
from sightline.kernels.episode_attention import is_applicable
from sizes import B, D, H, K, Q
from torch_reference import input_gradients


class WeightObserver:
    """Observes every attention, which forces the explicit path."""

    def __init__(self):
        self.weights = []

    def is_interested(self):
        return True

    def on_attention(self, weights, scores, *, kind, causal):
        self.weights.append(weights)
        return weights


@pytest.fixture
def qkv():
    return [torch.randn(B, H, n, D, requires_grad=True) for n in (Q, K, K)]


def attend_observed(*args, **kwargs):
    observer = WeightObserver()
    with observe(observer):
        return attend(*args, **kwargs), observer.weights


def randomize(mask):
    with torch.no_grad():
        mask.table.normal_()
    return mask


MASKS = {
    "none": lambda: None,
    "causal": Causal,
    "padding": lambda: Padding(torch.tensor([[True] * 4 + [False] * 3, [True] * 7])),
    "window": lambda: Window(2),
    "episode": lambda: Episode(3),
    "allow": lambda: Allow(torch.rand(B, H, Q, K) > 0.3),
    "empty rows": lambda: Allow((torch.rand(B, Q, K) > 0.3) & (torch.arange(Q) != 1)[:, None]),
    "bias": lambda: Bias(torch.randn(B, 1, Q, K)),
    "bias per head": lambda: Bias(torch.randn(1, H, Q, K)) & Causal(),
    "minus infinity": lambda: Bias(torch.randn(Q, K).masked_fill(torch.arange(K) % 3 == 1, -torch.inf)),
    "row of minus infinity": lambda: Bias(torch.zeros(Q, K).masked_fill((torch.arange(Q) == 1)[:, None], -torch.inf)),
    "additive": lambda: randomize(Additive(9)) & Causal(),
    "multiplicative": lambda: randomize(Multiplicative(9, num_heads=H)) & Causal(),
    "causal padding": lambda: Causal() & Padding(torch.tensor([[False, False] + [True] * 5, [True] * 7])),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", ["dot", "cosine", "general"])
def test_fused_and_explicit_paths_agree_in_outputs_and_gradients(score, mask, qkv, device):
    score, mask = make_score(score, head_dim=D, num_heads=H).to(device), MASKS[mask]()
    mask = mask if mask is None else mask.to(device)
    qkv = [x.to(device) for x in qkv]
    parameters = [p for part in (score, mask) if part is not None for p in part.parameters()]
    fused = attend(*qkv, score=score, mask=mask)
    explicit, _ = attend_observed(*qkv, score=score, mask=mask)
    assert_close(fused, explicit, atol=1e-5, rtol=0)
    theirs = input_gradients(explicit, *qkv, *parameters)
    for ours, expected in zip(input_gradients(fused, *qkv, *parameters), theirs, strict=True):
        assert_close(ours, expected, atol=1e-4, rtol=1e-4)


@pytest.fixture(params=["without the scores between queries", "masked"])
def on_cpu(request, monkeypatch):
    """Both ways to compute attention under an episode mask, which the number of keys selects on a CPU."""
    monkeypatch.setattr(episode_attention, "MIN_CPU_KEYS", 12 if request.param == "masked" else 11)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("score", ["dot", "cosine", "general"])
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("queries", [8, 11])
def test_episode_attention_agrees_with_the_explicit_path(score, size, queries):
    score, mask = make_score(score, head_dim=D, num_heads=H), Episode(3, query_size=size)
    assert is_applicable(queries, 11, 3, size)
    qkv = [torch.randn(B, H, length, D, requires_grad=True) for length in (queries, 11, 11)]
    fused, (explicit, _) = attend(*qkv, score=score, mask=mask), attend_observed(*qkv, score=score, mask=mask)
    assert_close(fused, explicit, atol=1e-5, rtol=0)
    parameters = [*qkv, *score.parameters()]
    theirs = input_gradients(explicit, *parameters)
    for ours, expected in zip(input_gradients(fused, *parameters), theirs, strict=True):
        assert_close(ours, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("queries", [8, 11])
@pytest.mark.parametrize("max_scores", [1, 3 * B * H * 2 * (3 + 2)])
def test_episode_attention_in_chunks_agrees_with_the_explicit_path(queries, max_scores, monkeypatch):
    q, k, v = (torch.randn(B, H, length, D) for length in (queries, 11, 11))
    expected, _ = attend_observed(q, k, v, mask=Episode(3, query_size=2))
    monkeypatch.setattr(episode_attention, "MAX_SCORES", max_scores)
    monkeypatch.setattr(episode_attention, "MIN_CPU_KEYS", 0)
    with torch.no_grad():
        assert_close(attend(q, k, v, mask=Episode(3, query_size=2)), expected, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("score", ["dot", "cosine"])
def test_episode_attention_is_finite_in_half_precision(score):
    """Unscaled, these scores exceed 65,504, the largest float16."""
    q, k, v = (torch.randn(B, H, 11, 64, dtype=torch.float16) for _ in range(3))
    q, k = 60 * q.sign(), 60 * k.sign()
    q[..., :3, :] = k[..., :3, :]
    q[..., -1, :] = k[..., 0, :]
    mixed = attend(q, k, v, score=make_score(score, head_dim=64, num_heads=H), mask=Episode(3))
    assert mixed.isfinite().all()
    assert_close(mixed[..., -1, :], v[..., 0, :], atol=1e-2, rtol=0)


@pytest.mark.parametrize("mask", ["none", "causal", "padding", "empty rows", "additive"])
@pytest.mark.parametrize("score", ["dot", "cosine", "general"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float16, 2e-2), (torch.bfloat16, 6e-2)]
)
def test_fused_and_explicit_paths_agree_in_other_dtypes(score, mask, dtype, tolerance, qkv, device):
    score, mask = make_score(score, head_dim=D, num_heads=H).to(device, dtype), MASKS[mask]()
    mask = mask if mask is None else mask.to(device, dtype)
    qkv = [x.to(device, dtype) for x in qkv]
    fused, (explicit, _) = attend(*qkv, score=score, mask=mask), attend_observed(*qkv, score=score, mask=mask)
    assert fused.dtype == explicit.dtype == dtype
    assert_close(fused, explicit, atol=tolerance, rtol=tolerance)


def test_attention_in_chunks_of_heads_agrees_with_all_heads_at_once():
    q, k, v = (torch.randn(1, 16, 1100, 64) for _ in range(3))
    score = CosineScore(num_heads=16)
    with torch.no_grad():
        score.log_temperature_offset.uniform_()
    for mask in (None, Causal(), Bias(torch.randn(1, 16, 1, 1100))):
        kept = attend(q, k, v, score=score, mask=mask).detach()
        with torch.no_grad():
            assert_close(attend(q, k, v, score=score, mask=mask), kept, atol=1e-6, rtol=1e-6)


def test_dot_attention_equals_torch_sdpa(qkv):
    allowed = torch.rand(Q, K) > 0.3
    allowed[:, 0] = True
    pairs = [
        (attend(*qkv), F.scaled_dot_product_attention(*qkv)),
        (attend(*qkv, mask=Allow(allowed)), F.scaled_dot_product_attention(*qkv, attn_mask=allowed)),
        (attend(*qkv, score=DotScore(scaled=False)), F.scaled_dot_product_attention(*qkv, scale=1.0)),
    ]
    bias = torch.randn(B, H, Q, K)
    pairs.append((attend(*qkv, mask=Bias(bias)), F.scaled_dot_product_attention(*qkv, attn_mask=bias)))
    for ours, theirs in pairs:
        assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
        for got, expected in zip(input_gradients(ours, *qkv), input_gradients(theirs, *qkv), strict=True):
            assert_close(got, expected, atol=1e-5, rtol=1e-5)
    square = [torch.randn(B, H, Q, D) for _ in range(3)]
    assert_close(attend(*square, mask=Causal()), F.scaled_dot_product_attention(*square, is_causal=True))


@pytest.mark.parametrize("score", ["dot", "cosine", "general"])
@pytest.mark.parametrize("grad", [True, False])
def test_weights_are_computed_only_for_observers(score, grad, monkeypatch):
    def refuse(*args):
        raise AssertionError("weights were computed")

    x = torch.randn(B, H, Q, D, requires_grad=grad)
    part = make_score(score, head_dim=D, num_heads=H)
    monkeypatch.setattr("sightline.attention.normalizers.Softmax.forward", refuse)
    for mask in (None, Causal(), Window(1), Bias(torch.randn(Q, Q))):
        assert attend(x, x, x, score=part, mask=mask).shape == x.shape
    with pytest.raises(AssertionError, match="weights were computed"):
        attend_observed(x, x, x, score=part)


def peak_memory(name, *, train):
    receiver, sender = FORKSERVER.Pipe(duplex=False)
    process = FORKSERVER.Process(target=peak_of_attention, args=(name, train, sender))
    process.start()
    sender.close()
    with receiver:
        peak = receiver.recv()
    process.join()
    return peak


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("train", [False, True])
def test_peak_memory_is_close_to_torch_sdpa(train):
    """At most 1.3 times the peak memory of torch's fused attention."""
    peaks = {name: peak_memory(name, train=train) for name in ATTENTION}
    inputs_and_output = 4 * HEADS * TOKENS * HEAD_DIM * 4
    weights = HEADS * TOKENS**2 * 4
    assert peaks["sdpa"] < weights
    for name, peak in peaks.items():
        assert 0.9 * inputs_and_output < peak <= 1.3 * peaks["sdpa"], (name, peaks)


def test_output_is_weights_times_values(qkv):
    q, k, v = qkv
    out, (weights,) = attend_observed(*qkv, mask=MASKS["padding"]())
    assert_close(out, weights @ v)
    assert_close(weights, attention_weights(q, k, mask=MASKS["padding"]()))


def test_observed_weights_do_not_include_dropout(qkv):
    out, (weights,) = attend_observed(*qkv, dropout=0.5)
    assert_close(weights.sum(-1), torch.ones(B, H, Q))
    assert (out - weights @ qkv[2]).abs().max() > 1e-2


def test_dropout_preserves_the_expected_output():
    q, k, v = torch.randn(1, 1, 2, D), torch.randn(1, 1, K, D), torch.randn(1, 1, K, D)
    many = [x.expand(20_000, 1, -1, -1) for x in (q, k, v)]
    for out in (attend(*many, dropout=0.3), attend_observed(*many, dropout=0.3)[0]):
        assert_close(out.mean(0, keepdim=True), attend(q, k, v), atol=0.05, rtol=0)


def test_inputs_without_heads_or_batch_are_accepted(qkv):
    for score, mask in itertools.product(("dot", "cosine"), (None, Causal())):
        expected = attend(*qkv, score=score, mask=mask)
        assert_close(attend(*(x[:, 1] for x in qkv), score=score, mask=mask), expected[:, 1])
        assert_close(attend(*(x[1, 2] for x in qkv), score=score, mask=mask), expected[1, 2])
    assert attention_weights(qkv[0][0, 0], qkv[1][0, 0]).shape == (Q, K)


def test_values_may_have_another_dimension_than_keys(qkv):
    q, k, _ = qkv
    assert attend(q, k, torch.randn(B, H, K, 13)).shape == (B, H, Q, 13)
    with torch.no_grad():
        assert attend(q, k, torch.randn(B, H, K, 13), score="cosine").shape == (B, H, Q, 13)


def test_self_attention_is_softmax_of_the_gram_matrix():
    x = torch.randn(B, Q, D)
    assert_close(self_attention(x), (x @ x.mT).softmax(-1) @ x)


@pytest.mark.parametrize("name", ["dot", "cosine"])
def test_scores_by_name_follow_the_device_of_the_inputs(name):
    x = torch.randn(1, 1, 3, 4, device="meta")
    assert attend(x, x, x, score=name).device.type == "meta"


def test_short_and_long_inputs_have_the_same_dtype_under_autocast():
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        outs = [attend(*(torch.randn(1, 4, n, 8) for _ in range(3)), score="cosine") for n in (1023, 1024)]
    assert outs[0].dtype == outs[1].dtype == torch.bfloat16


def test_dot_score_prefers_long_keys_and_cosine_score_does_not():
    """A dark cat attends to a bright cat and a dog. A brighter dog wins by dot product, but not by cosine."""
    dark_cat, bright_cat = [0.1, 0.1], [10.0, 10.0]
    for dog, dot_scores, dot_prefers in (([5.0, 0.0], [2.0, 0.5], 0), ([50.0, 0.0], [2.0, 5.0], 1)):
        q, k = torch.tensor([[[dark_cat]]]), torch.tensor([[[bright_cat, dog]]])
        assert_close(DotScore(scaled=False)(q, k).flatten(), torch.tensor(dot_scores))
        assert attention_weights(q, k, score="dot").argmax() == dot_prefers
        assert_close(CosineScore(temperature=1.0)(q, k).flatten(), torch.tensor([1.0, 0.5**0.5]))
        assert_close(
            attention_weights(q, k, score="cosine").flatten(), torch.tensor([0.997151, 0.002849]), atol=1e-6, rtol=0
        )


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [  # exp(s/t) / sum, to six decimal places
        (10.0, [0.343269, 0.339854, 0.316877]),
        (1.0, [0.424779, 0.384356, 0.190865]),
        (0.1, [0.730879, 0.268875, 0.000245]),
        (0.05, [0.880797, 0.119203, 0.000000]),
        (0.01, [0.999955, 0.000045, 0.000000]),
    ],
)
def test_cosine_weights_at_several_temperatures(temperature, expected):
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    keys = torch.tensor([[s, (1 - s * s) ** 0.5] for s in (0.9, 0.8, 0.1)], dtype=torch.float64)
    weights = attention_weights(query, keys, score=CosineScore(temperature=temperature).double())
    assert_close(weights[0], torch.tensor(expected, dtype=torch.float64), atol=6e-7, rtol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: attend(x, x[0], x),
            "q, k and v must all have 2, 3 or 4 dimensions, got q (2, 3, 5, 11), k (3, 5, 11)",
        ),
        (lambda x: attend(x[0, 0, 0], x[0, 0, 0], x[0, 0, 0]), "must all have 2, 3 or 4 dimensions, got q (11,)"),
        (lambda x: attend(x, x[:1], x[:1]), "q, k and v must have the same batch and heads"),
        (lambda x: attend(x, x, x[:, :, :4]), "k and v the same length, got q (2, 3, 5, 11)"),
        (lambda x: attend(x, x[..., :4], x), "q and k must have the same head_dim, got 11 and 4"),
        (lambda x: attend(x, x, x, dropout=1.0), "dropout must be at least 0 and below 1, got 1.0"),
        (
            lambda x: attend(x, x, x, score="general"),
            "score must be a Score where it has parameters to learn, got the name of GeneralScore",
        ),
        (lambda x: attend(x, x, x, score="dto"), "got 'dto'; did you mean 'dot'?"),
        (lambda x: attend(x, x, x, normalizer="soft"), "normalizer must be a Normalizer or one of"),
        (lambda x: attend(x, x, x, normalizer=["softmax"]), "got \"['softmax']\"; did you mean 'softmax'?"),
        (lambda x: attend(x, x, x, score=["dot"]), "score must be a Score or one of"),
    ],
)
def test_invalid_input_raises(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(torch.randn(B, H, Q, D))


@pytest.mark.parametrize("score", ["dot", "cosine"])
@pytest.mark.parametrize(
    "mask",
    [
        Window(3),
        Window(3) & Causal(),
        Padding(torch.arange(K) < torch.tensor([[2], [K]])) & Window(1) & Window(5),
    ],
    ids=["window", "causal", "padding"],
)
def test_a_window_is_computed_in_blocks(qkv, mask, score, monkeypatch):
    monkeypatch.setattr(window_attention, "MIN_BLOCK", 1)
    monkeypatch.setattr(window_attention, "MIN_SAVING", 0)
    blocks = attend(*qkv, mask=mask, score=score)
    monkeypatch.setattr(F, "scaled_dot_product_attention", None)
    observed, _ = attend_observed(*qkv, mask=mask, score=score)
    assert_close(blocks, observed, atol=1e-5, rtol=1e-5)


def test_blocks_of_a_window_need_a_mask_they_can_divide(qkv, monkeypatch):
    monkeypatch.setattr(window_attention, "MIN_SAVING", 0)
    mask = Window(2) & Allow(torch.rand(Q, K) > 0.3)
    assert_close(attend(*qkv, mask=mask), attend_observed(*qkv, mask=mask)[0], atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="mask must broadcast"):
        attend(*qkv, mask=Window(2) & Padding(torch.ones(B + 1, K, dtype=torch.bool)))
