"""Prometheus metrics, and a log: one JSON object per line, or short lines for a terminal.

Neither contains what users send.
"""

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .settings import LogFormat

REQUESTS = Counter("sightline_requests", "Requests by route and status.", ["method", "route", "status"])
SECONDS = Histogram(
    "sightline_request_seconds",
    "Time to answer a request.",
    ["route"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
IN_FLIGHT = Gauge("sightline_requests_in_flight", "Requests being answered.", multiprocess_mode="livesum")
WAITING = Gauge("sightline_waiting", "Calls that wait for a thread or run.", ["lane"], multiprocess_mode="livesum")
BATCH_SIZE = Histogram("sightline_batch_size", "Inputs that ran together.", ["model"], buckets=(1, 2, 4, 8, 16, 32, 64))
REFUSED = Counter("sightline_refused", "Requests that were refused, by reason.", ["reason"])
FIT_SECONDS = Histogram(
    "sightline_fit_seconds", "Time to fit a classifier.", buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 30)
)
FAILURE = b'{"error":"the server failed to answer; its log has the details"}'

POLLED = frozenset({"/api/classifiers/{identifier}/status"})
"""Routes that an open page asks every few seconds; successful requests are counted, but not logged."""

log = logging.getLogger("sightline.web")


class JsonFormatter(logging.Formatter):
    """One JSON object per line. Of an exception, its type and where it was raised; its message may quote a user."""

    def format(self, record: logging.LogRecord) -> str:
        values: dict[str, Any] = {
            "time": f"{record.created:.3f}",
            "level": record.levelname.lower(),
            "process": record.process,
            "event": record.getMessage(),
        }
        return json.dumps(values | _values(record), ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """One short line: the time, and a request, or another event with its values."""

    def format(self, record: logging.LogRecord) -> str:
        text, values = record.getMessage(), _values(record)
        if text == "request":
            text = "{method} {route} {status} ".format_map(values) + f"{1000 * values['seconds']:.0f} ms"
        else:
            values["where"] = values.get("where", [None])[-1]
            short = ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)
            text = f"{text}: {short}" if short else text
        return f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {text}"


def _values(record: logging.LogRecord) -> dict[str, Any]:
    """The values of an event, and the type and the frames of its exception."""
    values: dict[str, Any] = dict(getattr(record, "values", {}))
    if record.exc_info and record.exc_info[0] is not None:
        frames = traceback.extract_tb(record.exc_info[2])
        where = [f"{os.path.basename(f.filename)}:{f.lineno} {f.name}" for f in frames[-8:]]  # noqa: PTH119
        values |= {"exception": record.exc_info[0].__name__, "where": where}
    return values


def _is_short(record: logging.LogRecord) -> bool:
    """Whether a terminal shows this event: all but successful requests for files, of which a page needs many."""
    values = getattr(record, "values", {})
    is_file = record.getMessage() == "request" and not values["route"].startswith("/api/")
    return not is_file or values["status"] >= 400


def configure_log(log_format: LogFormat = "auto") -> None:
    """Write the log to standard error. Messages of other libraries are written from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    if log_format == "text" or (log_format == "auto" and sys.stderr.isatty()):
        handler.setFormatter(TextFormatter())
        handler.addFilter(_is_short)
    logging.root.handlers, log.propagate = [handler], True
    logging.root.setLevel(logging.WARNING)
    log.setLevel(logging.INFO)


def event(name: str, **values: Any) -> None:
    """Write one line to the log."""
    log.info(name, extra={"values": values})


def exposition() -> bytes:
    """All metrics as Prometheus reads them; with several workers, those of all."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return generate_latest()
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    return generate_latest(registry)


class Observed:
    """Counts and times every request, logs it, and answers 500 where the application fails."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, size = time.perf_counter(), 0, 0

        async def observed_send(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            size += len(message.get("body", b""))
            await send(message)

        IN_FLIGHT.inc()
        try:
            await self.app(scope, receive, observed_send)
        except Exception:
            log.exception("failure", extra={"values": {"route": _route(scope)}})
            if status == 0:
                headers = [(b"content-type", b"application/json"), (b"content-length", str(len(FAILURE)).encode())]
                await observed_send({"type": "http.response.start", "status": 500, "headers": headers})
                await observed_send({"type": "http.response.body", "body": FAILURE})
        finally:
            IN_FLIGHT.dec()
            seconds, route, method = time.perf_counter() - start, _route(scope), _method(scope)
            REQUESTS.labels(method, route, str(status)).inc()
            SECONDS.labels(route).observe(seconds)
            if route not in POLLED or status >= 400:
                event("request", method=method, route=route, status=status, seconds=round(seconds, 4), bytes=size)


def _route(scope: Mapping[str, Any]) -> str:
    """The template of the route, which has no values of the request in it."""
    route = scope.get("route")
    return str(getattr(route, "path", "")) or "other"


def _method(scope: Mapping[str, Any]) -> str:
    method = scope["method"]
    return method if method in ("GET", "HEAD", "POST", "PATCH", "DELETE", "PUT", "OPTIONS") else "other"
