"""The tables of stored classifiers, and the engine that opens them in SQLite or PostgreSQL."""

from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    insert,
    select,
    text,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from .. import limits
from ..errors import SightlineError, check

FORMAT = 1
"""Of the tables. A store of another format is refused."""
BUSY_SECONDS = 20
"""Seconds that a transaction of SQLite waits for another one."""
CREATION_LOCK = 0x51697
"""Key of the PostgreSQL lock under which the tables are created."""
TOTALS_LOCK = CREATION_LOCK + 1
"""Key of the PostgreSQL lock under which the totals over all classifiers are checked."""
NAME = String(limits.MAX_WEB_NAME_CHARS)


def _owner(**options: Any) -> Column[str]:
    return Column("classifier_id", String(16), ForeignKey("classifiers.id", ondelete="CASCADE"), **options)


metadata = MetaData()
formats = Table("store_format", metadata, Column("format", Integer, primary_key=True))
classifiers = Table(
    "classifiers",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("name", NAME, nullable=False),
    Column("model", NAME, nullable=False),
    Column("version", Integer, nullable=False),
    Column("created", Float, nullable=False),
    Column("updated", Float, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)
classes = Table(
    "classes",
    metadata,
    Column("id", Integer, primary_key=True),
    _owner(nullable=False, index=True),
    Column("name", NAME, nullable=False),
    Column("removed", Boolean, nullable=False, default=False),
    sqlite_autoincrement=True,
)
examples = Table(
    "examples",
    metadata,
    Column("id", Integer, primary_key=True),
    _owner(nullable=False, index=True),
    Column("class_id", Integer, ForeignKey("classes.id", ondelete="CASCADE"), nullable=False),
    Column("name", NAME, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("width", Integer, nullable=False),
    Column("height", Integer, nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("image", LargeBinary, nullable=False),
    Column("removed", Boolean, nullable=False, default=False),
    sqlite_autoincrement=True,
)
changes = Table(
    "changes",
    metadata,
    _owner(primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("text", String(400), nullable=False),
    Column("undo", Text, nullable=False),
)
"""The last changes of each classifier, with the values that undo them."""


def open_engine(url: str) -> Engine:
    """An engine of the database at a URL, whose tables are created if there are none."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise SightlineError("store must be a path, or a URL of SQLite or PostgreSQL, got another text") from None
    is_sqlite = parsed.get_backend_name() == "sqlite"
    if is_sqlite and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        engine = create_engine(parsed, hide_parameters=True, pool_pre_ping=not is_sqlite)
        if is_sqlite:
            event.listen(engine, "connect", _configure_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
        _create_tables(engine)
    except (SQLAlchemyError, ImportError) as error:
        reason = str(error).splitlines()[0][:300]
        rule = f"store must be a database that can be opened, got {parsed.render_as_string(hide_password=True)!r}"
        raise SightlineError(f"{rule}: {reason}") from error
    return engine


def _create_tables(engine: Engine) -> None:
    with engine.connect().execution_options(is_write=True) as connection, connection.begin():
        if engine.dialect.name == "postgresql":  # replicas may start at the same time
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": CREATION_LOCK})
        metadata.create_all(connection)
        found = connection.execute(select(formats.c.format)).scalar()
        if found is None:
            connection.execute(insert(formats).values(format=FORMAT))
        check(found in (None, FORMAT), f"store must have format {FORMAT}, got {found}; use another file or database")


def _configure_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions begin by `_begin_sqlite`
    for pragma in (
        f"busy_timeout = {1000 * BUSY_SECONDS}",
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    """A transaction that writes takes the lock at its start: otherwise two of them could wait for each other."""
    is_write = connection.get_execution_options().get("is_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")
