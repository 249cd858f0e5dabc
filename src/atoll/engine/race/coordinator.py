"""Carries a race on: starts what is queued, records and checks what has ended, and finishes it.

It is a loop of steps over what is stored; each can be repeated, so that any process can carry on
where one was killed. The lock of the race is held meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from atoll.engine.agent import observation
from atoll.engine.check.checks import Checker, CheckStopped, CheckTarget
from atoll.engine.project import settings
from atoll.engine.race import capacity, ends, starts
from atoll.engine.race.candidate_specs import MOST
from atoll.engine.race.capacity import CandidateNeed
from atoll.engine.race.field import Field
from atoll.engine.secret.vault_keys import VaultLockedError
from atoll.host import git, locks
from atoll.model.agent import AgentState
from atoll.model.errors import AtollError, Interrupted, StateError
from atoll.model.race import Candidate, CandidateState, RaceState, race_ref
from atoll.model.state import CapsuleRecord

_LOOK_S = 0.1
_AGENT_LOOK_S = 1.0
_SHOWN_S = 1.0
_LEAVE_S = 20.0
"""How long an interrupted coordinator waits for the steps that are under way."""
_OVERRUN_S = 60.0
"""Beyond its own timeout, after which a candidate is ended from here."""
_CONCLUDED_S = 180.0
"""How long the end of a run that was asked to end may take to be recorded."""
_BASE = 0
"""Instead of the position of a candidate: the checks of the base."""

OnProgress = Callable[[], None]


class Coordinator:
    """Carries on one race. The caller holds its lock."""

    def __init__(
        self, field: Field, checker: Checker, *, on_progress: OnProgress | None = None
    ) -> None:
        self._field = field
        self._session = field.session
        self._checker = checker
        self._on_progress = on_progress
        self._tasks: dict[int, Future[None]] = {}
        self._pool = ThreadPoolExecutor(max_workers=MOST + 1, thread_name_prefix="race")
        self._news = threading.Event()
        self._is_leaving = False
        self._looked_at: dict[int, float] = {}
        self._ended_at: dict[int, float] = {}
        self._shown_at = 0.0

    def carry_on(self) -> None:
        """Returns when every candidate has ended and is checked."""
        self._pin()
        try:
            if self._field.race.spec.checks:
                self._begin(_BASE, self._check_base)
            while not self._look():
                self._show()
                self._await_news()
        except BaseException:
            self._leave()
            raise
        self._pool.shutdown()
        self._show(is_certain=True)

    def finish(self) -> None:
        """Marks the race as finished, once the evidence is complete."""
        field = self._field
        self._session.store.set_race_state(field.race, RaceState.FINISHED)
        self._session.reach("race.finished", field.race.name)

    def _pin(self) -> None:
        race = self._field.race
        git.set_ref(race_ref(race.id, "base"), race.base_commit, cwd=self._field.project.git_dir)

    def _await_news(self) -> None:
        self._news.wait(_LOOK_S)
        self._news.clear()

    def _show(self, *, is_certain: bool = False) -> None:
        now = time.monotonic()
        if self._on_progress is not None and (is_certain or now - self._shown_at >= _SHOWN_S):
            self._shown_at = now
            self._on_progress()

    def _look(self) -> bool:
        """Takes every step that can be taken now; returns whether nothing is left."""
        self._reap()
        race = self._session.store.race(self._field.race.id)
        if race is None:
            raise StateError(f"the race `{self._field.race.name}` was removed")
        self._field = self._field._replace(race=race)
        if race.is_stopping:
            self._checker.stop()
        candidates = self._session.store.candidates(race.id)
        for candidate in candidates:
            if candidate.position not in self._tasks and not candidate.spec.graft:
                self._step(candidate)
            elif candidate.position not in self._tasks:
                self._step_of_graft(candidate)
        self._start_queued([one for one in candidates if not one.spec.graft])
        return not self._tasks and all(
            one.has_ended for one in self._session.store.candidates(race.id)
        )

    def _step(self, candidate: Candidate) -> None:
        """For a candidate that is not queued, and at which no task works."""
        match candidate.state:
            case CandidateState.STARTING:
                self._begin(candidate.position, lambda: self._start(candidate))
            case CandidateState.RUNNING:
                self._watch(candidate)
            case CandidateState.CHECKING:
                self._begin(candidate.position, lambda: self._check(candidate))
            case CandidateState.QUEUED if self._field.race.is_stopping:
                ends.fail(self._field, candidate, "the race was stopped before it began")
            case _:
                pass

    def _step_of_graft(self, candidate: Candidate) -> None:
        """Nothing runs in it: it is checked once it has a tree."""
        if candidate.state is CandidateState.CHECKING:
            self._begin(candidate.position, lambda: self._check(candidate))

    def _start_queued(self, candidates: list[Candidate]) -> None:
        queued = [one for one in candidates if one.state is CandidateState.QUEUED]
        if not queued or self._field.race.is_stopping:
            return
        machine = capacity.find_machine()
        need = self._need(queued[0])
        most = self._field.race.spec.most
        if most is None:
            most = capacity.find_most(machine, need, others=self._count_others())
        at_work = capacity.count_at_work(candidates)
        at_work += sum(one.position in self._tasks for one in queued)
        for candidate in queued:
            if candidate.position in self._tasks:
                continue
            if not capacity.may_start(machine, at_work, most):
                return
            at_work += 1
            self._begin(candidate.position, lambda one=candidate: self._start(one))  # type: ignore[misc]

    def _need(self, candidate: Candidate) -> CandidateNeed:
        spec = self._field.race.spec
        given = settings.parse_limits(spec.limits)
        config = settings.load_config(
            Path(self._field.project.root), self._session.owner, given=given
        )
        values = config.settings.values
        declared = {
            name: values[f"capsule.limits.{name}"].value
            for name in ("cpus", "memory")
            if f"capsule.limits.{name}" in values
            and values[f"capsule.limits.{name}"].source != "default"
        }
        return CandidateNeed(
            bool(candidate.spec.agent), declared.get("cpus"), declared.get("memory")
        )

    def _count_others(self) -> int:
        """The candidates at work of other races that are carried on."""
        store, mine = self._session.store, self._field.race.id
        return sum(
            capacity.count_at_work(store.candidates(race.id))
            for race in store.races()
            if race.id != mine
            and race.state is RaceState.RUNNING
            and locks.is_locked(self._session.race_lock(race.id).path)
        )

    def _begin(self, key: int, act: Callable[[], None]) -> None:
        """Starts a step that takes time. At most one works at a candidate."""
        self._tasks[key] = task = self._pool.submit(act)
        task.add_done_callback(lambda _: self._news.set())

    def _reap(self) -> None:
        """Forgets the steps that have ended, and raises what one of them raised."""
        ended = [key for key, task in self._tasks.items() if task.done()]
        for key in ended:
            self._tasks.pop(key).result()

    def _leave(self) -> None:
        """Lets the steps that are under way come to an end, and ends the checks."""
        self._is_leaving = True
        self._checker.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)
        wait(self._tasks.values(), timeout=_LEAVE_S)

    def _start(self, candidate: Candidate) -> None:
        field = self._field
        try:
            starts.begin(field, candidate)
        except Interrupted:
            raise
        except VaultLockedError as error:
            ends.fail(field, self._current(candidate), f"{error.message}: {error.hint}")
        except (AtollError, OSError) as error:
            self._fail_start(candidate, error)

    def _fail_start(self, candidate: Candidate, error: AtollError | OSError) -> None:
        field = self._field
        current = self._current(candidate)
        capsule = field.find_capsule(current)
        if capsule is not None:
            # Its run may have begun.
            field.acts.stop(capsule)
        message = error.message if isinstance(error, AtollError) else str(error)
        ends.fail(field, current, f"it could not be started: {message}")

    def _current(self, candidate: Candidate) -> Candidate:
        found = self._session.store.candidates(candidate.race_id)
        return next((one for one in found if one.position == candidate.position), candidate)

    def _watch(self, candidate: Candidate) -> None:
        """Looks whether a run has ended, or has to be ended."""
        field = self._field
        capsule = field.find_capsule(candidate)
        if capsule is None:
            ends.fail(field, candidate, f"its capsule `{candidate.name}` was removed")
            return
        if candidate.spec.agent and not self._is_due(candidate):
            return
        ended = ends.find_end(field, candidate, capsule)
        if ended is not None:
            self._begin(candidate.position, lambda: self._conclude(candidate, capsule, ended))
            return
        told_at = self._ended_at.get(candidate.position)
        if told_at is not None:
            if time.monotonic() - told_at > _CONCLUDED_S:
                ends.fail(field, candidate, f"{candidate.reason}; its end could not be recorded")
            return
        why = self._find_reason_to_end(candidate, capsule)
        if why:
            self._ended_at[candidate.position] = time.monotonic()
            self._begin(candidate.position, lambda: self._end(candidate, capsule, why))

    def _is_due(self, candidate: Candidate) -> bool:
        """An agent is not looked at more often than its state can be of interest."""
        now = time.monotonic()
        if now - self._looked_at.get(candidate.position, 0.0) < _AGENT_LOOK_S:
            return False
        self._looked_at[candidate.position] = now
        return True

    def _find_reason_to_end(self, candidate: Candidate, capsule: CapsuleRecord) -> str:
        """Why a run has to be ended; empty if it may go on."""
        race = self._field.race
        if race.is_stopping:
            return "the race was stopped"
        limit_s = race.spec.timeout_s or starts.LONGEST_S
        grace_s = 0.0 if candidate.spec.agent else _OVERRUN_S
        if time.time() - (candidate.started_at or 0.0) > limit_s + grace_s:
            return "it was ended by its time limit"
        if not candidate.spec.agent:
            return ""
        agent = self._session.store.find_agent(capsule.id)
        if agent is None:
            return ""
        state = observation.find_state(self._session, capsule, agent)
        reason = ""
        if state not in (AgentState.WORKING, AgentState.STARTING):
            current = self._session.store.find_agent(capsule.id)
            reason = ends.describe_state(state, "" if current is None else current.reason)
        if reason != candidate.reason:
            self._field.save(candidate._replace(reason=reason), durable=False)
        # Nobody raises a budget while a race goes on; what it has done counts.
        return reason if state is AgentState.OVER_BUDGET else ""

    def _end(self, candidate: Candidate, capsule: CapsuleRecord, why: str) -> None:
        field = self._field
        field.save(candidate._replace(reason=why))
        field.acts.stop(capsule)
        if candidate.spec.agent:
            ends.give_up_waiting(field, capsule, why)

    def _conclude(self, candidate: Candidate, capsule: CapsuleRecord, ended: ends.Ended) -> None:
        field = self._field
        if ended.is_lost and not field.race.is_stopping:
            again = starts.try_again(field, candidate, ended.reason)
            if again is None:
                ends.fail(field, candidate, f"{ended.reason} twice")
            return
        if candidate.position in self._ended_at and candidate.reason:
            ended = ended._replace(reason=candidate.reason)
        elif candidate.attempts > 1:
            before = "its first run disappeared" if candidate.spec.agent else candidate.reason
            reason = "; ".join(filter(None, (ended.reason, before)))
            ended = ended._replace(reason=reason)
        try:
            ends.record(field, candidate, capsule, ended)
        except OSError as error:
            ends.fail(field, candidate, f"its work could not be recorded: {error}")

    def _check_base(self) -> None:
        race = self._field.race
        base = race.base_commit
        tree = ends.tree_of(base, repository=self._field.project.git_dir)
        self._run_checks(CheckTarget(base, tree, base, race.spec.level, race.spec.network))

    def _check(self, candidate: Candidate) -> None:
        race = self._field.race
        reason = candidate.reason
        if race.spec.checks and not race.is_stopping:
            target = CheckTarget(
                candidate.commit, candidate.tree, race.base_commit, race.spec.level,
                race.spec.network,
            )  # fmt: skip
            trouble = self._run_checks(target)
            if trouble is None:
                # It is checked when the race is carried on.
                return
            reason = "; ".join(filter(None, (reason, trouble)))
        done = candidate._replace(state=CandidateState.DONE, reason=reason)
        self._field.save(done)
        self._field.reach("checked", done)

    def _run_checks(self, target: CheckTarget) -> str | None:
        """Why the checks could not be run; empty when they were, None when they were stopped."""
        try:
            self._checker.check(target, self._field.race.spec.checks)
        except CheckStopped:
            return None if self._is_leaving else "its checks were stopped"
        except Interrupted:
            raise
        except (AtollError, OSError) as error:
            message = error.message if isinstance(error, AtollError) else str(error)
            return f"it could not be checked: {message}"
        return ""
