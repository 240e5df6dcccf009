"""The headline: a classifier from a handful of drawings, judged, asked, and asked why."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from .. import runs
from ..classify import Answer, FewShotClassifier
from ..classify.embedding import zoo
from ..comparison import Standing
from ..data.augment import Augment
from ..data.episodes import Classes
from ..models.baselines import BASELINES
from ..models.few_shot import FewShot, FewShotConfig
from ..tasks.few_shot import Episode, Evaluation, FewShotData, Recipe, way_and_shot
from ..tasks.few_shot_judging import Answers, Tally, embed_all, tally
from ..tasks.few_shot_predictor import SettingScore
from ..tasks.image_predictor import wilson
from ..training.settings import Training
from . import characters
from .characters import Question

SETTINGS, QUERY, EPISODES = ("5w1s", "5w5s", "20w1s"), 15, 1000
BESIDE = {"protonet": "ProtoNet", "nearest": "nearest neighbour"}

SMALL = Recipe(
    data=FewShotData(rotations="train"),
    augment=Augment(rotate=10.0, scale=0.1, shear=5.0, translate=0.05),
    episode=Episode(way=10, shot=3, query=3),
    evaluation=Evaluation(episodes=EPISODES, chosen_by="5w1s", chosen_over=100),
    model=FewShotConfig(widths=(32, 64, 96, 128)),
    auxiliary=0.5,
    training=Training(
        steps=400, batch_size=2, learning_rate=2e-3, warmup=40, ema=0.98, evaluate_every=200, log_every=20
    ),
)
"""What is learnt first where no model ships: as much as two cores learn in well under a minute."""


def tell(console: Console, out: Path, model: str) -> None:
    """Print the story, and leave its files in `out`."""
    console.print("\n[bold]A classifier from a handful of images[/]")
    own = str(_trained(console, out / "model")) if model == "glyphs" and model not in zoo() else model
    classifier = FewShotClassifier.pretrained(own)
    if classifier.model is None or classifier.model.backbone is None:
        raise ValueError(f"model must be a few-shot run with a backbone of its own, got {model!r}")
    folder, questions = characters.write(out)
    began = time.perf_counter()
    classifier.fit(folder)
    seconds = time.perf_counter() - began
    console.print(
        f"\n{len(classifier.classes)} characters of an alphabet it has never seen, {characters.SHOT} drawings of each, "
        f"learnt in {seconds:.1f} s:\n"
    )
    console.print(_drawn(folder, classifier.classes))
    answers = classifier.predict([question.path for question in questions])
    console.print(_asked(questions, answers))
    shown = chosen(questions, answers)
    console.print(_answers([(why, questions[i], answers[i]) for why, i in shown]))
    console.print(_judged(classifier.model))
    page = classifier.page([questions[i].path for _, i in shown]).save(out / "page.html")
    _say(console, f"wrote {page}: these answers, and what each rests on\n")
    console.print("[bold]Try it[/]")
    for line in _commands(out, folder, None if own == "glyphs" else own):
        _say(console, f"  {line}")
    console.print()


def chosen(questions: Sequence[Question], answers: Sequence[Answer]) -> list[tuple[str, int]]:
    """Which to look at, and why: two clear ones, the hardest, two strangers, and one that was taken for what it is not."""
    every = range(len(questions))
    right = sorted((i for i in every if answers[i].label == questions[i].truth), key=lambda i: -answers[i].confidence)
    wrong = [i for i in every if questions[i].truth not in (None, answers[i].label)]
    clear: dict[str, int] = {}
    for i in right:
        clear.setdefault(answers[i].label, i)
    found = [("clear", i) for i in list(clear.values())[:2]]
    hardest = min(
        (i for i in right if i not in dict(found).values()), key=lambda i: answers[i].confidence, default=None
    )
    found += [("hardest that is right", hardest)] if hardest is not None else []
    found += [("mistaken", max(wrong, key=lambda i: answers[i].confidence))] if wrong else []
    strangers = sorted((i for i in every if questions[i].truth is None), key=lambda i: answers[i].familiarity)
    refused = [i for i in strangers if not answers[i].known]
    taken = [i for i in strangers if answers[i].known]
    found += [("stranger", i) for i in refused[: 2 - bool(taken)]]
    return found + ([("stranger, taken in", taken[-1])] if taken else [])


def _trained(console: Console, folder: Path) -> Path:
    """A small model of our own; one that is there is not trained again."""
    _say(
        console,
        f"No trained model ships with this version, so a small one learns first, from the characters of eight drawn "
        f"alphabets: less than a minute on two free cores. It stays in {folder}.\n",
    )
    return runs.train(SMALL, [f"out={folder}"], resume=folder.exists()).folder


def _drawn(folder: Path, classes: Sequence[str]) -> Table:
    """A drawing of each character, its name below it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_row(*(characters.dots(folder / name / "1.png") for name in classes[: characters.CHARACTERS]))
    grid.add_row(*(f"[bold]{name}[/]" for name in classes[: characters.CHARACTERS]))
    return grid


def _asked(questions: Sequence[Question], answers: Sequence[Answer]) -> Table:
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
        low, high = wilson(sum(hits), len(hits))
        table.add_row(what, f"[bold]{sum(hits)}[/] {told}", str(len(hits)), f"{low:.0%} to {high:.0%}")
    return table


def _answers(shown: Sequence[tuple[str, Question, Answer]]) -> Table:
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
    classes = Classes.of(images.labels, images.classes)
    embeddings = embed_all(model, images.pixels, torch.device("cpu"))
    table = Table(f"{EPISODES:,} episodes, the same for all", box=box.SIMPLE)
    columns = []
    for setting in SETTINGS:
        way, shot = way_and_shot(setting)
        table.add_column(f"{way} characters,\n{shot} drawing{'s' * (shot > 1)} each", justify="right")
        columns.append(_column(model, embeddings, classes, way, shot))
    for row in zip(_rows(), *columns, strict=True):
        table.add_row(*row)
    return table


def _rows() -> list[str]:
    beside = (cell for name in BESIDE.values() for cell in (name, "  ours is ahead by, in points"))
    return ["[bold]cosine transformer[/]", *beside, "confidence is off by", "told from strangers (AUROC)"]


def _column(model: FewShot, embeddings: Tensor, classes: Classes, way: int, shot: int) -> list[str]:
    def seen(answers: Answers) -> Tally:
        return tally(answers, embeddings, classes, way=way, shot=shot, query=QUERY, episodes=EPISODES)

    ours = seen(model.head)
    score, right = SettingScore.of(ours), torch.cat(ours.accuracies)
    cells = [f"[bold]{Standing.of(right, right)}[/]"]
    for name in BESIDE:
        theirs = torch.cat(seen(BASELINES[name]).accuracies)
        cells += [str(Standing.of(theirs, theirs)), Standing.of(right, theirs).beside]
    return [*cells, f"{score.calibration_error:.1%}", "-" if score.auroc is None else f"{score.auroc:.3f}"]


def _commands(out: Path, folder: Path, model: str | None) -> list[str]:
    """What to type next."""
    begin = [] if model is None else ["--model", model]
    file = out / "characters.sightline"
    fit = shlex.join(["sightline", "fit", str(folder), *begin, "--out", str(file)])
    asked, page = shlex.quote(str(out / "asked")), shlex.quote(str(out / "mine.html"))
    return [fit, f"sightline predict {shlex.quote(str(file))} {asked}/*/*.png --show {page}"]


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
