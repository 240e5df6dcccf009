"""What `sightline serve` was asked for. Worker processes read it from the environment."""

import ipaddress
import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from .. import limits
from ..errors import SightlineError, check, check_int, check_max, reraise

VARIABLE = "SIGHTLINE_SERVE"
"""Environment variable with the settings of a worker process."""
MIN_TOKEN_CHARS = 16
LogFormat = Literal["auto", "text", "json"]
"""Of the log; auto is text on a terminal and JSON otherwise."""


@dataclass(frozen=True)
class Settings:
    """The settings of a server."""

    models: tuple[str, ...] = ()
    """Runs, pretrained models and classifier files; the pretrained models if empty."""
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    store: str = ""
    """URL of the database of classifiers; by default a SQLite file in the user's folder."""
    token: str | None = None
    """What requests must carry; required if the host is not loopback."""
    allowed_hosts: tuple[str, ...] = ()
    """Names in the Host header beside loopback and the address of the server."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies whose X-Forwarded-Proto is believed."""
    log_format: LogFormat = "auto"

    def __post_init__(self) -> None:
        check_int(0, port=self.port)
        check_max(65_535, port=self.port)
        check_int(1, workers=self.workers)
        check_max(limits.MAX_WEB_WORKERS, workers=self.workers)
        fix = "pass --token or set SIGHTLINE_TOKEN"
        if not is_loopback(self.host):
            check(self.token, f"token must be given for a host beyond loopback, got none for {self.host!r}; {fix}")
        if self.token is not None:
            is_valid = len(self.token) >= MIN_TOKEN_CHARS and self.token.isascii() and self.token.isprintable()
            rule = f"token must be at least {MIN_TOKEN_CHARS} printable ASCII characters without spaces"
            check(is_valid and " " not in self.token, f"{rule}, got {len(self.token)} characters")
        for proxy in self.trusted_proxies:
            rule = "forwarded-allow-ips must be addresses or networks of proxies, such as 10.0.0.0/8"
            with reraise(rule, ValueError):
                ipaddress.ip_network(proxy)

    @property
    def store_url(self) -> str:
        """The URL of the database."""
        return store_url(self.store)

    @property
    def store_name(self) -> str:
        """Where classifiers are stored, without a password: a file, or a kind of database."""
        url, file = self.store_url, "sqlite:///"
        return url.removeprefix(file) if url.startswith(file) else f"the {url.partition('://')[0]} database of --store"

    def command(self, models: Sequence[str]) -> str | None:
        """The command line of this server with these models, without secrets.

        None for a server beyond loopback, also by a proxy: its users are others than those who start it.
        """
        if not is_loopback(self.host) or self.allowed_hosts or self.trusted_proxies:
            return None
        is_url = "://" in self.store  # it can have a password
        values = {
            "host": self.host,
            "port": self.port,
            "workers": self.workers,
            "store": "URL" if is_url else self.store,
            "token": "" if self.token is None else "TOKEN",
            "log-format": self.log_format,
        }
        default = {"host": Settings.host, "port": Settings.port, "workers": Settings.workers, "log-format": "auto"}
        given = [(name, str(value)) for name, value in values.items() if value != default.get(name, "")]
        options = [word for name, value in given for word in (f"--{name}", value)]
        return shlex.join(["sightline", "serve", *options, *models])

    def to_environment(self) -> None:
        """Make these the settings of processes that this one starts."""
        os.environ[VARIABLE] = json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> "Settings":
        """The settings of the process that started this one."""
        values: dict[str, Any] = json.loads(os.environ.get(VARIABLE, "{}"))
        names = ("models", "allowed_hosts", "trusted_proxies")
        lists: dict[str, Any] = {name: tuple(values.pop(name, ())) for name in names}
        return cls(**lists, **values)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def store_url(store: str) -> str:
    """The SQLAlchemy URL of a store: of a path, or of the default file."""
    if not store:
        store = str(Path.home() / ".sightline" / "classifiers.sqlite")
    if "://" not in store:
        return f"sqlite:///{Path(store).expanduser().absolute()}"
    scheme = store.partition("://")[0]
    if scheme in ("postgresql", "postgres"):
        return f"postgresql+psycopg://{store.partition('://')[2]}"
    known = scheme == "sqlite" or scheme.startswith(("sqlite+", "postgresql+"))
    if not known:
        raise SightlineError(f"store must be a path, or a URL of SQLite or PostgreSQL, got scheme {scheme!r}")
    return store
