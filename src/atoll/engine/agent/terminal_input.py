"""Types a message into the screen of an agent, as a person would paste it."""

from __future__ import annotations

from atoll.engine.run import runs
from atoll.engine.state.session import Session
from atoll.host.process import pause, wait_until
from atoll.keeper.log import read_log
from atoll.model.errors import StateError
from atoll.model.state import Run

_BEGIN, _END = b"\x1b[200~", b"\x1b[201~"
_ON, _OFF = b"\x1b[?2004h", b"\x1b[?2004l"
_SENT_S = 10.0
_SCREEN_S = 20.0
_ECHO_S = 5.0
"""A screen that shows nothing of what is pasted gets Enter after this time."""
_SETTLE_S = 0.3
"""Gemini CLI needs 40 ms from a paste to Enter."""


def type_message(session: Session, run: Run, text: str) -> None:
    """Raises StateError when the agent ended meanwhile, DriverError when it takes no input."""
    content = text.rstrip("\n").encode()
    is_paste = _takes_pastes(run)
    # Not `find_channel` with a size: the screen of a person who is attached stays as it is.
    channel = runs.find_channel(session, run, role="attach", rows=None, cols=None)
    if channel is None:
        raise StateError(f"`{run.label}` has ended", hint=f"atoll logs {run.capsule_name}")
    with channel:
        if is_paste:
            shown = _shown_bytes(run)
            channel.write(_BEGIN + content.replace(_END, b"") + _END)
            channel.drain(timeout_s=_SENT_S)
            # Enter that comes with a paste, or right after it, is a line of it to some programs.
            wait_until(lambda: _shown_bytes(run) > shown, timeout_s=_ECHO_S, interval_s=0.02)
            pause(_SETTLE_S)
            content = b""
        channel.write(content + b"\r")
        channel.drain(timeout_s=_SENT_S)


def await_screen(session: Session, run: Run) -> None:
    """Waits until a program that has just been started takes input, for a limited time."""
    wait_until(
        lambda: _takes_pastes(run) or not runs.is_alive(session, run),
        timeout_s=_SCREEN_S,
        interval_s=0.1,
    )


def _shown_bytes(run: Run) -> int:
    return sum(len(entry.data) for entry in read_log(run.directory))


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
