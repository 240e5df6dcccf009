"""Configs: frozen dataclasses that are built from YAML and `key=value`, and checked before anything else happens.

A field's type says what its value must be: `Literal` lists choices, and `Annotated[int, at_least(1)]` adds a rule; a
text in it says what the value is. An error names the full key, the rule, and the closest known key.
"""

import dataclasses
import itertools
import math
import re
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml

from . import limits
from .errors import SightlineError, check, check_choice, check_int, check_max, closest, reraise, shown

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Rule = Callable[[str, Any], None]
"""A check in `Annotated`: gets the name and the value of a field and raises SightlineError."""


def rule(text: str, holds: Callable[[Any], object]) -> Rule:
    """The rule that a value must be `text`, such as "above 0"."""
    return lambda name, value: check(holds(value), f"{name} must be {text}, got {value!r}")


def at_least(minimum: int) -> Rule:
    """The rule that an integer has this minimum."""
    return lambda name, value: check_int(minimum, **{name: value})


def at_most(limit: str) -> Rule:
    """The rule that a number is at most a limit of `sightline.limits`, given by its name."""
    return lambda name, value: check_max(getattr(limits, limit), **{name: value})


def choice(known: Iterable[str]) -> Rule:
    """The rule that a text is one of the known names."""
    return partial(check_choice, known=known)


PositiveInt = Annotated[int, at_least(1)]
ModelDim = Annotated[int, at_least(1), at_most("MAX_MODEL_DIM")]
NonNegativeInt = Annotated[int, at_least(0)]
Fraction = Annotated[float, rule("at least 0 and below 1", lambda value: 0 <= value < 1)]
Positive = Annotated[float, rule("above 0 and finite", lambda value: 0 < value < math.inf)]
MlpRatio = Annotated[float, rule("above 0 and at most 100", lambda ratio: 0 < ratio <= 100)]
NonNegative = Annotated[float, rule("at least 0 and finite", lambda value: 0 <= value < math.inf)]


def _cached(function: F) -> F:
    """A function of a class that computes its result once."""
    return typing.cast(F, cache(function))


class Config:
    """Base class of config dataclasses: the constructor checks every value against the type of its field."""

    data_keys: typing.ClassVar[tuple[str, ...]] = ()
    """Fields that follow from the data if they are null. They are not inherited from another run."""

    def __post_init__(self) -> None:
        for name, kind in _field_types(type(self)).items():
            object.__setattr__(self, name, _convert(kind, getattr(self, name), name))


@dataclasses.dataclass(frozen=True)
class Typed:
    """The right side of a `key=value`. Its type follows from the key."""

    text: str


def untyped(value: Any) -> Any:
    """The text of a `Typed` value; other values are returned as they are."""
    return value.text if isinstance(value, Typed) else value


def read(path: Path, noun: str = "a config") -> dict[str, Any]:
    """The values of a YAML file; `noun` is what messages call it."""
    check(path.is_file(), f"{noun} must be a YAML file, got {str(path)!r}, which is not a file")
    size, limit = path.stat().st_size, limits.MAX_CONFIG_BYTES
    check(size <= limit, f"{noun} must be at most {limit:,} bytes, got {size:,} in {path}")
    with reraise(f"{path} must be {noun} in YAML", ValueError, yaml.YAMLError, RecursionError):
        values = parse(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise SightlineError(f"{path} must hold keys and values, got {type(values).__name__}")
    return values


def parse(text: str) -> Any:
    """The values of YAML text."""
    return yaml.load(text, _Loader)  # noqa: S506 - a subclass of SafeLoader


def change(values: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """A copy of the values with each `section.key=value` applied."""
    return assign(values, parse_changes(changes))


def parse_changes(changes: Iterable[str]) -> dict[str, Typed]:
    """The values of `section.key=value` by their keys."""
    parsed = {}
    for text in changes:
        key, equals, value = map(str.strip, text.partition("="))
        check(equals and key, f"a change must read key=value, got {text!r}")
        parsed[key] = Typed(value)
    return parsed


def assign(values: Mapping[str, Any], assigned: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the values with each `section.key` set to a value."""
    result = {key: assign(value, {}) if isinstance(value, Mapping) else value for key, value in values.items()}
    for name, value in assigned.items():
        *sections, key = name.split(".")
        target = result
        for section in sections:
            target = target.setdefault(section, {})
            check(isinstance(target, dict), f"{name} must name a key inside a section, got {section!r}, a value")
        target[key] = value
    return result


def build(kind: type[T], values: Mapping[str, Any], section: str = "") -> T:
    """A config of this class from plain values; `section` is the prefix of its keys in messages."""
    if not isinstance(values, Mapping):
        raise SightlineError(f"{section or kind.__name__} must be a section of keys and values, got {values!r}")
    field_types, prefix = _field_types(kind), f"{section}." if section else ""
    for key in values:
        _check_known(field_types, key, prefix)
    given = {key: _convert(field_types[key], value, f"{prefix}{key}") for key, value in values.items()}
    for name in _required(kind):
        check(name in given, f"{prefix}{name} must be given, got nothing")
    with _errors_of(section):
        return kind(**given)


def check_value(kind: Any, key: str, value: Any) -> None:
    """The value of a `section.key` must suit its field; other fields are not looked at."""
    _convert(type_of_key(kind, key), value, key)


def is_integer(kind: Any, key: str) -> bool:
    """Whether numbers at a `section.key` are integers."""
    options = {_without_rules(option) for option in _options(type_of_key(kind, key))}
    return int in options and float not in options


def type_of_key(kind: Any, key: str) -> Any:
    """The type of a `section.key`."""
    prefix = ""
    for name in key.split("."):
        check(dataclasses.is_dataclass(kind), f"{key} must name a key inside a section, got {prefix[:-1]!r}, a value")
        _check_known(field_types := _field_types(kind), name, prefix)
        kind, prefix = field_types[name], f"{prefix}{name}."
    return kind


def _check_known(field_types: Mapping[str, Any], key: Any, prefix: str) -> None:
    if key not in field_types:
        hint = _closest_key(field_types, str(key), prefix)
        raise SightlineError(f"{prefix}{key} must be a known key{hint}; known keys are {', '.join(field_types)}")


def for_data(config: T, **sizes: Any) -> T:
    """The config of a model with the sizes of the data. A size that the config sets must be the same."""
    for name, size in sizes.items():
        value = getattr(config, name)
        check(value in (None, size), f"model.{name} must be null or that of the data, {size}, got {value}")
    with _errors_of("model"):
        return dataclasses.replace(config, **sizes)  # type: ignore[type-var]


@contextmanager
def _errors_of(section: str) -> Iterator[None]:
    """Add the section's name to an error about its values."""
    try:
        yield
    except SightlineError as error:
        raise SightlineError(f"{section}: {error}" if section else str(error)) from error


def section_type(kind: Any, name: str) -> Any:
    """The class of a section of a config class."""
    return _field_types(kind)[name]


def inherit(kind: Any, values: Mapping[str, Any], source: Any) -> dict[str, Any]:
    """The values of a config of this class with those of `source`, plain values of a similar config, where not given.

    Keys that the class does not know, and those that follow from the data, are not inherited.
    """
    result = dict(values)
    for name, field_type in _field_types(kind).items():
        if not isinstance(source, Mapping) or name not in source or name in getattr(kind, "data_keys", ()):
            continue
        if dataclasses.is_dataclass(field_type) and isinstance(values.get(name, {}), Mapping):
            result[name] = inherit(field_type, values.get(name, {}), source[name])
        elif name not in values:
            result[name] = source[name]
    return result


def plain(config: Any) -> dict[str, Any]:
    """The values of a config, as `build` takes them."""
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def dump(config: Any) -> str:
    """A config as YAML, in the order of its fields."""
    return yaml.dump(plain(config), Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=True)


@_cached
def _field_types(kind: Any) -> Mapping[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@_cached
def _required(kind: Any) -> list[str]:
    parameters = signature(kind).parameters.items()
    return [name for name, parameter in parameters if parameter.default is parameter.empty]


def _closest_key(field_types: Mapping[str, Any], key: str, prefix: str) -> str:
    """Part of an error message: the key of this name in a section, or the closest key."""
    sections = (
        name for name, kind in field_types.items() if dataclasses.is_dataclass(kind) and key in _field_types(kind)
    )
    nested = [f"; did you mean '{prefix}{name}.{key}'?" for name in sections]
    return nested[0] if nested else closest(key, field_types)


def _convert(kind: Any, value: Any, name: str) -> Any:
    """The value as this type, or an error that names the key."""
    options = _options(kind)
    literals = [typing.get_args(option) for option in options if typing.get_origin(option) is Literal]
    choices = list(itertools.chain(*literals))
    if isinstance(value, Typed):
        value = _parse_typed(value.text, options, choices)
    if isinstance(value, int) and value.bit_length() > limits.MAX_INT_BITS:  # too long to be printed, or for a tensor
        rule = f"{name} must be an integer of at most {limits.MAX_INT_BITS} bits"
        raise SightlineError(f"{rule}, got one of {value.bit_length()} bits")
    for option in options:
        converted = _as(option, value, name)
        if converted is not _NO_MATCH:
            return converted
    expected, text = " or ".join(map(_describe, options)), value if isinstance(value, str) else shown(value)
    raise SightlineError(f"{name} must be {expected}, got {shown(value)}{closest(text, choices)}")


def _options(kind: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    return typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)


def _parse_typed(text: str, options: tuple[Any, ...], choices: list[Any]) -> Any:
    """The value of a `key=value` whose key has these types: the text itself where text is expected."""
    if text in choices or str in map(_without_rules, options):
        return None if text in ("null", "~") and type(None) in options else text
    try:
        return parse(text)
    except (ValueError, yaml.YAMLError, RecursionError):
        return text


_NO_MATCH = object()


def _as(kind: Any, value: Any, name: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        converted = _as(arguments[0], value, name)
        for check_rule in filter(callable, arguments[1:]) if converted is not _NO_MATCH else ():
            check_rule(name, converted)
        return converted
    if origin is Literal:
        return value if any(value == choice and type(value) is type(choice) for choice in arguments) else _NO_MATCH
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return _NO_MATCH
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(kinds) != len(value):
            return _NO_MATCH
        items = enumerate(zip(kinds, value, strict=True))
        return tuple(_convert(item_kind, item, f"{name}[{i}]") for i, (item_kind, item) in items)
    if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        return build(kind, value, name)  # type: ignore[arg-type]
    if kind is float and type(value) is int:
        return float(value)
    if not isinstance(kind, type | types.UnionType):
        raise TypeError(f"the type of {name} must be a class, a Literal, a tuple or a union of these, got {kind}")
    return value if isinstance(value, kind) and isinstance(value, bool) == (kind is bool) else _NO_MATCH


def _without_rules(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind


_TYPE_NAMES = {int: "an integer", float: "a number", str: "text", bool: "true or false", type(None): "null"}


def _describe(kind: Any) -> str:
    kind, texts = _without_rules(kind), [item for item in getattr(kind, "__metadata__", ()) if isinstance(item, str)]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        return "a list" if arguments[-1] is Ellipsis else f"a list of {len(arguments)}"
    return texts[0] if texts else _TYPE_NAMES.get(kind, "a section of keys and values")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return plain(value)
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


class _Loader(yaml.SafeLoader):
    """Reads 1e-4 as a number and dates as text, and refuses aliases, tags and repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        is_alias, tag = self.check_event(yaml.AliasEvent), getattr(self.peek_event(), "tag", None)
        check(not is_alias, "a config must hold no YAML aliases, got one; repeat the value")
        check(tag is None, f"a config must hold no YAML tags, got {tag!r:.100}; write the value alone")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        for key, count in Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)).items():
            check(count == 1, f"a section must hold each key once, got {key!r} {count} times")
        return super().construct_mapping(node, deep)


_REPLACED_TAGS = ("tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED_TAGS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?((\d[\d_]*\.[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.inf|\.nan)$"),
    list("-+0123456789."),
)
