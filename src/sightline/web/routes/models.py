"""The served models: their list, and predictions for texts and images."""

import asyncio
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Response, UploadFile
from pydantic import TypeAdapter, ValidationError

from ... import limits
from ...errors import SightlineError, check
from ...results import FailedPrediction
from .. import schemas, uploads
from ..encoding import to_json
from ..errors import validation_message
from ..fits import AUTO
from ..models import Options, ServedModel, Stopwatch, answer
from ..services import Served, Services
from . import REFUSALS

router = APIRouter(prefix="/api/models", tags=["models"], responses=REFUSALS)
LIMITS = {
    "max_image_bytes": "MAX_WEB_IMAGE_BYTES",
    "max_image_pixels": "MAX_IMAGE_PIXELS",
    "max_upload_bytes": "MAX_WEB_UPLOAD_BYTES",
    "max_text_chars": "MAX_WEB_TEXT_CHARS",
    "max_inputs": "MAX_WEB_INPUTS",
    "max_files_per_request": "MAX_WEB_FILES",
    "max_classes": "MAX_WEB_CLASSES",
    "max_examples": "MAX_WEB_EXAMPLES",
    "max_name_chars": "MAX_WEB_NAME_CHARS",
    "max_classifiers": "MAX_WEB_CLASSIFIERS",
    "max_classifier_bytes": "MAX_WEB_CLASSIFIER_BYTES",
}
"""Bounds that a client should know."""
_POSITIONS: TypeAdapter[list[int]] = TypeAdapter(schemas.Positions)
_HEADS: TypeAdapter[dict[str, list[int]]] = TypeAdapter(schemas.Heads)


@router.get("", response_model=schemas.ModelList)
async def list_models(services: Served) -> dict[str, Any]:
    """The served models, the models that classifiers can be fitted with, and bounds on requests."""
    reasons = {name: services.fits.missing.get(name) for name in services.models.few_shot}
    few_shot = [{"name": name, "available": not reason, "reason": reason} for name, reason in reasons.items()]
    return {
        "models": [model.describe() for model in services.models.models.values()],
        "few_shot_models": [{"name": AUTO, "available": True, "reason": None}, *few_shot],
        "pretrained": services.models.pretrained,
        "missing": services.models.missing,
        "limits": {name: getattr(limits, constant) for name, constant in LIMITS.items()},
        "command": services.settings.command(services.models.sources),
    }


@router.post("/{name}/predict", response_model=schemas.ModelAnswers)
async def predict(name: str, request: schemas.PredictRequest, services: Served) -> Response:
    """Predict with a model of texts: translate, fill masks, classify."""
    watch, model = Stopwatch(), _model(services, name, "text")
    heads = tuple((layer, tuple(indices)) for layer, indices in sorted(request.ablate_heads.items()))
    options = Options(request.top_k, request.num_beams, request.attention is not None, heads)
    model.check_options(options)
    items = await services.texts.run(lambda: [model.prepare(text, request.remove_tokens) for text in request.texts])
    sizes = [len(text) for text in request.texts]
    return await _answers(services, model, items, sizes, options, request.attention, watch)


@router.post("/{name}/predict-image", response_model=schemas.ModelAnswers)
async def predict_image(
    name: str,
    services: Served,
    image: Annotated[list[UploadFile], File(max_length=limits.MAX_WEB_INPUTS, description="One or several images.")],
    top_k: Annotated[schemas.TopK | None, Form()] = None,
    num_beams: Annotated[schemas.Beams | None, Form()] = None,
    attention: Annotated[schemas.Form | None, Form()] = None,
    remove_tokens: Annotated[str, Form(max_length=10_000, description="Patches to leave out, a JSON list.")] = "[]",
    ablate_heads: Annotated[str, Form(max_length=10_000, description="Heads to switch off, a JSON object.")] = "{}",
) -> Response:
    """Predict with a model of images: caption, classify."""
    watch, model = Stopwatch(), _model(services, name, "image")
    heads = _json("ablate_heads", _HEADS, ablate_heads)
    removed = _json("remove_tokens", _POSITIONS, remove_tokens)
    ablated = tuple((layer, tuple(indices)) for layer, indices in sorted(heads.items()))
    options = Options(top_k, num_beams, attention is not None, ablated)
    model.check_options(options)
    files = [await upload.read() for upload in image]
    items = await services.read_images(partial(_prepared, model, removed=removed), files)
    return await _answers(services, model, items, [0] * len(items), options, attention, watch)


def _prepared(model: ServedModel, data: bytes, *, removed: list[int]) -> Any:
    """A prepared image, or a failed prediction."""
    try:
        uploads.check_image(data)
    except SightlineError as error:
        return FailedPrediction(str(error))
    return model.prepare(data, removed)


async def _answers(
    services: Services,
    model: ServedModel,
    items: list[Any],
    sizes: list[int],
    options: Options,
    form: str | None,
    watch: Stopwatch,
) -> Response:
    """Predictions for inputs that can be used. A single one that cannot be is an error of the request."""
    if len(items) == 1 and isinstance(items[0], FailedPrediction):
        raise SightlineError(items[0].error)

    async def predicted(item: Any, size: int) -> Any:
        return item if isinstance(item, FailedPrediction) else await model.predict(item, options, size)

    found = await asyncio.gather(*map(predicted, items, sizes))
    values = {"model": model.name, "task": model.task, "seconds": watch.seconds}

    def encoded() -> bytes:
        predictions = [answer(prediction, item, form) for prediction, item in zip(found, items, strict=True)]
        return to_json({**values, "predictions": predictions})

    body = encoded() if form is None else await services.answering.run(encoded)  # attention can be large
    return Response(body, media_type="application/json")


def _model(services: Services, name: str, kind: str) -> ServedModel:
    """A served model of texts or of images."""
    model = services.models[name]
    other = {"text": "predict-image", "image": "predict"}[kind]
    is_right = model.predictor.input_kind == kind
    check(is_right, f"model must be one of {kind}s here, got {name!r}; use /api/models/{name}/{other}")
    return model


def _json(name: str, adapter: TypeAdapter[Any], text: str) -> Any:
    """The value of a form field that contains JSON."""
    try:
        return adapter.validate_json(text, strict=True)
    except ValidationError as error:
        first: Any = error.errors()[0]
        raise SightlineError(validation_message({**first, "loc": (name, *first["loc"])})) from None
