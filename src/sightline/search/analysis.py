"""Which settings of a search mattered, and how sure that is.

Importance is fANOVA (Hutter et al., 2014) as in Optuna: the share of the variance of the objective that a setting
explains on its own, in a random forest. Shares do not sum to 1, as settings interact. Intervals are percentiles over
resamples of the trials (bootstrap). Whether a setting has an effect at all is tested without a forest: by its rank
correlation with the objective and by the Kruskal-Wallis test of its groups, with Holm's correction for all settings.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import FanovaImportanceEvaluator

from .. import seeds
from .results import MIN_TRIALS, Results, format_number
from .space import stored

Array = np.ndarray[Any, Any]
Column = tuple[BaseDistribution, list[Any]]
"""The values of a setting in all trials, and their distribution."""
MAX_TRIALS = 300
"""Complete trials that a forest is fitted to; of more, some are drawn."""
NUM_TREES, NUM_RESAMPLES, TREES_PER_RESAMPLE = 64, 50, 6
NUM_TREND_RESAMPLES = 1000
SIGNIFICANCE = 0.05
NUM_GROUPS = 4
"""Groups of equal size of the values of a range."""
LOW, HIGH = 2.5, 97.5
"""Percentiles of a 95% interval."""


@dataclass(frozen=True)
class Interval:
    """A number with its 95% interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, resampled: Array) -> "Interval":
        """The percentiles of resampled values, extended to the value itself."""
        low, high = np.percentile(resampled, [LOW, HIGH])
        return cls(value, min(value, float(low)), max(value, float(high)))


@dataclass(frozen=True)
class Effect:
    """What is known about one setting."""

    key: str
    importance: Interval
    p_value: float
    """Probability of so clear an effect if there is none, corrected for the number of settings."""
    first: float
    """Fraction of the resamples in which it is the most important setting."""
    trend: Interval | None
    """Spearman's rank correlation with the objective; None if the values have no order."""
    trials: int
    """Complete trials that have the setting."""

    @property
    def is_clear(self) -> bool:
        """Whether there is an effect beyond chance."""
        return self.p_value < SIGNIFICANCE


@dataclass(frozen=True)
class Analysis:
    """The effects of all settings, the most important first."""

    effects: Sequence[Effect]
    trials: int
    """Complete trials that were analyzed."""


def analyze(results: Results, seed: int = 0) -> Analysis | None:
    """The effects of the settings on the first objective; None if trials are too few or all have the same value."""
    trials, random = results.complete, seeds.make_generator(seed, seeds.SEARCH)
    if len(trials) > MAX_TRIALS:
        trials = [trials[i] for i in sorted(random.choice(len(trials), MAX_TRIALS, replace=False))]
    name = results.objectives[0].name
    if len(trials) < MIN_TRIALS or len({trial["values"][name] for trial in trials}) == 1:
        return None
    space = {setting["key"]: setting for setting in results.definition["space"] if _varies(setting)}
    always = [key for key in space if all(key in trial["settings"] for trial in trials)]
    groups = [(always, trials)] if always else []
    for key in space.keys() - set(always):  # of a setting with a condition, the trials that have it
        having = [trial for trial in trials if key in trial["settings"]]
        if len(having) >= MIN_TRIALS:
            groups.append(([key, *always], having))
    effects: list[Effect] = []
    for keys, having in groups:
        values = np.array([trial["values"][name] for trial in having])
        if np.ptp(values) > 0:
            columns = {key: _column(space[key], [trial["settings"][key] for trial in having]) for key in keys}
            found = _effects(columns, values, random)
            effects += found if keys is always else found[:1]
    p_values = _holm([effect.p_value for effect in effects])
    corrected = [replace(effect, p_value=p) for effect, p in zip(effects, p_values, strict=True)]
    ranked = sorted(corrected, key=lambda effect: -effect.importance.value)
    return Analysis(ranked, len(trials)) if ranked else None


def findings(results: Results, analysis: Analysis | None) -> list[str]:
    """A few sentences: what mattered, how sure that is, and what limits it."""
    name = results.objectives[0].name
    if analysis is None:
        count = len(results.complete)
        number = "1 complete trial is" if count == 1 else f"{count} complete trials are"
        few = f"{number} too few to say what mattered; {MIN_TRIALS} are needed."
        return [few if count < MIN_TRIALS else f"All complete trials have the same {name}."]
    clear = [effect for effect in analysis.effects if effect.is_clear]
    unclear = [effect.key for effect in analysis.effects if not effect.is_clear]
    texts = [_sentence(effect, name, results) for effect in clear]
    if not clear:
        texts.append(f"No setting had a clear effect on {name} in {analysis.trials} complete trials.")
    elif unclear:
        texts.append(
            f"No effect could be shown for {', '.join(unclear)} in {analysis.trials} complete trials (rank correlation "
            "and Kruskal-Wallis test, Holm-corrected p of at least 0.05)."
        )
    return texts + list(_limits(results, analysis))


def _sentence(effect: Effect, name: str, results: Results) -> str:
    share, trend = effect.importance, effect.trend
    text = f"{effect.key} explains {share.value:.0%} of the variance of {name} (95% interval {share.low:.0%} to "
    text += f"{share.high:.0%}, p {_p_text(effect.p_value)}) and is first in {effect.first:.0%} of the resamples."
    if trend is not None and trend.low * trend.high > 0:
        direction = "rises" if trend.value > 0 else "falls"
        numbers = f"rank correlation {trend.value:+.2f}, {trend.low:+.2f} to {trend.high:+.2f}"
        return f"{text} {name} {direction} with it ({numbers})."
    if trend is not None:
        return f"{text} {name} neither rises nor falls with it over the whole range; see its slice."
    means = group_means(results, effect.key)
    best = (max if results.objectives[0].maximize else min)(means, key=lambda value: means[value].value)
    mean = means[best]
    return f"{text} Its best value is {best}: mean {mean.value:.3g} ({mean.low:.3g} to {mean.high:.3g})."


def _p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.2g}"


def _limits(results: Results, analysis: Analysis) -> Iterable[str]:
    """What a reader must know to judge the findings."""
    pruned, failed = results.counts["pruned"], results.counts["failed"]
    if pruned + failed:
        yield (
            f"{pruned} pruned and {failed} failed trials are not part of this analysis, so it describes good settings "
            "better than bad ones. --pruner none avoids this."
        )
    if results.definition.get("sampler") == "tpe":
        yield "TPE tried more settings near the best ones; a random search describes the whole space."
    yield (
        f"Every setting was tried with one seed of training. The {results.objectives[0].name} of the best trial is the "
        f"best of {len(results.complete)} on the same validation data and therefore optimistic."
    )


def group_means(results: Results, key: str) -> dict[str, Interval]:
    """The mean of the first objective for each choice of a setting, with a bootstrap interval over trials."""
    name, random = results.objectives[0].name, seeds.make_generator(0, seeds.SEARCH, 1)
    groups: dict[str, list[float]] = {}
    for trial in results.complete:
        if key in trial["settings"]:
            groups.setdefault(format_number(trial["settings"][key]), []).append(trial["values"][name])
    return {choice: mean_interval(np.array(values), random) for choice, values in groups.items()}


def mean_interval(values: Array, random: np.random.Generator) -> Interval:
    """The mean of values (N,) and its bootstrap interval."""
    drawn = values[random.integers(len(values), size=(NUM_TREND_RESAMPLES, len(values)))]
    return Interval.of(float(values.mean()), drawn.mean(1))


def ordered_choices(setting: Mapping[str, Any]) -> list[Any] | None:
    """The choices in ascending order; None if they have no order."""
    choices = setting["choices"]
    is_number = all(isinstance(choice, int | float) for choice in choices)
    return sorted(choices) if is_number else None


def _varies(setting: Mapping[str, Any]) -> bool:
    return "choices" not in setting or len(setting["choices"]) > 1


def _column(setting: Mapping[str, Any], values: Sequence[Any]) -> Column:
    """Values as Optuna stores them, with their distribution; choices that are numbers are replaced by their ranks."""
    if "choices" in setting:
        choices = ordered_choices(setting)
        if choices is None:
            return CategoricalDistribution([stored(c) for c in setting["choices"]]), [stored(v) for v in values]
        return IntDistribution(0, len(choices) - 1), [choices.index(value) for value in values]
    if setting["integer"]:
        low, high, step = int(setting["min"]), int(setting["max"]), int(setting["step"] or 1)
        return IntDistribution(low, high, log=setting["log"], step=step), list(values)
    return FloatDistribution(setting["min"], setting["max"], log=setting["log"]), list(values)


def _effects(columns: dict[str, Column], values: Array, random: np.random.Generator) -> list[Effect]:
    """The effect of each setting. Its p-value is not corrected."""
    keys, count = list(columns), len(values)
    whole = _fanova(columns, values, range(count), NUM_TREES)
    drawn = []
    for i in range(NUM_RESAMPLES):
        indices = random.integers(count, size=count)
        if np.ptp(values[indices]) > 0:
            drawn.append(_fanova(columns, values, indices, TREES_PER_RESAMPLE, seed=i))
    shares = np.array([[importance[key] for key in keys] for importance in drawn])
    effects = []
    for j, (key, (distribution, column)) in enumerate(columns.items()):
        first, share = float((shares.argmax(1) == j).mean()), Interval.of(whole[key], shares[:, j])
        has_order = not isinstance(distribution, CategoricalDistribution)
        trend = _trend(np.array(column, float), values, random) if has_order else None
        effects.append(Effect(key, share, _p_value(column, values, has_order), first, trend, count))
    return effects


def _p_value(column: Sequence[Any], values: Array, has_order: bool) -> float:
    """The smaller p-value of two tests, corrected for their number: rank correlation, and Kruskal-Wallis of groups."""
    from scipy import stats  # a dependency of scikit-learn

    different = sorted(set(column), key=str)
    groups = [values[[value == other for value in column]] for other in different]
    if has_order and len(different) > NUM_GROUPS:
        groups = np.array_split(values[np.argsort(column, kind="stable")], NUM_GROUPS)
    groups = [group for group in groups if len(group)]
    if len(groups) < 2:
        return 1.0
    p_values = [float(stats.kruskal(*groups).pvalue)]
    if has_order:
        p_values.append(float(stats.spearmanr(column, values).pvalue))
    return min(1.0, len(p_values) * min(p_values))


def _holm(p_values: Sequence[float]) -> list[float]:
    """P-values with Holm's correction for their number."""
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(np.argsort(p_values)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = highest
    return corrected


def _fanova(
    columns: Mapping[str, Column], values: Array, indices: Iterable[int], trees: int, seed: int = 0
) -> dict[str, float]:
    """Optuna's fANOVA on some of the trials."""
    distributions = {key: distribution for key, (distribution, _) in columns.items()}
    trials = [
        optuna.trial.create_trial(
            params={key: column[i] for key, (_, column) in columns.items()},
            distributions=distributions,
            value=float(values[i]),
        )
        for i in indices
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of choices that are stored as JSON
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study()
        study.add_trials(trials)
        found = FanovaImportanceEvaluator(n_trees=trees, seed=seed).evaluate(study)
    return {key: float(value) for key, value in found.items()}


def _trend(ordered: Array, values: Array, random: np.random.Generator) -> Interval:
    """Spearman's rank correlation and its bootstrap interval."""
    indices = random.integers(len(values), size=(NUM_TREND_RESAMPLES, len(values)))
    drawn = _rank_correlation(ordered[indices], values[indices])
    return Interval.of(float(_rank_correlation(ordered[None], values[None])[0]), drawn)


def _rank_correlation(first: Array, second: Array) -> Array:
    """The rank correlation of each row of (R, N) and (R, N): (R,), 0 where a row is constant."""
    from scipy.stats import rankdata  # a dependency of scikit-learn

    a, b = (rankdata(values, axis=1) for values in (first, second))
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    scale = np.sqrt((a * a).sum(1) * (b * b).sum(1))
    correlation: Array = (a * b).sum(1) / np.where(scale == 0, 1, scale)
    return correlation
