"""Model cards: the README of a run or of a pretrained model."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import files, limits, registry
from .files import CARD, CONFIG, LOG, WEIGHTS
from .names import shortened

if TYPE_CHECKING:
    from .training.run import Run

SCORE, VERSIONS = "## Evaluation", "## Versions"
"""Headings of a model card."""


def model_card(
    name: str | Path, task_config: Any, *, title: str, command: str, training: str, evaluation: str, versions: str
) -> str:
    """The model card of a run by its folder, or of a pretrained model by its name; `title` tells what the model is."""
    usage = registry.task_spec(task_config.task).usage.format(name=name)
    sources = ", ".join(f"`{source}`" for source in task_config.data.sources)
    return f"""---
library_name: sightline
tags: [sightline, {task_config.task}]
---
# {Path(name).name}

{title}: `{usage}`.

## Training

    {command}

Data: {sources}. {training}

{SCORE}

{evaluation}

{VERSIONS}

{versions}
"""


def description(folder: Path) -> str:
    """The paragraphs of the model card before its first section, without those that have code; empty without a card."""
    path = folder / CARD
    text = path.read_text(encoding="utf-8", errors="replace")[: limits.MAX_RUN_FILE_BYTES] if path.is_file() else ""
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    paragraphs = body.partition("\n## ")[0].split("\n\n")
    return shortened(" ".join(p for p in paragraphs if not p.lstrip().startswith("#") and "`" not in p), 600)


def run_card(run: "Run", task_config: Any, command: str) -> str:
    """The model card of a finished run; `command` trained it."""
    size = (run.folder / WEIGHTS).stat().st_size
    stopped = f", stopped early ({run.stop_reason})" if run.stop_reason else ""
    return model_card(
        run.folder,
        task_config,
        title=f"A Sightline model for the task `{task_config.task}`",
        command=command or f"sightline.train({str(run.folder / CONFIG)!r}, ['out=ANOTHER_FOLDER'])",
        training=f"{run.steps:,} steps{stopped}, {run.seconds:.0f} s;\n{size:,} bytes of weights. "
        f"The complete config is in `{CONFIG}`, the training log in `{LOG}`.",
        evaluation=f"On the validation set: {run.validation() or 'none'}.",
        versions=files.versions(),
    )


def with_evaluation(card: str, evaluation: Any) -> str:
    """A model card with an evaluation, which replaces that of the same split."""
    before, heading, after = card.partition(SCORE)
    kept = [part for part in after.split("\n\n") if not part.startswith(f"On the {evaluation.split} set")]
    return before + heading + "\n\n".join([kept[0], evaluation.summary(), *kept[1:]])


def versions_of(folder: Path) -> str | None:
    """The versions of the software that trained a run; None if its card does not say them."""
    card = (folder / CARD).read_text(encoding="utf-8", errors="replace") if (folder / CARD).is_file() else ""
    written = card.partition(f"{VERSIONS}\n")[2].strip().splitlines()
    return written[0] if written else None
