"""Stored few-shot classifiers: their names and classes, undo, and downloads."""

import re
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, File, Form, Query, Response, UploadFile

from ...errors import check_choice
from .. import classifier_files, schemas, uploads
from ..changes import Change
from ..errors import RequestError
from ..fits import AUTO, Fit
from ..rows import StoredClassifier
from ..services import Served, Services
from . import REFUSALS

router = APIRouter(prefix="/api/classifiers", tags=["classifiers"], responses=REFUSALS)
Version = Annotated[
    int | None, Query(ge=1, le=2**31 - 1, description="Change nothing if the classifier has another version by now.")
]


@router.get("", response_model=schemas.ClassifierList)
async def list_classifiers(services: Served) -> dict[str, Any]:
    """All stored classifiers, the last changed first."""
    rows = await services.database.run(services.store.list)
    return {
        "classifiers": [{**row, "created": _time(row["created"]), "updated": _time(row["updated"])} for row in rows]
    }


@router.post("", status_code=201, response_model=schemas.ClassifierState)
async def create(request: schemas.NewClassifier, services: Served) -> dict[str, Any]:
    """Store a classifier without classes."""
    _check_model(services, request.model)
    return await state(services, await services.database.run(services.store.create, request.name, request.model))


@router.post("/import", status_code=201, response_model=schemas.ClassifierState)
async def import_archive(
    services: Served,
    archive: Annotated[
        UploadFile, File(description="A zip file with one folder of images per class, or a `.sightline` file.")
    ],
    name: Annotated[schemas.Name, Form()] = "My classifier",
    model: Annotated[schemas.Name, Form()] = AUTO,
) -> dict[str, Any]:
    """Store a classifier with the images of a zip file or a `.sightline` file, such as one that was downloaded."""
    _check_model(services, model)
    data = await archive.read()
    if classifier_files.is_classifier(data):
        own, content = await services.fitting_large.run(classifier_files.read, data)
        if model == AUTO and own is not None and own in services.models.few_shot and own not in services.fits.missing:
            model = own
    else:
        content = await services.fitting_large.run(uploads.read_archive, data)
    return await state(services, await services.database.run(services.store.create, name, model, content))


@router.get("/{identifier}", response_model=schemas.ClassifierState)
async def read(
    identifier: schemas.Identifier,
    services: Served,
    wait: Annotated[bool, Query(description="Whether to wait for its fit, or to answer at once.")] = True,
) -> dict[str, Any]:
    """A stored classifier."""
    return await state(services, identifier, wait)


@router.get("/{identifier}/status", response_model=schemas.ClassifierStatus)
async def status(identifier: schemas.Identifier, services: Served) -> dict[str, Any]:
    """The version of a classifier, and the progress of its fit. The page asks for it every few seconds."""
    version = await services.database.run(services.store.version, identifier)
    embedded, images = services.fits.progress.get(identifier, (None, None))
    return {"version": version, "progress": None if images is None else {"embedded": embedded, "images": images}}


@router.patch("/{identifier}", response_model=schemas.ClassifierState)
async def change_classifier(
    identifier: schemas.Identifier, request: schemas.ClassifierChange, services: Served, version: Version = None
) -> dict[str, Any]:
    """Change the name of a classifier, or its model."""
    if request.model is not None:
        _check_model(services, request.model)
    return await changed(services, identifier, version, lambda change: change.rename(request.name, request.model))


@router.delete("/{identifier}", status_code=204)
async def delete(identifier: schemas.Identifier, services: Served) -> None:
    """Delete a classifier with all its images. This cannot be undone."""
    await services.database.run(services.store.delete, identifier)


@router.post("/{identifier}/classes", status_code=201, response_model=schemas.ClassifierState)
async def add_class(
    identifier: schemas.Identifier, request: schemas.ClassName, services: Served, version: Version = None
) -> dict[str, Any]:
    """Add a class without images."""
    return await changed(services, identifier, version, lambda change: change.add_class(request.name))


@router.patch("/{identifier}/classes/{class_id}", response_model=schemas.ClassifierState)
async def rename_class(
    identifier: schemas.Identifier,
    class_id: schemas.RowId,
    request: schemas.ClassName,
    services: Served,
    version: Version = None,
) -> dict[str, Any]:
    """Rename a class."""
    return await changed(services, identifier, version, lambda change: change.rename_class(class_id, request.name))


@router.delete("/{identifier}/classes/{class_id}", response_model=schemas.ClassifierState)
async def remove_class(
    identifier: schemas.Identifier, class_id: schemas.RowId, services: Served, version: Version = None
) -> dict[str, Any]:
    """Remove a class with its images."""
    return await changed(services, identifier, version, lambda change: change.remove_class(class_id))


@router.post("/{identifier}/undo", response_model=schemas.ClassifierState)
async def undo(identifier: schemas.Identifier, services: Served, version: Version = None) -> dict[str, Any]:
    """Take back the last change."""
    return await changed(services, identifier, version, lambda change: change.undo())


@router.get(
    "/{identifier}/download",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}, "application/zip": {}}, "description": "The file."}},
)
async def download(
    identifier: schemas.Identifier, services: Served, format: Literal["sightline", "zip"] = "sightline"
) -> Response:
    """The fitted classifier as a `.sightline` file, or its images as a zip file."""
    stored = await services.database.run(services.store.read, identifier)
    if format == "zip":
        data, kind = await services.reading.run(_archive, services, stored), "application/zip"
    else:
        fit = await services.fit(stored)
        data, kind = await services.explaining.run(_file, fit), "application/octet-stream"
    ascii_name = re.sub(r"[^A-Za-z0-9]+", "-", stored.name).strip("-") or "classifier"
    full_name = quote(re.sub(r'[\\/:*?"<>|]', "_", stored.name), safe="")  # for browsers, which show it
    disposition = f"attachment; filename=\"{ascii_name}.{format}\"; filename*=UTF-8''{full_name}.{format}"
    return Response(data, media_type=kind, headers={"content-disposition": disposition})


async def changed(
    services: Services, identifier: str, version: int | None, make: Callable[[Change], object]
) -> dict[str, Any]:
    """Change a stored classifier; returns its `state`."""
    await services.change(identifier, version, make)
    return await state(services, identifier)


async def state(services: Services, identifier: str, wait: bool = True) -> dict[str, Any]:
    """A stored classifier and its fit as plain values."""
    stored = await services.database.run(services.store.read, identifier)
    return state_values(stored, await services.fit_or_reason(stored, wait))


def state_values(stored: StoredClassifier, fit: Fit) -> dict[str, Any]:
    """The answer of every change."""
    groups = [
        {
            "id": group.id,
            "name": group.name,
            "accuracy": fit.class_accuracy.get(group.name),
            "examples": [
                {
                    "id": example.id,
                    "name": example.name,
                    "width": example.width,
                    "height": example.height,
                    "url": f"/api/classifiers/{stored.id}/examples/{example.id}/image",
                }
                for example in group.examples
            ],
        }
        for group in stored.classes
    ]
    warnings = [
        {"kind": w.kind, "text": w.text, "examples": list(w.examples), "suggestion": w.suggestion} for w in fit.warnings
    ]
    return {
        **{name: getattr(stored, name) for name in ("id", "name", "model", "version", "bytes", "undo")},
        "created": _time(stored.created),
        "updated": _time(stored.updated),
        "classes": groups,
        "num_examples": stored.num_examples,
        "fitted": fit.classifier is not None,
        "fitting": fit.is_pending,
        "reason": fit.reason,
        "fit": fit.values,
        "warnings": warnings,
    }


def _archive(services: Services, stored: StoredClassifier) -> bytes:
    images = services.store.images(stored.id, [e.id for group in stored.classes for e in group.examples])
    content = [
        (group.name, [(e.name, images[e.id]) for e in group.examples if e.id in images]) for group in stored.classes
    ]
    return uploads.write_archive(content)


def _file(fit: Fit) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return fit.ready().save(Path(folder) / "classifier.sightline").read_bytes()


def _check_model(services: Services, name: str) -> None:
    check_choice("model", name, (AUTO, *services.models.few_shot))
    reason = services.fits.missing.get(name)
    if reason is not None:
        raise RequestError(409, f"model must be installed, got {name!r}: {reason}")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
