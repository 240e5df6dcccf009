import torch
from torch.testing import assert_close

from sightline.attention import MultiHeadAttention
from sightline.attention.masks import Causal, Padding
from sightline.kernels.packing import Packing, reference_pack, reference_unpack

B, T, S, M, H = 3, 7, 5, 12, 3
ATTENTION_MASK = torch.arange(T) < torch.tensor([[T], [2], [0]])
SOURCE_MASK = torch.arange(S) < torch.tensor([[1], [S], [3]])


def test_pack_and_unpack_equal_the_reference():
    packing, x = Packing(ATTENTION_MASK), torch.randn(B, T, M, requires_grad=True)
    packed, expected = packing.pack(x), reference_pack(x, ATTENTION_MASK)
    assert_close(packed, expected)
    unpacked, expected_unpacked = packing.unpack(packed), reference_unpack(expected, ATTENTION_MASK)
    assert_close(unpacked, expected_unpacked)
    direction = torch.randn(B, T, M)
    assert_close(*(torch.autograd.grad((y * direction).sum(), x) for y in (unpacked, expected_unpacked)))


def test_pack_and_unpack_have_exact_gradients():
    packing = Packing(ATTENTION_MASK)
    x = torch.randn(B, T, 2, dtype=torch.float64, requires_grad=True)
    packed = torch.randn(1, 9, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(packing.pack, x)
    assert torch.autograd.gradcheck(packing.unpack, packed)
    assert torch.autograd.gradgradcheck(packing.unpack, packed)


def test_attention_on_packed_tokens_equals_attention_on_padded_tokens():
    attention = MultiHeadAttention(M, H, in_context_bias=True)
    x, source = torch.randn(B, T, M), torch.randn(B, S, M)
    packing, source_packing = Packing(ATTENTION_MASK), Packing(SOURCE_MASK)
    mask = Causal() & Padding(ATTENTION_MASK)
    assert_close(attention(packing.pack(x), mask=mask, packing=packing), packing.pack(attention(x, mask=mask)))
    mask = Padding(SOURCE_MASK)
    packed = attention(
        packing.pack(x), source_packing.pack(source), mask=mask, packing=packing, context_packing=source_packing
    )
    assert_close(packed, packing.pack(attention(x, source, mask=mask)))
