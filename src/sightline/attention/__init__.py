"""Attention from interchangeable scores, masks and normalizers, and recording of attention weights."""

from . import masks
from .ablation import ablate_edges, ablate_heads
from .attention_map import AttentionMap
from .functional import attend, attention_weights, self_attention
from .importance import HeadImportance, head_importance
from .key_value_cache import KeyValueCache
from .masks import Mask
from .multihead import MultiHeadAttention
from .normalizers import NORMALIZERS, Hard, Identity, Normalizer, Softmax, Standardize, reinforce
from .record import Record
from .recording import record_attention
from .scores import SCORES, AdditiveScore, CosineScore, DotScore, GeneralScore, Score
from .show import as_record, show_attention

__all__ = [
    "NORMALIZERS",
    "SCORES",
    "AdditiveScore",
    "AttentionMap",
    "CosineScore",
    "DotScore",
    "GeneralScore",
    "Hard",
    "HeadImportance",
    "Identity",
    "KeyValueCache",
    "Mask",
    "MultiHeadAttention",
    "Normalizer",
    "Record",
    "Score",
    "Softmax",
    "Standardize",
    "ablate_edges",
    "ablate_heads",
    "as_record",
    "attend",
    "attention_weights",
    "head_importance",
    "masks",
    "record_attention",
    "reinforce",
    "self_attention",
    "show_attention",
]
