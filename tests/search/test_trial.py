"""Trials that train models of the toy task."""

import pytest

from search_task import SPACE, ToyConfig, score
from sightline.errors import SightlineError
from sightline.search import search
from sightline.search.trial import MAX_CURVE_POINTS, TrialHook


def run(tmp_path, space=SPACE, changes=(), **options):
    options = {"sampler": "random", "pruner": "none", "trials": 6, "quiet": True, **options}
    return search({"task": "toy_search"}, space, changes, out=tmp_path / "search", **options).results


def test_the_value_of_a_trial_is_the_metric_that_the_task_monitors(tmp_path, toy):
    for trial in run(tmp_path).trials:
        model = ToyConfig(**{key.removeprefix("model."): value for key, value in trial["settings"].items()})
        assert trial["state"] == "complete"
        assert trial["values"] == {"accuracy": pytest.approx(score(model))}
        assert [(step, value) for step, _, value in trial["curve"]] == [
            (i, pytest.approx(score(model, i))) for i in range(1, 5)
        ]
        assert trial["parameters"] == 2 * model.size
        assert trial["seconds"] > 0
    assert len(toy.trained) == 6


def test_the_data_are_read_once(tmp_path, toy):
    run(tmp_path)
    assert toy.loads == 1


def test_the_data_are_read_again_where_the_space_changes_them(tmp_path, toy):
    run(tmp_path, {"data.max_size": [5, 10]}, sampler="grid")
    assert toy.loads == 2


def test_bad_trials_are_pruned_at_an_evaluation(tmp_path):
    results = run(tmp_path, trials=12, pruner="halving")
    assert {"complete", "pruned"} == set(results.counts)
    pruned = [trial for trial in results.trials if trial["state"] == "pruned"]
    assert {len(trial["curve"]) for trial in pruned} <= {1, 3}
    assert all(trial["values"]["accuracy"] == trial["curve"][-1][2] for trial in pruned)
    assert results.best["values"]["accuracy"] > max(trial["values"]["accuracy"] for trial in pruned)


@pytest.mark.parametrize(
    ("error", "failure", "message"),
    [
        ("diverge", "diverged", "loss must be finite, got nan at step 1"),
        ("memory", "memory", "CUDA out of memory"),
        ("bug", "error", "TypeError: a bug\n"),
    ],
)
def test_a_trial_that_fails_does_not_end_the_search(tmp_path, error, failure, message):
    results = run(tmp_path, {"model.error": ["none", error]}, sampler="grid", trials=2)
    assert results.counts == {"complete": 1, "failed": 1}
    [failed] = [trial for trial in results.trials if trial["state"] == "failed"]
    assert failed["failure"] == failure
    assert failed["message"].endswith(message)
    assert not (tmp_path / "search" / "trials").exists()


def test_a_search_whose_first_trials_all_fail_is_stopped(tmp_path):
    message = r"some trials must succeed, got 5 that failed; trial 0: loss must be finite"
    with pytest.raises(SightlineError, match=message):
        run(tmp_path, {**SPACE, "model.error": ["diverge"]}, trials=20)


def test_a_full_disk_ends_the_search_and_frees_the_trial(tmp_path):
    def no_space(*arguments):
        raise OSError(28, "No space left on device", "file")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sightline.training.loop.write_bytes", no_space)
        with pytest.raises(OSError, match="No space left"):
            run(tmp_path)
    assert run(tmp_path).counts == {"complete": 6}


def test_a_long_learning_curve_is_thinned_and_keeps_its_end():
    hook = TrialHook(None, lambda: None, can_prune=False)
    hook.curve = [(i, 0.0, 0.5) for i in range(3 * MAX_CURVE_POINTS + 1)]
    curve = hook.result()["curve"]
    assert len(curve) <= MAX_CURVE_POINTS
    assert curve[-1][0] == 3 * MAX_CURVE_POINTS


def test_two_objectives_have_a_pareto_front(tmp_path):
    results = run(tmp_path, minimize="parameters", pruner=None, trials=12)
    assert results.counts == {"complete": 12}
    front = [tuple(trial["values"].values()) for trial in results.pareto_front]
    points = [tuple(trial["values"].values()) for trial in results.trials]
    dominated = [
        point for point in points if any(a >= point[0] and p <= point[1] and (a, p) != point for a, p in points)
    ]
    assert sorted(front) == sorted(set(points) - set(dominated))
    assert front == sorted(front, reverse=True)
    assert results.best["values"]["accuracy"] == front[0][0]
    assert all(len(trial["curve"]) == 4 for trial in results.trials)


def test_latency_is_measured(tmp_path):
    results = run(tmp_path, minimize="latency", pruner=None, trials=2)
    assert all(0 < trial["values"]["latency"] < 1000 for trial in results.trials)
    assert all(trial["latency"] == trial["values"]["latency"] for trial in results.trials)
