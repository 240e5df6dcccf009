"""`sightline serve` as a process: workers that share the store, kills, and a clean stop."""

import re
import signal
import threading
from functools import partial

import httpx2 as httpx
import pytest
from typer.testing import CliRunner

from sightline.cli import app
from web_client import LABELS, WebServer, characters, files, kill_at_statement, new_classifier


def test_a_classifier_survives_a_clean_stop_and_a_kill_during_a_change(tmp_path):
    with WebServer(tmp_path) as server:
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


def test_workers_see_the_changes_of_each_other(tmp_path):
    with WebServer(tmp_path, "glyphs", "--workers", 2) as server:
        state = new_classifier(server.client)
        path = f"/api/classifiers/{state['id']}"

        def add(label, answers):
            with httpx.Client(base_url=server.client.base_url, timeout=60) as client:  # a connection of its own
                for data in characters()[label][2:4]:
                    answers.append(
                        client.post(f"{path}/examples", data={"label": label}, files=files(data)).status_code
                    )

        answers = []
        threads = [threading.Thread(target=add, args=(label, answers)) for label in LABELS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [201] * 6
        for _ in range(6):  # each on a new connection, so on either worker
            found = httpx.get(f"{server.client.base_url}{path[1:]}", timeout=60).json()
            assert {group["name"]: len(group["examples"]) for group in found["classes"]} == dict.fromkeys(LABELS, 4)
            assert found["version"] == state["version"] + 6
        metrics = server.client.get("/metrics").text
        [count] = re.findall(r'route="/api/classifiers/{identifier}/examples",status="201"} (\S+)', metrics)
        assert float(count) == 6  # over both workers
        server.command.send(signal.SIGTERM)
        assert server.command.wait() == 0


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
