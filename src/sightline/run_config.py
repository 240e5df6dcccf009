"""The config of a run: how it is read, changed and built, and what may change when a run is resumed."""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from . import config, files, registry, starting
from .errors import check
from .files import CONFIG
from .output import flatten

RESUMABLE_KEYS = re.compile(
    r"out|data\.(cache_mib|num_workers)|training\.(device|early_stopping_patience|epochs|gamma|keep_checkpoints"
    r"|learning_rate|max_grad_norm|min_lr_ratio|schedule|step_size|steps|tensorboard|warmup_steps|weight_decay)"
)
"""Keys that may change when a run is resumed, because the checkpoints still fit."""
LATER_KEYS = {
    "start_from": None,
    "training.backbone_lr_ratio": 1.0,
    "model.reinforce_weight": None,
    "model.soft_share": None,
    "search.no_repeat_ngram_size": 0,
}
"""Keys that configs of older versions lack, with the values that change nothing."""


def resolve_config(source: Any, changes: Iterable[str]) -> tuple[Any, str]:
    """The config object, and a name for the run."""
    values, name = read_values(source, changes)
    return build_config(values), name


def read_values(source: Any, changes: Iterable[str] = ()) -> tuple[dict[str, Any], str]:
    """The values of a config with changes, as `build_config` takes them, and a name for the run."""
    changes, name, is_run = config.parse_changes(changes), "run", False
    if dataclasses.is_dataclass(source) and not isinstance(source, type):
        values = config.plain(source)
    elif isinstance(source, Mapping):
        values = dict(source)
    elif source is None:
        kind = _spec_of(changes).config
        is_new = "start_from" not in changes  # else the model is that of the earlier run
        starter = config.plain(kind.starter())
        values = starter if is_new else _without_inherited(starter, kind)
    else:
        path = Path(source)
        is_run = path.is_dir()
        rule = f"a config must be a YAML file or the folder of a run, got {str(path)!r}, which has no {CONFIG}"
        check(not is_run or (path / CONFIG).is_file(), f"{rule}; to train on the images in it: data.source={path}")
        values, name = config.read(path / CONFIG if is_run else path), path.stem
        values |= {"out": str(path)} if is_run else {}
    values = change_values(values, changes)
    if (run := values.get("start_from")) is not None and not is_run:
        values = starting.inherit_sections(values, config.untyped(run))
    if source is None:  # named after its data
        path = Path(config.untyped(values["data"]["source"])).expanduser().resolve()
        name = (path.stem if path.suffix.lower() == ".npz" else path.name) or "run"
    return values, name


def _without_inherited(values: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Values without those of the run that training starts from."""
    keys = {*kind.inherited_keys}
    result = {name: value for name, value in values.items() if name not in kind.inherited_sections}
    for section in {key.partition(".")[0] for key in keys}:
        result[section] = {name: x for name, x in result[section].items() if f"{section}.{name}" not in keys}
    return result


def change_values(values: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a config's values with each `section.key` set to a value.

    A change of `training.epochs` replaces the config's `training.steps`, and vice versa. A change of a key sets its
    `dependent_keys` to null, such as `model.embed_dim` for `model.size`, if they are not changed themselves.
    """
    kind, dependent = config_class({**values, **changed}), dict[str, Any]()
    for section, _, name in (key.rpartition(".") for key in changed):
        names = getattr(config.type_of_key(kind, section), "dependent_keys", {}) if section else {}
        dependent |= dict.fromkeys(f"{section}.{other}" for other in names.get(name, ()))
    result = config.assign(values, {**dependent, **changed})
    training = result.get("training")
    for name, other in (("epochs", "steps"), ("steps", "epochs")):
        if isinstance(training, dict) and f"training.{name}" in changed and f"training.{other}" not in changed:
            training[other] = None
    return result


def build_config(values: Mapping[str, Any]) -> Any:
    """The config object of values, which name the task."""
    return config.build(config_class(values), values)


def config_class(values: Mapping[str, Any]) -> Any:
    """The class of the config of values."""
    return _spec_of(values).config


def _spec_of(values: Mapping[str, Any]) -> registry.TaskSpec:
    return registry.task_spec(config.untyped(values.get("task", registry.DEFAULT)))


def check_same_config(folder: Path, task_config: Any) -> None:
    """Raise SightlineError if a run cannot be resumed with this config."""
    values = config.read(folder / CONFIG)
    old = fixed_values(config.build(registry.task_spec(values.get("task")).config, values))
    new = fixed_values(task_config)
    for key in sorted(old.keys() | new.keys()):
        rule = f"{key} must be {old.get(key)!r}, as in {folder}, to resume it"
        check(old.get(key) == new.get(key), f"{rule}, got {new.get(key)!r}")


def fixed_values(task_config: Any) -> dict[str, Any]:
    """The values of a config that cannot change when a run is resumed, by dotted key."""
    values = flatten(config.plain(task_config))
    return without_later_keys({key: value for key, value in values.items() if not RESUMABLE_KEYS.fullmatch(key)})


def without_later_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config by dotted key, without those of `LATER_KEYS`, which older runs and searches lack."""
    return {key: value for key, value in values.items() if (key, value) not in LATER_KEYS.items()}


def config_digest(task_config: Any) -> str:
    """Digest of the values that cannot change when a run is resumed."""
    values = json.dumps(fixed_values(task_config), sort_keys=True)
    return files.digest(values.encode(errors="surrogateescape"))
