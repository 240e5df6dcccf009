"""Export of an image classifier: images to logits."""

import torch

from ...exporting import BATCH, Export, Part
from .predictor import ImageClassificationPredictor


def export(predictor: ImageClassificationPredictor) -> Export:
    """The model, which takes images (batch, channels, image_size, image_size) with values from 0 to 1."""
    c = predictor.config.model
    assert c.image_size is not None
    assert c.channels is not None
    part = Part(
        name="model",
        module=predictor.model,
        examples=[{"images": torch.rand(batch, c.channels, c.image_size, c.image_size)} for batch in (3, 1, 7)],
        dimensions={"images": {0: BATCH}},
        outputs=("logits",),
    )
    metadata = {"task": predictor.config.task, "classes": list(predictor.classes)}
    return Export(parts=[part], metadata=metadata | {"image_size": c.image_size, "channels": c.channels})
