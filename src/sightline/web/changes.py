"""Changes of a stored classifier, each with the values that undo it."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from .. import limits
from .errors import RequestError, not_found
from .rows import (
    NewImage,
    StoredClass,
    StoredClassifier,
    StoredExample,
    add_class,
    add_images,
    check_size,
    image_bytes,
    require,
)
from .tables import changes, classes, classifiers, examples


class Change:
    """A change of a classifier within a transaction."""

    def __init__(self, connection: Connection, before: StoredClassifier) -> None:
        self._connection, self.before = connection, before
        self._undo: list[tuple[str, Any]] = []
        self._text: str | None = None
        self._is_undo = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing was changed."""
        return not self._undo and not self._is_undo

    def rename(self, name: str | None = None, model: str | None = None) -> None:
        """Change the name of the classifier, its model, or both."""
        given = {"name": name, "model": model}
        values = {k: value for k, value in given.items() if value not in (None, getattr(self.before, k))}
        if values:
            self._note("rename the classifier" if "name" in values else "choose another model")
            self._undo.append(("set", {key: getattr(self.before, key) for key in values}))
            self._connection.execute(update(classifiers).where(self._is_own(classifiers)).values(**values))

    def add_class(self, name: str) -> int:
        """Add a class without images; returns its id."""
        self._check_new_name(name)
        limit = limits.MAX_WEB_CLASSES
        require(len(self.before.classes) < limit, 409, f"a classifier must have at most {limit} classes, got more")
        self._note(f"add the class {name}")
        class_id = add_class(self._connection, self.before.id, name)
        self._undo.append(("delete_classes", [class_id]))
        return class_id

    def rename_class(self, class_id: int, name: str) -> None:
        """Change the name of a class."""
        group = self.find_class(class_id)
        if name == group.name:
            return
        self._check_new_name(name)
        self._note(f"rename {group.name} to {name}")
        self._undo.append(("rename_class", [class_id, group.name]))
        self._connection.execute(update(classes).where(classes.c.id == class_id).values(name=name))

    def remove_class(self, class_id: int) -> None:
        """Remove a class with its images."""
        group = self.find_class(class_id)
        self._note(f"remove the class {group.name}")
        self._set_removed(examples, [example.id for example in group.examples], True)
        self._set_removed(classes, [class_id], True)

    def add_images(self, class_id: int, images: Sequence[NewImage]) -> list[int]:
        """Add images to a class, of this change or before; returns their ids."""
        names = {group.id: group.name for group in self.before.classes}
        self._note(f"add {_counted(len(images))}" + (f" to {names[class_id]}" if class_id in names else ""))
        ids = add_images(self._connection, self.before.id, class_id, images)
        self._undo.append(("delete_examples", ids))
        return ids

    def move_example(self, example_id: int, class_id: int) -> None:
        """Move an image to another class."""
        group, _ = self.find_example(example_id)
        target = self.find_class(class_id)
        if target.id == group.id:
            return
        self._note(f"move an image from {group.name} to {target.name}")
        self._undo.append(("move_example", [example_id, group.id]))
        self._connection.execute(update(examples).where(examples.c.id == example_id).values(class_id=class_id))

    def remove_examples(self, ids: Sequence[int]) -> None:
        """Remove images."""
        names = {example.id: group.name for group in self.before.classes for example in group.examples}
        missing = next((example_id for example_id in ids if example_id not in names), None)
        if missing is not None:
            raise not_found("an image", missing, self.before.id)
        unique = sorted(set(ids))
        classes_of = sorted({names[example_id] for example_id in unique})
        self._note(f"remove {_counted(len(unique))}" + (f" from {classes_of[0]}" if len(classes_of) == 1 else ""))
        self._set_removed(examples, unique, True)

    def undo(self) -> None:
        """Take back the last change."""
        self._is_undo = True
        own = self._is_own(changes)
        query = select(changes).where(own).order_by(changes.c.version.desc()).limit(1)
        last = self._connection.execute(query).first()
        if last is None:
            raise RequestError(409, "a classifier must have a change to undo, got none")
        for name, value in reversed(json.loads(last.undo)):
            self._apply(name, value)
        self._connection.execute(delete(changes).where(own & (changes.c.version == last.version)))

    def find_class(self, class_id: int) -> StoredClass:
        """A class of the classifier, which must exist."""
        for group in self.before.classes:
            if group.id == class_id:
                return group
        raise not_found("a class", class_id, self.before.id)

    def find_example(self, example_id: int) -> tuple[StoredClass, StoredExample]:
        """An image of the classifier, which must exist, and its class."""
        for group in self.before.classes:
            for example in group.examples:
                if example.id == example_id:
                    return group, example
        raise not_found("an image", example_id, self.before.id)

    def _check_new_name(self, name: str) -> None:
        names = [group.name for group in self.before.classes]
        require(name not in names, 409, f"a class name must be new, got {name!r}, which exists")

    def _set_removed(self, table: Any, ids: Sequence[int], removed: bool) -> None:
        if ids:
            self._undo.append((f"restore_{table.name}", list(ids)))
            self._connection.execute(update(table).where(table.c.id.in_(ids)).values(removed=removed))

    def _apply(self, name: str, value: Any) -> None:
        """One step of an undo."""
        execute, tables = self._connection.execute, {"classes": classes, "examples": examples}
        kind, _, table = name.partition("_")
        if name == "set":
            execute(update(classifiers).where(self._is_own(classifiers)).values(**value))
        elif name == "rename_class":
            execute(update(classes).where(classes.c.id == value[0]).values(name=value[1]))
        elif name == "move_example":
            execute(update(examples).where(examples.c.id == value[0]).values(class_id=value[1]))
        elif kind == "delete":
            execute(delete(tables[table]).where(tables[table].c.id.in_(value)))
        else:
            execute(update(tables[table]).where(tables[table].c.id.in_(value)).values(removed=False))

    def _note(self, text: str) -> None:
        self._text = self._text or text

    def _is_own(self, table: Any) -> Any:
        return (table.c.id if table is classifiers else table.c.classifier_id) == self.before.id

    def finish(self) -> None:
        """Keep what undoes this change, drop what undoes the oldest ones, and check the size."""
        if self._undo:
            values = {"classifier_id": self.before.id, "version": self.before.version}
            content = {"text": (self._text or "")[:400], "undo": json.dumps(self._undo)}
            self._connection.execute(insert(changes).values(**values, **content))
            steps = limits.MAX_WEB_UNDO_STEPS
            self._drop_old_changes(steps)
            while steps > 1 and image_bytes(self._connection, self.before.id) > limits.MAX_WEB_CLASSIFIER_BYTES:
                steps -= 1
                self._drop_old_changes(steps)
        check_size(self._connection, self.before.id)

    def _drop_old_changes(self, steps: int) -> None:
        """Delete the changes before the last `steps`, which cannot be undone any more, and the images they removed."""
        own, execute = self._is_own(changes), self._connection.execute
        query = select(changes).where(own).order_by(changes.c.version.desc()).offset(steps)
        for old in execute(query).all():
            for name, value in json.loads(old.undo):
                for table in (examples, classes):
                    if name == f"restore_{table.name}":
                        execute(delete(table).where(table.c.id.in_(value) & table.c.removed))
            execute(delete(changes).where(own & (changes.c.version == old.version)))


def _counted(count: int) -> str:
    return "an image" if count == 1 else f"{count} images"
