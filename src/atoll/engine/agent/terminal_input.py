"""Types a message into the screen of an agent, as a person would paste it."""

from __future__ import annotations

from atoll.engine.run import runs
from atoll.engine.state.session import Session
from atoll.host.process import wait_until
from atoll.keeper.log import read_log
from atoll.model.errors import StateError
from atoll.model.state import Run

_BEGIN, _END = b"\x1b[200~", b"\x1b[201~"
_ON, _OFF = b"\x1b[?2004h", b"\x1b[?2004l"
_SENT_S = 10.0
_SCREEN_S = 20.0


def type_message(session: Session, run: Run, text: str) -> None:
    """Raises StateError when the agent ended meanwhile, DriverError when it takes no input."""
    content = text.rstrip("\n").encode()
    if _takes_pastes(run):
        content = _BEGIN + content.replace(_END, b"") + _END
    # Not `find_channel` with a size: the screen of a person who is attached stays as it is.
    channel = runs.find_channel(session, run, role="attach", rows=None, cols=None)
    if channel is None:
        raise StateError(f"`{run.label}` has ended", hint=f"atoll logs {run.capsule_name}")
    with channel:
        channel.write(content + b"\r")
        channel.drain(timeout_s=_SENT_S)


def await_screen(session: Session, run: Run) -> None:
    """Waits until a program that has just been started takes input, for a limited time."""
    wait_until(
        lambda: _takes_pastes(run) or not runs.is_alive(session, run),
        timeout_s=_SCREEN_S,
        interval_s=0.1,
    )


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
