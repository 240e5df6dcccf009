from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from sightline.attention import KeyValueCache

B, H, D = 5, 3, 4


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_cache_can_be_reordered_and_resized_at_every_step(mode):
    generator = torch.Generator().manual_seed(0)
    cache, history = KeyValueCache(), []
    batch_sizes = [11, 11, 11, 7, 7, 7, 13, 13, 13, 5, 5, 5, 5]
    with mode():
        for size, next_size in pairwise(batch_sizes):
            history.append(torch.randn(size, 2, H, D, generator=generator))
            tensors = cache.extend([history[-1][:, i].unsqueeze(2) for i in range(2)])
            expected = torch.stack(history, 3)
            indices = torch.randint(size, (next_size,), generator=generator)
            for i in range(2):
                assert_close(tensors[i], expected[:, i], atol=0, rtol=0)
            cache.reorder(indices)
            for i in range(2):
                assert_close(cache.tensors[i], expected[indices][:, i], atol=0, rtol=0)
            history = [step[indices] for step in history]


@pytest.mark.parametrize(("reorders", "max_buffers"), [(False, 8), (True, 16)])
def test_buffers_are_replaced_only_when_they_double(reorders, max_buffers):
    cache, addresses = KeyValueCache(), set()
    with torch.no_grad():
        for _ in range(64):
            cache.extend([torch.randn(B, H, 1, D), torch.randn(B, H, 1, D)])
            if reorders:
                cache.reorder(torch.randint(B, (B,)))
            addresses.add(cache.tensors[0].data_ptr())
    assert len(cache) == 64
    assert len(addresses) <= max_buffers
