"""What the pages say is run: every block of Python, in order, and the examples."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_on_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks, f"{page.name} shows no code"
    namespace = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), namespace)


def test_the_readme_prints_what_it_says(tmp_path):
    code, printed = re.search(
        r"```python\n(.*?)```\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    ).groups()
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert answer.stdout == printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_on_a_page_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_reversing_example_learns_and_reads_from_the_end(tmp_path):
    out = tmp_path / "reverse.png"
    command = [sys.executable, ROOT / "examples" / "reverse.py", "--out", out]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    right = float(re.search(r"\(([\d.]+)% of 1,000", answer.stdout).group(1))
    assert right > 99
    assert out.read_bytes().startswith(b"\x89PNG")


def test_the_figures_of_the_docs_can_be_drawn(tmp_path):
    figures = runpy.run_path(str(ROOT / "docs" / "figures.py"))
    quick = [name for name in figures if name.startswith("draw_") and name != "draw_reversal"]
    for name in quick:
        figures[name].__globals__["IMAGES"] = tmp_path
        figures[name]()
    drawn = {path.name: path for path in tmp_path.iterdir()}
    assert len(drawn) == len(quick) == 6
    for name, path in drawn.items():
        ours, committed = (
            np.asarray(Image.open(p).convert("L"), float) for p in (path, ROOT / "docs" / "images" / name)
        )
        assert ours.shape == committed.shape
        assert abs(ours - committed).mean() < 2, f"{name} is not the picture in docs/images: run make docs"
