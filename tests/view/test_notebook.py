"""The example runs from top to bottom, and what its cells show opens in a browser."""

import json
import os
import subprocess
import sys
from pathlib import Path

from visitor import visiting

NOTEBOOK = Path(__file__).parents[2] / "examples" / "see_attention.ipynb"
RUN = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": sys.argv[2]}}).execute()
nbformat.write(notebook, sys.argv[2] + "/ran.ipynb")
"""


def test_the_example_runs_and_its_pages_open(browser, tmp_path):
    # in a process of its own: the browser's driver keeps an event loop running in this one
    own = {**os.environ, "JUPYTER_RUNTIME_DIR": str(tmp_path / "jupyter"), "IPYTHONDIR": str(tmp_path / "ipython")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, NOTEBOOK, tmp_path],
        env=own,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-3000:]
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
    with visiting(browser) as visitor:
        visitor.page.goto((tmp_path / "cells.html").as_uri())
        for place, (title, view) in enumerate([("Backwards", "heads"), ("Pixels", "image")]):
            visitor.frame = visitor.page.locator("iframe").nth(place).element_handle().content_frame()
            visitor.ready()
            assert visitor.frame.locator("h1").inner_text() == title
            assert visitor.frame.locator("html").get_attribute("data-view") == view
        visitor.frame = visitor.page
        visitor.open(tmp_path / "backwards.html")
        visitor.tab("Alignment")
        texts = visitor.texts()
        letters = [text for text, _, y in texts if len(text) == 1]
        assert letters[:6] == ["d", "a", "c", "b", "h", "f"]
        assert letters[12:] == ["f", "h", "b", "c", "a", "d"]
        visitor.tab("Matrix")
        visitor.choose("Attention", "Decoder")
        visitor.press("ArrowDown", "ArrowDown")
        assert visitor.status.startswith("f → ^: ")  # named by what it reads


def test_the_example_is_kept_without_outputs():
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    assert all(cell.get("outputs", []) == [] for cell in cells)
