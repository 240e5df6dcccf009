import math

import pytest
import torch
from torch import nn

from sightline.errors import SightlineError
from sightline.layers.backbones import ResNet12
from sightline.layers.efficientnet import EfficientNetLite
from sightline.models.image_classifier import ImageClassifier, ImageClassifierConfig
from sightline.training.config import TrainingConfig
from sightline.training.optimizers import Muon, make_optimizers, orthogonalize

OPTIMIZERS = ["adam", "adamw", "muon"]


def build_model(**options):
    torch.manual_seed(0)
    sizes = {"image_size": 8, "channels": 1, "num_classes": 3, "embed_dim": 8, "num_heads": 2, "depth": 2}
    return ImageClassifier(ImageClassifierConfig(**sizes, **options))


def decayed_and_exempt(model, optimizer):
    names = {parameter: name for name, parameter in model.named_parameters()}
    decayed, exempt = set(), set()
    for built in make_optimizers(model, TrainingConfig(optimizer=optimizer)):
        for group in built.param_groups:
            (decayed if group["weight_decay"] else exempt).update(names[parameter] for parameter in group["params"])
    assert decayed | exempt == set(names.values())
    return decayed, exempt


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weight_decay_applies_to_matrices_only(optimizer):
    decayed, exempt = decayed_and_exempt(build_model(score="cosine"), optimizer)
    assert {
        "patch_embedding.proj.weight",
        "encoder.layers.0.attention.qkv.weight",
        "classifier.weight",
    } <= decayed
    assert {"class_token", "encoder.layers.1.attention.score.log_temperature_offset", "encoder.norm.weight"} <= exempt
    assert not any(name.endswith("bias") for name in decayed)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_position_tables_do_not_decay(optimizer):
    """A multiplicative mask starts at 1; decay would move it to 0, where all positions are alike."""
    _, exempt = decayed_and_exempt(build_model(mask="multiplicative"), optimizer)
    assert sum(name.endswith("table") for name in exempt) == 3


def test_muon_optimizes_the_matrices_of_the_layers_only():
    model = build_model(score="cosine")
    muon, adam = make_optimizers(model, TrainingConfig(optimizer="muon"))
    assert isinstance(muon, Muon)
    optimized = {id(parameter) for group in muon.param_groups for parameter in group["params"]}
    assert optimized == {
        id(parameter)
        for name, parameter in model.named_parameters()
        if name.startswith("encoder.layers") and parameter.dim() == 2
    }
    assert isinstance(adam, torch.optim.AdamW)


def test_muon_optimizes_the_filters_of_a_backbone_as_matrices():
    backbone = ResNet12(3, channels=(4, 6))
    muon, adam = make_optimizers(backbone, TrainingConfig(optimizer="muon"))
    filters = [parameter for parameter in backbone.parameters() if parameter.dim() == 4]
    assert [id(p) for group in muon.param_groups for p in group["params"]] == [id(p) for p in filters]
    own, before = filters[1], filters[1].detach().clone()
    own.grad = torch.randn_like(own)
    Muon([own], lr=0.1, weight_decay=0.0).step()
    update = (own.detach() - before).flatten(1) / (-0.1 * 0.2 * math.sqrt(max(own.flatten(1).shape)))
    values = torch.linalg.svdvals(update)
    assert 0.5 < values.min() < values.max() < 1.3
    assert isinstance(adam, torch.optim.AdamW)
    depthwise = EfficientNetLite("efficientnet_lite0")
    groups = make_optimizers(depthwise, TrainingConfig(optimizer="muon"))[0].param_groups
    assert {id(p) for group in groups for p in group["params"]} == {
        id(p) for p in depthwise.parameters() if p.dim() == 4 and p.shape[1] > 1
    }


@pytest.mark.parametrize("shape", [(3, 7, 11), (2, 11, 7), (1, 5, 5)])
def test_orthogonalize_moves_singular_values_near_one(shape):
    matrices = torch.randn(shape)
    values = torch.linalg.svdvals(orthogonalize(matrices))
    assert values.shape == torch.linalg.svdvals(matrices).shape
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_orthogonalize_keeps_zeros():
    assert orthogonalize(torch.zeros(2, 3, 4)).eq(0).all()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has no Muon before 2.9")
def test_muon_agrees_with_torch():
    ours = [nn.Parameter(torch.randn(shape)) for shape in ((24, 8), (24, 8), (8, 16))]
    theirs = [nn.Parameter(parameter.detach().clone()) for parameter in ours]
    start = [parameter.detach().clone() for parameter in ours]
    a = Muon(ours, lr=0.01, weight_decay=0.1)
    b = torch.optim.Muon(theirs, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        a.step()
        b.step()
    for p, q, before in zip(ours, theirs, start, strict=True):  # torch uses bfloat16 on every device
        assert (p - q).detach().norm() < 0.02 * (p - before).detach().norm()


def test_muon_skips_parameters_without_gradient():
    parameter = nn.Parameter(torch.ones(3, 4))
    Muon([parameter], lr=0.1).step()
    assert parameter.eq(1).all()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_backbone_has_a_fraction_of_the_learning_rate(optimizer):
    model = nn.ModuleDict({"backbone": nn.Sequential(nn.Conv2d(3, 5, 3)), "head": nn.Linear(5, 7)})
    built = make_optimizers(model, TrainingConfig(optimizer=optimizer, backbone_lr_ratio=0.25))
    ratios = {p: group.get("lr_ratio", 1.0) for o in built for group in o.param_groups for p in group["params"]}
    assert {ratios[p] for p in model["backbone"].parameters()} == {0.25}
    assert {ratios[p] for p in model["head"].parameters()} == {1.0}
    assert len(ratios) == 4


def test_backbone_of_muon_has_one_learning_rate():
    model = nn.ModuleDict({"backbone": nn.ModuleList([nn.Linear(5, 7)])})
    with pytest.raises(SightlineError, match=r"must be 1 for a backbone that muon optimizes, got 0\.5"):
        make_optimizers(model, TrainingConfig(optimizer="muon", backbone_lr_ratio=0.5))


def test_a_model_without_a_backbone_has_one_learning_rate():
    with pytest.raises(SightlineError, match=r"must be 1 for a model without a trained backbone, got 0\.5"):
        make_optimizers(nn.Linear(5, 7), TrainingConfig(backbone_lr_ratio=0.5))
