import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from sightline.layers import TokenEmbedding, Words

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


@pytest.mark.parametrize("tie_embeddings", ["none", "target", "all"])
def test_tied_embeddings_of_a_translator(tie_embeddings):
    words, ids, x = Words(V, V, M, tie_embeddings=tie_embeddings), torch.randint(V, (B, T)), torch.randn(B, T, M)
    assert len(list(words.parameters())) == {"none": 3, "target": 2, "all": 1}[tie_embeddings]
    assert torch.equal(words.read_source(ids), words.read_target(ids)) == (tie_embeddings == "all")
    assert torch.equal(words.write(x), x @ words.target_table.T) == (tie_embeddings != "none")


def test_different_vocabularies_cannot_share_all_embeddings():
    message = "tie_embeddings must be target or none where the vocabularies differ, 5 and 7, got all"
    with pytest.raises(ValueError, match=message):
        Words(5, 7, M, tie_embeddings="all")
