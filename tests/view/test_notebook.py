"""The example notebook: it runs, and its pages open in a browser."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": sys.argv[2]}}).execute()
nbformat.write(notebook, sys.argv[2] + "/ran.ipynb")
"""


def run(name, tmp_path):
    """The outputs of all cells. It runs in a new process, since the browser driver runs an event loop in this one."""
    environment = {
        **os.environ,
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "jupyter"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, EXAMPLES / name, tmp_path],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return [
        output["data"]
        for cell in json.loads((tmp_path / "ran.ipynb").read_text("utf-8"))["cells"]
        for output in cell.get("outputs", [])
        if "data" in output
    ]


def open_frames(viewer, outputs, tmp_path):
    """Open the pages of all cells; yields after each."""
    frames = ["".join(data["text/html"]) for data in outputs if "text/html" in data]
    (tmp_path / "cells.html").write_text(f"<!doctype html><body>{''.join(frames)}</body>", "utf-8")
    viewer.page.goto((tmp_path / "cells.html").as_uri())
    for i in range(len(frames)):
        viewer.frame = viewer.page.locator("iframe").nth(i).element_handle().content_frame()
        viewer.settle()
        yield viewer.frame.locator("h1").inner_text(), viewer.view
    viewer.frame = viewer.page


def test_the_notebook_runs_and_its_pages_open(viewer, tmp_path):
    outputs = run("see_attention.ipynb", tmp_path)
    assert list(open_frames(viewer, outputs, tmp_path)) == [("Backwards", "heads"), ("Pixels", "image")]
    assert sum("image/png" in data for data in outputs) == 1
    viewer.open(tmp_path / "backwards.html")
    viewer.tab("Alignment")
    texts = viewer.texts()
    letters = [text for text, _, y in texts if len(text) == 1]
    assert letters[:6] == ["d", "a", "c", "b", "h", "f"]
    assert letters[12:] == ["f", "h", "b", "c", "a", "d"]
    viewer.tab("Matrix")
    viewer.choose("Attention", "Decoder")
    viewer.press("ArrowDown", "ArrowDown")
    assert viewer.status.startswith("f → ^: ")  # named by the decoder input


def test_a_trained_model_is_recorded_and_viewed(viewer, tmp_path):
    outputs = run("trained_model.ipynb", tmp_path)
    assert list(open_frames(viewer, outputs, tmp_path)) == [("MiniLM", "heads"), ("From a tuple", "heads")]
    assert sum("image/png" in data for data in outputs) == 1
    viewer.open(tmp_path / "minilm.html")
    assert {"un", "##for", "##get", "##table", "chef"} <= set(viewer.words())
    assert viewer.frame.get_by_label("Sentences").is_visible()
    assert viewer.frame.locator(".notice").count() == 0
    viewer.open(tmp_path / "again.html", "join=true")
    assert "unforgettable" in viewer.words()


@pytest.mark.parametrize("name", ["see_attention.ipynb", "trained_model.ipynb"])
def test_notebooks_are_stored_without_outputs(name):
    cells = json.loads((EXAMPLES / name).read_text("utf-8"))["cells"]
    assert all(cell.get("outputs", []) == [] for cell in cells)
