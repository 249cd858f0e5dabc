"""Messages typed into full-screen programs, which treat a paste and Enter in their own ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from atoll.engine.agent import terminal_input
from atoll.host.process import wait_until
from atoll.keeper.log import read_log
from atoll.model.agent import AgentSpec, ModelTraffic

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.engine.capsules import Capsule
    from atoll.engine.projects import Project

SCREEN = r"""
import os, sys, termios, tty
MODE = sys.argv[1]
tty.setraw(0)
box, enters = "", 0
def show(text):
    os.write(1, text.encode())
show("\x1b[?2004h> ")
while data := os.read(0, 65536):
    text = data.decode()
    is_enter = text == "\r"
    enters += is_enter
    if not is_enter:
        # As Gemini: an Enter right after a paste is a part of what is pasted.
        box += text.replace("\x1b[200~", "").replace("\x1b[201~", "").replace("\r", "\n")
        show(f"\x1b[2K\r> {box!r}")
    elif MODE == "deaf" or (MODE == "popup" and enters == 1):
        continue
    else:
        show(f"\r\nheard {box!r} after {enters}\r\n> ")
        box = ""
"""
ENDED_S = 60.0


def spawn(project: Project, place: Path, mode: str) -> Capsule:
    program = place / "screen"
    program.write_text(f"#!/bin/sh\nexec /usr/bin/python3 -c '{SCREEN}' {mode}\n")
    spec = AgentSpec(agent=f"script:{program}", prompt="", is_interactive=True, name="x")
    [capsule] = project.spawn(spec)
    terminal_input.await_screen(project.session, capsule.require_run())
    return capsule


def heard(capsule: Capsule) -> list[str]:
    data = b"".join(entry.data for entry in read_log(capsule.require_run().directory))
    return [line for line in data.decode().splitlines() if line.startswith("heard")]


def await_heard(capsule: Capsule) -> list[str]:
    assert wait_until(lambda: bool(heard(capsule)), timeout_s=ENDED_S)
    return heard(capsule)


def test_enter_is_no_part_of_the_paste(project: Project, tmp_path: Path) -> None:
    x = spawn(project, tmp_path, "paste")
    assert x.agent.tell("one\ntwo").is_typed
    assert await_heard(x) == ["heard 'one\\ntwo' after 1"]


def test_enter_that_a_popup_took_is_pressed_again(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal_input, "_TAKEN_S", 0.5)
    x = spawn(project, tmp_path, "popup")
    x.agent.tell("hello")
    assert await_heard(x) == ["heard 'hello' after 2"]


@pytest.mark.parametrize("message", ["hello", "/model"])
def test_message_that_nothing_shows_to_be_taken(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    monkeypatch.setattr(terminal_input, "_TAKEN_S", 0.2)
    warnings: list[str] = []
    monkeypatch.setattr(project.session, "warn", warnings.append)
    x = spawn(project, tmp_path, "deaf")
    x.agent.tell(message)
    assert [text.splitlines()[0] for text in warnings] == [
        "nothing shows that the agent of `x` took the message: it may still be in its input box"
    ]
    assert warnings[0].endswith("hint: atoll attach x")
    assert heard(x) == []


def test_message_to_an_agent_at_work(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own traffic shows nothing, and another Enter could answer a question of its own."""
    monkeypatch.setattr(terminal_input, "_TAKEN_S", 0.2)
    warnings: list[str] = []
    monkeypatch.setattr(project.session, "warn", warnings.append)
    x = spawn(project, tmp_path, "popup")
    project.session.store.set_traffic(x.record.id, ModelTraffic(in_flight=1))
    x.agent.tell("hello")
    assert [text.split(":")[0] for text in warnings] == ["the agent of `x` is at work"]
    assert heard(x) == []
