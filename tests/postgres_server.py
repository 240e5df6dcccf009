"""A PostgreSQL server that is started for a test, by a user that is not root."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

USER = "postgres"
"""The user that the Debian package creates; a server does not run as root."""


@contextmanager
def postgres_server():
    """The URL of a database. The server listens on a socket in a folder, which is removed at the end."""
    if not (_find("initdb") and _find("postgres")):
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    user = pwd.getpwuid(os.geteuid()).pw_name
    if user == "root":
        user = USER
        try:
            pwd.getpwnam(USER)
        except KeyError:
            pytest.skip(f"PostgreSQL does not run as root, and there is no user {USER}")
    options = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    folder = tempfile.mkdtemp(prefix="sightline-postgres-")
    if options:
        shutil.chown(folder, user)
    options |= {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    account = ["-U", user, "-A", "trust"]
    initdb = [_find("initdb"), "-D", f"{folder}/data", *account, "--no-sync", "--locale=C", "-E", "UTF8"]
    try:
        subprocess.run(initdb, check=True, **options)
        settings = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", f"unix_socket_directories={folder}"]
        with subprocess.Popen([_find("postgres"), "-D", f"{folder}/data", *settings], **options) as process:
            while not _is_ready(folder):
                assert process.poll() is None
                time.sleep(0.01)
            yield f"postgresql://{user}@/postgres?host={folder}"
            process.send_signal(signal.SIGINT)  # a fast shutdown
    finally:
        shutil.rmtree(folder)


def _is_ready(folder):
    """Whether the server accepts connections. The last line of its process file says so; the socket exists earlier."""
    try:
        return Path(f"{folder}/data/postmaster.pid").read_text().splitlines()[-1].strip() == "ready"
    except (FileNotFoundError, IndexError):
        return False


def _find(program):
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))
    return str(installed[-1]) if installed else shutil.which(program)
