"""A few-shot classifier of drawn characters: fitted, evaluated on new drawings, and its predictions explained."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from ..classifier import FewShotClassifier, FewShotPrediction
from ..data.images.reading import read_image
from ..metrics import wilson_interval
from ..view.explanations import explanation_page
from . import characters
from .characters import Query

Case = tuple[str, Query, FewShotPrediction]
"""What a query is an example of, the query and its prediction."""


def run(console: Console, out: Path, model: str) -> None:
    """Print the results and write the images and a page with explanations to `out`."""
    classifier = FewShotClassifier.pretrained(model)
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
    console.print(f"expected: {classifier.estimate()}\n")
    predictions = classifier.predict([query.path for query in queries])
    console.print(_accuracy(folder, queries, predictions))
    cases = select_cases(queries, predictions)
    console.print(_predictions(cases))
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


def nearest_images(folder: Path, queries: Sequence[Query]) -> list[str]:
    """The class of the training image with the nearest pixels: a baseline without a pretrained model."""
    examples = sorted(folder.glob("*/*.png"))
    pixels, others = (
        torch.stack([read_image(path, channels=1) for path in paths]).float().flatten(1)
        for paths in ([query.path for query in queries], examples)
    )
    return [examples[i].parent.name for i in torch.cdist(pixels, others).argmin(1).tolist()]


def _drawings(folder: Path, names: Sequence[str]) -> Table:
    """One drawing of each character with its name."""
    grid = Table.grid(padding=(0, 2))
    grid.add_row(*(characters.to_braille(folder / name / "1.png") for name in names))
    grid.add_row(*(f"[bold]{name}[/]" for name in names))
    return grid


def _accuracy(folder: Path, queries: Sequence[Query], predictions: Sequence[FewShotPrediction]) -> Table:
    """How many known images are classified correctly, and how many unknowns are detected."""
    pairs = list(zip(queries, predictions, strict=True))
    known = [(query, prediction) for query, prediction in pairs if query.label]
    labels = [query.label for query, _ in known]
    nearest = nearest_images(folder, [query for query, _ in known])
    unknown = [not prediction.known for query, prediction in pairs if not query.label]
    table = Table("query images", "", "of", "95% interval", box=box.SIMPLE)
    for images, result, hits in (
        ("new drawings of these", "correct", [p.label == label for (_, p), label in zip(known, labels, strict=True)]),
        ("", "by nearest pixels", [name == label for name, label in zip(nearest, labels, strict=True)]),
        ("", "predicted known", [prediction.known for _, prediction in known]),
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


def _commands(out: Path, folder: Path, model: str, name: str) -> list[str]:
    """Commands that repeat this demo; `name` is one of the characters."""
    file, queries = out / "characters.sightline", shlex.quote(str(out / "queries"))
    predict = f"{shlex.join(['sightline', 'predict', str(file)])} {queries}"
    return [
        shlex.join(["sightline", "fit", str(folder), "--model", model, "--out", str(file)]),
        f"{predict}/*/*.png",
        f"{predict}/known/{name}-*.png {shlex.join(['--show', str(out / f'{name}.html')])}",
    ]
