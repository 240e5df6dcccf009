"""Uploaded images and archives: bounded, decoded once, and stored upright without metadata."""

import io
import json
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath

from PIL import Image

from .. import limits
from ..data.images.paths import is_hidden, is_image_name
from ..data.images.reading import read_header, read_image
from ..errors import SightlineError, check
from ..names import shortened
from . import deadlines
from .errors import BusyError
from .rows import NewImage

MAX_PNG_BYTES = 1 << 17
"""Bytes from which on an image is stored as JPEG."""
JPEG_QUALITY = 92
RESERVED = frozenset('<>:"/\\|?*')
"""Characters that are not in file names of every system."""
SMALLER = "use fewer or smaller images"
CLASS_NAMES = "sightline-classes.json"
"""In an archive: the names of classes by folder, where a folder cannot have the name of its class."""
MAX_FOLDER_BYTES = 200
"""Bytes of the name of a folder; file systems have at most 255."""


def check_image(data: bytes, name: str = "the image") -> int:
    """Check the size of an uploaded image before it is decoded; returns its pixels."""
    limit = limits.MAX_WEB_IMAGE_BYTES
    check(len(data) <= limit, f"{name} must be at most {limit:,} bytes, got {len(data):,}; make it smaller")
    header = read_header(data, name)  # refuses an empty one and one of too many pixels
    return header.width * header.height


def check_images(files: Iterable[bytes]) -> None:
    """Check the pixels of all images of a request before one is decoded. Those that are refused do not count."""
    pixels, limit = 0, limits.MAX_WEB_UPLOAD_PIXELS
    for data in files:
        with suppress(SightlineError):
            pixels += check_image(data)
    fix = "send fewer, or resize them"
    check(pixels <= limit, f"the images of a request must have at most {limit:,} pixels, got {pixels:,}; {fix}")


def to_stored(data: bytes, name: str) -> NewImage:
    """Decode an uploaded image, and encode it as it is stored."""
    name = display_name(name)
    check_image(data, name)
    pixels = read_image(data, name=name)
    array = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous().numpy()
    return encode(Image.fromarray(array), name)


def encode(image: Image.Image, name: str) -> NewImage:
    """An image as it is stored."""
    side = limits.MAX_WEB_IMAGE_SIDE
    image.thumbnail((side, side), Image.Resampling.BICUBIC, reducing_gap=3.0)
    encoded = _encoded(image, "png")
    if len(encoded) > MAX_PNG_BYTES:
        encoded = _encoded(image, "jpeg", quality=JPEG_QUALITY, subsampling=0)
    return NewImage(name, encoded, image.width, image.height)


def display_name(name: str | None) -> str:
    """The last part of a file name as text; it is shown, and never used as a path."""
    last = (name or "").replace("\\", "/").rpartition("/")[2]
    return shortened(last, limits.MAX_WEB_NAME_CHARS) or "image"


def media_type(data: bytes) -> str:
    """The media type of a stored image."""
    return "image/png" if data.startswith(b"\x89PNG") else "image/jpeg"


def read_archive(data: bytes) -> list[tuple[str, list[NewImage]]]:
    """The classes of a zip file with one folder of images per class. Nothing is unpacked to disk."""
    rule = "archive must be a zip file with one folder of images per class, or a .sightline file"
    errors = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, zlib.error)
    with _readable(rule, *errors), zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = _image_entries(archive)
        count = sum(map(len, entries.values()))
        check(count, f"{rule}, got no image in a folder")
        check_counts(count, len(entries))
        size, limit = sum(info.file_size for group in entries.values() for info in group), limits.MAX_WEB_ARCHIVE_BYTES
        check(size <= limit, f"archive must have at most {limit:,} bytes of images, got {size:,}")
        return _decoded(archive, entries)


def check_counts(images: int, classes: int) -> None:
    """Check the numbers of images and of classes of an archive."""
    limit = limits.MAX_WEB_EXAMPLES
    check(images <= limit, f"archive must have at most {limit:,} images, got {images:,}")
    limit = limits.MAX_WEB_CLASSES
    check(classes <= limit, f"archive must have at most {limit} classes, got {classes:,}")


def check_time() -> None:
    """Refuse an archive that takes longer than a request may: the request was answered by now."""
    if not deadlines.remaining():
        raise BusyError(f"an archive must be read in {limits.MAX_WEB_SECONDS} seconds, got a larger one; {SMALLER}")


def class_name(text: str) -> str:
    """The name of a class from outside as it is stored; it is never used as a path."""
    return shortened(unicodedata.normalize("NFC", text), limits.MAX_WEB_NAME_CHARS) or "class"


def check_pixels(pixels: int) -> None:
    """Check the pixels of all images of an archive."""
    limit = limits.MAX_WEB_ARCHIVE_PIXELS
    check(pixels <= limit, f"the images of an archive must have at most {limit:,} pixels, got more; {SMALLER}")


def write_archive(content: Iterable[tuple[str, Sequence[tuple[str, bytes]]]]) -> bytes:
    """A zip file with one folder of images per class. Folders and files are numbered, so that names are no paths."""
    file, names, changed = io.BytesIO(), set[str](), dict[str, str]()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for label, images in content:
            folder = _unique(_file_name(label), names)
            changed |= {} if class_name(folder) == label else {folder: label}
            for i, (_, data) in enumerate(images, start=1):
                suffix = media_type(data).rpartition("/")[2].replace("jpeg", "jpg")
                archive.writestr(f"{folder}/{i:04}.{suffix}", data)
        if changed:
            archive.writestr(CLASS_NAMES, json.dumps(changed, ensure_ascii=False, indent=1))
    return file.getvalue()


def _image_entries(archive: zipfile.ZipFile) -> dict[str, list[zipfile.ZipInfo]]:
    """The entries of images by the name of their folder."""
    limit = limits.MAX_WEB_EXAMPLES * 4
    infos = archive.infolist()
    check(len(infos) <= limit, f"archive must have at most {limit:,} entries, got {len(infos):,}")
    groups: dict[str, list[zipfile.ZipInfo]] = {}
    names = _class_names(archive)
    for info in infos:
        *folders, name = PurePosixPath(info.filename.replace("\\", "/")).parts or ("",)
        if info.is_dir() or not folders or any(map(is_hidden, folders)) or not is_image_name(name):
            continue
        groups.setdefault(class_name(names.get(folders[-1], folders[-1])), []).append(info)
    return dict(sorted(groups.items()))


def _class_names(archive: zipfile.ZipFile) -> dict[str, str]:
    """The names of classes by folder that `write_archive` stores; empty if there is no such file."""
    infos = [info for info in archive.infolist() if info.filename == CLASS_NAMES]
    if not infos or infos[0].file_size > limits.MAX_WEB_JSON_BYTES:
        return {}
    try:
        values = json.loads(_read(archive, infos[0]))
    except (ValueError, RecursionError):  # a file of this name that is something else
        return {}
    names = {k: v for k, v in values.items() if isinstance(v, str)} if isinstance(values, dict) else {}
    return names if len({*names.values()}) == len(names) else {}


def _decoded(archive: zipfile.ZipFile, entries: dict[str, list[zipfile.ZipInfo]]) -> list[tuple[str, list[NewImage]]]:
    """The images of an archive, within the limit on their pixels and the deadline of the request."""
    found: list[tuple[str, list[NewImage]]] = [(label, []) for label in entries]
    pixels = 0
    for (_, images), infos in zip(found, entries.values(), strict=True):
        for info in infos:
            check_time()
            data = _read(archive, info)
            pixels += check_image(data, display_name(info.filename))
            check_pixels(pixels)
            images.append(to_stored(data, info.filename))
    return found


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """The bytes of an entry. Its size in the archive is not trusted."""
    limit, name = limits.MAX_WEB_IMAGE_BYTES, display_name(info.filename)
    with archive.open(info) as entry:
        data = entry.read(min(info.file_size, limit) + 1)
    check(len(data) <= min(info.file_size, limit), f"{name} must be at most {limit:,} bytes, got more")
    return data


@contextmanager
def _readable(rule: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise the errors of a damaged archive as one; those about its images remain."""
    try:
        yield
    except SightlineError:
        raise
    except errors as error:
        raise SightlineError(f"{rule}, got an error: {error!s:.200}") from error


def _encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _file_name(label: str) -> str:
    """A class name as the name of a folder on any system; it keeps all characters that it can, and is not hidden."""
    kept = "".join("_" if char in RESERVED or unicodedata.category(char) == "Cc" else char for char in label)
    short = kept.lstrip(" ._").encode("utf-8", "ignore")[:MAX_FOLDER_BYTES].decode("utf-8", "ignore")
    return short.rstrip(" .") or "class"


def _unique(name: str, taken: set[str]) -> str:
    candidate, number = name, 2
    while candidate.lower() in taken:
        candidate, number = f"{name} {number}", number + 1
    taken.add(candidate.lower())
    return candidate
