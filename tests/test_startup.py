"""A pretrained model is loaded without the modules of torch and of others that take seconds to import."""

import json
import subprocess
import sys

import pytest

SLOW = ("torch._dynamo", "torch._inductor", "sympy", "matplotlib", "sacrebleu", "huggingface_hub", "rich.progress")
CODE = """
import json, sys
from typer.testing import CliRunner
from sightline.cli import app
result = CliRunner().invoke(app, sys.argv[1:])
print(json.dumps({"output": result.stdout, "modules": [*sys.modules]}))
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["predict", "de-en", "Guten Abend", "--device", "cpu"], "good evening"), (["info", "glyphs"], "few_shot")],
)
def test_slow_modules_are_not_imported(arguments, expected):
    command = [sys.executable, "-c", CODE, *arguments]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert expected in result["output"]
    assert "torch" in result["modules"]
    assert not {*SLOW} & {*result["modules"]}
