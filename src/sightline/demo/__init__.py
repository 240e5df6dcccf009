"""`sightline demo`: a classifier from a handful of drawings, then cosine attention in two examples to check by hand."""

from pathlib import Path

from rich.console import Console

from . import cosine, few_shot

__all__ = ["run"]


def run(out: Path, model: str = "glyphs") -> None:
    """Tell both on the terminal; pictures, a page and files to try are left in `out`.

    `model` is one that ships, or the folder of a few-shot run.
    """
    out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    few_shot.tell(console, out, model)
    cosine.tell(console, out)
