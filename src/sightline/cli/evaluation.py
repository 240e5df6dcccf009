"""Commands that evaluate and compare models."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import sightline

from ..errors import check
from ..output import output_format, record_writer
from .application import (
    AllowDownloadOption,
    ColumnsOption,
    DeviceOption,
    EpisodesOption,
    FormatOption,
    HeaderOption,
    OutOption,
    SettingsOption,
    app,
    echo,
    split_names,
)


@app.command()
def evaluate(
    run: Annotated[str, typer.Argument(help="Folder of a run, name of a pretrained model, or file of `fit`.")],
    data: Annotated[
        str | None,
        typer.Option(help="Data set to evaluate on (default: the run's own; required for a file of `fit`)."),
    ] = None,
    settings: SettingsOption = "",
    episodes: EpisodesOption = None,
    show: Annotated[
        Path | None,
        typer.Option(
            help="Write a page (.html): confusion matrix and mistakes (file of `fit`), or examples (captioner)."
        ),
    ] = None,
    columns: ColumnsOption = None,
    header: HeaderOption = False,
    format: FormatOption = None,
    out: OutOption = None,
    device: DeviceOption = "auto",
    allow_download: AllowDownloadOption = False,
) -> None:
    """Evaluate a trained model on its test set."""
    written = output_format(format, out)
    labeled: Any = data
    if columns is not None or header:
        from ..classifier.texts import COLUMNS, parse_columns, read_table

        is_table = data is not None and run.endswith(sightline.runs.CLASSIFIER)
        rule = "--columns and --header must be left out without a file of `fit` and --data"
        check(is_table, f"{rule}, got them for {run}")
        labeled = read_table(str(data), COLUMNS if columns is None else parse_columns(columns), header=header)
    with record_writer(out, written) as writer:
        options: dict[str, Any] = {"settings": split_names(settings)} if settings else {}
        options |= {} if episodes is None else {"episodes": episodes}
        options |= {} if show is None else {"show": show}
        evaluation = sightline.runs.evaluate(run, labeled, device, allow_download=allow_download, **options)
        writer.write({"run": run, **evaluation.to_dict()}, str(evaluation))
    if show is not None:
        echo(f"wrote {show}", err=written != "text")


@app.command()
def compare(
    names: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Folders of runs, or names of pretrained models.")
    ],
    data: Annotated[str | None, typer.Option(help="Evaluate on this data set instead of the runs' own.")] = None,
    with_: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="LIST",
            help="Baselines on the first run's embeddings, such as protonet,nearest,svm.",
        ),
    ] = "",
    settings: SettingsOption = "",
    episodes: EpisodesOption = None,
    format: Annotated[
        Literal["text", "markdown", "json", "jsonl", "csv"] | None,
        typer.Option(help="Output format (default: by the ending of --out, otherwise text)."),
    ] = None,
    show: Annotated[Path | None, typer.Option(help="Write a page (.html) with tables and learning curves.")] = None,
    out: OutOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Evaluate runs on identical data and report paired differences."""
    from ..view.page import check_path

    if show is not None:
        check_path(show)
    written = output_format(format, out)
    with record_writer(out, "text" if written == "markdown" else written) as writer:
        options: dict[str, Any] = {
            "baselines": split_names(with_),
            "settings": split_names(settings),
            "episodes": episodes,
        }
        result = sightline.runs.compare(names, data=data, device=device, **options)
        if written in ("text", "markdown"):
            writer.write({}, result.report(markdown=written == "markdown"))
        for record in () if written in ("text", "markdown") else result.run_records():
            writer.write(record, "")
    if show is not None:
        echo(f"wrote {result.page().save(show)}", err=written not in ("text", "markdown"))
