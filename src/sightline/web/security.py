"""Who may ask: host names, the token, and the origin of requests that change something; and headers of every answer."""

import hmac
import ipaddress
import json
from collections.abc import Iterable, Mapping
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .metrics import REFUSED
from .settings import Settings, is_loopback

COOKIE = "sightline_token"
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths that need no token."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "media-src 'self' blob:",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=(), display-capture=(), usb=(), payment=()",
    "cache-control": "no-store",
}
"""Headers of every answer, unless its route has set them."""
ENCODED_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


class SecurityHeaders:
    """Adds the security headers to every answer, refusals and failures included."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                further = [pair for pair in ENCODED_HEADERS if pair[0] not in given]
                message = {**message, "headers": [*message["headers"], *further]}
            await send(message)

        await self.app(scope, receive, secured)


class Secured:
    """Refuses requests with a foreign host name, without the token, or from a page of another site."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.token = app, None if settings.token is None else settings.token.encode()
        names = ("localhost", settings.host, *settings.allowed_hosts)
        self.hosts = frozenset(name.lower().strip("[]") for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = _headers(scope["headers"])
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            reason, status, message = refusal
            REFUSED.labels(reason).inc()
            await answer(send, status, message)
        elif (token := self._token_in_address(scope)) is not None:
            await _sign_in(send, token, is_secure=scope.get("scheme") == "https")
        else:
            await self.app(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[str, int, str] | None:
        """The reason, status and sentence of a refusal; None if the request is accepted."""
        host = headers.get("host", "")
        if not self._is_known_host(host, scope.get("server")):
            fix = "start the server with --allow-host for another name"
            return "host", 400, f"host must be a name of this server, got {host[:100]!r}; {fix}"
        if self.token is not None and scope["path"] not in OPEN_PATHS and not self._has_token(scope, headers):
            fix = "open the address that the server printed, or send the header Authorization: Bearer TOKEN"
            return "token", 401, f"token must be that of the server, got none or another; {fix}"
        if scope["method"] not in SAFE_METHODS and not _is_same_origin(headers, host):
            return "origin", 403, "a request that changes something must come from this site, got one from another"
        return None

    def _is_known_host(self, host: str, server: tuple[str, int] | None) -> bool:
        """A name of this server, or the address that the request came to. An address cannot be rebound by DNS."""
        name = _host_name(host)
        if name in self.hosts or is_loopback(name):
            return True
        try:
            return server is not None and ipaddress.ip_address(name) == ipaddress.ip_address(server[0])
        except ValueError:
            return False

    def _has_token(self, scope: Scope, headers: Mapping[str, str]) -> bool:
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._is_token(credentials.strip())
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE)
        return (cookie is not None and self._is_token(cookie)) or self._token_in_address(scope) is not None

    def _is_token(self, text: str) -> bool:
        assert self.token is not None
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.token)

    def _token_in_address(self, scope: Scope) -> str | None:
        """The token in `/?token=...`, which a person opens once."""
        if self.token is None or scope["path"] != "/" or scope["method"] != "GET":
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        return given if given and self._is_token(given) else None


async def answer(send: Send, status: int, message: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Send a sentence as JSON."""
    body = json.dumps({"error": message}).encode()
    start = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    if status == 401:
        start.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


async def _sign_in(send: Send, token: str, *, is_secure: bool) -> None:
    """Keep the token in a cookie that scripts cannot read, and leave the address that contains it."""
    cookie = SimpleCookie({COOKIE: token})
    values = {"path": "/", "samesite": "Strict", "httponly": True, "max-age": 30 * 24 * 3600, "secure": is_secure}
    cookie[COOKIE].update(values)  # type: ignore[arg-type]
    headers = [(b"location", b"/"), (b"set-cookie", cookie[COOKIE].OutputString().encode()), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _is_same_origin(headers: Mapping[str, str], host: str) -> bool:
    """Whether a browser sent the request from a page of this server, or no browser sent it."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    try:
        return origin is None or urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The first value of each header that is read here."""
    values: dict[str, str] = {}
    for name, value in headers:
        values.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return values
