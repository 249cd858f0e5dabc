"""The start of a candidate: its capsule, then its run. Each can be repeated from any step.

What is done is stored before: a candidate that is `starting` perhaps has its capsule, and perhaps
its run. The capsule says for which attempt it was made.
"""

from __future__ import annotations

import time

from atoll.engine.agent import turns
from atoll.engine.capsule import creation
from atoll.engine.history import conversation
from atoll.engine.race import planning
from atoll.engine.race.field import Field
from atoll.engine.run import runs
from atoll.engine.run.runs import RunSpec
from atoll.engine.state.session import Session
from atoll.host import locks
from atoll.host.process import wait_until
from atoll.model.errors import AtollError
from atoll.model.race import Candidate, CandidateState
from atoll.model.state import CapsuleRecord, Run, RunState

LONGEST_S = 4 * 3600.0
"""How long a candidate may take for which no timeout was given: no race goes on for ever."""
MOST_ATTEMPTS = 2
_GO_ON = "Continue."
_BUSY_S = 30.0


def begin(field: Field, candidate: Candidate) -> Candidate:
    """Brings a queued candidate, or one whose start was interrupted, to its run.

    Raises what `new`, `run` and `spawn` raise.
    """
    if candidate.state is CandidateState.QUEUED:
        candidate = field.save(
            candidate._replace(
                state=CandidateState.STARTING, attempts=1, started_at=time.time(), reason=""
            )
        )
    field.reach("starting", candidate)
    run = _find_run_of_attempt(field, candidate)
    if run is None:
        capsule, candidate = _fresh_capsule(field, candidate)
        field.reach("made", candidate)
        run = _start(field, candidate, capsule)
        field.reach("launched", candidate)
    return _running(field, candidate, run)


def _running(field: Field, candidate: Candidate, run: Run) -> Candidate:
    running = candidate._replace(state=CandidateState.RUNNING, run=run.number)
    field.save(running)
    field.reach("running", running)
    return running


def try_again(field: Field, candidate: Candidate, why: str) -> Candidate | None:
    """A candidate whose run disappeared, to be started once more; None if it was already."""
    if candidate.attempts >= MOST_ATTEMPTS:
        return None
    return field.save(
        candidate._replace(
            state=CandidateState.STARTING,
            attempts=candidate.attempts + 1,
            reason=f"{why}; started once more",
        )
    )


def find_run(field: Field, candidate: Candidate, capsule: CapsuleRecord) -> Run | None:
    """The run of a candidate; of an agent, that of its last turn."""
    if candidate.spec.agent:
        recorded = conversation.turns(field.session, capsule)
        run = turns.find_run(field.session, capsule, recorded[-1]) if recorded else None
        if run is not None:
            return run
    return next((r for r in field.session.store.runs(capsule) if r.number == candidate.run), None)


def _find_run_of_attempt(field: Field, candidate: Candidate) -> Run | None:
    """The run that a killed process has started for this attempt, if it did begin."""
    capsule = field.find_capsule(candidate)
    if capsule is None:
        return None
    is_same = field.attempt_of(candidate, capsule) == candidate.attempts
    if candidate.spec.agent:
        recorded = conversation.turns(field.session, capsule)
        run = turns.find_run(field.session, capsule, recorded[-1]) if recorded else None
        # An agent that disappeared continues in the capsule of its first attempt.
        if run is None or (not is_same and run.number == candidate.run):
            return None
        return run if _has_begun(field.session, run) else None
    if not is_same:
        return None
    argv = command_of(candidate)
    found = [
        run
        for run in field.session.store.runs(capsule)
        if run.background and not run.internal and run.argv == argv
    ]
    return found[0] if found and _has_begun(field.session, found[0]) else None


def _has_begun(session: Session, run: Run) -> bool:
    return runs.is_alive(session, run) or runs.has_begun(run)


def _fresh_capsule(field: Field, candidate: Candidate) -> tuple[CapsuleRecord, Candidate]:
    """A new capsule for this attempt. What an earlier one has left becomes a recovery point; an
    agent that can continue its conversation keeps its capsule.
    """
    former = field.find_capsule(candidate)
    if former is not None and candidate.spec.agent and _can_continue(field, candidate, former):
        return former, candidate
    if former is not None:
        field.acts.stop(former)
        [point] = field.acts.remove([former], force=True)
        if point is not None:
            note = f"what it left is in the recovery point {point.id}"
            candidate = candidate._replace(reason="; ".join(filter(None, (candidate.reason, note))))
            field.save(candidate)
    plan = planning.plan_candidate(
        field.session, field.project, field.race, candidate.name, candidate.spec
    )
    isolation = plan.isolation
    plan = plan._replace(
        isolation=isolation._replace(
            variables={**isolation.variables, **field.variables(candidate)}
        )
    )
    _await_free(field, candidate.name)
    [made] = creation.make_capsules(field.session, field.project, [plan])
    return made, candidate


def _await_free(field: Field, name: str) -> None:
    """A capsule that another command is removing is gone soon."""
    lock = field.session.capsule_lock(field.project.id, name)
    wait_until(lambda: not locks.is_locked(lock.path), timeout_s=_BUSY_S)


def _can_continue(field: Field, candidate: Candidate, capsule: CapsuleRecord) -> bool:
    is_again = field.attempt_of(candidate, capsule) < candidate.attempts
    return is_again and turns.has_conversation(field.session, capsule)


def _start(field: Field, candidate: Candidate, capsule: CapsuleRecord) -> Run:
    if candidate.spec.agent:
        return _start_agent(field, candidate, capsule)
    spec = RunSpec(
        argv=command_of(candidate),
        background=True,
        stdin=False,
        timeout_s=field.race.spec.timeout_s or LONGEST_S,
    )
    # Whoever carries the race on records the end, and exports once everything is committed.
    return field.acts.starter(capsule)(spec, finish=_leave)


def _leave(session: Session, run: Run) -> None:
    del session, run


def command_of(candidate: Candidate) -> tuple[str, ...]:
    return candidate.spec.argv


def _start_agent(field: Field, candidate: Candidate, capsule: CapsuleRecord) -> Run:
    agent = field.agent(capsule)
    if field.attempt_of(candidate, capsule) < candidate.attempts:
        try:
            sent = agent.tell(_GO_ON)
        except AtollError as error:
            field.session.warn(f"`{candidate.name}` cannot continue: {error.message}")
        else:
            if sent.run is not None:
                return sent.run
        return _start_afresh(field, candidate, capsule)
    spawned = planning.spawn_plan(
        field.session, field.project, field.race.spec, candidate.spec, candidate.name
    )
    return agent.begin(spawned.chosen, spawned.task)


def _start_afresh(field: Field, candidate: Candidate, former: CapsuleRecord) -> Run:
    field.acts.stop(former)
    field.acts.remove([former], force=True)
    capsule, candidate = _fresh_capsule(field, candidate)
    return _start_agent(field, candidate, capsule)


def is_over(session: Session, run: Run) -> bool:
    return run.state is RunState.ENDED or not runs.is_alive(session, run)
