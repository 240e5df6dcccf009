"""Stored classifiers: their classes and images in a database. Every change is one transaction.

A change increases the version of its classifier. Other processes compare it with the version of what they keep.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.exc import OperationalError

from .. import limits
from .changes import Change
from .errors import BusyError, not_found
from .rows import NewImage, StoredClassifier, add_class, add_images, check_size, read, require
from .tables import classes, classifiers, examples, open_engine

LISTED_CLASSES = 5
"""Classes of each classifier whose names are in the list of classifiers."""


class Store:
    """Stored classifiers. Its methods can be called from several threads and processes."""

    def __init__(self, url: str) -> None:
        self.engine = open_engine(url)

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def ping(self) -> None:
        """Raise an error if the database cannot be reached."""
        with self._reading() as connection:
            connection.execute(select(1))

    def list(self) -> list[dict[str, Any]]:
        """All classifiers, the last changed first, with numbers of classes and images and the first class names."""

        def count(table: Any) -> Any:
            is_own = (table.c.classifier_id == classifiers.c.id) & ~table.c.removed
            return select(func.count()).select_from(table).where(is_own).scalar_subquery()

        columns = (*classifiers.c, count(classes).label("num_classes"), count(examples).label("num_examples"))
        query = select(*columns).order_by(classifiers.c.updated.desc(), classifiers.c.id)
        number = func.row_number().over(partition_by=classes.c.classifier_id, order_by=classes.c.id).label("number")
        rows = select(classes.c.classifier_id, classes.c.name, number).where(~classes.c.removed).subquery()
        named = select(rows.c.classifier_id, rows.c.name).where(rows.c.number <= LISTED_CLASSES).order_by(rows.c.number)
        with self._reading() as connection:
            names: dict[str, list[str]] = {}
            for identifier, name in connection.execute(named):
                names.setdefault(identifier, []).append(name)
            found = [dict(row._mapping) for row in connection.execute(query)]
            return [{**row, "class_names": names.get(row["id"], [])} for row in found]

    def version(self, identifier: str) -> int:
        """The version of a classifier, which must exist."""
        query = select(classifiers.c.version).where(classifiers.c.id == identifier)
        with self._reading() as connection:
            version = connection.execute(query).scalar()
        if version is None:
            raise not_found("a classifier", identifier)
        return int(version)

    def read(self, identifier: str) -> StoredClassifier:
        """A classifier, which must exist, at its current version."""
        with self._reading() as connection:
            return read(connection, identifier)

    def images(self, identifier: str, ids: Sequence[int] | None = None) -> dict[int, bytes]:
        """The data of images of a classifier: of these, or of all, also those that can be restored."""
        query = select(examples.c.id, examples.c.image).where(examples.c.classifier_id == identifier)
        with self._reading() as connection:
            rows = connection.execute(query if ids is None else query.where(examples.c.id.in_(ids)))
            return {row.id: bytes(row.image) for row in rows}

    def create(self, name: str, model: str, content: Sequence[tuple[str, Sequence[NewImage]]] = ()) -> str:
        """Store a new classifier with these classes, whole or not at all; returns its id."""
        identifier, now = secrets.token_hex(8), time.time()
        with self._writing() as connection:
            values = {"id": identifier, "name": name, "model": model, "version": 1, "bytes": 0}
            connection.execute(insert(classifiers).values(**values, created=now, updated=now))
            for label, images in content:
                add_images(connection, identifier, add_class(connection, identifier, label), images)
            check_size(connection, identifier)
            count = connection.execute(select(func.count()).select_from(classifiers)).scalar_one()
            limit = limits.MAX_WEB_CLASSIFIERS
            require(count <= limit, 409, f"stored classifiers must be at most {limit:,}, got more; delete one first")
        return identifier

    def delete(self, identifier: str) -> None:
        """Delete a classifier with all its images."""
        with self._writing() as connection:
            count = connection.execute(delete(classifiers).where(classifiers.c.id == identifier)).rowcount
        if count == 0:
            raise not_found("a classifier", identifier)

    @contextmanager
    def change(self, identifier: str, version: int | None = None) -> Iterator[Change]:
        """A transaction that changes a classifier; nothing changes if the block raises an error.

        With `version`, the classifier must still have that one.
        """
        with self._writing() as connection:
            query = update(classifiers).where(classifiers.c.id == identifier)
            connection.execute(query.values(version=classifiers.c.version + 1, updated=time.time()))  # locks the row
            before = read(connection, identifier)
            rule = f"version must be that of the classifier, got {version} where it is {before.version - 1}"
            require(version in (None, before.version - 1), 409, f"{rule}; read it again")
            change = Change(connection, before)
            yield change
            if change.is_empty:
                transaction = connection.get_transaction()
                assert transaction is not None
                transaction.rollback()  # it keeps its version
            else:
                change.finish()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database."""
        options = {"isolation_level": "REPEATABLE READ"} if self.engine.dialect.name == "postgresql" else {}
        with _available(), self.engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction whose statements see what others have committed by then."""
        options: dict[str, Any] = {"is_write": True}
        if self.engine.dialect.name == "postgresql":
            options["isolation_level"] = "READ COMMITTED"
        with _available(), self.engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection


@contextmanager
def _available() -> Iterator[None]:
    """Answer 503 where the database is locked for too long, or cannot be reached."""
    try:
        yield
    except OperationalError as error:
        raise BusyError("the store must be reachable, got an error of the database; try again", 5) from error
