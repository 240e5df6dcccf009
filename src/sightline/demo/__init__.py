"""`sightline demo`: a few-shot classifier of drawn characters, and two numeric examples of cosine attention."""

from pathlib import Path

from rich.console import Console

from . import cosine, few_shot

__all__ = ["run"]


def run(out: Path, model: str = "glyphs") -> None:
    """Print both parts and write their images, page and figures to `out`.

    `model` is a pretrained few-shot model or the folder of a few-shot run.
    """
    console = Console(highlight=False)
    few_shot.run(console, out, model)
    cosine.run(console, out)
