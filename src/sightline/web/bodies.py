"""Bounds on request bodies, enforced while they arrive: bytes of one, bytes of all, and the time of the request."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import limits
from . import deadlines
from .errors import BusyError, RequestError
from .metrics import REFUSED


class BoundedBodies:
    """Refuses bodies that are too large or too slow. A body that was announced as too large is not read."""

    def __init__(self, app: ASGIApp) -> None:
        self.app, self._in_flight = app, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        deadlines.start()
        headers = dict(scope["headers"])
        is_form = headers.get(b"content-type", b"").strip().lower().startswith(b"multipart/form-data")
        maximum = limits.MAX_WEB_UPLOAD_BYTES if is_form else limits.MAX_WEB_JSON_BYTES
        body = _Body(receive, maximum)
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > maximum:
            body.refusal = too_large(maximum, f"{int(announced):,}")
        try:
            await self.app(scope, lambda: self._bounded(body), send)
        finally:
            self._in_flight -= body.size

    async def _bounded(self, body: "_Body") -> Message:
        """The next message of a body, or a `RequestError`, again at every further call."""
        if body.refusal is None:
            seconds = None if body.is_complete else deadlines.remaining()
            try:
                message = await asyncio.wait_for(body.receive(), seconds)
            except TimeoutError:
                REFUSED.labels("body time").inc()
                rule = f"a request must arrive and be answered in {limits.MAX_WEB_SECONDS} seconds"
                body.refusal = RequestError(408, f"{rule}, got a part of its body; send less", Connection="close")
            else:
                if message["type"] != "http.request":
                    return message
                self._add(body, len(message.get("body", b"")))
                body.is_complete = not message.get("more_body", False)
                if body.refusal is None:
                    return message
        raise body.refusal

    def _add(self, body: "_Body", count: int) -> None:
        body.size += count
        self._in_flight += count
        if body.size > body.maximum:
            body.refusal = too_large(body.maximum, "more")
        elif self._in_flight > limits.MAX_WEB_BYTES_IN_FLIGHT:
            REFUSED.labels("bytes in flight").inc()
            rule = f"request bodies must have at most {limits.MAX_WEB_BYTES_IN_FLIGHT:,} bytes at the same time"
            body.refusal = BusyError(f"{rule}, got more; try again")


class _Body:
    """A request body that is being read."""

    def __init__(self, receive: Receive, maximum: int) -> None:
        self.receive, self.maximum, self.size = receive, maximum, 0
        self.is_complete = False
        self.refusal: RequestError | None = None


def too_large(maximum: int, got: str) -> RequestError:
    """413 for a body of too many bytes."""
    REFUSED.labels("body size").inc()
    return RequestError(413, f"a request body must be at most {maximum:,} bytes, got {got}", Connection="close")
