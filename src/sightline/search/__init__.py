"""Hyperparameter search: which settings of a config matter, and which are best. Requires the `search` extra."""

from ..errors import MissingDependencyError

try:
    import optuna as _optuna  # noqa: F401
except ImportError as error:
    message = "a search must have Optuna installed: pip install 'sightline[search]'"
    raise MissingDependencyError(message) from error

from .results import FILES, Results
from .run import FinishedSearch, search
from .space import Space, read_space

__all__ = ["FILES", "FinishedSearch", "Results", "Space", "read_space", "search"]
