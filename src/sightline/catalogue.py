"""Names to tasks: where the command line and the models meet."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from .checks import nearest


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
        recipe="tasks.image_classification:Recipe",
        task="tasks.image_classification:ImageTask",
        predictor="tasks.image_predictor:ImagePredictor",
    ),
    "translation": Entry(
        recipe="tasks.translation:Recipe",
        task="tasks.translation:TranslationTask",
        predictor="tasks.translation_predictor:TranslationPredictor",
    ),
    "few_shot": Entry(
        recipe="tasks.few_shot:Recipe",
        task="tasks.few_shot:FewShotTask",
        predictor="tasks.few_shot_predictor:FewShotPredictor",
        use='FewShotClassifier.pretrained("folder").fit("images/")',
    ),
}
DEFAULT = "image_classifier"


def entry(name: object) -> Entry:
    """The task of this name."""
    if not isinstance(name, str) or name not in TASKS:
        raise ValueError(f"task must be {nearest(str(name), TASKS)}")
    return TASKS[name]
