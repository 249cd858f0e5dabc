"""The agent of a capsule: started, sent messages, observed, and read."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from atoll.drivers.contracts import InsideLogin
from atoll.engine.agent import (
    budgets,
    event_log,
    logins,
    observation,
    preparation,
    selection,
    sessions,
    terminal_input,
    turns,
)
from atoll.engine.agent.observation import AgentStatus
from atoll.engine.agent.prompts import require_prompt, require_typable
from atoll.engine.agent.selection import ChosenAgent
from atoll.engine.agent.turns import Start, TurnSpec
from atoll.engine.agent.verdicts import TurnVerdict
from atoll.engine.history import conversation
from atoll.engine.network import daemon_client
from atoll.engine.project import levels
from atoll.engine.run import freezer, runs
from atoll.engine.state.session import Session
from atoll.host.process import pause, wait_until
from atoll.keeper.log import LogEntry, follow_log
from atoll.model.adapter import AdapterSpec
from atoll.model.agent import (
    AgentBudget,
    AgentEvent,
    AgentEventKind,
    AgentRecord,
    AgentState,
    AgentTask,
    AgentTurn,
)
from atoll.model.errors import IsolationError, StateError
from atoll.model.state import CapsuleRecord, Run, RunState

_NO_LOGIN = InsideLogin({}, ())
_JUDGED_S = 3600.0
"""Checks take a while."""
_LOOK_S = 0.1
_HELD_LOOK_S = 2.0
ENDED = frozenset({AgentState.FINISHED, AgentState.FAILED, AgentState.LOST})


class SentMessage(NamedTuple):
    """What became of a message."""

    turn: AgentTurn | None
    run: Run | None
    is_typed: bool = False
    """Whether it was typed into the agent's screen."""


class TurnView(NamedTuple):
    """A turn with what was observed at its end."""

    turn: AgentTurn
    verdict: TurnVerdict | None
    is_running: bool


class Agent:
    """The agent of one capsule. `start` starts a run in it with its secrets."""

    def __init__(self, session: Session, capsule: CapsuleRecord, start: Start) -> None:
        self._session = session
        self._capsule = capsule
        self._start = start
        self._on_held: Callable[[AgentStatus], None] | None = None
        self._held_reason, self._looked_at = "", 0.0

    @property
    def record(self) -> AgentRecord | None:
        """None when no agent was started in this capsule."""
        return self._session.store.find_agent(self._capsule.id)

    def require(self) -> AgentRecord:
        found = self.record
        if found is None:
            raise StateError(
                f"`{self._capsule.name}` has no agent",
                hint=f'atoll spawn AGENT "PROMPT" --in {self._capsule.name}',
            )
        return found

    def status(self) -> AgentStatus:
        """Observes it now. Raises StateError when the capsule has no agent."""
        return observation.look(self._session, self._capsule, self.require())

    def settled(self) -> AgentStatus:
        """As `status`, once the end of a turn whose run is over has been judged."""
        recorded = conversation.turns(self._session, self._capsule)
        run = turns.find_run(self._session, self._capsule, recorded[-1]) if recorded else None
        if run is not None and self._is_over(run):
            wait_until(
                lambda: bool(conversation.turns(self._session, self._capsule)[-1].verdict),
                timeout_s=_JUDGED_S,
                interval_s=0.1,
            )
        return self.status()

    def turns(self) -> list[TurnView]:
        """The turns of the present conversation, the oldest first."""
        found = []
        for turn in conversation.turns(self._session, self._capsule):
            run = turns.find_run(self._session, self._capsule, turn)
            is_running = run is not None and runs.is_alive(self._session, run)
            found.append(TurnView(turn, turns.find_verdict(turn), is_running))
        return found

    def begin(self, chosen: ChosenAgent, task: AgentTask, *, rows: int = 24, cols: int = 80) -> Run:
        """Prepares the capsule for an agent and starts its first turn.

        Raises IsolationError at a level without a network of its own, StateError when the capsule
        has an agent at work.
        """
        self._require_level()
        freezer.require_running(self._capsule)
        with self._turn():
            self._require_free()
            record = self._session.store.save_agent(self._capsule.id, chosen.name, task)
            inside = preparation.prepare(
                self._session, self._capsule, chosen.name, chosen.spec, chosen.login
            )
            preparation.write(self._session, self._capsule, chosen.files)
            self._run_before(chosen, inside)
            conversation.restart(self._session, self._capsule)
            run = self._start_turn(record, chosen, inside, task.prompt, (rows, cols))
        if task.interactive and task.prompt and not _takes_prompt(chosen):
            terminal_input.await_screen(self._session, run)
            terminal_input.type_message(self._session, run, require_typable(task.prompt))
        return run

    def tell(self, message: str | bytes) -> SentMessage:
        """Sends the next message: typed into the agent's screen if it has one, else as a new turn
        that continues the conversation.

        Raises StateError while a headless turn is at work, and when there is no login any more.
        """
        text = require_prompt(message, what="message")
        record = self.require()
        freezer.require_running(self._capsule)
        self._require_budget()
        living = self._living_run()
        if living is not None and living.tty:
            return self._type(living, require_typable(text))
        if living is not None:
            raise StateError(
                f"the agent of `{self._capsule.name}` is still at work",
                hint=f"atoll watch {self._capsule.name}, or: atoll stop {self._capsule.name}",
            )
        self._conclude_forgotten()
        with self._turn():
            return self._resume(record, text)

    def _resume(self, record: AgentRecord, text: str) -> SentMessage:
        chosen = selection.again(
            self._session, self._capsule.project_id, record.adapter, record.task.command
        )
        self._require_resumable(chosen)
        inside = self._granted(chosen)
        headless = record._replace(task=record.task._replace(interactive=False))
        run = self._start_turn(headless, chosen, inside, text, (24, 80))
        return SentMessage(conversation.turns(self._session, self._capsule)[-1], run)

    def _require_resumable(self, chosen: ChosenAgent) -> None:
        has_none = not chosen.spec.commands.headless_resume
        if has_none and turns.has_conversation(self._session, self._capsule):
            raise StateError(
                f"`{chosen.name}` cannot continue a conversation without its own screen",
                hint=f'a new one: atoll spawn {chosen.name} "PROMPT" --in {self._capsule.name}',
            )

    def set_budget(self, text: str) -> AgentBudget:
        """Changes what the agent may use, such as `+5` or `tokens=200k`; one that is held goes on.

        Raises SpecError.
        """
        record = self.require()
        budget = budgets.parse_budget(text, record.task.budget, self._spent())
        self._session.store.set_task(self._capsule.id, record.task._replace(budget=budget))
        daemon_client.notify(self._session, self._capsule)
        return budget

    def find_excess(self, *, messages: int = 0) -> budgets.Excess | None:
        """Why it may not use more; None when it may, and be sent so many more messages."""
        return budgets.find_excess_and_cure(self._session, self._capsule.id, messages=messages)

    def events(
        self,
        *,
        follow: bool = False,
        last: bool = False,
        on_held: Callable[[AgentStatus], None] | None = None,
    ) -> Iterator[AgentEvent]:
        """What the agent did, the oldest first: prompts, messages, tool calls, results.

        With `last` only of the last turn; with `follow` also what is still to come of that turn.
        What it holds is hostile text. `on_held` is called, once per reason, when a followed agent
        waits for a person or is held by its budget.
        """
        self._on_held, self._held_reason, self._looked_at = on_held, "", 0.0
        record = self.require()
        recorded = conversation.turns(self._session, self._capsule)
        for index, turn in enumerate(recorded):
            if index == len(recorded) - 1:
                yield from self._events_of(record, turn, None, follow=follow)
            elif not last:
                yield from self._events_of(record, turn, recorded[index + 1], follow=False)

    def _events_of(
        self, record: AgentRecord, turn: AgentTurn, after: AgentTurn | None, *, follow: bool
    ) -> Iterator[AgentEvent]:
        if turn.prompt:
            yield AgentEvent(AgentEventKind.PROMPT, turn.prompt, at=turn.at)
        run = turns.find_run(self._session, self._capsule, turn)
        spec = selection.find_spec(self._session, record.adapter, record.task.command)
        if run is not None and run.tty:
            found = self._events_on_screen(spec, turn, run, follow=follow)
            # The next message was typed into the same screen.
            end = after.at if after is not None and after.run == turn.run else None
        else:
            entries = self._entries(turn, run, follow=follow)
            found, end = event_log.read_events(entries, spec.events), None
        for event in found:
            is_later = end is not None and event.at is not None and event.at >= end
            # The prompt is known, and some agents repeat it.
            if event.kind is not AgentEventKind.PROMPT and not is_later:
                yield event

    def _events_on_screen(
        self, spec: AdapterSpec, turn: AgentTurn, run: Run, *, follow: bool
    ) -> Iterator[AgentEvent]:
        """From the session file if the agent keeps one, else the text on its screen."""
        if spec.session.transcript:
            return sessions.follow_session(
                self._session, self._capsule, spec, since=turn.at,
                is_over=lambda: not follow or self._is_over_or_held(run),
            )  # fmt: skip
        entries = self._entries(turn, run, follow=follow)
        return event_log.read_events((e for e in entries if e.time >= turn.at), "text")

    def _entries(self, turn: AgentTurn, run: Run | None, *, follow: bool) -> Iterator[LogEntry]:
        if run is None or not follow:
            return iter(turns.read_output(self._capsule, turn))
        directory = conversation.log_directory(self._capsule, turn)
        return follow_log(directory, lambda: self._is_over_or_held(run), pause)

    def _is_over(self, run: Run) -> bool:
        return not runs.is_alive(self._session, run)

    def _is_over_or_held(self, run: Run) -> bool:
        """As `_is_over`; reports on the way that the agent goes on only when a person acts."""
        if self._on_held is not None and time.monotonic() - self._looked_at >= _HELD_LOOK_S:
            self._looked_at = time.monotonic()
            state = observation.find_state(self._session, self._capsule, self.require())
            reason = ""
            if state in (AgentState.OVER_BUDGET, AgentState.WAITING):
                status = self.status()
                reason = f"{status.state}: {status.reason}"
                if reason != self._held_reason and not self._is_over(run):
                    self._on_held(status)
            self._held_reason = reason
        return self._is_over(run)

    def transcript(self) -> list[tuple[TurnView, list[AgentEvent]]]:
        """The whole conversation, turn by turn."""
        record, views = self.require(), self.turns()
        following = [*(view.turn for view in views[1:]), None]
        return [
            (view, list(self._events_of(record, view.turn, after, follow=False)))
            for view, after in zip(views, following, strict=True)
        ]

    def wait(self, *, timeout_s: float | None = None) -> AgentStatus:
        """Waits until the last turn has ended and is judged, or the agent waits for a person.

        Raises StateError on a timeout.
        """
        record = self.require()
        ends = {*ENDED, AgentState.OVER_BUDGET}
        if record.task.interactive:
            ends.add(AgentState.WAITING)

        def is_over() -> bool:
            state = observation.find_state(self._session, self._capsule, self.require())
            # Without a broker that holds it, the run of an agent over its budget is being ended.
            return state in ends and not (state is AgentState.OVER_BUDGET and self._is_ending())

        if not wait_until(is_over, timeout_s=timeout_s, interval_s=_LOOK_S):
            raise StateError(
                f"the agent of `{self._capsule.name}` is still {self.require().state}",
                hint=f"atoll watch {self._capsule.name}",
            )
        return self.status()

    def _is_ending(self) -> bool:
        """Whether the last turn has no verdict, and no broker that could hold it."""
        has_broker = bool(self._session.store.secret_grants(self._capsule.id))
        recorded = conversation.turns(self._session, self._capsule)
        return not has_broker and bool(recorded) and not recorded[-1].verdict

    def conclude(self, run: Run) -> None:
        """Records what the turn of a run that has ended has come to."""
        turns.conclude(self._session, self._capsule, run, self._start)

    def _conclude_forgotten(self) -> None:
        """Concludes a last turn whose own process for that was killed."""
        recorded = conversation.turns(self._session, self._capsule)
        run = turns.find_run(self._session, self._capsule, recorded[-1]) if recorded else None
        if run is not None and not recorded[-1].verdict:
            self.conclude(run)

    def _start_turn(
        self,
        record: AgentRecord,
        chosen: ChosenAgent,
        inside: InsideLogin,
        prompt: str,
        size: tuple[int, int],
    ) -> Run:
        spec = TurnSpec(
            prompt=prompt,
            spec=chosen.spec,
            login_env=inside.env,
            key=inside.key,
            resumes=turns.has_conversation(self._session, self._capsule),
            is_interactive=record.task.interactive,
            timeout_s=self._timeout_s(record, chosen),
            rows=size[0],
            cols=size[1],
        )
        return turns.start_turn(self._session, self._capsule, record, spec, self._start)[1]

    def _timeout_s(self, record: AgentRecord, chosen: ChosenAgent) -> float | None:
        """How long a turn may take. Without a login no broker can hold the agent when its time is
        used up, so that the turn is ended then.
        """
        limits = [record.task.timeout_s]
        budget_s = record.task.budget.time_s
        if chosen.login is None and budget_s is not None:
            limits.append(max(1.0, budget_s - self._spent().time_s))
        return min((limit for limit in limits if limit is not None), default=None)

    def _spent(self) -> budgets.Spent:
        prices = budgets.owner_limits(self._session).prices
        return budgets.spent_by(self._session, [self._capsule.id], prices)

    def _require_budget(self) -> None:
        excess = self.find_excess(messages=1)
        if excess is not None:
            name = self._capsule.name
            raise StateError(
                f"the budget of `{name}` is used up: {excess.reason}",
                hint=f'atoll tell {name} "MESSAGE" --budget {excess.cure}'
                if excess.cure
                else "[budget] in your settings",
            )

    def _granted(self, chosen: ChosenAgent) -> InsideLogin:
        if chosen.login is None:
            return _NO_LOGIN
        return logins.grant(self._session, self._capsule, chosen.name, chosen.login)

    def _run_before(self, chosen: ChosenAgent, inside: InsideLogin) -> None:
        found = preparation.places(self._session, self._capsule)
        preparation.run_before(self._session, self._capsule, chosen.spec, inside, found)

    def _type(self, run: Run, text: str) -> SentMessage:
        turn = conversation.add_turn(self._session, self._capsule, text)
        self._session.store.set_turn_run(turn, run.number)
        terminal_input.type_message(self._session, run, text)
        return SentMessage(turn._replace(run=run.number), run, is_typed=True)

    def _living_run(self) -> Run | None:
        """The run of the last turn, if it has processes."""
        recorded = conversation.turns(self._session, self._capsule)
        run = turns.find_run(self._session, self._capsule, recorded[-1]) if recorded else None
        if run is None or run.state is RunState.ENDED or self._is_over(run):
            return None
        return run

    def _require_free(self) -> None:
        if self._living_run() is not None:
            raise StateError(
                f"`{self._capsule.name}` has an agent at work",
                hint=f'atoll tell {self._capsule.name} "MESSAGE", or: '
                f"atoll stop {self._capsule.name}",
            )

    def _require_level(self) -> None:
        require_level(self._capsule.level)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        lock = turns.lock_of(self._session, self._capsule)
        if not lock.acquire():
            raise StateError(
                f"another command is working on the agent of `{self._capsule.name}`",
                hint="atoll agents",
            )
        with lock:
            yield


def _takes_prompt(chosen: ChosenAgent) -> bool:
    """Whether the command line of its screen has the prompt, which is typed otherwise."""
    return any("{prompt}" in word for word in chosen.spec.commands.interactive)


def require_level(level: str) -> None:
    """Raises IsolationError at a level where an agent could reach the owner's credentials."""
    if not levels.has_own_network(level):
        raise IsolationError(
            f"agents need level `{levels.DEFAULT}`: at level `{level}` nothing keeps them from "
            "your credentials",
            hint=f"--level {levels.DEFAULT}; or: atoll run NAME -- AGENT, by your own choice",
        )


def statuses(session: Session, project_id: str | None) -> list[AgentStatus]:
    """All agents of a project, or of all projects, as they are now."""
    store = session.store
    records = store.all_agents() if project_id is None else store.agents(project_id)
    found = []
    for record in records:
        capsule = store.capsule(record.capsule_id)
        if capsule is not None and not turns.is_gone(session, capsule):
            found.append(observation.look(session, capsule, record))
    return found


def parse_budgets(texts: Sequence[str]) -> AgentBudget:
    """The budget of a new agent. Raises SpecError."""
    budget = AgentBudget()
    for text in texts:
        budget = budgets.parse_budget(text, budget)
    return budget
