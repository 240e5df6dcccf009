"""What the positions of a map are: small copies of vision models and of models with images in their text."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from sightline import record_attention
from sightline.attention import AttentionMap, Record
from sightline.attention.layout import Windows
from sizes import B, H

HEAD_DIM = 4


def heads_of(x):
    """(B, T, M) -> (B, H, T, D)"""
    return x.unflatten(-1, (H, HEAD_DIM)).transpose(1, 2)


class WindowAttention(nn.Module):
    num_heads = H

    def forward(self, x):
        return (heads_of(x) @ heads_of(x).mT).softmax(-1)


class Block(nn.Module):
    """Attention in windows of a rolled grid, as in Swin."""

    def __init__(self, window_size, shift_size=0):
        super().__init__()
        self.window_size, self.shift_size, self.attention = window_size, shift_size, WindowAttention()

    def forward(self, x, input_dimensions=None):
        x = x if input_dimensions is None else x.unflatten(1, input_dimensions)
        size, shift, (rows, columns) = self.window_size, self.shift_size, x.shape[1:3]
        x = F.pad(x, (0, 0, 0, -columns % size, 0, -rows % size)).roll((-shift, -shift), (1, 2))
        windows = x.unflatten(1, (-1, size)).unflatten(3, (-1, size)).transpose(2, 3)
        return self.attention(windows.flatten(0, 2).flatten(1, 2))


@pytest.mark.parametrize("as_sequence", [True, False])
@pytest.mark.parametrize("shift", [0, 1])
def test_windows_are_put_in_place_and_shifts_undone(as_sequence, shift):
    rows, columns, size = 4, 6, 2
    x, model = torch.randn(B, rows * columns, H * HEAD_DIM), Block(size, shift)
    inputs = (x, (rows, columns)) if as_sequence else (x.unflatten(1, (rows, columns)),)
    with record_attention(model, scores=True) as record:
        model(*inputs)
    windows = Windows((rows, columns), (size, size), (shift, shift))
    assert (record[0].windows, record[0].weights.shape) == (windows, (B * 6, H, 4, 4))
    row, column = torch.arange(rows * columns) // columns, torch.arange(rows * columns) % columns
    window = ((row - shift) % rows // size) * columns + (column - shift) % columns // size
    together = window[:, None] == window
    scores = (heads_of(x) @ heads_of(x).mT).masked_fill(~together, -torch.inf)
    placed = record[0].in_place()
    assert_close(placed.weights, scores.softmax(-1))
    assert_close(placed.scores.softmax(-1), placed.weights)
    assert record._view_maps()[0].shape == (B, H, 24, 24)
    assert f"4 x 4 windows of 2 x 2 in 4 x 6 tokens{', shifted by 1 x 1' * shift}, batch of 2" in repr(record)


def test_padded_windows_have_no_weights_for_the_padding():
    x, model = torch.randn(1, 3, 3, H * HEAD_DIM), Block(2)
    with record_attention(model) as record:
        model(x)
    placed = record[0].in_place().weights
    assert placed.shape == (1, H, 9, 9)
    sums = placed.sum(-1)[0, 0].view(3, 3)
    assert_close(sums[:2, :2], torch.ones(2, 2))
    assert (sums[2] < 1).all()


def test_windows_are_saved_and_checked(tmp_path):
    windows = Windows((4, 6), (2, 2), (1, 1))
    weights = torch.rand(6, H, 4, 4)
    path = tmp_path / "record.safetensors"
    Record("Model", [AttentionMap(name="a", kind="encoder", weights=weights, windows=windows)]).save(path)
    assert Record.load(path)[0].windows == windows
    with pytest.raises(ValueError, match="weights must be of windows of 2 x 2 in 4 x 6 tokens"):
        replace(Record.load(path)[0], weights=weights[:5])
    with pytest.raises(ValueError, match="windows must have a grid, a size and a shift"):
        Windows((0, 6), (2, 2))


def test_too_many_tokens_are_not_put_in_place(monkeypatch):
    monkeypatch.setattr("sightline.limits.MAX_WINDOW_TOKENS", 23)
    with pytest.raises(ValueError, match="windows must have at most 23 tokens, got 24; record other layers= only"):
        Windows((4, 6), (2, 2)).in_place(torch.rand(6, H, 4, 4))


class ChannelAttention(nn.Module):
    """Between channels, as in XCiT."""

    num_heads = H

    def forward(self, x):
        return (heads_of(x).mT @ heads_of(x)).softmax(-1)


class ReducedAttention(nn.Module):
    """Keys are means of neighbors, as in SegFormer."""

    num_heads = H

    def forward(self, x):
        return (heads_of(x) @ heads_of(x.unflatten(1, (-1, 2)).mean(2)).mT).softmax(-1)


class GroupedAttn(nn.Module):
    """In groups of tokens, as in Twins."""

    num_heads = H

    def forward(self, x):
        x = heads_of(x.unflatten(1, (-1, 5)).flatten(0, 1))
        return F.scaled_dot_product_attention(x, x, x)


class DeformableAttention(nn.Module):
    """Over sampling points, as in Deformable DETR."""

    n_heads = H

    def forward(self, x):
        return x[..., :9].unflatten(-1, (H, 3)).softmax(-1)


class NystromAttention(nn.Module):
    """Over landmarks, the means of neighbors."""

    num_heads = H

    def __init__(self, neighbors):
        super().__init__()
        self.neighbors = neighbors

    def forward(self, x):
        landmarks = heads_of(x.unflatten(1, (-1, self.neighbors)).mean(2))
        return (heads_of(x) @ landmarks.mT).softmax(-1) @ (landmarks @ heads_of(x).mT).softmax(-1)


class BlockSparseAttention(nn.Module):
    """Of the first block to all tokens and of each other one to three blocks, as in BigBird."""

    num_heads = H

    def forward(self, x):
        x = heads_of(x)
        return (x[:, :, :2] @ x.mT).softmax(-1), (x[:, :, 2:4] @ x[:, :, :6].mT).softmax(-1)


class LongformerAttention(nn.Module):
    """Over a token and its two neighbors on each side."""

    num_heads = H

    def forward(self, x):
        x = heads_of(x)
        return (x.unsqueeze(-2) @ F.pad(x, (0, 0, 2, 2)).unfold(2, 5, 1)).squeeze(-2).softmax(-1)


class LEDDecoderAttention(nn.Module):
    """Over all tokens, in a model whose encoder has windows."""

    num_heads = H

    def forward(self, x):
        return (heads_of(x) @ heads_of(x).mT).softmax(-1)


class ChannelsFirstAttention(nn.Module):
    """Over tokens in the last dimension, as in SqueezeBERT."""

    num_heads = H

    def forward(self, x):
        x = x.unflatten(1, (H, -1))
        return (x.mT @ x).softmax(-1)


def test_channels_first_tokens_are_tokens():
    model = ChannelsFirstAttention()
    with record_attention(model) as record:
        model(torch.randn(B, H * HEAD_DIM, 11))
    assert (tuple(record[0].weights.shape), record[0].over) == ((B, H, 11, 11), "tokens")


@pytest.mark.parametrize(
    ("model", "shape", "over"),
    [
        (ChannelAttention(), (B, H, HEAD_DIM, HEAD_DIM), "channels"),
        (ReducedAttention(), (B, H, 10, 5), "10 tokens and 5 reduced ones"),
        (GroupedAttn(), (B * 2, H, 5, 5), "2 groups of 5 x 5 tokens"),
        (DeformableAttention(), (B, H, 10, 3), "sampling points of each query"),
        (NystromAttention(2), (B, H, 10, 5), "tokens and landmarks"),
        (BlockSparseAttention(), (B, H, 2, 10), "blocks of tokens"),
        (LongformerAttention(), (B, H, 10, 5), "nearby tokens of each query"),
    ],
)
def test_other_positions_are_named(model, shape, over):
    with record_attention(model) as record:
        model(torch.randn(B, 10, H * HEAD_DIM))
    assert (tuple(record[0].weights.shape), record[0].over, record[0].kind) == (shape, over, "encoder")
    assert f"{shape[2]} x {shape[3]} over {over}" in repr(record)


def test_kinds_of_other_positions_do_not_depend_on_shapes():
    for model in (NystromAttention(2), BlockSparseAttention()):
        with record_attention(model) as record:
            model(torch.randn(B, 10, H * HEAD_DIM))
        assert [(m.kind, m.over == "tokens") for m in record] == [("encoder", False)] * 2


def test_attention_over_all_tokens_is_not_named_after_its_class():
    for model, kind in ((NystromAttention(1), "encoder"), (LEDDecoderAttention(), "decoder")):
        with record_attention(model) as record:
            model(torch.randn(B, 10, H * HEAD_DIM))
        assert {(m.kind, m.over, m.weights.shape[2:]) for m in record} == {(kind, "tokens", (10, 10))}


class PatchAttention(nn.Module):
    """Attention over a part of the patches of an image, as in a masked autoencoder."""

    def __init__(self, kept):
        super().__init__()
        self.kept, self.embed = kept, nn.Conv2d(3, 8, 4, stride=4)

    def forward(self, image):
        x = self.embed(image).flatten(2).mT[:, : self.kept]
        return F.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("kept", [24, 9])
def test_the_patches_of_the_model_are_recorded(kept, tmp_path):
    model = PatchAttention(kept)
    with record_attention(model) as record:
        model(torch.rand(1, 3, 16, 24))
    record.save(tmp_path / "record.safetensors")
    record, image = Record.load(tmp_path / "record.safetensors"), torch.rand(3, 16, 16)
    assert record.patch_grid == (4, 6)
    if kept == 24:
        assert '"grid":[4,6]' in record.view(images=image).html
    else:
        with pytest.raises(ValueError, match=r"images must match the 9 positions .* with a grid of 4 x 6"):
            record.view(images=image)


def test_other_convolutions_make_no_patches():
    class Stem(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 8, 2, stride=2), nn.Flatten(2))

        def forward(self, image):
            x = self.layers(image).mT
            return F.scaled_dot_product_attention(x, x, x)

    model = Stem()
    with record_attention(model) as record:
        model(torch.rand(1, 3, 16, 16))
    assert record.patch_grid is None


class ImageText(nn.Module):
    """A decoder with tokens of an image in its text, as in LLaVA."""

    def __init__(self):
        super().__init__()
        self.config, self.embed = SimpleNamespace(image_token_id=9), nn.Embedding(10, 8)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


@pytest.mark.parametrize(
    ("ids", "image_tokens"),
    [
        ([[1, 9, 9, 9, 9, 2], [3, 9, 9, 9, 9, 4]], (1, 5)),
        ([[1, 9, 9, 9, 9, 2], [9, 9, 9, 9, 3, 4]], None),
        ([[1, 9, 9, 2, 9, 9]], None),
        ([[1, 2]], None),
    ],
)
def test_image_tokens_are_found(ids, image_tokens):
    model = ImageText()
    with record_attention(model) as record:
        model(torch.tensor(ids))
        model(torch.tensor([[5]] * len(ids)))
    assert record.image_tokens == image_tokens


def test_an_image_in_a_text_is_shown_at_its_tokens():
    model = ImageText()
    with record_attention(model) as record:
        model(input_ids=torch.tensor([[1, 9, 9, 9, 9, 2]]))
    html = record.view(["<s>", *["<image>"] * 4, "what"], images=torch.rand(3, 8, 8)).html
    assert '"tokens":["\\u003cs\\u003e","1,1","1,2","2,1","2,2","what"]' in html
