"""Health, readiness, metrics, and the pages."""

from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import FileResponse, JSONResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from ...view import page
from .. import metrics
from ..schemas import Status
from ..services import Served

STATIC = Path(__file__).parent.parent / "static"
VIEWER = Path(page.__file__).parent / "static"
router = APIRouter(tags=["status"])


class _Files(StaticFiles):
    """Scripts and style sheets. A browser asks whether its copy is current."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "no-cache"
        return response


@router.get("/healthz", response_model=Status)
async def health() -> dict[str, str]:
    """Whether the process runs."""
    return {"status": "ok"}


@router.get("/readyz", response_model=Status, responses={503: {"model": Status, "description": "Not ready."}})
async def ready(services: Served) -> Any:
    """Whether the models are loaded and the store can be reached."""
    if not services.is_ready:
        return JSONResponse({"status": "stopping"}, 503)
    await services.database.run(services.store.ping)
    return {"status": "ready"}


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def prometheus() -> Response:
    """Metrics for Prometheus."""
    return Response(metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")


def add_pages(app: FastAPI) -> None:
    """The page of the app, that of the API, and their scripts."""
    app.mount("/static", _Files(directory=STATIC), name="static")
    app.mount("/view", _Files(directory=VIEWER), name="view")
    for path, name in (("/", "index.html"), ("/docs", "docs.html")):
        app.add_api_route(path, _page(name), include_in_schema=False, response_class=FileResponse)


def _page(name: str) -> Any:
    async def page_of_app() -> FileResponse:
        return FileResponse(STATIC / name, headers={"cache-control": "no-cache"})

    return page_of_app
