"""Archives in memory."""

import io
import tarfile
import zipfile


def tar_gz(files, *, kind=None, link="/etc/passwd"):
    """A tar.gz archive of bytes by name; entries are of another kind if one is given."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = 0 if kind else len(data)
            info.type, info.linkname = kind or tarfile.REGTYPE, link if kind else ""
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def zipped(files):
    """A zip file of bytes by name."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()
