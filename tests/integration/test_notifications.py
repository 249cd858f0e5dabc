"""How the owner hears of an agent that wants a person: events, the bell, the terminal's title."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

import atoll
from atoll.engine.agent.states import record_state
from atoll.model.agent import AgentState, AgentTask, render_quota
from persons import as_user
from terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persons import Person

TITLE_OF = {
    "none": r"\x1b\]2;atoll agents\x07",
    "one": r"\x1b\]2;atoll: 1 of 1 agents want you\x07",
}
BELL = "\x07"
SLOW = "echo begun; while ! test -e go; do sleep 0.1; done; exit 3"


def configure(place: Path, text: str) -> None:
    (place / "atoll").mkdir(parents=True, exist_ok=True)
    (place / "atoll" / "config.toml").write_text(text)


def test_new_reason_is_an_event_and_a_new_number_is_none(
    repo: Path, atoll_home: Path, tmp_path: Path, wait_for: Callable[..., Any]
) -> None:
    told = tmp_path / "told"
    told.write_text("")
    configure(tmp_path / "config", f'[notify]\ncommand = "cat >> {told}"\n')
    project = atoll.open_project(repo)
    capsule = project.new("x").record
    project.session.store.save_agent(capsule.id, "script", AgentTask("do it"))

    def reasons() -> list[str]:
        return [json.loads(line)["reason"] for line in told.read_text().splitlines()]

    heard: list[str] = []
    for state, reason, is_heard in (
        (AgentState.WAITING, render_quota(1e9), True),
        (AgentState.WAITING, "for your next message", True),
        (AgentState.WAITING, "for your next message", False),
        (AgentState.OVER_BUDGET, "1.0k of 1.0k tokens", True),
        (AgentState.OVER_BUDGET, "999k of 1.0k tokens", False),
        (AgentState.WORKING, "", False),
        (AgentState.FAILED, "it was stopped", True),
    ):
        assert record_state(project.session, capsule, state, reason) is (
            is_heard or (state, reason) != (AgentState.WAITING, "for your next message")
        )
        if is_heard:
            heard.append(reason)
        # Each is delivered by a process of its own, so that they could overtake one another.
        wait_for(lambda: reasons()[-1:] == heard[-1:], what="the event")
    assert reasons() == heard
    project.session.store.close()


@as_user
@pytest.mark.parametrize("everywhere", [False, True])
def test_live_table_rings_and_sets_the_title(person: Person, everywhere: bool) -> None:
    person.write({"agent.sh": SLOW})
    person.atoll("spawn", "script:agent.sh", "fix it", "--name", "x", "-q")
    # The agents of all projects are shown outside of a repository too.
    place = person.place if everywhere else person.repo
    options = ["-a"] if everywhere else []
    argv = (sys.executable, "-m", "atoll", "agents", "-w", *options)
    screen = Terminal(argv, place, cols=160, env=person.env, become=person.preparation(place))
    try:
        screen.expect(TITLE_OF["none"])
        person.sh("x", "touch go")
        screen.expect(r"failed: it ended with code 3")
        # Once: the state does not change any more.
        screen.expect(TITLE_OF["one"] + BELL)
        screen.expect(TITLE_OF["one"] + "\x1b")
        screen.type("\x03")
        assert screen.process.wait(timeout=30) == 130
    finally:
        screen.close()


@as_user
def test_bell_is_silent_if_the_owner_wants_it(person: Person) -> None:
    person.write({"atoll/config.toml": "[notify]\nbell = false\n"}, person.place / "config")
    person.write({"agent.sh": "exit 3"})
    person.atoll("spawn", "script:agent.sh", "fix it", "--name", "x", "-q")
    argv = (sys.executable, "-m", "atoll", "watch", "x")
    screen = Terminal(argv, person.repo, env=person.env, become=person.preparation(person.repo))
    try:
        screen.expect(r"x: failed: it ended with code 3")
        screen.expect(r"\x1b\]2;atoll: x is failed\x07")
        assert screen.process.wait(timeout=30) == 0
        assert BELL not in screen.seen
    finally:
        screen.close()


@as_user
def test_watch_rings(person: Person) -> None:
    person.write({"agent.sh": "exit 3"})
    person.atoll("spawn", "script:agent.sh", "fix it", "--name", "x", "-q")
    argv = (sys.executable, "-m", "atoll", "watch", "x")
    screen = Terminal(argv, person.repo, env=person.env, become=person.preparation(person.repo))
    try:
        screen.expect(r"\x1b\]2;atoll: x is failed\x07\x07")
        assert screen.process.wait(timeout=30) == 0
    finally:
        screen.close()
