"""Export of an encoder and of one step of a text decoder with its cache: translators and captioners."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..data.text.tokenizers import Tokenizer
from ..exporting import BATCH, Dimension, Part, Tensors
from ..layers.positions import reserve_positions
from ..limits import MAX_EXPORTED_TOKENS
from ..models.decoding_parts import DecoderStep


def decoder_parts(
    encoder: nn.Module,
    step: DecoderStep,
    inputs: Sequence[Tensors],
    past: Sequence[int],
    *,
    vocab_size: int,
    dimensions: dict[str, dict[int, Dimension]],
    source: Dimension | None = None,
    shared: tuple[str, ...] = (),
) -> list[Part]:
    """The parts `encoder` and `decoder`.

    Args:
        encoder: Maps tensors by name to the tensors of `DecoderStep.start`.
        step: The step of the decoder.
        inputs: Examples of the encoder.
        past: Tokens before the step in the example of the decoder that follows each of them.
        vocab_size: Size of the vocabulary of the decoder.
        dimensions: The varying dimensions of the encoder's inputs.
        source: The dimension of source positions; None if their number is fixed.
        shared: Inputs of the encoder that the step takes as well.
    """
    longest = reserve_positions(step.decoder, MAX_EXPORTED_TOKENS)
    past_dim = Dimension(name="past", min=0, max=None if longest is None else longest - 1)
    dims = {"batch": BATCH, "past": past_dim} | ({} if source is None else {"source": source})
    state = {
        name: {axis: dims[key] for axis, key in axes.items() if key in dims} for name, axes in step.dimensions.items()
    }
    counts = [count if past_dim.max is None else min(count, past_dim.max) for count in past]
    pairs = zip(inputs, counts, strict=True)
    steps = [_step_inputs(encoder, step, example, vocab_size, count, shared) for example, count in pairs]
    return [
        Part(name="encoder", module=encoder, examples=[*inputs], dimensions=dimensions, outputs=step.names),
        Part(
            name="decoder",
            module=step,
            examples=steps,
            dimensions={"tokens": {0: BATCH}, **state, **{name: dimensions[name] for name in shared}},
            outputs=("logits", *(f"new_{name}" for name in step.state_names)),
        ),
    ]


def decoding_metadata(tokenizer: Tokenizer) -> dict[str, Any]:
    """The token ids that a program needs to decode."""
    special = tokenizer.special_tokens
    return {
        "bos": special.id("bos"),
        "eos": special.id("eos"),
        "suppressed_ids": list(special.suppressed_ids),
        "control_ids": list(special.control_ids),
    }


@torch.no_grad()
def _step_inputs(
    encoder: nn.Module, step: DecoderStep, inputs: Tensors, vocab_size: int, past: int, shared: tuple[str, ...]
) -> Tensors:
    """The inputs of the decoder after this many tokens."""
    batch = len(next(iter(inputs.values())))

    def tokens() -> Tensor:
        return torch.randint(vocab_size, (batch,))

    options = {name: inputs[name] for name in shared}
    state = dict(zip(step.names, encoder(**inputs), strict=True))
    for _ in range(past):
        _, *new = step(tokens(), **state, **options)
        state |= dict(zip(step.state_names, new, strict=True))
    return {"tokens": tokens(), **state, **options}
