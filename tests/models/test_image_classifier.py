import pytest
import torch

from sightline import record_attention
from sightline.config import for_data
from sightline.models.image_classifier import ImageClassifier, ImageClassifierConfig

SIZES = {
    "image_size": 12,
    "channels": 3,
    "num_classes": 5,
    "patch_size": 4,
    "embed_dim": 12,
    "num_heads": 3,
    "depth": 2,
}
OPTIONS = [
    {"patch_size": 3},
    {"embed_dim": 24},
    {"num_heads": 1},
    {"head_dim": 5, "num_heads": 2},
    {"depth": 1},
    {"mlp_ratio": 0.5},
    {"norm": "post"},
    {"attention_bias": False},
    {"in_context_bias": True},
    *({"score": score} for score in ("cosine", "general", "additive")),
    *({"mask": mask} for mask in ("additive", "multiplicative")),
    {"mask": "causal", "pool": "mean"},
    *({"position_init": init} for init in ("zeros", "ones", "normal", "sinusoidal")),
    {"train_positions": False},
    {"positions": "sinusoidal"},
    {"positions": "none"},
    {"pool": "mean"},
    {"dropout": 0.1, "attention_dropout": 0.2},
]


def make_model(**changes):
    torch.manual_seed(0)
    return ImageClassifier(ImageClassifierConfig(**{**SIZES, **changes})).eval()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_parameter_has_a_gradient(options):
    model = make_model(**options).train()
    logits = model(torch.rand(2, 3, 12, 12))
    assert logits.shape == (2, 5)
    torch.nn.functional.cross_entropy(logits, torch.tensor([1, 4])).backward()
    trained = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert not {name for name, gradient in trained.items() if gradient is None or not gradient.any()}


def test_options_reach_the_blocks():
    model = make_model(
        head_dim=5, num_heads=2, attention_bias=False, attention_dropout=0.2, dropout=0.1, mask="additive"
    )
    block = model.encoder.layers[0]
    assert block.attention.qkv.weight.shape == (3 * 2 * 5, 12)
    assert block.attention.qkv.bias is None
    assert (block.attention.dropout, block.dropout.p, block.pre_norm) == (0.2, 0.1, True)
    assert block.attention.mask.table.shape == (2, 10, 10)
    assert block.attention.mask.table is not model.encoder.layers[1].attention.mask.table
    assert not make_model(train_positions=False).positions.table.requires_grad
    assert make_model(position_init="ones").positions.table.eq(1).all()


@pytest.mark.parametrize("pool", ["class_token", "mean"])
@torch.no_grad()
def test_logits_are_a_linear_map_of_the_pooled_tokens(pool):
    model, images = make_model(pool=pool), torch.rand(2, 3, 12, 12)
    tokens = []
    model.encoder.register_forward_hook(lambda _, args, output: tokens.append(output))
    logits = model(images)
    pooled = tokens[0][:, 0] if pool == "class_token" else tokens[0].mean(1)
    torch.testing.assert_close(logits, pooled @ model.classifier.weight.T + model.classifier.bias)
    model.calibration_scale.fill_(3)
    torch.testing.assert_close(model(images), 3 * logits)


def test_causal_mask_hides_later_patches():
    model, images = make_model(mask="causal", pool="mean"), torch.rand(1, 3, 12, 12)
    changed = images.clone()
    changed[:, :, 8:, 8:] = 0  # the last patch
    tokens = [model.encoder(model.positions(model.patch_embedding(x))) for x in (images, changed)]
    torch.testing.assert_close(tokens[0][:, :-1], tokens[1][:, :-1])
    assert not torch.allclose(tokens[0][:, -1], tokens[1][:, -1])


def test_pixels_are_normalized():
    model, images = make_model(), torch.rand(2, 3, 12, 12)
    logits = model(images)
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.6, 0.7])
    model.set_normalization(mean, std)
    torch.testing.assert_close(model(images * std.view(-1, 1, 1) + mean.view(-1, 1, 1)), logits)


def test_attention_over_patches_is_recorded():
    with record_attention(model := make_model(score="cosine")) as record:
        model(torch.rand(1, 3, 12, 12))
    assert [attention_map.weights.shape for attention_map in record] == [(1, 3, 10, 10)] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch_size": 5}, "patch_size must divide image_size=12, got 5"),
        ({"num_heads": 5}, "num_heads must divide embed_dim=12, got 5; or set head_dim"),
        ({"head_dim": 0}, "head_dim must be an integer of at least 1, got 0"),
        ({"num_classes": 1}, "num_classes must be an integer of at least 2, got 1"),
        ({"mlp_ratio": 0.01}, r"mlp_ratio must give a hidden dimension of at least 1 for embed_dim=12, got 0\.01"),
        ({"positions": "sinusoidal", "embed_dim": 9}, "embed_dim must be even for sinusoidal positions, got 9"),
        ({"positions": "learnt"}, "positions must be one of learned, sinusoidal, none, got 'learnt'"),
        ({"position_init": "one"}, "position_init must be one of .* got 'one'; did you mean 'ones'?"),
        ({"pool": "max"}, "pool must be one of class_token, mean, got 'max'"),
        ({"mask": "causal"}, "pool must be mean for a causal mask, got class_token"),
        ({"score": "cosin"}, "score must be one of additive, cosine, dot, general, got 'cosin'"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
    ],
)
def test_invalid_configs_raise(change, message):
    with pytest.raises(ValueError, match=message):
        ImageClassifierConfig(**{**SIZES, **change})


def test_sizes_come_from_the_data():
    config = ImageClassifierConfig(patch_size=4, embed_dim=12, num_heads=3)
    sized = for_data(config, image_size=12, channels=3, num_classes=5)
    assert (sized.sequence_length, sized.grid_size) == (10, 3)
    with pytest.raises(ValueError, match=r"model\.num_classes must be null or that of the data, 7, got 5"):
        for_data(sized, image_size=12, channels=3, num_classes=7)
    with pytest.raises(ValueError, match="model: patch_size must divide image_size=13, got 4"):
        for_data(config, image_size=13, channels=3, num_classes=5)
    with pytest.raises(ValueError, match="channels and num_classes must be set, got None and None"):
        ImageClassifier(config)
