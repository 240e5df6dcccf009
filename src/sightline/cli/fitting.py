"""Commands that fit few-shot classifiers and change them."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import sightline

from ..errors import check
from ..output import aligned, output_format, record_writer
from ..progress import progress_bar
from .application import (
    AllowDownloadOption,
    ColumnsOption,
    DeviceOption,
    FormatOption,
    HeaderOption,
    OutOption,
    app,
    echo,
)

MIN_SEPARATION = 0.7
"""AUROC of known against unknown images below which `fit` suggests another model."""
JSON_ONLY = frozenset({"calibration"})
"""Values of `info` that text output leaves out: parameters in units of logits. Its `rejection` says what they mean."""


@app.command()
def fit(
    folder: Annotated[
        str,
        typer.Argument(help="A folder with one folder of images per class; or a .tsv file of texts and labels."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The .sightline file to write (default: named after the folder).")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="A pretrained model, the folder of a few-shot run, or an embedder; auto chooses a pretrained one."
        ),
    ] = "auto",
    method: Annotated[
        str,
        typer.Option(help="head, prototypes, ridge, spatial, logistic, blend; auto chooses by held-out examples."),
    ] = "auto",
    reject: Annotated[
        float | None,
        typer.Option(metavar="RATE", help="Rate of known images that may be rejected as unknown, such as 0.05."),
    ] = None,
    columns: ColumnsOption = None,
    header: HeaderOption = False,
    force: Annotated[bool, typer.Option("--force", help="Write a classifier that is no better than chance.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    device: DeviceOption = "auto",
    allow_download: AllowDownloadOption = False,
) -> None:
    """Fit a few-shot classifier to a few images per class. No weights are trained."""
    from ..classifier.file import SUFFIX, check_path
    from ..classifier.texts import COLUMNS, is_table, parse_columns, read_table

    path = check_path(out or Path(f"{Path(folder).resolve().name.removesuffix('.gz').removesuffix('.tsv')}{SUFFIX}"))
    fix = "pass --overwrite to replace it, or --out FILE for another"
    check(overwrite or not path.exists(), f"out must be a new file, got {str(path)!r}, which exists; {fix}")
    options: dict[str, Any] = {"method": method, "reject": reject}
    if is_table(folder):
        texts = read_table(folder, COLUMNS if columns is None else parse_columns(columns), header=header)
        _fit_texts(folder, texts, path, "minilm" if model == "auto" else model, device, options, force=force)
    else:
        check(columns is None and not header, "--columns and --header must be left out for images, got them")
        _fit_images(folder, path, model, device, options, force=force, allow_download=allow_download)


def _fit_images(
    folder: str, path: Path, model: str, device: str, options: dict[str, Any], *, force: bool, allow_download: bool
) -> None:
    """Fit a classifier to images, and print what is known about it and about the images."""
    from ..classifier import FewShotClassifier
    from ..classifier.data_checks import check_data, unused_splits
    from ..classifier.model_choice import KINDS, other_model
    from ..data.images.checks import as_text
    from ..training.device import choose_device

    with progress_bar() as progress:
        classifier = FewShotClassifier.pretrained(model, allow_download=allow_download).to(choose_device(device))
        classifier.fit(folder, progress=progress, **options)
    choice = classifier.model_choice
    model = model if choice is None else choice.model
    hint = None if choice is None else choice.hint
    if hint is not None:
        echo(hint)
    echo(f"{model}: {classifier.summary()}")
    if report := as_text(check_data(folder, classifier), folder):
        echo(report)
    if "unknown" in classifier.classes:
        echo("the class 'unknown' reads like an image of no class in predictions; rename its folder")
    if unused := unused_splits(folder):
        counts = ", ".join(f"{name} {count:,}" for name, count in unused.items())
        echo(f"only the images of the split train are examples; left out: {counts}")
    other = None if choice is not None else other_model(folder, model)
    if other is not None and model in KINDS:
        echo(f"these images look like {KINDS[other]}, and {model} is for {KINDS[model]}; try --model {other}")
    elif hint is None and classifier.calibration.auroc < MIN_SEPARATION:
        fix = "" if other is None else f", or try --model {other}, which is for {KINDS[other]}"
        echo(f"{model} separates these images poorly; add images of each class{fix}")
    if not force:
        fix = "" if other is None else f"try --model {other}, "
        classifier.check_above_chance(f"{fix}or write it anyway with --force")
    echo(f"wrote {classifier.save(path)}\nnext: sightline predict {shlex.quote(str(path))} IMAGE... --show page.html")


def _fit_texts(
    source: str, texts: Any, path: Path, model: str, device: str, options: dict[str, Any], *, force: bool
) -> None:
    """Fit a classifier to texts by label, and print what is known about it and about the texts."""
    from ..classifier import FewShotClassifier
    from ..classifier.data_checks import check_texts
    from ..data.images.checks import as_text
    from ..models.text_embedders import is_text_model
    from ..training.device import choose_device

    rule = "model must be a text encoder for a file of texts: minilm, the folder of one, or text:hub:owner/name"
    check(is_text_model(model), f"{rule}, got {model!r}")
    with progress_bar() as progress:
        classifier = FewShotClassifier.pretrained(model).to(choose_device(device))
        classifier.fit(texts, progress=progress, **options)
    echo(f"{model}: {classifier.summary()}")
    if report := as_text(check_texts(classifier), source):
        echo(report)
    if not force:
        classifier.check_above_chance("try another --model, or write it anyway with --force")
    echo(f"wrote {classifier.save(path)}")
    echo(f"next: sightline predict {shlex.quote(str(path))} TEXT... --show page.html")


@app.command()
def add(
    file: Annotated[Path, typer.Argument(help="File of `fit`, which is changed.")],
    label: Annotated[str, typer.Argument(help="A class, new or existing.")],
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="Images, or folders of images; or texts.")],
    device: DeviceOption = "auto",
    allow_download: AllowDownloadOption = False,
) -> None:
    """Add images of a class to a fitted classifier."""

    _change(
        file, device, allow_download, lambda classifier: classifier.add(label, list(classifier.parse_inputs(images)))
    )


@app.command()
def remove(
    file: Annotated[Path, typer.Argument(help="File of `fit`, which is changed.")],
    label: Annotated[str, typer.Argument(help="The class to remove.")],
    device: DeviceOption = "auto",
    allow_download: AllowDownloadOption = False,
) -> None:
    """Remove a class from a fitted classifier."""

    _change(file, device, allow_download, lambda classifier: classifier.remove(label))


def _change(file: Path, device: str, allow_download: bool, change: Callable[[Any], Any]) -> None:
    """Change a fitted classifier in its file."""
    from ..classifier import FewShotClassifier
    from ..training.device import choose_device

    classifier = FewShotClassifier.load(file, allow_download=allow_download).to(choose_device(device))
    change(classifier)
    echo(f"{classifier.summary()}\nwrote {classifier.save(file)}")


@app.command()
def info(
    run: Annotated[str, typer.Argument(help="Folder of a run, name of a pretrained model, or file of `fit`.")],
    format: FormatOption = None,
    out: OutOption = None,
) -> None:
    """Describe a model: its classes, calibration, size, training and versions."""

    with record_writer(out, output_format(format, out)) as writer:
        values = sightline.runs.info(run)
        writer.write(values, "\n".join(_info_lines(values)))


def _info_lines(values: dict[str, Any]) -> list[str]:
    """One line for each value; the entries of a mapping are indented."""
    lines = []
    for name, value in values.items():
        if name in JSON_ONLY:
            continue
        title = name.replace("_", " ")
        if isinstance(value, dict):
            items = {key: item for key, item in value.items() if item is not None}
            shown = {key: f"{item:.4g}" if isinstance(item, float) else str(item) for key, item in items.items()}
            lines += [title, *(f"  {line}" for line in aligned([[key, item] for key, item in shown.items()]))]
        elif value is not None:
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else text
            lines.append(f"{title:<17}  {value:.1f}" if isinstance(value, float) else f"{title:<17}  {text}")
    return lines
