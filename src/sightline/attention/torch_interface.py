"""`MultiHeadAttention` with the interface of `nn.MultiheadAttention`: conversion, and calls with (query, key, value).

In torch's masks, True means that a query may not attend; a mask of floats is added to the scores.

Shapes: B batch, H heads, Q queries, K keys, D head dimension, M embedding dimension.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import SightlineError, check
from .functional import attention_weights
from .masks import Bias, Causal, Mask, Padding, forbid
from .normalizers import Softmax
from .scores import DotScore

if TYPE_CHECKING:
    from .multihead import MultiHeadAttention

Output = tuple[Tensor, Tensor | None]
NAMES = {"in_proj_weight": "qkv.weight", "in_proj_bias": "qkv.bias"}
"""Parameters of torch's module that have other names here."""


def options_of(attention: nn.MultiheadAttention) -> dict[str, Any]:
    """The arguments of a `MultiHeadAttention` that computes the same."""
    is_torch, kind = isinstance(attention, nn.MultiheadAttention), type(attention).__name__
    check(is_torch, f"attention must be an nn.MultiheadAttention, got {kind}")
    rule = "attention must have queries, keys and values of one dimension, and neither bias_k nor add_zero_attn"
    is_supported = attention._qkv_same_embed_dim and attention.bias_k is None and not attention.add_zero_attn
    check(is_supported, f"{rule}, got {attention}")
    options = {"embed_dim": attention.embed_dim, "num_heads": attention.num_heads, "dropout": attention.dropout}
    return options | {"bias": attention.in_proj_bias is not None, "batch_first": attention.batch_first}


def copy_parameters(source: nn.Module, target: nn.Module, *, names: dict[str, str]) -> None:
    """Copy all parameters, whether each is trained, and the mode; `names` are those that differ in the target."""
    for name, parameter in source.named_parameters():
        owner, _, attribute = names.get(name, name).rpartition(".")
        copied = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
        setattr(target.get_submodule(owner), attribute, copied)
    target.train(source.training)


def is_plain(module: "MultiHeadAttention") -> bool:
    """Whether torch's module can compute the same."""
    is_dot = type(module.score) is DotScore and module.score.scaled and type(module.normalizer) is Softmax
    is_square = module.num_heads * module.head_dim == module.embed_dim
    return is_dot and is_square and module.mask is None and module.key_bias is None


def to_torch(module: "MultiHeadAttention") -> nn.MultiheadAttention:
    """See `MultiHeadAttention.to_torch`."""
    rule = "attention must have score='dot', normalizer='softmax', no mask, no in_context_bias and the default head_dim"
    check(is_plain(module), f"{rule} to be an nn.MultiheadAttention, got {module}")
    options = {"dropout": module.dropout, "bias": module.qkv.bias is not None, "batch_first": module.batch_first}
    attention = nn.MultiheadAttention(module.embed_dim, module.num_heads, **options)
    copy_parameters(module, attention, names={ours: theirs for theirs, ours in NAMES.items()})
    return attention


def call(
    module: "MultiHeadAttention",
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    mask: Mask | None = None,
) -> Output:
    """The output and weights that `nn.MultiheadAttention` returns for these arguments.

    query (Q, M), (B, Q, M) or nested; key and value (K, M) or (B, K, M), with `batch_first=False` (Q, B, M), (K, B, M)
    -> output like query, weights (B, Q, K), or (B, H, Q, K) without `average_attn_weights`; None without `need_weights`

    A query without any allowed key gets zeros, where torch returns NaN. `mask` applies in addition to torch's masks.
    """
    if query.is_nested:
        return _call_nested(module, query, key, value, need_weights=need_weights)
    is_batched = query.dim() == 3
    if not is_batched:
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    theirs = as_mask(attn_mask, key_padding_mask, module.num_heads, is_causal=is_causal)
    mask = theirs if mask is None else mask if theirs is None else theirs & mask
    batched = {id(x): _batched(x, module.batch_first) for x in (query, key, value)}  # the same tensor stays the same
    q, k, v, *key_bias = module.project(*(batched[id(x)] for x in (query, key, value)))
    mask = module.full_mask(mask, *key_bias)
    out = module.out_proj(module.attend_heads(q, k, v, mask, None if query is key else "cross"))
    weights = None
    if need_weights:
        weights = attention_weights(q, k, score=module.score, normalizer=module.normalizer, mask=mask)
        weights = weights.mean(1) if average_attn_weights else weights
    if not is_batched:
        return out[0], None if weights is None else weights[0]
    return out if module.batch_first else out.transpose(0, 1), weights


def _batched(x: Tensor, batch_first: bool) -> Tensor:
    """(T, M), (B, T, M) or (T, B, M) -> (B, T, M)"""
    return x.unsqueeze(0) if x.dim() == 2 else x if batch_first else x.transpose(0, 1)


def as_mask(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, num_heads: int, *, is_causal: bool = False
) -> Mask | None:
    """torch's masks as one mask: attn_mask (Q, K) or (B * H, Q, K), key_padding_mask (B, K).

    `is_causal` says that `attn_mask` is a causal mask, which is then not read.
    """
    masks: list[Mask] = []
    if is_causal:
        masks.append(Causal())
    elif attn_mask is not None:
        attn_mask = attn_mask if attn_mask.dim() == 2 else attn_mask.unflatten(0, (-1, num_heads))
        masks.append(forbid(attn_mask) if attn_mask.dtype == torch.bool else Bias(attn_mask))
    if key_padding_mask is not None:
        is_bool = key_padding_mask.dtype == torch.bool
        masks.append(Padding(~key_padding_mask) if is_bool else Bias(key_padding_mask[:, None, None, :]))
    return masks[0] & masks[1] if len(masks) == 2 else masks[0] if masks else None


def _call_nested(
    module: "MultiHeadAttention", query: Tensor, key: Tensor, value: Tensor, *, need_weights: bool
) -> Output:
    """Self-attention of a nested tensor, which `nn.TransformerEncoder` makes of a padded batch."""
    if not (query is key is value) or need_weights:
        raise SightlineError("nested tensors must be the query, key and value at once, without weights, got others")
    lengths = torch.tensor([sequence.shape[0] for sequence in query.unbind()], device=query.device)
    x = query.to_padded_tensor(0.0)
    is_token = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    q, k, v, *key_bias = module.project(x, x, x)
    out = module.out_proj(module.attend_heads(q, k, v, module.full_mask(Padding(is_token), *key_bias), None))
    return torch._nested_tensor_from_mask(out, is_token, mask_check=False), None
