"""Searches as a whole, in this process and in worker processes."""

import functools
import io
import itertools
import json
import re
import signal
import time
from types import SimpleNamespace

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

import search_task
import sightline
from processes import SMALL, CommandProcess, write_images
from search_task import SPACE
from sightline.cli import app
from sightline.errors import SightlineError
from sightline.search import Results, search
from sightline.search.progress import Progress, describe, duration
from sightline.search.study import Study

TOY = {"task": "toy_search"}
WITHOUT_DEPTH = [change for change in SMALL if not change.startswith("model.depth=")]


def run(folder, space=SPACE, changes=(), source=TOY, **options):
    options = {"sampler": "random", "pruner": "none", "trials": 6, "quiet": True, **options}
    return search(source, space, changes, out=folder, **options)


def settings(finished):
    return [trial["settings"] for trial in finished.results.trials]


def write_yaml(path, values):
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_one_seed_gives_the_same_trials_also_after_an_interruption(tmp_path, toy, sampler):
    whole, other = (run(tmp_path / str(seed), sampler=sampler, trials=n, seed=seed) for seed, n in [(3, 12), (4, 2)])
    for trials in (3, 3, 11, 12):
        parts = run(tmp_path / "parts", sampler=sampler, trials=trials, seed=3)
    assert settings(parts) == settings(whole)
    assert settings(parts)[:2] != settings(other)
    assert len(toy.trained) == 12 + 2 + 12


def test_tpe_finds_better_settings_than_random_search(tmp_path):
    tpe, random = (run(tmp_path / name, sampler=name, trials=20).results for name in ("tpe", "random"))
    late = [sum(trial["values"]["accuracy"] for trial in results.trials[10:]) for results in (tpe, random)]
    assert late[0] > late[1] + 0.4


def test_a_grid_has_every_combination_once(tmp_path):
    space = {"model.size": {"min": 1, "max": 3}, "model.kind": ["plain", "wide"]}
    finished = run(tmp_path, space, sampler="grid", trials=100)
    assert sorted(map(str, settings(finished))) == sorted(
        str({"model.size": size, "model.kind": kind}) for size in (1, 2, 3) for kind in ("plain", "wide")
    )


def test_no_trial_is_started_after_the_timeout_and_the_same_command_continues(tmp_path, monkeypatch):
    seconds = itertools.count(1000)
    clock = SimpleNamespace(**vars(time) | {"time": lambda: next(seconds)})
    for module in ("run", "worker"):
        monkeypatch.setattr(f"sightline.search.{module}.time", clock)
    stopped = run(tmp_path / "parts", timeout=3)
    assert str(stopped).startswith(f"{tmp_path / 'parts'}: 3 of 6 trials finished: 3 complete")
    assert stopped.notes == ["the timeout ended the search; the same command continues it"]
    continued = run(tmp_path / "parts", timeout=100)
    assert settings(continued) == settings(run(tmp_path / "whole"))
    assert continued.notes == []
    with pytest.raises(SightlineError, match="timeout must be a positive number of seconds, got 0"):
        run(tmp_path / "none", timeout=0)


def test_workers_run_the_same_trials_as_one_process(tmp_path):
    """The image classifier, as worker processes do not know the toy task."""
    write_images(tmp_path / "images.npz")
    changes = [
        f"data.source={tmp_path}/images.npz",
        "data.validation_fraction=0.13",
        *WITHOUT_DEPTH,
        "training.steps=2",
    ]
    space = {"model.depth": {"min": 1, "max": 2}, "training.learning_rate": {"min": 1e-3, "max": 1e-1, "log": True}}
    finished = [run(tmp_path / str(n), space, changes, None, trials=4, workers=n) for n in (1, 2)]
    assert settings(finished[0]) == settings(finished[1])
    values = [[trial["values"]["accuracy"] for trial in search.results.trials] for search in finished]
    assert values[0] == values[1]
    assert 0 < finished[1].usage.seconds_in_trials < finished[1].usage.seconds


def test_a_problem_that_a_worker_finds_is_reported_once(tmp_path):
    write_images(tmp_path / "images.npz")
    changes = [f"data.source={tmp_path}/images.npz", *SMALL]
    with pytest.raises(
        SightlineError, match=r"1 problem:\n  model: patch_size must divide image_size=8, got 3"
    ) as error:
        run(tmp_path / "search", {"model.patch_size": [2, 3]}, changes, None, workers=2)
    assert "Traceback" not in str(error.value)
    assert not Study("", "search", tmp_path / "search").trials()


def test_settings_that_do_not_fit_the_data_are_refused_before_the_first_trial(tmp_path, toy):
    message = r"1 problem:\n  model.size must be at most 100, as in the data, got 101"
    with pytest.raises(SightlineError, match=message):
        run(tmp_path / "search", {"model.size": [3, 101]})
    assert toy.trained == []
    assert not Study("", "search", tmp_path / "search").trials()


def test_values_that_do_not_fit_the_data_are_listed_with_other_problems(tmp_path):
    space = {"model.sise": [1], "model.size": [3, 101], "model.kind": []}
    with pytest.raises(SightlineError, match=r"3 problems:(.|\n)*model\.size must be at most 100, as in the data"):
        run(tmp_path / "search", space)
    with pytest.raises(
        SightlineError, match=r"2 problems:\n  model: width must divide width=4, got 3\n  model\.size must be"
    ):
        run(tmp_path / "search", {"model.width": [2, 3], "model.size": [3, 101]})


def test_a_key_is_in_the_space_or_in_the_config(tmp_path):
    with pytest.raises(SightlineError, match=r"model\.size must be in the space or among the changes of the config"):
        run(tmp_path, changes=["model.size=3"])
    with pytest.raises(SightlineError, match=r"model\.rate must be in the space or in --in-trials, got both; leave"):
        run(tmp_path, in_trials=["model.rate=0.1"])
    run(tmp_path, changes=["model.width=4"], trials=1)  # without its condition, the key has this value


def test_a_batch_below_the_longest_sentence_is_refused_before_the_first_trial(tmp_path):
    changes = ["task=masked_lm", "model.embed_dim=16", "model.depth=1", "training.steps=1", "training.device=cpu"]
    with pytest.raises(SightlineError, match="batch_size counts tokens and must be at least the longest sentence"):
        run(tmp_path / "search", {"training.batch_size": [8, 4096]}, changes, None)
    assert not Study("", "search", tmp_path / "search").trials()


def test_the_files_of_a_search_in_which_all_trials_failed(tmp_path):
    with pytest.raises(SightlineError, match="some trials must succeed, got 5 that failed"):
        run(tmp_path, {**SPACE, "model.error": ["diverge"]}, trials=7)
    results = Results.read(tmp_path / "trials.json")
    assert results.counts == {"failed": 5}
    assert len((tmp_path / "trials.csv").read_text().splitlines()) == 6
    assert describe(results.trials[0]) == "trial 0: failed (loss must be finite, got nan at step 1)"
    with pytest.raises(SightlineError, match=r"to continue it, got .*; no trial has succeeded in it, so the"):
        run(tmp_path, trials=2)
    assert Results.read(tmp_path / "trials.json").counts == {"failed": 5}


def test_a_refused_space_is_replaced_in_a_search_without_trials(tmp_path, toy):
    with pytest.raises(SightlineError, match="1 problem"):
        run(tmp_path, {"model.size": [3, 101]})
    assert run(tmp_path, {"model.size": [3, 5]}, trials=2).results.counts == {"complete": 2}
    with pytest.raises(SightlineError, match="to continue it, got"):
        run(tmp_path, {"model.size": [1, 2]})
    assert Results.read(tmp_path / "trials.json").counts == {"complete": 2}


def test_a_worker_that_is_killed_twice_by_a_trial_is_replaced(tmp_path, monkeypatch):
    """The trial that kills it has failed; the others are complete."""
    monkeypatch.setattr("sightline.search.pool.worker_process", search_task.worker_process)
    results = run(tmp_path, {"model.error": ["none", "kill"]}, sampler="grid", trials=2, workers=2).results
    assert results.counts == {"complete": 1, "failed": 1}
    [failed] = [trial for trial in results.trials if trial["state"] == "failed"]
    assert failed["message"] == "its worker was killed twice"
    assert failed["settings"] == {"model.error": "kill"}


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_stopped_command_goes_on(tmp_path, number, code):
    space = write_yaml(tmp_path / "space.yaml", SPACE)
    words = ("search", "task=toy_search", "--space", space, "--trials", 4, "--sampler", "random", "--pruner", "none")
    stop = functools.partial(search_task.signal_in_trial, 3, number)
    command = CommandProcess(*words, "--out", "s", cwd=tmp_path, prepare=stop)
    assert command.wait() == code, command.output
    assert ("stopped; the same command continues the search" in command.output) == (code > 0)
    if code > 0:
        assert "2 of 4 trials finished: 2 complete\nbest: trial " in command.output
        assert Results.read(tmp_path / "s" / "trials.json").counts == {"complete": 2}
        assert (tmp_path / "s" / "best.yaml").is_file()
    command = CommandProcess(*words, "--out", "s", cwd=tmp_path, prepare=search_task.register)
    assert command.wait() == 0, command.output
    assert "4 of 4 trials finished: 4 complete" in command.output
    files = [".journal.log.lock", "best.yaml", "journal.log", "trials.csv", "trials.json"]
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == files
    results = Results.read(tmp_path / "s" / "trials.json")
    assert [trial["settings"] for trial in results.trials] == settings(run(tmp_path / "other", trials=4))


def test_another_config_space_or_seed_is_refused(tmp_path):
    run(tmp_path, trials=1)
    for changes in (
        {"changes": ["model.width=4"]},
        {"space": {**SPACE, "model.size": [1, 2]}},
        {"seed": 1},
        {"sampler": "tpe"},
        {"pruner": "halving"},
        {"minimize": "parameters"},
    ):
        with pytest.raises(SightlineError, match=r"to continue it, got .*; start another search with --out FOLDER"):
            run(tmp_path, **changes)
    run(tmp_path, changes=["data.source=toy"], trials=2)


def test_the_winner_is_a_config_and_an_ordinary_run(tmp_path):
    write_images(tmp_path / "images.npz")
    changes = [
        f"data.source={tmp_path}/images.npz",
        "data.validation_fraction=0.13",
        *WITHOUT_DEPTH,
        "training.steps=3",
    ]
    space, options = {"model.depth": [1, 2]}, {"trials": 2, "in_trials": ["training.steps=1"], "train_best": True}
    for _ in range(2):  # the second call finds the run finished
        finished = run(tmp_path / "search", space, changes, None, **options)
    best = finished.results.best
    assert {len(trial["curve"]) for trial in finished.results.trials} == {1}
    values = yaml.safe_load((tmp_path / "search" / "best.yaml").read_text())
    assert values["model"]["depth"] == best["settings"]["model.depth"]
    assert (values["training"]["steps"], values["out"]) == (3, None)
    assert finished.best_run.folder == tmp_path / "search" / f"best-{best['trial']}"
    assert finished.best_run.steps == 3
    assert sightline.load(finished.best_run.folder).model.config.depth == best["settings"]["model.depth"]


def test_the_command_searches_and_prints_the_best_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = write_yaml(tmp_path / "space.yaml", SPACE)
    words = [
        "search",
        "task=toy_search",
        "--space",
        str(space),
        "--trials",
        "3",
        "--sampler",
        "random",
        "--pruner",
        "none",
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "searches/toy: 3 of 3 trials finished: 3 complete\nbest: trial " in result.stdout
    assert "% of it outside trials\nwrote searches/toy/best.yaml" in result.stdout
    assert "trial 2: accuracy 0." in result.stderr
    pruned = CliRunner().invoke(app, [*words[:5], "9", *words[6:-1], "halving", "--out", "pruned"])
    note = r"search-report needs 10 complete trials to say what mattered, got \d; --pruner none gives more"
    assert re.search(note, pruned.stdout.splitlines()[-1])
    refused = CliRunner().invoke(app, [*words[:-1], "halving", "--minimize", "latency"])
    assert refused.exit_code == 2
    assert "pruner must be none with two objectives, got 'halving'" in refused.stderr


def test_results_are_csv_and_json(tmp_path):
    finished = run(tmp_path, {**SPACE, "model.error": ["none", "diverge"]}, trials=8)
    header, *rows = (tmp_path / "trials.csv").read_text().splitlines()
    assert header == (
        "trial,state,accuracy,parameters,seconds,latency,evaluations,model.size,model.kind,model.rate,model.width,"
        "model.error,failure,message"
    )
    assert len(rows) == 8
    for row, trial in zip(rows, finished.results.trials, strict=True):
        cells = dict(zip(header.split(","), row.split(","), strict=False))
        assert cells["state"] == trial["state"]
        assert cells["model.kind"] == trial["settings"]["model.kind"]
        assert cells["model.width"] == str(trial["settings"].get("model.width", ""))
    content = json.loads((tmp_path / "trials.json").read_text())
    assert content["trials"] == json.loads(json.dumps(finished.results.trials))
    assert Results.read(tmp_path / "trials.json").best == content["trials"][finished.results.best["trial"]]


def test_lists_as_choices_are_results(tmp_path):
    finished = run(tmp_path, {"model.shape": [[1, 2], [3]]}, sampler="grid")
    assert sorted(trial["settings"]["model.shape"] for trial in finished.results.trials) == [[1, 2], [3]]


def test_the_live_table_has_the_best_and_the_running_trials(tmp_path):
    results = run(tmp_path, trials=4).results
    running = {**results.trials[3], "trial": 4, "state": "running", "values": {"accuracy": None}}
    results = Results(results.name, results.definition, [*results.trials, running])
    progress = Progress(9)
    progress._first, progress._started = 0, progress._started - 40
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(progress.table(results))
    first, header, best, last = console.export_text().splitlines()
    assert first.startswith("4 of 9 finished, best accuracy 0.")
    assert "about 50 s left; 1 running" in first
    progress.deadline = time.time() + 30.4
    assert re.search(r"about (30|2\d) s left", progress.status(results))
    assert header.split() == ["trial", "accuracy", "size", "kind", "rate", "width"]
    assert best.split()[:2] == [str(results.best["trial"]), "best"]
    assert last.split()[0] == "4"


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (65, "1 min 5 s"), (7260, "2 h 1 min")])
def test_a_duration_is_readable(seconds, text):
    assert duration(seconds) == text
