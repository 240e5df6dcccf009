"""Commands that train models and search hyperparameters."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import sightline

from ..files import stored_fingerprint
from ..progress import progress_bar
from ..registry import TASKS
from .application import app, echo


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
    run = sightline.runs.train(path, changes, resume=resume, command=command_line())
    if run.is_main:
        echo(f"{run}\n{_after_training(run.folder, has_validation=bool(run.metrics))}")


def command_line() -> str:
    """The command of this process, quoted for a shell."""
    from ..training.distributed import rank_and_world_size

    words = ["sightline", *sys.argv[1:]]
    if (world_size := rank_and_world_size()[1]) > 1:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
        words = ["torchrun", "--nnodes", str(world_size // local), "--nproc-per-node", str(local), "-m", *words]
    return shlex.join(words)


def _report_training_data(path: str | None, changes: list[str]) -> None:
    """Print the findings about a folder of images before a model is trained on it."""
    from ..data.images import glyphs
    from ..run_config import resolve_config
    from ..training.distributed import is_main_process

    task_config = resolve_config(path, changes)[0]
    source, has_images = task_config.data.source, TASKS[task_config.task].has_images
    if not (has_images and source != glyphs.NAME and Path(source).expanduser().is_dir() and is_main_process()):
        return
    from ..classifier.data_checks import check_training_data

    with progress_bar() as progress:
        report = check_training_data(source, task_config.task, progress)
    if report:
        echo(report, err=True)


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
    from ..search.server import start_server

    if workers > 1:
        start_server()  # before this process imports torch, too
    from ..search import FILES, search

    path, changes = _config_words(config)
    options: dict[str, Any] = {"trials": trials, "workers": workers, "storage": storage, "sampler": sampler}
    options |= {"pruner": pruner, "minimize": minimize, "in_trials": in_trials or (), "seed": seed, "out": out}
    command = command_line()
    finished = search(path, space, changes, **options, timeout=timeout, train_best=train_best, command=command)
    written = [str(finished.folder / name) for name in FILES if (finished.folder / name).exists()]
    echo("\n".join([str(finished), f"wrote {', '.join(written)}", *finished.notes]))
    if finished.best_run is not None:
        echo(str(finished.best_run))


@app.command()
def search_report(
    study: Annotated[Path, typer.Argument(help="Folder of a search, also of a running one, or its trials.json.")],
    show: Annotated[
        Path | None, typer.Option(help="Write a page (.html) with charts of all trials and the importance of settings.")
    ] = None,
    storage: Annotated[str, typer.Option(help="The --storage of the search, if it had one.")] = "",
) -> None:
    """Describe which settings of a search mattered, and how sure that is."""
    from ..search.report import SearchReport, read_results
    from ..view.page import check_path

    if show is not None:
        check_path(show)
    report = SearchReport(read_results(study, storage))
    echo(str(report))
    if show is not None:
        echo(f"wrote {report.page().save(show)}")


def _config_words(words: list[str] | None) -> tuple[str | None, list[str]]:
    """The path of a config, if there is one, and the changes to it."""
    words = words or []
    path = words[0] if words and "=" not in words[0] else None
    return path, words[path is not None :]
