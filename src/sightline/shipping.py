"""Shipping: a finished run becomes a model of the zoo, small, with a card.

What was there to train by is dropped, matrices are kept in half precision, and the answers are compared before anything
is kept: a model that half precision harms does not ship.
"""

import re
import secrets
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from . import config, zoo
from .data.images.loading import Progress
from .data.text.corpora import Pairs
from .errors import SightlineError, one_of
from .hub import CARD, CONFIG, DATA, WEIGHTS, read_json
from .runs import EVALUATION, SCORE, load, sources
from .tasks.few_shot.evaluate import Setting
from .tasks.few_shot.predictor import FewShotPredictor, FewShotScore, SettingScore
from .tasks.few_shot.task import classes_of
from .tasks.translation.evaluate import Score
from .tasks.translation.predictor import TranslationPredictor
from .training.checkpoint import to_bytes, write_bytes
from .training.device import choose_device

MOST_BYTES = 8_000_000
"""Of all files of a model that ships."""
EPISODES, IMAGES, SENTENCES = 200, 40, 200
"""What answers are compared over: episodes, of so many images of each class; or sentences."""
ACCURACY, BLEU = 0.005, 0.5
"""How far they may differ."""
TRAINING_ALONE = "classifier."
"""The weights of a few-shot model that tell training classes apart."""


def ship(
    run: str | Path,
    name: str,
    *,
    license: str,
    command: str | None = None,
    data: str | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Path:
    """Put a run that was evaluated into the zoo, or into the folder `out`, by this name; the new folder comes back.

    license: whose the data are, and under which terms; command: what made the run, if not as its card says; data: what
    to compare answers on, if not its own.
    """
    run, target = Path(run), Path(zoo.HOME if out is None else out) / name
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", name):
        raise SightlineError(f"name must be 1 to 40 small letters, digits and hyphens, got {name!r}")
    if not license.strip():
        raise SightlineError("license must say whose the data are and under which terms, got nothing")
    if target.exists():
        raise SightlineError(f"name must be new, got {name!r}, which is in {target.parent}; remove that first")
    for needed in (CONFIG, WEIGHTS, CARD, EVALUATION):
        if not (run / needed).is_file():
            raise SightlineError(f"run must be trained and evaluated, got {str(run)!r} without {needed}")
    kind, where = _kind(run), choose_device(device)
    before = load(run).to(where)
    made = _portable("the command", _command(run) if command is None else command, "tell another one")
    part = target.with_name(f".{name}.{secrets.token_hex(4)}.part")
    try:
        _write_model(part, run, before)
        after = load(part).to(where)
        same = kind.compared(before, after, data, progress)
        write_bytes(part / CARD, _card(name, run, before.recipe, made, license, same).encode())
        size = sum(path.stat().st_size for path in part.iterdir())
        if size > MOST_BYTES:
            raise SightlineError(
                f"a model that ships must take at most {MOST_BYTES:,} bytes, got {size:,}; make it smaller"
            )
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _write_model(part: Path, run: Path, before: Any) -> None:
    """All but the card: the configuration, weights in half precision, and what else the model needs."""
    recipe, state = replace(before.recipe, out=None), before.model.state_dict()
    if isinstance(before, FewShotPredictor):
        recipe = replace(recipe, model=replace(recipe.model, num_classes=0), data=replace(recipe.data, weights=None))
        state = {key: tensor for key, tensor in state.items() if not key.startswith(TRAINING_ALONE)}
    text = _portable(CONFIG, config.dump(recipe), "write paths that begin in the folder you train in")
    write_bytes(part / CONFIG, text.encode())
    write_bytes(part / WEIGHTS, to_bytes({key: _halved(key, tensor.cpu()) for key, tensor in state.items()}))
    for path in run.glob("*.json"):
        if path.name != EVALUATION and (path.name != DATA or isinstance(before, TranslationPredictor)):
            write_bytes(part / path.name, path.read_bytes())


def _halved(key: str, tensor: Tensor) -> Tensor:
    """In half precision if it is a matrix; norms, temperatures and the like are few, and stay as fine as they are."""
    half = tensor.half() if sum(size > 1 for size in tensor.shape) > 1 else tensor
    if not half.isfinite().all():
        raise SightlineError(f"weights must be finite in half precision, got {key}, which is not")
    return half


def _compare_episodes(
    before: FewShotPredictor, after: FewShotPredictor, data: str | None, progress: Progress | None
) -> str:
    e, setting = before.recipe.evaluation, before.recipe.evaluation.settings[0]
    images, split = before.evaluation_split(data, progress)
    most = max(IMAGES, Setting.of(setting).shot + e.query)
    rows = classes_of(images).places[:, :most].flatten()
    few = images.take(rows[rows >= 0])
    classes = classes_of(few)
    after.recipe = before.recipe = replace(before.recipe, evaluation=replace(e, episodes=EPISODES))

    def accuracy(one: FewShotPredictor) -> float:
        return one.tallied(one.model.head, one.embedded(few, progress), classes, setting).interval()[0]

    old, new = accuracy(before), accuracy(after)
    _check_close("accuracy", old, new, ACCURACY)
    return f"{setting} {old:.2%} before and {new:.2%} after, over {EPISODES} episodes of the {split} set"


def _compare_sentences(
    before: TranslationPredictor, after: TranslationPredictor, data: str | None, progress: Progress | None
) -> str:
    pairs, split = before.evaluation_split(data)
    few = Pairs(pairs.source[:SENTENCES], pairs.target[:SENTENCES])
    old, new = (one.evaluate(few, split, progress).bleu_lowercase for one in (before, after))
    _check_close("BLEU", old, new, BLEU)
    told = f"lower-cased BLEU {old:.2f} before and {new:.2f} after"
    return f"{told}, over the first {len(few)} sentences of the {split} set"


def _check_close(what: str, before: float, after: float, most: float) -> None:
    if not abs(after - before) <= most:
        raise SightlineError(
            f"answers must stay what they were in half precision: {what} may differ by {most}, got {before:.4f} "
            f"before and {after:.4f} after"
        )


@dataclass(frozen=True)
class Kind:
    """What there is to know of a task to ship a model of it."""

    usage: str
    score: Callable[[Mapping[str, Any]], Any]
    """From what `evaluate` kept."""
    compared: Callable[[Any, Any, str | None, Progress | None], str]
    """The model before and after, on its data or others; refused if they differ, else a line for the card."""


def _few_shot_score(kept: Mapping[str, Any]) -> FewShotScore:
    settings = {name: SettingScore(**values) for name, values in kept["settings"].items()}
    return FewShotScore(**{**kept, "settings": settings, "per_class": {}})


KINDS = {
    "few_shot": Kind(
        'FewShotClassifier.pretrained("{name}").fit("folder/")`, `sightline fit folder/ --model {name}',
        _few_shot_score,
        _compare_episodes,
    ),
    "translation": Kind(
        'sightline.load("{name}").predict("…")`, `sightline predict {name} "…"',
        lambda kept: Score(**kept),
        _compare_sentences,
    ),
}
"""By the name of the task."""


def _kind(run: Path) -> Kind:
    task = str(config.read(run / CONFIG).get("task"))
    if task not in KINDS:
        raise SightlineError(f"the task of a model that ships must be {one_of(task, KINDS)}")
    return KINDS[task]


def _card(name: str, run: Path, recipe: Any, command: str, license: str, same: str) -> str:
    kind, kept, embedder = KINDS[recipe.task], read_json(run / EVALUATION), getattr(recipe.data, "embedder", None)
    head = f"\n\nA head for the embeddings of `{embedder}`, which it does not hold." if embedder else ""
    try:
        score = "\n".join(f"    {line}" for line in kind.score(kept).lines())
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise SightlineError(
            f"{EVALUATION} must be as evaluate writes it, got an error: {error}; evaluate again"
        ) from error
    return f"""---
library_name: sightline
tags: [sightline, {recipe.task}]
---
# {name}

Ships with Sightline: `{kind.usage.format(name=name)}`.{head}

## How it was made

    {command}

Data: {sources(recipe.data)}. {license.strip()}
The whole configuration is in `{CONFIG}`.

{SCORE}

{score}

That is the run as it was trained. Its matrices are kept here in half precision, and opened in single precision:
{same}.

## Versions

{_section(run, "## Versions")}
"""


def _section(run: Path, title: str) -> str:
    """What a run's card says under a title."""
    _, _, after = (run / CARD).read_text(encoding="utf-8").partition(f"\n{title}\n")
    return after.partition("\n## ")[0].strip()


def _command(run: Path) -> str:
    """What made a run, as its card says, without what says where things lie."""
    line = _section(run, "## How it was made").partition("\n")[0].strip()
    if not line.startswith(("sightline ", "torchrun ")):
        return line
    return shlex.join(word for word in shlex.split(line) if not word.startswith(("out=", "data.weights=")))


def _portable(what: str, text: str, fix: str) -> str:
    """The text, if it names no place of this machine."""
    if found := re.search(r"(?:^|[\s='\"(\[])([/~][^\s'\"]*)", text):
        raise SightlineError(f"{what} must hold no path of this machine, got {found[1]!r}; {fix}")
    return text
