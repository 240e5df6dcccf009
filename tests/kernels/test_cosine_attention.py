"""Fused cosine attention against float64, on a GPU or in Triton's interpreter (`make test-kernels`)."""

import os

import pytest
import torch
from torch import Tensor

from sightline.attention import CosineScore, attend
from sightline.attention.masks import Bias, Causal, Episode, Multiplicative, Padding, Window
from sightline.kernels import cosine_attention as kernels
from sightline.kernels.cosine_attention import MaskRule, Temperature, reference_cosine_attention

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
needs_triton = pytest.mark.skipif(
    not (kernels.has_triton() and (IS_INTERPRETED or torch.cuda.is_available())),
    reason="needs Triton and a GPU, or Triton's interpreter: make test-kernels",
)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in the interpreter
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}

B, H, Q, K = 2, 4, 37, 53
LONG_BOUNDS = {0.125: 0.015, 0.05: 0.015, 0.01: 0.025}
"""Relative errors in bfloat16 by temperature, of outputs and of the gradients of q, k and v."""
MASKS = {
    "none": MaskRule(),
    "causal": MaskRule(causal=True),
    "window": MaskRule(window=5),
    "episode": MaskRule(support=11),
    "episode of 3 tokens a query": MaskRule(support=11, query_size=3),
    "padding": MaskRule(allowed=torch.rand(B, 1, 1, K, generator=torch.Generator().manual_seed(0)) > 0.3),
    "any": MaskRule(allowed=torch.rand(B, H, Q, K, generator=torch.Generator().manual_seed(0)) > 0.5),
    "bias": MaskRule(bias=torch.randn(1, H, Q, K, generator=torch.Generator().manual_seed(0))),
    "bias of keys, causal": MaskRule(
        bias=torch.randn(B, H, 1, K, generator=torch.Generator().manual_seed(0)), causal=True
    ),
}


def tensors(
    dtype: torch.dtype, *, groups: int = H, queries: int = Q, keys: int = K, dim: int = 16, scale: float = 1.0
) -> list[Tensor]:
    """q, k, v as a projection leaves them, (B, H, T, D) over (B, T, H, D)."""
    torch.manual_seed(0)
    shapes = ((queries, H, scale), (keys, groups, scale), (keys, groups, 1.0))
    return [
        (torch.randn(B, tokens, heads, dim, dtype=torch.float64) * size).to(dtype).to(DEVICE).transpose(1, 2)
        for tokens, heads, size in shapes
    ]


def cosine_attention(
    q: Tensor, k: Tensor, v: Tensor, temperature: Tensor, rule: MaskRule = kernels.NO_MASK, dropout: float = 0.0
) -> Tensor:
    """The kernel with a given temperature (H,) or (1,)."""
    offset = (temperature / 1e-3).log()
    return kernels.cosine_attention(q, k, v, Temperature(offset, 0.0, 1e-3), rule, dropout)


def relative_error(actual: Tensor, expected: Tensor, minimum: float = 1e-30) -> float:
    return float((actual.double() - expected).detach().norm() / expected.detach().norm().clamp_min(minimum))


def check(qkv: list[Tensor], temperature: Tensor, rule: MaskRule = kernels.NO_MASK) -> None:
    """Output and gradients agree with float64, also for a query and a key that are zero vectors."""
    if qkv[0].shape[2] > 2 and qkv[1].shape[2] > 2:
        qkv[0][:, :, 1] = qkv[1][:, :, 2] = 0
    rule = rule._replace(**{name: value.to(DEVICE) for name, value in rule._asdict().items() if torch.is_tensor(value)})
    leaves = [*qkv, temperature.to(DEVICE)] + ([] if rule.bias is None else [rule.bias])
    results = []
    gradient = torch.randn(*qkv[0].shape, device=DEVICE, dtype=torch.float64).to(qkv[0].dtype)
    for function, dtype in ((cosine_attention, None), (reference_cosine_attention, torch.float64)):
        inputs = [x.detach().to(dtype or x.dtype).requires_grad_() for x in leaves]
        out = function(*inputs[:4], rule._replace(bias=inputs[4] if len(inputs) > 4 else None))
        results.append([out, *torch.autograd.grad(out, inputs, gradient.to(out.dtype))])
    minimum = float(gradient.double().norm())  # the gradient of q and k is 0 where there is one key
    errors = [relative_error(actual, expected, minimum) for actual, expected in zip(*results, strict=True)]
    errors[4] /= 10 if qkv[0].dtype == torch.float32 else 1  # a sum of terms of both signs over all pairs
    names = ["out", "q", "k", "v", "temperature", "bias"]
    assert max(errors) <= TOLERANCE[qkv[0].dtype], str(dict(zip(names, errors, strict=False)))


@needs_triton
@pytest.mark.parametrize("dim", [16, 64])  # with 64, half precision takes the kernel of short sequences
@pytest.mark.parametrize("rule", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_output_and_gradients_agree_with_float64(dtype: torch.dtype, rule: MaskRule, dim: int) -> None:
    check(tensors(dtype, dim=dim), torch.tensor([0.05, 0.08, 0.1, 0.3]), rule)


@needs_triton
@pytest.mark.parametrize("dim", [20, 64, 128])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (17, 131), (130, 67), (70, 40)])
def test_any_lengths_and_head_dimensions(queries: int, keys: int, dim: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        check(tensors(dtype, queries=queries, keys=keys, dim=dim), torch.tensor([0.1]))


@needs_triton
@pytest.mark.parametrize("temperature", [0.01, 10.0])
def test_extreme_temperatures(temperature: float) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        qkv, leaf = tensors(dtype, dim=32), torch.tensor([temperature])
        check(qkv, leaf) if dtype == torch.bfloat16 else check_without_temperature(qkv, leaf)


def check_without_temperature(qkv: list[Tensor], temperature: Tensor) -> None:
    """The sum over all pairs that is the temperature's gradient cancels in float32 at 0.01; the others must agree."""
    leaves = [x.detach().requires_grad_() for x in qkv]
    exact = [x.detach().double().requires_grad_() for x in qkv]
    actual = torch.autograd.grad(cosine_attention(*leaves, temperature.to(DEVICE)).sum(), leaves)
    expected = torch.autograd.grad(reference_cosine_attention(*exact, temperature.to(DEVICE).double()).sum(), exact)
    for x, y in zip(actual, expected, strict=True):
        assert relative_error(x, y) <= 1e-5


@needs_triton
@pytest.mark.parametrize(("dtype", "dim"), [(torch.float32, 16), (torch.bfloat16, 64)])
def test_grouped_heads_and_a_shared_temperature(dtype: torch.dtype, dim: int) -> None:
    check(tensors(dtype, groups=2, dim=dim), torch.tensor([0.1]))


@needs_triton
@pytest.mark.parametrize("dim", [16, 64])
@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, 1e20), (torch.bfloat16, 1e20), (torch.bfloat16, 1e-8), (torch.float16, 1e4)]
)
def test_huge_and_tiny_vectors(dtype: torch.dtype, scale: float, dim: int) -> None:
    check(tensors(dtype, scale=scale, dim=dim), torch.tensor([0.1]))


@needs_triton
def test_zero_vectors_and_fully_masked_rows_have_finite_outputs_and_no_gradient() -> None:
    q, k, v = tensors(torch.float32, dim=24)
    q[:, :, 3], k[:, :, 5] = 0, 0
    q, k = q.requires_grad_(), k.requires_grad_()
    allowed = torch.ones(Q, K, dtype=torch.bool, device=DEVICE)
    allowed[7] = False
    out = cosine_attention(q, k, v, torch.tensor([0.1], device=DEVICE), MaskRule(allowed=allowed))
    out.sum().backward()
    assert torch.equal(out[:, :, 7], torch.zeros_like(out[:, :, 7]))
    assert torch.allclose(out[:, :, 3], v.mean(2), atol=1e-5)
    assert q.grad is not None
    assert k.grad is not None
    for gradient in (q.grad[:, :, 3], q.grad[:, :, 7], k.grad[:, :, 5]):
        assert torch.equal(gradient, torch.zeros_like(gradient))
    assert q.grad.isfinite().all()


@needs_triton
def test_inputs_of_any_strides_give_the_same_output() -> None:
    qkv, temperature = tensors(torch.float32), torch.tensor([0.1], device=DEVICE)
    strided = [x.mT.contiguous().mT for x in qkv]
    assert torch.equal(cosine_attention(*qkv, temperature), cosine_attention(*strided, temperature))


@needs_triton
@pytest.mark.parametrize("dim", [16, 64])
def test_gradients_with_dropout_are_those_of_the_dropped_weights(dim: int) -> None:
    q, k, v = (x.requires_grad_() for x in tensors(torch.bfloat16, queries=33, keys=dim, dim=dim))
    v.data[:] = torch.eye(dim).to(v)  # the output is then the weights
    temperature = torch.tensor([0.3], device=DEVICE)

    def dropped() -> Tensor:
        torch.manual_seed(1)
        return cosine_attention(q, k, v, temperature, dropout=0.25)

    weights = reference_cosine_attention(*(x.double() for x in (q, k, v)), temperature.double())
    factor = torch.where(dropped() > 1e-3, 1 / 0.75, 0.0).double().detach()
    assert 0.1 < float((factor == 0).double().mean()) < 0.5
    direction = torch.randn(weights.shape, device=DEVICE, dtype=torch.float64)
    expected = torch.autograd.grad(weights * factor, (q, k), direction)
    actual = torch.autograd.grad(dropped(), (q, k), direction.to(q.dtype))
    for x, y in zip(actual, expected, strict=True):
        assert relative_error(x, y.double()) < 3e-2


@needs_triton
def test_dropout_keeps_the_mean_and_is_the_same_in_both_passes() -> None:
    q, k, v = (x.requires_grad_() for x in tensors(torch.float32, queries=64, keys=64))
    temperature = torch.tensor([0.5], device=DEVICE)
    expected = cosine_attention(q, k, torch.ones_like(v), temperature)
    torch.manual_seed(0)
    dropped = cosine_attention(q, k, torch.ones_like(v), temperature, dropout=0.25)
    assert not torch.equal(dropped, expected)
    assert abs(float(dropped.detach().mean()) - 1) < 0.02
    torch.manual_seed(0)
    out = cosine_attention(q, k, v, temperature, dropout=0.25)
    (dv,) = torch.autograd.grad(out, v, torch.ones_like(out))  # the sums of the columns of the dropped weights
    assert torch.allclose(dv.sum(2)[..., 0], dropped[..., 0].sum(2), rtol=1e-4)


@needs_triton
def test_results_are_deterministic() -> None:
    qkv = [x.requires_grad_() for x in tensors(torch.bfloat16)]
    temperature = torch.tensor([0.1], device=DEVICE, requires_grad=True)
    first, second = (
        torch.autograd.grad(cosine_attention(*qkv, temperature).sum(), [*qkv, temperature]) for _ in range(2)
    )
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


@needs_triton
@pytest.mark.parametrize(
    "mask",
    [None, Causal(), Causal() & Window(3), Episode(11, query_size=2), Padding.from_lengths([37, 20])],
    ids=str,
)
def test_attend_uses_the_kernel_for_cosine_scores(mask: object, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(torch.float32, keys=Q)
    score = CosineScore(num_heads=H).to(DEVICE)
    calls = []
    original = kernels.cosine_attention
    monkeypatch.setattr(kernels, "cosine_attention", lambda *arguments: calls.append(1) or original(*arguments))
    out = attend(q, k, v, score=score, mask=mask)
    monkeypatch.setattr(kernels, "is_applicable", lambda *_: False)
    assert calls == [1]
    assert torch.allclose(out, attend(q, k, v, score=score, mask=mask), atol=1e-5)


@needs_triton
def test_attend_adds_biases_in_the_kernel_and_multiplies_outside_of_it() -> None:
    q, k, v = tensors(torch.float32, keys=Q)
    score, factor = CosineScore(num_heads=H).to(DEVICE), Multiplicative(Q).to(DEVICE)
    torch.nn.init.uniform_(factor.table, 0.5, 1.5)
    for mask in (Bias(torch.randn(H, Q, Q, device=DEVICE)[None]), factor):
        expected = attend(q.double(), k.double(), v.double(), score=score.double(), mask=mask)
        assert torch.allclose(attend(q, k, v, score=score.float(), mask=mask).double(), expected, atol=1e-5)


@needs_triton
def test_long_sequences_run_on_torch_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "LONG_KEYS", 32)
    monkeypatch.setattr(kernels, "_attention", None)
    padding = torch.arange(40) < torch.tensor([[33], [0]])  # of the second sequence, no key is left
    for rule in (kernels.NO_MASK, kernels.CAUSAL, MaskRule(allowed=padding[:, None, None])):
        check(tensors(torch.float32, queries=40, keys=40), torch.tensor([0.1]), rule)
    q, k, v = tensors(torch.float32, queries=40, keys=40)
    before = cosine_attention(q, k, v, torch.tensor([0.1], device=DEVICE), kernels.CAUSAL)
    k[:, :, 30:] = torch.randn_like(k[:, :, 30:])
    after = cosine_attention(q, k, v, torch.tensor([0.1], device=DEVICE), kernels.CAUSAL)
    assert torch.equal(before[:, :, :30], after[:, :, :30])  # no output depends on later keys, to the last bit


@needs_triton
@pytest.mark.parametrize("shared", [0.0, 0.95, 0.99])
@pytest.mark.parametrize("temperature", [0.125, 0.05, 0.01])
def test_long_sequences_in_bfloat16_have_a_bounded_error(
    temperature: float, shared: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random vectors, and vectors that mostly point in one direction, as in trained models."""
    monkeypatch.setattr(kernels, "LONG_KEYS", 64)
    qkv = tensors(torch.float32, queries=64, keys=512, dim=64)
    direction = torch.randn(64).to(DEVICE)  # drawn on the CPU: the same numbers in the interpreter and on a GPU
    for x in qkv[:2]:
        x.mul_((1 - shared**2) ** 0.5).add_(shared * direction)
    leaves = [x.bfloat16().requires_grad_() for x in qkv] + [
        torch.tensor([temperature], device=DEVICE).requires_grad_()
    ]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    out, expected = cosine_attention(*leaves), reference_cosine_attention(*exact)
    assert relative_error(out, expected) <= (0.015 if temperature == 0.01 else 0.01)
    sums, expected_sums = [], []
    for i in range(8):
        gradient = torch.randn(B, 64, H, 64).bfloat16().to(DEVICE).transpose(1, 2)
        gradient = gradient.contiguous() if i % 2 else gradient
        gradients = torch.autograd.grad(out, leaves, gradient, retain_graph=True)
        expected_gradients = torch.autograd.grad(expected, exact, gradient.double(), retain_graph=True)
        errors = [relative_error(x, y) for x, y in zip(gradients[:3], expected_gradients[:3], strict=True)]
        assert max(errors) <= LONG_BOUNDS[temperature], errors
        # The gradient of the temperature is a sum of terms of both signs. Its error is compared with the size of the
        # terms, with the sums of all gradients, which do not all cancel, and where the terms have one sign.
        size = (expected_gradients[0] * exact[0].norm(dim=-1, keepdim=True)).norm() / temperature
        assert (gradients[3] - expected_gradients[3]).abs() <= 0.005 * size, errors
        sums.append(gradients[3])
        expected_sums.append(expected_gradients[3])
    error = relative_error(torch.stack(sums), torch.stack(expected_sums))
    assert error <= (0.35 if (temperature, shared) == (0.01, 0) else 0.03)  # 0.01: one key has the weight, terms cancel
    shrinking = [torch.autograd.grad(x, y[3], x.detach())[0] for x, y in ((out, leaves), (expected, exact))]
    assert relative_error(*shrinking) <= (0.1 if shared == 0.99 else 0.05), shrinking


@needs_triton
@pytest.mark.skipif(IS_INTERPRETED, reason="the interpreter does not compile")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler
def test_compiled_attention_agrees() -> None:
    qkv = [x.requires_grad_() for x in tensors(torch.bfloat16)]
    temperature = torch.full((H,), 0.1, device=DEVICE, requires_grad=True)
    compiled = torch.compile(cosine_attention, fullgraph=True)
    for function in (cosine_attention, compiled):
        out = function(*qkv, temperature)
        gradients = torch.autograd.grad(out.float().square().sum(), [*qkv, temperature])
        if function is cosine_attention:
            expected = [out, *gradients]
    for x, y in zip([out, *gradients], expected, strict=True):
        assert relative_error(x, y.double()) < 1e-2


@needs_triton
def test_operators_are_registered_correctly() -> None:
    qkv = [x.requires_grad_() for x in tensors(torch.float32)]
    temperature = torch.full((H,), 0.1, device=DEVICE, requires_grad=True)
    arguments = (*qkv, temperature, None, None, None, False, -1, 0, 1, 0.0, 0.0, 0.1)
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(kernels._attention, arguments, test_utils=utilities)
    torch.library.opcheck(kernels._normalize, (qkv[0], temperature, 0.0, 0.1), test_utils=utilities)
    torch.library.opcheck(kernels._normalize, (qkv[1], None, 0.0, 1.0, 5), test_utils=utilities)


@needs_triton
@pytest.mark.skipif(IS_INTERPRETED, reason="CUDA graphs need a GPU")
def test_kernels_run_in_cuda_graphs() -> None:
    q, k, v = tensors(torch.bfloat16)
    temperature = torch.full((H,), 0.1, device=DEVICE)
    expected = cosine_attention(q, k, v, temperature)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = cosine_attention(q, k, v, temperature)
    out.zero_()
    graph.replay()
    assert torch.equal(out, expected)


@needs_triton
def test_operator_is_exported() -> None:
    class Module(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, temperature: Tensor) -> Tensor:
            return cosine_attention(q, k, v, temperature)

    inputs = (*tensors(torch.float32), torch.full((H,), 0.1, device=DEVICE))
    program = torch.export.export(Module(), inputs)
    assert any("cosine_attention" in str(node.target) for node in program.graph.nodes)
    assert torch.equal(program.module()(*inputs), cosine_attention(*inputs))


POINTERS = {
    **dict.fromkeys(("q", "k", "v", "out", "d_out", "dq", "dk", "dv", "x", "dx", "gradient"), "*bf16"),
    **dict.fromkeys(("offset", "lse", "delta", "q_norm", "d_offset", "d_bias", "bias"), "*fp32"),
    **dict.fromkeys(("dropout", "log_ratio", "min_temperature"), "fp32"),
    "allowed": "*u8",
    "seed": "*i32",
}
OPTIONS = {
    "D": 16,
    "BLOCK_D": 16,
    "BLOCK_M": 32,
    "BLOCK_N": 32,
    "BLOCK": 64,
    "STEP": 16,
    "ONE_BLOCK": True,
    "PRECISION": "ieee",
    "ALLOWED": 1,
    "BIAS": 2,
} | (
    dict.fromkeys(("CAUSAL", "WINDOW", "EPISODE", "DROPOUT", "D_BIAS", "D_OFFSET", "SCALED", "CENTERED"), True)
    | {"EVEN": False}
)


@pytest.mark.skipif(IS_INTERPRETED or not kernels.has_triton(), reason="needs Triton outside its interpreter")
@pytest.mark.filterwarnings("ignore::UserWarning")  # of Triton, about its defaults
@pytest.mark.parametrize(
    "name", ["forward", "backward_block", "backward_tile", "delta", "normalize", "normalize_backward"]
)
def test_kernels_compile_for_a_gpu_that_is_not_there(name: str) -> None:
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from sightline.kernels import cosine_triton

    kernel = getattr(cosine_triton, f"{name}_kernel")
    constants = {argument: OPTIONS[argument] for argument in kernel.arg_names if argument in OPTIONS}
    signature = {
        argument: "constexpr" if argument in constants else POINTERS.get(argument, "i32")
        for argument in kernel.arg_names
    }
    compiled = compile_kernel(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32))
    assert "ptx" in compiled.asm


@pytest.mark.parametrize("batch", [1, 2])
def test_gradients_get_the_layout_of_the_output(batch: int) -> None:
    x, strides = torch.randn(batch, 5, 3, 4).transpose(1, 2).requires_grad_(), []
    x.register_hook(lambda gradient: strides.append(gradient.stride()[1:]))
    for gradient in (torch.randn(batch, 3, 5, 4), torch.ones(1).expand(batch, 3, 5, 4)):
        (got,) = torch.autograd.grad(kernels._SameLayout.apply(x), x, gradient)
        assert torch.equal(got, gradient)
    assert strides == [x.stride()[1:]] * 2
    same = torch.randn(batch, 5, 3, 4).transpose(1, 2)
    out = kernels._SameLayout.apply(x)
    assert kernels._SameLayout.backward(out.grad_fn, same) is same  # not copied


def test_kernels_are_used_on_a_gpu_for_enough_queries() -> None:
    q, k, v = (torch.randn(1, 2, 16, 16) for _ in range(3))
    assert kernels.is_applicable(q, k, v) == (IS_INTERPRETED and kernels.has_triton())
    assert not kernels.is_applicable(q[:, :, :15], k, v)
    assert not kernels.is_applicable(q.double(), k.double(), v.double())
    assert not kernels.is_applicable(q.expand(32768, 2, 16, 16), k, v)


@needs_triton
def test_small_values_at_a_low_temperature_are_exact() -> None:
    """Queries that are opposite to all keys, with weights far below the bound of the scores."""
    q, k, v = tensors(torch.float32)
    direction = torch.randn(16, device=DEVICE)
    q, k = (-direction).expand_as(q), (direction + 1e-3 * k).contiguous()
    temperature = torch.tensor([1 / 41], device=DEVICE)
    expected = reference_cosine_attention(q.double(), k.double(), 1e-6 * v.double(), temperature.double())
    assert relative_error(cosine_attention(q, k, 1e-6 * v, temperature), expected) < 1e-5


@needs_triton
def test_transforms_and_subclasses_do_not_use_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(torch.float32, keys=Q)
    score = CosineScore(num_heads=H).to(DEVICE)

    def total(x: Tensor) -> Tensor:
        return attend(x, k, v, score=score).square().sum()

    (expected,) = torch.autograd.grad(total(q.requires_grad_()), q)
    assert torch.allclose(torch.func.grad(total)(q.detach()), expected, atol=1e-4)

    class Negative(CosineScore):
        def to_dot_product(self, q: Tensor, k: Tensor, heads: slice = slice(None)) -> tuple[Tensor, Tensor, float]:
            q, k, scale = super().to_dot_product(q, k, heads)
            return -q, k, scale

    negative = attend(q.detach(), k, v, score=Negative(num_heads=H).to(DEVICE))
    assert torch.allclose(negative, attend(-q.detach(), k, v, score=score), atol=1e-5)


def test_grouped_heads_share_keys_and_values() -> None:
    q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    expected = attend(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))
    assert torch.equal(attend(q, k, v), expected)
