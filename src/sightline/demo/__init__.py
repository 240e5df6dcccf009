"""`sightline demo`: a few-shot classifier of drawn characters, a translator, and two examples of cosine attention."""

from pathlib import Path

from rich.console import Console

from . import cosine, few_shot, translation

__all__ = ["run"]


def run(out: Path, model: str = "glyphs") -> None:
    """Print all parts and write their images, pages and figures to `out`.

    `model` is a pretrained few-shot model or the folder of a few-shot run.
    """
    console = Console(highlight=False)
    few_shot.run(console, out, model)
    translation.run(console, out)
    cosine.run(console, out)
