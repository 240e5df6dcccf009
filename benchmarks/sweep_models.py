"""Small models of other packages for `benchmarks.sweep`."""

import copy
import importlib
import sys
import unittest
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sightline.attention import Record, record_attention

from .sweep import Case

CLASSES = Path(__file__).parent / "sweep_transformers.txt"
"""Test module, test class and model class in each line."""
Cases = dict[str, Callable[[], Case]]


def transformers_cases(checkout: Path) -> Cases:
    """Models of transformers, built by its tests."""
    sys.path.insert(0, str(checkout.resolve()))
    rows = [line.split() for line in CLASSES.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    return {model: partial(_transformers_case, module, test, model) for module, test, model in rows}


def _transformers_case(module: str, test_name: str, model_name: str) -> Case:
    test_class = getattr(importlib.import_module(f"tests.models.{module}"), test_name)
    test = test_class(next(name for name in dir(test_class) if name.startswith("test")))
    assert isinstance(test, unittest.TestCase)
    test.setUp()
    model_class = next(c for c in test.all_model_classes if c.__name__ == model_name)
    config, inputs = test.model_tester.prepare_config_and_inputs_for_common()
    inputs = test._prepare_for_class(inputs, model_class)
    eager_config = copy.deepcopy(config)
    model = model_class(config)

    def run(model: nn.Module, **options: Any) -> Any:
        return model(**copy.deepcopy(inputs), **options)

    def eager() -> tuple[list[Tensor], Record] | None:
        if not getattr(test, "has_attentions", True):
            return None
        try:
            eager_config._attn_implementation = "eager"
            model_with_maps = model_class(eager_config).eval()
            model_with_maps.load_state_dict(model.state_dict())
            torch.manual_seed(0)
            with record_attention(model_with_maps) as record:
                outputs = run(model_with_maps, output_attentions=True)
        except Exception:  # it does not return them
            return None
        return _attentions(outputs), record

    return Case(model, run, eager)


def _attentions(outputs: Any) -> list[Tensor]:
    """The maps (B, H, Q, K) of all fields with attentions in their name."""
    found: list[Tensor] = []
    for name, value in outputs.items() if isinstance(outputs, dict) else ():
        if isinstance(value, dict):
            found += _attentions(value)
        elif name.endswith("attentions"):
            found += _flat(value)
    return found


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in value or () for tensor in _flat(item)] if isinstance(value, list | tuple) else []


TIMM = [
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "swin_tiny_patch4_window7_224",
    "swinv2_tiny_window8_256",
    "twins_svt_small",
    "pvt_v2_b0",
    "xcit_nano_12_p16_224",
    "cait_xxs24_224",
    "levit_128s",
    "maxvit_rmlp_pico_rw_256",
    "coat_lite_tiny",
    "crossvit_tiny_240",
    "eva02_tiny_patch14_224",
    "mobilevit_xxs",
    "davit_tiny",
]


def timm_cases(_: Path | None) -> Cases:
    """Vision models of timm."""
    _define_torchvision_operators()
    return {name: partial(_timm_case, name) for name in TIMM}


def _timm_case(name: str) -> Case:
    import timm

    model = timm.create_model(name, pretrained=False)
    x = torch.randn(1, *model.default_cfg["input_size"])
    return Case(model, lambda model: model(x))


def _define_torchvision_operators() -> None:
    """Let torchvision be imported beside a torch without CUDA, for which it has no operators. Models use none."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARIES.append(library)


_LIBRARIES: list[torch.library.Library] = []
"""Operators are removed with their library."""
_VIT = {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 32}
VIT_PYTORCH: dict[str, tuple[dict[str, Any], int]] = {
    "vit.ViT": (_VIT, 32),
    "simple_vit.SimpleViT": (_VIT, 32),
    "deepvit.DeepViT": (_VIT, 32),
    "cait.CaiT": ({**_VIT, "cls_depth": 1}, 32),
    "parallel_vit.ViT": (_VIT, 32),
    "simple_vit_with_register_tokens.SimpleViT": ({**_VIT, "num_register_tokens": 3}, 32),
    "t2t.T2TViT": ({"image_size": 32, "num_classes": 5, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 32}, 32),
    "pit.PiT": ({**_VIT, "depth": (1, 1)}, 32),
    "cvt.CvT": ({"num_classes": 5}, 64),
    "twins_svt.TwinsSVT": (
        {"num_classes": 5, **{f"s{i}_{key}": 2 for i in (1, 2, 3, 4) for key in ("local_patch_size", "global_k")}},
        64,
    ),
}
"""Arguments and image size by module and class name."""


def vit_pytorch_cases(_: Path | None) -> Cases:
    """Vision models of vit-pytorch."""
    _define_torchvision_operators()
    return {name: partial(_vit_pytorch_case, name, *row) for name, row in VIT_PYTORCH.items()}


def _vit_pytorch_case(name: str, options: dict[str, Any], size: int) -> Case:
    module, _, class_name = name.partition(".")
    model = getattr(importlib.import_module(f"vit_pytorch.{module}"), class_name)(**options)
    x = torch.randn(1, 3, size, size)
    return Case(model, lambda model: model(x))


_BLOCKS = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}
_DIT = {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "num_layers": 2, "sample_size": 8}
DIFFUSERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "UNet2DConditionModel": (
        {
            **_BLOCKS,
            "block_out_channels": (8, 16),
            "norm_num_groups": 4,
            "cross_attention_dim": 12,
            "attention_head_dim": 4,
            "layers_per_block": 1,
            "sample_size": 16,
        },
        {"sample": (1, 4, 16, 16), "encoder_hidden_states": (1, 7, 12)},
    ),
    "UNet2DModel": (
        {
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
            "block_out_channels": (8, 16),
            "norm_num_groups": 4,
            "attention_head_dim": 4,
            "layers_per_block": 1,
        },
        {"sample": (1, 3, 16, 16)},
    ),
    "DiTTransformer2DModel": (
        {**_DIT, "norm_num_groups": 4, "num_embeds_ada_norm": 10},
        {"hidden_states": (1, 4, 8, 8), "class_labels": ()},
    ),
    "PixArtTransformer2DModel": (
        {**_DIT, "cross_attention_dim": 16, "caption_channels": 12, "use_additional_conditions": False},
        {"hidden_states": (1, 4, 8, 8), "encoder_hidden_states": (1, 7, 12)},
    ),
    "SD3Transformer2DModel": (
        {
            **_DIT,
            "patch_size": 2,
            "caption_projection_dim": 16,
            "joint_attention_dim": 12,
            "pooled_projection_dim": 12,
            "pos_embed_max_size": 8,
        },
        {"hidden_states": (1, 4, 8, 8), "encoder_hidden_states": (1, 7, 12), "pooled_projections": (1, 12)},
    ),
}
"""Config and shapes of the inputs by class name."""


def diffusers_cases(_: Path | None) -> Cases:
    """Denoisers of diffusers."""
    return {name: partial(_diffusers_case, name, *row) for name, row in DIFFUSERS.items()}


def _diffusers_case(name: str, config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> Case:
    import diffusers

    model = getattr(diffusers, name)(**config)
    inputs = {key: torch.randn(shape) if shape else torch.tensor([3]) for key, shape in shapes.items()}

    def run(model: nn.Module) -> Any:
        return model(**inputs, timestep=torch.tensor([5]), return_dict=False)

    return Case(model, run)


PACKAGES: dict[str, Callable[[Any], Cases]] = {
    "transformers": transformers_cases,
    "timm": timm_cases,
    "vit_pytorch": vit_pytorch_cases,
    "diffusers": diffusers_cases,
}
