"""Pretrained models that are part of the package: each is the folder of a run with its model card.

Their names are accepted wherever a run's folder is. A folder of that name that holds a run takes precedence.
"""

import warnings
from pathlib import Path

from ..errors import SightlineWarning, one_of
from ..files import CARD, CONFIG, WEIGHTS

HOME = Path(__file__).parent


def names() -> tuple[str, ...]:
    """The names of the pretrained models."""
    complete = (path.parent for path in HOME.glob(f"*/{CONFIG}") if not path.parent.name.startswith("."))
    return tuple(sorted(path.name for path in complete if all((path / name).is_file() for name in (WEIGHTS, CARD))))


def folder(source: str | Path) -> Path:
    """The path itself, or the folder of the pretrained model of this name where the path holds no run."""
    path = Path(source).expanduser()
    return HOME / path.name if not (path / CONFIG).is_file() and str(source) in names() else path


def warn_if_hidden(source: str | Path) -> None:
    """Warn if a run in the working folder takes the place of the pretrained model of the same name."""
    if str(source) in names() and not is_pretrained(folder(source)):
        fix = f"rename that folder, or write ./{source} for it"
        message = f"{source} is the run in the folder ./{source} here, not the pretrained model of this name; {fix}"
        warnings.warn(message, SightlineWarning, stacklevel=3)


def is_pretrained(path: Path) -> bool:
    """Whether a folder is part of the package, and so read-only."""
    return path.parent == HOME


def display_name(path: Path) -> str:
    """A run in a message: the name of a pretrained model, else the path."""
    return path.name if is_pretrained(path) else str(path)


def known(name: str) -> str:
    """The end of an error message: the pretrained models, and the closest match."""
    available = names()
    return f"a pretrained model, {one_of(name, available)}" if available else f"a pretrained model (none), got {name!r}"
