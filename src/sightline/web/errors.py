"""Errors of the API beside `SightlineError`, and their sentences."""

from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

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


def validation_message(error: dict[str, Any]) -> str:
    """A sentence for one error of pydantic."""
    if error.get("loc") == ("path", "identifier"):
        got = f"got {str(error.get('input'))[:100]!r}"
        return f"identifier must be the id of a classifier, 16 of 0-9 and a-f, {got}; GET /api/classifiers lists them"
    parts = [str(part) for part in error.get("loc", ()) if part not in ("body", "query", "path")]
    name, text = ".".join(parts) or "the request body", str(error.get("msg", "be valid"))
    if error.get("type") == "missing":
        return f"{name} must be given, got nothing"
    if error.get("type") == "json_invalid":
        is_body = not error.get("loc") or error["loc"][0] == "body"
        return f"{'the request body' if is_body else name} must be JSON, got an error: {text}"
    for start in ("Input should be", "Value should be", "List should", "String should", "Dictionary should"):
        if text.startswith(start):
            rule = text[len(start) :].strip()
            return f"{name} must be {rule}" if start.endswith("be") else f"{name} must {rule}"
    if error.get("type") == "extra_forbidden":
        return f"{name} must be left out, got it; it is not known here"
    return f"{name} must be valid, got an error: {text.removeprefix('Value error, ')}"
