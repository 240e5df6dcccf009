"""Commands that look at data sets and download them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import check
from ..progress import progress_bar
from .application import app, echo


@app.command()
def data(
    name: Annotated[str, typer.Argument(help="Name (glyphs) or path of a data set.")] = "glyphs",
    image_size: Annotated[int | None, typer.Option(help="Side to resize every image to.")] = None,
    show: Annotated[
        Path | None, typer.Option(help="Write a picture (.png) with examples of each class, or with captions.")
    ] = None,
) -> None:
    """Describe a data set of images, and check it; or describe captions."""
    from ..classifier.data_checks import check_data
    from ..data.captions import summary as captions
    from ..data.captions.formats import has_captions, load_captions
    from ..data.images.checks import as_text
    from ..data.images.loading import load
    from ..data.images.summary import contact_sheet, summarize

    if has_captions(name):
        check(image_size is None, f"image_size must be left out for captions, got {image_size}")
        captioned = load_captions(name)
        echo(captions.summarize(captioned, name))
        if show is not None:
            _write_picture(captions.contact_sheet(captioned.train), show)
        return
    splits = load(name, size=image_size, class_disjoint=True)
    echo(str(summarize(splits)))
    with progress_bar() as progress:
        report = as_text(check_data(name, progress=progress), name)
    if report:
        echo(f"\n{report}")
    if show is not None:
        _write_picture(contact_sheet(splits.train), show)


def _write_picture(picture: Any, path: Path) -> None:
    from ..files import atomic_write

    with atomic_write(path) as part:
        picture.save(part, "png")
    echo(f"wrote {path}")


@app.command()
def fetch(
    name: Annotated[str | None, typer.Argument(help="Name of a public data set; without it, they are listed.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the data; the configs use data.")] = Path("data"),
    mirror: Annotated[
        str | None, typer.Option(help="A folder or address with copies of the files, used instead of theirs.")
    ] = None,
) -> None:
    """Download a public data set, check it, and arrange it as the configs expect."""
    from ..data.fetching.fetch import fetch, summary

    if name is None:
        echo(summary())
        return
    with progress_bar() as progress:
        written = fetch(name, out, mirror=mirror, progress=progress, report=echo)
    if not written:
        echo(f"{name} is in {out}; remove it to fetch it again")
