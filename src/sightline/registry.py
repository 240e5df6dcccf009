"""The tasks by name: each is declared by a `TaskSpec`."""

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from .errors import SightlineError, one_of


@dataclass(frozen=True)
class TaskSpec:
    """What a task declares.

    The classes and functions are given themselves, or as `module:name` within this package, imported by `task_spec`.
    """

    name: str
    config: Any
    """The config class: a subclass of `training.config.TaskConfig` with data, model and training, and `starter()`."""
    task: Any
    """The class that is trained; see `training.task.Task`."""
    predictor: Any
    """The subclass of `Predictor` that loads a run."""
    usage: str = 'sightline.load("{name}").predict(input)'
    """How a trained model is used, for model cards."""
    has_images: bool = False
    """Whether its data are labeled images, which `sightline train` checks before training."""
    compare: Any = None
    """Compares runs of this task: (predictors, names, data, progress, **options) -> Comparison; None if it cannot."""
    compare_options: frozenset[str] = frozenset()
    """Names of the options that `compare` accepts."""
    compare_precision: Any = None
    """Compares a model before and after conversion to half precision: (before, after, data, progress) -> sentence.
    None if models of this task cannot be shipped as pretrained models."""
    export: Any = None
    """Describes the models of a predictor for an export: (predictor) -> `exporting.Export`; None if there is none."""


DEFAULT = "image_classification"


def register(spec: TaskSpec) -> TaskSpec:
    """Add a task, so that every command accepts its name."""
    TASKS[spec.name] = spec
    return spec


PARTS = ("config", "task", "predictor", "compare", "compare_precision", "export")
"""What a `TaskSpec` can name by its module."""


def task_spec(name: object, *parts: str) -> TaskSpec:
    """The task of this name, with its classes and functions imported: these `parts`, or all of them."""
    if not isinstance(name, str) or name not in TASKS:
        raise SightlineError(f"task must be {one_of(str(name), TASKS)}")
    spec = TASKS[name]
    return replace(spec, **{part: _resolve(getattr(spec, part)) for part in parts or PARTS})


def supporting(function: str) -> list[str]:
    """The tasks that declare `compare`, `compare_precision` or `export`."""
    return [name for name, spec in TASKS.items() if getattr(spec, function) is not None]


def _resolve(target: Any) -> Any:
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    return getattr(import_module(f"{__package__}.{module}"), name)


TASKS: dict[str, TaskSpec] = {
    spec.name: spec
    for spec in (
        TaskSpec(
            name="image_classification",
            config="tasks.image_classification.config:ImageClassificationTaskConfig",
            task="tasks.image_classification.task:ImageClassificationTask",
            predictor="tasks.image_classification.predictor:ImageClassificationPredictor",
            compare="tasks.image_classification.compare:compare",
            export="tasks.image_classification.export:export",
            compare_precision="tasks.classification:compare_precision",
            usage='sightline.load("{name}").predict("image.png")',
            has_images=True,
        ),
        TaskSpec(
            name="translation",
            config="tasks.translation.config:TranslationTaskConfig",
            task="tasks.translation.task:TranslationTask",
            predictor="tasks.translation.predictor:TranslationPredictor",
            compare="tasks.translation.compare:compare",
            export="tasks.translation.export:export",
            usage='sightline.load("{name}").predict("…")',
            compare_precision="tasks.translation.evaluate:compare_precision",
        ),
        TaskSpec(
            name="captioning",
            config="tasks.captioning.config:CaptioningTaskConfig",
            task="tasks.captioning.task:CaptioningTask",
            predictor="tasks.captioning.predictor:CaptioningPredictor",
            usage='sightline.load("{name}").predict("photo.jpg")',
            compare="tasks.captioning.compare:compare",
            export="tasks.captioning.export:export",
            compare_precision="tasks.captioning.evaluate:compare_precision",
        ),
        TaskSpec(
            name="few_shot",
            config="tasks.few_shot.config:FewShotTaskConfig",
            task="tasks.few_shot.task:FewShotTask",
            predictor="tasks.few_shot.predictor:FewShotPredictor",
            usage='FewShotClassifier.pretrained("{name}").fit("folder/")',
            has_images=True,
            compare="tasks.few_shot.compare:compare",
            export="tasks.few_shot.export:export",
            compare_options=frozenset({"baselines", "settings", "episodes"}),
            compare_precision="tasks.few_shot.compare:compare_precision",
        ),
        TaskSpec(
            name="masked_lm",
            config="tasks.masked_lm.config:MaskedLMTaskConfig",
            task="tasks.masked_lm.task:MaskedLMTask",
            predictor="tasks.masked_lm.predictor:MaskedLMPredictor",
            usage='sightline.load("{name}").predict("A [MASK] runs.")',
            compare="tasks.masked_lm.compare:compare",
            export="tasks.text_export:export",
            compare_precision="tasks.masked_lm.evaluate:compare_precision",
        ),
        TaskSpec(
            name="text_classification",
            config="tasks.text_classification.config:TextClassificationTaskConfig",
            task="tasks.text_classification.task:TextClassificationTask",
            predictor="tasks.text_classification.predictor:TextClassificationPredictor",
            usage='sightline.load("{name}").predict("…")',
            compare="tasks.text_classification.compare:compare",
            export="tasks.text_export:export",
            compare_precision="tasks.classification:compare_precision",
        ),
    )
}
