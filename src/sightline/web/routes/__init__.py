"""The routes of the API: status, models, stored classifiers, and their images."""

from typing import Any

from ..schemas import ErrorAnswer

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": description}
    for status, description in {
        400: "The request is malformed, or its host is foreign.",
        401: "The token is missing.",
        403: "The request comes from another site.",
        404: "There is no such thing.",
        408: "The body arrived too slowly.",
        409: "The classifier is not in a state for this change.",
        413: "The body is too large.",
        415: "The body is of another content type.",
        422: "An input cannot be used.",
        503: "The server is busy; see Retry-After.",
    }.items()
}
"""Answers with a sentence instead of a result."""
