"""The suite writes a record and a page, and its claims are documented; calibration is measured by our own code."""

import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from benchmarks import (
    ablation,
    clock,
    growth,
    icons_from_npm,
    packed_glyphs,
    peers,
    printed_from_debian,
    scores,
    suite,
    sweep,
    trainings,
)
from benchmarks.clock import Samples
from benchmarks.peers import PEERS
from benchmarks.record import Report
from PIL import Image
from torch import nn
from torch.overrides import _get_current_function_mode

from sightline import config
from sightline.attention import Record
from sightline.classifier import calibration
from sightline.data.images.class_splits import load_classes
from sightline.models.few_shot import FewShot
from sightline.models.few_shot_config import FewShotConfig
from sightline.tasks.few_shot.config import FewShotData, FewShotTaskConfig
from sightline.weights import to_bytes

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
MODULES = sorted(path.stem for path in FOLDER.glob("*.py"))
SUITE = {
    "__init__",
    "clock",
    "cpu",
    "gpu",
    "marian",
    "packed_glyphs",
    "page",
    "plots",
    "record",
    "suite",
    "sweep_models",
    "trainings",
}
"""Modules that are not run by themselves."""


@pytest.mark.parametrize("name", MODULES)
def test_a_module_has_a_docstring_and_is_a_benchmark_or_a_script(name):
    module = importlib.import_module(f"benchmarks.{name}")
    assert module.__doc__
    assert hasattr(module, "run") == (name in suite.BENCHMARKS or name == "suite")
    assert hasattr(module, "main") or name in {*suite.BENCHMARKS, *SUITE}


@pytest.mark.parametrize("name", [*PEERS])
def test_peers_compile_and_are_named_with_their_version(name):
    path, peer = FOLDER / "peers" / f"{name}.py", PEERS[name]
    guide = (FOLDER / "README.md").read_text(encoding="utf-8")
    if path.exists():  # else it is imported in our process
        compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True)
        assert peer.requirement in guide
    else:
        assert peer.requirement in (ROOT / "constraints.txt").read_text(encoding="utf-8")


def test_every_claim_names_its_benchmark():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|.*\|$", readme.partition("## Benchmarks")[2].partition("## ")[0], re.MULTILINE)
    named = {row.split("|")[-2].strip(" `") for row in rows[2:]}
    guide = (FOLDER / "README.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `(\w+)` \|", guide, re.MULTILINE)
    in_docs = re.findall(
        r"[Bb]enchmark `(\w+)`|`(\w+)` \|$", (ROOT / "docs/benchmarks.md").read_text("utf-8"), re.MULTILINE
    )
    assert named
    assert named <= suite.BENCHMARKS.keys()
    assert documented == list(suite.BENCHMARKS)
    assert {name for pair in in_docs for name in pair if name} <= suite.BENCHMARKS.keys()
    assert {*suite.CPU, *suite.GPU} == suite.BENCHMARKS.keys()


@pytest.fixture
def measured(tmp_path, monkeypatch, capsys):
    """Run a benchmark with results that are known; returns the record, the page and what is printed."""

    def run(settings, report):
        report.compare("forward", ("ours", Samples((1.0, 2.0, 6.0))), ("<theirs>", Samples((2.0, 4.0, 4.0))))
        report.compare("training", ("ours", Samples((9.0,))), ("theirs", Samples((3.0,))), unit="tokens/s")
        report.add("help", 0.25)
        by_length = {16: 1.0, 32: 4.0, 64: 16.0}
        report.curves.append(growth.curve("self-attention", growth.TIME, "s", by_length))
        with settings.peer("easyfsl", report) as peer:
            assert peer is None

    def measure(name, *options):
        monkeypatch.setattr(importlib.import_module(f"benchmarks.{name}"), "run", run)
        monkeypatch.setattr(peers, "FOLDER", tmp_path)
        out = tmp_path / "cpu.json"
        suite.main("cpu", [name, "--tiny", "--out", str(out), *options])
        return json.loads(out.read_text()), out.with_suffix(".html").read_text(), capsys.readouterr().out

    return measure


def test_a_run_writes_a_record_and_a_page(measured):
    record, page, printed = measured("attention")
    results = record["benchmarks"]["attention"]
    first, second = results["comparisons"]
    assert (first["ratio"], first["ratio_range"], first["higher_is_better"]) == (0.5, [0.5, 1.0], False)
    assert (second["ratio"], second["higher_is_better"]) == (3.0, True)
    assert first["ours"] == {"name": "ours", "median": 2.0, "quartiles": [1.5, 4.0], "rounds": 3}
    assert results["skipped"] == ["easyfsl: not installed: pip install easyfsl==1.5.0"]
    assert results["curves"][0]["exponent"] == 2.0
    assert record["versions"]["torch"] == torch.__version__
    assert "0.50 (0.50 to 1.00)  forward: ours 2 s, <theirs> 4 s" in printed
    for text in (
        "&lt;theirs&gt;",
        "pip install easyfsl==1.5.0",
        "250 ms",
        "Training time",
        'class="win"',
        "Tiny sizes",
    ):
        assert text in page
    assert "http" not in page.replace("http-equiv", "")


def test_a_run_keeps_other_benchmarks_of_the_same_machine_and_versions(measured, monkeypatch):
    measured("attention")
    assert list(measured("few_shot")[0]["benchmarks"]) == ["attention", "few_shot"]
    monkeypatch.setattr(suite, "processor", lambda: "another")
    assert list(measured("few_shot")[0]["benchmarks"]) == ["few_shot"]


def test_a_benchmark_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    def fail(settings, report):
        raise ValueError("out of luck")

    monkeypatch.setattr(importlib.import_module("benchmarks.attention"), "run", fail)
    monkeypatch.setattr(
        importlib.import_module("benchmarks.startup"), "run", lambda settings, report: report.add("x", 1.0)
    )
    with pytest.raises(SystemExit, match="failed: attention"):
        suite.main("cpu", ["attention", "startup", "--tiny", "--out", str(tmp_path / "cpu.json")])
    results = json.loads((tmp_path / "cpu.json").read_text())["benchmarks"]
    assert results["attention"]["failed"] == "ValueError: out of luck"
    assert results["startup"]["measurements"][0]["median"] == 1.0


def test_the_suite_of_a_gpu_runs_on_a_cpu_if_requested(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(
        importlib.import_module("benchmarks.startup"), "run", lambda settings, report: report.note(settings.device)
    )
    out = ["--out", str(tmp_path / "gpu.json")]
    with pytest.raises(SystemExit, match="needs a CUDA device; --device cpu runs it on the CPU"):
        suite.main("cuda", ["startup", *out])
    suite.main("cuda", ["startup", "--device", "cpu", *out])
    assert json.loads((tmp_path / "gpu.json").read_text())["benchmarks"]["startup"]["notes"] == ["cpu"]


def test_invalid_names_raise(capsys):
    for arguments in (["attentoin"], ["--peer", "bert=python"], ["--peer", "easyfsl"]):
        with pytest.raises(SystemExit):
            suite.parse("cpu", arguments)
    assert "NAME must be one of attention, few_shot" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["attention", "growth", "image_classifier", "recording", "translation", "decoding", "few_shot"]
)
def test_a_tiny_run_measures_something(name, monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    monkeypatch.setattr(clock, "MIN_SECONDS", 0.0)
    report = Report()
    importlib.import_module(f"benchmarks.{name}").run(suite.Settings("cpu", tiny=True), report)
    assert report.curves or all(comparison["ratio"] > 0 for comparison in report.comparisons)
    assert report.curves or report.comparisons or report.measurements


def test_long_calls_on_a_gpu_are_repeated_less_often():
    assert [clock.gpu_calls(seconds) for seconds in (0.0, 0.001, 0.1, 0.3, 9.0)] == [20, 20, 5, 1, 1]


def test_crossover_is_interpolated_on_logarithmic_axes():
    ours = {16: 1.0, 64: 16.0, 256: 256.0}
    assert growth.crossover(ours, {16: 2.0, 64: 8.0, 256: 32.0}) == "from about 32 tokens on"
    assert growth.crossover(ours, {16: 2.0, 64: 32.0, 256: 512.0}) == "not up to 256 tokens"
    assert growth.crossover(ours, {16: 32.0, 64: 128.0, 256: 512.0}) == "from about 510 tokens on (extrapolated)"
    assert growth.crossover(ours, {16: 0.5, 64: 1.0, 256: 2.0}) == "from 16 tokens on or fewer"


def test_peak_memory_counts_what_is_alive():
    def function():
        x = torch.empty(1000, dtype=torch.uint8)
        y = x + x
        del x
        return torch.empty(500, dtype=torch.uint8), y.view(10, 100)

    assert growth.peak_memory(function, "cpu") == 2000


@pytest.fixture
def load_script():
    """A function that imports a script without running it."""
    return lambda name: vars(importlib.import_module(f"benchmarks.{name}"))


@pytest.fixture
def run(tmp_path):
    """The folder of a small few-shot run with random weights and four tokens per image."""
    torch.manual_seed(0)
    model = FewShotConfig(image_size=32, channels=1, backbone_channels=(3, 5, 7, 8), num_heads=2, tokens="patches")
    task_config = FewShotTaskConfig(data=FewShotData(image_size=32), model=model)
    (tmp_path / "config.yaml").write_text(config.dump(task_config))
    (tmp_path / "model.safetensors").write_bytes(to_bytes(FewShot(model).state_dict()))
    return tmp_path


def test_calibration_is_evaluated_on_test_classes(run, load_script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["confidence.py", str(run), "--episodes", "1", "--test"])
    script = load_script("confidence")
    script["main"]()
    head, table = re.split(r"\n\n", capsys.readouterr().out.rstrip())
    assert " test classes" in head
    assert [line.split()[0] for line in table.split("\n")[1:]] == list(script["SETTINGS"])


def test_calibration_is_evaluated_on_all_classes_of_a_folder(run, load_script, monkeypatch, capsys, tmp_path):
    for label in range(8):
        (folder := tmp_path / "images" / f"class {label}").mkdir(parents=True)
        for i in range(20):
            pixels = np.random.default_rng(20 * label + i).integers(256, size=(32, 32), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")
    arguments = ["confidence.py", str(run), "--episodes", "1", "--data", str(tmp_path / "images"), "--all"]
    monkeypatch.setattr(sys, "argv", arguments)
    load_script("confidence")["main"]()
    head, table = re.split(r"\n\n", capsys.readouterr().out.rstrip())
    assert head.startswith("all 8 classes, 160 images; ")
    assert [line.split()[0] for line in table.split("\n")[1:]] == ["2w1s", "2w5s", "3w10s"]


def test_constants_of_calibration_are_compared_and_restored(run, load_script, monkeypatch, capsys):
    before = dict(vars(calibration))
    monkeypatch.setattr(sys, "argv", ["confidence.py", str(run), "--episodes", "1"])
    load_script("confidence")["main"]()
    assert before == vars(calibration)
    head, *tables = re.split(r"\n\n", capsys.readouterr().out.rstrip())
    assert "40 validation classes" in head
    rows = {table.split("\n")[0]: [line.split() for line in table.split("\n")[2:]] for table in tables}
    in_use = {name: [row[0] for row in table if row[-1] == "use"] for name, table in rows.items()}
    assert in_use["THRESHOLD_FRACTION, trained head"] == [f"{calibration.THRESHOLD_FRACTION:g}"]
    assert in_use["PRIOR_STD, untrained head"] == [f"{calibration.PRIOR_STD[False]:g}"]
    assert in_use["COPIES_PER_IMAGE, trained head"] == [f"{calibration.COPIES_PER_IMAGE:g}"]
    assert all(len(values) == 1 for values in in_use.values())
    rejected = [float(row[4].rstrip("%")) for row in rows["MIN_THRESHOLD_DISTANCE, trained head"]]
    assert rejected == sorted(rejected, reverse=True)  # a lower threshold rejects fewer unknown images
    assert rejected[0] > rejected[-1]


def test_packed_glyphs_are_a_data_set_with_splits_and_groups(tmp_path):
    ink = np.zeros((40, 30), np.uint8)
    ink[5:35, 10:14] = 255
    shape, generator = packed_glyphs.crop(ink), np.random.default_rng(0)
    assert shape.size == (4, 30)
    assert packed_glyphs.crop(np.zeros((9, 9), np.uint8)) is None
    images = [
        packed_glyphs.place(shape, generator),
        packed_glyphs.place(packed_glyphs.distort(shape, generator), generator),
    ]
    names = ("background/Latin/U+0049", "background/Greek/U+0399", "evaluation/Tibetan/U+0F0D")
    packed_glyphs.save(
        tmp_path / "i.npz", dict.fromkeys(names, images), [{"package": "fonts-i", "licenses": ["OFL-1.1"]}]
    )
    splits = load_classes(tmp_path / "i.npz", size=56)
    assert splits.train.classes == ("Greek/U+0399", "Latin/U+0049")
    assert splits.test.classes == ("Tibetan/U+0F0D",)
    ink_fraction = (255 - splits.train.pixels.float()).mean((1, 2, 3)) / 255
    assert ((ink_fraction > 0.01) & (ink_fraction < 0.2)).all()
    assert "OFL-1.1" in (tmp_path / "i.licenses.json").read_text()


def test_icons_of_one_concept_have_different_names():
    names = ("bell", "BellFilled", "bell-outline-24", "bell_16", "S2_Icon_Bell_20_N")
    assert {icons_from_npm.concept(name) for name in names} == {"bell"}
    wanted = {
        name: icons_from_npm.is_wanted(name) for name in ("bell", "user-plus", "plus", "face-wink", "chess-rook", "")
    }
    assert [name for name in wanted if wanted[name]] == ["bell", "user-plus"]


def test_printed_characters_are_letters_and_digits():
    assert "".join(printed_from_debian.characters("Georgian")) == "აბგდევზთიკლმნოპჟრსტუფქღყშჩცძწჭხჯჰ"
    assert len(printed_from_debian.characters("Yi")) == printed_from_debian.MAX_CHARACTERS
    for name in printed_from_debian.SCRIPTS:
        chars = printed_from_debian.characters(name)
        assert len({*chars}) == len(chars) >= 20
        assert all(char.isalnum() for char in chars)
    assert set(printed_from_debian.OMNIGLOT_EVALUATION) < set(printed_from_debian.SCRIPTS)


FAKE_SIGHTLINE = """
import json, pathlib, signal, sys, time
command, *words = sys.argv[1:]
out = [word.removeprefix("out=") for word in words if word.startswith("out=")]
run = pathlib.Path(out[0] if out else words[0])
run.mkdir(exist_ok=True)
with open(run / "calls.txt", "a") as file:
    print(command, "--resume" in words, file=file)
(run / "config.yaml").touch()
seed = int(run.name.rpartition("-")[2]) if run.name[-1].isdigit() else int(run.name.split("-")[-2])
if "SLOW" in words and "--resume" not in words:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    time.sleep(60)
if "FAIL" in words:
    sys.exit("a message")
if command == "train":
    (run / "README.md").touch()
else:
    value = 30 + seed + (0.5 if "cosine" in run.name else 0)
    (run / "evaluation.json").write_text(json.dumps({"bleu_lowercase": value}))
"""


@pytest.fixture
def fake_sightline(tmp_path, monkeypatch):
    """A command in place of `sightline` that trains and evaluates nothing, in an empty folder."""
    script = tmp_path / "fake.py"
    script.write_text(FAKE_SIGHTLINE)
    monkeypatch.setattr(trainings, "sightline_command", lambda words: [sys.executable, str(script), *words])
    monkeypatch.chdir(tmp_path)


def test_trainings_are_stopped_at_their_limit_and_resumed(fake_sightline, tmp_path, capsys):
    runs = {name: tmp_path / f"{name}-0" for name in ("quick", "slow", "failing", "late")}
    config = tmp_path / "config.yaml"
    unlimited, limited = trainings.Trainings(2), trainings.Trainings(run_seconds=3)
    done = [unlimited.add(config, words, runs[name]) for name, words in (("quick", []), ("failing", ["FAIL"]))]
    assert [future.result() for future in done] == [True, False]
    assert not limited.add(config, ["SLOW"], runs["slow"]).result()
    assert not trainings.Trainings(seconds=0).add(config, [], runs["late"]).result()
    message = capsys.readouterr().err
    assert f"{runs['slow']}: stopped at its limit of time" in message
    assert f"{runs['failing']}: train failed: a message" in message
    assert f"{runs['late']}: no time left to train it" in message
    assert all(unlimited.add(config, ["SLOW"], runs[name]).result() for name in ("quick", "slow"))
    calls = {name: runs[name].joinpath("calls.txt").read_text().split("\n") for name in ("quick", "slow")}
    assert calls == {"quick": ["train False", ""], "slow": ["train False", "train True", ""]}


class FakeComparison:
    """The accuracy of a run increases with the length of its name and with its seed."""

    def __init__(self, runs, baselines):
        self.names = [run.name for run in runs]
        self.names[1:1] = baselines

    def to_records(self):
        values = {name: (len(name.rstrip("-01")) + int("-1" in name)) / 100 for name in self.names}
        first = values[self.names[0]]
        return [
            {"name": name, "setting": "5w1s", "accuracy": value, "difference": value - first if i else None}
            for i, (name, value) in enumerate(values.items())
        ]


def test_an_ablation_prints_what_is_trained_and_goes_on(fake_sightline, tmp_path, monkeypatch, capsys):
    compared = []

    def compare(runs, baselines):
        compared.append([run.name for run in runs])
        return FakeComparison(runs, baselines)

    monkeypatch.setattr(ablation, "compare", compare)
    monkeypatch.setattr(ablation, "VARIANTS", {"full": (), "dot": ("FAIL",), "pooled": ()})
    monkeypatch.setattr(ablation, "BASELINES", ("svm",))
    (tmp_path / "config.yaml").write_text("task: few_shot")
    command = ["config.yaml", "--seeds", "2", "--variants", "full", "dot", "pooled", "--parallel", "3"]
    with pytest.raises(SystemExit, match="not finished: dot-0, dot-1; the same command goes on"):
        ablation.main(command)
    first, second = capsys.readouterr().out.split("means over seeds")[1:]
    assert [line.split()[:3] for line in first.split("\n")[2:-1]] == [
        ["full", "1", "4.00"],
        ["svm", "1", "3.00"],
        ["pooled", "1", "6.00"],
    ]
    assert second.split("\n")[4].split() == ["pooled", "2", "6.50", "±", "0.71", "2.00", "±", "0.00"]
    assert compared == [["full-0", "pooled-0"], ["full-1", "pooled-1"]]
    monkeypatch.setattr(ablation, "VARIANTS", {"full": (), "dot": (), "pooled": ()})
    ablation.main(command)
    assert "dot" in capsys.readouterr().out
    ablation.main(command)  # nothing is left to do
    assert compared[2:] == [["full-0", "dot-0", "pooled-0"], ["full-1", "dot-1", "pooled-1"]]


def test_scores_of_finished_runs_are_compared(fake_sightline, tmp_path, monkeypatch, capsys):
    (tmp_path / "config.yaml").write_text("task: translation\nmodel: {kind: transformer}")
    scores.main(["config.yaml", "a=1", "--parallel", "6"])
    row = capsys.readouterr().out.split("\n")[-2]
    assert row == (
        "| config, BLEU | 31.00 ± 2.48 | 31.50 ± 2.48 | 0.50 ± 0.00 | 30.00, 31.00, 32.00; 30.50, 31.50, 32.50 |"
    )
    [last] = tmp_path.glob("runs/scores/config-dot-2-*/")
    (last / "evaluation.json").unlink()
    with pytest.raises(SystemExit, match="1 of 6 runs are not finished"):
        scores.main(["config.yaml", "a=1", "--seconds", "0"])
    assert "| 30.00, 31.00; 30.50, 31.50 |" in capsys.readouterr().out


class Outer(nn.Module):
    """Attention in the form of `inner`, whose outputs a recording may change."""

    def __init__(self, inner, moved=0.0):
        super().__init__()
        self.inner, self.moved = inner, moved

    def forward(self, x):
        is_recorded = bool(self.inner._forward_hooks) and _get_current_function_mode() is not None
        return self.inner(x) + self.moved * is_recorded


class FusedAttention(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


class HiddenSoftmax(nn.Module):
    """A softmax that is not over tokens by its shape, in a module without attention in its name, beside attention."""

    def __init__(self):
        super().__init__()
        self.attention = FusedAttention()

    def forward(self, x):
        return (self.attention(x) @ torch.ones(x.shape[-1], 13)).softmax(-1)


class LinearAttention(nn.Module):
    def forward(self, x):
        return x @ (x.mT @ x)


@pytest.mark.parametrize(
    ("model", "status", "reason"),
    [
        (lambda: Outer(FusedAttention()), "seen", ""),
        (lambda: Outer(FusedAttention(), moved=0.1), "wrong", "outputs moved by 0."),
        (lambda: Outer(HiddenSoftmax()), "wrong", "silent: inner (HiddenSoftmax) softmax over (2, 3, 5, 13)"),
        (lambda: Outer(nn.Sequential(FusedAttention(), LinearAttention())), "partial", "not recorded: inner.1"),
        (lambda: Outer(LinearAttention()), "refused", "not recorded: inner"),
        (lambda: nn.Linear(7, 7), "without", ""),
        (lambda: nn.Linear(11, 7), "unbuilt", "RuntimeError"),
    ],
)
def test_a_sweep_says_what_a_recording_shows(model, status, reason, tmp_path):
    x = torch.randn(2, 3, 5, 7)
    cases = {"model": lambda: sweep.Case(model(), lambda model: model(x))}
    (outcome,) = sweep.sweep(cases, tmp_path / "progress.jsonl")
    assert (outcome.status, outcome.reason[: len(reason)]) == (status, reason)
    assert f"1 {status}" in sweep.table("torch", [outcome]) or status == "unbuilt"
    assert sweep.sweep({"model": pytest.fail}, tmp_path / "progress.jsonl") == [outcome]


def test_a_sweep_compares_maps_with_those_that_a_model_returns():
    x = torch.randn(2, 3, 5, 7)
    weights = (x @ x.mT / 7**0.5).softmax(-1)

    def outcome(maps):
        case = sweep.Case(FusedAttention(), lambda model: model(x), lambda: (maps, Record("model")))
        return sweep.examine("model", lambda: case)

    is_mean = weights.mean(1, keepdim=True).expand_as(weights)
    has_queries_first = weights.transpose(1, 2)
    assert outcome([weights, is_mean, weights[:, :, :4], has_queries_first, x]).status == "seen"
    assert (outcome([weights.flip(-1)]).status, outcome([weights.flip(-1)]).equal_maps) == ("wrong", 0)
