"""Runs on the Hugging Face Hub: `hub:owner/name` names one, and nothing else does."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import zoo
from .errors import MissingDependencyError, SightlineError, check
from .files import CARD, CONFIG, LOG, WEIGHTS, atomic_write

PREFIX = "hub:"
RUN_FILES = (CONFIG, WEIGHTS, CARD, LOG, "*.json")
"""Files of a run that are shared; checkpoints are not."""


def is_hub_name(name: str | Path) -> bool:
    """Whether a name reads `hub:owner/name`."""
    return str(name).startswith(PREFIX)


def resolve(
    name: str | Path,
    *,
    files: Sequence[str] = RUN_FILES,
    revision: str | None = None,
    token: str | None = None,
    allow_download: bool = True,
) -> Path:
    """The local folder of a model: a folder itself, or the download of `hub:owner/name`.

    Without `allow_download`, a model on the hub must be in the local cache already.
    """
    if not is_hub_name(name):
        return Path(name).expanduser()
    repository = str(name).removeprefix(PREFIX)
    is_valid = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repository)
    check(is_valid, f"a model on the hub must be named hub:owner/name, got {str(name)!r}")
    from huggingface_hub import snapshot_download

    options: dict[str, Any] = {"revision": revision, "token": token, "allow_patterns": list(files)}
    try:
        return Path(snapshot_download(repository, local_files_only=not allow_download, **options))
    except Exception as error:  # the client raises many types
        if not allow_download:
            fix = f"run hf download {repository}, or pass --allow-download or allow_download=True"
            message = f"{name} must be downloaded first, got no copy in the local cache; {fix}"
            raise MissingDependencyError(message) from error
        raise SightlineError(f"{name} must be a model on the hub, got an error: {error}") from error


def run_folder(run: str | Path) -> Path:
    """The folder of a run, of a pretrained model by name, or of a model on the hub by `hub:owner/name`."""
    return resolve(run) if is_hub_name(run) else zoo.folder(run)


def upload(
    folder: Path, name: str, *, private: bool = False, token: str | None = None, revision: str | None = None
) -> str:
    """Upload a run as `owner/name`; returns the address of the commit."""
    from huggingface_hub import HfApi

    api, name = HfApi(token=token), name.removeprefix(PREFIX)
    options: dict[str, Any] = {"allow_patterns": list(RUN_FILES), "ignore_patterns": "*/*", "revision": revision}
    try:
        api.create_repo(name, private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=name, folder_path=folder, **options))
    except Exception as error:  # the client raises many types
        raise SightlineError(f"name must be a repository you can write to, got {name!r}: {error}") from error


def copy_run(source: Path, target: Path) -> Path:
    """Copy the files of a run that are shared into a folder."""
    for path in sorted(path for pattern in RUN_FILES for path in source.glob(pattern)):
        with atomic_write(target / path.name) as part:
            shutil.copyfile(path, part)
    return target
