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


PACKAGES: dict[str, Callable[[Path | None], Cases]] = {
    "transformers": transformers_cases,
}
