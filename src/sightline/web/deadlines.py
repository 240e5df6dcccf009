"""The deadline of a request. Its body, its waiting and its computation share it."""

from contextvars import ContextVar
from time import monotonic

from .. import limits

_END: ContextVar[float] = ContextVar("end of the request")


def start() -> None:
    """Begin the time of the current request; what it starts, also in threads of a lane, has the same deadline."""
    _END.set(monotonic() + limits.MAX_WEB_SECONDS)


def remaining() -> float:
    """Seconds until the deadline, at least 0; outside of a request all of them."""
    end = _END.get(None)
    return limits.MAX_WEB_SECONDS if end is None else max(0.0, end - monotonic())
