"""The progress bar on a terminal."""

import io
import sys
import time

from sightline import progress


def test_a_progress_bar_appears_on_stderr_after_a_second(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    stdout = sys.stdout
    cases = ((1, False, True, False), (0, True, True, False), (0, False, True, True), (0, False, False, True))
    for seconds, quiet, reports, is_visible in cases:
        monkeypatch.setattr(progress, "SECONDS_BEFORE_BAR", seconds)
        with progress.progress_bar(quiet) as report:
            report(1, 2) if reports else time.sleep(0.3)
            assert sys.stdout is stdout
        assert ("working" in sys.stderr.getvalue()) == is_visible
        sys.stderr.truncate(0)
