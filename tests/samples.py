"""Weights, tokens and records for tests of recording and viewing."""

from typing import Any

import torch
from torch import Tensor

from sightline.attention import AttentionMap, Record

WORDS = ["[CLS]", "the", "cat", "sat", "on", "it", "[SEP]"]
SOURCE = ["the", "black", "cat", "sleeps", "here"]
TARGET = ["<s>", "le", "chat", "noir", "dort", "ici", "</s>"]
HOSTILE = [
    "<script>alert(1)</script>",
    "</script>",
    "<img src=x onerror=alert(2)>",
    "]]>",
    "&lt;b&gt;",
    "{{7*7}}",
    "\u202e\x00",
]


def weights(heads: int, queries: int, keys: int, *, batch: int = 1, causal: bool = False, sharp: float = 2.0) -> Tensor:
    """Softmax of random scores: (B, H, Q, K)"""
    scores = sharp * torch.randn(batch, heads, queries, keys)
    if causal:
        scores = scores.masked_fill(torch.ones(queries, keys, dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1)


def record_of(*layers: Tensor, kind: str = "encoder", **options: Any) -> Record:
    """A record with one map per tensor, named layers.0, layers.1 and so on."""
    maps = [AttentionMap(name=f"layers.{i}", kind=kind, weights=w, **options) for i, w in enumerate(layers)]
    return Record("Model", maps)
