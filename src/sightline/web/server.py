"""`sightline serve`: binds the address, starts the processes, and stops them cleanly."""

import os
import socket
import tempfile
from collections.abc import Callable

import uvicorn
from uvicorn.supervisors import Multiprocess

from .. import limits
from ..errors import SightlineError
from . import metrics
from .settings import Settings
from .store import Store

APP = "sightline.web.app:from_environment"
GRACE_SECONDS = limits.MAX_WEB_SECONDS + 5
"""Seconds in which requests are finished after a signal to stop."""


def serve(settings: Settings, report: Callable[[str], None]) -> None:
    """Serve until a signal stops it; `report` receives the address."""
    Store(settings.store_url).close()  # one process creates the tables, and errors are raised before any starts
    settings.to_environment()
    with bind(settings.host, settings.port) as listener:
        report(f"serving on {address(settings, listener)}")
        options = uvicorn.Config(
            APP,
            factory=True,
            workers=settings.workers,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=limits.MAX_WEB_CONNECTIONS,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        if settings.workers == 1:
            uvicorn.Server(options).run([listener])
            return
        with tempfile.TemporaryDirectory(prefix="sightline-metrics-") as folder:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # read by the workers
            metrics.configure_log()
            Multiprocess(options, sockets=[listener]).run()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        fix = "pass another --host or --port"
        raise SightlineError(f"host and port must be free, got {host}:{port}: {error.strerror}; {fix}") from error


def address(settings: Settings, listener: socket.socket) -> str:
    """The address to open in a browser; with the token, if there is one."""
    port = listener.getsockname()[1]
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}/" + (f"?token={settings.token}" if settings.token else "")
