"""The zoo: small trained models that ship with the package, each the folder of a run with its card.

`sightline.load`, `FewShotClassifier.pretrained` and the command take their names wherever they take a folder. A folder
at that path wins if it holds a run, so that what you have trained yourself is never mistaken for what ships.
"""

from pathlib import Path

from ..errors import one_of
from ..hub import CONFIG

HOME = Path(__file__).parent


def names() -> tuple[str, ...]:
    """The models that ship, by name."""
    return tuple(sorted(path.parent.name for path in HOME.glob(f"*/{CONFIG}")))


def folder(source: str | Path) -> Path:
    """The path itself; or, where it holds no run and is the name of a model that ships, the folder of that."""
    path = Path(source).expanduser()
    return HOME / path.name if not (path / CONFIG).is_file() and str(source) in names() else path


def ships(path: Path) -> bool:
    """Whether this folder belongs to the package, and is not to be written to."""
    return path.parent == HOME


def called(path: Path) -> str:
    """What to call a run in a message: its name if it ships, else its path."""
    return path.name if ships(path) else str(path)


def known(name: str) -> str:
    """The end of an error message: what ships, and what was probably meant."""
    shipped = names()
    return f"a model that ships, {one_of(name, shipped)}" if shipped else f"one that ships (none do), got {name!r}"
