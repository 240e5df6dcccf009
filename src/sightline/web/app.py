"""The application: its routes, its errors, and what starts and stops with it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ..errors import SightlineError
from ..files import versions
from . import metrics
from .bodies import BoundedBodies
from .errors import RequestError, content_type_message, operations, validation_message
from .metrics import Observed
from .routes import classifiers, examples, models, status
from .security import Secured, SecurityHeaders
from .services import Services
from .settings import Settings

DESCRIPTION = """Predictions of trained models, with their attention, and few-shot classifiers that are fitted to a few
images. Every refusal is a JSON object with one sentence, `error`."""


def create_app(settings: Settings, loaded: Services | None = None) -> FastAPI:
    """The application with these settings. Unless its services are given, they start with it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        services: Services = await run_in_threadpool(Services, settings) if loaded is None else loaded
        app.state.services = services
        metrics.event("start", models=len(services.models.models), versions=versions())
        yield
        await run_in_threadpool(services.close)
        metrics.event("stop")

    app = FastAPI(
        title="Sightline", version="1", description=DESCRIPTION, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    for module in (status, models, classifiers, examples):
        app.include_router(module.router)
    status.add_pages(app)
    app.add_exception_handler(SightlineError, _refused_input)
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_middleware(BoundedBodies)
    app.add_middleware(Secured, settings=settings)
    app.add_middleware(Observed)
    app.add_middleware(SecurityHeaders)
    if settings.trusted_proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(settings.trusted_proxies))
    return app


def from_environment() -> FastAPI:
    """The application of a worker process."""
    settings = Settings.from_environment()
    metrics.configure_log(settings.log_format)
    return create_app(settings)


def _sentence(status: int, message: str, headers: Any = None, **further: Any) -> JSONResponse:
    return JSONResponse({"error": message, **further}, status, headers)


async def _refused_input(request: Request, error: Any) -> JSONResponse:
    return _sentence(422, str(error))


async def _refused(request: Request, error: Any) -> JSONResponse:
    return _sentence(error.status_code, error.detail, error.headers, **error.further)


async def _invalid(request: Request, error: Any) -> JSONResponse:
    first, given = error.errors()[0], request.headers.get("content-type", "")
    if first["loc"][0] == "body" and (given or first["type"] != "missing"):
        operation = operations(request.app, request.scope["path"]).get(request.method, {})
        if (message := content_type_message(operation, given)) is not None:
            return _sentence(415, message)
    return _sentence(422, validation_message(first))


async def _http_error(request: Request, error: Any) -> JSONResponse:
    path, headers = request.scope["path"], error.headers
    message = f"the request must be valid, got: {error.detail}"
    if error.status_code == 404:
        message = f"the address must be one of this server, got {path[:100]!r}; see /docs"
    if error.status_code == 405:
        methods = sorted(operations(request.app, path)) or ["GET"]
        message = f"the method must be {' or '.join(methods)}, got {request.method[:20]}; see /docs"
        headers = {"Allow": ", ".join(methods)}
    return _sentence(error.status_code, message, headers)
