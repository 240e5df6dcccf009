"""What the tests of the web app share: images, a client of an application, and a server in a process of its own."""

import asyncio
import io
import os
import re
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, wraps

import httpx2 as httpx
from PIL import Image
from starlette.testclient import TestClient

from processes import TIMEOUT, CommandProcess
from sightline.data.images.glyphs import draw_alphabets
from sightline.web.app import create_app
from sightline.web.settings import Settings

LABELS, DRAWERS = ("ka", "mo", "ti"), 5


def in_own_loop(test):
    """Run an asynchronous test in a thread of its own: browser tests keep an event loop in the main thread."""

    @wraps(test)
    def run(*args, **options):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: asyncio.run(test(*args, **options))).result()

    return run


@cache
def characters():
    """PNG files of drawn characters by class; the last of each is a query."""
    pixels = draw_alphabets(alphabets=1, characters=len(LABELS), drawers=DRAWERS).pixels.unflatten(0, (-1, DRAWERS))
    return {label: [png(image[0].numpy()) for image in pixels[i]] for i, label in enumerate(LABELS)}


def png(array):
    """The bytes of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(array).save(file, "png")
    return file.getvalue()


def files(*images, name="image"):
    """A multipart upload of several images."""
    return [(name, (f"{i}.png", data, "image/png")) for i, data in enumerate(images)]


@contextmanager
def web_client(folder, *models, **settings):
    """A client of an application in this process."""
    app = create_app(Settings(tuple(map(str, models)), store=str(folder / "store.sqlite"), **settings))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


def new_classifier(client, *, labels=LABELS, shot=2, model="glyphs", name="signs"):
    """Store a classifier with `shot` images of each class; returns its state."""
    archive = [("archive", ("a.zip", class_folders(labels, shot), "application/zip"))]
    response = client.post("/api/classifiers/import", data={"name": name, "model": model}, files=archive)
    assert response.status_code == 201, response.text
    return response.json()


def class_folders(labels=LABELS, shot=2):
    """A zip file with a folder of characters for each class."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for label in labels:
            for i, data in enumerate(characters()[label][:shot]):
                archive.writestr(f"{label}/{i}.png", data)
    return file.getvalue()


class WebServer:
    """`sightline serve` in a process of its own."""

    def __init__(self, folder, model="glyphs", *arguments, prepare=None):
        arguments = ("serve", model, "--port", 0, "--store", folder / "store.sqlite", *arguments)
        self.command = CommandProcess(*arguments, cwd=folder, prepare=prepare or _without_stdin)
        self.command.wait_for(lambda: "serving on" in self.command.output)
        found = re.search(r"serving on (http://\S+/)", self.command.output)
        assert found, self.command.output
        self.client = httpx.Client(base_url=found[1], timeout=TIMEOUT)
        self._wait_until_ready()

    def _wait_until_ready(self):
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end and self.command.process.is_alive():
            try:
                if self.client.get("/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError(self.command.output)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()
        self.command.process.kill()
        self.command.process.join()


def _without_stdin():
    """Workers would inherit it, which a forked process cannot pass on."""
    sys.stdin = None


def kill_at_statement(start):
    """Kill this process before the first SQL statement that starts like this, within its transaction."""
    from sqlalchemy import Engine, event

    @event.listens_for(Engine, "before_cursor_execute")
    def check(connection, cursor, statement, *_):
        if statement.startswith(start):
            os.kill(os.getpid(), 9)


def kill_after(count):
    """Kill this process at the `count`-th commit of a transaction, before it is made."""
    from sqlalchemy.engine import default

    original, calls = default.DefaultDialect.do_commit, 0

    def counted(self, connection):
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), 9)
        return original(self, connection)

    default.DefaultDialect.do_commit = counted
