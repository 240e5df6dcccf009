import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from sightline.layers import TokenEmbedding

B, T, M, V = 3, 5, 7, 23


def test_lookup_is_scaled_by_the_root_of_embed_dim():
    embedding, ids = TokenEmbedding(V, M), torch.randint(V, (B, T))
    assert_close(embedding(ids), F.embedding(ids, embedding.weight) * M**0.5)
    assert TokenEmbedding(10_000, 64)(torch.arange(10_000)).std().item() == pytest.approx(1, abs=0.01)


def test_logits_and_loss_use_the_embedding_table():
    embedding, x, labels = TokenEmbedding(V, M), torch.randn(B, T, M), torch.randint(V, (B, T))
    labels[0, 2:] = -100
    logits = embedding.logits(x)
    assert_close(logits, x @ embedding.weight.T)
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=0.1)
    assert_close(embedding.loss(x, labels, label_smoothing=0.1), expected)
