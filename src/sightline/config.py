"""Configurations: frozen dataclasses read from YAML and `key=value`, refused before anything is made if they are wrong.

A wrong key, type or value is answered with the key's full name, the rule and the nearest known key.
"""

import dataclasses
import re
import types
import typing
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from .errors import SightlineError, one_of

Config = TypeVar("Config")
MOST_BYTES = 1 << 16
"""No configuration is larger; a file that is, is something else."""


@dataclasses.dataclass(frozen=True)
class Typed:
    """The right side of a `key=value`: what it means depends on the key."""

    text: str


def read(path: Path) -> dict[str, Any]:
    """A YAML file as plain values."""
    if not path.is_file():
        raise SightlineError(f"a configuration must be a YAML file, got {str(path)!r}, which is not a file")
    if path.stat().st_size > MOST_BYTES:
        raise SightlineError(
            f"a configuration must be at most {MOST_BYTES:,} bytes, got {path.stat().st_size:,} in {path}"
        )
    try:
        values = parse(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise SightlineError(f"{path} must be a configuration in YAML, got an error: {error}") from error
    if not isinstance(values, dict):
        raise SightlineError(f"{path} must hold keys and values, got {type(values).__name__}")
    return values


def parse(text: str) -> Any:
    """YAML text as plain values."""
    return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader underneath


def change(values: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """The values with each `some.key=value` put in its place."""
    result = {key: change(value, ()) if isinstance(value, Mapping) else value for key, value in values.items()}
    for entry in changes:
        name, equals, text = entry.partition("=")
        if not equals or not name.strip():
            raise SightlineError(f"a change must read key=value, got {entry!r}")
        *path, last = name.strip().split(".")
        home = result
        for part in path:
            home = home.setdefault(part, {})
            if not isinstance(home, dict):
                raise SightlineError(f"{name.strip()} must name a key inside a section, got {part!r}, which is a value")
        home[last] = Typed(text.strip())
    return result


def build(kind: type[Config], values: Mapping[str, Any], where: str = "") -> Config:
    """A configuration of this kind from plain values; `where` is the name of the section, for messages."""
    if not isinstance(values, Mapping):
        raise SightlineError(f"{where or kind.__name__} must be a section of keys and values, got {values!r}")
    hints = typing.get_type_hints(kind)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            full = f"{where}.{key}" if where else key
            raise SightlineError(f"{full}: a key here must be {one_of(str(key), fields)}")
    given = {key: _value(fields[key], value, f"{where}.{key}" if where else key) for key, value in values.items()}
    try:
        return kind(**given)
    except ValueError as error:
        raise SightlineError(f"{where}: {error}" if where else str(error)) from error
    except TypeError as error:
        missing = [f.name for f in dataclasses.fields(kind) if f.name not in given and _required(f)]  # type: ignore[arg-type]
        if not missing:
            raise
        names = ", ".join(f"{where}.{name}" if where else name for name in missing)
        raise SightlineError(f"{names} must be given, got nothing") from error


def plain(config: Any) -> dict[str, Any]:
    """A configuration as plain values, as `build` reads them."""
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def dump(config: Any) -> str:
    """A configuration as YAML, in the order of its fields."""
    return yaml.dump(plain(config), Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=True)


def _value(kind: Any, value: Any, name: str) -> Any:
    """The value as this type, or an error that names the key."""
    options = _options(kind)
    if isinstance(value, Typed):
        text = value.text
        if str in options or (_choices(kind) and text in _choices(kind)):
            value = None if text in ("null", "~") and type(None) in options else text
        else:
            try:
                value = parse(text)
            except (ValueError, yaml.YAMLError):
                value = text
    if value is None and type(None) in options:
        return None
    for option in options:
        converted = _as(option, value, name)
        if converted is not _NO:
            return converted
    raise SightlineError(f"{name} must be {_describe(kind)}, got {value!r}" + _hint(kind, value))


_NO = object()


def _as(kind: Any, value: Any, name: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return build(kind, value, name) if isinstance(value, Mapping) else _NO
    if origin is Literal:
        return value if any(value == choice and type(value) is type(choice) for choice in arguments) else _NO
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return _NO
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(kinds) != len(value):
            return _NO
        return tuple(_value(one, part, f"{name}[{i}]") for i, (one, part) in enumerate(zip(kinds, value, strict=True)))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (int, float, str) and isinstance(value, kind) and not isinstance(value, bool):
        return value
    if kind is bool and isinstance(value, bool):
        return value
    return _NO


def _options(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)


def _choices(kind: Any) -> list[Any]:
    return [
        choice
        for option in _options(kind)
        if typing.get_origin(option) is Literal
        for choice in typing.get_args(option)
    ]


_WORDS = {int: "an integer", float: "a number", str: "text", bool: "true or false", type(None): "null"}


def _describe(kind: Any) -> str:
    words = []
    for option in _options(kind):
        if typing.get_origin(option) is Literal:
            words.append("one of " + ", ".join(map(str, typing.get_args(option))))
        elif typing.get_origin(option) is tuple:
            inner = typing.get_args(option)
            many = inner[-1] is Ellipsis
            words.append("a list" if many else f"a list of {len(inner)}")
        elif dataclasses.is_dataclass(option):
            words.append("a section of keys and values")
        else:
            words.append(_WORDS.get(option, getattr(option, "__name__", str(option))))
    return " or ".join(words)


def _hint(kind: Any, value: Any) -> str:
    choices = [str(choice) for choice in _choices(kind)]
    _, _, hint = one_of(str(value), choices).rpartition("; ") if choices else ("", "", "")
    return f"; {hint}" if hint.startswith("did you mean") else ""


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return plain(value)
    return [_plain(part) for part in value] if isinstance(value, tuple | list) else value


def _required(field: Any) -> bool:
    return field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


class _Loader(yaml.SafeLoader):
    """Reads 1e-4 as a number, as everyone but YAML 1.1 does, and refuses what a configuration has no use for."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise SightlineError("no YAML aliases, please: write the value again")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        for key, times in Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)).items():
            if times > 1:
                raise SightlineError(f"each key must stand once in a section, got {key!r} {times} times")
        return super().construct_mapping(node, deep)


_DATES_AND_FLOATS = ("tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _DATES_AND_FLOATS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?((\d[\d_]*\.[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.inf|\.nan)$"),
    list("-+0123456789."),
)
