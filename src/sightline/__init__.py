"""Attention models that learn from little data and show what they attend to.

Names are fetched when they are first used, so `import sightline` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from . import attention, data, layers, runs
    from .attention import Record, record_attention
    from .classifier import FewShotClassifier
    from .runs import compare, evaluate, load, train

__all__ = [
    "FewShotClassifier",
    "Record",
    "__version__",
    "attention",
    "compare",
    "data",
    "evaluate",
    "layers",
    "load",
    "record_attention",
    "runs",
    "train",
]

_HOMES = {
    "FewShotClassifier": "classifier",
    "Record": "attention",
    "compare": "runs",
    "evaluate": "runs",
    "load": "runs",
    "record_attention": "attention",
    "train": "runs",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name in ("attention", "data", "layers", "runs", "view"):
        return import_module(f"{__name__}.{name}")
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version(__name__)
        except PackageNotFoundError:
            return "0 (not installed)"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
