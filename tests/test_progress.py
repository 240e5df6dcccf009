"""The progress bar on a terminal."""

import io
import sys

from sightline import progress


def test_a_progress_bar_appears_on_stderr_after_a_second(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    stdout = sys.stdout
    for seconds, quiet, is_visible in ((1, False, False), (0, True, False), (0, False, True)):
        monkeypatch.setattr(progress, "SECONDS_BEFORE_BAR", seconds)
        with progress.progress_bar(quiet) as report:
            report(1, 2)
            assert sys.stdout is stdout
        assert ("working" in sys.stderr.getvalue()) == is_visible
