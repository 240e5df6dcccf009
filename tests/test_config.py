import re
from dataclasses import dataclass, field
from typing import Literal

import pytest

from sightline.config import build, change, dump, parse, plain, read


@dataclass(frozen=True, kw_only=True)
class Model:
    width: int = 8
    heads: int = 2
    score: Literal["dot", "cosine"] = "dot"

    def __post_init__(self):
        if self.width % self.heads:
            raise ValueError(f"heads must divide width={self.width}, got {self.heads}")


@dataclass(frozen=True, kw_only=True)
class Train:
    rate: float = 1e-3
    steps: int | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    sizes: tuple[int, ...] = ()
    fast: bool = False


@dataclass(frozen=True, kw_only=True)
class Run:
    data: str
    model: Model = field(default_factory=Model)
    train: Train = field(default_factory=Train)


def made(text="", *changes):
    return build(Run, change(parse(text) or {"data": "glyphs"}, changes))


def test_a_yaml_file_becomes_a_configuration(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("data: glyphs\nmodel:\n  width: 12\n  heads: 3\ntrain: {rate: 1e-4, betas: [0.9, 0.98]}\n")
    run = build(Run, read(path))
    assert (run.model.width, run.train.rate, run.train.betas, run.train.steps) == (12, 1e-4, (0.9, 0.98), None)


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "1.e-4", "0.0001", "+1e-4", "1e-04"])
def test_a_number_may_be_written_as_people_write_it(text):
    assert made("", f"train.rate={text}").train.rate == 1e-4
    assert made(f"data: x\ntrain: {{rate: {text}}}").train.rate == 1e-4


def test_changes_take_the_type_of_their_key():
    run = made("", "data=3", "train.steps=100", "train.fast=true", "train.sizes=[1, 2]", "model.score=cosine")
    assert (run.data, run.train.steps, run.train.fast, run.train.sizes) == ("3", 100, True, (1, 2))
    assert run.model.score == "cosine"
    assert made("", "train.steps=null").train.steps is None
    assert made("", "train.rate=2").train.rate == 2.0


def test_a_configuration_is_written_as_it_was_read():
    run = made("", "train.rate=1e-5", "train.sizes=[3]", "data=on")
    assert build(Run, parse(dump(run))) == run
    assert build(Run, plain(run)) == run


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        (
            "",
            ["model.witdh=3"],
            "model.witdh: a key here must be one of heads, score, width, got 'witdh'; did you mean",
        ),
        (
            "",
            ["modle.width=3"],
            "modle: a key here must be one of data, model, train, got 'modle'; did you mean 'model'?",
        ),
        ("", ["model.embed_dim=wide"], "model.width must be an integer, got 'wide'"),
        ("", ["model.embed_dim=3.5"], "model.width must be an integer, got 3.5"),
        ("", ["model.embed_dim=true"], "model.width must be an integer, got True"),
        ("", ["train.fast=1"], "train.fast must be true or false, got 1"),
        ("", ["train.rate=fast"], "train.rate must be a number, got 'fast'"),
        ("", ["train.steps=1.5"], "train.steps must be an integer or null, got 1.5"),
        ("", ["train.betas=[0.9]"], "train.betas must be a list of 2, got [0.9]"),
        ("", ["train.sizes=[1, a]"], "train.sizes[1] must be an integer, got 'a'"),
        ("", ["model.score=cosin"], "model.score must be one of dot, cosine, got 'cosin'; did you mean 'cosine'?"),
        ("", ["model.num_heads=3"], "model: heads must divide width=8, got 3"),
        ("", ["model=3"], "model must be a section of keys and values, got 3"),
        ("", ["model.width"], "a change must read key=value, got 'model.width'"),
        ("", ["data.x=1"], "data.x must name a key inside a section, got 'data', which is a value"),
        ("model: {}", [], "data must be given, got nothing"),
        ("data: 3", [], "data must be text, got 3"),
    ],
)
def test_what_is_wrong_is_named_in_full(text, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        made(text, *changes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: &x [1]\nb: *x", "no YAML aliases"),
        ("data: a\ndata: b", "each key must stand once in a section, got 'data' 2 times"),
        ("data: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("- 1\n- 2", "must hold keys and values, got list"),
        ("data: [1", "must be a configuration in YAML"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(content, message, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        read(path)


def test_a_file_that_is_missing_or_far_too_large_is_refused(tmp_path):
    with pytest.raises(ValueError, match="which is not a file"):
        read(tmp_path / "none.yaml")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (1 << 17))
    with pytest.raises(ValueError, match="must be at most 65,536 bytes"):
        read(large)
