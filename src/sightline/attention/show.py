"""Attention weights from elsewhere as a record: tuples of Hugging Face, arrays, files.

Shapes: B batch, H heads, Q queries, K keys, L layers.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, get_args

import torch
from torch import Tensor

from ..errors import SightlineError, check, check_choice
from .attention_map import AttentionMap
from .functional import Kind
from .kinds import is_causal
from .record import Record

if TYPE_CHECKING:
    from ..view.page import Page, ViewOptions

OUTPUT_KINDS: dict[str, Kind | None] = {
    "encoder_attentions": "encoder",
    "attentions": None,
    "decoder_attentions": "decoder",
    "cross_attentions": "cross",
}
"""Fields of the outputs of Hugging Face's models, each with its kind; None if it depends on the model."""
FIX = "call the model with output_attentions=True, loaded with attn_implementation='eager'; or use record_attention"


def show_attention(
    attentions: Any, tokens: Any = None, *, kind: Kind | None = None, **options: "Unpack[ViewOptions]"
) -> "Page":
    """The interactive viewer with attention weights from elsewhere. Takes the options of `Record.view`.

    `attentions` is the output of a Hugging Face model or of its `generate`, one of its tuples, weights of shape (Q, K),
    (H, Q, K), (B, H, Q, K) or (L, B, H, Q, K) of numpy or torch, a dict of such by name, a record, or the path of a
    saved one. `kind` is encoder, decoder or cross (default: by the name of a tuple, or by the shape).
    """
    return as_record(attentions, kind=kind).view(tokens, **options)


def as_record(attentions: Any, *, kind: Kind | None = None) -> Record:
    """A record of what `show_attention` takes."""
    if kind is not None:
        check_choice("kind", kind, get_args(Kind))
    if isinstance(attentions, Record):
        return attentions
    if isinstance(attentions, AttentionMap):
        return Record("Attention", [attentions])
    if isinstance(attentions, str | os.PathLike):
        return Record.load(attentions)
    if isinstance(attentions, Mapping):
        return _of_mapping(attentions, kind)
    return Record("Attention", _maps("layer", attentions, kind))


def _of_mapping(outputs: Mapping[str, Any], kind: Kind | None) -> Record:
    """A record of a model's output, or of weights by name."""
    model = type(outputs).__name__
    fields = [field for field in OUTPUT_KINDS if outputs.get(field) is not None and len(outputs[field]) > 0]
    is_output = bool(fields) or hasattr(outputs, "to_tuple")
    if not is_output:
        maps = [m for name, weights in outputs.items() for m in _maps(str(name), weights, kind, is_name=True)]
        return Record("Attention", maps)
    check(fields, f"attentions must contain weights, got {model} with {', '.join(outputs) or 'nothing'}; {FIX}")
    _check_tokens(outputs, fields, model)
    has_beams = outputs.get("beam_indices") is not None
    maps = []
    for field in fields:
        name = "layer" if len(fields) == 1 else field.removesuffix("_attentions")
        maps += _maps(name, outputs[field], kind or OUTPUT_KINDS[field], has_beams=has_beams)
    return Record("Attention", maps)


def _check_tokens(outputs: Mapping[str, Any], fields: Sequence[str], model: str) -> None:
    """Refuse outputs whose weights are not between tokens: windows (Swin) and sliding windows (Longformer, LED)."""
    states = [*(outputs.get("reshaped_hidden_states") or ()), outputs.get("last_hidden_state"), outputs.get("logits")]
    batch_size = next((len(x) for x in states if isinstance(x, Tensor)), None)
    weights = outputs[fields[0]][0]
    is_windowed = "Swin" in model or outputs.get("reshaped_hidden_states") is not None
    is_square = not isinstance(weights, Tensor) or weights.shape[-2] == weights.shape[-1]
    has_windows = is_windowed and isinstance(weights, Tensor) and batch_size not in (None, len(weights))
    is_local = any(outputs.get(name) is not None for name in ("global_attentions", "encoder_global_attentions"))
    is_local |= "Longformer" in model and not is_square
    is_local |= "LED" in model and fields[0] == "encoder_attentions" and not is_square
    rule = "attentions must be between tokens"
    check(not has_windows and not is_local, f"{rule}, got the windows of {model}; use record_attention")


def _maps(
    name: str, weights: Any, kind: Kind | None, *, is_name: bool = False, has_beams: bool = False
) -> list[AttentionMap]:
    """The maps of all layers. With `is_name`, a single layer has that name."""
    steps = _steps(weights)
    num_layers = len(steps[0])
    same = all(len(step) == num_layers for step in steps)
    check(same, f"attentions must have equally many layers at each step, got {[len(step) for step in steps]!s:.80}")
    batch_sizes = [len(layer) for layer in steps[0]]
    rule = "attentions must have the same batch size in all layers"
    fix = "pass one layer; for windows of tokens (Swin) use record_attention"
    check(len(set(batch_sizes)) == 1, f"{rule}, got {batch_sizes!s:.80}; {fix}")
    kinds = [kind or _kind(first, last) for first, last in zip(steps[0], steps[-1], strict=True)]
    names = [name] if is_name and num_layers == 1 else [f"{name}.{i}" for i in range(num_layers)]
    return [
        AttentionMap(
            name=names[i],
            kind=kinds[i],
            weights=layer,
            call_index=None if len(steps) == 1 else step_index,
            cache_reorders=step_index if has_beams else 0,
        )
        for step_index, step in enumerate(steps)
        for i, layer in enumerate(step)
    ]


def _steps(weights: Any) -> list[list[Tensor]]:
    """The layers of each step, (B, H, Q, K) each. Only `generate` has more than one step."""
    if isinstance(weights, list | tuple):
        check(weights, f"attentions must contain weights, got none; {FIX}")
        if isinstance(weights[0], list | tuple) and all(_is_layers(step) for step in weights):
            return [[_weights(layer) for layer in step] for step in weights]
        if _is_layers(weights):
            return [[_weights(layer) for layer in weights]]
    tensor = _tensor(weights)
    return [[_weights(layer) for layer in (tensor if tensor.dim() == 5 else [tensor])]]


def _is_layers(weights: Sequence[Any]) -> bool:
    """Whether these are arrays, or None in their place, and not numbers in lists."""
    return isinstance(weights, list | tuple) and all(x is None or hasattr(x, "shape") for x in weights)


def _weights(value: Any) -> Tensor:
    """(Q, K), (H, Q, K) or (B, H, Q, K) -> (B, H, Q, K)"""
    x = _tensor(value)
    is_valid = 2 <= x.dim() <= 4 and x.numel() > 0
    check(is_valid, f"attentions must have shape (Q, K), (H, Q, K) or (B, H, Q, K), got {tuple(x.shape)}")
    return x.reshape((1,) * (4 - x.dim()) + tuple(x.shape))


def _tensor(value: Any) -> Tensor:
    if value is None:
        raise SightlineError(f"attentions must contain weights, got None; {FIX}")
    try:
        x = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SightlineError(f"attentions must be weights, a record or its path, got {type(value).__name__}") from error
    return x.detach() if x.is_floating_point() else x.float()


def _kind(first: Tensor, last: Tensor) -> Kind:
    """By the shapes at the first and the last step: (B, H, Q, K). The keys of a decoder grow."""
    if is_causal(first) or last.shape[3] > first.shape[3]:
        return "decoder"
    return "encoder" if first.shape[2] == first.shape[3] else "cross"
