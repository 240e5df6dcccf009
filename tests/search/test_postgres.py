"""A search whose trials are in PostgreSQL."""

import signal

import pytest

import toy_study
from postgres_server import postgres_server
from processes import TIMEOUT
from sightline.errors import SightlineError
from sightline.search.study import Study
from toy_study import create, run_trials, start, values


@pytest.fixture(scope="module")
def server():
    with postgres_server() as url:
        yield url


def test_two_processes_share_a_database_and_one_is_killed(server, tmp_path):
    with create(tmp_path, server) as study:
        killed = start(tmp_path, 12, server, prepare=toy_study.kill_in_third_trial)
        killed.join(TIMEOUT)
        assert killed.exitcode == -signal.SIGKILL
        assert sorted(values(study)) == [0, 1]
        processes = [start(tmp_path, 12, server) for _ in range(2)]
        for process in processes:
            process.join(TIMEOUT)
            assert process.exitcode == 0
        found = values(study)
    alone = create(tmp_path / "alone")
    run_trials(tmp_path / "alone", 12)
    assert found == pytest.approx(values(alone))


def test_a_search_that_is_not_in_the_database_is_an_error(server, tmp_path):
    with pytest.raises(SightlineError, match=r"storage must hold the search 'other', got postgresql://.*@/postgres"):
        Study(server, "other", tmp_path)
