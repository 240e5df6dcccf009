"""Attention with every score, mask and normaliser; needs torch and safetensors alone."""

from . import masks
from .attend import attend, self_attend, weigh
from .masks import Mask
from .multihead import Cache, MultiHeadAttention
from .normalise import NORMALISERS, Hard, Identity, Normaliser, Softmax, Standardise, reinforce
from .record import Record, Seen
from .recording import record_attention
from .scores import SCORES, AdditiveScore, CosineScore, DotScore, GeneralScore, Score

__all__ = [
    "NORMALISERS",
    "SCORES",
    "AdditiveScore",
    "Cache",
    "CosineScore",
    "DotScore",
    "GeneralScore",
    "Hard",
    "Identity",
    "Mask",
    "MultiHeadAttention",
    "Normaliser",
    "Record",
    "Score",
    "Seen",
    "Softmax",
    "Standardise",
    "attend",
    "masks",
    "record_attention",
    "reinforce",
    "self_attend",
    "weigh",
]
