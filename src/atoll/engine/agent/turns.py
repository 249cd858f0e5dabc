"""Turns: a message to an agent and the run that answers it, from its start to its verdict.

A turn is stored before its run starts. When the run has ended, a process of its own concludes the
turn: the work is committed and exported, the checks run, and what was observed is stored. If that
process is killed, the next command that looks at the agent starts it again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from atoll.drivers import registry
from atoll.drivers.contracts import Author, HomeFile
from atoll.engine.agent import budgets, event_log, preparation
from atoll.engine.agent.preparation import DIRECTORY, InsidePlaces
from atoll.engine.agent.prompts import subject_of
from atoll.engine.agent.states import record_state
from atoll.engine.agent.verdicts import TurnCheck, TurnEnd, TurnVerdict, judge, parse_verdict
from atoll.engine.capsule import exports, foreground_runs, removal, work
from atoll.engine.history import conversation
from atoll.engine.run import freezer, runs
from atoll.engine.run.runs import RunSpec
from atoll.engine.secret import scan
from atoll.engine.state.leases import workspace_plan
from atoll.engine.state.session import Session
from atoll.host import locks
from atoll.host.process import wait_until
from atoll.host.programs import own_environment, owner_settings
from atoll.keeper.log import LogEntry, read_log
from atoll.model.adapter import AdapterSpec, command_line, filled
from atoll.model.agent import (
    VAULT_LOCKED,
    AgentRecord,
    AgentState,
    AgentTurn,
    ModelTraffic,
    ModelUsage,
)
from atoll.model.errors import AtollError, StateError
from atoll.model.names import printable
from atoll.model.secret import USE_NOTED_S, DeliveryKind, OriginKind
from atoll.model.state import CapsuleRecord, CapsuleState, Reason, Run, RunState, require_outcome

ARGUMENT_LIMIT_BYTES = 100_000
"""A longer prompt goes into a file: the kernel takes no word of more than 128 KiB."""
_CHECK_S = 3600.0
_PAUSED_LOOK_S = 0.5
_NOT_RUN = 125
_SAID_CHARACTERS = 2000
_MESSAGE_CHARACTERS = 200
_WITH_INPUT = 'f=$1; shift; exec "$@" <"$f"'
_FREE_FORMATS = frozenset({"text", "script"})
"""Streams that need not report their end."""
_ADDRESS = "agent@localhost"
"""Of commits of an agent whose owner has no name and address in git."""
_MOST_REQUESTS, _MOST_TOKENS, _MOST_USD = 10**9, 10**12, 1e9
"""That an agent can report of one turn."""
_MODEL = re.compile(r"[\w.:/@+-]{1,100}", re.ASCII)
_TRAILER = "Atoll-Agent"
HELD_BY_BUDGET, HELD_BY_QUOTA = "budget", "quota"
_WATCHER = "atoll.engine.turn_watcher"


class Start(Protocol):
    """Starts a run of the capsule with its secrets; `finish` provides for its end."""

    def __call__(self, spec: RunSpec, *, finish: Callable[[Session, Run], None] = ...) -> Run: ...


class TurnSpec(NamedTuple):
    """What a turn is asked for."""

    prompt: str
    spec: AdapterSpec
    login_env: Mapping[str, str] = {}
    key: str = ""
    """The placeholder of a login that is a single key."""
    resumes: bool = False
    """Whether it continues a conversation."""
    is_interactive: bool = False
    timeout_s: float | None = None
    rows: int = 24
    cols: int = 80


def lock_of(session: Session, capsule: CapsuleRecord) -> locks.Lock:
    """Held while a turn is started or concluded."""
    return locks.Lock(session.home / "locks" / f"agent-{capsule.id}")


def start_turn(
    session: Session, capsule: CapsuleRecord, agent: AgentRecord, turn: TurnSpec, start: Start
) -> tuple[AgentTurn, Run]:
    """Stores a turn and starts its run; the caller holds the lock."""
    found = preparation.places(session, capsule)
    argv, files = plan_command(agent, turn, found, number=len(session.store.turns(capsule.id)) + 1)
    preparation.write(session, capsule, files)
    stored = conversation.add_turn(session, capsule, turn.prompt, is_screen=turn.is_interactive)
    values = {**found.values, "key": turn.key}
    env = {
        **{name: filled(text, values) for name, text in turn.spec.env.items()},
        **turn.login_env,
        "ATOLL_TURN": str(stored.number),
        **({"ATOLL_PROMPT_FILE": f"{found.home}/{files[0].path}"} if files else {}),
    }
    spec = RunSpec(
        argv=argv, background=True, tty=turn.is_interactive, rows=turn.rows, cols=turn.cols,
        timeout_s=turn.timeout_s, stdin=turn.is_interactive, env=env,
    )  # fmt: skip

    def finish(session: Session, run: Run) -> None:
        session.store.set_turn_run(stored, run.number)
        watch(session, run)

    try:
        run = start(spec, finish=finish)
    except BaseException:
        now = time.time()
        verdict = TurnVerdict(AgentState.FAILED, "it could not be started", now)
        session.store.set_verdict(stored, verdict.encode())
        raise
    record_state(session, capsule, AgentState.STARTING, "")
    return stored._replace(run=run.number), run


def plan_command(
    agent: AgentRecord, turn: TurnSpec, found: InsidePlaces, *, number: int
) -> tuple[tuple[str, ...], list[HomeFile]]:
    """The command line of a turn, and the file with its prompt if it needs one. Pure.

    Raises StateError when the agent cannot be started in this way.
    """
    lines, task = turn.spec.commands, agent.task
    words = _words_of(turn, agent.adapter)
    way = "argument" if turn.is_interactive else lines.prompt_by
    content = turn.prompt.encode()
    path = f"{DIRECTORY}/prompt-{number}.md"
    place = f"{found.home}/{path}"
    is_long = way == "argument" and len(content) > ARGUMENT_LIMIT_BYTES
    prompt = f"Read the whole file {place} and follow it." if is_long else turn.prompt
    needs_file = way != "argument" or is_long
    model = task.model or turn.spec.model
    values = {
        **found.values,
        "prompt": prompt if way == "argument" else "",
        "prompt_file": place,
        "model": model,
        "effort": task.effort,
        "key": turn.key,
    }
    argv = tuple(command_line(lines, words, values))
    if way == "stdin":
        argv = ("/bin/sh", "-c", _WITH_INPUT, "sh", place, *argv)
    return argv, [HomeFile(path, content)] if needs_file else []


def _words_of(turn: TurnSpec, adapter: str) -> Sequence[str]:
    lines = turn.spec.commands
    if turn.is_interactive:
        words = (lines.interactive_resume if turn.resumes else ()) or lines.interactive
        if not words:
            raise StateError(
                f"`{adapter}` has no screen of its own", hint=f'atoll spawn {adapter} "PROMPT"'
            )
        return words
    words = (lines.headless_resume if turn.resumes else ()) or lines.headless
    if not words:
        raise StateError(
            f"`{adapter}` works on its own screen only", hint=f"atoll spawn {adapter} -i"
        )
    return words


def watch(session: Session, run: Run) -> None:
    """Concludes the turn as soon as its run has ended, in a process of its own."""
    # As a command of the owner's: what it starts inside sees the same tools.
    env = {**own_environment(), **owner_settings(session.owner)}
    exports.start_when_over(session, run, _WATCHER, env)


def find_run(session: Session, capsule: CapsuleRecord, turn: AgentTurn) -> Run | None:
    """The run of a turn; None when it never started, belongs to another capsule, or to a course of
    events that a rollback has left.
    """
    if turn.cut_at is not None:
        return None
    return next((r for r in session.store.runs(capsule) if r.number == turn.run), None)


def read_output(capsule: CapsuleRecord, turn: AgentTurn) -> Iterable[LogEntry]:
    """What was recorded of a turn, until it was cut."""
    cut_at = turn.cut_at
    for entry in read_log(conversation.log_directory(capsule, turn)):
        if cut_at is None or entry.time <= cut_at:
            yield entry


def conclude(session: Session, capsule: CapsuleRecord, run: Run, start: Start) -> None:
    """Records what a turn has come to, once its run has ended. Does nothing the second time.

    Raises VaultLockedError, and leaves it for later, when the vault is locked and the capsule may
    hold secrets: its work can be neither committed nor checked.
    """
    lock = lock_of(session, capsule)
    lock.acquire(wait=True)
    with lock:
        agent = session.store.find_agent(capsule.id)
        ours = [t for t in session.store.turns(capsule.id) if t.run == run.number]
        if agent is None or not ours or ours[-1].verdict:
            return
        ended = runs.settle(session, run)
        if ended.state is not RunState.ENDED:
            return
        # Nothing can be committed or checked in a capsule that is paused.
        wait_until(
            lambda: is_gone(session, capsule) or not freezer.is_paused(capsule),
            timeout_s=None,
            interval_s=_PAUSED_LOOK_S,
        )
        if is_gone(session, capsule):
            return
        if session.ask_passphrase is None and scan.is_locked(session, capsule):
            if _is_present(session, capsule, ours[-1]):
                record_state(session, capsule, AgentState.WAITING, VAULT_LOCKED)
            from atoll.engine.secret.vault_keys import VaultLockedError  # noqa: PLC0415 - rare

            raise VaultLockedError("the vault is locked", hint="atoll secret unlock")
        verdict = _observe(session, capsule, agent, ours[-1], ended, start)
        for turn in ours:
            # Several messages may have been typed into one screen.
            if not turn.verdict:
                session.store.set_verdict(turn, verdict.encode())
        if _is_present(session, capsule, ours[-1]):
            record_state(session, capsule, verdict.state, verdict.reason)


def _is_present(session: Session, capsule: CapsuleRecord, turn: AgentTurn) -> bool:
    """Whether a turn is the last one of the capsule as it is now."""
    current = conversation.turns(session, capsule)
    return bool(current) and current[-1].number == turn.number and current[-1].cut_at is None


def _observe(
    session: Session,
    capsule: CapsuleRecord,
    agent: AgentRecord,
    turn: AgentTurn,
    run: Run,
    start: Start,
) -> TurnVerdict:
    outcome = require_outcome(run)
    spec = _find_spec(session, agent)
    events = event_log.read_events(read_output(capsule, turn), _format_of(spec, run))
    said = event_log.summarize(events)
    if not _is_counted(session, capsule):
        for used in said.usage:
            session.store.add_usage(capsule.id, plausible(used))
    commit, tree, trouble = _record_work(session, capsule, agent, turn)
    traffic = traffic_of(session, capsule, turn)
    facts = TurnEnd(
        outcome=str(outcome.reason),
        exit_code=outcome.exit_code,
        needs_end=spec is not None and spec.events not in _FREE_FORMATS,
        end=said.end,
        end_text=_short(said.text),
        last_error=_short(said.last_error),
        trouble=_short(traffic.trouble),
        used_login=_has_used_login(session, capsule, turn),
        is_screen=run.tty,
        message=_short(outcome.message or ""),
        tree=tree,
        tree_trouble=trouble,
        checks=(),
    )
    state, _ = judge(facts)
    if state is AgentState.FINISHED and agent.task.checks:
        facts = facts._replace(checks=_run_checks(session, capsule, agent.task.checks, start))
    state, reason = judge(facts)
    return TurnVerdict(
        state=state, reason=reason, at=time.time(), tree=tree, commit=commit, end=said.end,
        events=said.events, outcome=facts.outcome, exit_code=facts.exit_code, checks=facts.checks,
        held=_find_hold(session, capsule, agent, run) if state is AgentState.FAILED else "",
    )  # fmt: skip


def traffic_of(session: Session, capsule: CapsuleRecord, turn: AgentTurn | None) -> ModelTraffic:
    """The model traffic as far as it belongs to a turn: troubles of earlier ones are over."""
    found = session.store.traffic(capsule.id)
    if turn is None or found.last_at is None or found.last_at >= turn.at:
        return found
    return found._replace(last_at=None, last_status=None, trouble="")


def _has_used_login(session: Session, capsule: CapsuleRecord, turn: AgentTurn) -> bool | None:
    grants = session.store.secret_grants(capsule.id)
    logins = [grant for grant in grants if grant.secret.origin.kind is OriginKind.LOGIN]
    if not logins:
        return None
    return any((grant.used_at or 0.0) >= turn.at - USE_NOTED_S for grant in logins)


def _find_hold(session: Session, capsule: CapsuleRecord, agent: AgentRecord, run: Run) -> str:
    """What held an agent that failed: its program gave up meanwhile, or its time was used up."""
    reason = require_outcome(run).reason
    if run.tty or reason not in (Reason.EXITED, Reason.TIMEOUT):
        return ""
    excess = budgets.find_excess_and_cure(session, capsule.id)
    if _is_out_of_time(agent, run) or (excess is not None and excess.is_limit):
        return HELD_BY_BUDGET
    if reason is Reason.TIMEOUT:
        return ""
    until = session.store.traffic(capsule.id).paused_until
    is_out = until is not None and run.ended_at is not None and until > run.ended_at
    return HELD_BY_QUOTA if is_out else ""


def _is_out_of_time(agent: AgentRecord, run: Run) -> bool:
    """Whether a run was ended by a budget of time, which may have been raised since."""
    if require_outcome(run).reason is not Reason.TIMEOUT or run.ended_at is None:
        return False
    limit_s = agent.task.timeout_s
    return agent.task.budget.time_s is not None and (
        limit_s is None or run.ended_at - run.created_at < limit_s
    )


def plausible(used: ModelUsage) -> ModelUsage:
    """What an agent says of itself: never less than nothing, nor more than the store can hold."""
    cost = used.cost_usd
    return used._replace(
        model=used.model if _MODEL.fullmatch(used.model) else "",
        requests=_bounded(used.requests, _MOST_REQUESTS),
        input_tokens=_bounded(used.input_tokens, _MOST_TOKENS),
        output_tokens=_bounded(used.output_tokens, _MOST_TOKENS),
        cached_tokens=_bounded(used.cached_tokens, _MOST_TOKENS),
        cost_usd=None if cost is None else min(max(cost, 0.0), _MOST_USD),
    )


def _bounded(number: int, most: int) -> int:
    return min(max(number, 0), most)


def _is_counted(session: Session, capsule: CapsuleRecord) -> bool:
    """Whether the broker counts what the agent uses; otherwise only the agent itself does."""
    grants = session.store.secret_grants(capsule.id)
    return any(grant.secret.delivery.kind is DeliveryKind.BROKER for grant in grants)


def _find_spec(session: Session, agent: AgentRecord) -> AdapterSpec | None:
    """None for an adapter that the user's settings no longer have."""
    from atoll.engine.agent import selection  # noqa: PLC0415 - reads all adapters

    try:
        return selection.find_spec(session, agent.adapter, agent.task.command)
    except AtollError:
        return None


def _format_of(spec: AdapterSpec | None, run: Run) -> str:
    return "text" if spec is None or run.tty else spec.events


def _short(text: str) -> str:
    plain = printable(" ".join(text.split()))
    limit = _MESSAGE_CHARACTERS
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def _record_work(
    session: Session, capsule: CapsuleRecord, agent: AgentRecord, turn: AgentTurn
) -> tuple[str, str, str]:
    """Commits and exports what a turn has left; returns the commit, the tree, and what failed."""
    commit = ""
    try:
        is_present = _is_present(session, capsule, turn)
        if is_present and agent.task.commits and capsule.branch is not None:
            found = removal.find_work(session, capsule)
            if found.uncommitted or found.untracked:
                message = f"{subject_of(turn.prompt) or agent.adapter}\n\n"
                message += f"{_TRAILER}: {agent.adapter}\n"
                author = Author(agent.adapter, _ADDRESS)
                commit = work.commit(session, capsule, message, verify=False, otherwise=author)
        exports.export_after_run(session, capsule)
        plan = workspace_plan(session, capsule)
        tree = registry.layered_driver(plan.driver).tree(plan)
    except AtollError as error:
        return commit, "", _short(error.message)
    return commit, tree, ""


def _run_checks(
    session: Session, capsule: CapsuleRecord, commands: Sequence[str], start: Start
) -> tuple[TurnCheck, ...]:
    return tuple(_run_check(session, capsule, command, start) for command in commands)


def _run_check(session: Session, capsule: CapsuleRecord, command: str, start: Start) -> TurnCheck:
    """One that cannot be run has not passed."""
    spec = RunSpec(argv=("/bin/sh", "-c", command), stdin=False, timeout_s=_CHECK_S)
    try:
        run = start(spec)
        result = foreground_runs.follow(session, capsule, run)
    except AtollError as error:
        return TurnCheck(command, passed=False, exit_code=_NOT_RUN, run=0, output=error.message)
    said = (result.stdout + result.stderr)[-_SAID_CHARACTERS:].decode(errors="replace")
    return TurnCheck(
        command=command,
        passed=result.outcome.good,
        exit_code=result.exit_code,
        run=run.number,
        output="" if result.outcome.good else said,
    )


def give_up(
    session: Session, capsule: CapsuleRecord, turn: AgentTurn, verdict: TurnVerdict, why: str
) -> None:
    """Records that a turn that was held cannot go on by itself."""
    reason = f"{verdict.reason}; it cannot go on: {why}"
    given_up = verdict._replace(held="", reason=reason, at=time.time())
    session.store.set_verdict(turn, given_up.encode())
    if _is_present(session, capsule, turn):
        record_state(session, capsule, given_up.state, reason)


def has_conversation(session: Session, capsule: CapsuleRecord) -> bool:
    """Whether the agent has something to continue: a turn that it has answered at all."""
    found = conversation.turns(session, capsule)
    return any(_was_answered(capsule, turn) for turn in found)


def _was_answered(capsule: CapsuleRecord, turn: AgentTurn) -> bool:
    verdict = find_verdict(turn)
    if verdict is not None:
        return verdict.events > 0
    if turn.cut_at is None:
        return False
    # Its stream may be of any format: what is no error message is an answer.
    return any(entry.stream == "out" for entry in read_output(capsule, turn))


def find_verdict(turn: AgentTurn) -> TurnVerdict | None:
    try:
        return parse_verdict(turn.verdict)
    except ValueError:
        return TurnVerdict(AgentState.LOST, "the record of its end is damaged", turn.at)


def is_gone(session: Session, capsule: CapsuleRecord) -> bool:
    now = session.store.capsule(capsule.id)
    return now is None or now.state is not CapsuleState.READY
