"""Runs: `train` writes a folder, `load` reads it, `evaluate` measures it.

config.yaml          the complete config              metrics.jsonl   the training log
model.safetensors    the weights                      README.md       the model card
classes.json, ...    files of the task                data.json       fingerprint of the data
checkpoints/         for --resume                     evaluation.json the last evaluation
"""

import dataclasses
import itertools
import json
import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import config, files, hub, registry, starting, zoo
from .errors import SightlineError, SightlineWarning, check, check_choice
from .files import CARD, CHECKPOINTS, CONFIG, DATA, EVALUATION, LOG, WEIGHTS
from .model_card import description, run_card, versions_of, with_evaluation
from .output import flatten
from .predictor import Predictor
from .progress import progress_bar
from .results import Evaluation
from .run_config import check_same_config, config_digest, resolve_config

if TYPE_CHECKING:
    from .comparison import Comparison
    from .exporting import Exported
    from .training.run import Run

CLASSIFIER = ".sightline"
"""Suffix of a fitted few-shot classifier."""
NO_RUN = "--resume must name a run, got no run in {}; train it without --resume first"


def train(
    source: Any = None,
    changes: Iterable[str] = (),
    *,
    data: Any = None,
    hooks: Sequence[Any] = (),
    start_from: str | Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    command: str = "",
) -> "Run":
    """Train a model.

    `source` is the path of a YAML config or of a run's folder, a dict, or a config object; without it, the image
    classifier is trained on the embedded glyphs. `changes` are `key=value`. `data` is loaded data, which is then not
    read again. `hooks` are objects of `sightline.training.hooks.Hook`. `start_from` is a run, or a pretrained model,
    whose weights of the same names and shapes training starts from; model keys that are not given are those of that
    run. `resume` continues from the newest checkpoint; a larger `training.epochs` or `training.steps` extends a
    finished run.
    """
    import torch

    from .training.device import choose_device
    from .training.distributed import is_main_process, process_group
    from .training.hooks import default_hooks
    from .training.loop import Trainer

    further = [] if start_from is None else [f"start_from={start_from}"]
    task_config, folder = _run_config(source, [*changes, *further], resume=resume)
    task_class = registry.task_spec(task_config.task).task
    with files.locked_folder(folder) if is_main_process() else nullcontext():
        _check_folder(folder, resume)
        with process_group(choose_device(task_config.training.device)) as group:
            with progress_bar(quiet or not group.is_main) as progress:
                loaded = task_class.load_data(task_config, progress) if data is None else data
                torch.manual_seed(task_config.seed)  # of the initial weights
                task = task_class(task_config, loaded, progress)
            messages = [*task.notes]
            if not resume and task_config.start_from is not None:
                messages.append(_start(task, task_config.start_from))
            if resume:
                check_same_config(folder, task.config)
                _check_same_data(folder, task.data_fingerprint)
            training, all_hooks = task_config.training, [*default_hooks(task_config.training, quiet=quiet), *hooks]
            options: dict[str, Any] = {"seed": task_config.seed, "config_digest": config_digest(task.config)}
            trainer = Trainer(task, training, folder, group, hooks=all_hooks, command=command, **options)
            if resume:
                trainer.restore()
                if (finished := trainer.finished_run()) is not None:
                    _remove_stale_parts(folder, task)
                    return finished
            for hook, message in itertools.product(trainer.hooks, messages):
                hook.on_message(trainer, message)
            group.barrier()  # a late process must not see the files of this run as those of an older one
            if group.is_main:
                _write_run_files(folder, task)
            run = trainer.fit()
        if run.is_main:
            _write_task_files(folder, task)  # those that the end of training made, too
            files.write_bytes(folder / CARD, run_card(run, task_config, trainer.command).encode())
    return run


def _run_config(source: Any, changes: Iterable[str], *, resume: bool) -> tuple[Any, Path]:
    """The config and the folder of a run to train or to resume."""
    if resume and isinstance(source, str | Path):
        check(Path(source).exists(), NO_RUN.format(source))
    task_config, name = resolve_config(source, changes)
    folder = Path(task_config.out or Path("runs") / name)
    if resume and task_config.start_from is not None:  # its tokenizers are in its own folder by now
        task_config = dataclasses.replace(task_config, out=str(folder))
    return task_config, folder


def _start(task: Any, run: str) -> str:
    """Copy the weights of an earlier run into the model of a task; returns a message that says which."""
    return starting.start_from(task, load(run), run)


def load(run: str | Path, *, device: str = "cpu", allow_download: bool = False) -> Predictor:
    """The trained model of a run's folder, a pretrained model by name, a model on the hub by `hub:owner/name`, or a
    fitted few-shot classifier from its `.sightline` file.

    An external embedding model that a file or config names is downloaded only with `allow_download`.
    """
    from .training.device import choose_device

    folder = hub.run_folder(run)
    zoo.warn_if_hidden(run)
    if folder.suffix == CLASSIFIER and not folder.is_dir():
        from .classifier import FewShotClassifier

        predictor: Predictor = FewShotClassifier.load(folder, allow_download=allow_download)
    else:
        predictor = predictor_class(run, folder).load(folder)
        predictor.allow_download = allow_download
        files.warn_unfinished(folder)
    return predictor.to(choose_device(device))


def predictor_class(run: str | Path, folder: Path) -> Any:
    """The class that loads a run; an error if the folder holds none."""
    hint = f"; for a model on the hub write {hub.PREFIX}{run}" if str(run).count("/") == 1 else ""
    found = f"this file does not end in {CLASSIFIER}" if folder.is_file() else "there is no such folder"
    fix = f"train a model with sightline train, or fit a classifier with sightline fit{hint}"
    rule = f"run must be the folder of a trained model, a {CLASSIFIER} file of sightline fit, or"
    check(folder.is_dir(), f"{rule} {zoo.known(str(run))}; {found}: {fix}")
    fix = f"to fit a classifier to the images in it: sightline fit {shlex.quote(str(run))}"
    has_config = (folder / CONFIG).is_file()
    check(has_config, f"run must be the folder of a trained model, got {str(run)!r}, which has no {CONFIG}; {fix}")
    return registry.task_spec(config.read(folder / CONFIG).get("task"), "predictor").predictor


def evaluate(
    run: str | Path, data: Any = None, device: str = "auto", *, allow_download: bool = False, **options: Any
) -> Evaluation:
    """Evaluate a run on the test set of its data and add the result to its model card; or on other data.

    Options depend on the task: few-shot runs take `settings`, such as ["5w1s"], and `episodes`; a fitted classifier
    takes `show`, the path of a page.
    """
    predictor = load(run, device=device, allow_download=allow_download)
    for name in options:
        is_supported = name in predictor.evaluate_options
        check(is_supported, f"--{name} must be left out for {predictor.kind}, got it for {run}")
    with progress_bar() as progress:
        evaluation: Evaluation = predictor.evaluate(data, progress=progress, **options)
    folder = Path(run).expanduser()
    if (folder / CONFIG).is_file() and data is None and not options:  # pretrained models are not written to
        try:
            _store_evaluation(folder, evaluation)
        except OSError as error:
            warnings.warn(f"the evaluation was not stored in {folder}: {error}", SightlineWarning, stacklevel=2)
    return evaluation


def compare(
    runs: Sequence[str | Path],
    *,
    data: str | None = None,
    device: str = "auto",
    **options: Any,
) -> "Comparison":
    """Evaluate runs of one task on identical data and report paired differences to the first run.

    `data` is another data set to evaluate on. Image classifiers are compared by McNemar's test, translators by paired
    bootstrap. Few-shot runs are evaluated on identical episodes and take further options: `settings` such as ["5w1s"]
    and the number of `episodes`, by default those of the first run's config, and `baselines` such as ["protonet"],
    which use its embeddings.
    """
    from .comparison import RunDescription, names_of

    check(runs, "runs must name at least one run, got none")
    for run in runs:
        is_folder = Path(run).suffix != CLASSIFIER
        check(
            is_folder, f"runs must be folders of runs, got {str(run)!r}; for a fitted classifier use sightline evaluate"
        )
    predictors = [load(run, device=device) for run in runs]
    tasks = [predictor.config.task for predictor in predictors]
    check_choice("the task of runs to compare", tasks[0], registry.supporting("compare"))
    for run, task in zip(runs, tasks, strict=True):
        check(task == tasks[0], f"the task of all runs to compare must be {tasks[0]}, got {str(run)!r} of task {task}")
    spec, given = (
        registry.task_spec(tasks[0]),
        {name: value for name, value in options.items() if value not in (None, [], ())},
    )
    for name in given:
        flag = "with" if name == "baselines" else name
        is_supported = name in spec.compare_options
        check(is_supported, f"--{flag} must be left out for runs of {tasks[0]}, got it for {runs[0]}")
    names = names_of(runs)
    with progress_bar() as progress:
        result: Comparison = spec.compare(predictors, names, data=data, progress=progress, **given)
    described = (RunDescription.of(name, predictor) for name, predictor in zip(names, predictors, strict=True))
    return dataclasses.replace(result, runs=tuple(described))


def export(
    run: str | Path, out: str | Path | None = None, *, format: str = "onnx", allow_download: bool = False
) -> "Exported":
    """Export a trained model to ONNX or to programs of `torch.export`, and check it against the original.

    `run` is as in `load`; `out` is the folder to write (default: `export/` in the run, or `NAME-export/`).
    The files need no Sightline to run.
    """
    from .exporting import SUFFIXES, write

    check_choice("format", format, SUFFIXES)
    predictor, path = load(run, allow_download=allow_download), Path(run).expanduser()
    if path.suffix == CLASSIFIER:
        from .classifier.export import export as describe

    else:
        task = predictor.config.task
        check_choice("the task of a run to export", task, registry.supporting("export"))
        describe = registry.task_spec(task).export
    folder = path / "export" if path.is_dir() else Path(f"{path.stem}-export")
    with progress_bar() as progress:
        return write(describe(predictor), Path(out or folder), format, progress)  # type: ignore[arg-type]


def info(run: str | Path) -> dict[str, Any]:
    """What a run, a pretrained model or a fitted classifier is: classes, counts, calibration, size, versions."""
    folder = hub.run_folder(run)
    predictor = load(run)
    values: dict[str, Any] = {"name": str(run), "kind": predictor.kind}
    if predictor.model is not None:
        values["parameters"] = sum(parameter.numel() for parameter in predictor.model.parameters())
        values["buffers"] = sum(buffer.numel() for buffer in predictor.model.buffers())
    if not folder.is_dir():
        from .classifier.file import read_versions

        return values | {"bytes": folder.stat().st_size, "versions": read_versions(folder)} | predictor.details()
    values |= {"description": description(folder) or None}
    values |= {"bytes": (folder / WEIGHTS).stat().st_size, "data": list(predictor.config.data.sources)}
    final: dict[str, Any] = next((line for line in reversed(files.read_log(folder)) if "final" in line), {})
    values |= {"training_steps": final.get("step"), "training_seconds": final.get("seconds")}
    values |= {"stop_reason": final.get("stop_reason"), "validation": final.get("final")}
    values |= {"is_finished": files.is_finished(folder), "versions": versions_of(folder)}
    return values | predictor.details()


def _store_evaluation(folder: Path, evaluation: Evaluation) -> None:
    record = {"report": str(evaluation), **evaluation.to_dict()}
    files.write_bytes(folder / EVALUATION, json.dumps(record, indent=1).encode())
    if (folder / CARD).is_file():
        card = (folder / CARD).read_text(encoding="utf-8")
        files.write_bytes(folder / CARD, with_evaluation(card, evaluation).encode())


def _check_folder(folder: Path, resume: bool) -> None:
    """The folder must not hold a run, or with `resume` hold nothing but a run."""
    is_new = not any((folder / name).exists() for name in (CONFIG, WEIGHTS, CHECKPOINTS))
    fix = "pass --resume to continue it, or out=FOLDER for another"
    check(resume or is_new, f"out must be a new folder, got {str(folder)!r}, which holds a run; {fix}")
    if resume and not (folder / CONFIG).is_file():
        found = f"{str(folder)!r}, which has checkpoints and no {CONFIG}; pass out=FOLDER for a new one"
        is_foreign = (folder / CHECKPOINTS).exists()
        check(not is_foreign, f"out must be the folder of a run to resume, got {found}")
        raise SightlineError(NO_RUN.format(folder))


def _check_same_data(folder: Path, new: Mapping[str, Any]) -> None:
    stored = files.stored_fingerprint(folder)
    old, new = flatten(stored if isinstance(stored, Mapping) else {}), flatten(new)
    rule = f"data.source must hold the data that {folder} was started with, to resume it"
    for key in sorted(old.keys() & new.keys(), key=lambda key: (key.partition(".")[2] != "images", key)):
        if old[key] != new[key]:
            difference = f"{key} must be {old[key]!r:.100}, got {new[key]!r:.100}"
            raise SightlineError(f"{rule}: {difference}; start a new run with out=FOLDER")


def _write_run_files(folder: Path, task: Any) -> None:
    """Write the files of a run that training does not change; the old card goes, as it marks a finished run."""
    (folder / CARD).unlink(missing_ok=True)
    _write_task_files(folder, task)
    files.write_bytes(folder / DATA, json.dumps(task.data_fingerprint, indent=1).encode())
    files.write_bytes(folder / CONFIG, config.dump(task.config).encode())


def _write_task_files(folder: Path, task: Any) -> None:
    for name, content in task.files().items():
        files.write_bytes(folder / name, content)


def _remove_stale_parts(folder: Path, task: Any) -> None:
    """Remove what interrupted writes of the files of a run left."""
    for name in (*task.files(), CONFIG, WEIGHTS, CARD, DATA, LOG, EVALUATION):
        files.remove_stale_parts(folder / name)
