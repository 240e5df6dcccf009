import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from sightline.kernels.cross_entropy import CHUNK_SIZE
from sightline.layers import Dropout, Words

B, T, M, V = 3, 2 * CHUNK_SIZE // 3 + 11, 7, 23


@pytest.mark.parametrize("tied", ["none", "target"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_in_parts_is_torch_s_cross_entropy(smoothing, tied):
    words = Words(V, V, M, tie_embeddings=tied)
    x = torch.randn(B, T, M, requires_grad=True)
    wanted = torch.randint(V, (B, T))
    wanted[1, 3:] = -100
    expected = F.cross_entropy(
        words.write(x).flatten(0, 1), wanted.flatten(), reduction="sum", label_smoothing=smoothing
    )
    got = words.loss(x, wanted, label_smoothing=smoothing)
    assert_close(got, expected)
    learned = (x, words.target_table if tied == "target" else words.output_table)
    for ours, theirs in zip(
        torch.autograd.grad(3 * got, learned), torch.autograd.grad(3 * expected, learned), strict=True
    ):
        assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        assert_close(words.loss(x, wanted, label_smoothing=smoothing), expected)


def test_loss_of_nothing_is_nothing():
    words, x = Words(V, V, M), torch.randn(B, T, M, requires_grad=True)
    loss = words.loss(x, torch.full((B, T), -100))
    loss.backward()
    assert loss == 0
    assert not x.grad.any()


def test_loss_in_half_precision_is_taken_in_full():
    words, x, wanted = Words(V, V, M), torch.randn(B, T, M, requires_grad=True), torch.randint(V, (B, T))
    with torch.autocast("cpu", torch.bfloat16):
        loss = words.loss(x.bfloat16(), wanted)
    assert loss.dtype == torch.float32
    loss.backward()
    assert_close(loss, words.loss(x, wanted), atol=1, rtol=1e-2)


def test_tables_of_different_languages_cannot_be_one():
    with pytest.raises(
        ValueError, match="tie_embeddings must be target or none where the vocabularies differ, 5 and 7, got all"
    ):
        Words(5, 7, M, tie_embeddings="all")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_keeps_the_mean(share):
    x = torch.ones(101, 997, requires_grad=True)
    y = Dropout(share)(x)
    y.sum().backward()
    assert (y == 0).float().mean() == pytest.approx(share, abs=0.01)
    assert y.mean().item() == pytest.approx(1, abs=0.03)
    assert y.unique().numel() == 2
    assert_close(x.grad, y)


def test_dropout_follows_the_seed_and_rests_outside_training():
    x, dropout = torch.randn(5, 7), Dropout(0.5)
    torch.manual_seed(3)
    first = dropout(x)
    assert not torch.equal(dropout(x), first)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), first)
    assert dropout.eval()(x) is x
    assert not Dropout(1.0)(x).any()
    assert Dropout(0.3)(torch.zeros(0, 3)).shape == (0, 3)
    assert Dropout(0.3)(x.bfloat16()).dtype == torch.bfloat16
