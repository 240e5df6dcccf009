"""Errors of the API beside `SightlineError`, and their sentences."""

from typing import Any

from starlette.exceptions import HTTPException


class RequestError(HTTPException):
    """A request that is refused with a status and a sentence. FastAPI lets this type pass while it reads a body."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(status, message, headers)


class BusyError(RequestError):
    """The server has too much to do."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(503, message, **{"Retry-After": str(retry_after)})


def not_found(kind: str, identifier: object) -> RequestError:
    """404 for something that does not exist."""
    return RequestError(404, f"{kind} must exist, got {str(identifier)[:100]!r}, which does not")


def validation_message(error: dict[str, Any]) -> str:
    """A sentence for one error of pydantic."""
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
