"""Export of models over a bidirectional text encoder: masked language models and text classifiers."""

from typing import Any

import torch
from torch import Tensor, nn

from ..exporting import BATCH, Dimension, Export, Part, random_lengths
from ..layers.positions import reserve_positions
from ..limits import MAX_EXPORTED_TOKENS
from .text_data import TOKENIZER

SIZES = ((3, 5), (1, 4), (2, 1), (5, 11))
"""Batch and tokens of the examples."""


class TextModel(nn.Module):
    """A model with the input names of Hugging Face."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """input_ids int64 (B, T), attention_mask bool (B, T), padding last -> logits"""
        logits: Tensor = self.model(input_ids, attention_mask)
        return logits


def export(predictor: Any) -> Export:
    """The model and its tokenizer. Texts begin and end with the special tokens of the metadata."""
    tokenizer, special = predictor.tokenizer, predictor.tokenizer.special_tokens
    tokens = Dimension(name="tokens", max=reserve_positions(predictor.model, MAX_EXPORTED_TOKENS))
    axes = {0: BATCH, 1: tokens}
    examples = [
        {
            "input_ids": torch.randint(len(tokenizer), (batch, length)),
            "attention_mask": random_lengths(batch, length),
        }
        for batch, length in ((batch, min(length, tokens.max or length)) for batch, length in SIZES)
    ]
    part = Part(
        name="model",
        module=TextModel(predictor.model).eval(),
        examples=examples,
        dimensions={"input_ids": axes, "attention_mask": axes},
        outputs=("logits",),
    )
    metadata = {"task": predictor.config.task, "special_ids": dict(special.ids)}
    metadata["max_input_tokens"] = predictor.max_input_tokens
    classes = getattr(predictor, "classes", None)
    metadata |= {} if classes is None else {"classes": list(classes)}
    return Export(parts=[part], metadata=metadata, files={TOKENIZER: tokenizer.to_json().encode()})
