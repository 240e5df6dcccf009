"""The application: its routes, its errors, and what starts and stops with it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from ..errors import SightlineError
from ..files import versions
from . import metrics
from .bodies import BoundedBodies
from .errors import RequestError, validation_message
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
    return app


def from_environment() -> FastAPI:
    """The application of a worker process."""
    metrics.configure_log()
    return create_app(Settings.from_environment())


def _sentence(status: int, message: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": message}, status, headers)


async def _refused_input(request: Request, error: Any) -> JSONResponse:
    return _sentence(422, str(error))


async def _refused(request: Request, error: Any) -> JSONResponse:
    return _sentence(error.status_code, error.detail, error.headers)


async def _invalid(request: Request, error: Any) -> JSONResponse:
    return _sentence(422, validation_message(error.errors()[0]))


async def _http_error(request: Request, error: Any) -> JSONResponse:
    text = {
        404: "the address must be one of this server, got another; see /docs",
        405: "the method must be another one",
    }
    return _sentence(
        error.status_code, text.get(error.status_code, f"the request must be valid, got: {error.detail}"), error.headers
    )
