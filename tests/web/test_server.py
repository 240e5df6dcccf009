"""`sightline serve` as a process: workers that share the store, kills, and a clean stop."""

import json
import os
import re
import shlex
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click
import httpx2 as httpx
import pytest
import typer
from typer.testing import CliRunner

from processes import TIMEOUT
from sightline.cli import app
from sightline.web.server import bind
from sightline.web.settings import Settings
from web_client import LABELS, WebServer, characters, files, kill_at_statement, new_classifier


def test_a_classifier_survives_a_clean_stop_and_a_kill_during_a_change(tmp_path):
    with WebServer(tmp_path) as server:
        assert f"classifiers are stored in {tmp_path / 'store.sqlite'}\n" in server.command.output
        state = new_classifier(server.client)
        path, answers = f"/api/classifiers/{state['id']}", []
        queries = files(*(characters()[label][-1] for label in LABELS * 4))
        request = threading.Thread(target=lambda: answers.append(server.client.post(f"{path}/predict", files=queries)))
        request.start()
        server.command.wait_for(lambda: b"_in_flight 2.0" in server.client.get("/metrics").content or answers)
        server.command.send(signal.SIGTERM)
        request.join()
        assert answers[0].status_code == 200  # what was begun is finished
        assert server.command.wait() == 0
        assert '"event": "stop"' in server.command.output
    with WebServer(tmp_path, prepare=partial(kill_at_statement, "INSERT INTO changes")) as server:
        image = files(characters()["ka"][3])
        with pytest.raises(httpx.TransportError):
            server.client.post(f"{path}/examples", data={"label": "ka"}, files=image)
        assert server.command.wait() == -signal.SIGKILL
    with WebServer(tmp_path) as server:
        found = server.client.get(path).json()
        assert found["classes"] == state["classes"]
        assert found["version"] == state["version"]
        assert server.client.post(f"{path}/predict", files=image).json()["predictions"][0]["closest"] == "ka"


class Workers:
    """The two worker processes of a server. While one is stopped, the other one answers."""

    def __init__(self, server):
        self.server, self.address = server, str(server.client.base_url)
        server.command.wait_for(lambda: len(self.events("start")) == 2)
        self.pids = [values["process"] for values in self.events("start")]

    def events(self, name):
        """Lines of the log."""
        whole = self.server.command.output.rpartition("\n")[0]
        lines = [line for line in whole.splitlines() if line.startswith("{")]
        return [values for values in map(json.loads, lines) if values["event"] == name]

    @contextmanager
    def only(self, pid):
        """A client whose requests are answered by this worker, on new connections."""
        [other] = set(self.pids) - {pid}
        os.kill(other, signal.SIGSTOP)
        while Path(f"/proc/{other}/stat").read_text().rpartition(") ")[2][0] != "T":
            time.sleep(0.001)
        try:
            with httpx.Client(base_url=self.address, timeout=TIMEOUT) as client:
                yield client
        finally:
            os.kill(other, signal.SIGCONT)


def in_flight(client):
    """The number of requests that are being answered, with this one for the metrics."""
    return float(re.search(r"^sightline_requests_in_flight (\S+)", client.get("/metrics").text, re.MULTILINE)[1])


def test_workers_serve_together_and_share_classifiers(tmp_path):
    with WebServer(tmp_path, "glyphs", "--workers", 2) as server:
        workers = Workers(server)
        first, second = workers.pids
        with workers.only(first) as client:
            state = new_classifier(client)
            path = f"/api/classifiers/{state['id']}"
        images = files(*characters()["ti"][2:4])
        with workers.only(second) as client:
            assert client.get(path).json()["classes"] == state["classes"]
            changed = client.post(f"{path}/examples", data={"label": "new"}, files=images).json()
            assert changed["version"] == state["version"] + 1
        with workers.only(first) as client:  # it has a fit of the version before
            answer = client.post(f"{path}/predict", files=images).json()
            assert answer["version"] == changed["version"]
            assert set(answer["predictions"][0]["scores"]) == {*LABELS, "new"}
            assert client.post(f"{path}/undo").json()["classes"] == state["classes"]

        def add(given):
            label, data = given
            return httpx.post(
                f"{workers.address}{path[1:]}/examples", data={"label": label}, files=files(data), timeout=TIMEOUT
            )

        with ThreadPoolExecutor(3) as pool:  # at the same time, on connections of their own
            answers = pool.map(add, [(label, data) for label in LABELS for data in characters()[label][2:4]])
            assert [answer.status_code for answer in answers] == [201] * 6
        for pid in workers.pids:
            with workers.only(pid) as client:
                found = client.get(path).json()
                assert found["version"] == state["version"] + 8
                assert {group["name"]: len(group["examples"]) for group in found["classes"]} == dict.fromkeys(LABELS, 4)
                metrics = client.get("/metrics").text
                [count] = re.findall(r'route="/api/classifiers/{identifier}/examples",status="201"} (\S+)', metrics)
                assert float(count) == 7  # over both workers
        answered = {values["process"] for values in workers.events("request") if "{identifier}" in values["route"]}
        assert answered == {first, second}

        url = server.client.base_url
        with workers.only(first) as client, socket.create_connection((url.host, url.port)) as connection:
            before = in_flight(client)  # the other worker may have been stopped within a request
            connection.sendall(b"POST /api/classifiers HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
            server.command.wait_for(lambda: in_flight(client) == before + 1)
            os.kill(first, signal.SIGKILL)
        gauge = "sightline_requests_in_flight 1.0\n"  # the request for the metrics alone
        server.command.wait_for(lambda: gauge in httpx.get(f"{workers.address}metrics", timeout=TIMEOUT).text)
        assert server.command.process.is_alive()
        server.command.send(signal.SIGTERM)
        assert server.command.wait() == 0


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--port", "8001", "--workers", "3", "--store", "my store.sqlite", "runs/a b", "signs.sightline"],
        ["--host", "localhost", "--port", "0", "--log-format", "json", "de-en"],
        ["--token", "TOKEN", "--store", "URL", "de-en"],
    ],
)
def test_the_command_that_a_page_shows_starts_the_same_server(arguments):
    def parsed(words):
        group = typer.main.get_command(app)
        with click.Context(group) as parent:
            return group.commands["serve"].make_context("serve", words, parent).params

    values = parsed(arguments)
    secrets = {"TOKEN": "a-secret-of-16-letters", "URL": "postgresql://user:secret@host/name"}
    token, store = secrets.get(values["token"]), secrets.get(values["store"], values["store"])
    address = (values["host"], values["port"])
    settings = Settings((), *address, values["workers"], store, token, log_format=values["log_format"])
    command = settings.command(values["models"] or ())
    assert "secret" not in command
    assert shlex.split(command)[:2] == ["sightline", "serve"]
    assert parsed(shlex.split(command)[2:]) == values
    assert "secret" not in settings.store_name


@pytest.mark.parametrize(
    "options",
    [
        {"host": "0.0.0.0", "token": "a-secret-of-16-letters"},
        {"allowed_hosts": ("signs.example",)},
        {"trusted_proxies": ("10.0.0.1",)},
    ],
)
def test_the_command_of_a_server_is_not_shown_to_others(options):
    assert Settings(**options).command(["de-en"]) is None


def test_a_taken_port_is_refused_with_the_option_to_pass(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", "--store", str(tmp_path / "store.sqlite"), "--port", str(port)])
    assert result.exit_code == 2
    assert (
        f"port must be free, got {port}, which another program uses; pass another one, such as --port" in result.output
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--host", "0.0.0.0"), "token must be given for a host beyond loopback"),
        (("--store", "mysql://a/b"), "store must be a path, or a URL of SQLite or PostgreSQL"),
        (("--port", "70000"), "port must be at most 65,535"),
        (("--port", "0", "nothing"), "run must be the folder of a trained model"),
        (("--port", "0", "--workers", "2", "nothing.sightline"), "a model must exist, got 'nothing.sightline'"),
    ],
)
def test_the_command_refuses_unsafe_and_wrong_settings(arguments, message, tmp_path):
    result = CliRunner().invoke(app, ["serve", "--store", str(tmp_path / "store.sqlite"), *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_answers_are_sent_without_waiting_for_acknowledgements():
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
