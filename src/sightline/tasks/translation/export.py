"""Export of a translator: the encoder, and one step of the decoder with its cache."""

import torch
from torch import Tensor, nn

from ...exporting import BATCH, Dimension, Export, Part, Tensors, random_lengths
from ...layers.positions import reserve_positions
from ...limits import MAX_EXPORTED_TOKENS
from ...models.decoding_parts import DecoderStep, make_step
from ...models.seq2seq import Seq2Seq
from .predictor import TranslationPredictor

SIZES = ((3, 5, 2), (1, 4, 0), (2, 1, 1), (5, 11, 7))
"""Batch, source tokens and past tokens of the examples."""


class TranslationEncoder(nn.Module):
    """Source tokens to all that a step of the decoder needs."""

    def __init__(self, model: Seq2Seq, step: DecoderStep):
        super().__init__()
        self.model, self.step = model, step

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """input_ids int64 (B, S), attention_mask bool (B, S) -> the tensors of `DecoderStep.start`"""
        return self.step.start(self.model.encode(input_ids, attention_mask))


def export(predictor: TranslationPredictor) -> Export:
    """The parts `encoder` and `decoder`, and both tokenizers."""
    model, (source, target) = predictor.model, predictor.tokenizers
    step = make_step(model.decoder)
    encoder = TranslationEncoder(model, step).eval()
    source_dim = Dimension(name="source", max=reserve_positions(model.encoder, MAX_EXPORTED_TOKENS))
    longest = reserve_positions(model.decoder, MAX_EXPORTED_TOKENS)
    past_dim = Dimension(name="past", min=0, max=None if longest is None else longest - 1)
    dims = {"batch": BATCH, "source": source_dim, "past": past_dim}
    sizes = [(batch, _bounded(length, source_dim), _bounded(past, past_dim)) for batch, length, past in SIZES]
    inputs = [_source(batch, length, len(source)) for batch, length, _ in sizes]
    steps = [_step_inputs(encoder, x, len(target), past) for x, (_, _, past) in zip(inputs, sizes, strict=True)]
    tokens = {0: BATCH, 1: source_dim}
    state = {name: {axis: dims[key] for axis, key in axes.items()} for name, axes in step.dimensions.items()}
    parts = [
        Part(
            name="encoder",
            module=encoder,
            examples=inputs,
            dimensions={"input_ids": tokens, "attention_mask": tokens},
            outputs=step.names,
        ),
        Part(
            name="decoder",
            module=step,
            examples=steps,
            dimensions={"tokens": {0: BATCH}, "attention_mask": tokens, **state},
            outputs=("logits", *(f"new_{name}" for name in step.state_names)),
        ),
    ]
    special = target.special_tokens
    metadata = {
        "task": predictor.config.task,
        "source_eos": source.special_tokens.id("eos"),
        "bos": special.id("bos"),
        "eos": special.id("eos"),
        "suppressed_ids": list(special.suppressed_ids),
        "control_ids": list(special.control_ids),
    }
    files = {"source_tokenizer.json": source.to_json().encode(), "target_tokenizer.json": target.to_json().encode()}
    return Export(parts=parts, metadata=metadata, files=files)


def _bounded(size: int, dimension: Dimension) -> int:
    return size if dimension.max is None else min(size, dimension.max)


def _source(batch: int, length: int, vocab_size: int) -> Tensors:
    return {
        "input_ids": torch.randint(vocab_size, (batch, length)),
        "attention_mask": random_lengths(batch, length),
    }


@torch.no_grad()
def _step_inputs(encoder: TranslationEncoder, inputs: Tensors, vocab_size: int, past: int) -> Tensors:
    """The inputs of the decoder after this many tokens."""
    step, mask = encoder.step, {"attention_mask": inputs["attention_mask"]}
    state = dict(zip(step.names, encoder(**inputs), strict=True))
    for _ in range(past):
        tokens = torch.randint(vocab_size, (mask["attention_mask"].shape[0],))
        _, *new = step(tokens, **mask, **state)
        state |= dict(zip(step.state_names, new, strict=True))
    tokens = torch.randint(vocab_size, (mask["attention_mask"].shape[0],))
    return {"tokens": tokens} | mask | state
