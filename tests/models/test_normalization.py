import pytest
import torch

from sightline.errors import SightlineError
from sightline.models.few_shot_config import FewShotConfig
from sightline.models.normalization import EmbeddingNormalization

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
            "whitening_dim must be at most embed_dim",
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
