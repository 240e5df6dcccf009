"""What the routes use: the models, the store, fits, and the threads that run them."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import torch
from fastapi import Depends, Request

from ..errors import SightlineError
from ..results import FailedPrediction
from . import uploads
from .batching import Batcher
from .changes import Change
from .errors import BusyError
from .fits import Fit, Fits
from .lanes import Lane
from .models import MAX_BATCH, ServedModels
from .rows import StoredClassifier
from .settings import Settings
from .store import Store

T = TypeVar("T")

MAX_THREADS = 4
"""Batches of one model that run at the same time."""
LARGE_FIT = 200
"""Images from which on a classifier is fitted apart from smaller ones."""
FITTING = "the classifier must be fitted first, got one that is being fitted; try again"
STILL_FITTING = "the classifier must be fitted first, got one with many new images that takes longer; try again"


@dataclass(frozen=True)
class _Key:
    """Queries of one version of a classifier run together."""

    identifier: str
    version: int


class Services:
    """The parts of a running server, in one process."""

    def __init__(self, settings: Settings) -> None:
        cores = max(1, (os.cpu_count() or 1) // settings.workers)
        threads = min(cores, MAX_THREADS)  # of each model; batches run side by side
        torch.set_num_threads(max(1, cores // threads))
        self.settings = settings
        self.store = Store(settings.store_url)
        self.models = ServedModels(settings.models, threads)
        self.fits = Fits(self.store, self.models.few_shot)
        self.fits.load_models()
        self.database, self.texts, self.reading = Lane("database", 4), Lane("texts", 1), Lane("reading", 2)
        self.fitting, self.fitting_large = Lane("fitting", 1), Lane("large fits", 1)
        self.explaining, self.answering = Lane("explain", 1), Lane("answers", 2)
        self._queries = Batcher("few-shot", self._predict, MAX_BATCH, threads)
        self._started: set[asyncio.Task[Any]] = set()
        self.is_ready = True

    def close(self) -> None:
        """Finish what has begun, and close the store."""
        self.is_ready = False
        self.models.close()
        self._queries.close()
        computing = (self.texts, self.reading, self.fitting, self.fitting_large, self.explaining, self.answering)
        for lane in (*computing, self.database):
            lane.close()
        self.store.close()

    async def read_images(self, read: Callable[..., T], files: Sequence[bytes], *further: Sequence[Any]) -> list[T]:
        """`read(file, ...)` for each image of a request, whose pixels are bounded together."""
        if len(files) > 1:
            await self.reading.run(uploads.check_images, files)
        return await asyncio.gather(*(self.reading.run(read, *values) for values in zip(files, *further, strict=True)))

    async def change(self, identifier: str, version: int | None, make: Callable[[Change], T]) -> T:
        """What `make` returns for a stored classifier, which it changes in one transaction."""

        def run() -> T:
            with self.store.change(identifier, version) as change:
                return make(change)

        return await self.database.run(run)

    async def fit(self, stored: StoredClassifier) -> Fit:
        """The fit of a stored classifier; small ones do not wait for large ones."""
        kept = self.fits.kept(stored.id, stored.version)
        if kept is not None:
            return kept
        lane = self.fitting_large if stored.num_examples > LARGE_FIT else self.fitting
        return await lane.run(self.fits.fit, stored)

    async def fit_or_reason(self, stored: StoredClassifier, wait: bool = True) -> Fit:
        """The fit, or one without a classifier if it fails or takes too long: the change itself was made.

        Without `wait`, it is the one that is kept, or one that is pending and goes on.
        """
        try:
            if not wait and self.fits.kept(stored.id, stored.version) is None:
                self._start(self.fit(stored))
                return Fit(stored.version, reason=FITTING, is_pending=True)
            return await self.fit(stored)
        except BusyError:
            return Fit(stored.version, reason=STILL_FITTING, is_pending=True)
        except SightlineError as error:
            return Fit(stored.version, reason=str(error))

    def _start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run work that no request waits for. Its errors are those of the next request that needs it."""

        def done(task: "asyncio.Task[Any]") -> None:
            self._started.discard(task)
            if not task.cancelled():
                task.exception()

        task = asyncio.get_running_loop().create_task(work)
        self._started.add(task)  # the event loop itself keeps no reference
        task.add_done_callback(done)

    async def current(self, identifier: str) -> Fit:
        """The fit of the current version of a classifier."""
        version = await self.database.run(self.store.version, identifier)
        kept = self.fits.kept(identifier, version)
        return kept or await self.fit(await self.database.run(self.store.read, identifier))

    async def classify(self, identifier: str, fit: Fit, prepared: Any) -> Any:
        """The prediction of a fitted classifier for a prepared image."""
        if isinstance(prepared, FailedPrediction):
            return prepared
        return await self._queries.submit(_Key(identifier, fit.version), (fit, prepared))

    def _predict(self, key: _Key, items: list[tuple[Fit, Any]]) -> Sequence[Any]:
        classifier = items[0][0].ready()
        return classifier.predict_batch([prepared for _, prepared in items])


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


Served = Annotated[Services, Depends(_services)]
"""The services as an argument of a route."""
