"""What models are built from: positions, blocks and stacks of blocks."""

from .backbones import Backbone, Conv4, ResNet12
from .blocks import DecoderBlock, DecoderCache, EncoderBlock, FeedForward, Residual, TransformerBlock
from .efficientnet import EfficientNetLite0
from .patches import ImageToSequence
from .positions import LearntPositions, SinusoidalPositions, sinusoids
from .stacks import SIZES, Decoder, Encoder, Size, Transformer

__all__ = [
    "SIZES",
    "Backbone",
    "Conv4",
    "Decoder",
    "DecoderBlock",
    "DecoderCache",
    "EfficientNetLite0",
    "Encoder",
    "EncoderBlock",
    "FeedForward",
    "ImageToSequence",
    "LearntPositions",
    "ResNet12",
    "Residual",
    "SinusoidalPositions",
    "Size",
    "Transformer",
    "TransformerBlock",
    "sinusoids",
]
