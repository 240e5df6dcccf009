"""`sightline serve`: binds the address, starts the processes, and stops them cleanly."""

import errno
import os
import signal
import socket
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import uvicorn
from prometheus_client.multiprocess import mark_process_dead
from uvicorn.supervisors import Multiprocess

from .. import limits
from ..errors import SightlineError
from . import metrics
from .app import create_app
from .models import source_task
from .services import Services
from .settings import Settings
from .store import Store

LOOPBACK = "127.0.0.1"
ANY_ADDRESS = ("0.0.0.0", "::")
"""Hosts that stand for all addresses of this machine."""
APP = "sightline.web.app:from_environment"
GRACE_SECONDS = limits.MAX_WEB_SECONDS + 5
"""Seconds in which requests are finished after a signal to stop."""
OPTIONS: dict[str, Any] = {
    "log_config": None,
    "access_log": False,
    "server_header": False,
    "proxy_headers": False,
    "limit_concurrency": limits.MAX_WEB_CONNECTIONS,
    "timeout_keep_alive": 30,
    "timeout_graceful_shutdown": GRACE_SECONDS,
    "timeout_worker_healthcheck": 120,  # a worker that loads its models on a busy machine is not dead
}
"""Of uvicorn."""


def serve(settings: Settings, report: Callable[[str], None]) -> None:
    """Serve until a signal stops it; `report` receives the address."""
    with bind(settings.host, settings.port) as listener:
        text = announcement(settings, listener)
        if settings.workers == 1:
            _serve_here(settings, listener, lambda: report(text))
        else:
            _serve_by_workers(settings, listener, lambda: report(text))


def _serve_here(settings: Settings, listener: socket.socket, report: Callable[[], None]) -> None:
    """Serve in this process."""
    app = create_app(settings, Services(settings))  # errors that a user can fix are raised before the address is shown
    report()
    metrics.configure_log(settings.log_format)
    signal.signal(signal.SIGTERM, _stop)  # uvicorn raises the signal again when all requests are answered
    with suppress(KeyboardInterrupt):
        uvicorn.Server(uvicorn.Config(app, **OPTIONS)).run([listener])


def _serve_by_workers(settings: Settings, listener: socket.socket, report: Callable[[], None]) -> None:
    """Serve in worker processes, which share the store."""
    for source in settings.models:
        source_task(source)
    Store(settings.store_url).close()  # one process creates the tables
    settings.to_environment()
    report()
    with tempfile.TemporaryDirectory(prefix="sightline-metrics-") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # read by the workers
        metrics.configure_log(settings.log_format)
        options = uvicorn.Config(APP, factory=True, workers=settings.workers, **OPTIONS)
        Workers(options, sockets=[listener]).run()


class Workers(Multiprocess):
    """The worker processes. The gauges of one that has ended are removed from the metrics."""

    pids: frozenset[int] = frozenset()
    """Of the workers that have been seen alive."""

    def keep_subprocess_alive(self) -> None:
        """Start a new worker for each one that has ended."""
        before = self.pids | self._current()
        super().keep_subprocess_alive()
        self.pids = self._current()
        for pid in before - self.pids:
            mark_process_dead(pid)

    def _current(self) -> frozenset[int]:
        return frozenset(process.pid for process in self.processes if process.pid is not None)


def _stop(*_: Any) -> None:
    raise SystemExit(0)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Its connections send without delay: headers and body are separate packets."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=2048)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            fix = f"pass another one, such as --port {port + 1 if port < 65_535 else 8000}, or --port 0 for a free one"
            raise SightlineError(f"port must be free, got {port}, which another program uses; {fix}") from error
        rule = "host and port must be those of this machine that you may use"
        fix = "pass another --host or --port"
        raise SightlineError(f"{rule}, got {host}:{port}: {error.strerror}; {fix}") from error


def announcement(settings: Settings, listener: socket.socket) -> str:
    """What the command says when it serves."""
    lines = [f"classifiers are stored in {settings.store_name}", f"serving on {address(settings, listener)}"]
    if settings.host in ANY_ADDRESS:
        names = " or ".join([*settings.allowed_hosts, "its address"])
        lines.append(f"from other machines, write a name of this one instead of {LOOPBACK}: {names}")
    return "\n".join(lines)


def address(settings: Settings, listener: socket.socket) -> str:
    """The address to open in a browser; with the token, if there is one."""
    port = listener.getsockname()[1]
    host = LOOPBACK if settings.host in ANY_ADDRESS else settings.host
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}/" + (f"?token={quote(settings.token, safe='')}" if settings.token else "")
