"""The registry of tasks."""

import dataclasses

import pytest

from sightline import registry
from sightline.errors import SightlineError
from sightline.predictor import Predictor

SPECS = pytest.mark.parametrize("spec", [*map(registry.task_spec, registry.TASKS)], ids=lambda spec: spec.name)


@SPECS
def test_everything_a_task_declares_can_be_imported(spec):
    assert dataclasses.is_dataclass(spec.config)
    assert issubclass(spec.predictor, Predictor)
    for name in ("load_data", "steps_per_epoch", "to", "batches", "loss", "evaluate", "metrics", "files", "finish"):
        assert callable(getattr(spec.task, name))
    assert spec.task.monitor
    for name in ("compare", "compare_precision"):
        is_declared, function = spec.name in registry.supporting(name), getattr(spec, name)
        assert callable(function) if is_declared else function is None


@SPECS
def test_config_classes_have_the_common_fields(spec):
    starter = spec.config.starter()
    assert starter.task == spec.name
    fields = {field.name for field in dataclasses.fields(starter)}
    assert {"task", "out", "seed", "data", "model", "training"} <= fields
    assert hasattr(starter.data, "source")


@SPECS
def test_usage_names_the_model(spec):
    assert '"my-model"' in spec.usage.format(name="my-model")


def test_names_are_the_keys_and_the_default_is_one_of_them():
    assert {name: spec.name for name, spec in registry.TASKS.items()} == {name: name for name in registry.TASKS}
    assert registry.DEFAULT in registry.TASKS


def test_an_unknown_task_is_refused_with_the_closest_name():
    with pytest.raises(SightlineError, match=r"task must be one of .*, got 'translater'; did you mean 'translation'"):
        registry.task_spec("translater")
    for name in (None, ["translation"], 3):
        with pytest.raises(SightlineError, match="task must be one of "):
            registry.task_spec(name)


def test_a_task_may_be_registered_as_objects(monkeypatch):
    monkeypatch.setattr(registry, "TASKS", {})
    spec = registry.register(registry.TaskSpec("toy", dict, list, tuple))
    resolved = registry.task_spec("toy")
    assert resolved == spec
    assert (resolved.config, resolved.task, resolved.predictor) == (dict, list, tuple)
    assert (resolved.compare, resolved.compare_precision) == (None, None)
    assert registry.supporting("compare") == registry.supporting("compare_precision") == []
