"""The application: its help, its errors, and what commands share."""

import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandFunctionType

import sightline

from ..errors import SightlineError, SightlineWarning
from ..names import printable_lines

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
"""Read when torch is imported: threads that spin while they wait slow down a busy machine."""
TYPE_NAMES = {"path": "PATH", "int": "N", "int range": "N", "float": "NUMBER"}
"""Names of types in the help of options; others are named after the option."""


class _Group(TyperGroup):
    """Prints warnings, errors that a user can fix, and those of the file system on one line; others as a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", SightlineWarning)
                warnings.showwarning = lambda message, *_: echo(f"warning: {message}", err=True)
                return super().invoke(ctx)
        except BrokenPipeError:  # the reader of a pipe ended, which typer handles
            raise
        except SightlineError as error:
            echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error
        except OSError as error:
            reason = error.strerror or str(error)
            echo(f"error: {error.filename}: {reason}" if error.filename else f"error: {reason}", err=True)
            is_wrong_path = isinstance(error, FileExistsError | NotADirectoryError)
            raise typer.Exit(2 if is_wrong_path else 1) from error
        except KeyboardInterrupt as stop:
            raise typer.Exit(getattr(stop, "exit_code", 130)) from stop


class _Command(TyperCommand):
    """Prints help in the words of the command: no types of Python, and nothing after a flag."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *(_metavar(param) for param in self.params if param.param_type_name == "argument")]

    def get_short_help_str(self, limit: int = 45) -> str:
        """The first sentence, which the list of commands wraps."""
        return (self.help or "").partition("\n")[0].partition(". ")[0].rstrip(".") + "."

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            name, text = param.get_help_record(ctx) or ("", "")
            if param.param_type_name == "argument":
                rows["Arguments"].append((_metavar(param), text))
            elif name:
                if type_name := re.search("<([^|>]*)>", name):
                    name = name.replace(type_name[0], TYPE_NAMES.get(type_name[1], _metavar(param)))
                rows["Options"].append((name.replace("<", "[").replace(">", "]"), text))  # of choices
        for title, items in rows.items():
            if items:
                with formatter.section(title):
                    formatter.write_dl(items)


def _metavar(param: Any) -> str:
    """How an argument or the value of an option is written; the name of the parameter, if nothing else is said."""
    name = str(param.name).strip("_").upper()
    is_optional = param.param_type_name == "argument" and not param.required
    return str(param.metavar or (f"[{name}]" if is_optional else name))


class _App(typer.Typer):
    """Its commands are `_Command`."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[CommandFunctionType], CommandFunctionType]:
        return super().command(name, cls=_Command, **options)


app = _App(
    cls=_Group, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)

RunArgument = Annotated[str, typer.Argument(help="Folder of a run, or name of a pretrained model.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
FormatOption = Annotated[
    Literal["text", "json", "jsonl", "csv"] | None,
    typer.Option(help="Output format (default: by the ending of --out, otherwise text)."),
]
OutOption = Annotated[Path | None, typer.Option(help="Write to this file instead of the terminal.")]
AllowDownloadOption = Annotated[
    bool, typer.Option("--allow-download", help="Download an external embedding model that the file or config names.")
]
ColumnsOption = Annotated[
    str | None, typer.Option(metavar="TEXT,LABEL", help="Columns of a .tsv file, such as 2,3 (default: 1,2).")
]
HeaderOption = Annotated[bool, typer.Option("--header", help="Skip the first line of a .tsv file.")]
SettingsOption = Annotated[
    str, typer.Option(help="Few-shot settings, such as 5w1s,20w1s (default: those of the run's config).")
]
EpisodesOption = Annotated[
    int | None, typer.Option(help="Episodes per setting of a few-shot run (default: the run's config).")
]


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"sightline {sightline.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Attention models that learn from little data and show what they attend to."""


def echo(message: str, *, err: bool = False) -> None:
    """Print without control characters of file names or data."""
    typer.echo(printable_lines(message), err=err)


def split_names(names: str) -> list[str]:
    """Names that are separated by commas."""
    return [name.strip() for name in names.split(",") if name.strip()]
