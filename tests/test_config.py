import re
from dataclasses import dataclass, field, make_dataclass
from typing import Literal

import pytest

from sightline.config import Config, build, change, dump, parse, plain, read
from sightline.errors import SightlineError


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    embed_dim: int = 8
    num_heads: int = 2
    score: Literal["dot", "cosine"] = "dot"

    def __post_init__(self):
        if self.embed_dim % self.num_heads:
            raise SightlineError(f"num_heads must divide embed_dim={self.embed_dim}, got {self.num_heads}")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    lr: float = 1e-3
    steps: int | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    sizes: tuple[int, ...] = ()
    fused: bool = False


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    data: str
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)


def run_config(text="", *changes):
    return build(RunConfig, change(parse(text) or {"data": "glyphs"}, changes))


def test_yaml_file_is_read_into_a_config(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "data: glyphs\nmodel:\n  embed_dim: 12\n  num_heads: 3\noptimizer: {lr: 1e-4, betas: [0.9, 0.98]}\n"
    )
    run = build(RunConfig, read(path))
    assert (run.model.embed_dim, run.optimizer.lr, run.optimizer.betas, run.optimizer.steps) == (
        12,
        1e-4,
        (0.9, 0.98),
        None,
    )


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "1.e-4", "0.0001", "+1e-4", "1e-04"])
def test_scientific_notation_is_a_number(text):
    assert run_config("", f"optimizer.lr={text}").optimizer.lr == 1e-4
    assert run_config(f"data: x\noptimizer: {{lr: {text}}}").optimizer.lr == 1e-4


def test_changes_take_the_type_of_their_key():
    run = run_config(
        "", "data=3", "optimizer.steps=100", "optimizer.fused=true", "optimizer.sizes=[1, 2]", "model.score=cosine"
    )
    assert (run.data, run.optimizer.steps, run.optimizer.fused, run.optimizer.sizes) == ("3", 100, True, (1, 2))
    assert run.model.score == "cosine"
    assert run_config("", "optimizer.steps=null").optimizer.steps is None
    assert run_config("", "optimizer.lr=2").optimizer.lr == 2.0


def test_dump_and_build_round_trip():
    run = run_config("", "optimizer.lr=1e-5", "optimizer.sizes=[3]", "data=on")
    assert build(RunConfig, parse(dump(run))) == run
    assert build(RunConfig, plain(run)) == run


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        (
            "",
            ["model.embed_dmi=3"],
            "model.embed_dmi must be a known key; did you mean 'embed_dim'?; known keys are embed_dim, ",
        ),
        (
            "",
            ["modle.embed_dim=3"],
            "modle must be a known key; did you mean 'model'?; known keys are ",
        ),
        ("", ["model.embed_dim=wide"], "model.embed_dim must be an integer, got 'wide'"),
        ("", ["model.embed_dim=3.5"], "model.embed_dim must be an integer, got 3.5"),
        ("", ["model.embed_dim=true"], "model.embed_dim must be an integer, got True"),
        ("", ["optimizer.fused=1"], "optimizer.fused must be true or false, got 1"),
        ("", ["optimizer.lr=fast"], "optimizer.lr must be a number, got 'fast'"),
        ("", [f"optimizer.lr={'9' * 400}"], "optimizer.lr must be an integer of at most 63 bits, got one of 1329 bits"),
        (
            "",
            [f"optimizer.betas=[0x{'f' * 5000}]"],
            "betas must be a list of 2, got a list with an integer of too many",
        ),
        ("", ["optimizer.steps=1.5"], "optimizer.steps must be an integer or null, got 1.5"),
        ("", ["optimizer.betas=[0.9]"], "optimizer.betas must be a list of 2, got [0.9]"),
        ("", ["optimizer.sizes=[1, a]"], "optimizer.sizes[1] must be an integer, got 'a'"),
        ("", ["model.score=cosin"], "model.score must be one of dot, cosine, got 'cosin'; did you mean 'cosine'?"),
        ("", ["model.num_heads=3"], "model: num_heads must divide embed_dim=8, got 3"),
        ("", ["model=3"], "model must be a section of keys and values, got 3"),
        ("", ["model.embed_dim"], "a change must read key=value, got 'model.embed_dim'"),
        ("", ["data.x=1"], "data.x must name a key inside a section, got 'data', a value"),
        ("model: {}", [], "data must be given, got nothing"),
        ("data: 3", [], "data must be text, got 3"),
    ],
)
def test_errors_name_the_full_key_and_the_rule(text, changes, message):
    with pytest.raises(SightlineError, match=re.escape(message)):
        run_config(text, *changes)


@pytest.mark.parametrize("kind", [dict[str, int], list[str]])
def test_type_that_values_cannot_be_checked_against_is_refused(kind):
    config_class = make_dataclass("TableConfig", [("table", kind, field(default_factory=kind))], bases=(Config,))
    for make in (config_class, lambda: build(config_class, {"table": {}})):
        with pytest.raises(
            TypeError, match=r"the type of table must be a class, a Literal, a tuple .* got (dict|list)"
        ):
            make()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: &x [1]\nb: *x", "must hold no YAML aliases"),
        ("data: a\ndata: b", "must hold each key once, got 'data' 2 times"),
        ("data: !!python/object/apply:os.system [ls]", "must hold no YAML tags"),
        ("data: !!int ''", "must hold no YAML tags"),
        ("data: !!bool x", "must hold no YAML tags"),
        (f"data: {'[' * 4000}", "must be a config in YAML"),
        ("- 1\n- 2", "must hold keys and values, got list"),
        ("data: [1", "must be a config in YAML"),
    ],
)
def test_invalid_files_are_refused(content, message, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(content)
    with pytest.raises(SightlineError, match=re.escape(message)):
        read(path)


def test_missing_and_oversized_files_are_refused(tmp_path):
    with pytest.raises(SightlineError, match="which is not a file"):
        read(tmp_path / "none.yaml")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (1 << 17))
    with pytest.raises(SightlineError, match="must be at most 65,536 bytes"):
        read(large)
