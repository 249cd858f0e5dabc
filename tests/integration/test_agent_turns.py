"""Turns of agents beside rollbacks, forks, other commands and damage: the state stays that of the
moment, and each turn is judged by what it was asked for.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from typing import TYPE_CHECKING, Any

import pytest

from atoll.engine.agent import agents, observation, turns
from atoll.engine.history import conversation
from atoll.model.agent import AgentEventKind, AgentSpec, AgentState, ModelTraffic, ModelUsage
from atoll.model.errors import StateError
from persons import as_user

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.engine.capsules import Capsule
    from atoll.engine.projects import Project
    from atoll.engine.state.session import Session
    from atoll.model.agent import AgentTurn
    from atoll.model.state import Run

ENDED_S = 60.0
WALKER = """\
echo "{\\"type\\": \\"say\\", \\"text\\": \\"$1 $2\\"}"
case "$2" in
hold) while ! test -e go; do sleep 0.05; done; echo '{"type": "say", "text": "afterwards"}';;
*) echo "$2" >> steps.txt;;
esac
echo '{"type": "done"}'
"""
SCREEN = """\
printf '%s %s\\n' "$1" "$2"
while read -r line; do printf 'heard %s\\n' "$line"; echo "$line" >> heard.txt; done
"""


@pytest.fixture
def walker(tmp_path: Path) -> str:
    """An agent whose command lines say whether it begins or continues a conversation."""
    commands = {
        "headless": ["sh", "-c", WALKER, "sh", "new", "{prompt}"],
        "headless_resume": ["sh", "-c", WALKER, "sh", "continued", "{prompt}"],
        "interactive": ["sh", "-c", SCREEN, "sh", "new", "{prompt}"],
        "interactive_resume": ["sh", "-c", SCREEN, "sh", "continued", "{prompt}"],
    }
    settings = tmp_path / "config" / "atoll" / "config.toml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    lines = ['[agents.walker]\nprogram = "sh"\nneeds_login = false\nevents = "script"\n']
    lines.append("[agents.walker.commands]\n")
    lines += [f"{key} = {json.dumps(words)}\n" for key, words in commands.items()]
    settings.write_text("".join(lines))
    return "walker"


def spawn(project: Project, agent: str, prompt: str, **options: Any) -> Capsule:
    return project.spawn(AgentSpec(agent=agent, prompt=prompt, **options))[0]


def ended(capsule: Capsule) -> tuple[AgentState, str]:
    status = capsule.agent.wait(timeout_s=ENDED_S)
    return status.state, status.reason


def messages(capsule: Capsule) -> list[str]:
    return [e.text for e in capsule.agent.events() if e.kind is AgentEventKind.MESSAGE]


def await_message(capsule: Capsule, text: str) -> None:
    found = (e.text for e in capsule.agent.events(follow=True))
    assert any(text in each for each in found)


RETURNED = (AgentState.IDLE, "its capsule returned to the middle of this turn")


def test_fork_of_an_agent_at_work_continues_its_conversation(project: Project, walker: str) -> None:
    x = spawn(project, walker, "hold", name="x")
    await_message(x, "new hold")
    y = project.fork(x, "y")
    x.run(["touch", "go"])
    assert ended(x)[0] is AgentState.FINISHED
    assert y.agent.status()[3:5] == RETURNED
    assert messages(y) == ["new hold"]
    y.agent.tell("more")
    assert ended(y)[0] is AgentState.FINISHED
    assert messages(y) == ["new hold", "continued more"]


def test_rollback_into_a_turn_that_has_ended_since(project: Project, walker: str) -> None:
    x = spawn(project, walker, "hold", name="x")
    await_message(x, "new hold")
    point = x.snapshot("within the turn")
    x.run(["touch", "go"])
    assert ended(x)[0] is AgentState.FINISHED
    assert messages(x) == ["new hold", "afterwards"]
    x.rollback(point)
    assert x.agent.status()[3:5] == RETURNED
    assert [view.verdict for view in x.agent.turns()] == [None]
    assert messages(x) == ["new hold"]
    # Its end belongs to the other course of events.
    x.rollback()
    x.agent.tell("more")
    assert ended(x)[0] is AgentState.FINISHED
    assert messages(x) == ["new hold", "continued more"]


def test_rollback_of_a_screen_with_a_later_message(project: Project, walker: str) -> None:
    x = spawn(project, walker, "first", name="x", is_interactive=True)
    await_message(x, "new first")
    x.agent.wait(timeout_s=ENDED_S)
    point = x.snapshot("waiting")
    x.agent.tell("too much")
    await_message(x, "heard too much")
    x.stop()
    ended(x)
    assert all(view.verdict is not None for view in x.agent.turns())
    x.rollback(point)
    assert x.agent.settled()[3:5] == RETURNED
    assert "too much" not in "".join(e.text for e in x.agent.events(follow=True))
    x.agent.tell("more")
    assert ended(x)[0] is AgentState.FINISHED
    assert "continued more" in messages(x)


def test_conversation_continues_on_a_screen(project: Project, walker: str) -> None:
    x = spawn(project, walker, "one", name="x")
    assert ended(x)[0] is AgentState.FINISHED
    sent = x.agent.tell("", screen=(30, 100))
    assert sent.is_screen
    await_message(x, "continued")
    # The same screen, and not a second one.
    again = x.agent.tell("", screen=(30, 100))
    assert again.run == sent.run
    x.agent.tell("typed")
    await_message(x, "heard typed")
    x.stop()
    assert ended(x) == (AgentState.FINISHED, "its screen was closed")
    x.agent.tell("two")
    assert ended(x)[0] is AgentState.FINISHED
    assert x.run(["cat", "steps.txt"]).stdout == b"one\ntwo\n"


def test_second_command_that_sends_a_message_is_refused(
    project: Project, walker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = spawn(project, walker, "one", name="x")
    ended(x)
    conclude = agents.Agent._conclude_forgotten

    def is_overtaken(self: agents.Agent) -> None:
        """Another command starts a turn between the look and the lock."""
        monkeypatch.setattr(agents.Agent, "_conclude_forgotten", conclude)
        project.capsule("x").agent.tell("hold")
        conclude(self)

    monkeypatch.setattr(agents.Agent, "_conclude_forgotten", is_overtaken)
    with pytest.raises(StateError, match="still at work"):
        x.agent.tell("too late")
    x.run(["touch", "go"])
    assert ended(x)[0] is AgentState.FINISHED
    assert messages(x) == ["new one", "continued hold", "afterwards"]


def test_turn_is_judged_by_its_own_checks(
    project: Project, walker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(turns, "watch", lambda *_: None)
        x = spawn(project, walker, "one", name="x", checks=("grep -q two steps.txt",))
        x.wait(x.require_run())
    spawn(project, walker, "two", inside="x")
    ended(x)
    stored = [turns.find_verdict(turn) for turn in project.session.store.turns(x.record.id)]
    first, second = stored
    assert first is not None
    assert second is not None
    assert (first.state, len(first.checks)) == (AgentState.FAILED, 1)
    assert (second.state, second.checks) == (AgentState.FINISHED, ())
    assert first.commit
    assert second.commit
    assert first.tree != second.tree


def test_pause_at_the_end_of_a_turn_delays_its_checks(
    project: Project, walker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(turns, "watch", lambda *_: None)
        x = spawn(project, walker, "one", name="x", checks=("grep -q one steps.txt",))
        run = x.require_run()
        x.wait(run)
    x.pause()
    concluding = threading.Thread(target=x.agent.conclude, args=(run,))
    concluding.start()
    assert x.agent.turns()[0].verdict is None
    x.resume()
    concluding.join(ENDED_S)
    assert ended(x) == (AgentState.FINISHED, "1 check passed")


def damage(session: Session, words: str, *values: object) -> None:
    with sqlite3.connect(session.home / "state.db") as db:
        db.execute(words, values)
    db.close()


def test_damaged_rows_concern_one_agent(project: Project, walker: str) -> None:
    x, y = (spawn(project, walker, "one", name=name) for name in ("x", "y"))
    for one in (x, y):
        ended(one)
    damage(project.session, "UPDATE agents SET state = 'bogus' WHERE capsule_id = ?", x.record.id)
    found = {status.capsule: status for status in project.agents()}
    assert found["x"][3:5] == (AgentState.LOST, "its record is damaged")
    assert found["y"].state is AgentState.FINISHED
    with pytest.raises(StateError, match="is damaged"):
        x.agent.tell("two")
    spawn(project, walker, "again", inside="x")
    assert ended(x)[0] is AgentState.FINISHED
    where = "WHERE part = 'agent' AND snapshot = 0 AND capsule_id = ?"
    damage(project.session, f"UPDATE parts SET payload = '{{bad' {where}", x.record.id)
    for look in (x.agent.status, x.agent.transcript, lambda: list(x.agent.events())):
        with pytest.raises(StateError, match="conversation in `x` is damaged"):
            look()


def test_agent_without_turns_has_an_empty_transcript(project: Project, walker: str) -> None:
    x = project.new("x")
    before = x.snapshot("empty")
    spawn(project, walker, "one", inside="x")
    ended(x)
    x.rollback(before)
    assert x.agent.transcript() == []


def test_killed_before_a_turn_was_stored(
    project: Project, walker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = spawn(project, walker, "one", name="x")
    ended(x)

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(project.session.store, "add_turn", kill)
        with pytest.raises(Killed):
            x.agent.tell("two")
    assert x.agent.status().state is AgentState.FINISHED
    with monkeypatch.context() as patched:
        patched.setattr(project.session.store, "set_turn_run", kill)
        patched.setattr(project.session.store, "set_verdict", kill)
        with pytest.raises(Killed):
            x.agent.tell("three")
    x.stop()
    assert x.agent.status()[3:5] == (AgentState.LOST, "its process disappeared")
    x.agent.tell("four")
    assert ended(x)[0] is AgentState.FINISHED


@as_user
def test_what_an_agent_claims_is_shown_harmless(person: Any) -> None:
    usage = {"type": "usage", "model": "\x1b]0;PWNED\x07x\n\u202e y", "input_tokens": 5}
    script = person.place / "agent.sh"
    script.write_text(f"printf '%s\\n' '{json.dumps(usage)}'\necho '{{\"type\": \"done\"}}'\n")
    person.atoll("spawn", f"script:{script}", "do it", "--name", "x")
    person.atoll("watch", "x")
    told = person.atoll("tell", "x", "--budget", "cost=5").stderr
    assert "the price of a model is unknown" in told
    assert "\x1b" not in told
    assert "PWNED" not in told


def test_watch_of_a_capsule_that_is_removed(project: Project, walker: str) -> None:
    x = spawn(project, walker, "hold", name="x")
    await_message(x, "new hold")
    watched = project.capsule("x").agent
    following = watched.events(follow=True)
    next(following)
    x.remove(force=True)
    list(following)
    with pytest.raises(StateError, match="`x` has been removed"):
        watched.settled()


def test_turn_held_by_two_limits_is_not_tried_again_and_again(
    project: Project, walker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = spawn(project, walker, "one", name="x", budget=("tokens=100",))
    ended(x)
    store = project.session.store
    [turn] = store.turns(x.record.id)
    verdict = turns.find_verdict(turn)
    assert verdict is not None
    held = verdict._replace(state=AgentState.FAILED, held=turns.HELD_BY_QUOTA)
    store.set_verdict(turn, held.encode())
    store.set_traffic(x.record.id, ModelTraffic(paused_until=1.0))
    watched: list[object] = []
    monkeypatch.setattr(observation, "_LATE_S", 0.0)
    monkeypatch.setattr(observation.turns, "watch", lambda *words: watched.append(words))
    store.add_usage(x.record.id, ModelUsage("scripted", 1, 200))
    assert x.agent.status()[3:5] == (AgentState.OVER_BUDGET, "200 of 100 tokens")
    assert watched == []
    x.agent.set_budget("tokens=none")
    x.agent.status()
    assert len(watched) == 1


def test_broken_settings_change_no_state(project: Project, walker: str, tmp_path: Path) -> None:
    x = spawn(project, walker, "first", name="x", is_interactive=True)
    await_message(x, "new first")
    assert x.agent.wait(timeout_s=ENDED_S).state is AgentState.WAITING
    settings = tmp_path / "config" / "atoll" / "config.toml"
    text = settings.read_text()
    settings.write_text(text + "[bad")
    assert x.agent.find_excess() is not None
    assert (
        observation.gather(
            project.session, x.record, x.agent.require(), *observed(project, x)
        ).excess
        == ""
    )
    settings.write_text(text)
    assert [view.is_running for view in x.agent.turns()] == [True]
    x.agent.tell("second")
    assert [view.is_running for view in x.agent.turns()] == [False, True]


def observed(project: Project, capsule: Capsule) -> tuple[list[AgentTurn], Run | None]:
    recorded = conversation.turns(project.session, capsule.record)
    return recorded, turns.find_run(project.session, capsule.record, recorded[-1])
