"""What a report says about a search, and where it finds its results."""

import json
import re

import numpy as np
import optuna
import pytest
from typer.testing import CliRunner

from search_results import make_results
from search_task import SPACE
from sightline.cli import app
from sightline.errors import SightlineError
from sightline.search import analysis, search
from sightline.search.analysis import Interval, analyze, findings, group_means
from sightline.search.report import MAX_SHOWN, SearchReport, read_results

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch):
    monkeypatch.setattr(analysis, "NUM_RESAMPLES", 7)
    monkeypatch.setattr(analysis, "TREES_PER_RESAMPLE", 3)
    monkeypatch.setattr(analysis, "NUM_TREES", 16)


def test_settings_with_an_effect_are_found_and_others_are_not():
    found = analyze(make_results(53))
    assert {effect.key for effect in found.effects if effect.is_clear} == {"model.depth", "model.score"}
    assert found.effects[0].key in ("model.depth", "model.score")
    assert found.trials == 42
    effects = {effect.key: effect for effect in found.effects}
    assert effects["model.depth"].trend.low > 0.4
    assert effects["model.score"].trend is None
    assert effects["training.learning_rate"].trend.low < 0 < effects["training.learning_rate"].trend.high
    for effect in found.effects:
        assert 0 <= effect.importance.low <= effect.importance.value <= effect.importance.high <= 1
    assert sum(effect.first for effect in found.effects if effect.key != "model.head_dim") == pytest.approx(1)
    assert effects["model.head_dim"].trials < effects["model.depth"].trials


def test_importance_is_that_of_optuna():
    results = make_results(29)
    found = {effect.key: effect.importance.value for effect in analyze(results).effects}
    floats, ints, choices = (
        optuna.distributions.FloatDistribution(1e-4, 1e-2, log=True),
        optuna.distributions.IntDistribution(1, 6),
        optuna.distributions.CategoricalDistribution(["dot", "cosine"]),
    )
    keys = ("training.learning_rate", "model.depth", "model.score", "model.attention_bias")
    distributions = dict(zip(keys, (floats, ints, choices, optuna.distributions.IntDistribution(0, 1)), strict=True))
    study = optuna.create_study()
    for trial in results.complete:
        params = {key: trial["settings"][key] for key in keys}
        params["model.attention_bias"] = int(params["model.attention_bias"])
        study.add_trial(
            optuna.create_trial(params=params, distributions=distributions, value=trial["values"]["accuracy"])
        )
    expected = optuna.importance.FanovaImportanceEvaluator(n_trees=16, seed=0).evaluate(study)
    for key in keys:
        assert found[key] == pytest.approx(expected[key])


def test_an_effect_is_significant_by_chance_in_few_of_many_searches():
    """Of 40 settings of pure noise, uncorrected tests at 5% would call about four clear (two tests each)."""
    random = np.random.default_rng(0)
    values = random.random(30)
    p_values = [analysis._p_value(random.random(30).tolist(), values, True) for _ in range(40)]
    assert sum(p < 0.05 for p in p_values) <= 5
    assert min(analysis._holm(p_values)) > 0.05


def test_holm_corrects_as_in_the_textbook():
    assert analysis._holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_rank_correlation_is_that_of_scipy():
    from scipy.stats import spearmanr

    random = np.random.default_rng(0)
    a, b = random.integers(0, 4, (5, 13)).astype(float), random.random((5, 13))
    expected = [spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)]
    assert analysis._rank_correlation(a, b) == pytest.approx(expected)
    assert analysis._rank_correlation(np.ones((1, 3)), b[:1, :3]) == 0


def test_the_text_says_what_mattered_and_what_limits_it():
    results = make_results(53, sampler="tpe")
    text = "\n".join(findings(results, analyze(results)))
    assert re.search(r"model.depth explains \d+% of the variance of accuracy \(95% interval \d+% to \d+%, p < 0", text)
    assert re.search(r"accuracy rises with it \(rank correlation \+0\.\d\d, \+0\.\d\d to \+0\.\d\d\)", text)
    assert "Its best value is cosine: mean 0." in text
    assert re.search(r"No effect could be shown for .*training.learning_rate.* in 42 complete trials", text)
    assert "10 pruned and 1 failed trials are not part of this analysis" in text
    assert "TPE tried more settings near the best ones" in text
    assert "best of 42 on the same validation data and therefore optimistic" in text


def test_a_minimized_metric_falls():
    results = make_results(29, maximize=False)
    assert "accuracy falls with it" in "\n".join(findings(results, analyze(results)))
    best = min(results.complete, key=lambda trial: trial["values"]["accuracy"])
    assert f'class="trial best" data-trial="{best["trial"]}"' in SearchReport(results).page().html


@pytest.mark.parametrize(
    ("results", "text"),
    [
        (make_results(11), "8 complete trials are too few to say what mattered; 10 are needed."),
        (make_results(1), "1 complete trial is too few"),
    ],
)
def test_too_few_trials_say_so(results, text):
    assert analyze(results) is None
    assert text in findings(results, None)[0]
    assert text in SearchReport(results).page().html


def test_trials_of_the_same_value_say_so():
    results = make_results(17)
    for trial in results.complete:
        trial["values"]["accuracy"] = 0.5
    assert analyze(results) is None
    assert findings(results, None) == ["All complete trials have the same accuracy."]


def test_means_of_groups_have_intervals():
    results = make_results(53)
    means = group_means(results, "model.score")
    values = [t["values"]["accuracy"] for t in results.complete if t["settings"]["model.score"] == "dot"]
    assert means["dot"].value == pytest.approx(np.mean(values))
    assert means["dot"].low < means["dot"].value < means["dot"].high < means["cosine"].low
    assert Interval.of(3.0, np.array([1.0, 2.0])).high == 3.0


def test_a_page_has_every_chart_and_every_trial():
    results = make_results(53)
    page = SearchReport(results).page().html
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings == [
        "What mattered", "Importance", "Parallel coordinates", "Slices", "accuracy against parameters and seconds",
        "Learning curves", "Best 10 trials",
    ]  # fmt: skip
    parallel = re.search(r'<svg class="parallel".*?</svg>', page, re.DOTALL).group()
    assert len(re.findall("<polyline", parallel)) == 53
    assert {len(points.split()) for points in re.findall(r'points="([^"]*)"', parallel)} == {6}
    assert len(re.findall('<svg class="chart"', page)) == 1 + 5 + 2 + 1
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_a_range_of_few_integers_has_their_labels_and_the_mean_of_each():
    charts = re.findall(r'<svg class="chart".*?</svg>', SearchReport(make_results(53)).page().html, re.DOTALL)
    [depth] = [chart for chart in charts if 'class="name"' in chart and ">model.depth</text>" in chart]
    assert re.findall(r'text-anchor="middle">(\d.*?)</text>', depth) == ["1", "2", "3", "4", "5", "6"]
    means = [float(x) for x in re.findall(r'<line class="interval" x1="([\d.]+)"', depth)]
    assert len(means) == 6
    assert np.diff(means) == pytest.approx(np.diff(means).mean(), abs=0.11)  # at the places of the labels


def test_the_pareto_front_has_the_best_trial_of_each_cost():
    results = make_results(23, noise=0.0)
    page = SearchReport(results).page().html
    front = re.findall(r'<polyline class="front" points="([^"]*)"', page)
    depths = {t["settings"]["model.depth"] for t in results.complete if t["settings"]["model.score"] == "cosine"}
    assert len(front) == 2
    assert len({x for x, _ in (point.split(",") for point in front[0].split()[:-1])}) >= len(depths) - 1
    heights = [float(point.split(",")[1]) for point in front[0].split()]
    assert heights == sorted(heights, reverse=True)


def test_two_objectives_are_both_on_the_page():
    results = make_results(13, objectives=[["accuracy", "maximize"], ["parameters", "minimize"]])
    for trial in results.trials:
        trial["values"]["parameters"] = trial["parameters"] if trial["state"] == "complete" else None
    page = SearchReport(results).page().html
    assert re.findall(r'aria-label="([^"]*)"', page)[-2:] == ["parameters", "accuracy"]


def test_text_from_outside_is_escaped():
    space = [{"key": EVIL, "choices": [EVIL, f'" onload="{EVIL}'], "if": {}}]
    results = make_results(23, name=EVIL, space=space)
    for i, trial in enumerate(results.trials):
        trial["settings"] = {EVIL: space[0]["choices"][i % 2]}
    page = SearchReport(results).page().html
    assert "<img" not in page
    assert 'onload="' not in page.replace('\\" onload=', "")


def test_a_page_of_many_trials_shows_the_best_and_the_last(monkeypatch):
    monkeypatch.setattr("sightline.search.report.MAX_SHOWN", 5)
    results = make_results(23)
    results.trials[1]["values"]["accuracy"] = 0.99
    report = SearchReport(results)
    shown = {int(index) for index in re.findall(r'data-trial="(\d+)"', report.page().html)}
    assert shown == {1, 18, 19, 20, 21, 22}
    assert "6 of 23 trials are drawn" in report.page().html
    assert MAX_SHOWN > 1000


def test_the_command_reads_a_folder_a_file_and_a_storage(tmp_path):
    options = {"sampler": "random", "pruner": "none", "trials": 4, "quiet": True}
    search({"task": "toy_search"}, SPACE, out=tmp_path / "journal", **options)
    url = f"sqlite:///{tmp_path}/trials.db"
    search({"task": "toy_search"}, SPACE, out=tmp_path / "database", storage=url, **options)
    (tmp_path / "copy.json").write_bytes((tmp_path / "journal" / "trials.json").read_bytes())
    expected = read_results(tmp_path / "journal").trials
    names = [read_results(tmp_path / "journal").name, read_results(tmp_path / "database", url).name]
    assert names == ["journal", "database"]
    assert [trial["settings"] for trial in read_results(tmp_path / "database", url).trials] == [
        trial["settings"] for trial in expected
    ]
    for words in (["journal"], ["copy.json"], ["database", "--storage", url]):
        page = tmp_path / "page.html"
        words = [str(tmp_path / words[0]), *words[1:], "--show", str(page)]
        result = CliRunner().invoke(app, ["search-report", *words])
        assert result.exit_code == 0, result.output
        assert "4 of 4 trials finished: 4 complete\nbest: trial " in result.stdout
        assert f"wrote {page}" in result.stdout
        page.unlink()


@pytest.mark.parametrize(
    "change",
    [
        {"trials": [{"trial": 0}]},
        {"trials": 3},
        {"definition": {}},
        {"trials": [{**make_results(1).trials[0], "settings": {"other": 1}}]},
        {"trials": [{**make_results(1).trials[0], "curve": [[1, 2, "x"]]}]},
        {"trials": [{**make_results(1).trials[0], "parameters": [1]}]},
    ],
)
def test_a_file_that_holds_no_results_is_an_error(tmp_path, change):
    results = make_results(1)
    content = {"name": "x", "definition": results.definition, "trials": results.trials, **change}
    (tmp_path / "trials.json").write_text(json.dumps(content))
    with pytest.raises(SightlineError, match=r"trials\.json must hold the results of a search, got an error"):
        read_results(tmp_path)


def test_a_folder_without_a_search_is_an_error(tmp_path):
    with pytest.raises(SightlineError, match=r"study must be the folder of a search or its trials\.json, got '.*'; a"):
        read_results(tmp_path)
