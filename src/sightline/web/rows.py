"""The rows of stored classifiers as objects, and the statements that read and write them within a transaction."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from .. import limits
from .errors import RequestError, not_found
from .tables import TOTALS_LOCK, changes, classes, classifiers, examples


@dataclass(frozen=True)
class NewImage:
    """An image to store."""

    name: str
    data: bytes
    """PNG or JPEG."""
    width: int
    height: int


@dataclass(frozen=True)
class StoredExample:
    """An image of a classifier, without its data."""

    id: int
    name: str
    digest: str
    width: int
    height: int


@dataclass(frozen=True)
class StoredClass:
    """A class with its images in the order in which they were added."""

    id: int
    name: str
    examples: tuple[StoredExample, ...]


@dataclass(frozen=True)
class StoredClassifier:
    """A classifier at one version."""

    id: str
    name: str
    model: str
    version: int
    created: float
    updated: float
    bytes: int
    undo: str | None
    """What undo would take back."""
    classes: tuple[StoredClass, ...]

    @property
    def num_examples(self) -> int:
        """Images of all classes."""
        return sum(len(group.examples) for group in self.classes)


def read(connection: Connection, identifier: str) -> StoredClassifier:
    """A classifier, which must exist."""
    row = connection.execute(select(classifiers).where(classifiers.c.id == identifier)).first()
    if row is None:
        raise not_found("a classifier", identifier)
    columns = [column for column in examples.c if column.name not in ("image", "bytes", "removed", "classifier_id")]
    is_own = (examples.c.classifier_id == identifier) & ~examples.c.removed
    by_class: dict[int, list[StoredExample]] = {}
    for found in connection.execute(select(*columns).where(is_own).order_by(examples.c.id)):
        example = StoredExample(found.id, found.name, found.digest, found.width, found.height)
        by_class.setdefault(found.class_id, []).append(example)
    query = select(classes.c.id, classes.c.name).where((classes.c.classifier_id == identifier) & ~classes.c.removed)
    groups = connection.execute(query.order_by(classes.c.id)).all()
    last = select(changes.c.text).where(changes.c.classifier_id == identifier).order_by(changes.c.version.desc())
    return StoredClassifier(
        undo=connection.execute(last.limit(1)).scalar(),
        classes=tuple(StoredClass(group.id, group.name, tuple(by_class.get(group.id, ()))) for group in groups),
        **row._mapping,
    )


def add_class(connection: Connection, identifier: str, name: str) -> int:
    """Insert a class; returns its id."""
    values = {"classifier_id": identifier, "name": name, "removed": False}
    return int(connection.execute(insert(classes).values(**values).returning(classes.c.id)).scalar_one())


def add_images(connection: Connection, identifier: str, class_id: int, images: Sequence[NewImage]) -> list[int]:
    """Insert images; returns their ids."""
    ids = []
    for image in images:
        values: dict[str, Any] = {"classifier_id": identifier, "class_id": class_id, "removed": False}
        values |= {"name": image.name, "width": image.width, "height": image.height}
        values |= {"digest": hashlib.sha256(image.data).hexdigest(), "bytes": len(image.data), "image": image.data}
        ids.append(int(connection.execute(insert(examples).values(**values).returning(examples.c.id)).scalar_one()))
    return ids


def image_bytes(connection: Connection, identifier: str) -> int:
    """Bytes of the images of a classifier, with those that can be restored by undo."""
    query = select(func.coalesce(func.sum(examples.c.bytes), 0)).where(examples.c.classifier_id == identifier)
    return int(connection.execute(query).scalar_one())


def check_size(connection: Connection, identifier: str) -> None:
    """Check the images and bytes of a classifier, and those of all; keep its bytes. It is the last step of a change."""
    own = (examples.c.classifier_id == identifier) & ~examples.c.removed
    count = connection.execute(select(func.count()).select_from(examples).where(own)).scalar_one()
    size = image_bytes(connection, identifier)
    limit = limits.MAX_WEB_EXAMPLES
    require(count <= limit, 409, f"a classifier must have at most {limit:,} images, got {count:,}; remove some")
    limit, fix = limits.MAX_WEB_CLASSIFIER_BYTES, "remove images, or use several classifiers"
    require(size <= limit, 409, f"the images of a classifier must have at most {limit:,} bytes, got {size:,}; {fix}")
    connection.execute(update(classifiers).where(classifiers.c.id == identifier).values(bytes=size))
    if connection.dialect.name == "postgresql":  # until this transaction ends; SQLite has one writer at a time
        connection.execute(select(func.pg_advisory_xact_lock(TOTALS_LOCK)))
    total, limit = connection.execute(select(func.sum(classifiers.c.bytes))).scalar_one(), limits.MAX_WEB_STORE_BYTES
    rule = f"the images of all classifiers must have at most {limit:,} bytes"
    require(total <= limit, 409, f"{rule}, got {total:,}; delete a classifier first")


def require(condition: bool, status: int, message: str) -> None:
    """Refuse the request unless the condition holds."""
    if not condition:
        raise RequestError(status, message)
