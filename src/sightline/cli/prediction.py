"""Commands that predict, export models and show their attention."""

import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice, tee
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import sightline

from ..errors import check
from ..names import printable
from ..output import output_format, record_writer
from ..progress import progress_bar
from .application import AllowDownloadOption, DeviceOption, FormatOption, OutOption, RunArgument, app, echo

SHOW_HELP = "Write a page (.html) that explains each prediction: evidence of a fitted classifier, attention of a run."


@app.command()
def predict(
    run: Annotated[str, typer.Argument(help="Folder of a run, name of a pretrained model, or file of `fit`.")],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="Images or folders of images; or sentences, .txt files of sentences, or - for standard input.",
        ),
    ],
    show: Annotated[Path | None, typer.Option(help=SHOW_HELP)] = None,
    top: Annotated[
        int | None,
        typer.Option(min=1, help="Classes, words, translations or captions per input. CSV and JSON have all classes."),
    ] = None,
    beams: Annotated[
        int | None,
        typer.Option(min=1, help="Beams of a translation or caption; 1 is greedy (default: the run's config)."),
    ] = None,
    format: FormatOption = None,
    out: OutOption = None,
    device: DeviceOption = "auto",
    allow_download: AllowDownloadOption = False,
) -> None:
    """Predict with a trained model: classes, masked words, translations or captions.

    Every input gives one record, in the order given. An input that cannot be used gives a record with an error, which
    the page lists too, and the exit status is 2.
    """
    from ..view.page import check_path

    if show is not None:
        check_path(show)
    options: dict[str, Any] = {} if beams is None else {"num_beams": beams}
    written = output_format(format, out)
    if out is not None and show is None and (out.is_file() or not out.exists()):
        _predict_to_file(run, inputs, out, written, top=top, device=device, allow_download=allow_download, **options)
        return
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    fix = "pass --out FILE, and no --show"
    check(world_size == 1, f"predictions of several processes must be written to a file, got none; {fix}")
    predictor = sightline.runs.load(run, device=device, allow_download=allow_download)
    predictor.check_predict_options(run, options)
    predictor.check_ready()
    items = predictor.parse_inputs(inputs)
    options |= {"top_k": top}
    explanations = None if show is None else _explain(predictor, items, **options)
    has_terminal = out is None and sys.stdout.isatty()  # the predictions themselves show the progress
    pairs = explanations.pairs() if explanations else _predicted(predictor, items, quiet=has_terminal, **options)
    names, errors = predictor.columns(top), 0
    columns = None if names is None else ["input", *names, "error"]
    with record_writer(out, written, columns, with_errors=True) as writer:
        for item, prediction in pairs:
            name = printable(str(item))
            if prediction.error is not None:
                errors += 1
                echo(f"error: {prediction.error}", err=True)
            if prediction.error is None or written != "text" or out is not None:
                values = predictor.csv_values(prediction) if written == "csv" else prediction.to_dict()
                writer.write({"input": str(item), **values}, f"{name}: {prediction.summary(top)}")
    if show is not None and explanations is not None:
        _save_page(explanations.page, show, err=written != "text")
    if errors:
        raise typer.Exit(2)


def _save_page(page: Any, path: Path, *, err: bool) -> None:
    """Write a page, or say why there is none."""
    if page is None:
        echo(f"{path} is not written: there is no prediction to show", err=True)
    else:
        echo(f"wrote {page.save(path)}", err=err)


def _predict_to_file(run: str, inputs: list[str], out: Path, format: str, **options: Any) -> None:
    from ..batch_prediction import predict_to_file

    with progress_bar() as progress:
        options |= {"progress": progress, "report": lambda line: echo(line, err=True)}
        result = predict_to_file(run, inputs, out, format, **options)
    if result is not None:  # in the main process
        echo(str(result), err=True)
        if result.errors:
            raise typer.Exit(2)


def _predicted(predictor: Any, inputs: Iterable[Any], *, quiet: bool, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Every input with its prediction; only the inputs of one batch are kept."""
    shown, read = tee(inputs)
    total = len(inputs) if isinstance(inputs, list) else None
    with progress_bar(quiet) as progress:
        yield from zip(shown, predictor.stream(read, progress=progress, total=total, **options), strict=False)


def _explain(predictor: Any, inputs: Iterable[Any], **options: Any) -> Any:
    items = inputs if isinstance(inputs, list) else list(islice(inputs, predictor.max_page_inputs + 1))
    with progress_bar() as progress:
        return predictor.explain(items, progress=progress, **options)


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="Folder of a run, name of a pretrained model, or file of `fit`.")],
    format: Annotated[Literal["onnx", "torch"], typer.Option(help="ONNX, or a program of torch.export.")] = "onnx",
    out: Annotated[
        Path | None, typer.Option(help="Folder to write (default: export/ in the run, or NAME-export/).")
    ] = None,
    allow_download: AllowDownloadOption = False,
) -> None:
    """Export a model to files that need no Sightline, and check them."""

    echo(str(sightline.runs.export(run, out, format=format, allow_download=allow_download)))


@app.command()
def show(
    run: RunArgument,
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="[INPUT]...", help="Images or sentences to draw the attention on.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the figures (default: figures/ in the run, or here).")
    ] = None,
    format: Annotated[Literal["png", "svg"], typer.Option(help="Format of the figures.")] = "png",
    device: DeviceOption = "auto",
) -> None:
    """Draw figures of a trained model: parameters, training curves and attention."""

    predictor = sightline.runs.load(run, device=device)
    figures = predictor.show(list(predictor.parse_inputs(inputs)) if inputs else [], out, format=format)
    for path in figures.files:
        echo(f"wrote {path}")
    if not figures.files:
        echo(f"nothing was written to {figures.folder}; give an input to draw the attention on it")
    for name, reason in figures.skipped.items():
        echo(f"no {name}: {reason}")
    for _, error in figures.failures:
        echo(f"error: {error}", err=True)
    if figures.failures:
        raise typer.Exit(2)
