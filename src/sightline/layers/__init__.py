"""What models are built from: positions, blocks and stacks of blocks."""

from .backbones import Backbone, Conv4, ResNet12
from .blocks import DecoderBlock, DecoderCache, EncoderBlock, FeedForward, Residual, TransformerBlock
from .dropout import Dropout
from .efficientnet import EfficientNetLite0
from .patches import ImageToSequence
from .positions import LearntPositions, SinusoidalPositions, sinusoids
from .recurrent import Recurrence, RecurrentEncoder
from .stacks import SIZES, Decoder, Encoder, Size, Transformer
from .words import Words

__all__ = [
    "SIZES",
    "Backbone",
    "Conv4",
    "Decoder",
    "DecoderBlock",
    "DecoderCache",
    "Dropout",
    "EfficientNetLite0",
    "Encoder",
    "EncoderBlock",
    "FeedForward",
    "ImageToSequence",
    "LearntPositions",
    "Recurrence",
    "RecurrentEncoder",
    "ResNet12",
    "Residual",
    "SinusoidalPositions",
    "Size",
    "Transformer",
    "TransformerBlock",
    "Words",
    "sinusoids",
]
