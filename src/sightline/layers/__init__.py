"""Layers that models are built from: embeddings, Transformer blocks and stacks, recurrent layers, backbones."""

from ..kernels.dropout import Dropout
from .backbones import Backbone, Conv4, ResNet12
from .blocks import DecoderBlock, DecoderCache, EncoderBlock, FeedForward
from .efficientnet import EfficientNetLite
from .embeddings import TokenEmbedding
from .patches import PatchEmbedding
from .positions import GridPositions, LearnedPositions, PositionEmbedding, SinusoidalPositions, sinusoids
from .recurrent import RNN, RecurrentEncoder
from .stacks import SIZES, Decoder, Encoder, Transformer, TransformerSize

__all__ = [
    "RNN",
    "SIZES",
    "Backbone",
    "Conv4",
    "Decoder",
    "DecoderBlock",
    "DecoderCache",
    "Dropout",
    "EfficientNetLite",
    "Encoder",
    "EncoderBlock",
    "FeedForward",
    "GridPositions",
    "LearnedPositions",
    "PatchEmbedding",
    "PositionEmbedding",
    "RecurrentEncoder",
    "ResNet12",
    "SinusoidalPositions",
    "TokenEmbedding",
    "Transformer",
    "TransformerSize",
    "sinusoids",
]
