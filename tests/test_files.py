import errno
import os
import signal
import subprocess
import sys

import pytest

from sightline.errors import SightlineError
from sightline.files import atomic_write, locked_folder, write_bytes


def test_file_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "folder" / "a.txt"
    with atomic_write(path) as part:
        part.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_error_keeps_the_old_file_and_removes_the_new_one(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), atomic_write(path) as part:
        part.write_text("half \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_parts_of_killed_writers_are_removed_by_the_next_write(tmp_path):
    kept = [".a.txt.part", ".a.txt.0123abcg.part", ".b.txt.0123abcd.part", ".film.mkv.part"]
    for name in [*kept, ".a.txt.0123abcd.part", ".a.txt.ffffffff.part"]:
        (tmp_path / name).write_text("half")
    with atomic_write(tmp_path / "a.txt") as part, atomic_write(tmp_path / "a.txt") as other:  # both are in use
        part.write_text("first")
        other.write_text("second")
    assert (tmp_path / "a.txt").read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "a.txt"])


@pytest.mark.parametrize(
    "arguments",
    [(errno.ENOSPC, "No space left on device"), ("encoder error -2",), (errno.EIO, "bad sector", "{part}")],
    ids=["without a file name", "without an error number", "with the temporary name"],
)
def test_errors_name_the_target(tmp_path, arguments):
    path = tmp_path / "a.txt"

    def fail_in_block():
        with atomic_write(path) as part:
            raise OSError(*(str(part) if argument == "{part}" else argument for argument in arguments))

    with pytest.raises(OSError, match=r"No space left|encoder error|bad sector") as caught:
        fail_in_block()
    assert caught.value.filename == str(path)
    assert caught.value.errno == (errno.ENOSPC if arguments[0] == errno.ENOSPC else errno.EIO)


def test_errors_about_another_file_keep_its_name(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, atomic_write(tmp_path / "a.txt"):
        (tmp_path / "missing").read_bytes()
    assert caught.value.filename == str(tmp_path / "missing")


def test_locked_folder_is_refused_to_others(tmp_path):
    folder = tmp_path / "runs" / "a"
    with locked_folder(folder):
        with pytest.raises(SightlineError, match=r"out must not be in use, got '.*/runs/a', which another process"):
            locked_folder(folder).__enter__()
        with locked_folder(tmp_path / "runs" / "b"):
            write_bytes(folder / "file", b"data")
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert not (tmp_path / "runs" / "b").exists()
    with locked_folder(folder):
        pass


def test_failed_block_leaves_no_empty_folder(tmp_path):
    with pytest.raises(RuntimeError), locked_folder(tmp_path / "runs" / "a"):
        raise RuntimeError
    assert not (tmp_path / "runs").exists()


def test_file_is_not_a_folder_to_lock(tmp_path):
    (tmp_path / "file").write_text("data")
    with pytest.raises(SightlineError, match=r"out must be a folder, got '.*', which is a file"):
        locked_folder(tmp_path / "file").__enter__()


HOLD = """
import os, sys, time
from pathlib import Path
from sightline.files import locked_folder
with locked_folder(Path(sys.argv[1])):
    if os.fork() == 0:  # a data worker, which outlives its parent
        print("locked", flush=True)
    time.sleep(600)
"""


def test_killed_process_releases_the_lock(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, process_group=0) as process:
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(SightlineError, match="out must not be in use"):
            locked_folder(tmp_path).__enter__()
        process.kill()
        process.wait()
        with locked_folder(tmp_path):
            pass
        os.killpg(process.pid, signal.SIGKILL)
    assert not list(tmp_path.iterdir())
