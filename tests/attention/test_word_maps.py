import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from sightline import record_attention
from sightline.attention import AttentionMap, Record
from sightline.errors import SightlineError

WORDS, CHANNELS, HEADS = 7, 12, 3


class Attention(nn.Module):
    """Attention as in diffusers: `encoder_hidden_states` are the words of the prompt."""

    def __init__(self):
        super().__init__()
        self.heads = HEADS
        self.to_q, self.to_k, self.to_v = (nn.Linear(CHANNELS, CHANNELS) for _ in range(3))

    def forward(self, hidden_states, encoder_hidden_states=None):
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        qkv = self.to_q(hidden_states), self.to_k(context), self.to_v(context)
        q, k, v = (x.unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in qkv)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Denoiser(nn.Module):
    """Self-attention and cross-attention at two resolutions, as in the UNet of a diffusion model."""

    def __init__(self):
        super().__init__()
        self.attn1, self.attn2, self.attn2_low = Attention(), Attention(), Attention()

    def forward(self, latents, words):
        x = latents.flatten(2).mT
        x = x + self.attn1(x)
        x = x + self.attn2(x, encoder_hidden_states=words)
        low = F.avg_pool2d(x.mT.view(latents.shape), 2)
        low = low + self.attn2_low(low.flatten(2).mT, encoder_hidden_states=words).mT.view(low.shape)
        return x.mT.view(latents.shape) + F.interpolate(low, scale_factor=2.0)


def denoise(rows, columns, steps=3):
    model, words, x = Denoiser(), torch.randn(2, WORDS, CHANNELS), torch.randn(2, CHANNELS, rows, columns)
    with torch.no_grad(), record_attention(model) as record:
        for _ in range(steps):
            x = x - 0.1 * model(x, words)
    return record


@pytest.mark.parametrize(("grid", "size"), [(None, (8, 8)), ((6, 10), (6, 10))])
def test_word_maps_are_means_over_heads_layers_and_steps(grid, size):
    record = denoise(*size)
    assert len(record.of("cross")) == 6
    heat = record.word_maps(grid)
    assert (len(heat), heat.patch_grid, heat[0].kind) == (1, size, "cross")
    expected = torch.zeros(2, WORDS, *size)
    for m in record.of("cross"):
        scale = 1 if m.name == "attn2" else 2
        low = m.weights.mean(1).mT.unflatten(2, (size[0] // scale, size[1] // scale))
        expected += F.interpolate(low, size, mode="bilinear", align_corners=False) / 6
    assert_close(heat[0].weights, expected.flatten(2).unsqueeze(1))
    assert_close(heat[0].weights.sum(2), torch.ones(2, 1, size[0] * size[1]))


def test_word_maps_are_viewed_over_the_image():
    image = torch.rand(3, 32, 32)
    page = denoise(8, 8).word_maps().view(target=["<s>", "a", "red", "cat", "sat", "</s>", None], images=image, batch=1)
    assert '"shape":[1,6,64]' in page.html
    assert '"grid":[8,8]' in page.html


def test_maps_that_do_not_fit_are_refused():
    def record_of(*shapes):
        return Record("Toy", [AttentionMap(name="a", kind="cross", weights=torch.rand(1, 1, *s)) for s in shapes])

    with pytest.raises(SightlineError, match="word_maps must be given a record with cross-attention"):
        Record("Toy").word_maps()
    with pytest.raises(SightlineError, match="grid must be given for 60 patches, which are not square, got none"):
        record_of((60, 7)).word_maps()
    with pytest.raises(SightlineError, match=r"grid must be rows and columns of the 60 patches .* got 8 x 8"):
        record_of((60, 7)).word_maps((8, 8))
    with pytest.raises(SightlineError, match=r"maps of one batch size and one text, got \[\(1, 5\), \(1, 7\)\]"):
        record_of((64, 7), (64, 5)).word_maps()
    with pytest.raises(SightlineError, match="proportions of 8 x 8 patches, got 17 patches in a"):
        record_of((64, 7), (17, 7)).word_maps()
