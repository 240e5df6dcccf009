"""The log of the web app: short lines on a terminal, JSON otherwise, and neither with what users send."""

import io
import json
import logging
import re

import pytest

from sightline.files import versions
from sightline.web import metrics
from web_client import web_client


class Stream(io.StringIO):
    """Standard error that is a terminal or not."""

    def __init__(self, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


@pytest.fixture
def logged(monkeypatch, tmp_path):
    """The lines that a few requests write."""

    def lines(is_terminal, log_format="auto"):
        stream = Stream(is_terminal)
        monkeypatch.setattr("sys.stderr", stream)
        metrics.configure_log(log_format)
        with web_client(tmp_path, "fashion") as client:
            client.get("/")
            client.get("/static/main.js")
            client.get("/api/models")
            client.get("/healthz")
            client.get("/api/classifiers/secret")
            client.get("/secret")
            monkeypatch.setattr(client.app.state.services.store, "ping", None)
            assert client.get("/readyz").status_code == 500
        return stream.getvalue().splitlines()

    monkeypatch.setattr(logging.root, "handlers", logging.root.handlers)
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    return lines


@pytest.mark.parametrize(("is_terminal", "log_format"), [(True, "auto"), (False, "text")])
def test_a_terminal_shows_short_lines_of_the_api_and_of_failures(logged, is_terminal, log_format):
    lines = logged(is_terminal, log_format)
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) and len(line) < 120 for line in lines)
    texts = [re.sub(r"\b\d+ ms", "N ms", line[9:]) for line in lines]
    assert texts[:4] == [
        f"start: models 1, versions {versions()}",
        "GET /api/models 200 N ms",
        "GET /api/classifiers/{identifier} 422 N ms",
        "GET other 404 N ms",
    ]
    assert re.fullmatch(r"failure: route /readyz, exception TypeError, where \w+\.py:\d+ \w+", texts[4])
    assert texts[5:] == ["GET /readyz 500 N ms", "stop"]


@pytest.mark.parametrize(("is_terminal", "log_format"), [(False, "auto"), (True, "json")])
def test_elsewhere_every_request_is_a_json_object(logged, is_terminal, log_format):
    lines = logged(is_terminal, log_format)
    assert "secret" not in "".join(lines)
    events = [json.loads(line) for line in lines]
    assert [values["event"] for values in events] == ["start", *["request"] * 6, "failure", "request", "stop"]
    assert [values["status"] for values in events if values["event"] == "request"] == [200] * 4 + [422, 404, 500]
    assert set(events[1]) == {"time", "level", "process", "event", "method", "route", "status", "seconds", "bytes"}
    assert events[-3]["exception"] == "TypeError"
    assert len(events[-3]["where"]) > 1
