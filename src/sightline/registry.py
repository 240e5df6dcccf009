"""Names to tasks: where the command line and the models meet."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from .errors import SightlineError, one_of


@dataclass(frozen=True)
class Entry:
    """One task: `module:name` of what configures it, what trains, and what works afterwards."""

    recipe: str
    task: str
    predictor: str
    use: str = "sightline.load(folder).predict(input)"
    """How a trained model is put to work, for its card."""

    def get(self, what: str) -> Any:
        """The class behind one of these names."""
        module, name = getattr(self, what).split(":")
        return getattr(import_module(f"{__package__}.{module}"), name)


TASKS: dict[str, Entry] = {
    "image_classifier": Entry(
        recipe="tasks.image_classification.task:Recipe",
        task="tasks.image_classification.task:ImageTask",
        predictor="tasks.image_classification.predictor:ImagePredictor",
    ),
    "translation": Entry(
        recipe="tasks.translation.task:Recipe",
        task="tasks.translation.task:TranslationTask",
        predictor="tasks.translation.predictor:TranslationPredictor",
    ),
    "few_shot": Entry(
        recipe="tasks.few_shot.task:Recipe",
        task="tasks.few_shot.task:FewShotTask",
        predictor="tasks.few_shot.predictor:FewShotPredictor",
        use='FewShotClassifier.pretrained("folder").fit("images/")',
    ),
}
DEFAULT = "image_classifier"


def entry(name: object) -> Entry:
    """The task of this name."""
    if not isinstance(name, str) or name not in TASKS:
        raise SightlineError(f"task must be {one_of(str(name), TASKS)}")
    return TASKS[name]
