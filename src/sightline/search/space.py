"""The space of a search: which config keys vary, and over which values.

    model.score: [dot, cosine]                                        choices
    model.depth: {min: 1, max: 6}                                     a range of integers
    training.learning_rate: {min: 1e-4, max: 1e-2, log: true}         a range on a logarithmic scale
    model.head_dim: {choices: [8, 16], if: {model.score: cosine}}     only with another setting's value

A space is checked as a whole before the first trial. The error lists every problem.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import config, limits, seeds
from ..errors import SightlineError, check, closest, one_of, shown
from ..run_config import build_config, change_values, config_class

if TYPE_CHECKING:
    import optuna

Settings = dict[str, Any]
"""Values by config key."""
Accept = Callable[[Any], object]
"""Gets a config and raises an error if it does not fit."""
SPACES = Path(__file__).parent / "spaces"
"""Spaces of this package."""
FIXED_KEYS = ("task", "out")
"""Keys that are the same in all trials."""
RANGE_KEYS, CHOICE_KEYS = ("min", "max", "step", "log", "if"), ("choices", "if")
RANGE_RULE = "the keys min and max, and may have step, log and if"
FORMS = "[a, b] or {min: a, max: b}"
MAX_CHECKED_COMBINATIONS = 200
MAX_LISTED_PROBLEMS = 20
RANGE_SAMPLES = 8
"""Values of a range that are checked together with other settings."""
_MISSING = object()


@dataclass(frozen=True)
class Setting:
    """A config key that varies over choices or over a range."""

    key: str
    choices: tuple[Any, ...] = ()
    min: float = 0.0
    max: float = 0.0
    step: float | None = None
    log: bool = False
    integer: bool = False
    condition: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Other settings, each with the values for which this one is used. Otherwise the key keeps the config's value."""

    def is_active(self, settings: Mapping[str, Any]) -> bool:
        """Whether other settings meet the condition."""
        return all(settings.get(key, _MISSING) in values for key, values in self.condition.items())

    def suggest(self, trial: "optuna.trial.Trial") -> Any:
        """The value that Optuna suggests."""
        if self.choices:
            names = [stored(choice) for choice in self.choices]
            return self.choices[names.index(trial.suggest_categorical(self.key, names))]
        last = self.max if self.num_values is None else self.value(self.num_values - 1)
        if self.integer:
            return trial.suggest_int(self.key, int(self.min), int(last), step=int(self.step or 1), log=self.log)
        return trial.suggest_float(self.key, self.min, last, step=self.step, log=self.log)

    @property
    def num_values(self) -> int | None:
        """The number of values; None for a range of real numbers."""
        if self.choices:
            return len(self.choices)
        step = self.step or (1 if self.integer else None)
        return None if step is None else math.floor((self.max - self.min) / step + 1e-9) + 1

    def value(self, index: int) -> Any:
        """The value of this index, from 0 to `num_values` - 1."""
        if self.choices:
            return self.choices[index]
        value = Decimal(str(self.min)) + index * Decimal(str(self.step or 1))  # exact, unlike a sum of floats
        return int(value) if self.integer else min(float(value), self.max)

    def all_values(self) -> list[Any]:
        """All values of a setting that is no range of real numbers."""
        return [self.value(i) for i in range(self.num_values or 0)]

    def sample_values(self) -> list[Any]:
        """All choices; of a range its ends, and a few integers or steps between them."""
        count = self.num_values
        if count is None:
            return [self.min, self.max]
        if self.choices or count <= RANGE_SAMPLES:
            return self.all_values()
        return [self.value(int(i)) for i in np.linspace(0, count - 1, RANGE_SAMPLES).round()]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        values: dict[str, Any] = {"choices": list(self.choices)}
        if not self.choices:
            values = {"min": self.min, "max": self.max, "step": self.step, "log": self.log, "integer": self.integer}
        return {"key": self.key, **values, "if": {key: list(values) for key, values in self.condition.items()}}


@dataclass(frozen=True)
class Space:
    """The settings of a search. Each comes after those that its condition names."""

    settings: tuple[Setting, ...]

    def suggest(self, trial: "optuna.trial.Trial") -> Settings:
        """The values that Optuna suggests for the settings that are used."""
        settings: Settings = {}
        for setting in self.settings:
            if setting.is_active(settings):
                settings[setting.key] = setting.suggest(trial)
        return settings

    def grid(self) -> list[Settings]:
        """All combinations."""
        for setting in self.settings:
            fix = "write choices, or add a step"
            check(setting.num_values, f"{setting.key} must have single values for a grid, got a range; {fix}")
        limit = limits.MAX_SEARCH_TRIALS
        combinations = list(itertools.islice(_combinations(self.settings, Setting.all_values), limit + 1))
        check(len(combinations) <= limit, f"a grid must have at most {limit:,} combinations, got more")
        return combinations

    def samples(self) -> Iterator[Settings]:
        """All combinations of `sample_values` if they are few, else some that hold each value at least once."""
        if math.prod(len(setting.sample_values()) for setting in self.settings) <= MAX_CHECKED_COMBINATIONS:
            yield from _combinations(self.settings, Setting.sample_values)
            return
        random = seeds.make_generator(0, seeds.SEARCH)
        orders = [random.permutation(len(setting.sample_values())) for setting in self.settings]
        for i in range(MAX_CHECKED_COMBINATIONS):
            settings: Settings = {}
            for setting, order in zip(self.settings, orders, strict=True):
                index = order[i] if i < len(order) else random.integers(len(order))
                if setting.is_active(settings):
                    settings[setting.key] = setting.sample_values()[index]
            yield settings

    def check(self, values: Mapping[str, Any], accept: Accept) -> None:
        """Build the configs of `samples`; `accept` gets each and may raise. All errors are raised as one."""
        refused, misfits = self._problems(values, accept)
        _raise([*refused, *misfits])

    def _problems(self, values: Mapping[str, Any], accept: Accept) -> tuple[list[str], list[str]]:
        """The errors of building configs, and those of `accept`."""
        refused: list[str] = []
        misfits: list[str] = []
        for settings in self.samples():
            with _collected(refused):
                task_config = build_config(change_values(values, settings))
                with _collected(misfits):
                    accept(task_config)
        return refused, misfits


def stored(choice: Any) -> Any:
    """A choice as Optuna stores it: lists and sections as JSON text."""
    return json.dumps(choice) if isinstance(choice, list | dict) else choice


def read_space(
    source: str | Path | Mapping[str, Any],
    values: Mapping[str, Any],
    read_data: Callable[[], Accept] = lambda: lambda task_config: None,
) -> Space:
    """The space of a YAML file, of a file of the package by its name, or of a mapping, for a config of these values.

    If it has problems, `read_data` is called. Its result gets configs, and raises if they do not fit the data.
    """
    described = source if isinstance(source, Mapping) else config.read(_find(source), "a space")
    problems: list[str] = []
    with _collected(problems):
        check(described, "a space must have at least one key, got none")
    with _collected(problems):
        count, limit = len(described), limits.MAX_SEARCH_SETTINGS
        check(count <= limit, f"a space must have at most {limit} keys, got {count}")
    _raise(problems)
    kind, settings, valid = config_class(values), {}, []
    for key, value in described.items():
        known = len(problems)
        with _collected(problems):
            settings[key] = _parse_setting(kind, str(key), value, problems)
            valid += [settings[key]] if len(problems) == known and not settings[key].condition else []
    _check_conditions(settings, described, problems)
    if not problems:
        space = Space(tuple(_in_order(settings)))
        problems, _ = space._problems(values, lambda task_config: None)
        if not problems:
            return space
    if not changes_data(described):
        with _collected(problems):
            problems += Space(tuple(valid))._problems(values, read_data())[1]
    raise _error(problems)


def changes_data(keys: Iterable[str]) -> bool:
    """Whether some of these config keys change the data."""
    return any(key == "seed" or str(key).startswith("data.") for key in keys)


def _find(source: str | Path) -> Path:
    """The path of a space file; a name without a suffix is one of this package."""
    path, known = Path(source), {space.stem: space for space in SPACES.glob("*.yaml")}
    is_known = path.suffix or path.exists() or str(source) in known
    check(is_known, f"space must be a YAML file or {one_of(str(source), known)}")
    found = path if path.suffix or path.exists() else known[str(source)]
    check(found.is_file(), f"space must be a YAML file, got {str(source)!r}, which is not a file")
    return found


def _parse_setting(kind: Any, key: str, described: Any, problems: list[str]) -> Setting:
    check(key not in FIXED_KEYS, f"{key} must be the same in all trials, got it in the space; set it in the config")
    if isinstance(described, list):
        described = {"choices": described}
    is_range = isinstance(described, Mapping) and not {"min", "max"}.isdisjoint(described)
    is_choice = isinstance(described, Mapping) and "choices" in described
    check(is_range or is_choice, f"{key} must be {FORMS}, got {shown(described)}{_hint(key, described)}")
    known = CHOICE_KEYS if is_choice else RANGE_KEYS
    rule = f"{key} must have the key choices, and may have if" if is_choice else f"{key} must have {RANGE_RULE}"
    for name in described:
        check(name in known, f"{rule}, got {name!r}{closest(str(name), known)}")
    condition = _parse_condition(key, described.get("if", {}))
    setting = _parse_choices(key, described) if is_choice else _parse_range(kind, key, described)
    for value in setting.choices or (setting.min, setting.max):
        with _collected(problems):
            config.check_value(kind, key, int(value) if setting.integer else value)
    return Setting(**{**setting.__dict__, "condition": condition})


def _hint(key: str, described: Any) -> str:
    if isinstance(described, Mapping):
        return f"; write the whole key, such as {key}.{next(iter(described), 'KEY')}: ..."
    return f"; for a single value write [{shown(described)}]" if not isinstance(described, str) else ""


def _parse_choices(key: str, described: Mapping[str, Any]) -> Setting:
    choices, limit = described["choices"], limits.MAX_SEARCH_CHOICES
    is_list = isinstance(choices, list) and choices
    check(is_list, f"{key} must have at least one choice, got {shown(choices)}")
    check(len(choices) <= limit, f"{key} must have at most {limit:,} choices, got {len(choices):,}")
    for i, choice in enumerate(choices):
        is_new = not any(choice == other and type(choice) is type(other) for other in choices[:i])
        check(is_new, f"{key} must have different choices, got {shown(choice)} twice")
    return Setting(key, tuple(choices))


def _parse_range(kind: Any, key: str, described: Mapping[str, Any]) -> Setting:
    numbers = {name: described.get(name) for name in ("min", "max")}
    step, log, integer = described.get("step"), described.get("log", False), config.is_integer(kind, key)
    for name, value in (numbers | ({} if step is None else {"step": step})).items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        check(is_number, f"{key} must have a number as {name}, got {shown(value)}")
        is_whole = not integer or float(value or 0).is_integer()
        check(is_whole, f"{key} must have an integer as {name}, got {shown(value)}")
    low, high = numbers["min"], numbers["max"]
    assert low is not None
    assert high is not None
    check(low < high, f"{key} must have min below max, got {low} and {high}")
    check(isinstance(log, bool), f"{key} must have true or false as log, got {shown(log)}")
    check(not log or low > 0, f"{key} must have min above 0 with log, got {low}")
    check(not log or step is None, f"{key} must have either log or a step, got both")
    check(step is None or 0 < step <= high - low, f"{key} must have a step from 0 to max - min, got {step}")
    return Setting(key, min=low, max=high, step=step, log=log, integer=integer)


def _parse_condition(key: str, described: Any) -> dict[str, tuple[Any, ...]]:
    is_mapping = isinstance(described, Mapping)
    check(is_mapping, f"{key} must have another key and its values in `if`, got {shown(described)}")
    return {str(k): tuple(v) if isinstance(v, list) else (v,) for k, v in described.items()}


def _check_conditions(settings: Mapping[str, Setting], described: Mapping[str, Any], problems: list[str]) -> None:
    """Conditions must name other settings and values that these can have, without a cycle."""
    for setting in settings.values():
        for key, values in setting.condition.items():
            with _collected(problems):
                rule = f"{setting.key} must have keys of the space in `if`"
                check(key in described and key != setting.key, f"{rule}, got {key}{closest(key, described)}")
            for value in values if key in settings else ():
                choices = settings[key].choices
                with _collected(problems):
                    rule = f"{setting.key} must have values of {key} in `if`"
                    check(not choices or value in choices, f"{rule}, got {shown(value)}")
    with _collected(problems):
        _in_order({key: setting for key, setting in settings.items() if setting.condition.keys() <= settings.keys()})


def _in_order(settings: Mapping[str, Setting]) -> list[Setting]:
    """The settings, each after those that its condition names."""
    ordered: dict[str, Setting] = {}
    while len(ordered) < len(settings):
        waiting = [setting for setting in settings.values() if setting.key not in ordered]
        ready = [s for s in waiting if not (s.condition.keys() & settings.keys()) - ordered.keys()]
        names = ", ".join(setting.key for setting in waiting)
        check(ready, f"conditions must not depend on each other, got a cycle in {names}")
        ordered[ready[0].key] = ready[0]
    return list(ordered.values())


def _combinations(
    settings: Sequence[Setting], values: Callable[[Setting], Iterable[Any]], known: Settings | None = None
) -> Iterator[Settings]:
    """All combinations of the values of settings."""
    known = known or {}
    if not settings:
        yield known
    elif not settings[0].is_active(known):
        yield from _combinations(settings[1:], values, known)
    else:
        for value in values(settings[0]):
            yield from _combinations(settings[1:], values, {**known, settings[0].key: value})


@contextmanager
def _collected(problems: list[str]) -> Iterator[None]:
    """Append the message of an error to the problems."""
    try:
        yield
    except SightlineError as error:
        problems.append(str(error))


def _raise(problems: Sequence[str]) -> None:
    if problems:
        raise _error(problems)


def _error(problems: Iterable[str]) -> SightlineError:
    """One error that lists different problems."""
    different = list(dict.fromkeys(problems))
    listed = different[:MAX_LISTED_PROBLEMS]
    if len(different) > len(listed):
        listed.append(f"and {len(different) - len(listed)} more")
    lines = "".join(f"\n  {problem}" for problem in listed)
    number = f"{len(different)} problem{'s' if len(different) > 1 else ''}"
    return SightlineError(f"a space must be valid, got {number}:{lines}")
