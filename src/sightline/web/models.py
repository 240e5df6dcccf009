"""The served models: what they are, and predictions in batches."""

import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import config, hub, limits, runs, zoo
from ..attention import ablate_heads
from ..errors import MissingDependencyError, SightlineError, SightlineWarning, check, one_of
from ..files import CONFIG
from ..names import shortened
from ..predictor import Predictor
from ..results import FailedPrediction
from . import descriptions
from .batching import Batcher
from .errors import RequestError

FEW_SHOT = "few_shot"
SLOW_CHARS = 200
"""Characters from which on a text runs apart from shorter ones."""
MAX_BATCH = 32
LANGUAGES = {"de": "German", "en": "English", "es": "Spanish", "fr": "French", "it": "Italian", "ko": "Korean"}


@dataclass(frozen=True)
class Options:
    """How inputs are predicted. Inputs with equal options run together."""

    top_k: int | None = None
    num_beams: int | None = None
    inspect: bool = False
    ablate_heads: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names of layers with the heads to switch off; no heads means all of them."""

    def to_predict(self) -> dict[str, Any]:
        """The options of `Predictor.predict_batch`."""
        beams = {} if self.num_beams is None else {"num_beams": self.num_beams}
        return {"top_k": self.top_k, **beams}


@dataclass(frozen=True)
class Input:
    """A prepared input, and what was removed from it."""

    prepared: Any
    tokens: tuple[tuple[str, bool], ...] = ()
    """All tokens of the input, and whether each can be removed."""
    removed: frozenset[int] = frozenset()

    def values(self) -> dict[str, Any]:
        """Plain values beside those of an inspection."""
        return {
            "input_tokens": [text for text, _ in self.tokens],
            "removable": [is_removable for _, is_removable in self.tokens],
            "kept": [i for i in range(len(self.tokens)) if i not in self.removed],
        }


class ServedModel:
    """A trained model with its queues: short inputs, and those that take longer or run alone."""

    def __init__(self, name: str, task: str, predictor: Predictor, threads: int = 1) -> None:
        self.name, self.task, self.predictor = name, task, predictor
        self._quick = Batcher(name, self._run, MAX_BATCH, threads)
        self._slow = Batcher(f"{name} slow", self._run, MAX_BATCH)

    def close(self) -> None:
        """Finish what waits."""
        self._quick.close()
        self._slow.close()

    def describe(self) -> dict[str, Any]:
        """Plain values for the list of models."""
        predictor, details = self.predictor, self.predictor.details()
        special = getattr(getattr(predictor, "tokenizer", None), "special_tokens", None)
        mask = getattr(special, "mask", None) if self.task == "masked_lm" else None
        classes = details.get("classes")
        return {
            "name": self.name,
            "task": self.task,
            "input": predictor.input_kind,
            "title": " ".join(LANGUAGES.get(word, word) for word in details.get("languages", self.name).split(" ")),
            "description": descriptions.description(self.name, predictor),
            "options": sorted(predictor.predict_options),
            "examples": descriptions.examples(self.name, self.task, predictor, mask),
            "pens": descriptions.pens(self.task, predictor),
            "max_chars": limits.MAX_WEB_TEXT_CHARS,
            "max_tokens": predictor.max_input_tokens,
            "has_attention": predictor.has_attention,
            "mask": mask,
            "classes": None if classes is None else list(classes),
        }

    def check_options(self, options: Options) -> None:
        """Check the options of a request for this model."""
        if options.num_beams is not None:
            is_known = "num_beams" in self.predictor.predict_options
            check(is_known, f"num_beams must be left out for {self.name}, got {options.num_beams}")
        has_heads = self.task != FEW_SHOT
        check(has_heads or not options.ablate_heads, f"ablate_heads must be left out for {self.name}, got it")

    def prepare(self, item: Any, remove: Sequence[int] = ()) -> Input | FailedPrediction:
        """Read one input; a failed prediction if it cannot be used."""
        predictor = self.predictor
        try:
            prepared = predictor.prepare(item)
            tokens = tuple((token.text, token.is_removable) for token in predictor.input_tokens(prepared))
            return Input(predictor.remove_tokens(prepared, remove), tokens, frozenset(remove))
        except SightlineError as error:
            return FailedPrediction(str(error))

    async def predict(self, item: Input, options: Options, size: int = 0) -> Any:
        """A prediction, or a prediction and its inspection; `size` is the length of a text."""
        is_slow = options.ablate_heads or size > SLOW_CHARS
        return await (self._slow if is_slow else self._quick).submit(options, item)

    def _run(self, options: Options, items: list[Input]) -> Sequence[Any]:
        prepared = [item.prepared for item in items]
        heads: Mapping[Any, Any] = {
            int(layer) if layer.isdigit() else layer: indices or None for layer, indices in options.ablate_heads
        }
        with ablate_heads(self.predictor.model, heads) if heads else nullcontext():
            if not options.inspect:
                return self.predictor.predict_batch(prepared, **options.to_predict())
            return self.predictor.inspect_batch(prepared, **options.to_predict())


class ServedModels:
    """All served models, and the few-shot models that classifiers can be fitted with."""

    def __init__(self, sources: Sequence[str], threads: int = 1) -> None:
        self.models: dict[str, ServedModel] = {}
        self._threads, self._sources = threads, tuple(sources)
        self.few_shot: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        """Pretrained models that are not served because a dependency is not installed, and how to install it."""
        for source in sources:
            self._add(source)
        for name in () if sources else zoo.names():
            try:
                self._add(str(zoo.HOME / name))  # whatever the working folder has
            except MissingDependencyError as error:
                self.missing[name] = str(error)
                warnings.warn(f"{name} is not served: {error}", SightlineWarning, stacklevel=2)
        self.pretrained: dict[str, list[str]] = {}
        """The names of the pretrained models of the package by task."""
        for name in zoo.names():
            self.pretrained.setdefault(_task(zoo.HOME / name), []).append(name)
        for name in self.pretrained.get(FEW_SHOT, ()):
            self.few_shot.setdefault(name, name)

    def __getitem__(self, name: str) -> ServedModel:
        if name in self.models:
            return self.models[name]
        fix = "; it fits classifiers: use /api/classifiers" if name in self.few_shot else ""
        rule = one_of(name[:100], self.models) if self.models else f"served, got {name[:100]!r} where none is"
        raise RequestError(404, f"model must be {rule}{fix}")

    @property
    def sources(self) -> tuple[str, ...]:
        """What the command line must name to serve these models."""
        return self._sources or tuple(self.models)

    def close(self) -> None:
        """Finish what waits."""
        for model in self.models.values():
            model.close()

    def _add(self, source: str) -> None:
        folder, task = source_task(source)
        is_file = folder.suffix == runs.CLASSIFIER
        name = self._free_name(shortened(folder.name.removesuffix(runs.CLASSIFIER), limits.MAX_WEB_NAME_CHARS))
        if task == FEW_SHOT and not is_file:  # classifiers are fitted with it
            self.few_shot[name] = str(folder)
            return
        predictor = runs.load(source)
        predictor.check_ready()
        self.models[name] = ServedModel(name, task, predictor, self._threads)

    def _free_name(self, name: str) -> str:
        candidate, number = name or "model", 2
        while candidate in self.models or candidate in self.few_shot:
            candidate, number = f"{name}-{number}", number + 1
        return candidate


def answer(prediction: Any, item: Input | FailedPrediction, form: Any) -> dict[str, Any]:
    """A prediction, with its inspection if there is one, as plain values."""
    if isinstance(prediction, tuple):
        result, inspection = prediction
        assert isinstance(item, Input)
        return {**result.to_dict(), "inspection": {**item.values(), **inspection.to_dict(form)}}
    values: dict[str, Any] = prediction.to_dict()
    return {**values, "inspection": None}


def source_task(source: str) -> tuple[Path, str]:
    """The folder or file of a model and its task; an error if there is no such model."""
    folder = hub.run_folder(source)
    if folder.suffix == runs.CLASSIFIER and not folder.is_dir():
        check(folder.is_file(), f"a model must exist, got {source!r}, which does not")
        return folder, FEW_SHOT
    runs.predictor_class(source, folder)
    return folder, _task(folder)


class Stopwatch:
    """The time since it was made, in seconds."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Rounded to 0.1 ms."""
        return round(time.perf_counter() - self._start, 4)


def _task(folder: Path) -> str:
    """The task of a run."""
    return str(config.read(folder / CONFIG).get("task", ""))
