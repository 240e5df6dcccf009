"""A search whose trials are in PostgreSQL. The server is started for the test, by a user that is not root."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

import toy_study
from sightline.errors import SightlineError
from sightline.search.study import Study
from toy_study import create, run_trials, start, values

USER = "postgres"
"""The user that the Debian package creates; a server does not run as root."""


def find(program):
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))
    return str(installed[-1]) if installed else shutil.which(program)


@pytest.fixture(scope="module")
def server():
    """The URL of a database. The server listens on a socket in a folder, which is removed at the end."""
    if not (find("initdb") and find("postgres")):
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
    initdb = [
        find("initdb"),
        "-D",
        f"{folder}/data",
        "-U",
        user,
        "-A",
        "trust",
        "--no-sync",
        "--locale=C",
        "-E",
        "UTF8",
    ]
    try:
        subprocess.run(initdb, check=True, **options)
        settings = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", f"unix_socket_directories={folder}"]
        with subprocess.Popen([find("postgres"), "-D", f"{folder}/data", *settings], **options) as process:
            while not Path(f"{folder}/.s.PGSQL.5432").exists():
                assert process.poll() is None
                time.sleep(0.01)
            yield f"postgresql://{user}@/postgres?host={folder}"
            process.send_signal(signal.SIGINT)  # a fast shutdown
    finally:
        shutil.rmtree(folder)


def test_two_processes_share_a_database_and_one_is_killed(server, tmp_path):
    with create(tmp_path, server) as study:
        killed = start(tmp_path, 12, server, prepare=toy_study.kill_in_third_trial)
        killed.join(60)
        assert killed.exitcode == -signal.SIGKILL
        assert sorted(values(study)) == [0, 1]
        processes = [start(tmp_path, 12, server) for _ in range(2)]
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
        found = values(study)
    alone = create(tmp_path / "alone")
    run_trials(tmp_path / "alone", 12)
    assert found == pytest.approx(values(alone))


def test_a_search_that_is_not_in_the_database_is_an_error(server, tmp_path):
    with pytest.raises(SightlineError, match=r"storage must hold the search 'other', got postgresql://.*@/postgres"):
        Study(server, "other", tmp_path)
