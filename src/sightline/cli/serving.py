"""Commands that serve models, ship them and show a demo."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..errors import SightlineError
from ..progress import progress_bar
from .application import DeviceOption, app, echo


@app.command()
def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|FILE]...", help="Runs, pretrained models or files of `fit` (default: the pretrained ones)."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to serve on. Beyond this machine, a token is required.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to serve on; 0 for a free one.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
    store: Annotated[
        str, typer.Option(help="File or database URL of the classifiers (default: ~/.sightline/classifiers.sqlite).")
    ] = "",
    token: Annotated[
        str | None, typer.Option(envvar="SIGHTLINE_TOKEN", help="What requests must carry (16 characters or more).")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name of this server in the address; can be repeated.")
    ] = None,
    forwarded_allow_ips: Annotated[
        str, typer.Option(help="Addresses of proxies with TLS in front of this server, separated by commas.")
    ] = "",
    log_format: Annotated[
        Literal["auto", "text", "json"], typer.Option(help="Format of the log; auto is text on a terminal, else JSON.")
    ] = "auto",
) -> None:
    """Serve models and few-shot classifiers: a page for the browser, and a JSON API."""
    try:
        from ..web.server import serve as run_server
        from ..web.settings import Settings
    except ImportError as error:
        missing = getattr(error, "name", None)
        raise SightlineError(f"serve needs {missing}, which is not installed: pip install 'sightline[web]'") from error

    proxies = tuple(forwarded_allow_ips.replace(",", " ").split())
    hosts = tuple(allow_host or ())
    settings = Settings(tuple(models or ()), host, port, workers, store, token, hosts, proxies, log_format)
    run_server(settings, echo)


@app.command(hidden=True)
def ship(
    run: Annotated[Path, typer.Argument(help="Folder of an evaluated run.")],
    name: Annotated[str, typer.Argument(help="Name of the pretrained model.")],
    license: Annotated[str, typer.Option(help="License of the data and their owner, such as 'CC BY 4.0, Jane Doe'.")],
    command: Annotated[str | None, typer.Option(help="Training command (default: that of the model card).")] = None,
    data: Annotated[
        str | None, typer.Option(help="Data to compare half against single precision on (default: the run's own).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Parent folder (default: the package's zoo).")] = None,
    device: DeviceOption = "auto",
) -> None:
    """Convert a run to a pretrained model: half precision, with a model card."""
    from .. import shipping

    options: dict[str, Any] = {"license": license, "command": command, "data": data, "out": out, "device": device}
    with progress_bar() as progress:
        folder = shipping.ship(run, name, progress=progress, **options)
    echo(f"wrote {folder}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the files it writes.")] = Path("demo"),
    model: Annotated[str, typer.Option(help="A pretrained model, or the folder of a few-shot run.")] = "glyphs",
) -> None:
    """Fit a classifier to a few drawings, explain it, and translate sentences."""
    from ..demo import run

    run(out, model)
