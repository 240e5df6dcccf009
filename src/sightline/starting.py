"""Training that starts from the weights of an earlier run: the keys of its config, and its weights."""

from collections.abc import Mapping
from typing import Any

from . import config, hub, registry, zoo
from .errors import check
from .files import CONFIG
from .predictor import Predictor
from .weights import copy_matching

MAX_NAMES = 6
"""Tensors that are named in a message."""


def inherit_sections(values: Mapping[str, Any], run: str) -> dict[str, Any]:
    """The values of a config, with the keys that it does not give in the sections that follow the earlier run.

    Those are `inherited_sections` and `inherited_keys` of the config's class. Models of different kinds have nothing in
    common.
    """
    folder = hub.run_folder(run)
    rule = f"--from (start_from) must be the folder of a trained model, or {zoo.known(run)}"
    found = f"the folder has no {CONFIG}" if folder.is_dir() else "there is no such folder"
    check((folder / CONFIG).is_file(), f"{rule}; {found}")
    earlier = config.read(folder / CONFIG)
    tasks = [config.untyped(source.get("task", registry.DEFAULT)) for source in (values, earlier)]
    kind, earlier_kind = (registry.task_spec(task).config for task in tasks)
    ours, theirs = (config.section_type(source, "model").__mro__ for source in (kind, earlier_kind))
    common = set(ours) & set(theirs) - {*config.Config.__mro__}
    rule = f"start_from must be a run with a model like that of task {tasks[0]}"
    check(common, f"{rule}, got {run!r} of task {tasks[1]}")
    result = dict(values)
    for section in kind.inherited_sections:
        given = result.get(section, {})
        if isinstance(given, Mapping):
            result[section] = config.inherit(config.section_type(kind, section), given, earlier.get(section))
    for section, _, name in (key.partition(".") for key in kind.inherited_keys):
        given, theirs = result.get(section, {}), earlier.get(section)
        if isinstance(given, Mapping) and isinstance(theirs, Mapping) and name in theirs:
            result[section] = {name: theirs[name], **given}
    return result


def start_from(task: Any, predictor: Predictor, run: str) -> str:
    """Copy the weights of an earlier run into the model of a task; returns a message that says which."""
    source = predictor.model.state_dict()
    remaining = copy_matching(source, task.model, new=task.new_parameters(predictor))
    names = dict.fromkeys(name for name, _ in task.model.named_parameters())
    new = [name for name in remaining if name in names]
    rule = "start_from must be a run with weights of the same names and shapes"
    check(len(new) < len(names), f"{rule}, got none in {run!r}; its section model must be like that of the config")
    listed = ", ".join(new[:MAX_NAMES]) + (f" and {len(new) - MAX_NAMES} more" if len(new) > MAX_NAMES else "")
    return f"starting from {run}: {len(names) - len(new)} of {len(names)} tensors; new: {listed or 'none'}"
