"""Uploads to and downloads from the Hugging Face Hub, with a local server in its place."""

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
from sightline import hub
from sightline.errors import SightlineError
from sightline.tasks.image_classification.predictor import ImageClassificationPredictor

COMMIT = "0123456789abcdef0123456789abcdef01234567"
IMAGE = np.arange(64, dtype=np.uint8).reshape(8, 8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    changes = [f"data.source={write_images(home / 'images.npz')}", f"out={home / 'run'}", *SMALL]
    return sightline.train(None, changes, quiet=True).folder


class HubHandler(BaseHTTPRequestHandler):
    """Serves the files of one folder as the model `owner/name`."""

    def do_GET(self):
        if self.path.startswith("/api/models/owner/name"):
            names = [path.name for path in self.server.folder.iterdir() if path.is_file()]
            files = [{"rfilename": name} for name in names]
            tree = [{"type": "file", "path": name, "size": self._size(name), "oid": "0" * 40} for name in names]
            response = tree if "/tree/" in self.path else {"id": "owner/name", "sha": COMMIT, "siblings": files}
            return self._send(json.dumps(response).encode())
        name = self.path.rpartition("/")[2]
        if self.path.startswith(f"/owner/name/resolve/{COMMIT}/") and (self.server.folder / name).is_file():
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
def server(run, monkeypatch, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
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


def test_a_hub_name_downloads_the_model(server, run):
    downloaded = sightline.load("hub:owner/name")
    assert downloaded.folder != run
    assert downloaded.predict(IMAGE) == sightline.load(run).predict(IMAGE)
    assert ImageClassificationPredictor.from_pretrained("hub:owner/name").folder == downloaded.folder
    assert not (downloaded.folder / "checkpoints").exists()


def test_a_model_that_is_not_on_the_hub_is_one_error(server):
    with pytest.raises(SightlineError, match=r"hub:owner/missing must be a model on the hub, got an error: "):
        sightline.load("hub:owner/missing")


@pytest.fixture
def requested(run, monkeypatch):
    """Names that were requested from the hub; each is answered with the run."""
    names = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **options: names.append((name, options)) or str(run)
    )
    return names


@pytest.mark.parametrize("name", ["hub:", "hub:name", "hub:not a/name", "hub:a/b/c", "hub:../name", "hub:/etc"])
def test_a_malformed_hub_name_is_refused_without_a_request(requested, name):
    with pytest.raises(SightlineError, match="a model on the hub must be named hub:owner/name, got "):
        sightline.load(name)
    assert requested == []


@pytest.mark.parametrize("name", ["owner/name", "runs/numbers", "./owner/name", "name", "/owner/name"])
def test_a_name_without_the_prefix_is_not_requested(requested, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for load in (sightline.load, sightline.evaluate, ImageClassificationPredictor.from_pretrained):
        with pytest.raises(SightlineError):
            load(name)
    assert requested == []


def test_the_error_for_a_name_that_could_be_on_the_hub_has_a_hint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = "there is no such folder: train a model with sightline train, or fit a classifier with sightline fit"
    with pytest.raises(SightlineError, match=rf"{message}; for a model on the hub write hub:owner/name$"):
        sightline.load("owner/name")
    with pytest.raises(SightlineError, match=rf"got 'name'; {message}$"):
        sightline.load("name")


def test_a_download_is_restricted_to_the_files_of_a_run(requested):
    sightline.load("hub:owner/name")
    ImageClassificationPredictor.from_pretrained("hub:owner/name", revision="v1", token="t")
    (name, first), (_, second) = requested
    assert name == "owner/name"
    assert first["allow_patterns"] == list(hub.RUN_FILES)
    assert (second["revision"], second["token"]) == ("v1", "t")


def test_evaluation_of_a_downloaded_model_is_not_stored(requested, run):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert sightline.evaluate("hub:owner/name", device="cpu").images == 6
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize("name", ["owner/name", "hub:owner/name"])
def test_an_upload_has_the_files_of_the_run_without_checkpoints(run, monkeypatch, name):
    calls = {}

    def upload(api, **options):
        calls["upload"] = options
        paths = [str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()]
        patterns = {key: options[key] for key in ("allow_patterns", "ignore_patterns")}
        calls["files"] = sorted(huggingface_hub.utils.filter_repo_objects(paths, **patterns))
        return "https://hub/owner/name"

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda api, name, **options: calls.update(name=name))
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)
    assert sightline.load(run).push_to_hub(name, private=True) == "https://hub/owner/name"
    assert calls["name"] == calls["upload"]["repo_id"] == "owner/name"
    assert calls["files"] == RUN_FILES


def test_a_refused_upload_is_one_error(server, run):
    with pytest.raises(SightlineError, match="name must be a repository you can write to, got 'owner/name': "):
        sightline.load(run).push_to_hub("owner/name", token="hf_none")
