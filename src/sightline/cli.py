"""The command `sightline`. Verbs only: parse, call, print; heavy imports wait until a verb needs them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer

from .names import printable, shortened

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
"""Read when torch is loaded: threads that spin while they wait make an idle machine a little faster, and bring a busy
one to a halt."""
ANSWERED_AT_ONCE = 1024
"""Inputs of `predict`; an answer keeps its image, and these are let go before the next."""
LOST = 0.7
"""A model that tells fewer of its pairs apart is the wrong one to begin with; the half is chance."""
DEVICES = "auto, cpu, cuda or cuda:N."
RUN = "The folder of a run, or the name of a model that ships."

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


def _listed(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


@contextmanager
def _plain_errors() -> Iterator[None]:
    """What a user did or a disk refused is told in one line; only our own mistakes show a stack trace."""
    try:
        yield
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    except OSError as error:
        reason = error.strerror or error
        typer.echo(f"error: {error.filename}: {reason}" if error.filename else f"error: {reason}", err=True)
        misnamed = isinstance(error, FileExistsError | NotADirectoryError)
        raise typer.Exit(2 if misnamed else 1) from error
    except KeyboardInterrupt as stop:
        raise typer.Exit(getattr(stop, "exit_code", 130)) from stop


@app.command()
def train(
    recipe: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG.yaml] [key=value]...",
            help="A recipe in YAML (or the folder of a run) and changes to it, such as training.epochs=20. "
            "Without a recipe, an image classifier learns the embedded glyphs.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")] = False,
) -> None:
    """Train a model by a recipe; what comes out is a folder."""
    from .runs import command_line
    from .runs import train as run

    with _plain_errors():
        words = recipe or []
        path = words[0] if words and "=" not in words[0] else None
        done = run(path, words[path is not None :], resume=resume, command=command_line())
        if done.leads:
            typer.echo(f"{done}\nnext: sightline evaluate {done.folder}")


@app.command()
def evaluate(
    run: Annotated[str, typer.Argument(help=RUN, show_default=False)],
    data: Annotated[str | None, typer.Option(help="Other data to judge by, of the same classes.")] = None,
    settings: Annotated[str, typer.Option(help="Of a few-shot run, such as 5w1s,20w1s; its own if not given.")] = "",
    episodes: Annotated[int | None, typer.Option(help="Of each setting; as many as its recipe says.")] = None,
    device: Annotated[str, typer.Option(help=DEVICES)] = "auto",
) -> None:
    """Judge a trained model on the test set of its data."""
    from .runs import evaluate as judge

    with _plain_errors():
        score = judge(run, data, device, settings=_listed(settings), episodes=episodes)
        for line in score.lines():
            typer.echo(line)


@app.command()
def fit(
    folder: Annotated[str, typer.Argument(help="A folder with one folder of images for each class.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write, .sightline; named after the folder if not given.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="What to begin with: a model that ships, the folder of a few-shot run, or an embedder.")
    ] = "glyphs",
    device: Annotated[str, typer.Option(help=DEVICES)] = "auto",
) -> None:
    """Make a classifier from a few images of each class; nothing is trained."""
    from .classifier import FewShotClassifier
    from .classifier.file import SUFFIX, check_path
    from .runs import reading
    from .training.device import choose_device

    with _plain_errors():
        path = check_path(out or Path(f"{Path(folder).resolve().name}{SUFFIX}"))
        with reading() as progress:
            classifier = FewShotClassifier.pretrained(model).to(choose_device(device)).fit(folder, progress=progress)
        typer.echo(f"{model}: {classifier.summary()}")
        if model == "glyphs" and classifier.confidence.separation < LOST:
            typer.echo("glyphs knows drawings, and makes little of these images; for photos: --model photos")
        typer.echo(f"wrote {classifier.save(path)}\nnext: sightline predict {path} IMAGE... --show page.html")


@app.command()
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Folders of runs, or names of models that ship.", show_default=False),
    ],
    data: Annotated[str | None, typer.Option(help="Other data to judge by, such as images of your own.")] = None,
    with_: Annotated[
        str, typer.Option("--with", help="Baselines on the first run's embeddings, such as protonet,nearest,svm.")
    ] = "",
    settings: Annotated[str, typer.Option(help="Such as 5w1s,20w1s; those of the first run if not given.")] = "",
    episodes: Annotated[int | None, typer.Option(help="Of each setting; as many as the first run has.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table here, as Markdown.")] = None,
    device: Annotated[str, typer.Option(help=DEVICES)] = "auto",
) -> None:
    """Judge few-shot models on the same episodes, and say how far each is from the first."""
    from .comparison import compare as judge
    from .files import atomic_write

    with _plain_errors():
        baselines, wanted = _listed(with_), _listed(settings)
        found = judge(runs, data=data, baselines=baselines, settings=wanted, episodes=episodes, device=device)
        for line in found.lines():
            typer.echo(line)
        if out is not None:
            with atomic_write(out) as part:
                part.write_text(found.markdown(), encoding="utf-8")
            typer.echo(f"wrote {out}")


@app.command()
def predict(
    run: Annotated[str, typer.Argument(help=f"{RUN[:-1]}, or a file of `fit`.", show_default=False)],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="Images or folders of them; sentences, .txt files of them, or - for what comes in.",
            show_default=False,
        ),
    ],
    show: Annotated[Path | None, typer.Option(help="Write a page of what it looked at.")] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Answers to name for each input.")] = None,
    device: Annotated[str, typer.Option(help=DEVICES)] = "auto",
) -> None:
    """Say what is on images, or translate sentences, and how sure it is."""
    from .errors import check_page_size
    from .runs import load
    from .training.device import choose_device
    from .view.page import check_path

    with _plain_errors():
        if show is not None:
            check_path(show)
        predictor = load(run).to(choose_device(device))
        given = predictor.read(inputs)
        if show is not None:
            check_page_size(inputs=len(given))
        problems: list[str] = []
        for start in range(0, len(given), ANSWERED_AT_ONCE):
            problems += _tell(predictor, given[start : start + ANSWERED_AT_ONCE], top, show)
        for problem in problems:
            typer.echo(f"error: {problem}", err=True)
        if problems:
            raise typer.Exit(2)


def _tell(predictor: Any, given: list[Any], top: int | None, show: Path | None) -> list[str]:
    """Print the answers to these, and write the page of them; what is wrong with others comes back."""
    from .runs import reading

    ask = predictor.predict if show is None else predictor.look
    known = signature(ask).parameters  # texts are searched for; reasons take their time
    problems: list[str] = []
    with reading() as progress:
        how = {name: value for name, value in (("n_best", top), ("progress", progress)) if name in known}
        try:
            told = ask(given, **how)
        except ValueError:
            given, problems = _sorted_out(predictor, given)
            if not problems:
                raise
            told = ask(given, **how) if given else []
        strange = {one: text for one, text in zip(given, map(_problem, _answers(told)), strict=True) if text}
        if strange and show is not None:
            given = [one for one in given if one not in strange]
            told = ask(given, **how) if given else []
    for one, answer in zip(given, _answers(told), strict=True):
        if one not in strange:
            typer.echo(f"{printable(str(one))}: {answer.told(top)}")
    if show is not None and given:
        typer.echo(f"wrote {predictor.page(told).save(show)}")
    return [*problems, *(f"{text}: {shortened(str(one), 40)!r}" for one, text in strange.items())]


def _answers(told: Any) -> list[Any]:
    return told if isinstance(told, list) else told.answers


def _problem(answer: Any) -> str | None:
    return getattr(answer, "problem", None)


def _sorted_out(predictor: Any, given: list[Any]) -> tuple[list[Any], list[str]]:
    """Those that can be answered, and what is wrong with the others."""
    good, problems = [], []
    for one in given:
        try:
            predictor.predict([one])
        except ValueError as error:
            problems.append(str(error))
        else:
            good.append(one)
    return good, problems


@app.command()
def show(
    run: Annotated[str, typer.Argument(help=RUN, show_default=False)],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[INPUT]...", help="Images or sentences to draw its attention on.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the pictures; pictures/ in the run's, or here, if not given.")
    ] = None,
    format: Annotated[str, typer.Option(help="png or svg.")] = "png",
    device: Annotated[str, typer.Option(help=DEVICES)] = "auto",
) -> None:
    """Draw what a trained model has learned, and where it looks."""
    from .runs import check_run, load
    from .training.device import choose_device

    with _plain_errors():
        check_run(run, f"for why it answers as it does: sightline predict {run} IMAGE --show page.html")
        predictor = load(run).to(choose_device(device))
        drawn = predictor.show(predictor.read(inputs) if inputs else [], out, format=format)
        for path in drawn.files:
            typer.echo(f"wrote {path}")
        for name, reason in drawn.left_out.items():
            typer.echo(f"no {name}: {reason}")


@app.command()
def data(
    name: Annotated[str, typer.Argument(help="A data set by name (glyphs), or the path of one.")] = "glyphs",
    image_size: Annotated[int | None, typer.Option(help="Side to bring every image to.")] = None,
    show: Annotated[Path | None, typer.Option(help="Write a picture (.png) with examples of each class.")] = None,
) -> None:
    """Say what a data set holds."""
    from .data.images.class_splits import divides_by_class, load_classes
    from .data.images.loading import contact_sheet, load, summary
    from .files import atomic_write

    with _plain_errors():
        splits = (load_classes if divides_by_class(name) else load)(name, size=image_size)
        typer.echo(str(summary(splits)))
        if show is not None:
            with atomic_write(show) as part:
                contact_sheet(splits.train).save(part, "png")
            typer.echo(f"wrote {show}")


@app.command(hidden=True)
def ship(
    run: Annotated[Path, typer.Argument(help="The folder of a run that was evaluated.", show_default=False)],
    name: Annotated[str, typer.Argument(help="What to call the model.", show_default=False)],
    license: Annotated[str, typer.Option(help="Whose the data are, and under which terms.", show_default=False)],
    command: Annotated[str | None, typer.Option(help="What made it, if not as its card says.")] = None,
    data: Annotated[str | None, typer.Option(help="What to compare answers on, if not its own data.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where its folder goes; the zoo if not given.")] = None,
    device: Annotated[str, typer.Option(help=DEVICES)] = "auto",
) -> None:
    """Put a finished run among the models that ship: small, with a card."""
    from .runs import reading
    from .shipping import ship as put

    with _plain_errors():
        with reading() as progress:
            folder = put(
                run, name, license=license, command=command, data=data, out=out, device=device, progress=progress
            )
        typer.echo(f"wrote {folder}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for what it writes; made if it is not there.")] = Path("demo"),
    model: Annotated[str, typer.Option(help="A model that ships, or the folder of a few-shot run.")] = "glyphs",
) -> None:
    """Make a classifier from a handful of drawings, judge it and show why it answers as it does."""
    from .demo import run

    with _plain_errors():
        run(out, model)
