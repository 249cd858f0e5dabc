"""The end of a candidate's run: what it left is committed, exported, kept by a ref and counted."""

from __future__ import annotations

import time
from typing import NamedTuple

from atoll.drivers.contracts import Author
from atoll.engine.agent import budgets, turns
from atoll.engine.agent.prompts import subject_of
from atoll.engine.agent.verdicts import TurnVerdict
from atoll.engine.capsule import exports, removal, work
from atoll.engine.change.changes import load_changes
from atoll.engine.history import conversation
from atoll.engine.race import starts
from atoll.engine.race.field import Field
from atoll.engine.run import runs
from atoll.engine.state.leases import workspace_plan
from atoll.host import git
from atoll.model.agent import AgentState
from atoll.model.errors import AtollError
from atoll.model.names import printable
from atoll.model.race import Candidate, CandidateState, race_ref
from atoll.model.state import CapsuleRecord, Outcome, Reason, Run, require_outcome

_ADDRESS = "agent@localhost"
_TRAILER = "Atoll-Race"
_REASON_CHARACTERS = 300
_OUTCOMES = {
    Reason.TIMEOUT: "it was ended by its time limit",
    Reason.STOPPED: "it was stopped",
    Reason.HANGUP: "it was stopped",
    Reason.OUTPUT: "it was ended by its limit on output",
    Reason.IDLE: "it was ended by its limit on idle time",
    Reason.OOM: "it was ended by its limit on memory",
    Reason.PIDS: "it was ended by its limit on processes",
    Reason.DISK: "it was ended by its limit on disk space",
}


class Ended(NamedTuple):
    """How a candidate's run ended."""

    reason: str
    exit_code: int | None
    at: float
    is_lost: bool = False
    """Whether it disappeared, and may be started once more."""
    is_void: bool = False
    """Whether nothing was run."""


def find_end(field: Field, candidate: Candidate, capsule: CapsuleRecord) -> Ended | None:
    """None while it is at work, or is being concluded."""
    run = starts.find_run(field, candidate, capsule)
    if run is None:
        return Ended("its run is not known any more", None, time.time(), is_lost=True)
    if candidate.spec.agent:
        return _find_end_of_agent(field, capsule, run)
    if not starts.is_over(field.session, run):
        return None
    return _end_of(runs.settle(field.session, run))


def _end_of(run: Run) -> Ended:
    outcome = require_outcome(run)
    at = run.ended_at or time.time()
    code = outcome.exit_code
    if outcome.reason is Reason.LOST:
        return Ended("its run disappeared", None, at, is_lost=True)
    is_void = outcome.reason in (Reason.NO_WALLS, Reason.NOT_STARTED)
    return Ended(describe_outcome(outcome), code, at, is_void=is_void)


def describe_outcome(outcome: Outcome) -> str:
    """Empty for a command that succeeded."""
    message = f": {outcome.message}" if outcome.message else ""
    match outcome.reason:
        case Reason.EXITED:
            return "" if outcome.exit_code == 0 else f"it ended with code {outcome.exit_code}"
        case Reason.SIGNALLED:
            return f"it was ended by signal {outcome.signal}"
        case Reason.NO_WALLS:
            return f"its sandbox could not be created{message}"
        case Reason.NOT_STARTED:
            return f"its command could not be started{message}"
        case _:
            return _OUTCOMES.get(outcome.reason, str(outcome.reason))


def _find_end_of_agent(field: Field, capsule: CapsuleRecord, run: Run) -> Ended | None:
    recorded = conversation.turns(field.session, capsule)
    verdict = turns.find_verdict(recorded[-1]) if recorded else None
    if verdict is None or _may_go_on(verdict):
        return None
    if verdict.state is AgentState.LOST or verdict.outcome == Reason.LOST:
        return Ended("its run disappeared", None, verdict.at, is_lost=True)
    ended = runs.settle(field.session, run)
    if verdict.held == turns.HELD_BY_BUDGET:
        excess = budgets.find_excess(field.session, capsule.id, messages=1)
        reason = describe_state(AgentState.OVER_BUDGET, excess or verdict.reason)
        return Ended(reason, verdict.exit_code, ended.ended_at or verdict.at)
    return Ended(verdict.reason, verdict.exit_code, ended.ended_at or verdict.at)


def _may_go_on(verdict: TurnVerdict) -> bool:
    """Whether it continues by itself: a quota held it, which is reset at some time."""
    return verdict.held == turns.HELD_BY_QUOTA


def give_up_waiting(field: Field, capsule: CapsuleRecord, why: str) -> None:
    """Has an agent whose turn was held not go on by itself."""
    lock = turns.lock_of(field.session, capsule)
    if not lock.acquire():
        return
    with lock:
        recorded = conversation.turns(field.session, capsule)
        verdict = turns.find_verdict(recorded[-1]) if recorded else None
        if verdict is not None and verdict.held:
            turns.give_up(field.session, capsule, recorded[-1], verdict, why)


def record(field: Field, candidate: Candidate, capsule: CapsuleRecord, ended: Ended) -> Candidate:
    """Stores what a candidate has left: it is then checked, or has ended if there is no tree."""
    field.reach("ended", candidate)
    counted = with_usage(field, candidate, capsule)._replace(
        exit_code=ended.exit_code, ended_at=ended.at, reason=_short(ended.reason)
    )
    if ended.is_void:
        return fail(field, counted, ended.reason)
    try:
        commit = _keep_work(field, candidate, capsule)
        repository = field.project.git_dir
        git.set_ref(race_ref(candidate.race_id, candidate.position), commit, cwd=repository)
        field.reach("kept", candidate)
        tree = tree_of(commit, repository=repository)
        found = load_changes(repository, field.race.base_commit, commit)
    except AtollError as error:
        why = f"its work could not be recorded: {error.message}"
        return fail(field, counted, f"{ended.reason}; {why}" if ended.reason else why)
    recorded = counted._replace(
        state=CandidateState.CHECKING, commit=commit, tree=tree,
        files=len(found.files), added=found.added, removed=found.removed,
    )  # fmt: skip
    field.save(recorded)
    field.reach("recorded", recorded)
    return recorded


def fail(field: Field, candidate: Candidate, reason: str) -> Candidate:
    """Ends a candidate without a tree."""
    return field.save(
        candidate._replace(
            state=CandidateState.FAILED,
            reason=_short(reason),
            ended_at=candidate.ended_at or time.time(),
        )
    )


def with_usage(field: Field, candidate: Candidate, capsule: CapsuleRecord) -> Candidate:
    """With the tokens that an agent has used until now, and what they cost."""
    if not candidate.spec.agent:
        return candidate
    usage = field.session.store.usage(capsule.id)
    prices = budgets.owner_limits(field.session).prices
    costs = [budgets.cost_usd(used, prices) for used in usage]
    known = [cost for cost in costs if cost is not None]
    return candidate._replace(
        tokens=sum(used.input_tokens + used.output_tokens for used in usage),
        cost_usd=sum(known) if usage and len(known) == len(costs) else None,
    )


def tree_of(commit: str, *, repository: str) -> str:
    return git.git(
        "rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}", cwd=repository
    ).text.strip()


def find_tree(commit: str, *, repository: str) -> str:
    """Empty when the repository does not have the commit any more."""
    try:
        return tree_of(commit, repository=repository)
    except AtollError:
        return ""


def _keep_work(field: Field, candidate: Candidate, capsule: CapsuleRecord) -> str:
    """Commits and exports everything; returns the commit at which the branch of the capsule is."""
    session = field.session
    found = removal.find_work(session, capsule)
    if found.uncommitted or found.untracked:
        what = subject_of(candidate.spec.prompt or " ".join(candidate.spec.argv))
        message = f"{what or candidate.name}\n\n{_TRAILER}: {field.race.name}\n"
        author = Author(candidate.spec.agent or candidate.name, _ADDRESS)
        work.commit(session, capsule, message, verify=False, otherwise=author)
    exports.export_new(session, capsule)
    plan = workspace_plan(session, capsule)
    tip = git.find_ref(f"refs/heads/{capsule.branch}", cwd=plan.repository)
    return tip or field.race.base_commit


def describe_state(state: AgentState, reason: str) -> str:
    """Why an agent does not work just now."""
    return _short(f"{state}: {reason}" if reason else str(state))


def _short(text: str) -> str:
    plain = printable(" ".join(text.split()))
    limit = _REASON_CHARACTERS
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"
