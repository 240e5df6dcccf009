"""Export of a translator: the encoder, and one step of the decoder with its cache."""

import torch
from torch import Tensor, nn

from ...exporting import BATCH, Dimension, Export, Tensors, random_lengths
from ...layers.positions import reserve_positions
from ...limits import MAX_EXPORTED_TOKENS
from ...models.decoding_parts import DecoderStep, make_step
from ...models.seq2seq import Seq2Seq
from ..decoder_export import decoder_parts, decoding_metadata
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
    source_dim = Dimension(name="source", max=reserve_positions(model.encoder, MAX_EXPORTED_TOKENS))
    lengths = [length if source_dim.max is None else min(length, source_dim.max) for _, length, _ in SIZES]
    tokens = {0: BATCH, 1: source_dim}
    parts = decoder_parts(
        TranslationEncoder(model, step).eval(),
        step,
        [_source(batch, length, len(source)) for (batch, _, _), length in zip(SIZES, lengths, strict=True)],
        [past for _, _, past in SIZES],
        vocab_size=len(target),
        dimensions={"input_ids": tokens, "attention_mask": tokens},
        source=source_dim,
        shared=("attention_mask",),
    )
    metadata = {
        "task": predictor.config.task,
        "source_eos": source.special_tokens.id("eos"),
        **decoding_metadata(target),
    }
    files = {"source_tokenizer.json": source.to_json().encode(), "target_tokenizer.json": target.to_json().encode()}
    return Export(parts=parts, metadata=metadata, files=files)


def _source(batch: int, length: int, vocab_size: int) -> Tensors:
    return {
        "input_ids": torch.randint(vocab_size, (batch, length)),
        "attention_mask": random_lengths(batch, length),
    }
