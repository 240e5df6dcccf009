"""The example notebook: it runs, and its pages open in a browser."""

import json
import os
import subprocess
import sys
from pathlib import Path

NOTEBOOK = Path(__file__).parents[2] / "examples" / "see_attention.ipynb"
RUN = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": sys.argv[2]}}).execute()
nbformat.write(notebook, sys.argv[2] + "/ran.ipynb")
"""


def test_the_notebook_runs_and_its_pages_open(viewer, tmp_path):
    # in a new process, since the browser driver runs an event loop in this one
    environment = {
        **os.environ,
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "jupyter"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, NOTEBOOK, tmp_path],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    outputs = [
        output["data"]
        for cell in json.loads((tmp_path / "ran.ipynb").read_text("utf-8"))["cells"]
        for output in cell.get("outputs", [])
        if "data" in output
    ]
    frames = ["".join(data["text/html"]) for data in outputs if "text/html" in data]
    assert len(frames) == 2
    assert sum("image/png" in data for data in outputs) == 1
    (tmp_path / "cells.html").write_text(f"<!doctype html><body>{''.join(frames)}</body>", "utf-8")
    viewer.page.goto((tmp_path / "cells.html").as_uri())
    for i, (title, view) in enumerate([("Backwards", "heads"), ("Pixels", "image")]):
        viewer.frame = viewer.page.locator("iframe").nth(i).element_handle().content_frame()
        viewer.settle()
        assert viewer.frame.locator("h1").inner_text() == title
        assert viewer.view == view
    viewer.frame = viewer.page
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


def test_the_notebook_is_stored_without_outputs():
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    assert all(cell.get("outputs", []) == [] for cell in cells)
