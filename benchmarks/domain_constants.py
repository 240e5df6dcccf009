"""The constants of few-shot methods, chosen on training sets only, and again with each of them left out.

    python -m benchmarks.domain_constants DATA [--cache FOLDER] [--episodes 200] [--parts methods choice threshold ...]

DATA and the cache are those of `benchmarks.domains`. Training sets are those of `domains/` and the training classes of
CIFAR-FS and CUB; the test classes of CIFAR-FS, CUB and Omniglot are not used. Every set is evaluated with normalization
statistics of the other sets. For each constant, a table has the mean over all sets of every value. It is followed by
the value that all sets choose and by those that are chosen when one set is left out: the one with the strongest
regularization within one standard error of the best mean. The error is that of the difference over sets. The part
`map` has the largest loss of any set by the feature map instead. The part
`threshold` fits that of unknown images for one image per class, and `logistic` compares calibration scales of logistic
regression there.
"""

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.classifier import calibration, choice
from sightline.classifier.methods import SPATIAL, SPATIAL_WEIGHT
from sightline.data.episodes import sample_episodes
from sightline.metrics import classification_metrics, classification_sums, update_classification_sums
from sightline.models import normalization
from sightline.models.few_shot_head import RIDGE_PENALTY
from sightline.models.normalization import EmbeddingNormalization
from sightline.tasks.few_shot.config import Setting
from sightline.tasks.few_shot.evaluate import evaluate_episodes

from .clock import machine
from .domains import (
    QUERY,
    TEST_SETS,
    TRAINING_IMAGES,
    Chosen,
    DomainSet,
    Features,
    calibration_scales,
    fit_expected_scale,
    fitted_normalization,
    head_for,
    load_sets,
    other_embeddings,
    other_sets,
    photos_config,
    photos_model,
    rotated,
    spread_images,
)

EXPONENTS, SHRINKAGES = (0.0, 0.125, 0.25, 0.375, 0.5), (0.25, 1.0)
PENALTIES, PRIOR_STDS = (3.0, 1.0, 0.3, 0.1, 0.03), (0.25, 0.5, 1.0, 2.0)
CHOICES = ((-8.0, 0.5), (-4.0, 0.5), (-4.0, 1.0), (-2.0, 1.0), (0.0, 1.0))
"""Values of each constant; the first is that of the strongest regularization. `CHOICES` are pairs of the log prior of
logistic regression and prototypes, and of the weight of the evidence."""
SPATIAL_PRIORS = (-4.0, -2.0, -1.0, 0.0, 1.0)
"""Log priors of `spatial`."""
SETTINGS = (Setting(5, 1), Setting(5, 3), Setting(10, 5))
CHOICE_SETTINGS, CALIBRATION_SETTING = (Setting(5, 3), Setting(10, 5)), Setting(5, 5)
BACKGROUND_WAYS, BACKGROUND_QUANTILE = (5, 10, 20), 0.9
PARTS = ("methods", "map", "choice", "threshold", "logistic")
MAP_WEIGHTS, MAP_SETTINGS = (0.0, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7), (Setting(5, 1), Setting(5, 4))
LOGISTIC_FACTORS = (1.0, 1.3, 1.6, 2.0, 2.5)

Scores = dict[Any, dict[str, float]]
"""The score of each value of a constant on each set; higher is better."""


@contextmanager
def changed(module: Any, **values: Any) -> Iterator[None]:
    """Constants of a module with other values."""
    before = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def settings_of(data: DomainSet, settings: Sequence[Setting]) -> list[Setting]:
    """The settings that a set has enough classes and images for."""
    images = int(data.classes.counts.min())
    return [setting for setting in settings if setting.way <= len(data.classes.names) and setting.shot < images]


def accuracy(method: Any, x: Tensor, data: DomainSet, setting: Setting, episodes: int) -> float:
    """The accuracy in percent."""
    query = min(QUERY, int(data.classes.counts.min()) - setting.shot)
    options = {"query": query, "episodes": episodes, "with_unknown": False}
    return 100 * evaluate_episodes(method, x, data.classes, setting, **options).interval()[0]


def ridge_accuracy(x: Tensor, data: DomainSet, penalty: float, episodes: int) -> float:
    """The mean accuracy of ridge regression over the settings."""
    head = head_for(x)
    assert head.log_penalty is not None
    head.log_penalty.fill_(penalty).log_()
    values = [accuracy(head, x, data, setting, episodes) for setting in settings_of(data, SETTINGS)]
    return sum(values) / len(values)


def whitening_scores(sets: dict[str, DomainSet], names: Sequence[str], episodes: int) -> Scores:
    """Scores of pairs of exponent and shrinkage."""
    pairs = [(exponent, shrinkage) for exponent in EXPONENTS for shrinkage in SHRINKAGES[: None if exponent else 1]]
    scores: Scores = {pair: {} for pair in pairs}
    for name in names:
        x = sets[name].mean
        own = EmbeddingNormalization(x.shape[-1], whitening_dim=photos_config().whitening_dim or 0)
        others = other_sets(sets, name).values()
        mean, covariance = own.statistics([(other.mean, other.labels) for other in others])
        own.mean.copy_(mean)
        variances, directions = torch.linalg.eigh(covariance)
        for exponent, shrinkage in pairs:
            with changed(normalization, WHITENING_EXPONENT=exponent, SHRINKAGE=shrinkage):
                own.set_whitening(variances, directions)
            scores[exponent, shrinkage][name] = ridge_accuracy(rotated(own(x)), sets[name], RIDGE_PENALTY, episodes)
    return scores


def mean_score(scores: Scores, value: Any, names: Sequence[str]) -> float:
    """The mean score of a value over sets."""
    return sum(scores[value][name] for name in names) / len(names)


def acceptable(scores: Scores, names: Sequence[str]) -> list[Any]:
    """The values whose mean score is within one standard error of the best, that of their difference over sets."""
    best = max(scores, key=lambda value: mean_score(scores, value, names))
    values = []
    for value, row in scores.items():
        difference = torch.tensor([scores[best][name] - row[name] for name in names], dtype=torch.float64)
        if difference.mean() <= difference.std() / len(names) ** 0.5:
            values.append(value)
    return values


def choose_first(scores: Scores, names: Sequence[str]) -> Any:
    """The first acceptable value."""
    return acceptable(scores, names)[0]


def choose_whitening(scores: Scores, names: Sequence[str]) -> tuple[float, float]:
    """The smallest acceptable exponent, and the best shrinkage for it."""
    exponent = acceptable(scores, names)[0][0]
    pairs = [pair for pair in scores if pair[0] == exponent]
    return max(pairs, key=lambda pair: mean_score(scores, pair, names))


def calibration_error(chosen: Chosen, x: Tensor, data: DomainSet, prior_std: float, episodes: int) -> float:
    """Minus the calibration error of the head in percent, for a standard deviation of the log calibration scale."""
    way, shot, _ = CALIBRATION_SETTING
    drawn = sample_episodes(data.classes, episodes=episodes, way=way, shot=shot, query=QUERY, seed=2, step=0)
    head, labels = chosen.heads[chosen.members[0]], drawn.support_labels
    chosen.heads = {chosen.members[0]: head}
    held_out, targets = chosen.held_out(x[drawn.support], labels, way, shot)
    scales = calibration_scales(held_out[chosen.members[0]], targets, prior_std)
    logits = head(x[drawn.support], labels, x[drawn.query], way=way)
    sums = classification_sums(way, torch.device("cpu"))
    scaled = scales.to(logits)[:, None, None] * logits
    update_classification_sums(sums, scaled.flatten(0, 1), drawn.query_labels.flatten())
    return -100 * classification_metrics(sums)["calibration_error"]


def report(title: str, scores: Scores, used: Any, choose: Any = choose_first) -> None:
    """Print the mean of each value, the choice of all sets, and the choices when one is left out."""
    names = list(next(iter(scores.values())))
    print(f"\n{title}; used: {used}")
    for value in scores:
        print(f"  {value!s:16}{mean_score(scores, value, names):8.2f}")
    left_out = Counter(choose(scores, [other for other in names if other != name]) for name in names)
    counts = ", ".join(f"{value} ({count} of {len(names)})" for value, count in left_out.most_common())
    print(f"  chosen by all sets: {choose(scores, names)}; with one left out: {counts}", flush=True)


def background_fraction(sets: dict[str, DomainSet], name: str, way: int, episodes: int) -> float:
    """A quantile of the largest logits of images of other sets, as a fraction of that of the support images.

    The mean over classifiers of one image per class.
    """
    x, others = sets[name].spatial, spread_images(sets, name, lambda data: data.spatial)
    drawn = sample_episodes(sets[name].classes, episodes=episodes, way=way, shot=1, query=1, seed=1, step=0)
    head = photos_model(other_sets(sets, name)).head
    state = head.encode_support(x[drawn.support], drawn.support_labels, way=way)
    own, other = (head.classify(state, y).amax(-1) for y in (x[drawn.support], others.expand(episodes, -1, -1, -1)))
    return float((other.quantile(BACKGROUND_QUANTILE, 1) / own.mean(1)).mean())


def report_threshold(sets: dict[str, DomainSet], episodes: int) -> None:
    """Print `calibration.BACKGROUND_LOGIT` for all sets, and with each left out."""
    sets = {name: data for name, data in sets.items() if name not in TEST_SETS}
    fractions = {
        (name, way): background_fraction(sets, name, way, episodes)
        for name, data in sets.items()
        for way in BACKGROUND_WAYS
        if name not in TRAINING_IMAGES and way <= len(data.classes.names)
    }
    print(f"\nlogit of images of other sets, one image per class; used: {calibration.BACKGROUND_LOGIT}")
    for left_out in (None, *dict.fromkeys(name for name, _ in fractions)):
        rows = [(math.log(way / 5), value) for (name, way), value in fractions.items() if name != left_out]
        increase, offset = statistics.linear_regression(*zip(*rows, strict=True))
        title = "all sets" if left_out is None else f"without {left_out}"
        print(f"  {title:40}({offset:.3f}, {increase:.3f})", flush=True)


def report_logistic(sets: dict[str, DomainSet], names: Sequence[str], episodes: int) -> None:
    """Print calibration errors for values of `calibration.LOGISTIC_FACTOR`, on embeddings without statistics."""
    print(f"\nfactor of logistic regression, one image per class; used: {calibration.LOGISTIC_FACTOR}")
    setting, kinds = Setting(5, 1), other_embeddings({name: sets[name] for name in names})
    for factor in LOGISTIC_FACTORS:
        errors = []
        with changed(calibration, LOGISTIC_FACTOR=factor):
            for name, vectors in ((name, x) for embeddings in kinds.values() for name, x in embeddings.items()):
                x, classes = rotated(vectors[:, None]), sets[name].classes
                chosen = Chosen(head_for(x), has_prior=False, is_calibrated=True)
                query = min(QUERY, int(classes.counts.min()) - 1)
                options = {"query": query, "episodes": episodes, "with_unknown": False}
                sums = evaluate_episodes(chosen, x, classes, setting, **options).sums
                errors.append(100 * classification_metrics(sums)["calibration_error"])
        print(f"  {factor:<19}{sum(errors) / len(errors):.1f}% calibration error", flush=True)


@torch.no_grad()
def main() -> None:
    """Print a table for each constant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("domains-cache"), help="folder of embeddings")
    parser.add_argument("--weights", help="weight file of EfficientNet-Lite0, without the extra `photos`")
    parser.add_argument("--episodes", type=int, default=200, help="per set and setting")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    sets = load_sets(arguments.data, arguments.cache, arguments.weights)
    names, episodes = [name for name in sets if name not in TEST_SETS], arguments.episodes
    print(f"{machine('cpu')}; {episodes} episodes per set and setting; {', '.join(names)}")
    if "threshold" in arguments.parts:
        report_threshold(sets, episodes)
    if "logistic" in arguments.parts:
        report_logistic(sets, names, episodes)
    if "map" in arguments.parts:
        report_map(sets, names, episodes)
    if "choice" in arguments.parts:
        report_choice(sets, names, episodes)
    if "methods" in arguments.parts:
        report_methods(sets, names, episodes)


def report_map(sets: dict[str, DomainSet], names: Sequence[str], episodes: int) -> None:
    """Print the accuracy for values of `feature_map_weight`, and the largest loss against a weight of 0 on any set.

    That of the test sets is printed beside it; they are not in the means.
    """
    used = f"used: {photos_config().feature_map_weight}, and {SPATIAL_WEIGHT} by `{SPATIAL}`"
    rows: dict[tuple[float, Setting], dict[str, float]] = {}
    for name in (*names, *TEST_SETS):
        normalization = fitted_normalization(other_sets(sets, name))
        for weight in MAP_WEIGHTS:
            x = rotated(normalization.with_weight(weight)(sets[name].spatial))
            for setting in settings_of(sets[name], MAP_SETTINGS):
                row = rows.setdefault((weight, setting), {})
                row[name] = accuracy(head_for(x), x, sets[name], setting, episodes)
    for setting in MAP_SETTINGS:
        print(f"\nweight of the feature map, {setting.way}-way {setting.shot}-shot: accuracy in %; {used}")
        for weight in MAP_WEIGHTS:
            row = rows[weight, setting]
            values = [value for name, value in row.items() if name in names]
            differences = {name: value - rows[MAP_WEIGHTS[0], setting][name] for name, value in row.items()}
            least = min(differences[name] for name in row if name in names)
            tested = ", ".join(f"{name} {differences[name]:+.2f}" for name in TEST_SETS)
            mean = sum(values) / len(values)
            print(f"  {weight:<7}{mean:.2f}, least difference from 0 {least:+.2f}; test sets: {tested}", flush=True)


def report_choice(sets: dict[str, DomainSet], names: Sequence[str], episodes: int) -> None:
    """Print tables for the priors of the choice and the weight of its evidence, in both settings."""
    features = {name: Features.of(sets, name) for name in names}
    for setting in CHOICE_SETTINGS:
        own = [name for name in names if settings_of(sets[name], [Setting(setting.way, setting.shot + QUERY - 1)])]
        scores: Scores = {value: {} for value in CHOICES}
        for prior, weight in CHOICES:
            priors = choice.LOG_PRIOR | {"logistic": prior, "prototypes": prior}
            with changed(choice, LOG_PRIOR=priors, EVIDENCE_WEIGHT=weight):
                for name in own:
                    x = features[name]
                    chosen = Chosen(head_for(x.head), x.parts)
                    scores[prior, weight][name] = accuracy(chosen, x.for_fit, sets[name], setting, episodes)
        used = (choice.LOG_PRIOR["logistic"], choice.EVIDENCE_WEIGHT)
        title = f"log prior of logistic regression and prototypes, weight of the evidence, {setting.way}-way"
        report(f"{title} {setting.shot}-shot: accuracy in %", scores, used)
        scores = {prior: {} for prior in SPATIAL_PRIORS}
        for prior in SPATIAL_PRIORS:
            with changed(choice, LOG_PRIOR=choice.LOG_PRIOR | {SPATIAL: prior}):
                for name in own:
                    x = features[name]
                    chosen = Chosen(head_for(x.head), x.parts)
                    scores[prior][name] = accuracy(chosen, x.for_fit, sets[name], setting, episodes)
        title = f"log prior of `{SPATIAL}`, {setting.way}-way {setting.shot}-shot: accuracy in %"
        report(title, scores, choice.LOG_PRIOR[SPATIAL])


def report_methods(sets: dict[str, DomainSet], names: Sequence[str], episodes: int) -> None:
    """Print a table for each constant of the methods and of their calibration."""
    used = (normalization.WHITENING_EXPONENT, normalization.SHRINKAGE)
    title = "exponent of whitening and shrinkage: accuracy in %"
    report(title, whitening_scores(sets, names, episodes), used, choose_whitening)
    features = {name: Features.of(sets, name) for name in names}
    scores: Scores = {
        value: {name: ridge_accuracy(x.head, sets[name], value, episodes) for name, x in features.items()}
        for value in PENALTIES
    }
    report("ridge penalty: accuracy in %", scores, RIDGE_PENALTY)
    scores = {
        value: {
            name: calibration_error(Chosen(head_for(x.head)), x.head, sets[name], value, episodes)
            for name, x in features.items()
            if settings_of(sets[name], [Setting(CALIBRATION_SETTING.way, CALIBRATION_SETTING.shot + QUERY - 1)])
        }
        for value in PRIOR_STDS
    }
    title = "standard deviation of the log calibration scale: minus the calibration error in %"
    report(title, scores, calibration.PRIOR_STD[True])
    print(f"\ncalibration scale for one image per class; used: {calibration.EXPECTED_SCALE}")
    print("  fitted on all sets: ({:.2f}, {:.2f}, {:.2f})".format(*fit_expected_scale(sets, features)))


if __name__ == "__main__":
    main()
