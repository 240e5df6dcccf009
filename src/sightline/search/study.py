"""The trials of a search, in a storage that several processes and machines share.

Each of the N trials of a search has an index from 0 to N - 1. A trial in the storage is one attempt at an index. An
attempt is lost if its worker died; the index is then free again. A worker takes the lowest free index. If two workers
take the same one at the same time, the attempt that was created first counts, so that no lock is needed.
"""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import optuna
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages import BaseStorage, RDBStorage, fail_stale_trials, get_storage
from optuna.trial import FrozenTrial, TrialState, create_trial

from .. import seeds
from ..errors import MissingDependencyError, SightlineError, check, check_choice
from ..output import flatten
from .journal import open_journal
from .liveness import GRACE_SECONDS, HEARTBEAT_SECONDS, Worker

JOURNAL = "journal.log"
INDEX, WORKER, RESULT, DIED = "index", "worker", "result", "died"
"""User attributes of a trial."""
DEFINITION = "definition"
"""User attribute of a study."""
SAMPLERS, PRUNERS = ("tpe", "random", "grid"), ("halving", "none")
REDUCTION_FACTOR = 3
"""One of this many trials is continued at the 1st, 3rd, 9th, ... evaluation."""
Direction = Literal["maximize", "minimize"]
State = Literal["complete", "pruned", "failed", "running"]


@dataclass(frozen=True)
class Outcome:
    """How a trial ended."""

    state: State
    values: Sequence[float] = ()
    """One for each objective of a complete trial."""
    result: dict[str, Any] = field(default_factory=dict)
    """Plain JSON values to store; `failure` says why a trial failed."""
    informs_sampler: bool = False
    """Whether a failure follows from the settings, so that the sampler should avoid them."""


@dataclass(frozen=True)
class Claim:
    """A trial that this worker runs."""

    index: int
    study: optuna.Study
    trial: optuna.Trial


class Study:
    """A study of Optuna with indices, lost trials and a definition. As a context, it closes its storage at the end."""

    def __init__(self, url: str, name: str, folder: Path, directions: Sequence[Direction] | None = None):
        """Create a study with these directions, or continue it; without directions, it must exist.

        `url` is that of a database, the path of a journal, or empty for the journal in the folder.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.name, self.title, self._stack = name, folder.resolve().name, contextlib.ExitStack()
        self._directions = directions
        self.expected: dict[str, Any] | None = None
        """The definition that trials of this process must have; None for any."""
        self.folder = folder
        """Where workers show that they are alive."""
        self.storage: BaseStorage
        if "://" in url:
            database = _open_database(url)
            self.storage = get_storage(database)
            self._stack.callback(database.engine.dispose)
            self._stack.callback(database.remove_session)
        else:
            path = Path(url) if url else folder / JOURNAL
            self.storage, self.folder = open_journal(path), path.parent
        try:
            self._open()
        except BaseException as error:
            self.close()
            if isinstance(error, KeyError):
                where = shown_url(url) or self.folder
                raise SightlineError(f"storage must hold the search {name!r}, got {where}") from error
            raise

    def _open(self) -> None:
        if self._directions is not None:
            options: dict[str, Any] = {"directions": self._directions, "load_if_exists": True}
            optuna.create_study(storage=self.storage, study_name=self.name, **options)
        self.id = self.storage.get_study_id_from_name(self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to a database."""
        self._stack.close()

    def define(self, definition: dict[str, Any]) -> None:
        """Store what the study is about. Another definition replaces that of a study without trials."""
        earlier, directions = self.definition, [d.name.lower() for d in self.storage.get_study_directions(self.id)]
        if not earlier or (directions == list(self._directions or ()) and not self._attempts()):
            self.storage.set_study_user_attr(self.id, DEFINITION, definition)
            if earlier and self._attempts():  # another process was first
                self.storage.set_study_user_attr(self.id, DEFINITION, earlier)
        stored, given = flatten(self.definition), flatten(definition)
        is_failed = all(state_of(trial) == "failed" for trial in self.trials().values())
        hint = "; no trial has succeeded in it, so the folder can be removed" if is_failed else ""
        for key in sorted(stored.keys() | given.keys()):
            old, new = stored.get(key), given.get(key)
            rule = f"{key} must be {old!r:.200} as in the search in {self.folder}, to continue it"
            check(old == new, f"{rule}, got {new!r:.200}; start another search with --out FOLDER{hint}")

    @property
    def definition(self) -> dict[str, Any]:
        """What the study is about; empty before it is defined."""
        found: dict[str, Any] = self.storage.get_study_user_attrs(self.id).get(DEFINITION, {})
        return found

    def trials(self) -> dict[int, FrozenTrial]:
        """The trial of each index that is running or has ended."""
        found: dict[int, FrozenTrial] = {}
        for trial in self._attempts():
            if not _is_lost(trial):
                found.setdefault(trial.user_attrs[INDEX], trial)
        return dict(sorted(found.items()))

    def claim(
        self,
        worker: Worker,
        total: int,
        sampler: Callable[[int], optuna.samplers.BaseSampler],
        pruner: optuna.pruners.BasePruner,
        fixed: Sequence[dict[str, Any]] = (),
    ) -> Claim | None:
        """Create the trial of the lowest free index below `total`; None if there is none.

        `fixed` has the parameters of each index, if they are not sampled.
        """
        while True:
            is_same = self.expected in (None, self.definition)
            check(is_same, f"the search in {self.folder} must not change, got another space or config; start it again")
            self.lose_dead(worker)
            taken = self.trials()
            index = next((i for i in range(total) if i not in taken), None)
            if index is None:
                return None
            earlier = [trial.params for trial in self._attempts() if trial.user_attrs[INDEX] == index and trial.params]
            attributes = {INDEX: index, WORKER: worker.id}
            parameters = {"fixed_params": fixed[index] if fixed else earlier[-1] if earlier else {}}
            template = create_trial(state=TrialState.RUNNING, user_attrs=attributes, system_attrs=parameters)
            trial_id = self.storage.create_new_trial(self.id, template)
            worker.trial_id = trial_id
            worker.beat()
            if self.trials()[index]._trial_id == trial_id:
                options: dict[str, Any] = {"sampler": sampler(index), "pruner": pruner}
                study = optuna.load_study(study_name=self.name, storage=self.storage, **options)
                return Claim(index, study, optuna.Trial(study, trial_id))
            self._end(trial_id, TrialState.FAIL)  # another worker was first

    def finish(self, claim: Claim, outcome: Outcome) -> None:
        """Store the outcome, unless the trial was taken for lost in the meantime."""
        state = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED}.get(outcome.state, TrialState.FAIL)
        if outcome.state == "failed" and outcome.informs_sampler:
            state = TrialState.PRUNED  # samplers ignore failed trials
        with contextlib.suppress(UpdateFinishedTrialError):
            claim.trial.set_user_attr(RESULT, outcome.result)
            claim.study.tell(claim.trial, list(outcome.values) or None, state, skip_if_finished=True)

    def lose(self, claim: Claim) -> None:
        """Free the index of an interrupted trial."""
        self._end(claim.trial._trial_id, TrialState.FAIL)

    def lose_dead(self, worker: Worker) -> None:
        """Free the indices of trials whose workers are dead; a trial that killed two workers has failed."""
        for trial in self._attempts((TrialState.RUNNING,)):
            other = trial.user_attrs[WORKER]
            if other != worker.id and worker.is_dead(other):
                with contextlib.suppress(UpdateFinishedTrialError):
                    if worker.was_killed(other):
                        self._count_death(trial)
                    self.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
        if worker.has_heartbeat:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                fail_stale_trials(optuna.load_study(study_name=self.name, storage=self.storage))

    def _count_death(self, trial: FrozenTrial) -> None:
        index = trial.user_attrs[INDEX]
        has_killed = any(other.user_attrs[INDEX] == index and DIED in other.user_attrs for other in self._attempts())
        if has_killed:
            failure = {"failure": "killed", "message": "its worker was killed twice"}
            self.storage.set_trial_user_attr(trial._trial_id, RESULT, failure)
        self.storage.set_trial_user_attr(trial._trial_id, DIED, True)

    def _attempts(self, states: tuple[TrialState, ...] | None = None) -> list[FrozenTrial]:
        return self.storage.get_all_trials(self.id, deepcopy=False, states=states)

    def _end(self, trial_id: int, state: TrialState) -> None:
        with contextlib.suppress(UpdateFinishedTrialError):
            self.storage.set_trial_state_values(trial_id, state)


def work(
    study: Study,
    worker: Worker,
    claim: Callable[[], Claim | None],
    run: Callable[[Claim], Outcome],
    on_finish: Callable[[], object] = lambda: None,
) -> float:
    """Run trials until none is left; return the seconds in trials."""
    seconds = 0.0
    while (claimed := claim()) is not None:
        started = time.perf_counter()
        try:
            outcome = run(claimed)
        except UpdateFinishedTrialError:  # the trial was taken for lost
            continue
        except BaseException:
            study.lose(claimed)
            raise
        finally:
            seconds += time.perf_counter() - started
            worker.trial_id = None
        study.finish(claimed, outcome)
        on_finish()
    return seconds


def state_of(trial: FrozenTrial) -> State:
    """The state of a trial that is not lost."""
    if "failure" in trial.user_attrs.get(RESULT, {}):
        return "failed"
    states: dict[TrialState, State] = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned"}
    return states.get(trial.state, "running")


def make_sampler(name: str, seed: int, index: int) -> optuna.samplers.BaseSampler:
    """The sampler of one trial. It depends on the seed and the index alone, and TPE on the other trials."""
    check_choice("sampler", name, SAMPLERS)
    trial_seed = seeds.derive_seed(seed, seeds.SEARCH, index) % 2**32
    return optuna.samplers.TPESampler(seed=trial_seed) if name == "tpe" else optuna.samplers.RandomSampler(trial_seed)


def make_pruner(name: str) -> optuna.pruners.BasePruner:
    """The pruner of this name."""
    check_choice("pruner", name, PRUNERS)
    if name == "none":
        return optuna.pruners.NopPruner()
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=REDUCTION_FACTOR)


def _is_lost(trial: FrozenTrial) -> bool:
    return trial.state == TrialState.FAIL and "failure" not in trial.user_attrs.get(RESULT, {})


def _open_database(url: str) -> RDBStorage:
    with _database_errors(url), warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        options: dict[str, Any] = {"heartbeat_interval": HEARTBEAT_SECONDS, "grace_period": GRACE_SECONDS}
        return RDBStorage(_with_driver(url), {"pool_pre_ping": True}, **options)


def _with_driver(url: str) -> str:
    """The URL with the driver of the `postgres` extra where none is named."""
    return url.replace("postgresql://", "postgresql+psycopg://", 1) if url.startswith("postgresql://") else url


def shown_url(url: str) -> str:
    """The URL of a storage without its password."""
    if "://" not in url:
        return url
    from sqlalchemy.engine import make_url

    return make_url(url).render_as_string(hide_password=True)


@contextlib.contextmanager
def _database_errors(url: str) -> Iterator[None]:
    """Raise errors of a database as SightlineError."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except ImportError as error:
        extra = " (pip install 'sightline[postgres]')" if url.startswith("postgresql") else ""
        raise MissingDependencyError(f"the driver of storage must be installed{extra}, got: {error}") from error
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise SightlineError(f"storage must be a database that answers, got {shown_url(url)}: {reason}") from error
