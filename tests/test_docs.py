"""The documentation: Python blocks run, commands and configs parse, links lead to files, figures are up to date."""

import ast
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
import tokenizers
import typer
from PIL import Image

import sightline
from sightline import config, registry
from sightline.attention import NORMALIZERS, SCORES
from sightline.cli import app
from sightline.data.images import formats
from sightline.data.images.glyphs import draw_alphabets
from sightline.run_config import resolve_config

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
PYTHON = ("python", "py")


def code_blocks(page):
    """Language, content and output of every fenced block of a page; the output is a block directly below it."""
    pattern = r"^```(\w*)\n(.*?)^```\n(?:```\n(.*?)^```\n)?"
    return re.findall(pattern, page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
    """A working folder with the files that snippets name: class folders of drawn characters, and single images."""
    classes, drawers = ("ka", "mo", "ti", "se", "old"), 6
    pixels = draw_alphabets(alphabets=1, characters=len(classes), drawers=drawers).pixels.unflatten(0, (-1, drawers))
    files = {f"characters/{name}/{i}.png": pixels[c, i] for c, name in enumerate(classes) for i in range(4)}
    files |= {
        f"demo/characters/Gapu-{name}/{i}.png": pixels[c, i] for c, name in enumerate(classes[:2]) for i in range(5)
    }
    files |= {"demo/queries/known/Gapu-ka-6.png": pixels[0, 5]}
    files |= {"new.png": pixels[0, 4], "another.png": pixels[1, 4], "one.png": pixels[2, 4], "two.png": pixels[2, 5]}
    for name, image in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def _restored_registries(monkeypatch):
    """Undo what a page registers."""
    monkeypatch.setattr(app, "registered_commands", list(app.registered_commands))
    tables = (registry.TASKS, SCORES, NORMALIZERS, formats.FORMATS)
    saved = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, saved, strict=True):
        table.clear()
        table.update(entries)


def python_blocks(page):
    """Content and output of every Python block of a page."""
    return [(content, output) for language, content, output in code_blocks(page) if language in PYTHON]


@EVERY_PAGE
@pytest.mark.usefixtures("working_folder", "_restored_registries")
def test_python_blocks_run_and_print_what_the_page_shows(page, capsys):
    namespace, blocks = {}, python_blocks(page)
    assert blocks or page.name == "benchmarks.md", f"{page.name} has no Python block"
    alone = [block for block in blocks if page.name == "export.md" and "sightline" not in block[0]]
    for i, (content, output) in enumerate(blocks):
        if (content, output) in alone:
            continue
        capsys.readouterr()
        exec(compile(content, f"{page.name}, block {i}", "exec"), namespace)
        assert capsys.readouterr().out == output or not output
    for (_, output), printed in zip(alone, run_without_sightline([content for content, _ in alone]), strict=True):
        assert printed == output or not output


def run_without_sightline(programs):
    """What each program prints. All run in one process, in which sightline cannot be imported."""
    end = "end of a program"
    code = "\n".join(["import sys", "sys.modules['sightline'] = None", *(f"{x}\nprint({end!r})" for x in programs)])
    if not programs:
        return []
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.split(f"{end}\n")[:-1]


def test_masked_sentences_are_encoded_in_the_export_page_as_in_predictions(tmp_path):
    [block] = [content for content, _ in python_blocks(ROOT / "docs" / "export.md") if "def encode_masked" in content]
    tree = ast.parse(block)
    tree.body = [node for node in tree.body if isinstance(node, ast.ImportFrom | ast.Assign | ast.FunctionDef)][:3]
    namespace = {}
    exec(compile(tree, "export.md", "exec"), namespace)
    predictor = sightline.load("fill-mask")
    backend = tokenizers.Tokenizer.from_str(predictor.tokenizer.to_json())
    for text in (
        "A man rides a [MASK].",
        "a [MASK] [MASK] , two  [MASK]s and [MASK]'s dog .",
        "[MASK]",
        "un[MASK]able, (Zürich)▁[MASK]!",
    ):
        expected = predictor.tokenizer.encode_masked([text])[0]
        assert namespace["encode_masked"](backend, text, predictor.masker.mask_id) == expected


@EVERY_PAGE
def test_languages_of_blocks_are_known(page):
    assert {language for language, *_ in code_blocks(page)} <= {*PYTHON, "bash", "yaml", ""}


def shell_commands(page):
    """The arguments of every `sightline` command in the shell blocks of a page."""
    for language, content, _ in code_blocks(page):
        for line in content.replace("\\\n", " ").splitlines() if language == "bash" else ():
            words = shlex.split(line, comments=True)
            if "sightline" in words and words[0] in ("sightline", "torchrun"):
                yield words[words.index("sightline") + 1 :]


@EVERY_PAGE
def test_commands_have_valid_options_and_config_keys(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    group = typer.main.get_command(app)
    for name, *arguments in shell_commands(page):
        assert name in group.commands, f"{name} is not a command"
        with click.Context(group) as parent:
            group.commands[name].make_context(name, arguments, parent)
        if name == "train":
            words = [word for word in arguments if not word.startswith("-")]
            path = words[0] if words and "=" not in words[0] else None
            if path is None or Path(path).exists():
                resolve_config(path, words[path is not None :])


@EVERY_PAGE
def test_yaml_blocks_have_known_keys(page):
    for language, content, _ in code_blocks(page):
        if language == "yaml":
            values = config.parse(content)
            errors = []
            for spec in registry.TASKS.values():
                try:
                    resolve_config({"task": spec.name, **values}, [])
                except ValueError as error:
                    errors.append(str(error))
            assert len(errors) < len(registry.TASKS), errors


@EVERY_PAGE
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name} links to {target}"


@EVERY_PAGE
def test_links_to_sections_lead_to_headings(page):
    for target, section in re.findall(r"\]\(([^)#]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        text = ((page.parent / target) if target else page).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert section in anchors, f"{page.name} links to {target}#{section}"


def test_reverse_example_learns_to_attend_from_the_end(tmp_path, monkeypatch, capsys):
    out, script = tmp_path / "reverse.png", ROOT / "examples" / "reverse.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--out", str(out), "--steps", "300"])
    runpy.run_path(str(script), run_name="__main__")
    accuracy = float(re.search(r"\(([\d.]+)% of 1,000", capsys.readouterr().out).group(1))
    assert accuracy > 99
    assert out.read_bytes().startswith(b"\x89PNG")


def test_committed_figures_are_those_that_the_script_draws(tmp_path):
    script = runpy.run_path(str(ROOT / "docs" / "figures.py"))
    quick = [name for name in script if name.startswith("draw_") and name != "draw_reversal"]
    for name in quick:
        script[name].__globals__["IMAGES"] = tmp_path
        script[name]()
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == len(quick) == 6
    for path in paths:
        drawn, committed = (
            np.asarray(Image.open(file).convert("L"), float) for file in (path, ROOT / "docs" / "images" / path.name)
        )
        assert drawn.shape == committed.shape
        assert abs(drawn - committed).mean() < 2, f"docs/images/{path.name} is out of date: run make docs"
