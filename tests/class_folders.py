"""Tiny sets of class folders, on the disk or in a zip file."""

import io
import zipfile
from pathlib import Path

from PIL import Image


def png(shade: int = 0, size: tuple[int, int] = (5, 5), mode: str = "L") -> bytes:
    """A picture of one shade."""
    stream = io.BytesIO()
    Image.new(mode, size, shade if mode == "L" else (shade, 0, 0)).save(stream, "png")
    return stream.getvalue()


def write_files(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def omniglot(per_class: int = 3) -> dict[str, bytes]:
    """Three alphabets of the background and two of the evaluation, of two to four characters each."""
    files, shade = {}, 0
    alphabets = {"background": {"Latin": 4, "Greek": 3, "Ogham": 2}, "evaluation": {"Tengwar": 3, "Ulog": 2}}
    for part, inside in alphabets.items():
        for alphabet, characters in inside.items():
            for character in range(1, characters + 1):
                shade += 1
                for drawer in range(1, per_class + 1):
                    name = f"images_{part}/{alphabet}/character{character:02d}/{shade:04d}_{drawer:02d}.png"
                    files[name] = png(10 * shade + drawer)
    return files
