"""Hosts, tokens, origins, headers, and bounds on bodies and images."""

import asyncio
import io
import json
import re
import socket
import struct
import zipfile
import zlib

import httpx2 as httpx
import numpy as np
import pytest
from PIL import ImageFile
from starlette.testclient import TestClient

from sightline import limits
from sightline.errors import SightlineError
from sightline.web import bodies, security, server, uploads
from sightline.web.app import create_app
from sightline.web.errors import RequestError
from sightline.web.settings import Settings, is_loopback, store_url
from web_client import characters, class_folders, files, in_own_loop, new_classifier, png, web_client

TOKEN = "a-token-of-22-characters"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with web_client(tmp_path_factory.mktemp("web"), "glyphs", allowed_hosts=("signs.example",)) as client:
        yield client


async def _answer(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def secured(**settings):
    """A client of an application that answers every request that is let through."""
    return TestClient(security.Secured(_answer, Settings(**settings)), base_url="http://localhost")


def test_every_answer_has_the_security_headers(client):
    for path in ("/healthz", "/api/models", "/nothing", "/docs", "/static/docs.js"):
        headers = client.get(path).headers
        assert "script-src 'self';" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers
    assert client.get("/api/models").headers["cache-control"] == "no-store"
    assert client.get("/docs").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:80", "signs.example"])
def test_names_of_the_server_are_accepted(client, host):
    assert client.get("/healthz", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "127.0.0.1.evil.example", "10.0.0.1"])
def test_foreign_host_names_are_refused(client, host):
    response = client.get("/healthz", headers={"host": host})
    assert response.status_code == 400
    assert "host must be a name of this server" in response.json()["error"]


def test_the_address_of_the_connection_is_accepted():
    app = security.Secured(_answer, Settings(host="0.0.0.0", token=TOKEN))
    for address, expected in (("10.1.2.3", 200), ("10.1.2.4", 400)):
        client = TestClient(app, base_url="http://10.1.2.3")  # its scope names 10.1.2.3 as the server
        assert client.get("/healthz", headers={"host": address}).status_code == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 200),
        ({"origin": "http://localhost"}, 200),
        ({"origin": "http://localhost", "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"origin": "http://localhost:8001"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
    ],
)
def test_pages_of_other_sites_cannot_change_anything(headers, expected):
    client = secured()
    for method in ("POST", "PATCH", "DELETE", "PUT"):
        assert client.request(method, "/api/classifiers", headers=headers).status_code == expected
    assert client.get("/api/classifiers", headers=headers).status_code == 200


def test_a_token_is_required_beyond_loopback():
    for host in ("0.0.0.0", "::", "192.168.0.7", "example.org"):
        with pytest.raises(SightlineError, match="token must be given for a host beyond loopback"):
            Settings(host=host)
    with pytest.raises(SightlineError, match="token must be at least 16 printable ASCII characters"):
        Settings(token="short")
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]")))


def test_requests_carry_the_token_in_a_header_or_a_cookie():
    client = secured(token=TOKEN)
    assert client.get("/healthz").status_code == 200
    refused = client.get("/api/models")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    for given in ("", "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \xe9"):
        assert client.get("/api/models", headers={"authorization": given.encode("latin-1")}).status_code == 401
    assert client.get("/api/models", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert client.get("/api/models", params={"token": TOKEN}).status_code == 401  # only the page takes it there
    assert client.get("/", params={"token": "wrong"}).status_code == 401
    response = client.get("/", params={"token": TOKEN}, follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (303, "/")
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get("/api/models").status_code == 200  # the client keeps the cookie


@pytest.mark.parametrize(
    ("scheme", "proxies", "forwarded", "is_secure"),
    [
        ("https", (), None, True),
        ("http", (), None, False),
        ("http", (), "https", False),  # anybody can send the header
        ("http", ("10.0.0.0/8", "::1"), "https", True),
        ("http", ("10.0.0.0/8",), "http", False),
        ("http", ("10.0.0.8",), "https", False),  # another proxy
    ],
)
def test_the_cookie_is_secure_where_the_person_uses_https(tmp_path, scheme, proxies, forwarded, is_secure):
    settings = Settings(("glyphs",), store=str(tmp_path / "a.sqlite"), token=TOKEN, trusted_proxies=proxies)
    client = TestClient(create_app(settings), base_url=f"{scheme}://localhost", client=("10.0.0.7", 4321))
    headers = {} if forwarded is None else {"x-forwarded-proto": forwarded, "x-forwarded-for": "192.0.2.1"}
    response = client.get("/", params={"token": TOKEN}, headers=headers, follow_redirects=False)
    assert response.status_code == 303
    assert ("secure" in response.headers["set-cookie"].lower().split("; ")) is is_secure


def test_proxies_are_addresses_or_networks():
    with pytest.raises(SightlineError, match="forwarded-allow-ips must be addresses or networks of proxies"):
        Settings(trusted_proxies=("proxy.example",))


@pytest.mark.parametrize("token", [TOKEN, 'a;token&with=50%+"\\#,?/ signs'.replace(" ", "-")])
def test_the_printed_address_sets_a_cookie_that_survives_malformed_ones(token):
    settings = Settings(host="127.0.0.1", port=0, token=token)
    with server.bind(settings.host, settings.port) as listener:
        query = server.address(settings, listener).partition("/?")[2]
    client = secured(token=token)
    response = client.get(f"/?{query}", follow_redirects=False)
    assert response.status_code == 303
    own = response.headers["set-cookie"].partition("; ")[0]
    client.cookies.clear()
    for cookie in (own, f'other={{"a": [1]}}; {own}', f"\xe9@=; ; =; {own}; a b"):
        assert client.get("/api/models", headers={"cookie": cookie.encode("latin-1")}).status_code == 200
    assert client.get("/api/models", headers={"cookie": f"{own}x"}).status_code == 401


@pytest.mark.parametrize(
    ("host", "names", "expected"),
    [
        ("127.0.0.1", (), None),
        ("0.0.0.0", (), "its address"),
        ("::", ("signs.example", "signs"), "signs.example or signs or its address"),
    ],
)
def test_the_command_says_how_other_machines_reach_a_server_on_all_addresses(host, names, expected):
    settings = Settings(host=host, port=0, token=TOKEN, allowed_hosts=names)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _, serving, *others = server.announcement(settings, listener).splitlines()
        assert serving == f"serving on http://127.0.0.1:{listener.getsockname()[1]}/?token={TOKEN}"
    line = f"from other machines, write a name of this one instead of 127.0.0.1: {expected}"
    assert others == ([line] if expected else [])


def test_an_announced_body_that_is_too_large_is_not_read(client):
    headers = {"content-type": "application/json", "content-length": str(limits.MAX_WEB_JSON_BYTES + 1)}
    response = client.post("/api/classifiers", content=b"{}", headers=headers)
    assert response.status_code == 413
    assert "a request body must be at most 262,144 bytes" in response.json()["error"]


@in_own_loop
async def streamed(app, path, kind, chunks):
    """Send a body without its length; returns the status, the answer, and how many chunks were read before it."""
    read, sent = 0, []

    async def receive():
        nonlocal read
        assert read < len(chunks)
        read += 1
        return {"type": "http.request", "body": chunks[read - 1], "more_body": read < len(chunks)}

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", kind.encode()), (b"transfer-encoding", b"chunked")]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": "POST"}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers}
    await app(scope | {"client": ("127.0.0.1", 1), "server": ("localhost", 80)}, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"]), read


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=b"])
def test_a_streamed_body_is_refused_while_it_is_read(client, monkeypatch, kind):
    for name in ("MAX_WEB_JSON_BYTES", "MAX_WEB_UPLOAD_BYTES"):
        monkeypatch.setattr(limits, name, 1000)
    start = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    path, chunks = "/api/classifiers", [b" " * 90] * 50
    if kind.startswith("multipart"):
        path, chunks = f"{new_classifier_path(client)}/predict", [start.ljust(90, b"x"), *chunks, b"\r\n--b--\r\n"]
    status, answer, read = streamed(client.app, path, kind, chunks)
    assert status == 413
    assert answer == {"error": "a request body must be at most 1,000 bytes, got more"}
    assert read == 12  # the first chunk beyond the limit


def new_classifier_path(client):
    """The address of an empty classifier, made within small limits."""
    return f"/api/classifiers/{client.post('/api/classifiers', json={}).json()['id']}"


def test_bytes_in_flight_are_bounded(client, monkeypatch):
    monkeypatch.setattr(limits, "MAX_WEB_BYTES_IN_FLIGHT", 1000)
    response = client.post(f"{new_classifier_path(client)}/predict", files=files(b"x" * 2000))
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert client.post("/api/classifiers", json={}).status_code == 201  # what was refused is not counted any more


@in_own_loop
async def test_a_body_that_stops_is_refused(monkeypatch):
    monkeypatch.setattr(limits, "MAX_WEB_SECONDS", 0.05)

    async def app(scope, receive, send):
        while (await receive()).get("more_body"):
            pass

    async def receive():
        receive.count += 1
        if receive.count == 1:
            return {"type": "http.request", "body": b"x", "more_body": True}
        return await asyncio.Event().wait()

    receive.count = 0
    scope = {"type": "http", "headers": []}
    with pytest.raises(bodies.RequestError) as error:
        await bodies.BoundedBodies(app)(scope, receive, None)
    assert error.value.status_code == 408
    assert "a request must arrive and be answered in 0.05 seconds, got a part of its body" in error.value.detail


def bomb(width, height):
    """A small PNG file that announces many pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [8_945, 20_000, 60_000])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(client, monkeypatch, side):
    decoded, state = [], new_classifier(client) if side == 8_945 else None
    monkeypatch.setattr(ImageFile.ImageFile, "load", decoded.append)
    image = files(bomb(side, side))
    paths = [f"{new_classifier_path(client)}/examples"]
    paths += [] if state is None else [f"/api/classifiers/{state['id']}/{name}" for name in ("predict", "explain")]
    for path in paths:
        response = client.post(path, data={"label": "ka"}, files=image)
        assert response.status_code == 422
        assert re.search("(0.png|the image) must have 1 to 80,000,000 pixels, got ", response.json()["error"])
    assert not decoded


def test_the_pixels_of_a_request_and_of_an_archive_are_bounded(client, monkeypatch):
    state, decoded = new_classifier(client), []
    monkeypatch.setattr(limits, "MAX_WEB_UPLOAD_PIXELS", 2 * 3000**2)
    monkeypatch.setattr(limits, "MAX_WEB_ARCHIVE_PIXELS", 3000**2 - 1)
    monkeypatch.setattr(ImageFile.ImageFile, "load", decoded.append)
    path, images = f"/api/classifiers/{state['id']}", files(*[bomb(3000, 3000)] * 3)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a/1.png", bomb(3000, 3000))
    for address, data, sent, message in (
        (f"{path}/examples", {"label": "ka"}, images, "images of a request must have at most 18,000,000 pixels"),
        (f"{path}/predict", {}, images, "got 27,000,000; send fewer, or resize them"),
        ("/api/classifiers/import", {}, files(archive.getvalue(), name="archive"), "an archive must have at most 8,9"),
    ):
        response = client.post(address, data=data, files=sent)
        assert response.status_code == 422
        assert message in response.json()["error"]
    assert not decoded


def test_an_archive_that_takes_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr(limits, "MAX_WEB_SECONDS", 0)
    with pytest.raises(RequestError, match="an archive must be read in 0 seconds"):
        uploads.read_archive(class_folders())


def test_a_zip_bomb_is_refused(client, monkeypatch):
    monkeypatch.setattr(limits, "MAX_WEB_IMAGE_BYTES", 10_000)
    monkeypatch.setattr(limits, "MAX_WEB_ARCHIVE_BYTES", 50_000)
    for size, message in ((20_000, "must be at most 10,000 bytes"), (60_000, "at most 50,000 bytes of images")):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a/1.png", b"\0" * size)
        response = client.post("/api/classifiers/import", files={"archive": ("a.zip", file.getvalue())})
        assert response.status_code == 422
        assert message in response.json()["error"]


@pytest.mark.parametrize("content", [b"", b"PK", b"no zip", zlib.compress(b"x")])
def test_a_damaged_archive_is_refused(client, content):
    response = client.post("/api/classifiers/import", files={"archive": ("a.zip", content)})
    assert response.status_code == 422
    assert "archive must be a zip file with one folder of images per class" in response.json()["error"]


def test_the_number_of_files_is_bounded(client):
    image = png(np.zeros((3, 5), np.uint8))
    response = client.post(f"{new_classifier_path(client)}/examples", data={"label": "a"}, files=files(*[image] * 65))
    assert response.status_code == 422
    assert "image must have at most 64 items" in response.json()["error"]


def test_metrics_and_logs_have_no_content_of_users(client, caplog):
    secret = "a very secret name"
    with caplog.at_level("INFO"):
        state = new_classifier(client, name=secret)
        client.post(f"/api/classifiers/{state['id']}/predict", files=files(characters()["ka"][0]))
        client.get(f"/{secret}")
        metrics = client.get("/metrics").text
    assert 'route="/api/classifiers/{identifier}/predict",status="200"' in metrics
    logged = [str(vars(record)) for record in caplog.records if record.name == "sightline.web"]
    assert len(logged) == 4
    for text in (metrics, *logged):
        assert secret not in text
        assert state["id"] not in text


def test_a_failure_is_answered_without_details(client, monkeypatch, caplog):
    monkeypatch.setattr(client.app.state.services.store, "list", lambda: 1 / 0)
    response = client.get("/api/classifiers")
    assert response.status_code == 500
    assert response.json() == {"error": "the server failed to answer; its log has the details"}
    assert "nosniff" in response.headers["x-content-type-options"]


def test_stores_are_paths_or_urls(tmp_path):
    assert store_url(str(tmp_path / "a.sqlite")) == f"sqlite:///{tmp_path}/a.sqlite"
    assert store_url("postgresql://me@host/db") == "postgresql+psycopg://me@host/db"
    with pytest.raises(SightlineError, match="store must be a path, or a URL of SQLite or PostgreSQL, got scheme"):
        store_url("mysql://me@host/db")


def test_the_pages_make_no_request_to_other_hosts(client):
    for path in ("/docs", "/static/docs.js", "/static/docs.css"):
        response = client.get(path)
        assert response.status_code == 200
        assert "//" not in response.text.replace("http://www.w3.org/", "").replace("// ", "")
    assert httpx.URL(str(client.base_url)).host == "localhost"
