"""The headline: a classifier from a handful of drawings, judged, asked, and asked why."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ..classifier import FewShotClassifier, FewShotPrediction
from ..data.episodes import ClassIndex
from ..errors import SightlineError
from ..metrics import wilson_interval
from ..models.baselines import BASELINES
from ..models.few_shot import FewShot
from ..tasks.few_shot.config import Setting
from ..tasks.few_shot.evaluate import (
    Classifier,
    EpisodeResults,
    PairedAccuracy,
    SettingMetrics,
    embed_images,
    episode_classes,
    evaluate_episodes,
)
from ..view.explanations import explanation_page
from . import characters
from .characters import Question

SETTINGS, QUERY, EPISODES = ("5w1s", "5w5s", "20w1s"), 5, 400
BESIDE = {"protonet": "ProtoNet", "nearest": "nearest neighbor"}


def tell(console: Console, out: Path, model: str) -> None:
    """Print the story, and leave its files in `out`."""
    console.print("\n[bold]A classifier from a handful of images[/]\n")
    classifier = FewShotClassifier.pretrained(model)
    if classifier.model is None or classifier.model.backbone is None:
        raise SightlineError(f"model must be a few-shot model with a backbone of its own, got {model!r}; pass a run")
    folder, questions = characters.write(out)
    began = time.perf_counter()
    classifier.fit(folder)
    console.print(
        f"{len(classifier.classes)} characters of an unseen alphabet, {characters.SHOT} drawings of each, "
        f"learned in {time.perf_counter() - began:.1f} s:\n"
    )
    names = list(dict.fromkeys(question.truth for question in questions if question.truth))
    console.print(_drawn(folder, names))
    answers = classifier.predict([question.path for question in questions])
    console.print(_asked(questions, answers))
    shown = [(why, questions[i], answers[i]) for why, i in chosen(questions, answers)]
    console.print(_answers(shown))
    console.print(_judged(classifier.model))
    if model == "glyphs":
        console.print(
            "A program drew these; glyphs has learned from people's characters. README tells how it does there.\n"
        )
    cards = [answer.explain().card(name=f"{question.path.name}, {why}") for why, question, answer in shown]
    path = explanation_page(cards, title=str(shown[0][2])).save(out / "page.html")
    _say(console, f"wrote {path}: the answers above, and what each rests on\n")
    console.print("[bold]Now you[/], with these or with folders of your own beside them:\n")
    for line in _commands(out, folder, model, names[0]):
        _say(console, f"  {line}")
    console.print()


def chosen(questions: Sequence[Question], answers: Sequence[FewShotPrediction]) -> list[tuple[str, int]]:
    """Which to look at, and what each is; by a rule, so that what went wrong is there too."""
    known = [i for i, question in enumerate(questions) if question.truth]
    known.sort(key=lambda i: answers[i].scores[questions[i].truth or ""], reverse=True)
    first = known[0]
    second = next(i for i in known if questions[i].truth != questions[first].truth)
    strangers = [i for i, question in enumerate(questions) if not question.truth]
    strangers.sort(key=lambda i: answers[i].known_score)
    return [
        ("clear", first),
        ("clear, too", second),
        ("hardest", known[-1]),
        ("least familiar stranger", strangers[0]),
        ("stranger in between", strangers[len(strangers) // 2]),
        ("most familiar stranger", strangers[-1]),
    ]


def _drawn(folder: Path, names: Sequence[str]) -> Table:
    """A drawing of each character, its name below it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_row(*(characters.dots(folder / name / "1.png") for name in names))
    grid.add_row(*(f"[bold]{name}[/]" for name in names))
    return grid


def _asked(questions: Sequence[Question], answers: Sequence[FewShotPrediction]) -> Table:
    """How many were right, and how many strangers were refused."""
    pairs = list(zip(questions, answers, strict=True))
    known = [(question.truth == answer.label, answer.known) for question, answer in pairs if question.truth]
    refused = [not answer.known for question, answer in pairs if not question.truth]
    table = Table("asked", "", "of", "95% interval", box=box.SIMPLE)
    for what, told, hits in (
        ("other drawings of these", "right", [right for right, _ in known]),
        ("", "called known", [called for _, called in known]),
        ("characters that are none of these", "refused", refused),
    ):
        low, high = wilson_interval(sum(hits), len(hits))
        table.add_row(what, f"[bold]{sum(hits)}[/] {told}", str(len(hits)), f"{low:.0%} to {high:.0%}")
    return table


def _answers(shown: Sequence[tuple[str, Question, FewShotPrediction]]) -> Table:
    table = Table("drawing", "which is", "answer", box=box.SIMPLE)
    for why, question, answer in shown:
        good = answer.known and answer.label == question.truth if question.truth else not answer.known
        table.add_row(question.path.name, why, f"[{'green' if good else 'yellow'}]{answer}[/]")
    return table


def _judged(model: FewShot) -> Table:
    """Accuracy over seeded episodes, beside what else can be done with the same embeddings."""
    assert model.config.image_size is not None
    assert model.config.channels is not None
    images = characters.unseen(model.config.image_size, model.config.channels)
    classes, embeddings = episode_classes(images), embed_images(model, images.pixels, torch.device("cpu"))
    table = Table(f"accuracy, {EPISODES:,} episodes,\nthe same for all", box=box.SIMPLE)
    columns = []
    for setting in map(Setting.parse, SETTINGS):
        way, shot, _ = setting
        table.add_column(f"{way} characters,\n{shot} drawing{'s' * (shot > 1)}", justify="right")
        columns.append(_column(model, embeddings, classes, setting))
    for row in zip(_rows(), *columns, strict=True):
        table.add_row(*row)
    return table


def _rows() -> list[str]:
    beside = (cell for name in BESIDE.values() for cell in (name, "  ours less that (points)"))
    return ["[bold]cosine transformer[/]", *beside, "confidence is off by", "AUROC against strangers"]


def _column(model: FewShot, embeddings: Tensor, classes: ClassIndex, setting: Setting) -> list[str]:
    def evaluate(classifier: Classifier) -> EpisodeResults:
        options: dict[str, Any] = {"query": QUERY, "episodes": EPISODES, "with_unknown": not model.config.transductive}
        return evaluate_episodes(classifier, embeddings, classes, setting, **options)

    results = evaluate(model.head)
    metrics, accuracies = SettingMetrics.from_results(results), torch.cat(results.accuracies)
    cells = [f"[bold]{PairedAccuracy.from_episodes(accuracies, accuracies)}[/]"]
    for name in BESIDE:
        baseline = torch.cat(evaluate(BASELINES[name]).accuracies)
        difference = PairedAccuracy.from_episodes(accuracies, baseline).difference_points()
        cells += [str(PairedAccuracy.from_episodes(baseline, baseline)), difference]
    return [*cells, f"{metrics.calibration_error:.1%}", "-" if metrics.auroc is None else f"{metrics.auroc:.3f}"]


def _commands(out: Path, folder: Path, model: str, name: str) -> list[str]:
    """What to type next; `name` is one of the characters."""
    begin = [] if model == "glyphs" else ["--model", model]
    file, asked = out / "characters.sightline", shlex.quote(str(out / "asked"))
    predict = f"{shlex.join(['sightline', 'predict', str(file)])} {asked}"
    return [
        shlex.join(["sightline", "fit", str(folder), *begin, "--out", str(file)]),
        f"{predict}/*/*.png",
        f"{predict}/known/{name}-*.png {shlex.join(['--show', str(out / f'{name}.html')])}",
    ]


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
