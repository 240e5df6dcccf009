"""A few-shot classifier of drawn characters: fitted, evaluated, and its predictions explained."""

import shlex
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from ..classifier import FewShotClassifier, FewShotPrediction
from ..errors import SightlineError
from ..metrics import wilson_interval
from ..models.baselines import BASELINES
from ..models.few_shot import FewShot
from ..tasks.few_shot.compare import PairedAccuracy
from ..tasks.few_shot.config import Setting
from ..tasks.few_shot.evaluate import SettingMetrics, episode_classes, evaluate_episodes
from ..view.explanations import explanation_page
from . import characters
from .characters import Query

SETTINGS, QUERY, EPISODES = ("5w1s", "5w5s", "20w1s"), 5, 400
COMPARED = {"protonet": "ProtoNet", "nearest": "nearest neighbor"}
"""Baselines on the same embeddings, and their names in the table."""

Case = tuple[str, Query, FewShotPrediction]
"""What a query is an example of, the query and its prediction."""


def run(console: Console, out: Path, model: str) -> None:
    """Print the results and write the images and a page with explanations to `out`."""
    classifier = FewShotClassifier.pretrained(model)
    if classifier.model is None or classifier.model.backbone is None:
        raise SightlineError(f"model must be a few-shot model with its own backbone, got {model!r}")
    console.print("\n[bold]A classifier from a few images[/]\n")
    folder, queries = characters.write_images(out)
    start = time.perf_counter()
    classifier.fit(folder)
    console.print(
        f"{len(classifier.classes)} characters of a new alphabet, {characters.SHOT} drawings of each, "
        f"fitted in {time.perf_counter() - start:.1f} s:\n"
    )
    names = list(dict.fromkeys(query.label for query in queries if query.label))
    console.print(_drawings(folder, names))
    predictions = classifier.predict([query.path for query in queries])
    console.print(_accuracy(queries, predictions))
    cases = select_cases(queries, predictions)
    console.print(_predictions(cases))
    console.print(_episodes(classifier.model))
    console.print("These drawings are generated. README reports the accuracy on handwritten characters.\n")
    cards = [prediction.explain().card(name=f"{query.path.name}, {case}") for case, query, prediction in cases]
    path = explanation_page(cards).save(out / "page.html")
    console.print(f"wrote {path}: these predictions with their explanations\n", markup=False, soft_wrap=True)
    console.print("[bold]Next[/], with these images or your own folders of images:\n")
    for command in _commands(out, folder, model, names[0]):
        console.print(f"  {command}", markup=False, soft_wrap=True)
    console.print()


def select_cases(queries: Sequence[Query], predictions: Sequence[FewShotPrediction]) -> list[Case]:
    """The best and worst classified images and the unknowns with lowest, median and highest known score."""
    known = [i for i, query in enumerate(queries) if query.label]
    known.sort(key=lambda i: predictions[i].scores[queries[i].label or ""], reverse=True)
    first = known[0]
    second = next(i for i in known if queries[i].label != queries[first].label)
    unknown = [i for i, query in enumerate(queries) if not query.label]
    unknown.sort(key=lambda i: predictions[i].known_score)
    cases = {
        "most confident": first,
        "most confident other class": second,
        "least confident": known[-1],
        "lowest known score of unknown characters": unknown[0],
        "median known score of unknown characters": unknown[len(unknown) // 2],
        "highest known score of unknown characters": unknown[-1],
    }
    return [(case, queries[i], predictions[i]) for case, i in cases.items()]


def _drawings(folder: Path, names: Sequence[str]) -> Table:
    """One drawing of each character with its name."""
    grid = Table.grid(padding=(0, 2))
    grid.add_row(*(characters.to_braille(folder / name / "1.png") for name in names))
    grid.add_row(*(f"[bold]{name}[/]" for name in names))
    return grid


def _accuracy(queries: Sequence[Query], predictions: Sequence[FewShotPrediction]) -> Table:
    """How many known images are classified correctly, and how many unknowns are detected."""
    pairs = list(zip(queries, predictions, strict=True))
    known = [(query.label == prediction.label, prediction.known) for query, prediction in pairs if query.label]
    unknown = [not prediction.known for query, prediction in pairs if not query.label]
    table = Table("query images", "", "of", "95% interval", box=box.SIMPLE)
    for images, result, hits in (
        ("new drawings of these", "correct", [is_correct for is_correct, _ in known]),
        ("", "predicted known", [is_known for _, is_known in known]),
        ("other characters", "predicted unknown", unknown),
    ):
        low, high = wilson_interval(sum(hits), len(hits))
        table.add_row(images, f"[bold]{sum(hits)}[/] {result}", str(len(hits)), f"{low:.0%} to {high:.0%}")
    return table


def _predictions(cases: Sequence[Case]) -> Table:
    table = Table("query image", "case", "prediction", "", box=box.SIMPLE)
    for case, query, prediction in cases:
        is_correct = query.label == (prediction.label if prediction.known else None)
        verdict = "[green]right[/]" if is_correct else "[yellow]wrong[/]"
        table.add_row(query.path.name, case, str(prediction), verdict)
    return table


def _episodes(model: FewShot) -> Table:
    """Accuracy over seeded episodes, of the model and of baselines on the same embeddings."""
    assert model.config.image_size is not None
    assert model.config.channels is not None
    images = characters.load_test_images(model.config.image_size, model.config.channels)
    data = model.embed_pixels(images.pixels), episode_classes(images)
    options: dict[str, Any] = {"query": QUERY, "episodes": EPISODES, "with_unknown": not model.config.transductive}
    table = Table(f"accuracy on\n{EPISODES:,} identical episodes", box=box.SIMPLE)
    rows: dict[str, list[str]] = defaultdict(list)
    for setting in map(Setting.parse, SETTINGS):
        table.add_column(f"{setting.way}-way\n{setting.shot}-shot", justify="right")
        results = evaluate_episodes(model.head, *data, setting, **options)
        metrics, accuracies = SettingMetrics.from_results(results), torch.cat(results.accuracies)
        rows["[bold]cosine transformer[/]"].append(f"[bold]{PairedAccuracy.from_episodes(accuracies, accuracies)}[/]")
        for name, title in COMPARED.items():
            baseline = torch.cat(evaluate_episodes(BASELINES[name], *data, setting, **options).accuracies)
            rows[title].append(str(PairedAccuracy.from_episodes(baseline, baseline)))
            difference = PairedAccuracy.from_episodes(accuracies, baseline).difference_points()
            rows[f"  model - {title} (points)"].append(difference)
        rows["calibration error"].append(f"{metrics.calibration_error:.1%}")
        rows["AUROC of known score"].append("-" if metrics.auroc is None else f"{metrics.auroc:.3f}")
    for title, cells in rows.items():
        table.add_row(title, *cells)
    return table


def _commands(out: Path, folder: Path, model: str, name: str) -> list[str]:
    """Commands that repeat this demo; `name` is one of the characters."""
    file, queries = out / "characters.sightline", shlex.quote(str(out / "queries"))
    predict = f"{shlex.join(['sightline', 'predict', str(file)])} {queries}"
    return [
        shlex.join(["sightline", "fit", str(folder), "--model", model, "--out", str(file)]),
        f"{predict}/*/*.png",
        f"{predict}/known/{name}-*.png {shlex.join(['--show', str(out / f'{name}.html')])}",
    ]
