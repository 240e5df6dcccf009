"""The file server, and miniatures of the data sets."""

import threading
from dataclasses import replace

import pytest

from file_server import FileServer, public_file
from sightline.data.fetching import catalog, download, fetch


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download, "RETRY_SECONDS", 0)
    with FileServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def miniature(server, monkeypatch):
    """Replace the files of a data set of the catalog by small ones, by name."""

    def change(name, files):
        dataset = catalog.DATASETS[name]
        outputs = []
        for output in dataset.outputs:
            small = [
                public_file(server, file.name, files[file.name], pinned=file.digest is not None)
                for file in output.files
            ]
            outputs.append(replace(output, files=tuple(small)))
        datasets = {**catalog.DATASETS, name: replace(dataset, outputs=tuple(outputs))}
        monkeypatch.setattr(fetch, "DATASETS", datasets)

    return change
