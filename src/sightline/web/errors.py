"""Errors of the API beside `SightlineError`, and their sentences."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from ..names import shortened

MAX_SHOWN = 60
"""Characters of a value in a message."""
RULES = {
    "too_short": "have at least {min_length:,} items",
    "too_long": "have at most {max_length:,} items",
    "string_too_short": "have at least {min_length:,} characters",
    "string_too_long": "have at most {max_length:,} characters",
    "greater_than_equal": "be at least {ge:,}",
    "less_than_equal": "be at most {le:,}",
    "literal_error": "be {expected}",
    "string_pattern_mismatch": "be letters, digits, underscores and dots",
    "string_type": "be text",
    "string_unicode": "be text in Unicode",
    "list_type": "be a list",
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "be an integer"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "be true or false"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "be an object with named values"),
}
"""What a value must do, by the type of pydantic's error."""
CONTENT_TYPE_FIXES = {
    "application/json": "send JSON with this header, as curl -H 'content-type: application/json' does",
    "multipart/form-data": "send files as fields of a form, as curl -F image=@FILE does",
}


class RequestError(HTTPException):
    """A request that is refused with a status and a sentence. FastAPI lets this type pass while it reads a body."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(status, message, headers)
        self.further: dict[str, Any] = {}
        """Values of the answer beside the sentence."""


class BusyError(RequestError):
    """The server has too much to do."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(503, message, **{"Retry-After": str(retry_after)})


class RefusedFilesError(RequestError):
    """No file of a request can be used. The answer lists them with their reasons."""

    def __init__(self, errors: list[dict[str, str]]) -> None:
        first = errors[0]["error"]
        rule = f"one of the {len(errors)} files must be an image that can be used, got none; the first: {first}"
        super().__init__(422, first if len(errors) == 1 else rule)
        self.further = {"errors": errors}


def not_found(kind: str, identifier: object, classifier: str = "") -> RequestError:
    """404 for a classifier, or for a part of one."""
    address = "/api/classifiers" + (f"/{classifier}" if classifier else "")
    got = f"got {str(identifier)[:100]!r}, which does not"
    return RequestError(404, f"{kind} must exist, {got}; GET {address} lists those that do")


def operations(app: FastAPI, path: str) -> dict[str, Any]:
    """The operations at an address by method, as OpenAPI describes them."""
    found: dict[str, Any] = {}
    for template, methods in app.openapi()["paths"].items():
        if compile_path(template)[0].match(path):
            found |= {method.upper(): operation for method, operation in methods.items()}
    return found


def content_type_message(operation: dict[str, Any], given: str) -> str | None:
    """A sentence for a body of another content type than that of the operation; None if it has the right one."""
    expected = next(iter(operation.get("requestBody", {}).get("content", {})), None)
    kind = given.partition(";")[0].strip().lower()
    if expected is None or kind == expected or (kind.endswith("+json") and expected == "application/json"):
        return None
    got = repr(kind[:100]) if kind else "none"
    return f"content-type must be {expected}, got {got}; {CONTENT_TYPE_FIXES[expected]}"


def validation_message(error: Mapping[str, Any]) -> str:
    """A sentence for one error of pydantic, in the words of this package."""
    kind, value, context = str(error.get("type")), error.get("input"), error.get("ctx", {})
    if error.get("loc") == ("path", "identifier"):
        rule, fix = "must be the id of a classifier, 16 of 0-9 and a-f", "GET /api/classifiers lists them"
        return f"identifier {rule}, got {shown_value(value)}; {fix}"
    name = _value_name(error.get("loc", ()))
    if kind == "missing":
        return f"{name} must be given, got nothing"
    if kind == "extra_forbidden":
        return f"{name} must be left out, got it; it is not known here"
    if kind == "json_invalid":
        problem = str(context.get("error", "")) or "text that is not"
        return f"{name if isinstance(value, str) else 'the request body'} must be JSON, got an error: {problem}"
    if kind == "value_error":
        rule = str(context.get("error", "valid"))
        rule = "a file" if rule.startswith("Expected UploadFile") else rule
        return f"{name} must be {rule}, got {shown_value(value)}"
    rule = re.sub(r"\b1 (item|character)s$", r"1 \1", RULES.get(kind, "be valid").format_map(context))
    return f"{name} must {rule}, got {_got(kind, value, context)}"


def shown_value(value: object) -> str:
    """A value of a request in a message: a short text or number, or what it is."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return shortened(str(value), MAX_SHOWN)
    if isinstance(value, str | bytes):
        return repr(shortened(value if isinstance(value, str) else repr(value), MAX_SHOWN))
    return "a list" if isinstance(value, list) else "an object"


def _got(kind: str, value: Any, context: Mapping[str, Any]) -> str:
    """What was given instead: a length or a value."""
    if kind in ("too_short", "too_long"):
        return f"{context.get('actual_length', 'another number')}"
    return f"{len(value):,}" if kind.startswith("string_too_") else shown_value(value)


def _value_name(location: Sequence[str | int]) -> str:
    """The name of a value of a request: `texts[0]`, or `a key of ablate_heads`."""
    *parts, last = ("", *(part for i, part in enumerate(location) if i or part not in ("body", "query", "path")))
    if last == "[key]":
        return f"a key of {_value_name(parts[1:-1])}"
    name = ""
    for part in (*parts, last):
        name += f"[{part}]" if isinstance(part, int) else f".{shortened(part, MAX_SHOWN)}" if part else ""
    return name.removeprefix(".") or "the request body"
