"""The races of a project, and one race as it can be used: started, carried on, stopped, removed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from atoll.engine.check.checks import Checker, CheckStopped
from atoll.engine.race import planning, report, unattended
from atoll.engine.race.candidate_specs import parse_prompts
from atoll.engine.race.coordinator import Coordinator
from atoll.engine.race.evidence import cross_tests
from atoll.engine.race.field import CapsuleActs, Field
from atoll.engine.race.report import RaceStatus
from atoll.engine.race.results import RaceResults
from atoll.engine.secret import vault_keys
from atoll.engine.state.session import Session
from atoll.host import git, locks
from atoll.host.process import wait_until
from atoll.host.programs import python_command
from atoll.model.errors import AtollError, StateError
from atoll.model.names import printable
from atoll.model.race import Race, RaceRequest, RaceState, race_ref
from atoll.model.state import ProjectRecord, RecoveryPoint

OnProgress = Callable[[RaceStatus], None]

_COORDINATOR = "atoll.engine.race_coordinator"
_STARTED_S = 30.0
_WATCH_S = 0.5


class RemovedCandidate(NamedTuple):
    """What became of a candidate's capsule."""

    name: str
    point: RecoveryPoint | None


class Races:
    """The races of one project."""

    def __init__(self, session: Session, project: ProjectRecord, acts: CapsuleActs) -> None:
        self._session = session
        self._project = project
        self._acts = acts

    def start(self, request: RaceRequest) -> RaceHandle:
        """Checks a request and stores the race; `carry_on` runs it. Makes no capsule yet.

        Raises what `new`, `spawn` and `check` raise.
        """
        planned = planning.plan_race(self._session, self._project, request)
        race = self._session.store.add_race(
            self._project.id, planned.name, planned.base_commit, planned.spec, planned.names
        )
        self._session.reach("race.stored", race.name)
        return self._handle(race)

    @staticmethod
    def parse_prompts(text: bytes, source: str) -> tuple[str, ...]:
        """The prompts in a file: one per line, or the blocks between lines that are `---`."""
        return parse_prompts(text, source)

    def all(self) -> list[RaceHandle]:
        """The oldest first."""
        return [self._handle(race) for race in self._session.store.races(self._project.id)]

    def require(self, name: str) -> RaceHandle:
        found = self._session.store.find_race(self._project.id, name)
        if found is None:
            raise StateError(f"there is no race `{printable(name[:60])}`", hint="atoll race ls")
        return self._handle(found)

    def find(self, race_id: int) -> RaceHandle | None:
        found = self._session.store.race(race_id)
        return None if found is None else self._handle(found)

    def _handle(self, race: Race) -> RaceHandle:
        return RaceHandle(Field(self._session, self._project, race, self._acts))


class RaceHandle:
    """A handle on one race."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._session = field.session

    def __repr__(self) -> str:
        return f"<RaceHandle {self.name}>"

    @property
    def name(self) -> str:
        return self._field.race.name

    @property
    def race(self) -> Race:
        """As it was last read."""
        return self._field.race

    def status(self) -> RaceStatus:
        """Observes it now. Raises StateError when it was removed."""
        self._read()
        return report.look(self._field)

    def _read(self) -> Race:
        race = self._session.store.race(self._field.race.id)
        if race is None:
            raise StateError(f"the race `{self.name}` was removed", hint="atoll race ls")
        self._field = self._field._replace(race=race)
        return race

    @property
    def results(self) -> RaceResults:
        """What came of it: the comparison, the winner, and grafts."""
        self._read()
        return RaceResults(self._field)

    @property
    def is_carried_on(self) -> bool:
        """Whether a process carries it on now."""
        return locks.is_locked(self._lock().path)

    def _lock(self) -> locks.Lock:
        return self._session.race_lock(self._field.race.id)

    def carry_on(self, on_progress: OnProgress | None = None) -> RaceStatus:
        """Runs it to its end, or goes on where another process has left it. While another process
        carries it on, this watches, and takes over if that one ends first.

        When this is interrupted, what runs in candidates goes on running, and the race can be
        carried on later.
        """
        while self._read().state is RaceState.RUNNING:
            lock = self._lock()
            if lock.acquire():
                with lock:
                    self._carry_on(on_progress)
            else:
                self._watch(on_progress)
        with self._waiting():
            unattended.conclude(self._field)
        return self.status()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Under the lock, once it is free."""
        lock = self._lock()
        lock.acquire(wait=True)
        with lock:
            self._read()
            yield

    def _carry_on(self, on_progress: OnProgress | None) -> None:
        if self._read().state is not RaceState.RUNNING:
            return
        checker = Checker(self._session, self._field.project)

        def show() -> None:
            if on_progress is not None:
                on_progress(self.status())

        coordinator = Coordinator(self._field, checker, on_progress=show)
        coordinator.carry_on()
        try:
            self._run_cross_tests(checker, show)
        except BaseException:
            checker.stop()
            raise
        coordinator.finish()

    def _run_cross_tests(self, checker: Checker, show: Callable[[], None]) -> None:
        """Once all have ended; what is stored of an interrupted call is only read."""
        field, race = self._field, self._read()
        if race.is_stopping or not race.spec.checks:
            return
        candidates = self._session.store.candidates(race.id)
        try:
            cross_tests.run_cross_tests(
                self._session, field.project, race, candidates, checker, lambda *_: show()
            )
        except CheckStopped:
            raise
        except AtollError as error:
            self._session.warn(f"the cross-tests of `{race.name}` were not run: {error.message}")

    def _watch(self, on_progress: OnProgress | None) -> None:
        """Until the race is finished, or nothing carries it on any more."""

        def is_over() -> bool:
            status = self.status()
            if on_progress is not None:
                on_progress(status)
            return status.race.state is not RaceState.RUNNING or not status.is_carried_on

        wait_until(is_over, timeout_s=None, interval_s=_WATCH_S)

    def carry_on_in_background(self) -> None:
        """Has a process of its own carry it on, unless one does already."""
        if self._read().state is not RaceState.RUNNING:
            return
        lock = self._lock()
        if locks.is_locked(lock.path):
            return
        race = self._field.race
        argv = python_command(_COORDINATOR, str(self._session.home), str(race.id))
        # As the command itself: it starts agents, which are found and logged in by the owner's
        # own variables.
        env = dict(self._session.owner)
        key = vault_keys.hand_over(self._session)
        try:
            keep = () if key is None else (key,)
            self._session.forkserver.watch(str(lock.path.with_name("none")), argv, env, keep=keep)
        finally:
            if key is not None:
                os.close(key)
        wait_until(self._has_begun, timeout_s=_STARTED_S)

    def _has_begun(self) -> bool:
        return self.is_carried_on or self._read().state is not RaceState.RUNNING

    def stop(self, on_progress: OnProgress | None = None) -> RaceStatus:
        """Ends it: runs are stopped, their work is recorded, and nothing more is started or
        checked.
        """
        if self._read().state is RaceState.FINISHED:
            raise StateError(
                f"the race `{self.name}` is finished", hint=f"atoll race show {self.name}"
            )
        self._session.store.set_stopping(self._field.race)
        return self.carry_on(on_progress)

    def remove(self, *, force: bool = False) -> list[RemovedCandidate]:
        """Removes the capsules of its candidates as `rm` does, then its record.

        Without `force` it refuses while the race goes on, and when work would exist nowhere else.
        """
        self._read()
        if not force and self.is_carried_on:
            raise StateError(
                f"the race `{self.name}` is going on",
                hint=f"atoll race stop {self.name}, or atoll race rm {self.name} --force",
            )
        if force and self._field.race.state is RaceState.RUNNING:
            self.stop()
        with self._alone():
            return self._remove(force=force)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        lock = self._lock()
        if not wait_until(lock.acquire, timeout_s=2.0):
            raise StateError(
                f"another command carries `{self.name}` on", hint=f"atoll race stop {self.name}"
            )
        with lock:
            self._read()
            yield

    def _remove(self, *, force: bool) -> list[RemovedCandidate]:
        store, race = self._session.store, self._field.race
        candidates = store.candidates(race.id)
        capsules = [self._field.find_capsule(one) for one in candidates]
        there = [capsule for capsule in capsules if capsule is not None]
        try:
            points = self._field.acts.remove(there, force=force)
        except StateError as error:
            if force:
                raise
            raise StateError(
                error.message,
                hint=f"atoll race rm {self.name} --force (stores such work of all candidates; "
                "atoll recover brings it back)",
            ) from error
        repository = self._field.project.git_dir
        for ref, _ in git.refs_below(race_ref(race.id, ""), cwd=repository):
            git.delete_ref(ref, cwd=repository)
        store.forget_race(race)
        return [
            RemovedCandidate(capsule.name, point)
            for capsule, point in zip(there, points, strict=True)
        ]
