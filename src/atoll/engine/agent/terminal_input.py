"""Types a message into the screen of an agent, as a person would: pastes it, then presses Enter.

Some programs take an Enter that comes with a paste for a part of it, and a popup can take it too.
Whether the agent took the message follows from facts: model traffic, or a screen that keeps
changing.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from atoll.engine.run import runs
from atoll.engine.state.session import Session
from atoll.host.process import wait_until
from atoll.keeper import log
from atoll.keeper.log import read_log
from atoll.model.errors import StateError
from atoll.model.secret import DeliveryKind
from atoll.model.state import Run

_BEGIN, _END = b"\x1b[200~", b"\x1b[201~"
_ON, _OFF = b"\x1b[?2004h", b"\x1b[?2004l"
_ENTER = b"\r"
_COMMAND = "/"
"""Begins a command to the agent's program, which need not ask the model."""
_SENT_S = 10.0
_SCREEN_S = 20.0
_REACTED_S = 3.0
_QUIET_S = 0.3
_TAKEN_S = 8.0
_RECENT_S = 2.0
_LOOK_S = 0.05
_AT_WORK_LOOKS = 12
"""With new output: a spinner changes ten times per second, and a new line in an input box once."""


def type_message(session: Session, run: Run, text: str) -> None:
    """Warns when nothing shows that the agent took the message.

    Raises StateError when the agent ended meanwhile, DriverError when it takes no input.
    """
    content = text.rstrip("\n").encode()
    if not _takes_pastes(run):
        _write(session, run, content + _ENTER)
        return
    was_at_work = _is_at_work(session, run)
    screen = _Screen(run)
    _write(session, run, _BEGIN + content.replace(_END, b"") + _END)
    screen.await_quiet()
    is_taken = _press_enter(session, run, text)
    if was_at_work:
        # Its traffic goes on in either case, and another Enter could answer a question of its own.
        session.warn(
            f"the agent of `{run.capsule_name}` is at work: nothing shows yet whether it took the "
            f"message\nhint: atoll attach {run.capsule_name}"
        )
        return
    if is_taken:
        return
    if text.startswith(_COMMAND) or not _press_enter(session, run, text):
        session.warn(
            f"nothing shows that the agent of `{run.capsule_name}` took the message: it may still "
            f"be in its input box\nhint: atoll attach {run.capsule_name}"
        )


def await_screen(session: Session, run: Run) -> None:
    """Waits until a program that has just been started takes input, for a limited time."""
    wait_until(
        lambda: _takes_pastes(run) or not runs.is_alive(session, run),
        timeout_s=_SCREEN_S,
        interval_s=0.1,
    )


class Evidence(NamedTuple):
    """What was observed after Enter was pressed."""

    is_counted: bool
    """Whether the requests to its model are counted."""
    is_command: bool
    """Whether the message is a command to its program."""
    has_asked: bool
    """Whether a request to its model began or went on."""
    looks: int
    """How often its screen had changed since the look before."""


def shows_work(found: Evidence) -> bool:
    """Whether an agent took a message, as far as facts can show it. Pure."""
    if found.has_asked or found.looks >= _AT_WORK_LOOKS:
        return True
    return found.looks > 0 and (found.is_command or not found.is_counted)


class _Screen:
    """Observes whether a program writes, in the log of its run."""

    def __init__(self, run: Run) -> None:
        self._path = Path(run.directory, log.CURRENT)
        self._mark = self._find_mark()
        self._changed_at: float | None = None
        self.looks = 0

    def look(self) -> None:
        mark = self._find_mark()
        if mark != self._mark:
            self._mark, self._changed_at = mark, time.monotonic()
            self.looks += 1

    def await_quiet(self) -> None:
        """Waits until it has written and stopped, for a limited time: a spinner never stops."""

        def is_quiet() -> bool:
            self.look()
            at = self._changed_at
            return at is not None and time.monotonic() - at >= _QUIET_S

        wait_until(is_quiet, timeout_s=_REACTED_S, interval_s=_LOOK_S)

    def _find_mark(self) -> tuple[int, int]:
        try:
            found = os.stat(self._path)
        except OSError:
            return (0, 0)
        return found.st_ino, found.st_size


def _is_at_work(session: Session, run: Run) -> bool:
    """Whether the model traffic of an agent is that of an earlier message."""
    traffic = session.store.traffic(run.capsule_id)
    return traffic.in_flight > 0 or time.time() - (traffic.last_at or 0.0) < _RECENT_S


def _press_enter(session: Session, run: Run, text: str) -> bool:
    """Returns whether the agent took what is in its input box."""
    grants = session.store.secret_grants(run.capsule_id)
    is_counted = any(grant.secret.delivery.kind is DeliveryKind.BROKER for grant in grants)
    pressed_at = time.time()
    screen = _Screen(run)
    _write(session, run, _ENTER)

    def is_taken() -> bool:
        screen.look()
        traffic = session.store.traffic(run.capsule_id)
        has_asked = traffic.in_flight > 0 or (traffic.last_at or 0.0) > pressed_at
        is_command = text.startswith(_COMMAND)
        return shows_work(Evidence(is_counted, is_command, has_asked, screen.looks))

    return wait_until(is_taken, timeout_s=_TAKEN_S, interval_s=_LOOK_S)


def _write(session: Session, run: Run, data: bytes) -> None:
    # Not `find_channel` with a size: the screen of a person who is attached stays as it is.
    channel = runs.find_channel(session, run, role="attach", rows=None, cols=None)
    if channel is None:
        raise StateError(f"`{run.label}` has ended", hint=f"atoll logs {run.capsule_name}")
    with channel:
        channel.write(data)
        channel.drain(timeout_s=_SENT_S)


def _takes_pastes(run: Run) -> bool:
    """Whether the program has switched bracketed paste on, as its output shows."""
    tail = b""
    is_on = False
    for entry in read_log(run.directory):
        window = tail + entry.data
        on, off = window.rfind(_ON), window.rfind(_OFF)
        if max(on, off) >= 0:
            is_on = on > off
        tail = window[-len(_ON) + 1 :]
    return is_on
