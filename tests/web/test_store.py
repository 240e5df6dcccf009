"""The store of classifiers: whole or absent after a kill, and shared by processes."""

import signal
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy import event, text

from postgres_server import postgres_server
from processes import FORKSERVER, TIMEOUT
from sightline import limits
from sightline.errors import SightlineError
from sightline.web.errors import RequestError
from sightline.web.rows import NewImage
from sightline.web.settings import store_url
from sightline.web.store import Store
from web_client import kill_after

IMAGES = [NewImage(f"{i}.png", bytes([i]) * 40_000, 3, 5) for i in range(4)]
"""Large enough for several pages of the database."""


@pytest.fixture(scope="module")
def postgres():
    with postgres_server() as url:
        yield store_url(url)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    return store_url(str(tmp_path / "a.sqlite")) if request.param == "sqlite" else request.getfixturevalue("postgres")


@pytest.fixture
def store(url):
    store = Store(url)
    yield store
    store.close()


def add_image(url, identifier, label, image):
    """One change: a class with an image, or an image of a class that exists."""
    store = Store(url)
    with store.change(identifier) as change:
        known = {group.name: group.id for group in change.before.classes}
        change.add_images(known.get(label) or change.add_class(label), [image])
    store.close()


def write_until_killed(url, identifier, commits):
    """Add a class of four images in each change, and be killed at a commit."""
    store = Store(url)
    kill_after(commits)
    for i in range(100):
        with store.change(identifier) as change:
            change.add_images(change.add_class(f"class {i}"), IMAGES)


def write_many(url, identifier, name, count):
    for i in range(count):
        add_image(url, identifier, name, IMAGES[i % len(IMAGES)])


def start(function, *arguments):
    process = FORKSERVER.Process(target=partial(function, *arguments))
    process.start()
    return process


def test_a_classifier_is_read_as_it_was_written(store):
    identifier = store.create("signs", "glyphs", [("ka", IMAGES[:2]), ("mo", IMAGES[2:])])
    stored = store.read(identifier)
    assert [(group.name, [e.name for e in group.examples]) for group in stored.classes] == [
        ("ka", ["0.png", "1.png"]),
        ("mo", ["2.png", "3.png"]),
    ]
    assert stored.bytes == 160_000
    assert store.version(identifier) == stored.version == 1
    images = store.images(identifier)
    assert list(images.values()) == [image.data for image in IMAGES]
    store.delete(identifier)
    assert identifier not in [row["id"] for row in store.list()]
    assert store.images(identifier) == {}


def test_a_change_that_fails_changes_nothing(store):
    identifier = store.create("signs", "glyphs", [("ka", IMAGES)])
    before = store.read(identifier)

    def fail():
        with store.change(identifier) as change:
            change.remove_class(before.classes[0].id)
            change.add_images(change.add_class("mo"), IMAGES)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert store.read(identifier) == before


@pytest.mark.parametrize("commits", [1, 2, 5])
def test_a_killed_process_leaves_whole_classes(url, commits):
    store = Store(url)
    identifier = store.create("signs", "glyphs")
    process = start(write_until_killed, url, identifier, commits)
    process.join(TIMEOUT)
    assert process.exitcode == -signal.SIGKILL
    stored = store.read(identifier)
    assert [len(group.examples) for group in stored.classes] == [4] * (commits - 1)
    assert stored.version == commits
    add_image(url, identifier, "after", IMAGES[0])  # no lock is left
    assert store.read(identifier).num_examples == 4 * (commits - 1) + 1
    store.close()


def test_kills_at_any_moment_leave_whole_classes(tmp_path):
    """A writer is killed from outside, while it is inside of SQLite as likely as not."""
    url = store_url(str(tmp_path / "a.sqlite"))
    store = Store(url)
    identifier, seen = store.create("signs", "glyphs"), 0
    for _ in range(4):
        process = start(write_until_killed, url, identifier, 1000)
        while store.read(identifier).version <= seen + 1:
            assert process.is_alive()
        process.kill()
        process.join()
        stored = store.read(identifier)
        assert {len(group.examples) for group in stored.classes} == {4}
        assert sum(len(data) for data in store.images(identifier).values()) == stored.bytes
        seen = stored.version
        store.delete(identifier)
        identifier, seen = store.create("signs", "glyphs"), 0
    store.close()
    with sqlite3.connect(tmp_path / "a.sqlite") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_two_processes_that_write_lose_no_change(url):
    store = Store(url)
    identifier = store.create("signs", "glyphs")
    processes = [start(write_many, url, identifier, name, 7) for name in ("ka", "mo")]
    for process in processes:
        process.join(TIMEOUT)
        assert process.exitcode == 0
    stored = store.read(identifier)
    assert {group.name: len(group.examples) for group in stored.classes} == {"ka": 7, "mo": 7}
    assert stored.version == 15
    store.close()


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("MAX_WEB_CLASSIFIERS", "stored classifiers must be at most"),
        ("MAX_WEB_STORE_BYTES", "the images of all classifiers must have at most"),
    ],
)
def test_totals_hold_where_two_transactions_add_at_once(postgres, monkeypatch, limit, message):
    """One waits before its commit while the other one adds: together they would exceed the limit."""
    first, second, observer = Store(postgres), Store(postgres), Store(postgres)
    own = [observer.create("signs", "glyphs") for _ in range(2)]

    def add(store, identifier):
        if limit == "MAX_WEB_CLASSIFIERS":
            return store.create("new", "glyphs")
        with store.change(identifier) as change:
            return change.add_images(change.add_class("ka"), IMAGES[:1])

    def total():
        rows = observer.list()
        return len(rows) if limit == "MAX_WEB_CLASSIFIERS" else sum(row["bytes"] for row in rows)

    def is_waiting():
        with observer.engine.connect() as connection:
            return connection.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one() > 0

    allowed = total() + (1 if limit == "MAX_WEB_CLASSIFIERS" else len(IMAGES[0].data))
    monkeypatch.setattr(limits, limit, allowed)
    has_added, may_commit = threading.Event(), threading.Event()
    event.listen(first.engine, "commit", lambda _: (has_added.set(), may_commit.wait(TIMEOUT)))
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(add, first, own[0])
        assert has_added.wait(TIMEOUT)
        two = pool.submit(add, second, own[1])
        while not two.done() and not is_waiting():
            pass
        may_commit.set()
        assert one.result()
        with pytest.raises(RequestError, match=message) as error:
            two.result()
    assert error.value.status_code == 409
    assert total() == allowed
    for store in (first, second, observer):
        store.close()


def test_a_store_of_another_format_is_refused(tmp_path):
    url = store_url(str(tmp_path / "a.sqlite"))
    Store(url).close()
    with sqlite3.connect(tmp_path / "a.sqlite") as connection:
        connection.execute("UPDATE store_format SET format = 2")
    with pytest.raises(SightlineError, match="store must have format 1, got 2"):
        Store(url)


def test_a_store_that_cannot_be_opened_is_reported_without_its_password(tmp_path):
    (tmp_path / "a.sqlite").write_text("not a database, but a text of some length")
    with pytest.raises(SightlineError, match="store must be a database that can be opened"):
        Store(store_url(str(tmp_path / "a.sqlite")))
    with pytest.raises(SightlineError, match=r"postgresql\+psycopg://me:\*\*\*@") as error:
        Store(store_url(f"postgresql://me:secret@/db?host={tmp_path}"))
    assert "secret" not in str(error.value)
