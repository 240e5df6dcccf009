import pytest
import torch
from torch import nn

from sightline.models.image_classifier import ImageClassifier, ImageClassifierConfig
from sightline.training.config import TrainingConfig
from sightline.training.optimizers import Muon, make_optimizers, orthogonal


def model() -> ImageClassifier:
    torch.manual_seed(0)
    return ImageClassifier(
        ImageClassifierConfig(image_size=8, channels=1, classes=3, width=8, num_heads=2, depth=2, score="cosine")
    )


@pytest.mark.parametrize("name", ["adam", "adamw", "muon"])
def test_only_matrices_decay(name: str) -> None:
    net = model()
    names = {parameter: name for name, parameter in net.named_parameters()}
    decaying, resting = set(), set()
    for optimizer in make_optimizers(net, TrainingConfig(optimizer=name)):  # type: ignore[arg-type]
        for group in optimizer.param_groups:
            (decaying if group["weight_decay"] else resting).update(names[p] for p in group["params"])
    assert decaying | resting == set(names.values())
    assert {"patches.project.weight", "encoder.layers.0.attention.qkv.weight", "classifier.answer.weight"} <= decaying
    assert {"class_token", "encoder.layers.1.attention.score.log_temperature_offset", "encoder.norm.weight"} <= resting
    assert not any(name.endswith("bias") for name in decaying)


@pytest.mark.parametrize("name", ["adam", "adamw", "muon"])
def test_tables_of_places_do_not_decay(name: str) -> None:
    """A multiplicative mask starts at 1; decay would draw it to 0, where nobody is told apart."""
    form = {"image_size": 8, "channels": 1, "classes": 3, "width": 8, "heads": 2, "depth": 2}
    net = ImageClassifier(ImageClassifierConfig(**form, mask="multiplicative"))
    tables = {id(p) for name, p in net.named_parameters() if name.endswith("table")}
    assert len(tables) == 3
    for optimizer in make_optimizers(net, TrainingConfig(optimizer=name)):  # type: ignore[arg-type]
        for group in optimizer.param_groups:
            assert not group["weight_decay"] or not tables & {id(p) for p in group["params"]}


def test_muon_takes_the_matrices_of_the_blocks_alone() -> None:
    net = model()
    muon, adam = make_optimizers(net, TrainingConfig(optimizer="muon"))
    assert isinstance(muon, Muon)
    taken = {id(p) for group in muon.param_groups for p in group["params"]}
    assert taken == {id(p) for name, p in net.named_parameters() if name.startswith("encoder.layers") and p.dim() == 2}
    assert isinstance(adam, torch.optim.AdamW)


@pytest.mark.parametrize("shape", [(3, 7, 11), (2, 11, 7), (1, 5, 5)])
def test_orthogonal_brings_singular_values_near_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(shape)
    values = torch.linalg.svdvals(orthogonal(matrices))
    assert values.shape == torch.linalg.svdvals(matrices).shape
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_a_matrix_of_zeros_stays_zero() -> None:
    assert orthogonal(torch.zeros(2, 3, 4)).eq(0).all()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has no Muon before 2.9")
def test_muon_agrees_with_torch() -> None:
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in ((24, 8), (24, 8), (8, 16))]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    start = [p.detach().clone() for p in ours]
    a = Muon(ours, lr=0.01, weight_decay=0.1)
    b = torch.optim.Muon(theirs, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        a.step()
        b.step()
    for p, q, was in zip(ours, theirs, start, strict=True):  # theirs works in bfloat16 on every device
        assert (p - q).detach().norm() < 0.02 * (p - was).detach().norm()


def test_muon_passes_over_what_has_no_gradient() -> None:
    still = nn.Parameter(torch.ones(3, 4))
    Muon([still], lr=0.1).step()
    assert still.eq(1).all()


def test_muon_is_refused_where_weights_are_shared_out() -> None:
    with pytest.raises(ValueError, match="optimizer must be adamw or adam where weights are shared out"):
        TrainingConfig(optimizer="muon", shard=True)
