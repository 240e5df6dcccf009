"""Ctrl-C and SIGTERM: noticed at once, obeyed when the step is done and saved."""

import signal
import threading
from types import FrameType
from typing import Any

CAUGHT = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop; it was saved and can go on from there."""

    def __init__(self, number: int, message: str):
        super().__init__(message)
        self.exit_code = 128 + number


class Interrupts:
    """Inside `with`, the first signal is only noted in `caught`; a second one of Ctrl-C breaks off at once."""

    def __init__(self) -> None:
        self.caught = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in CAUGHT}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.caught = number
