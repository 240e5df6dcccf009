"""Pushing to and pulling from a model hub: a hub of our own, that speaks as much of its language as is needed."""

import json
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub
import huggingface_hub.constants
import huggingface_hub.utils
import numpy as np
import pytest

import sightline
from processes import RUN_FILES, SMALL, write_images
from sightline.tasks.image_classification.predictor import ImagePredictor

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PICTURE = np.arange(64, dtype=np.uint8).reshape(8, 8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    home = tmp_path_factory.mktemp("sharing")
    words = [f"data.source={write_images(home / 'images.npz')}", f"out={home / 'run'}", *SMALL]
    sightline.train(None, words, quiet=True)
    return home / "run"


class Hub(BaseHTTPRequestHandler):
    """Serves the files of one folder as the model `me/glyphs`."""

    def do_GET(self):
        if self.path.startswith("/api/models/me/glyphs"):
            names = [path.name for path in self.server.folder.iterdir() if path.is_file()]
            files = [{"rfilename": name} for name in names]
            tree = [{"type": "file", "path": name, "size": self._size(name), "oid": "0" * 40} for name in names]
            answer = tree if "/tree/" in self.path else {"id": "me/glyphs", "sha": COMMIT, "siblings": files}
            return self._send(json.dumps(answer).encode())
        name = self.path.rpartition("/")[2]
        if self.path.startswith(f"/me/glyphs/resolve/{COMMIT}/") and (self.server.folder / name).is_file():
            return self._send((self.server.folder / name).read_bytes())
        return self._send(b"{}", 404)

    do_HEAD = do_GET  # noqa: N815

    def _size(self, name):
        return (self.server.folder / name).stat().st_size

    def _send(self, data, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{zlib.crc32(data)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def hub(run, monkeypatch, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.folder = run
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    constants = {
        "ENDPOINT": address,
        "HUGGINGFACE_CO_URL_TEMPLATE": address + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_HUB_DISABLE_XET": True,
    }
    for name, value in constants.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_model_is_pulled_by_its_name(hub, run):
    pulled = ImagePredictor.from_pretrained("me/glyphs")
    assert pulled.folder != run
    assert pulled.predict(PICTURE) == sightline.load(run).predict(PICTURE)
    assert not (pulled.folder / "checkpoints").exists()


@pytest.mark.parametrize("name", ["me/nothing", "not a name", "a/b/c"])
def test_a_model_that_is_not_there_is_one_clear_error(hub, name):
    with pytest.raises(ValueError, match="name must be a folder or a model on the hub, got "):
        ImagePredictor.from_pretrained(name)


def test_what_is_pushed_is_the_model_and_not_its_checkpoints(run, monkeypatch):
    calls = {}

    def upload(api, **options):
        calls["upload"] = options
        paths = [str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()]
        wanted = {"allow_patterns": options["allow_patterns"], "ignore_patterns": options["ignore_patterns"]}
        calls["files"] = sorted(huggingface_hub.utils.filter_repo_objects(paths, **wanted))
        return "https://hub/me/glyphs"

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda api, name, **options: calls.update(name=name))
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)
    assert sightline.load(run).push_to_hub("me/glyphs", private=True) == "https://hub/me/glyphs"
    assert calls["name"] == calls["upload"]["repo_id"] == "me/glyphs"
    assert calls["files"] == RUN_FILES


def test_a_hub_that_refuses_is_one_clear_error(hub, run):
    with pytest.raises(ValueError, match="name must be a place on the hub you may write to, got 'me/glyphs': "):
        sightline.load(run).push_to_hub("me/glyphs", token="hf_none")
