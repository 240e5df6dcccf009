"""Large answers as JSON, encoded in pieces."""

import json
from collections.abc import Iterator
from typing import Any

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def to_json(value: Any) -> bytes:
    """JSON bytes of plain values. Other threads run between the pieces: one call of the encoder would stop them."""
    return "".join(_pieces(value)).encode()


def _pieces(value: Any) -> Iterator[str]:
    """The text of a value. A list of numbers or texts is one piece."""
    if isinstance(value, dict):
        for i, (key, item) in enumerate(value.items()):
            yield f"{',' if i else '{'}{_ENCODER.encode(str(key))}:"
            yield from _pieces(item)
        yield "}" if value else "{}"
    elif isinstance(value, list | tuple) and value and isinstance(value[0], dict | list | tuple):
        for i, item in enumerate(value):
            yield "," if i else "["
            yield from _pieces(item)
        yield "]"
    else:
        yield _ENCODER.encode(value)
