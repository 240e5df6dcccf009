import dataclasses

import pytest
import torch

from sightline import record_attention
from sightline.layers import PatchEmbedding, TransformerBlock
from sightline.models.image_classifier import ImageClassifier, ImageClassifierConfig

FORM = {"image_size": 12, "channels": 3, "classes": 5, "patch_size": 4, "width": 12, "heads": 3, "depth": 2}


def make(**changes: object) -> ImageClassifier:
    torch.manual_seed(0)
    return ImageClassifier(ImageClassifierConfig(**{**FORM, **changes})).eval()


def test_patches_are_tokens_in_reading_order() -> None:
    layer = PatchEmbedding(3, 4, 7)
    images = torch.rand(2, 3, 8, 12)
    tokens = layer(images)
    assert tokens.shape == (2, 6, 7)
    lower_right = images[:, :, 4:8, 8:12].flatten(1) @ layer.project.weight.flatten(1).T + layer.project.bias
    torch.testing.assert_close(tokens[:, 5], lower_right)


@pytest.mark.parametrize(
    ("images", "message"),
    [((2, 1, 8, 8), r"images must have shape \(batch, 3"), ((2, 3, 8, 9), "multiples of patch_size=4, got 8 x 9")],
)
def test_images_that_do_not_fit_are_refused(images: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PatchEmbedding(3, 4, 7)(torch.rand(images))


OPTIONS = [
    {"patch_size": 3},
    {"width": 24},
    {"heads": 1},
    {"head_dim": 5, "heads": 2},
    {"depth": 1},
    {"mlp_ratio": 0.5},
    {"norm": "post"},
    {"attention_bias": False},
    {"in_context_bias": True},
    {"score": "cosine"},
    *({"mask": mask} for mask in ("additive", "multiplicative")),
    {"mask": "causal", "pool": "mean"},
    *({"positions_start": start} for start in ("zeros", "ones", "normal", "sinusoidal")),
    {"positions_trainable": False},
    {"positions": "sinusoidal"},
    {"positions": "none"},
    {"pool": "mean"},
    {"dropout": 0.1, "attention_dropout": 0.2},
]


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_every_option_learns(option: dict[str, object]) -> None:
    model = make(**option).train()
    logits = model(torch.rand(2, 3, 12, 12))
    assert logits.shape == (2, 5)
    torch.nn.functional.cross_entropy(logits, torch.tensor([1, 4])).backward()
    silent = {name for name, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())}
    assert not silent


def test_options_reach_the_blocks() -> None:
    model = make(head_dim=5, num_heads=2, attention_bias=False, attention_dropout=0.2, dropout=0.1, mask="additive")
    block = model.encoder.layers[0]
    assert isinstance(block, TransformerBlock)
    assert block.attention.qkv.weight.shape == (3 * 2 * 5, 12)
    assert block.attention.qkv.bias is None
    assert block.attention.dropout == 0.2
    assert block.norm1.dropout.p == 0.1
    assert block.attention.mask.table.shape == (2, 10, 10)
    assert block.attention.mask.table is not model.encoder.layers[1].attention.mask.table
    assert not make(positions_trainable=False).positions.table.requires_grad
    assert make(positions_start="ones").positions.table.eq(1).all()


def test_causal_mask_hides_later_patches() -> None:
    model = make(mask="causal", pool="mean")
    images = torch.rand(1, 3, 12, 12)
    changed = images.clone()
    changed[:, :, 8:, 8:] = 0  # the last patch
    tokens = [model.encoder(model.positions(model.patches(x))) for x in (images, changed)]
    torch.testing.assert_close(tokens[0][:, :-1], tokens[1][:, :-1])
    assert not torch.allclose(tokens[0][:, -1], tokens[1][:, -1])


def test_pixels_are_normalized_by_what_was_set() -> None:
    model = make()
    images = torch.rand(2, 3, 12, 12)
    plain = model(images)
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.6, 0.7])
    model.set_normalization(mean, std)
    torch.testing.assert_close(model(images * std.view(-1, 1, 1) + mean.view(-1, 1, 1)), plain)


def test_attention_is_recorded_over_patches() -> None:
    with record_attention(model := make(score="cosine")) as record:
        model(torch.rand(1, 3, 12, 12))
    assert [seen.weights.shape for seen in record] == [(1, 3, 10, 10)] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch_size": 5}, "patch_size must divide image_size=12, got 5"),
        ({"heads": 5}, "heads must divide width=12 or head_dim be given, got 5"),
        ({"head_dim": 0}, "head_dim must be an integer of at least 1, got 0"),
        ({"classes": 1}, "classes must be an integer of at least 2, got 1"),
        ({"mlp_ratio": 0.01}, "mlp_ratio must leave at least one channel"),
        ({"positions": "sinusoidal", "width": 9}, "width must be even"),
        ({"mask": "causal"}, "pool must be mean where mask is causal"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
    ],
)
def test_impossible_models_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageClassifierConfig(**{**FORM, **change})


def test_form_is_that_of_the_data() -> None:
    config = ImageClassifierConfig(patch_size=4, width=12, num_heads=3)
    known = config.of_data(image_size=12, channels=3, classes=5)
    assert (known.sequence_length, known.side) == (10, 3)
    with pytest.raises(ValueError, match=r"model\.classes must be that of the data, 7, or null, got 5"):
        dataclasses.replace(known).of_data(image_size=12, channels=3, classes=7)
    with pytest.raises(ValueError, match="model: patch_size must divide image_size=13, got 4"):
        config.of_data(image_size=13, channels=3, classes=5)
    with pytest.raises(ValueError, match="channels and classes must be given"):
        ImageClassifier(config)
