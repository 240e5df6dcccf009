"""Export of a captioner: the encoder of images, and one step of the decoder with its cache."""

import torch
from torch import Tensor, nn

from ...exporting import BATCH, Export
from ...models.captioner import Captioner
from ...models.decoding_parts import DecoderStep, make_step
from ...models.image_encoders import Embedder
from ..decoder_export import decoder_parts, decoding_metadata
from ..text_data import TOKENIZER
from .predictor import CaptioningPredictor

SIZES = ((3, 2), (1, 0), (2, 1), (5, 7))
"""Images and past tokens of the examples."""


class CaptionEncoder(nn.Module):
    """Images to all that a step of the decoder needs, with the encoder of fixed weights if there is one."""

    def __init__(self, model: Captioner, embedder: Embedder | None, step: DecoderStep):
        super().__init__()
        self.model, self.embedder, self.step = model, embedder, step
        self.fixed_model = None if embedder is None else embedder.model  # its parameters

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """images (B, C, image_size, image_size), from 0 to 1 -> the tensors of `DecoderStep.start`"""
        pixels = images * 255
        inputs = pixels if self.embedder is None else self.embedder.embed_batch(pixels, "patches")
        return self.step.start(self.model.encode(inputs))


def export(predictor: CaptioningPredictor) -> Export:
    """The parts `encoder` and `decoder`, and the tokenizer."""
    size, channels = predictor.inputs.size_and_channels
    step = make_step(predictor.model.decoder)
    parts = decoder_parts(
        CaptionEncoder(predictor.model, predictor.inputs.encoder, step).eval(),
        step,
        [{"images": torch.rand(batch, channels, size, size)} for batch, _ in SIZES],
        [past for _, past in SIZES],
        vocab_size=len(predictor.tokenizer),
        dimensions={"images": {0: BATCH}},
    )
    metadata = {
        "task": predictor.config.task,
        "image_size": size,
        "channels": channels,
        "max_tokens": predictor.config.data.max_tokens,
        **decoding_metadata(predictor.tokenizer),
    }
    return Export(parts=parts, metadata=metadata, files={TOKENIZER: predictor.tokenizer.to_json().encode()})
