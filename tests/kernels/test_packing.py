import pytest
import torch
from torch.testing import assert_close

from sightline.attention import MultiHeadAttention
from sightline.attention.masks import Causal, Padding
from sightline.kernels.packing import Packing

B, N, S, M, H = 3, 7, 5, 12, 3
REAL = torch.arange(N) < torch.tensor([[N], [2], [0]])
SOURCE_REAL = torch.arange(S) < torch.tensor([[1], [S], [3]])


def test_packed_rows_come_one_after_the_other_and_find_their_places_again():
    x, packing = torch.randn(B, N, M), Packing(REAL)
    assert_close(packing.pack(x), torch.cat((x[0], x[1, :2])).unsqueeze(0))
    assert_close(packing.unpack(packing.pack(x)), x * REAL.unsqueeze(-1))


def test_both_ways_have_the_gradients_they_should():
    packing = Packing(REAL)
    x = torch.randn(B, N, 2, dtype=torch.float64, requires_grad=True)
    y = torch.randn(1, 9, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(packing.pack, x)
    assert torch.autograd.gradcheck(packing.unpack, y)
    assert torch.autograd.gradgradcheck(packing.unpack, y)


def test_attention_sees_the_same_packed_and_filled():
    torch.manual_seed(0)
    attention = MultiHeadAttention(M, H, in_context_bias=True, bias=True)
    x, source, own, other = torch.randn(B, N, M), torch.randn(B, S, M), Packing(REAL), Packing(SOURCE_REAL)
    mask = Causal() & Padding(REAL)
    filled = attention(x, mask=mask)
    assert_close(attention(own.pack(x), mask=mask, packing=own), own.pack(filled))
    filled = attention(x, source, mask=Padding(SOURCE_REAL))
    packed = attention(own.pack(x), other.pack(source), mask=Padding(SOURCE_REAL), packing=own, context_packing=other)
    assert_close(packed, own.pack(filled))


def test_a_mask_that_promises_sight_sees_the_same():
    attention, x = MultiHeadAttention(M, H), torch.randn(2, N, M)
    promised = Padding(REAL[:2], has_no_empty_rows=True)
    assert_close(attention(x, mask=promised), attention(x, mask=Padding(REAL[:2])))
    assert_close(attention(x, mask=promised & Causal()), attention(x, mask=Padding(REAL[:2]) & Causal()))


def test_a_promised_mask_is_written_out_once_for_each_precision():
    promised, q = Padding(REAL[:2], has_no_empty_rows=True), torch.randn(2, H, N, M)
    with torch.inference_mode():
        table = promised.as_bias(q)
    assert promised.as_bias(q) is table
    assert not table.is_inference()  # so that training may use it
    assert table.stride()[:3] == (8, 8, 8)  # torch's kernels would copy it otherwise
    assert_close(table.exp().bool(), REAL[:2, None, None])
    assert promised.as_bias(q.bfloat16()).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="mask must broadcast"):
        MultiHeadAttention(M, H)(torch.randn(3, N, M), mask=promised)
