"""Attention models that learn from little data and show what they attend to.

Names are fetched when they are first used, so `import sightline` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from . import attention, data, layers, runs
    from .attention import Record, ablate_edges, ablate_heads, head_importance, record_attention, show_attention
    from .classifier import FewShotClassifier
    from .models.hugging_face import from_hugging_face
    from .models.hugging_face_attention import register_cosine_attention, use_cosine_attention
    from .runs import compare, evaluate, export, info, load, train

__all__ = [
    "FewShotClassifier",
    "Record",
    "__version__",
    "ablate_edges",
    "ablate_heads",
    "attention",
    "compare",
    "data",
    "evaluate",
    "export",
    "from_hugging_face",
    "head_importance",
    "info",
    "layers",
    "load",
    "record_attention",
    "register_cosine_attention",
    "runs",
    "show_attention",
    "train",
    "use_cosine_attention",
]

_MODULES = {
    "attention": ("Record", "ablate_edges", "ablate_heads", "head_importance", "record_attention", "show_attention"),
    "classifier": ("FewShotClassifier",),
    "models.hugging_face": ("from_hugging_face",),
    "models.hugging_face_attention": ("register_cosine_attention", "use_cosine_attention"),
    "runs": ("compare", "evaluate", "export", "info", "load", "train"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
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
