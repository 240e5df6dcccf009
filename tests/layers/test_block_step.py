import pytest
import torch
from torch import nn
from torch.testing import assert_close

from sightline.attention.masks import Padding, Window
from sightline.layers import DecoderBlock
from sightline.layers.block_step import BlockStep, has_step

S, M, H = 5, 12, 2


@pytest.mark.parametrize(
    "options", [{"norm": "post"}, {"norm": "pre", "activation": "gelu", "bias": False}, {"score": "cosine"},
                {"score": "general", "head_dim": 3}]
)  # fmt: skip
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("autocast", [False, True])
@torch.inference_mode()
def test_steps_equal_the_block(options, rows, autocast):
    block = DecoderBlock(M, H, 7, dropout=0.3, **options).eval()
    source, mask = torch.randn(rows, S, M), Padding(torch.rand(rows, S) > 0.5, has_no_empty_rows=True)
    mask.attention_mask[..., 0] = True
    assert has_step(block)
    step, cache, expected_cache = BlockStep(block), block.new_cache(source), block.new_cache(source)
    for cross_mask in (None, mask, mask):
        x = torch.randn(rows, M)
        given = x.clone() if rows > 1 else x[0].clone()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            expected = block(x.unsqueeze(1), source, cross_mask=cross_mask, cache=expected_cache)[:, 0]
            out = step(given, cache, cross_mask)
        assert torch.equal(given.view(rows, M), x)
        assert_close(out.view(rows, M), expected)
        assert_close(cache.target.tensors, expected_cache.target.tensors)


class OtherLinear(nn.Linear):
    pass


@pytest.mark.parametrize("options", [{"mask": Window(2)}, {"in_context_bias": True}, {"score": "additive"}])
def test_other_attention_has_no_step(options):
    assert not has_step(DecoderBlock(M, H, 7, **options))


def test_replaced_layers_have_no_step():
    block = DecoderBlock(M, H, 7)
    block.mlp.fc1 = OtherLinear(M, 7)
    assert not has_step(block)
