"""A pretrained translator: translations, their estimated quality, and a page with the attention."""

import shlex
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from .. import runs

MODEL = "de-en"
SENTENCES = ("Kannst du mir bitte helfen?", "Ein Hund läuft durch den Schnee.", "Xqzt brk wlmpf.")
"""Two sentences, and one that is no German."""


def run(console: Console, out: Path) -> None:
    """Print the translations and write a page with the attention to `out`."""
    explanations = runs.load(MODEL).explain(SENTENCES)
    console.print("[bold]A translator that says when it is unsure[/]")
    table = Table("German", "English", "quality", "unlike the training text", box=box.SIMPLE)
    for text, translation in explanations.pairs():
        quality = "-" if translation.quality is None else f"{translation.quality:.0%}"
        table.add_row(text, translation.text, quality, ", ".join(translation.unfamiliar_words))
    console.print(table)
    assert explanations.page is not None
    path = explanations.page.save(out / "translation.html")
    console.print(f"wrote {path}: the attention of each translation", markup=False, soft_wrap=True)
    command = shlex.join(["sightline", "predict", MODEL, "Guten Abend!", "--show", str(out / "evening.html")])
    console.print(f"\n[bold]Next[/]:\n\n  {command}\n", soft_wrap=True)
