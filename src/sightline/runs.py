"""Runs: `train` writes a folder, `load` reads it, `evaluate` measures it.

config.yaml          the complete config              metrics.jsonl   the training log
model.safetensors    the weights                      README.md       the model card
classes.json, ...    files of the task                data.json       fingerprint of the data
checkpoints/         for --resume                     evaluation.json the last evaluation
"""

import dataclasses
import json
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import config, hub, registry, zoo
from .errors import SightlineError
from .files import (
    CARD,
    CHECKPOINTS,
    CONFIG,
    DATA,
    EVALUATION,
    LOG,
    WEIGHTS,
    digest,
    locked_folder,
    read_json,
    warn,
    warn_unfinished,
    write_bytes,
)
from .predictor import Evaluation, Predictor

if TYPE_CHECKING:
    from .training.loop import Run

CLASSIFIER = ".sightline"
"""Suffix of a fitted few-shot classifier."""
RESUMABLE_KEYS = re.compile(
    r"out|data\.(cache_mib|num_workers)|training\.(device|gamma|keep_checkpoints|learning_rate|max_grad_norm|min_lr_ratio"
    r"|schedule|step_size|tensorboard|warmup_steps|weight_decay)"
)
"""Keys that may change when a run is resumed, because the checkpoints still fit."""
SCORE = "## Evaluation"


def train(
    source: Any = None,
    changes: Iterable[str] = (),
    *,
    data: Any = None,
    hooks: Sequence[Any] = (),
    resume: bool = False,
    quiet: bool = False,
    command: str = "",
) -> "Run":
    """Train a model.

    `source` is the path of a YAML config or of a run's folder, a dict, or a config object; without it, the image
    classifier is trained on the embedded glyphs. `changes` are `key=value`. `data` is loaded data, which is then not
    read again. `hooks` are objects of `sightline.training.hooks.Hook`. `resume` continues from the newest checkpoint.
    """
    import torch

    from .training.device import choose_device
    from .training.distributed import is_main_process, process_group
    from .training.hooks import default_hooks
    from .training.loop import Trainer

    task_config, name = _resolve_config(source, changes)
    task_class = registry.task_spec(task_config.task).task_class
    folder = Path(task_config.out or Path("runs") / name)
    with locked_folder(folder) if is_main_process() else nullcontext():
        _check_folder(folder, resume)
        with process_group(choose_device(task_config.training.device)) as group:
            with progress_bar(quiet or not group.is_main) as progress:
                loaded = task_class.load_data(task_config, progress) if data is None else data
                torch.manual_seed(task_config.seed)  # of the initial weights
                task = task_class(task_config, loaded, progress)
            if resume and (folder / CONFIG).is_file():
                _check_same_config(folder, task.config)
                _check_same_data(folder, task.data_fingerprint)
            trainer = Trainer(
                task,
                task_config.training,
                folder,
                group,
                seed=task_config.seed,
                hooks=[*default_hooks(task_config.training, quiet=quiet), *hooks],
                config_digest=_config_digest(task.config),
            )
            if resume:
                trainer.restore()
            group.barrier()  # a late process must not see the files of this run as those of an older one
            if group.is_main:
                _write_run_files(folder, task)
            run = trainer.fit()
        if run.is_main:
            write_bytes(folder / CARD, _card(run, task_config, command).encode())
    return run


def load(run: str | Path, *, allow_download: bool = False) -> Predictor:
    """The trained model of a run's folder, a pretrained model by name, a model on the hub by `hub:owner/name`, or a
    fitted few-shot classifier from its `.sightline` file.

    An external embedding model that a file or config names is downloaded only with `allow_download`.
    """
    if hub.is_hub_name(run):
        folder = hub.resolve(run)
    else:
        folder = zoo.folder(run)
        if folder.suffix == CLASSIFIER and not folder.is_dir():
            from .classifier import FewShotClassifier

            return FewShotClassifier.load(folder, allow_download=allow_download)
    if not folder.is_dir():
        hint = f"; for a model on the hub write {hub.PREFIX}{run}" if str(run).count("/") == 1 else ""
        raise SightlineError(f"run must be the folder of a trained model, or {zoo.known(str(run))}{hint}")
    if not (folder / CONFIG).is_file():
        raise SightlineError(
            f"run must be the folder of a trained model, got {str(run)!r}, which has no {CONFIG}; to fit a classifier "
            f"to the images in it: sightline fit {shlex.quote(str(run))}"
        )
    spec = registry.task_spec(config.read(folder / CONFIG).get("task"))
    predictor: Predictor = spec.predictor_class.load(folder)
    predictor.allow_download = allow_download
    warn_unfinished(folder)
    return predictor


def evaluate(
    run: str | Path, data: Any = None, device: str = "auto", *, allow_download: bool = False, **options: Any
) -> Evaluation:
    """Evaluate a run on the test set of its data and add the result to its model card; or on other data.

    Options depend on the task: few-shot runs take `settings`, such as ["5w1s"], and `episodes`.
    """
    from .training.device import choose_device

    predictor = load(run, allow_download=allow_download).to(choose_device(device))
    for name in options:
        if name not in predictor.evaluate_options:
            raise SightlineError(f"{name} must be left out for this model, got it")
    with progress_bar() as progress:
        evaluation: Evaluation = predictor.evaluate(data, progress=progress, **options)
    folder = Path(run).expanduser()
    if (folder / CONFIG).is_file() and data is None and not options:  # pretrained models are not written to
        try:
            _store_evaluation(folder, evaluation)
        except OSError as error:
            warn(f"the evaluation was not stored in {folder}: {error}")
    return evaluation


def _store_evaluation(folder: Path, evaluation: Evaluation) -> None:
    record = {"report": str(evaluation), **evaluation.to_dict()}
    write_bytes(folder / EVALUATION, json.dumps(record, indent=1).encode())
    if (folder / CARD).is_file():
        card = (folder / CARD).read_text(encoding="utf-8")
        write_bytes(folder / CARD, _with_evaluation(card, evaluation).encode())


def _resolve_config(source: Any, changes: Iterable[str]) -> tuple[Any, str]:
    """The config object, and a name for the run."""
    changes, name = list(changes), "run"
    if dataclasses.is_dataclass(source) and not isinstance(source, type):
        values = config.plain(source)
    elif isinstance(source, Mapping):
        values = dict(source)
    elif source is None:
        values, name = config.plain(_spec_of(config.change({}, changes)).config_class.starter()), ""
    else:
        path = Path(source)
        if path.is_dir() and not (path / CONFIG).is_file():
            raise SightlineError(
                f"a config must be a YAML file or the folder of a run, got {str(path)!r}, which has no {CONFIG}; "
                f"to train on the images in it: data.source={path}"
            )
        values = config.read(path / CONFIG if path.is_dir() else path)
        name = path.stem
        if path.is_dir():
            values["out"] = str(path)
    values = config.change(values, changes)
    _replace_epochs_or_steps(values, {change.partition("=")[0].strip() for change in changes})
    task_config = config.build(_spec_of(values).config_class, values)
    return task_config, _run_name(task_config.data.source) if source is None else name


def _run_name(source: str) -> str:
    """The name of a run without a config file: that of its data."""
    path = Path(source).expanduser().resolve()
    return (path.stem if path.suffix.lower() == ".npz" else path.name) or "run"


def _replace_epochs_or_steps(values: Mapping[str, Any], changed: set[str]) -> None:
    """A change of `training.epochs` replaces the config's `training.steps`, and vice versa."""
    training = values.get("training")
    for name, other in (("epochs", "steps"), ("steps", "epochs")):
        if isinstance(training, dict) and f"training.{name}" in changed and f"training.{other}" not in changed:
            training[other] = None


def _spec_of(values: Mapping[str, Any]) -> registry.TaskSpec:
    task = values.get("task", registry.DEFAULT)
    return registry.task_spec(task.text if isinstance(task, config.Typed) else task)


def _check_folder(folder: Path, resume: bool) -> None:
    """The folder must not hold a run, or with `resume` hold nothing but a run."""
    if not resume and any((folder / name).exists() for name in (CONFIG, WEIGHTS, CHECKPOINTS)):
        raise SightlineError(
            f"out must be a new folder, got {str(folder)!r}, which holds a run; "
            f"pass --resume to continue it, or out=FOLDER for another"
        )
    if resume and (folder / CHECKPOINTS).exists() and not (folder / CONFIG).is_file():
        raise SightlineError(
            f"out must be the folder of a run to resume, got {str(folder)!r}, which has checkpoints and no {CONFIG}; "
            f"pass out=FOLDER for a new one"
        )


def _check_same_config(folder: Path, task_config: Any) -> None:
    values = config.read(folder / CONFIG)
    old = _fixed_values(config.build(registry.task_spec(values.get("task")).config_class, values))
    new = _fixed_values(task_config)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            raise SightlineError(f"{key} must be {old.get(key)!r}, as in {folder}, to resume it, got {new.get(key)!r}")


def _fixed_values(task_config: Any) -> dict[str, Any]:
    """The values of a config that cannot change when a run is resumed, by dotted key."""
    return {key: value for key, value in _flat(config.plain(task_config)).items() if not RESUMABLE_KEYS.fullmatch(key)}


def _config_digest(task_config: Any) -> str:
    values = json.dumps(_fixed_values(task_config), sort_keys=True)
    return digest(values.encode(errors="surrogateescape"))


def _check_same_data(folder: Path, new: Mapping[str, Any]) -> None:
    if not (folder / DATA).is_file():
        return
    stored = read_json(folder / DATA)
    old, new = _flat(stored if isinstance(stored, Mapping) else {}), _flat(new)
    for key in sorted(old.keys() & new.keys(), key=lambda key: (key.partition(".")[2] != "images", key)):
        if old[key] != new[key]:
            raise SightlineError(
                f"data.source must hold the data that {folder} was started with, to resume it: {key} must be "
                f"{old[key]!r:.100}, got {new[key]!r:.100}; start a new run with out=FOLDER"
            )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _write_run_files(folder: Path, task: Any) -> None:
    """Write the files of a run that training does not change; the old card goes, as it marks a finished run."""
    (folder / CARD).unlink(missing_ok=True)
    for name, content in task.files().items():
        write_bytes(folder / name, content)
    write_bytes(folder / DATA, json.dumps(task.data_fingerprint, indent=1).encode())
    write_bytes(folder / CONFIG, config.dump(task.config).encode())


class progress_bar:  # noqa: N801 - used as a function
    """A context manager that yields a progress callback; a bar appears on a terminal after one second."""

    def __init__(self, quiet: bool = False):
        self.quiet, self.started = quiet, time.perf_counter()
        self.bar: Any = None

    def __enter__(self) -> Any:
        return self._advance

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def _advance(self, done: int, total: int) -> None:
        if self.quiet or time.perf_counter() - self.started < 1 or not sys.stderr.isatty():
            return
        if self.bar is None:
            from rich.console import Console
            from rich.progress import Progress

            self.bar = Progress(console=Console(stderr=True), transient=True, redirect_stdout=False)
            self.bar.start()
            self.bar.add_task("working")
        self.bar.update(self.bar.task_ids[0], completed=done, total=total)


def data_sources(data: Any) -> str:
    """The data sources of a config, for a model card."""
    extra = (getattr(source, "source", source) for source in getattr(data, "extra_sources", ()))
    return ", ".join(f"`{source}`" for source in (data.source, *extra))


def _card(run: "Run", task_config: Any, command: str) -> str:
    import torch

    from . import __version__

    size = (run.folder / WEIGHTS).stat().st_size
    validation = ", ".join(f"{name} {value:.4f}" for name, value in run.metrics.items()) or "none"
    versions = f"sightline {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    command = command or f"sightline.train({str(run.folder / CONFIG)!r}, ['out=ANOTHER_FOLDER'])"
    stopped = f", stopped early ({run.stop_reason})" if run.stop_reason else ""
    usage = registry.task_spec(task_config.task).usage.format(name=run.folder.name)
    return f"""---
library_name: sightline
tags: [sightline, {task_config.task}]
---
# {run.folder.name}

A Sightline model for the task `{task_config.task}`: `{usage}`.

## Training

    {command}

Data: {data_sources(task_config.data)}. {run.steps:,} steps{stopped}, {run.seconds:.0f} s in the last process;
{size:,} bytes of weights. The complete config is in `{CONFIG}`, the training log in `{LOG}`.

{SCORE}

On the validation set: {validation}.

## Versions

{versions}
"""


def _with_evaluation(card: str, evaluation: Any) -> str:
    before, heading, after = card.partition(SCORE)
    kept = [part for part in after.split("\n\n") if not part.startswith(f"On the {evaluation.split} set")]
    return before + heading + "\n\n".join([kept[0], evaluation.summary(), *kept[1:]])


def command_line() -> str:
    """The command of this process, quoted for a shell."""
    from .training.distributed import rank_and_world_size

    words = ["sightline", *sys.argv[1:]]
    if (world_size := rank_and_world_size()[1]) > 1:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
        words = ["torchrun", "--nnodes", str(world_size // local), "--nproc-per-node", str(local), "-m", *words]
    return shlex.join(words)
