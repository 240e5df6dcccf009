"""Predictions for many inputs, written to one file: shared out over processes, and continued after a break.

While it runs, the predictions are in the folder `FILE.parts`: one journal for each process and attempt, with one line
for each batch of inputs. At the end they are written to the file in the order of the inputs, and the folder is removed.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import hub, runs, zoo
from .errors import SightlineError, check
from .files import CONFIG, WEIGHTS, locked_folder, read_json, write_bytes
from .names import display_path, printable
from .output import finite, record_writer
from .predictor import Predictor, Progress
from .training.distributed import ProcessGroup, process_group, rank_and_world_size

SETTINGS = "settings.json"
MAX_WAIT = timedelta(days=30)
"""Time that a process waits for the slowest one."""


class _Entry(NamedTuple):
    """A batch of predictions in a journal."""

    journal: Path
    offset: int
    num_inputs: int

    def records(self) -> list[dict[str, Any]]:
        with self.journal.open("rb") as file:
            file.seek(self.offset)
            records: list[dict[str, Any]] = json.loads(file.readline())["records"]
        return records


@dataclass(frozen=True)
class BatchResult:
    """The number of inputs of all processes, and the time that they took."""

    inputs: int
    errors: int
    """Inputs that cannot be used, also those of earlier attempts."""
    predicted: int
    """Inputs that were not predicted by an earlier attempt."""
    seconds: float

    def __str__(self) -> str:
        rate = self.predicted / max(self.seconds, 1e-9)
        return f"{self.predicted:,} inputs in {self.seconds:.1f} s, {rate:,.1f} per second"


def predict_to_file(
    run: str | Path,
    inputs: Sequence[str],
    out: Path,
    format: str,
    *,
    top: int | None = None,
    device: str = "auto",
    allow_download: bool = False,
    progress: Progress | None = None,
    report: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> BatchResult | None:
    """Predict inputs, and write one record for each to a file.

    Processes that torchrun started share the inputs. An interrupted prediction to the same file is continued.

    Args:
        run: Folder of a run, name of a pretrained model, or file of a fitted classifier.
        inputs: Arguments of the command: images, folders, sentences or text files.
        out: The file to write.
        format: One of `output.FORMATS`.
        top: Number of alternatives.
        device: auto, cpu, cuda or cuda:N; of several processes, each takes its own GPU.
        allow_download: Whether an external embedding model may be downloaded.
        progress: Called with the number of finished inputs and the total, if that is known.
        report: Called with the error of each input, and with a note if an interrupted prediction is continued.
        options: Further options of the task, one of `Predictor.predict_options`.

    Returns:
        The result in the main process, None in the others.
    """
    world_size = rank_and_world_size()[1]
    rule = f"inputs must be files, folders or texts on {world_size} processes"
    check(world_size == 1 or "-" not in inputs, f"{rule}, got standard input; write it to a .txt file")
    if world_size > 1 and device in ("auto", "cuda") and torch.cuda.is_available():
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    predictor = runs.load(run, device=device, allow_download=allow_download)
    predictor.check_predict_options(run, options)
    predictor.check_ready()
    path = hub.resolve(run) if hub.is_hub_name(run) else zoo.folder(run)
    settings = {"model": _digest(path), "format": format, "top": top, "batch_size": predictor.batch_size, **options}
    options = {"top_k": top, **options}
    with process_group(torch.device("cpu"), timeout=MAX_WAIT) as group:
        parsed = predictor.parse_inputs(inputs)
        return _predict_to_file(predictor, parsed, out, format, settings, group, options, progress, report)


def _predict_to_file(
    predictor: Predictor,
    inputs: Iterable[Any],
    out: Path,
    format: str,
    settings: dict[str, Any],
    group: ProcessGroup,
    options: dict[str, Any],
    progress: Progress | None,
    report: Callable[[str], None],
) -> BatchResult | None:
    """Predict this process's share of the inputs. The main process writes the file when all have finished."""
    start, folder = time.perf_counter(), out.with_name(f"{out.name}.parts")
    with locked_folder(folder) if group.is_main else nullcontext():
        if group.is_main:
            _check_settings(folder, settings)
        group.barrier()
        done = _read_journals(folder)
        resumed = sum(entry.num_inputs for entry in done.values())
        if resumed and group.is_main:
            report(f"continuing {display_path(out)}: {resumed:,} inputs are done")
        group.barrier()  # before new journals appear
        _predict_share(predictor, inputs, folder, done, format, group, options, progress, report)
        group.barrier()
        if not group.is_main:
            return None
        done = _read_journals(folder)
        total = sum(entry.num_inputs for entry in done.values())
        errors = _merge(predictor, done, out, format, options["top_k"])
        result = BatchResult(total, errors, total - resumed, time.perf_counter() - start)
        for path in [*folder.glob("*.jsonl"), folder / SETTINGS]:
            path.unlink()
    with suppress(OSError):
        folder.rmdir()
    return result


def _digest(path: Path) -> str:
    """A digest of the files of a run, or of a fitted classifier."""
    digest = hashlib.sha256()
    for file in (path / CONFIG, path / WEIGHTS) if path.is_dir() else (path,):
        if file.is_file():
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def _check_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write the settings, or check that they are those of the interrupted prediction."""
    path = folder / SETTINGS
    if not path.is_file():
        write_bytes(path, json.dumps(settings).encode())
        return
    old = read_json(path)
    changed = [name for name in settings if not isinstance(old, dict) or old.get(name) != settings[name]]
    rule = f"{display_path(folder)} must be of a prediction with the same model and options, to continue it"
    check(not changed, f"{rule}, got another {' and '.join(changed)}; remove the folder to start again")


def _read_journals(folder: Path) -> dict[int, _Entry]:
    """All complete batches by their number. The last line of a process that was killed can be incomplete."""
    entries = {}
    for journal in sorted(folder.glob("*.jsonl")):
        offset = 0
        with journal.open("rb") as file:
            for line in file:
                with suppress(ValueError, KeyError, TypeError):
                    value = json.loads(line)
                    if line.endswith(b"\n"):
                        entries[int(value["batch"])] = _Entry(journal, offset, len(value["records"]))
                offset += len(line)
    return entries


def _predict_share(
    predictor: Predictor,
    inputs: Iterable[Any],
    folder: Path,
    done: dict[int, _Entry],
    format: str,
    group: ProcessGroup,
    options: dict[str, Any],
    progress: Progress | None,
    report: Callable[[str], None],
) -> None:
    """Predict every batch of this process that is not done, and write it to a journal."""
    total = len(inputs) if isinstance(inputs, list) else None
    items, seen = iter(inputs), 0
    journal = folder / f"{group.rank}-of-{group.world_size}-{os.getpid()}-{time.time_ns()}.jsonl"
    with journal.open("w", encoding="utf-8") as file:
        for number, batch in enumerate(iter(lambda: list(islice(items, predictor.batch_size)), [])):
            seen += len(batch)
            if number in done:
                names = [record["record"]["input"] for record in done[number].records()]
                rule = f"inputs must be those of the interrupted prediction in {display_path(folder)}"
                is_same = names == [str(item) for item in batch]
                check(is_same, f"{rule}, got others among the first {seen:,}; remove the folder to start again")
            elif number % group.world_size == group.rank:
                records = list(_records(predictor, batch, format, options, report))
                file.write(f"{json.dumps({'batch': number, 'records': records})}\n")
                file.flush()
            if progress is not None and total is not None:
                progress(seen, total)


def _records(
    predictor: Predictor, batch: list[Any], format: str, options: dict[str, Any], report: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """What the writer takes for each prediction."""
    for item, prediction in zip(batch, predictor.predict_together(batch, **options), strict=True):
        if prediction.error is not None:
            report(f"error: {prediction.error}")
        values = predictor.csv_values(prediction) if format == "csv" else prediction.to_dict()
        text = f"{printable(str(item))}: {prediction.summary(options['top_k'])}"
        yield {"record": finite({"input": str(item), **values}), "text": text, "error": prediction.error is not None}


def _merge(predictor: Predictor, done: dict[int, _Entry], out: Path, format: str, top: int | None) -> int:
    """Write all predictions in the order of the inputs; returns the number of errors."""
    missing = next((number for number in range(len(done)) if number not in done), None)
    if missing is not None:
        rule = f"{display_path(out)} must have all predictions, got none of batch {missing}"
        raise SightlineError(f"{rule}; run the command again")
    names, errors = predictor.columns(top), 0
    columns = None if names is None else ["input", *names, "error"]
    with record_writer(out, format, columns, with_errors=True) as writer:
        for _, entry in sorted(done.items()):
            for record in entry.records():
                errors += record["error"]
                writer.write(record["record"], record["text"])
    return errors
