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
    from rich.console import Console

    with progress.Progress(console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("working", visible=False)

        def advance(done: int, total: int) -> None:
            is_visible = (bar.tasks[0].elapsed or 0) >= SECONDS_BEFORE_BAR
            bar.update(task, completed=done, total=total, visible=is_visible)

        yield advance
