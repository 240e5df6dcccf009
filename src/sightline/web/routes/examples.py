"""The images of stored classifiers, and predictions for new ones."""

import asyncio
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Response, UploadFile

from ... import limits
from ...errors import SightlineError, check
from ...results import FailedPrediction
from .. import schemas, uploads
from ..changes import Change
from ..errors import RefusedFilesError, not_found
from ..fits import Fit
from ..models import Stopwatch
from ..rows import NewImage
from ..services import Served
from . import REFUSALS
from .classifiers import Version, changed, state

router = APIRouter(prefix="/api/classifiers/{identifier}", tags=["classifiers"], responses=REFUSALS)


@router.post("/examples", status_code=201, response_model=schemas.AddedExamples)
async def add_examples(
    identifier: schemas.Identifier,
    services: Served,
    image: Annotated[list[UploadFile], File(max_length=limits.MAX_WEB_FILES, description="One or several images.")],
    label: Annotated[schemas.Name | None, Form(description="Name of the class, which is added if it is new.")] = None,
    class_id: Annotated[schemas.RowId | None, Form(description="The class, instead of its name.")] = None,
    version: Version = None,
) -> dict[str, Any]:
    """Add images to a class. Those that cannot be used are listed in `errors`."""
    check((label is None) != (class_id is None), "label or class_id must be given, got both or none")
    data, names = [await upload.read() for upload in image], [upload.filename or "" for upload in image]
    found = await services.read_images(_to_stored, data, names)
    images = [item for item in found if isinstance(item, NewImage)]
    errors = [item for item in found if isinstance(item, dict)]
    if not images:
        raise RefusedFilesError(errors)

    def add(change: Change) -> list[int]:
        known = {group.name: group.id for group in change.before.classes}
        if class_id is not None:
            target = change.find_class(class_id).id
        else:
            assert label is not None
            target = known[label] if label in known else change.add_class(label)
        return change.add_images(target, images)

    added = await services.change(identifier, version, add)
    return {**await state(services, identifier), "added": added, "errors": errors}


@router.patch("/examples/{example_id}", response_model=schemas.ClassifierState)
async def move_example(
    identifier: schemas.Identifier,
    example_id: schemas.RowId,
    request: schemas.ExampleChange,
    services: Served,
    version: Version = None,
) -> dict[str, Any]:
    """Move an image to another class."""
    return await changed(
        services, identifier, version, lambda change: change.move_example(example_id, request.class_id)
    )


@router.delete("/examples/{example_id}", response_model=schemas.ClassifierState)
async def remove_example(
    identifier: schemas.Identifier, example_id: schemas.RowId, services: Served, version: Version = None
) -> dict[str, Any]:
    """Remove an image."""
    return await changed(services, identifier, version, lambda change: change.remove_examples([example_id]))


@router.post("/examples/remove", response_model=schemas.ClassifierState)
async def remove_examples(
    identifier: schemas.Identifier, request: schemas.ExampleIds, services: Served, version: Version = None
) -> dict[str, Any]:
    """Remove several images. It is one change: all of them, or none."""
    return await changed(services, identifier, version, lambda change: change.remove_examples(request.ids))


@router.get(
    "/examples/{example_id}/image",
    response_class=Response,
    responses={200: {"content": {"image/png": {}, "image/jpeg": {}}, "description": "The image."}},
)
async def example_image(identifier: schemas.Identifier, example_id: schemas.RowId, services: Served) -> Response:
    """An image as it is stored. It never changes under this address."""
    found = await services.database.run(services.store.images, identifier, [example_id])
    if example_id not in found:
        raise not_found("an image", example_id, identifier)
    data = found[example_id]
    return Response(
        data, media_type=uploads.media_type(data), headers={"cache-control": "private, max-age=604800, immutable"}
    )


@router.post("/predict", response_model=schemas.FewShotAnswers)
async def predict(
    identifier: schemas.Identifier,
    services: Served,
    image: Annotated[list[UploadFile], File(max_length=limits.MAX_WEB_INPUTS, description="One or several images.")],
) -> dict[str, Any]:
    """Classify images, or reject them as none of the classes."""
    watch, fit = Stopwatch(), await services.current(identifier)
    fit.ready()
    files = [await upload.read() for upload in image]
    prepared = await services.read_images(partial(_prepared, fit), files)
    if len(prepared) == 1 and isinstance(prepared[0], FailedPrediction):
        raise SightlineError(prepared[0].error)
    found = await asyncio.gather(*(services.classify(identifier, fit, item) for item in prepared))
    return {"version": fit.version, "seconds": watch.seconds, "predictions": [_answer(item) for item in found]}


@router.post("/explain", response_model=schemas.ExplainedAnswer)
async def explain(
    identifier: schemas.Identifier,
    services: Served,
    image: Annotated[UploadFile, File(description="The image.")],
    label: Annotated[schemas.Name | None, Form(description="Class to explain (default: the predicted one).")] = None,
    other: Annotated[schemas.Name | None, Form(description="Class to compare it with (default: all others).")] = None,
) -> dict[str, Any]:
    """Classify an image, with the images and regions that speak for the class and against it."""
    watch, fit = Stopwatch(), await services.current(identifier)
    classifier = fit.ready()
    prepared = await services.reading.run(_prepared, fit, await image.read())
    if isinstance(prepared, FailedPrediction):
        raise SightlineError(prepared.error)

    def run() -> Any:
        [found] = classifier.inspect_batch([prepared], label=label, other=other)
        services.fits.measure(identifier, fit)
        return (*found, _left_out(fit, found[0].label))

    prediction, inspection, left_out = await services.explaining.run(run)
    values = {"version": fit.version, "seconds": watch.seconds, "prediction": _answer(prediction)}
    return {**values, "left_out": left_out, **inspection.values}


def _to_stored(data: bytes, name: str) -> NewImage | dict[str, str]:
    """An image to store, or why it cannot be used."""
    try:
        return uploads.to_stored(data, name)
    except SightlineError as error:
        return {"name": uploads.display_name(name), "error": str(error)}


def _prepared(fit: Fit, data: bytes) -> Any:
    """A prepared image, or a failed prediction."""
    try:
        uploads.check_image(data)
        return fit.ready().prepare(data)
    except SightlineError as error:
        return FailedPrediction(str(error))


def _left_out(fit: Fit, label: str) -> dict[str, Any]:
    """The none scores of the images of a class, each left out, which the image is compared with."""
    scores = [1 - score for score in fit.ready().fitted.held_out_known_scores(label)]
    mean = sum(scores) / len(scores) if scores else None
    return {"label": label, "images": len(scores), "mean": mean, "highest": max(scores, default=None)}


def _answer(prediction: Any) -> dict[str, Any]:
    """A prediction as plain values, with the score of none of the classes."""
    values = prediction.to_dict()
    if prediction.error is None:
        values["none_score"] = 1 - prediction.known_score
    return values
