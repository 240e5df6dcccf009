"""The command `sightline`. Verbs only: parse, call, print; heavy imports wait until a verb needs them."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Attention models that learn from little data and show what they looked at.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from . import __version__

        typer.echo(f"sightline {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Attention models that learn from little data and show what they looked at."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures; made if it is not there.")] = Path("demo"),
) -> None:
    """Show the core at work: the magnitude trap and the temperature sweep, each with a picture."""
    from .demo import run

    try:
        run(out)
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
