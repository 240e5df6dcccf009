"""Pretrained models from runs: without what only training needs, in half precision, with a model card.

The metrics before and after the conversion are compared first; a model whose metrics change is refused.
"""

import re
import secrets
import shlex
import shutil
from pathlib import Path
from textwrap import indent

from safetensors.torch import load_file
from torch import Tensor

from . import config, limits, registry, zoo
from .errors import SightlineError, check, check_choice
from .files import CARD, CONFIG, DATA, EVALUATION, WEIGHTS, read_json, write_bytes
from .model_card import model_card
from .predictor import Predictor, Progress
from .runs import load
from .weights import to_bytes


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
    """Convert an evaluated run to a pretrained model of this name in the zoo or in `out`; returns its folder.

    `license` names the license of the data and their owner, `command` the training command if not that of the model
    card, `data` the data to compare the precision on if not the run's own.
    """
    run, target = Path(run), Path(zoo.HOME if out is None else out) / name
    is_valid = re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", name)
    check(is_valid, f"name must be 1 to 40 lowercase letters, digits and hyphens, got {name!r}")
    check(license.strip(), "license must name the license of the data and their owner, got nothing")
    check(not target.exists(), f"name must be new, got {name!r}, which is in {target.parent}; remove that first")
    for file in (CONFIG, WEIGHTS, CARD, EVALUATION):
        check((run / file).is_file(), f"run must be trained and evaluated, got {str(run)!r} without {file}")
    task = config.read(run / CONFIG).get("task")
    check_choice("the task of a pretrained model", task, registry.supporting("compare_precision"))
    before = load(run, device=device)
    training = _portable("the command", _command(run) if command is None else command, "give another one")
    part = target.with_name(f".{name}.{secrets.token_hex(4)}.part")
    try:
        _write_model(part, run, before)
        agreement = registry.task_spec(task).compare_precision(before, load(part, device=device), data, progress)
        write_bytes(part / CARD, _card(name, run, before, training, license, agreement).encode())
        _check_size(part, before)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def model_bytes(folder: Path, predictor: Predictor) -> tuple[int, int]:
    """Bytes of all files of a model without its fine-tuned backbone, and bytes of the backbone."""
    total, part = sum(path.stat().st_size for path in folder.iterdir()), predictor.fine_tuned
    tensors = {} if part is None else load_file(folder / WEIGHTS)
    backbone = sum(tensor.nbytes for name, tensor in tensors.items() if part and name.startswith(part.prefix))
    return total - backbone, backbone


def _check_size(folder: Path, predictor: Predictor) -> None:
    size, backbone = model_bytes(folder, predictor)
    limit, note = limits.MAX_ZOO_MODEL_BYTES, " without its backbone" if backbone else ""
    check(size <= limit, f"a pretrained model must be at most {limit:,} bytes{note}, got {size:,}")
    limit = limits.MAX_ZOO_BACKBONE_BYTES
    check(backbone <= limit, f"the backbone of a pretrained model must be at most {limit:,} bytes, got {backbone:,}")


def _write_model(part: Path, run: Path, predictor: Predictor) -> None:
    """All files but the model card."""
    task_config, state = predictor.portable()
    text = _portable(CONFIG, config.dump(task_config), "write paths relative to the folder you train in")
    write_bytes(part / CONFIG, text.encode())
    write_bytes(part / WEIGHTS, to_bytes({key: _half(key, tensor.cpu()) for key, tensor in state.items()}))
    for path in run.glob("*.json"):
        if path.name != EVALUATION and (path.name != DATA or predictor.needs_data_fingerprint):
            write_bytes(part / path.name, path.read_bytes())


def _half(key: str, tensor: Tensor) -> Tensor:
    """Matrices in half precision; vectors and scalars as they are."""
    half = tensor.half() if sum(size > 1 for size in tensor.shape) > 1 else tensor
    check(half.isfinite().all(), f"weights must be finite in half precision, got {key}, which is not")
    return half


def _card(name: str, run: Path, predictor: Predictor, command: str, license: str, agreement: str) -> str:
    evaluation = read_json(run / EVALUATION)
    report = evaluation.get("report") if isinstance(evaluation, dict) else None
    if not isinstance(report, str):
        raise SightlineError(f"{run / EVALUATION} must hold a report, got none; evaluate the run again")
    external = predictor.external_model
    head = f", for the features of `{external}`, which is not part of it" if external else ""
    part = predictor.fine_tuned
    start = f"The backbone is part of the model. Its training started from {part.origin}.\n" if part else ""
    return model_card(
        name,
        predictor.config,
        title=f"A pretrained model of Sightline{head}",
        command=command,
        training=f"{license.strip().rstrip('.')}.\n{start}The complete config is in `{CONFIG}`.",
        evaluation=f"{indent(report, '    ')}\n\nThe evaluation is that of the trained run. The matrices are stored "
        f"here in half precision and loaded in single\nprecision: {agreement}.",
        versions=_section(run, "## Versions"),
    )


def _section(run: Path, title: str) -> str:
    """The text below a heading of a run's model card."""
    _, _, after = (run / CARD).read_text(encoding="utf-8").partition(f"\n{title}\n")
    return after.partition("\n## ")[0].strip()


def _command(run: Path) -> str:
    """The training command of a run's model card, without local paths."""
    line = _section(run, "## Training").partition("\n")[0].strip()
    if not line.startswith(("sightline ", "torchrun ")):
        return line
    return shlex.join(word for word in shlex.split(line) if not word.startswith(("out=", "data.weights=")))


def _portable(what: str, text: str, fix: str) -> str:
    """The text, if it holds no absolute path."""
    found = re.search(r"(?:^|[\s='\"(\[])([/~][^\s'\"]*)", text)
    check(found is None, f"{what} must hold no absolute path, got {found and found[1]!r}; {fix}")
    return text
