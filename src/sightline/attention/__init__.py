"""Attention with every score, mask and normalizer; needs torch and safetensors alone."""

from . import masks
from .functional import attend, self_attend, weigh
from .masks import Mask
from .multihead import Cache, MultiHeadAttention
from .normalizers import NORMALIZERS, Hard, Identity, Normalizer, Softmax, Standardize, reinforce
from .record import Record, Seen
from .recording import record_attention
from .scores import SCORES, AdditiveScore, CosineScore, DotScore, GeneralScore, Score

__all__ = [
    "NORMALIZERS",
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
    "Normalizer",
    "Record",
    "Score",
    "Seen",
    "Softmax",
    "Standardize",
    "attend",
    "masks",
    "record_attention",
    "reinforce",
    "self_attend",
    "weigh",
]
