"""Configs: frozen dataclasses that are built from YAML and `key=value`, and checked before anything else happens.

An error names the full key, the rule, and the closest known key.
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

from . import limits
from .errors import SightlineError, one_of

Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class Typed:
    """The right side of a `key=value`. Its type follows from the key."""

    text: str


def read(path: Path) -> dict[str, Any]:
    """The values of a YAML file."""
    if not path.is_file():
        raise SightlineError(f"a config must be a YAML file, got {str(path)!r}, which is not a file")
    if (size := path.stat().st_size) > limits.MAX_CONFIG_BYTES:
        raise SightlineError(f"a config must be at most {limits.MAX_CONFIG_BYTES:,} bytes, got {size:,} in {path}")
    try:
        values = parse(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise SightlineError(f"{path} must be a config in YAML, got an error: {error}") from error
    if not isinstance(values, dict):
        raise SightlineError(f"{path} must hold keys and values, got {type(values).__name__}")
    return values


def parse(text: str) -> Any:
    """The values of YAML text."""
    return yaml.load(text, _Loader)  # noqa: S506 - a subclass of SafeLoader


def change(values: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """A copy of the values with each `section.key=value` applied."""
    result = {key: change(value, ()) if isinstance(value, Mapping) else value for key, value in values.items()}
    for text in changes:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise SightlineError(f"a change must read key=value, got {text!r}")
        *sections, key = name.strip().split(".")
        target = result
        for section in sections:
            target = target.setdefault(section, {})
            if not isinstance(target, dict):
                raise SightlineError(f"{name.strip()} must name a key inside a section, got {section!r}, a value")
        target[key] = Typed(value.strip())
    return result


def build(kind: type[Config], values: Mapping[str, Any], section: str = "") -> Config:
    """A config of this class from plain values; `section` is the prefix of its keys in messages."""
    if not isinstance(values, Mapping):
        raise SightlineError(f"{section or kind.__name__} must be a section of keys and values, got {values!r}")
    hints = typing.get_type_hints(kind)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            raise SightlineError(f"{_join(section, str(key))}: a key here must be {one_of(str(key), fields)}")
    given = {key: _convert(fields[key], value, _join(section, key)) for key, value in values.items()}
    missing = [field.name for field in dataclasses.fields(kind) if field.name not in given and _is_required(field)]  # type: ignore[arg-type]
    if missing:
        raise SightlineError(f"{', '.join(_join(section, name) for name in missing)} must be given, got nothing")
    try:
        return kind(**given)
    except SightlineError as error:
        raise SightlineError(f"{section}: {error}" if section else str(error)) from error


def plain(config: Any) -> dict[str, Any]:
    """The values of a config, as `build` takes them."""
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def dump(config: Any) -> str:
    """A config as YAML, in the order of its fields."""
    return yaml.dump(plain(config), Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=True)


def _join(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


def _convert(kind: Any, value: Any, name: str) -> Any:
    """The value as this type, or an error that names the key."""
    options = _options(kind)
    if isinstance(value, Typed):
        text = value.text
        if str in options or (_choices(kind) and text in _choices(kind)):
            value = None if text in ("null", "~") and type(None) in options else text
        else:
            try:
                value = parse(text)
            except (ValueError, yaml.YAMLError, RecursionError):
                value = text
    if value is None and type(None) in options:
        return None
    for option in options:
        converted = _as(option, value, name)
        if converted is not _NO_MATCH:
            return converted
    raise SightlineError(f"{name} must be {_describe(kind)}, got {_shown(value)}" + _hint(kind, value))


_NO_MATCH = object()


def _as(kind: Any, value: Any, name: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return build(kind, value, name) if isinstance(value, Mapping) else _NO_MATCH
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
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return _NO_MATCH
    if kind in (int, float, str) and isinstance(value, kind) and not isinstance(value, bool):
        return value
    if kind is bool and isinstance(value, bool):
        return value
    return _NO_MATCH


def _options(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)


def _choices(kind: Any) -> list[Any]:
    return [
        choice
        for option in _options(kind)
        if typing.get_origin(option) is Literal
        for choice in typing.get_args(option)
    ]


_TYPE_NAMES = {int: "an integer", float: "a number", str: "text", bool: "true or false", type(None): "null"}


def _describe(kind: Any) -> str:
    names = []
    for option in _options(kind):
        if typing.get_origin(option) is Literal:
            names.append("one of " + ", ".join(map(str, typing.get_args(option))))
        elif typing.get_origin(option) is tuple:
            items = typing.get_args(option)
            names.append("a list" if items[-1] is Ellipsis else f"a list of {len(items)}")
        elif dataclasses.is_dataclass(option):
            names.append("a section of keys and values")
        else:
            names.append(_TYPE_NAMES.get(option, getattr(option, "__name__", str(option))))
    return " or ".join(names)


def _shown(value: Any) -> str:
    """The value in a message; Python refuses to print integers of many digits."""
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"an integer of {value.bit_length()} bits"
    return f"{value!r:.200}"


def _hint(kind: Any, value: Any) -> str:
    choices = [str(choice) for choice in _choices(kind)]
    _, _, hint = one_of(_shown(value), choices).rpartition("; ") if choices else ("", "", "")
    return f"; {hint}" if hint.startswith("did you mean") else ""


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return plain(value)
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _is_required(field: Any) -> bool:
    return field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


class _Loader(yaml.SafeLoader):
    """Reads 1e-4 as a number and dates as text, and refuses aliases, tags and repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise SightlineError("a config must hold no YAML aliases, got one; repeat the value")
        if (tag := getattr(self.peek_event(), "tag", None)) is not None:
            raise SightlineError(f"a config must hold no YAML tags, got {tag!r:.100}; write the value alone")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        for key, count in Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)).items():
            if count > 1:
                raise SightlineError(f"a section must hold each key once, got {key!r} {count} times")
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
