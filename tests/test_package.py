"""The package as a whole: imports, public names, and the help of every command."""

import itertools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import sightline
from sightline.cli import app

ROOT = Path(__file__).parents[1]
COMMANDS = (
    "train",
    "search",
    "search-report",
    "serve",
    "export",
    "evaluate",
    "fit",
    "add",
    "remove",
    "info",
    "compare",
    "predict",
    "show",
    "data",
    "fetch",
    "demo",
)
HEAVY = {"torch", "numpy", "PIL", "matplotlib", "transformers", "safetensors", "tokenizers", "huggingface_hub", "yaml"}


def run_python(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


def test_import_of_the_package_and_of_the_command_line_loads_nothing_heavy():
    modules = run_python("-c", "import sys, sightline, sightline.cli; print(*sys.modules)").stdout.split()
    assert "sightline.cli" in modules
    assert not HEAVY & set(modules)


def test_help_of_a_command_loads_nothing_heavy():
    code = "import sys, sightline.cli\ntry: sightline.cli.app(['predict', '--help'])\nfinally: print(*sys.modules)"
    assert not HEAVY & set(run_python("-c", code).stdout.split())


def test_help_lists_every_command():
    result = run_python("-m", "sightline", "--help")
    assert result.returncode == 0
    for name in COMMANDS:
        assert f" {name} " in result.stdout
    assert "report paired\n                 differences.\n" in result.stdout  # wrapped, not cut
    commands = typer.main.get_command(app).commands
    assert {name for name, command in commands.items() if not command.hidden} == set(COMMANDS)


@pytest.mark.parametrize("name", [*COMMANDS, "ship"])
def test_help_of_every_command_starts_with_an_imperative_sentence(name):
    result = CliRunner().invoke(app, [name, "--help"], terminal_width=200)
    assert result.exit_code == 0
    assert f"sightline {name}" in result.output or f" {name} " in result.output
    sentence = typer.main.get_command(app).commands[name].help.splitlines()[0]
    verbs = ("Train", "Search", "Evaluate", "Fit", "Add", "Remove", "Predict", "Draw", "Describe", "Download")
    verbs += ("Convert", "Export", "Serve")
    assert sentence.startswith(verbs)
    assert sentence.endswith(".") or sentence.count(".") > 1
    assert sentence.split(".")[0] in result.output
    assert not re.search(r"[<{]|\bbool\b", result.output)  # the types of Python


def test_help_shows_how_arguments_and_values_are_written():
    output = CliRunner().invoke(app, ["predict", "--help"], terminal_width=200).output
    assert output.splitlines()[0].endswith(" predict [OPTIONS] RUN INPUT...")
    for line in (
        "--show PATH",
        "--top N",
        "--format [text|json|jsonl|csv]",
        "--allow-download",
        "--device DEVICE",
        "--help",
    ):
        assert re.search(rf"^  {re.escape(line)}  +\w", output, re.MULTILINE), line
    assert " data [OPTIONS] [NAME]\n" in CliRunner().invoke(app, ["data", "--help"]).output


@pytest.mark.parametrize("name", [*COMMANDS, "ship"])
def test_every_option_of_a_command_has_a_help_text(name):
    for parameter in typer.main.get_command(app).commands[name].params:
        assert parameter.name == "help" or parameter.help.rstrip().endswith((".", ")"))


def test_version_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert run_python("-m", "sightline", "--version").stdout.strip() == f"sightline {project['version']}"


def contract_layers():
    """Sets of module names from ground level up, as the import-linter contract has them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    return [set(re.findall(r"sightline\.(\w+)", layer)) for layer in reversed(layers)]


def test_every_module_has_a_layer():
    package = ROOT / "src" / "sightline"
    modules = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    modules |= {path.parent.name for path in package.glob("*/__init__.py")}
    assert set.union(*contract_layers()) == modules


def test_readme_lists_the_layers_in_the_order_of_the_import_contract():
    listing = re.search(r"```\nsrc/sightline/\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    for lower, upper in itertools.pairwise(contract_layers()):
        positions = [[re.search(rf"\b{name}\b", listing).start() for name in layer] for layer in (lower, upper)]
        assert max(positions[0]) < min(positions[1]), (lower, upper)


def test_public_names_exist():
    for name in sightline.__all__:
        assert getattr(sightline, name)
    assert set(dir(sightline)) == set(sightline.__all__)
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        sightline.atention  # noqa: B018


def test_a_path_that_cannot_be_a_folder_is_an_error_without_traceback(tmp_path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


def test_make_web_installs_the_model_for_photos_and_takes_a_port():
    command = ["make", "--dry-run", "--no-print-directory", "--what-if=pyproject.toml", "web", "PORT=8001"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "'.[web,photos]'" in result.stdout
    assert result.stdout.rstrip().endswith("sightline serve --port 8001")
