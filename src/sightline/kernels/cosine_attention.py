"""Cosine attention in fused Triton kernels: softmax(q · k / (|q| |k| temperature)) v.

One kernel normalizes q and k, scores, masks, applies the softmax and averages. For long sequences, normalization in one
kernel in front of torch's attention is faster; normalized vectors are then rounded to the dtype of the inputs.
`is_applicable` tells where the kernels run; `reference_cosine_attention` is the same function in plain operations.

Shapes: B batch, H heads of q, G heads of k and v (H is a multiple of G), Q queries, K keys, D head dimension.
"""

import os
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .normalize import is_transformed, reference_normalize

MAX_HEAD_DIM = 128
MIN_QUERIES = 16
"""Queries from which on the kernels are used. Fewer, such as in a decoding step, leave most of a tile empty."""
MAX_PROGRAMS = 65535
"""Largest number of heads of a batch: the limit of CUDA for the second dimension of a grid."""
CENTER_ROWS = 32
"""Keys whose mean is subtracted from all keys of long sequences."""
LONG_KEYS = 1024
"""Keys from which on torch's attention on normalized vectors is faster, where it takes the mask."""
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class MaskRule(NamedTuple):
    """Which query may attend to which key. All rules apply; positions of queries are the last of the keys."""

    allowed: Tensor | None = None
    """Bool, broadcasts to (B, H, Q, K): True where a query may attend."""
    bias: Tensor | None = None
    """Broadcasts to (B, H, Q, K): added to the scores."""
    causal: bool = False
    """A query attends to no later key."""
    window: int = -1
    """Largest distance of query and key, -1 for any."""
    support: int = 0
    """Tokens that all queries attend to, under an episode mask; 0 without one."""
    query_size: int = 1
    """Tokens of one query of an episode, which attend to each other."""


NO_MASK, CAUSAL = MaskRule(), MaskRule(causal=True)


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def is_applicable(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernels take these tensors: on a GPU of compute capability 8.0, or in Triton's interpreter.

    An exported model has none of them, and neither have transforms of torch.func or forward-mode differentiation.
    """
    if torch.compiler.is_exporting():
        return False
    if not torch.compiler.is_compiling() and is_transformed():
        return False
    if not (q.dtype == k.dtype == v.dtype and q.dtype in DTYPES and q.shape[-1] == v.shape[-1] <= MAX_HEAD_DIM):
        return False
    if q.shape[2] < MIN_QUERIES or not 0 < len(q) * q.shape[1] <= MAX_PROGRAMS or not k.shape[2]:
        return False
    return _is_supported_gpu(q.device.index) if q.is_cuda else _is_interpreted() and has_triton()


def _is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def _is_supported_gpu(index: int) -> bool:
    return has_triton() and torch.version.hip is None and torch.cuda.get_device_capability(index) >= (8, 0)


class Temperature(NamedTuple):
    """min_temperature * exp(|log_ratio + offset|), which the kernels compute themselves: see `CosineScore`."""

    offset: Tensor
    """(H,) or (1,): learned."""
    log_ratio: float
    min_temperature: float


def cosine_attention(
    q: Tensor, k: Tensor, v: Tensor, temperature: Temperature, rule: MaskRule = NO_MASK, dropout: float = 0.0
) -> Tensor:
    """q (B, H, Q, D), k (B, G, K, D), v (B, G, K, D) -> (B, H, Q, D)"""
    if torch.is_autocast_enabled(q.device.type):
        q, k, v = (x.to(torch.get_autocast_dtype(q.device.type)) for x in (q, k, v))
    if k.shape[2] >= LONG_KEYS and _torch_takes(rule, q, k):
        return _attention_by_torch(q, k, v, temperature, rule, dropout)
    seed = torch.randint(2**31 - 1, (1,), device=q.device, dtype=torch.int32) if dropout else None
    masks = _expanded(rule, q, k)
    return _attention(q, k, v, temperature.offset, *masks, seed, *rule[2:], dropout, *temperature[1:])[0]


def _torch_takes(rule: MaskRule, q: Tensor, k: Tensor) -> bool:
    """Whether torch's fused attention takes the rule: no mask, a causal one of a square, or a mask of keys."""
    if rule.bias is not None or rule.window >= 0 or rule.support > 0:
        return False
    if rule.allowed is not None:
        return rule.allowed.shape[2] == 1 and not rule.causal and q.shape[1] == k.shape[1]
    return not rule.causal or q.shape[2] == k.shape[2]


def _attention_by_torch(
    q: Tensor, k: Tensor, v: Tensor, temperature: Temperature, rule: MaskRule, dropout: float
) -> Tensor:
    """torch's attention on normalized vectors.

    Centering subtracts the same from all scores of a query, which no softmax sees, and keys then have smaller rounding
    errors. Under a causal mask, no key depends on a later one.
    """
    q = _normalize(q, *temperature)
    k = _normalize(k, None, 0.0, 1.0, 1 if rule.causal else CENTER_ROWS)
    is_grouped = k.shape[1] < q.shape[1]
    options: dict[str, Any] = {"dropout_p": dropout, "is_causal": rule.causal, "scale": 1.0, "enable_gqa": is_grouped}
    if rule.allowed is None:
        return _SameLayout.apply(F.scaled_dot_product_attention(q, k, v, **options))
    has_key = rule.allowed.any(-1, keepdim=True)  # torch returns NaN where there is none
    out = _SameLayout.apply(F.scaled_dot_product_attention(q, k, v, rule.allowed | ~has_key, **options))
    return torch.where(has_key, out, 0.0)


class _SameLayout(torch.autograd.Function):
    """The identity, whose gradient gets the strides of its input.

    On a GPU, torch keeps the backward pass of cuDNN for the shapes and strides of q, k and v, and uses it again for
    gradients of other strides, which it then reads in the wrong order.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.strides = x.stride()
        return x.view_as(x)  # which may have other strides along dimensions of size 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        strides = zip(gradient.shape, gradient.stride(), ctx.strides, strict=True)
        if all(stride == expected for size, stride, expected in strides if size > 1):
            return gradient
        same = torch.empty_strided(gradient.shape, ctx.strides, dtype=gradient.dtype, device=gradient.device)
        return same.copy_(gradient)


def _expanded(rule: MaskRule, q: Tensor, k: Tensor) -> list[Tensor | None]:
    shape = (*q.shape[:3], k.shape[2])
    return [None if tensor is None else tensor.expand(shape) for tensor in rule[:2]]


def reference_cosine_attention(
    q: Tensor, k: Tensor, v: Tensor, temperature: Tensor, rule: MaskRule = NO_MASK
) -> Tensor:
    """`cosine_attention` in plain operations, without dropout."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    temperature = temperature.reshape(-1, 1, 1)
    scores = reference_normalize(q, temperature) @ reference_normalize(k, torch.ones_like(temperature)).mT
    keys = torch.arange(k.shape[2], device=k.device)
    positions = keys[k.shape[2] - q.shape[2] :, None] if q.shape[2] <= k.shape[2] else keys[:1, None]
    allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=k.device)
    if rule.causal:
        allowed = allowed & (keys <= positions)
    if rule.window >= 0:
        allowed = allowed & ((keys - positions).abs() <= rule.window)
    if rule.support:
        owner, key_owner = ((x - rule.support).div(rule.query_size, rounding_mode="floor") for x in (positions, keys))
        allowed = allowed & ((keys < rule.support) | (owner == key_owner))
    if rule.allowed is not None:
        allowed = allowed & rule.allowed
    if rule.bias is not None:
        scores = scores + rule.bias
    weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
    return weights.nan_to_num(0.0) @ v


class _Tiles(NamedTuple):
    """Tile sizes and launch options of a kernel."""

    queries: int
    keys: int
    num_warps: int
    num_stages: int
    step: int = 0
    max_registers: int = 0

    def limit(self) -> dict[str, int]:
        """The limit of registers per thread as a launch option."""
        return {"maxnreg": self.max_registers} if self.max_registers else {}


FORWARD_TILES = {16: _Tiles(32, 16, 1, 3, 0, 64), 32: _Tiles(64, 32, 4, 3, 0, 64), 64: _Tiles(128, 32, 4, 3, 0, 128)}
BACKWARD_TILES = {
    16: _Tiles(32, 32, 1, 3, 16, 128),
    32: _Tiles(64, 64, 4, 3, 32, 96),
    64: _Tiles(64, 64, 4, 1, 32, 128),
}
"""Tiles by head dimension, rounded up to a power of 2: the fastest of some 250 on one H200."""
SHORT = 64
"""Keys up to which one program has all of a head of 33 to 64 dimensions; in the backward pass also queries, in half
precision and without grouped heads."""
FORWARD_BLOCK, BACKWARD_BLOCK = _Tiles(64, 64, 4, 2), _Tiles(64, 64, 4, 2, 0, 168)


def _power_of_2(size: int) -> int:
    """The next power of 2, at least 16, the smallest side of a matrix product."""
    return max(16, 1 << (size - 1).bit_length())


def _forward_tiles(keys: int, dim: int, element_size: int) -> _Tiles:
    if element_size == 4:
        return _Tiles(32, 32, 4, 2)
    if 32 < dim <= 64 and keys <= SHORT:
        return FORWARD_BLOCK
    return FORWARD_TILES.get(_power_of_2(dim), _Tiles(64, 32, 4, 2))


def _backward_tiles(dim: int, element_size: int) -> _Tiles:
    if element_size == 4:
        return _Tiles(32, 32, 4, 2, 32)
    return BACKWARD_TILES.get(_power_of_2(dim), _Tiles(64, 64, 8, 2, 32))


def _row_strides(x: Tensor) -> tuple[int, int, int]:
    return x.stride(0), x.stride(1), x.stride(2)


def _mask_arguments(x: Tensor | None, dummy: Tensor) -> tuple[Tensor, list[int], int]:
    """The tensor, its strides, and 0 for no tensor, 1 for one number per key, 2 for one per query and key."""
    if x is None:
        return dummy, [0, 0, 0, 0], 0
    return x.view(torch.uint8) if x.dtype == torch.bool else x, list(x.stride()), 1 if x.stride(2) == 0 else 2


def _rows_contiguous(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _empty_heads(like: Tensor) -> Tensor:
    """A new (B, H, T, D) stored as (B, T, H, D), the order in which heads are joined."""
    batch, heads, tokens, dim = like.shape
    return like.new_empty(batch, tokens, heads, dim).transpose(1, 2)


def _precision() -> str:
    """Precision of matrix products of float32, as torch's own: TF32 if allowed."""
    if _is_interpreted():
        return "interpreted"
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@torch.library.custom_op("sightline::cosine_attention", mutates_args=())
def _attention(
    q: Tensor, k: Tensor, v: Tensor, offset: Tensor, allowed: Tensor | None, bias: Tensor | None,
    seed: Tensor | None, causal: bool, window: int, support: int, query_size: int, dropout: float,
    log_ratio: float, min_temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The output (B, H, Q, D), and two (B, H, Q): the base-2 logarithms of sums of weights, and inverse norms of q."""
    import triton

    from .cosine_triton import forward_kernel

    (batch, heads, queries, dim), (groups, keys) = q.shape, k.shape[1:3]
    q, k, v = (_rows_contiguous(x) for x in (q, k, v))
    out = _empty_heads(q)
    lse, q_norm = (torch.empty(batch, heads, queries, device=q.device, dtype=torch.float32) for _ in range(2))
    tiles = _forward_tiles(keys, dim, q.element_size())
    allowed, allowed_strides, allowed_kind = _mask_arguments(allowed, q)
    bias, bias_strides, bias_kind = _mask_arguments(bias, q)
    forward_kernel[triton.cdiv(queries, tiles.queries), batch * heads](
        q, k, v, offset, allowed, bias, q if seed is None else seed, out, lse, q_norm,
        *_row_strides(q), *_row_strides(k), *_row_strides(v), *allowed_strides, *bias_strides, *_row_strides(out),
        int(len(offset) > 1), heads, heads // groups, queries, keys, window, support, query_size, dropout,
        log_ratio, min_temperature, D=dim, BLOCK_D=_power_of_2(dim), BLOCK_M=tiles.queries, BLOCK_N=tiles.keys,
        ONE_BLOCK=keys <= tiles.keys, ALLOWED=allowed_kind, BIAS=bias_kind, CAUSAL=causal, WINDOW=window >= 0,
        EPISODE=support > 0, DROPOUT=seed is not None, PRECISION=_precision(),
        EVEN=keys % tiles.keys == 0 and window < 0 and not support,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages, **tiles.limit(),
    )  # fmt: skip
    return out, lse, q_norm


@_attention.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    lse, q_norm = (q.new_empty(q.shape[:3], dtype=torch.float32) for _ in range(2))
    return _empty_heads(q), lse, q_norm


@torch.library.custom_op("sightline::cosine_attention_backward", mutates_args=())
def _attention_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, offset: Tensor, allowed: Tensor | None, bias: Tensor | None,
    seed: Tensor | None, out: Tensor, lse: Tensor, q_norm: Tensor, causal: bool, window: int, support: int,
    query_size: int, dropout: float, log_ratio: float, min_temperature: float, needs_bias: bool, needs_offset: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, offset (H,), and of the bias (B, H, Q, K); the last two empty if not needed."""
    from .cosine_triton import backward_block_kernel, backward_tile_kernel, delta_kernel

    (batch, heads, queries, dim), (groups, keys) = q.shape, k.shape[1:3]
    q, k, v, d_out = (_rows_contiguous(x) for x in (q, k, v, d_out))
    dq = _empty_heads(q)
    dk, dv = (_empty_heads(k) for _ in range(2))
    is_block = heads == groups and max(queries, keys) <= SHORT and 32 < dim <= 64 and q.element_size() == 2
    tiles = BACKWARD_BLOCK if is_block else _backward_tiles(dim, q.element_size())
    query_tiles, key_tiles = -(-queries // tiles.queries), -(-keys // tiles.keys)
    d_offset = lse.new_empty((batch, heads, 1 if is_block else query_tiles) if needs_offset else 0)
    d_bias = lse.new_zeros((batch, heads, queries, keys) if needs_bias else 0)
    allowed, allowed_strides, allowed_kind = _mask_arguments(allowed, q)
    bias, bias_strides, bias_kind = _mask_arguments(bias, q)
    block = tiles.keys if is_block else max(tiles.keys, tiles.step)
    options: dict[str, Any] = {
        "D": dim, "BLOCK_D": _power_of_2(dim), "BLOCK_M": tiles.queries, "BLOCK_N": tiles.keys,
        "ALLOWED": allowed_kind, "BIAS": bias_kind, "CAUSAL": causal, "WINDOW": window >= 0, "EPISODE": support > 0,
        "DROPOUT": seed is not None, "EVEN": keys % block == 0 and window < 0 and not support,
        "PRECISION": _precision(), "D_BIAS": needs_bias, "D_OFFSET": needs_offset,
        "num_warps": tiles.num_warps, "num_stages": tiles.num_stages, **tiles.limit(),
    }  # fmt: skip
    strides = [
        *_row_strides(q), *_row_strides(k), *_row_strides(v), *allowed_strides, *bias_strides, *_row_strides(d_out),
        *_row_strides(dq), *_row_strides(dk), int(len(offset) > 1),
    ]  # fmt: skip
    sizes = [queries, keys, window, support, query_size, dropout, log_ratio, min_temperature]
    inputs = [q, k, v, offset, allowed, bias, q if seed is None else seed, lse]
    outputs = [dq, dk, dv, d_offset, d_bias]
    if is_block:
        backward_block_kernel[(batch * heads,)](*inputs, d_out, *outputs, *strides, heads, *sizes, **options)
    else:
        delta, tile = torch.empty_like(lse), min(_normalize_tile(q), _power_of_2(queries))
        delta_kernel[-(-queries // tile), batch * heads](
            out, d_out, delta, *_row_strides(out), *_row_strides(d_out), heads, queries,
            D=dim, BLOCK_D=_power_of_2(dim), BLOCK=tile,
        )  # fmt: skip
        backward_tile_kernel[groups * key_tiles + heads * query_tiles, batch](
            *inputs, delta, q_norm, d_out, *outputs, *strides, heads, heads // groups, *sizes, groups * key_tiles,
            query_tiles,
            STEP=tiles.step, **options,
        )  # fmt: skip
    return dq, dk, dv, d_offset.sum((0, 2)) if needs_offset else d_offset, d_bias


@_attention_backward.register_fake
def _(d_out: Tensor, q: Tensor, k: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    needs_bias, needs_offset = arguments[-2:]
    dk, dv = (_empty_heads(k) for _ in range(2))
    d_offset = q.new_empty(q.shape[1] if needs_offset else 0, dtype=torch.float32)
    d_bias = q.new_empty((*q.shape[:3], k.shape[2]) if needs_bias else 0, dtype=torch.float32)
    return _empty_heads(q), dk, dv, d_offset, d_bias


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:7], *output)
    ctx.set_materialize_grads(False)  # no zeros for the outputs that are used in the backward pass only
    ctx.options = inputs[7:]


def _attention_gradients(ctx: Any, d_out: Tensor, *_: Tensor) -> tuple[Any, ...]:
    q, k, v, offset, allowed, bias, seed, out, lse, q_norm = ctx.saved_tensors
    needs_offset, needs_bias = ctx.needs_input_grad[3], ctx.needs_input_grad[5]
    dq, dk, dv, d_offset, d_bias = _attention_backward(
        d_out, q, k, v, offset, allowed, bias, seed, out, lse, q_norm, *ctx.options, needs_bias, needs_offset
    )
    d_bias = d_bias.to(bias.dtype) if needs_bias else None
    return dq, dk, dv, _reduced(d_offset, offset) if needs_offset else None, None, d_bias, *[None] * 8


def _reduced(d_offset: Tensor, offset: Tensor) -> Tensor:
    """The gradient (H,) in the shape of the offset, (H,) or (1,)."""
    d_offset = d_offset.to(offset.dtype)
    return d_offset if len(offset) > 1 else d_offset.sum(0, keepdim=True)


_attention.register_autograd(_attention_gradients, setup_context=_save_attention)


def _normalize_tile(x: Tensor) -> int:
    return max(16, 4096 // _power_of_2(x.shape[-1]))


@torch.library.custom_op("sightline::normalize_heads", mutates_args=())
def _normalize(
    x: Tensor, offset: Tensor | None, log_ratio: float, min_temperature: float, center_rows: int = 0
) -> Tensor:
    """x / |x|, also divided by the temperature if there is an offset; zero for a zero vector: x (B, H, T, D)

    The mean of the first `center_rows` unit vectors of each head is subtracted. Gradients take it for a constant.
    """
    from .cosine_triton import normalize_kernel

    x = _rows_contiguous(x)
    batch, heads, tokens, dim = x.shape
    out, tile = _empty_heads(x), _normalize_tile(x)
    normalize_kernel[-(-tokens // tile), batch * heads](
        x, x if offset is None else offset, out, *_row_strides(x), *_row_strides(out),
        int(offset is not None and len(offset) > 1), heads, tokens, center_rows, log_ratio, min_temperature,
        D=dim, BLOCK_D=_power_of_2(dim), BLOCK=tile, SCALED=offset is not None, CENTERED=center_rows > 0,
        PRECISION=_precision(),
    )  # fmt: skip
    return out


@_normalize.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return _empty_heads(x)


@torch.library.custom_op("sightline::normalize_heads_backward", mutates_args=())
def _normalize_backward(
    gradient: Tensor, x: Tensor, offset: Tensor | None, log_ratio: float, min_temperature: float
) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the offset (H,), empty without one."""
    from .cosine_triton import normalize_backward_kernel

    x, gradient = _rows_contiguous(x), _rows_contiguous(gradient)
    batch, heads, tokens, dim = x.shape
    dx, tile = _empty_heads(x), _normalize_tile(x)
    shape = 0 if offset is None else (batch, heads, -(-tokens // tile))
    d_offset = x.new_empty(shape, dtype=torch.float32)
    normalize_backward_kernel[-(-tokens // tile), batch * heads](
        x, x if offset is None else offset, gradient, dx, d_offset, *_row_strides(x), *_row_strides(gradient),
        *_row_strides(dx), int(offset is not None and len(offset) > 1), heads, tokens, log_ratio, min_temperature,
        D=dim, BLOCK_D=_power_of_2(dim), BLOCK=tile, SCALED=offset is not None, PRECISION=_precision(),
    )  # fmt: skip
    return dx, d_offset if offset is None else d_offset.sum((0, 2))


@_normalize_backward.register_fake
def _(gradient: Tensor, x: Tensor, offset: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    return _empty_heads(x), x.new_empty(0 if offset is None else x.shape[1], dtype=torch.float32)


def _save_normalize(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.options = inputs[2:4]


def _normalize_gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, offset = ctx.saved_tensors
    dx, d_offset = _normalize_backward(gradient, x, offset, *ctx.options)
    return dx, None if offset is None else _reduced(d_offset, offset), None, None, None


_normalize.register_autograd(_normalize_gradients, setup_context=_save_normalize)
