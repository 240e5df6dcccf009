import pytest
import torch

from sightline.errors import SightlineError
from sightline.models.few_shot_config import FewShotConfig
from sightline.models.normalization import EmbeddingNormalization, SpatialNormalization, make_normalization

CLASSES, SHOT, M, K = 7, 13, 5, 2


def noisy_classes(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings (N, 1, M) whose classes vary most along the first dimension, and their labels."""
    random = torch.Generator().manual_seed(seed)
    means = 3 + torch.rand(CLASSES, 1, M, generator=random)
    noise = torch.randn(CLASSES, SHOT, M, generator=random) * torch.tensor([1.0, 0.1, 0.1, 0.1, 0.1])
    return (means + noise).flatten(0, 1)[:, None], torch.arange(CLASSES).repeat_interleave(SHOT)


def test_statistics_center_and_shrink_the_variance_within_classes():
    normalization = EmbeddingNormalization(M, power=1.0, whitening_dim=K)
    sources = [noisy_classes(seed) for seed in range(3)]
    normalization.set_statistics(sources)
    assert normalization.basis[:, -1].abs().argmax() == 0
    assert normalization.scales[-1] < 0.8
    assert (normalization.basis.mT @ normalization.basis - torch.eye(K)).abs().max() < 1e-5
    means = torch.stack([normalization.transform(x[:, 0]).mean(0) for x, _ in sources])
    torch.testing.assert_close(normalization.mean, means.mean(0))


def test_result_has_unit_variance_per_dimension_without_statistics_too():
    for whitening_dim in (0, K):
        x = EmbeddingNormalization(M, whitening_dim=whitening_dim)(torch.rand(3, 4, M))
        torch.testing.assert_close(x.square().mean(-1), torch.ones(3, 4))


SIZE, CHANNELS, WEIGHT = 2, 3, 0.2
SPATIAL = {"feature_map_size": SIZE, "feature_map_channels": CHANNELS, "feature_map_weight": WEIGHT}


def spatial_normalization(**options) -> SpatialNormalization:
    dims = {"embed_dim": M + SIZE * SIZE * CHANNELS, "power": 0.5, "whitening_dim": K}
    return make_normalization(FewShotConfig(backbone="none", **dims, **SPATIAL, **options))


def spatial_embeddings(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    pooled, labels = noisy_classes(seed)
    random = torch.Generator().manual_seed(seed)
    means = torch.randn(CLASSES, SIZE * SIZE, CHANNELS, generator=random)[labels]
    noise = torch.randn(len(labels), SIZE * SIZE, CHANNELS, generator=random) * torch.tensor([0.1, 1.0, 0.1])
    return torch.cat((pooled, (means + noise).flatten(1)[:, None]), -1), labels


def test_feature_map_has_its_weight_in_the_similarity():
    normalization, (x, _) = spatial_normalization(), spatial_embeddings(0)
    y = normalization(x)
    assert y.shape == x.shape
    torch.testing.assert_close(y.square().mean(-1), torch.ones(y.shape[:2]))
    torch.testing.assert_close(y[..., M:].square().sum(-1) / y.square().sum(-1), torch.full(y.shape[:2], WEIGHT))
    other = normalization.with_weight(0.7)(x)
    torch.testing.assert_close(other[..., M:].square().mean(), 0.7 / WEIGHT * y[..., M:].square().mean())
    torch.testing.assert_close(normalization.with_weight(0.0)(x), normalization.pooled(x[..., :M]))


def test_feature_map_has_statistics_of_its_own_which_all_positions_share():
    normalization, sources = spatial_normalization(), [spatial_embeddings(seed) for seed in range(3)]
    normalization.set_statistics(sources)
    alone = EmbeddingNormalization(M, whitening_dim=K)
    alone.set_statistics([(x[..., :M], labels) for x, labels in sources])
    torch.testing.assert_close(normalization.pooled.state_dict(), alone.state_dict())
    assert normalization.positions.basis[:, -1].abs().argmax() == 1  # varies most within a class and position
    assert normalization.positions.scales[-1] < 0.8
    cells = torch.cat([x[:, 0, M:].unflatten(-1, (-1, CHANNELS)).flatten(0, 1) for x, _ in sources])
    torch.testing.assert_close(normalization.positions.mean, normalization.positions.transform(cells).mean(0))
    plain, x = normalization.without_whitening(), sources[0][0]
    torch.testing.assert_close(plain(x), alone.without_whitening()(x[..., :M]))


def test_gradient_is_finite_at_zero():
    x = torch.tensor([[0.0, 1.0, 0.0, 2.0, 0.5]], requires_grad=True)
    EmbeddingNormalization(M)(x)[0, 1].backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"power": 0.5}, "power and whitening_dim must be null for a model with a backbone"),
        ({"backbone": "none", "embed_dim": M, "whitening_dim": 2}, "power must be given if whitening_dim is"),
        (
            {"backbone": "none", "embed_dim": M, "power": 0.5, "whitening_dim": 6},
            "whitening_dim must be at most 5, got 6",
        ),
        ({"backbone": "none", "embed_dim": 17, **SPATIAL}, "must be given together, and with power, got 2, 3 and None"),
        (
            {"backbone": "none", "embed_dim": 17, "power": 0.5, "feature_map_size": 2},
            "must be given together, and with power, got 2, None and 0.5",
        ),
        (
            {"backbone": "none", "embed_dim": 11, "power": 0.5, "whitening_dim": 2, **SPATIAL},
            "embed_dim must be larger than 2 x 2 x 3, the feature map, got 11",
        ),
        ({"feature_map_weight": 0.0}, "feature_map_weight must be above 0 and below 1, got 0"),
        (
            {"backbone": "none", "embed_dim": 17, "power": 0.5, "tokens": "patches", **SPATIAL},
            "tokens must be pooled with a feature map, got 'patches'",
        ),
        ({"views": 7}, "views must be one of 1, 2 for a backbone, got 7"),
        ({"views": 3}, "views must be one of 1, 2 for a backbone, got 3"),
        ({"views": 2, "normalize_drawings": True}, "one of 1, 3 for a backbone for drawings"),
        ({"views": 3, "backbone": "none", "embed_dim": M}, "one of 1, 2, 7 for pooled embeddings, got 3"),
        ({"views": 2, "pool": "flat"}, "views must be 1 for pool: flat, got 2"),
        (
            {"views": 7, "backbone": "none", "embed_dim": M, "tokens": "patches"},
            "views must be 1 for patches of a fixed encoder, got 7",
        ),
        ({"readout": "ridge", "metric": "euclidean"}, "readout must be prototypes if metric is euclidean"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(SightlineError, match=message):
        FewShotConfig(**options)
