import json
import os
import random
import signal
import sqlite3
from functools import partial

import optuna
import pytest

import toy_study
from processes import FORKSERVER, TIMEOUT
from sightline.errors import SightlineError
from sightline.search import liveness
from sightline.search.journal import open_journal
from sightline.search.liveness import Worker, living_pool
from sightline.search.study import Outcome, Study, make_sampler, shown_url, state_of
from toy_study import claimer, create, kill_after_writes, run_trials, start, values, wait_in_first_trial


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The values of 40 trials of an undisturbed search."""
    folder = tmp_path_factory.mktemp("undisturbed")
    study = create(folder)
    run_trials(folder, 40)
    return values(study)


def test_all_trials_run_once_and_a_second_search_runs_only_new_ones(tmp_path, expected):
    study = create(tmp_path)
    run_trials(tmp_path, 7)
    run_trials(tmp_path, 7)
    run_trials(tmp_path, 12)
    assert values(study) == {i: expected[i] for i in range(12)}
    assert len((tmp_path / toy_study.DONE).read_text().splitlines()) == 12
    assert sorted(path.name for path in tmp_path.iterdir()) == [".journal.log.lock", "done.txt", "journal.log"]


def test_two_processes_share_a_journal(tmp_path, expected):
    study, barrier = create(tmp_path), FORKSERVER.Barrier(2)
    processes = [start(tmp_path, 40, prepare=partial(wait_in_first_trial, barrier)) for _ in range(2)]
    for process in processes:
        process.join(TIMEOUT)
        assert process.exitcode == 0
    assert values(study) == expected
    assert len((tmp_path / toy_study.DONE).read_text().splitlines()) == 40
    assert len({trial.user_attrs["worker"]["name"] for trial in study.trials().values()}) == 2


def test_killed_at_30_random_moments_no_trial_is_lost_or_ends_twice(tmp_path, expected):
    study, draw, kills = create(tmp_path), random.Random(0), 0
    before: dict[int, float] = {}
    for i in range(30):
        process = start(tmp_path, 40, prepare=partial(kill_after_writes, draw.randint(1, 12), i))
        process.join(TIMEOUT)
        kills += process.exitcode == -signal.SIGKILL
        after = values(study)
        assert before.items() <= after.items()
        before = after
    run_trials(tmp_path, 40)
    assert values(study) == expected
    assert kills >= 20


def test_a_line_that_a_killed_process_did_not_finish_is_removed(tmp_path, expected):
    study = create(tmp_path)
    run_trials(tmp_path, 3)
    with (tmp_path / "journal.log").open("ab") as journal:
        journal.write(b'{"op_code": 5, "wor')
    run_trials(tmp_path, 6)
    assert values(study) == {i: expected[i] for i in range(6)}
    for line in (tmp_path / "journal.log").read_text().splitlines():
        json.loads(line)


def test_a_journal_on_a_file_system_without_locks_uses_the_lock_of_optuna(tmp_path, monkeypatch):
    def no_locks(*arguments):
        raise OSError("no locks")

    monkeypatch.setattr("sightline.search.journal.fcntl.flock", no_locks)
    create(tmp_path)
    run_trials(tmp_path, 2)
    assert not (tmp_path / "journal.log.lock").exists()
    assert len(open_journal(tmp_path / "journal.log").get_all_trials(0)) == 2


def test_an_interrupted_trial_is_free_at_once(tmp_path, expected):
    study = create(tmp_path)

    def interrupted(claim):
        claim.trial.suggest_float("x", 0, 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trials(tmp_path, 2, run=interrupted)
    assert study.trials() == {}
    run_trials(tmp_path, 2)
    assert values(study) == {i: expected[i] for i in range(2)}


def test_a_trial_that_was_taken_for_lost_does_not_count(tmp_path, expected):
    """As of a worker that was suspended: another one has run its trial in the meantime."""
    study = create(tmp_path)

    def slow(claim):
        if claim.index == 0:
            study.lose(claim)
            run_trials(tmp_path, 1)
        return Outcome("complete", [claim.trial.suggest_float("x", 0, 1) if claim.index else -1.0])

    run_trials(tmp_path, 2, run=slow)
    assert values(study) == {i: expected[i] for i in range(2)}


def test_a_report_of_a_trial_that_was_taken_for_lost_ends_it(tmp_path, expected):
    study, reports = create(tmp_path), []

    def slow(claim):
        x = claim.trial.suggest_float("x", 0, 1)
        if claim.index == 0 and not reports:
            study.lose(claim)
            reports.append(x)
            claim.trial.report(x, 1)
            reports.append("not reached")
        return Outcome("complete", [x])

    run_trials(tmp_path, 2, run=slow)
    assert reports == [expected[0]]
    assert values(study) == {i: expected[i] for i in range(2)}


def test_of_two_workers_that_take_one_index_the_first_has_it(tmp_path, monkeypatch):
    study = create(tmp_path)
    with Worker(tmp_path, study.storage) as first, Worker(tmp_path, study.storage) as second:
        trials, calls = Study.trials, 0

        def outdated(study):
            """The second worker looks before the first one has taken its index."""
            nonlocal calls
            calls += 1
            return {} if calls == 1 else trials(study)

        claim = claimer(study, first, 5)()
        monkeypatch.setattr(Study, "trials", outdated)
        other = claimer(study, second, 5)()
    assert (claim.index, other.index) == (0, 1)
    assert [trial.state.name for trial in study._attempts()] == ["RUNNING", "FAIL", "RUNNING"]


def test_dead_workers_of_this_machine_are_found_by_their_locks(tmp_path):
    study = create(tmp_path)
    with Worker(tmp_path, study.storage) as alive:
        dead = Worker(tmp_path, study.storage)
        with dead:
            assert not alive.is_dead(dead.id)
        assert alive.is_dead(dead.id)
        (tmp_path / "workers" / dead.name).write_bytes(b"")  # as a killed process leaves it
        assert alive.is_dead(dead.id)
        assert not dead.is_dead(alive.id)


def test_dead_workers_of_other_machines_are_found_by_their_heartbeats(tmp_path, monkeypatch):
    study = create(tmp_path)
    with Worker(tmp_path, study.storage) as alive, Worker(tmp_path, study.storage) as other:
        foreign = {**other.id, "machine": "another"}
        assert not alive.is_dead(foreign)
        path = tmp_path / "workers" / other.name
        now = path.stat().st_mtime
        os.utime(path, (now, now - liveness.GRACE_SECONDS - 9))
        assert alive.is_dead(foreign)
        other.beat()
        assert not alive.is_dead(foreign)
        monkeypatch.setattr("sightline.files.fcntl", None)  # a file system without locks
        assert not alive.is_dead(other.id)


def test_a_trial_that_killed_two_workers_has_failed(tmp_path):
    study = create(tmp_path)
    with Worker(tmp_path, study.storage) as other, living_pool(tmp_path) as pool:
        for attempt in range(2):
            assert claimer(study, Worker(tmp_path, study.storage, pool), 1)().index == 0
            study.lose_dead(other)
            assert len(study.trials()) == attempt
        [trial] = study.trials().values()
        assert state_of(trial) == "failed"
        assert trial.user_attrs["result"]["message"] == "its worker was killed twice"
        assert claimer(study, other, 1)() is None


def test_a_trial_of_a_killed_search_has_not_killed_its_worker(tmp_path):
    study = create(tmp_path)
    with Worker(tmp_path, study.storage) as other:
        for _ in range(5):
            with living_pool(tmp_path) as pool:
                assert claimer(study, Worker(tmp_path, study.storage, pool), 1)().index == 0
            study.lose_dead(other)
            assert study.trials() == {}


def test_a_retried_trial_keeps_its_settings(tmp_path):
    study, seen = create(tmp_path), []
    for _ in range(2):
        worker = Worker(tmp_path, study.storage)
        claim = claimer(study, worker, 1, "tpe")()
        seen.append(claim.trial.suggest_float("x", 0, 1))
        study.lose(claim)
    assert seen[0] == seen[1]


def test_failures_that_follow_from_the_settings_are_known_to_the_sampler(tmp_path):
    study = create(tmp_path)
    outcomes = [
        Outcome("failed", result={"failure": "diverged"}, informs_sampler=True),
        Outcome("failed", result={"failure": "error"}),
        Outcome("pruned"),
        Outcome("complete", [1.0]),
    ]
    run_trials(tmp_path, 4, run=lambda claim: outcomes[claim.index])
    assert [trial.state.name for trial in study.trials().values()] == ["PRUNED", "FAIL", "PRUNED", "COMPLETE"]
    assert [state_of(trial) for trial in study.trials().values()] == ["failed", "failed", "pruned", "complete"]


def test_another_definition_is_refused(tmp_path):
    study = create(tmp_path)
    for depth in (2, 3, 3):  # without a trial, the last one holds
        study.define({"seed": 0, "config": {"depth": depth}})
    run_trials(tmp_path, 1)
    with pytest.raises(SightlineError, match=r"config\.depth must be 3 as in the search in .*, got 4; start another"):
        study.define({"seed": 0, "config": {"depth": 4}})


def test_a_search_that_is_not_in_the_storage_is_an_error(tmp_path):
    with pytest.raises(SightlineError, match="storage must hold the search 'search', got"):
        Study("", "search", tmp_path)


@pytest.mark.parametrize("name", ["random", "tpe"])
def test_a_sampler_depends_on_the_seed_and_the_index(name):
    def sample(seed, index):
        study = optuna.create_study(sampler=make_sampler(name, seed, index))
        return study.ask().suggest_float("x", 0, 1)

    assert sample(1, 2) == sample(1, 2)
    assert len({sample(1, 2), sample(1, 3), sample(2, 2)}) == 3


def test_a_database_has_heartbeats(tmp_path, expected):
    """A trial of another machine is run again after its last heartbeat is old."""
    url = f"sqlite:///{tmp_path}/trials.db"
    with create(tmp_path, url) as study, Worker(tmp_path, study.storage) as other:
        run_trials(tmp_path, 2, url)
        assert values(study) == {i: expected[i] for i in range(2)}
        worker = Worker(tmp_path, study.storage)
        worker.machine = "another"
        assert claimer(study, worker, 3)().index == 2
        assert claimer(study, other, 3)() is None
        with sqlite3.connect(tmp_path / "trials.db") as database:
            database.execute("UPDATE trial_heartbeats SET heartbeat = datetime('now', '-1 hour')")
        assert claimer(study, other, 3)().index == 2


def test_a_database_that_does_not_answer_is_an_error_without_its_password(tmp_path):
    assert shown_url("postgresql://me:secret@host/db") == "postgresql://me:***@host/db"
    with pytest.raises(SightlineError, match=r"storage must be a database that answers, got sqlite:////no/such"):
        Study("sqlite:////no/such/folder/trials.db", "search", tmp_path, ["maximize"])
    with pytest.raises(SightlineError, match=r"the driver of storage must be installed, got: .*"):
        Study("mysql+pymysql://me:secret@host/db", "search", tmp_path, ["maximize"])
