"""The command `sightline`: parse arguments, call, print. Heavy modules are imported by the command that needs them."""

import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, tee
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandFunctionType

import sightline

from .errors import SightlineError, SightlineWarning, check
from .files import stored_fingerprint
from .names import printable, printable_lines
from .output import aligned, output_format, record_writer
from .registry import TASKS

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
"""Read when torch is imported: threads that spin while they wait slow down a busy machine."""
SHOW_HELP = "Write a page (.html) that explains each prediction: evidence of a fitted classifier, attention of a run."
TYPE_NAMES = {"path": "PATH", "int": "N", "int range": "N", "float": "NUMBER"}
"""Names of types in the help of options; others are named after the option."""
MIN_SEPARATION = 0.7
"""AUROC of known against unknown images below which `fit` suggests another model."""


class _Group(TyperGroup):
    """Prints warnings, errors that a user can fix, and those of the file system on one line; others as a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", SightlineWarning)
                warnings.showwarning = lambda message, *_: _print(f"warning: {message}", err=True)
                return super().invoke(ctx)
        except BrokenPipeError:  # the reader of a pipe ended, which typer handles
            raise
        except SightlineError as error:
            _print(f"error: {error}", err=True)
            raise typer.Exit(2) from error
        except OSError as error:
            reason = error.strerror or str(error)
            _print(f"error: {error.filename}: {reason}" if error.filename else f"error: {reason}", err=True)
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


def _print(message: str, *, err: bool = False) -> None:
    """Print without control characters of file names or data."""
    typer.echo(printable_lines(message), err=err)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


@app.command()
def train(
    config: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG.yaml] [key=value]...",
            help="A YAML config (or the folder of a run) and changes to it, such as training.epochs=20. "
            f"task=NAME selects one of {', '.join(TASKS)}; without a config, it starts from a small preset. Without "
            "both, an image classifier is trained on the embedded glyphs.",
        ),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="RUN", help="Start from the weights of a run or of a pretrained model."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run, or extend it (training.epochs=N).")] = False,
) -> None:
    """Train a model and write it to a folder."""

    path, changes = _config_words(config)
    changes += [] if from_ is None else [f"start_from={from_}"]
    if not resume:
        _report_training_data(path, changes)
    run = sightline.runs.train(path, changes, resume=resume, command=sightline.runs.command_line())
    if run.is_main:
        _print(f"{run}\n{_after_training(run.folder, has_validation=bool(run.metrics))}")


def _report_training_data(path: str | None, changes: list[str]) -> None:
    """Print the findings about a folder of images before a model is trained on it."""
    from .data.images import glyphs
    from .training.distributed import is_main_process

    task_config = sightline.runs.build_config(sightline.runs.read_values(path, changes)[0])
    source, has_images = task_config.data.source, TASKS[task_config.task].has_images
    if not (has_images and source != glyphs.NAME and Path(source).expanduser().is_dir() and is_main_process()):
        return
    from .classifier.data_checks import check_training_data

    with sightline.runs.progress_bar() as progress:
        report = check_training_data(source, task_config.task, progress)
    if report:
        _print(report, err=True)


def _after_training(folder: Path, *, has_validation: bool) -> str:
    """What the validation metrics mean, and the command for those of the test set."""
    has_test = any(stored_fingerprint(folder, "test", key) for key in ("images", "pairs", "lines", "texts"))
    note = "the validation set selected these weights, so expect less on new data; "
    note += "`evaluate` uses the test set\n" if has_test else "these data have no test set\n"
    command = shlex.join(["sightline", "evaluate", str(folder)]) + ("" if has_test else " --data PATH")
    return f"{note if has_validation else ''}next: {command}"


@app.command()
def search(
    config: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG.yaml] [key=value]...", help="A config and changes to it, as in `sightline train`."
        ),
    ] = None,
    *,
    space: Annotated[
        str, typer.Option(help="YAML file of the config keys to vary and their values; or image_classification.")
    ],
    trials: Annotated[int, typer.Option(min=1, help="Number of trials, those of an interrupted search included.")] = 50,
    workers: Annotated[int, typer.Option(min=1, help="Trials to run at the same time, each in a process.")] = 1,
    storage: Annotated[
        str, typer.Option(help="URL of a database, or a journal file, that several machines share.")
    ] = "",
    sampler: Annotated[Literal["tpe", "random", "grid"], typer.Option(help="How settings are chosen.")] = "tpe",
    pruner: Annotated[
        Literal["halving", "none"] | None,
        typer.Option(help="halving stops bad trials early (default: halving; with --minimize none)."),
    ] = None,
    minimize: Annotated[
        Literal["parameters", "latency"] | None,
        typer.Option(help="A second objective besides the metric; the result is a Pareto front."),
    ] = None,
    in_trials: Annotated[
        list[str] | None,
        typer.Option(metavar="key=value", help="A change of the config in trials only, such as training.epochs=3."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the settings that are tried.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the search (default: searches/NAME).")] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="No further trial is started after this time; running ones end."),
    ] = None,
    train_best: Annotated[
        bool, typer.Option("--train-best", help="Train the best settings fully, as a run in the folder.")
    ] = False,
) -> None:
    """Search the settings of a config. The same command continues an interrupted search."""
    from .search.server import start_server

    if workers > 1:
        start_server()  # before this process imports torch, too
    from .search import FILES, search

    path, changes = _config_words(config)
    options: dict[str, Any] = {"trials": trials, "workers": workers, "storage": storage, "sampler": sampler}
    options |= {"pruner": pruner, "minimize": minimize, "in_trials": in_trials or (), "seed": seed, "out": out}
    command = sightline.runs.command_line()
    finished = search(path, space, changes, **options, timeout=timeout, train_best=train_best, command=command)
    written = [str(finished.folder / name) for name in FILES if (finished.folder / name).exists()]
    _print("\n".join([str(finished), f"wrote {', '.join(written)}", *finished.notes]))
    if finished.best_run is not None:
        _print(str(finished.best_run))


@app.command()
def search_report(
    study: Annotated[Path, typer.Argument(help="Folder of a search, also of a running one, or its trials.json.")],
    show: Annotated[
        Path | None, typer.Option(help="Write a page (.html) with charts of all trials and the importance of settings.")
    ] = None,
    storage: Annotated[str, typer.Option(help="The --storage of the search, if it had one.")] = "",
) -> None:
    """Describe which settings of a search mattered, and how sure that is."""
    from .search.report import SearchReport, read_results
    from .view.page import check_path

    if show is not None:
        check_path(show)
    report = SearchReport(read_results(study, storage))
    _print(str(report))
    if show is not None:
        _print(f"wrote {report.page().save(show)}")


def _config_words(words: list[str] | None) -> tuple[str | None, list[str]]:
    """The path of a config, if there is one, and the changes to it."""
    words = words or []
    path = words[0] if words and "=" not in words[0] else None
    return path, words[path is not None :]


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
        typer.Option(help="Write a page (.html) with confusion matrix and mistakes (file of `fit`)."),
    ] = None,
    format: FormatOption = None,
    out: OutOption = None,
    device: DeviceOption = "auto",
    allow_download: AllowDownloadOption = False,
) -> None:
    """Evaluate a trained model on its test set."""
    written = output_format(format, out)

    with record_writer(out, written) as writer:
        options: dict[str, Any] = {"settings": _split(settings)} if settings else {}
        options |= {} if episodes is None else {"episodes": episodes}
        options |= {} if show is None else {"show": show}
        evaluation = sightline.runs.evaluate(run, data, device, allow_download=allow_download, **options)
        writer.write({"run": run, **evaluation.to_dict()}, str(evaluation))
    if show is not None:
        _print(f"wrote {show}", err=written != "text")


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
    reject: Annotated[
        float | None,
        typer.Option(metavar="RATE", help="Rate of known images that may be rejected as unknown, such as 0.05."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="TEXT,LABEL", help="Columns of a .tsv file, such as 2,3 (default: 1,2).")
    ] = None,
    header: Annotated[bool, typer.Option("--header", help="Skip the first line of a .tsv file.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write a classifier that is no better than chance.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    device: DeviceOption = "auto",
    allow_download: AllowDownloadOption = False,
) -> None:
    """Fit a few-shot classifier to a few images per class. No weights are trained."""
    from .classifier.file import SUFFIX, check_path
    from .classifier.texts import COLUMNS, is_table, parse_columns, read_table

    path = check_path(out or Path(f"{Path(folder).resolve().name.removesuffix('.gz').removesuffix('.tsv')}{SUFFIX}"))
    fix = "pass --overwrite to replace it, or --out FILE for another"
    check(overwrite or not path.exists(), f"out must be a new file, got {str(path)!r}, which exists; {fix}")
    if is_table(folder):
        texts = read_table(folder, COLUMNS if columns is None else parse_columns(columns), header=header)
        _fit_texts(folder, texts, path, "minilm" if model == "auto" else model, device, reject=reject, force=force)
    else:
        check(columns is None and not header, "--columns and --header must be left out for images, got them")
        options: dict[str, Any] = {"reject": reject, "force": force, "allow_download": allow_download}
        _fit_images(folder, path, model, device, **options)


def _fit_images(
    folder: str, path: Path, model: str, device: str, *, reject: float | None, force: bool, allow_download: bool
) -> None:
    """Fit a classifier to images, and print what is known about it and about the images."""
    from .classifier import FewShotClassifier
    from .classifier.data_checks import check_data
    from .classifier.model_choice import KINDS, other_model
    from .data.images.checks import as_text
    from .training.device import choose_device

    with sightline.runs.progress_bar() as progress:
        classifier = FewShotClassifier.pretrained(model, allow_download=allow_download).to(choose_device(device))
        classifier.fit(folder, reject=reject, progress=progress)
    choice = classifier.model_choice
    model = model if choice is None else choice.model
    _print(f"{model}: {classifier.summary()}")
    if report := as_text(check_data(folder, classifier), folder):
        _print(report)
    other = None if choice is not None else other_model(folder, model)
    if choice is not None and choice.hint is not None:
        _print(choice.hint)
    elif other is not None and model in KINDS:
        _print(f"these images look like {KINDS[other]}, and {model} is for {KINDS[model]}; try --model {other}")
    elif classifier.calibration.auroc < MIN_SEPARATION:
        fix = "" if other is None else f", or try --model {other}, which is for {KINDS[other]}"
        _print(f"{model} separates these images poorly; add images of each class{fix}")
    if not force:
        fix = "" if other is None else f"try --model {other}, "
        classifier.check_above_chance(f"{fix}or write it anyway with --force")
    _print(f"wrote {classifier.save(path)}\nnext: sightline predict {shlex.quote(str(path))} IMAGE... --show page.html")


def _fit_texts(
    source: str, texts: Any, path: Path, model: str, device: str, *, reject: float | None, force: bool
) -> None:
    """Fit a classifier to texts by label, and print what is known about it and about the texts."""
    from .classifier import FewShotClassifier
    from .classifier.data_checks import check_texts
    from .data.images.checks import as_text
    from .models.text_embedders import is_text_model
    from .training.device import choose_device

    rule = "model must be a text encoder for a file of texts: minilm, the folder of one, or text:hub:owner/name"
    check(is_text_model(model), f"{rule}, got {model!r}")
    with sightline.runs.progress_bar() as progress:
        classifier = FewShotClassifier.pretrained(model).to(choose_device(device))
        classifier.fit(texts, reject=reject, progress=progress)
    _print(f"{model}: {classifier.summary()}")
    if report := as_text(check_texts(classifier), source):
        _print(report)
    if not force:
        classifier.check_above_chance("try another --model, or write it anyway with --force")
    _print(f"wrote {classifier.save(path)}")
    _print(f"next: sightline predict {shlex.quote(str(path))} TEXT... --show page.html")


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
    from .classifier import FewShotClassifier
    from .training.device import choose_device

    classifier = FewShotClassifier.load(file, allow_download=allow_download).to(choose_device(device))
    change(classifier)
    _print(f"{classifier.summary()}\nwrote {classifier.save(file)}")


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
    from .view.page import check_path

    if show is not None:
        check_path(show)
    written = output_format(format, out)
    with record_writer(out, "text" if written == "markdown" else written) as writer:
        options: dict[str, Any] = {"baselines": _split(with_), "settings": _split(settings), "episodes": episodes}
        result = sightline.runs.compare(names, data=data, device=device, **options)
        if written in ("text", "markdown"):
            writer.write({}, result.report(markdown=written == "markdown"))
        for record in () if written in ("text", "markdown") else result.run_records():
            writer.write(record, "")
    if show is not None:
        _print(f"wrote {result.page().save(show)}", err=written not in ("text", "markdown"))


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
    top: Annotated[int | None, typer.Option(min=1, help="Number of classes, words or translations per input.")] = None,
    beams: Annotated[
        int | None, typer.Option(min=1, help="Beams of a translation; 1 is greedy (default: the run's config).")
    ] = None,
    format: FormatOption = None,
    out: OutOption = None,
    device: DeviceOption = "auto",
    allow_download: AllowDownloadOption = False,
) -> None:
    """Predict with a trained model: classes, masked words or translations.

    Every input gives one record, in the order given. An input that cannot be used gives a record with an error, and
    the exit status is 2.
    """
    from .view.page import check_path

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
                _print(f"error: {prediction.error}", err=True)
            if prediction.error is None or written != "text" or out is not None:
                values = predictor.csv_values(prediction) if written == "csv" else prediction.to_dict()
                writer.write({"input": str(item), **values}, f"{name}: {prediction.summary(top)}")
    if explanations is not None and explanations.page is not None:
        _print(f"wrote {explanations.page.save(show)}", err=written != "text")
    if errors:
        raise typer.Exit(2)


def _predict_to_file(run: str, inputs: list[str], out: Path, format: str, **options: Any) -> None:
    from .batch_prediction import predict_to_file

    with sightline.runs.progress_bar() as progress:
        options |= {"progress": progress, "report": lambda line: _print(line, err=True)}
        result = predict_to_file(run, inputs, out, format, **options)
    if result is not None:  # in the main process
        _print(str(result), err=True)
        if result.errors:
            raise typer.Exit(2)


def _predicted(predictor: Any, inputs: Iterable[Any], *, quiet: bool, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Every input with its prediction; only the inputs of one batch are kept."""
    shown, read = tee(inputs)
    total = len(inputs) if isinstance(inputs, list) else None
    with sightline.runs.progress_bar(quiet) as progress:
        yield from zip(shown, predictor.stream(read, progress=progress, total=total, **options), strict=False)


def _explain(predictor: Any, inputs: Iterable[Any], **options: Any) -> Any:
    items = inputs if isinstance(inputs, list) else list(islice(inputs, predictor.max_page_inputs + 1))
    with sightline.runs.progress_bar() as progress:
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

    _print(str(sightline.runs.export(run, out, format=format, allow_download=allow_download)))


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
        _print(f"wrote {path}")
    if not figures.files:
        _print(f"nothing was written to {figures.folder}; give an input to draw the attention on it")
    for name, reason in figures.skipped.items():
        _print(f"no {name}: {reason}")


@app.command()
def data(
    name: Annotated[str, typer.Argument(help="Name (glyphs) or path of a data set.")] = "glyphs",
    image_size: Annotated[int | None, typer.Option(help="Side to resize every image to.")] = None,
    show: Annotated[
        Path | None, typer.Option(help="Write a picture (.png) with examples of each class, or with captions.")
    ] = None,
) -> None:
    """Describe a data set of images, and check it; or describe captions."""
    from .classifier.data_checks import check_data
    from .data.captions import summary as captions
    from .data.captions.formats import has_captions, load_captions
    from .data.images.checks import as_text
    from .data.images.loading import load
    from .data.images.summary import contact_sheet, summarize

    if has_captions(name):
        check(image_size is None, f"image_size must be left out for captions, got {image_size}")
        captioned = load_captions(name)
        _print(captions.summarize(captioned, name))
        if show is not None:
            _write_picture(captions.contact_sheet(captioned.train), show)
        return
    splits = load(name, size=image_size, class_disjoint=True)
    _print(str(summarize(splits)))
    with sightline.runs.progress_bar() as progress:
        report = as_text(check_data(name, progress=progress), name)
    if report:
        _print(f"\n{report}")
    if show is not None:
        _write_picture(contact_sheet(splits.train), show)


def _write_picture(picture: Any, path: Path) -> None:
    from .files import atomic_write

    with atomic_write(path) as part:
        picture.save(part, "png")
    _print(f"wrote {path}")


@app.command()
def fetch(
    name: Annotated[str | None, typer.Argument(help="Name of a public data set; without it, they are listed.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the data; the configs use data.")] = Path("data"),
    mirror: Annotated[
        str | None, typer.Option(help="A folder or address with copies of the files, used instead of theirs.")
    ] = None,
) -> None:
    """Download a public data set, check it, and arrange it as the configs expect."""
    from .data.fetching.fetch import fetch, summary

    if name is None:
        _print(summary())
        return
    with sightline.runs.progress_bar() as progress:
        written = fetch(name, out, mirror=mirror, progress=progress, report=_print)
    if not written:
        _print(f"{name} is in {out}; remove it to fetch it again")


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
) -> None:
    """Serve models and few-shot classifiers: a page for the browser, and a JSON API."""
    try:
        from .web.server import serve as run_server
        from .web.settings import Settings
    except ImportError as error:
        missing = getattr(error, "name", None)
        raise SightlineError(f"serve needs {missing}, which is not installed: pip install 'sightline[web]'") from error

    proxies = tuple(forwarded_allow_ips.replace(",", " ").split())
    settings = Settings(tuple(models or ()), host, port, workers, store, token, tuple(allow_host or ()), proxies)
    run_server(settings, _print)


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
    from . import shipping

    options: dict[str, Any] = {"license": license, "command": command, "data": data, "out": out, "device": device}
    with sightline.runs.progress_bar() as progress:
        folder = shipping.ship(run, name, progress=progress, **options)
    _print(f"wrote {folder}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the files it writes.")] = Path("demo"),
    model: Annotated[str, typer.Option(help="A pretrained model, or the folder of a few-shot run.")] = "glyphs",
) -> None:
    """Fit a classifier to a few drawings, explain it, and translate sentences."""
    from .demo import run

    run(out, model)
