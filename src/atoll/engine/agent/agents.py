"""The agent of a capsule: started, sent messages, observed, and read."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from atoll.drivers.contracts import InsideLogin
from atoll.engine.agent import (
    budgets,
    event_log,
    logins,
    observation,
    preparation,
    screen_text,
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
from atoll.engine.secret.vault_keys import VaultLockedError
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
from atoll.model.errors import AtollError, IsolationError, StateError
from atoll.model.state import CapsuleRecord, Run, RunState

_NO_LOGIN = InsideLogin({}, ())
_JUDGED_S = 3600.0
"""Checks take a while."""
_LOOK_S = 0.1
_QUOTA_LOOK_S = 60.0
_OVERRUN_S = 300.0
"""How long an agent may work on after its budget of time: its next model request is held."""
_GO_ON = "Continue."
_HELD_LOOK_S = 2.0
ENDED = frozenset({AgentState.FINISHED, AgentState.FAILED, AgentState.LOST})


class SentMessage(NamedTuple):
    """What became of a message."""

    turn: AgentTurn | None
    run: Run | None
    is_typed: bool = False
    """Whether it was typed into the agent's screen."""
    is_screen: bool = False
    """Whether a screen of the agent's own was started for it."""


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
        run = self._last_run()
        if run is not None and self._is_over(run):
            wait_until(self._is_judged, timeout_s=_JUDGED_S, interval_s=0.1)
        if turns.is_gone(self._session, self._capsule):
            raise StateError(f"`{self._capsule.name}` has been removed", hint="atoll ls")
        return self.status()

    def _is_judged(self) -> bool:
        last = self._last_turn()
        return last is None or bool(last.verdict)

    def turns(self) -> list[TurnView]:
        """The turns of the present conversation, the oldest first."""
        recorded = conversation.turns(self._session, self._capsule)
        living = self._living_run()
        return [
            TurnView(turn, turns.find_verdict(turn), living is not None and turn is recorded[-1])
            for turn in recorded
        ]

    def begin(self, chosen: ChosenAgent, task: AgentTask, *, rows: int = 24, cols: int = 80) -> Run:
        """Prepares the capsule for an agent and starts its first turn.

        Raises IsolationError at a level without a network of its own, StateError when the capsule
        has an agent at work.
        """
        self._require_level()
        freezer.require_running(self._capsule)
        self._require_project_budget()
        self._require_free()
        self._conclude_forgotten()
        with self._turn():
            self._require_concluded()
            record = self._session.store.save_agent(self._capsule.id, chosen.name, task)
            inside = self._prepare(chosen)
            conversation.restart(self._session, self._capsule)
            run = self._start_turn(record, chosen, inside, task.prompt, (rows, cols))
        if task.interactive and task.prompt and not _takes_prompt(chosen.spec.commands.interactive):
            self._type_first(run, task.prompt)
        return run

    def _type_first(self, run: Run, prompt: str) -> None:
        terminal_input.await_screen(self._session, run)
        terminal_input.type_message(self._session, run, require_typable(prompt))

    def tell(self, message: str | bytes, *, screen: tuple[int, int] | None = None) -> SentMessage:
        """Sends the next message: typed into the agent's screen if it has one, else as a new turn
        that continues the conversation; with `screen`, its rows and columns, on a new screen of the
        agent's own, for which the message may be empty.

        Raises StateError while a headless turn is at work, and when there is no login any more.
        """
        is_open = screen is not None and not message
        text = "" if is_open else require_prompt(message, what="message")
        record = self._require_sound()
        freezer.require_running(self._capsule)
        self._require_budget()
        living = self._living_run()
        if living is not None and living.tty and is_open:
            return SentMessage(None, living, is_screen=True)
        if living is not None and living.tty:
            with self._turn():
                return self._type(living, require_typable(text))
        self._require_free()
        self._conclude_forgotten()
        with self._turn():
            # Another command may have been faster.
            self._require_concluded()
            sent, needs_typing = self._resume(record, text, screen)
        if needs_typing and sent.run is not None:
            self._type_first(sent.run, text)
        return sent

    def _resume(
        self, record: AgentRecord, text: str, screen: tuple[int, int] | None = None
    ) -> tuple[SentMessage, bool]:
        """Starts the next turn; returns also whether its message has to be typed. The caller holds
        the lock.
        """
        chosen = selection.again(self._session, self._capsule, record.adapter, record.task.command)
        self._require_resumable(chosen, on_screen=screen is not None)
        inside = self._granted(chosen)
        task = record.task._replace(interactive=screen is not None)
        run = self._start_turn(record._replace(task=task), chosen, inside, text, screen or (24, 80))
        lines = chosen.spec.commands
        words = lines.interactive_resume or lines.interactive
        needs_typing = bool(screen and text and not _takes_prompt(words))
        last = conversation.turns(self._session, self._capsule)[-1]
        return SentMessage(last, run, is_screen=screen is not None), needs_typing

    def _require_resumable(self, chosen: ChosenAgent, *, on_screen: bool) -> None:
        lines, name = chosen.spec.commands, self._capsule.name
        can_continue = lines.interactive_resume if on_screen else lines.headless_resume
        if can_continue or not turns.has_conversation(self._session, self._capsule):
            return
        if lines.interactive_resume:
            raise StateError(
                f"`{chosen.name}` continues a conversation on its own screen only",
                hint=f'atoll tell {name} -i "MESSAGE"',
            )
        raise StateError(
            f"`{chosen.name}` cannot continue a conversation"
            + (" on its own screen" if on_screen else ""),
            hint=f'a new one: atoll spawn {chosen.name} "PROMPT" --in {name}',
        )

    def go_on(self) -> SentMessage | None:
        """Continues a turn that ended while a budget or a quota held it. None when there is no such
        turn, when something holds it still, or when another command works on the agent.
        """
        lock = turns.lock_of(self._session, self._capsule)
        if not lock.acquire():
            return None
        with lock:
            last = self._last_turn()
            verdict = None if last is None else turns.find_verdict(last)
            if last is None or verdict is None or not verdict.held or self._is_held():
                return None
            was_answered = turns.has_conversation(self._session, self._capsule)
            try:
                sent, _ = self._resume(self.require(), _GO_ON if was_answered else last.prompt)
            except VaultLockedError:
                # It can go on once the vault is unlocked.
                raise
            except AtollError as error:
                turns.give_up(self._session, self._capsule, last, verdict, error.message)
                raise
            return sent

    def go_on_when_free(self) -> None:
        """As `go_on`, once a quota is reset. Returns at once when no turn waits for that."""
        last = self._last_turn()
        while last is not None and self._waits_for_quota(last):
            wait_until(lambda: not self._waits_for_quota(last), timeout_s=_QUOTA_LOOK_S)
        if last is not None and not turns.is_gone(self._session, self._capsule):
            self.go_on()

    def _waits_for_quota(self, turn: AgentTurn) -> bool:
        """Whether a turn has ended while a quota was used up that is not reset yet."""
        if turns.is_gone(self._session, self._capsule) or self._last_turn() != turn:
            return False
        verdict = turns.find_verdict(turn)
        until = self._session.store.traffic(self._capsule.id).paused_until or 0.0
        return verdict is not None and bool(verdict.held) and until > time.time()

    def _is_held(self) -> bool:
        if freezer.is_paused(self._capsule):
            return True
        until = self._session.store.traffic(self._capsule.id).paused_until or 0.0
        return until > time.time() or self.find_excess(messages=1) is not None

    def _last_turn(self) -> AgentTurn | None:
        """The last turn of the present conversation, unless it was cut."""
        recorded = conversation.turns(self._session, self._capsule)
        return recorded[-1] if recorded and recorded[-1].cut_at is None else None

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
        if turn.is_screen:
            found = self._events_on_screen(spec, turn, run, follow=follow)
            # The next message was perhaps typed into the same screen.
            end = turn.cut_at if after is None or after.run != turn.run else after.at
        else:
            entries = self._entries(turn, run, follow=follow)
            found, end = event_log.read_events(entries, spec.events), None
        for event in found:
            is_later = end is not None and event.at is not None and event.at >= end
            # The prompt is known, and some agents repeat it.
            if event.kind is not AgentEventKind.PROMPT and not is_later:
                yield event

    def _events_on_screen(
        self, spec: AdapterSpec, turn: AgentTurn, run: Run | None, *, follow: bool
    ) -> Iterator[AgentEvent]:
        """From the session file if the agent keeps one, else the text on its screen."""
        if spec.session.transcript:
            return sessions.follow_session(
                self._session, self._capsule, spec, since=turn.at,
                is_over=lambda: not follow or run is None or self._is_over_or_held(run),
            )  # fmt: skip
        entries = (e for e in self._entries(turn, run, follow=follow) if e.time >= turn.at)
        return screen_text.read_screen(entries, is_plain=not spec.program, name=self._capsule.name)

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
        """The whole conversation, turn by turn; of a turn with very many events, the first and the
        last ones.
        """
        record, views = self.require(), self.turns()
        following = [view.turn for view in views[1:]]
        return [
            (view, event_log.bounded(self._events_of(record, view.turn, after, follow=False)))
            for view, after in zip_longest(views, following)
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
        run = self._last_run()
        if run is not None and not self._is_judged():
            self.conclude(run)

    def _last_run(self) -> Run | None:
        """The run of the last turn."""
        last = self._last_turn()
        return None if last is None else turns.find_run(self._session, self._capsule, last)

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
        """How long a turn may take. When the budget of time is used up, the broker holds the agent
        at its next request; a turn without one, or of an agent without a login, is ended.
        """
        limits = [record.task.timeout_s]
        left_s = budgets.time_left_s(self._session, self._capsule.id)
        if left_s is not None:
            limits.append(max(1.0, left_s + (0.0 if chosen.login is None else _OVERRUN_S)))
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

    def _require_project_budget(self) -> None:
        reason = budgets.find_excess_of_project(self._session, self._capsule.id)
        if reason is not None:
            raise StateError(f"the budget is used up: {reason}", hint="[budget] in your settings")

    def _granted(self, chosen: ChosenAgent) -> InsideLogin:
        if chosen.login is None:
            return _NO_LOGIN
        before = logins.granted_names(self._session, self._capsule)
        inside = logins.grant(self._session, self._capsule, chosen.name, chosen.login)
        if logins.granted_names(self._session, self._capsule) != before:
            # It is another login than that of the turns before: its files are not inside yet.
            inside = self._prepare(chosen)
        return inside

    def _prepare(self, chosen: ChosenAgent) -> InsideLogin:
        inside = preparation.prepare(
            self._session, self._capsule, chosen.name, chosen.spec, chosen.login
        )
        preparation.write(self._session, self._capsule, chosen.files)
        self._run_before(chosen, inside)
        return inside

    def _run_before(self, chosen: ChosenAgent, inside: InsideLogin) -> None:
        found = preparation.places(self._session, self._capsule)
        preparation.run_before(self._session, self._capsule, chosen.spec, inside, found)

    def _type(self, run: Run, text: str) -> SentMessage:
        turn = conversation.add_turn(
            self._session, self._capsule, text, run=run.number, is_screen=True
        )
        terminal_input.type_message(self._session, run, text)
        return SentMessage(turn, run, is_typed=True)

    def _living_run(self) -> Run | None:
        """The run of the last turn, if it has processes."""
        run = self._last_run()
        if run is None or run.state is RunState.ENDED or self._is_over(run):
            return None
        return run

    def _require_free(self) -> None:
        name = self._capsule.name
        if self._living_run() is not None:
            raise StateError(
                f"the agent of `{name}` is still at work",
                hint=f"atoll watch {name}, or: atoll stop {name}",
            )

    def _require_concluded(self) -> None:
        """Raises StateError when a turn was started meanwhile. The caller holds the lock."""
        self._require_free()
        if not self._is_judged() and self._last_run() is not None:
            raise self._busy()

    def _require_sound(self) -> AgentRecord:
        record = self.require()
        if record.is_damaged:
            raise StateError(
                f"the record of the agent of `{self._capsule.name}` is damaged",
                hint=f'a new one: atoll spawn AGENT "PROMPT" --in {self._capsule.name}',
            )
        return record

    def _busy(self) -> StateError:
        return StateError(
            f"another command is working on the agent of `{self._capsule.name}`",
            hint="atoll agents",
        )

    def _require_level(self) -> None:
        require_level(self._capsule.level)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        lock = turns.lock_of(self._session, self._capsule)
        if not lock.acquire():
            raise self._busy()
        with lock:
            yield


def _takes_prompt(words: Sequence[str]) -> bool:
    """Whether the command line of a screen has the prompt, which is typed otherwise."""
    return any("{prompt}" in word for word in words)


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
