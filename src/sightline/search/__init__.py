"""Hyperparameter search: which settings of a config matter, and which are best. Requires the `search` extra."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import MissingDependencyError

try:
    import optuna as _optuna  # noqa: F401
except ImportError as error:
    message = "a search must have Optuna installed: pip install 'sightline[search]'"
    raise MissingDependencyError(message) from error

if TYPE_CHECKING:
    from .results import FILES, Results
    from .run import FinishedSearch, search
    from .space import Space, read_space

__all__ = ["FILES", "FinishedSearch", "Results", "Space", "read_space", "search"]

_MODULES = {"results": ("FILES", "Results"), "run": ("FinishedSearch", "search"), "space": ("Space", "read_space")}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `server` starts a process before this one imports torch."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
