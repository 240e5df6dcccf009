"""What models are built from: positions, blocks and stacks of blocks."""

from ..kernels.dropout import Dropout
from .backbones import Backbone, Conv4, ResNet12
from .blocks import DecoderBlock, DecoderCache, EncoderBlock, FeedForward
from .efficientnet import EfficientNetLite0
from .embeddings import Words
from .patches import PatchEmbedding
from .positions import LearnedPositions, SinusoidalPositions, sinusoids
from .recurrent import Recurrence, RecurrentEncoder
from .stacks import SIZES, Decoder, Encoder, Size, Transformer

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
    "LearnedPositions",
    "PatchEmbedding",
    "Recurrence",
    "RecurrentEncoder",
    "ResNet12",
    "SinusoidalPositions",
    "Size",
    "Transformer",
    "Words",
    "sinusoids",
]
