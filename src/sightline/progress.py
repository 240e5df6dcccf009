"""Progress of long work: a callback that reports it, and a bar on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]
"""Called with the number of finished items and the total."""
SECONDS_BEFORE_BAR = 1
"""Shorter work shows no progress bar."""


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Progress]:
    """Yield a progress callback; a bar appears on a terminal after one second."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich import progress
    from rich.console import Console, RenderableType

    class LateProgress(progress.Progress):
        """Shows its task after some time, also if nothing is finished until then."""

        def get_renderables(self) -> Iterator[RenderableType]:
            for task in self.tasks:
                task.visible = (task.elapsed or 0) >= SECONDS_BEFORE_BAR
            yield from super().get_renderables()

    with LateProgress(console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("working", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
