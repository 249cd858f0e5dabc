"""Relays a run's input and output between its keeper and this terminal or pipe."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.engine.run.channels import Channel

Sink = Callable[[str, bytes], None]
"""Takes (`out` or `err`, data)."""

DETACH = b"\x1d"
"""Ctrl-]: detaches from a run."""
_ROWS, _COLUMNS = 24, 80
_MOUSE_MODES = (9, 1000, 1001, 1002, 1003, 1005, 1006, 1015)
_RESTORE = b"".join((
    b"\x1b[?1049l\x1b[?47l",  # the main screen
    *(b"\x1b[?%dl" % mode for mode in _MOUSE_MODES),
    b"\x1b[?1004l\x1b[?2004l\x1b[?2026l",  # focus events, bracketed paste, synchronized output
    b"\x1b[?1l\x1b>\x1b[<u\x1b[>4;0m",  # application keys, extended keyboard protocols
    b"\x1b[?7h\x1b[r\x1b[?25h\x1b[0 q",  # wrapping, scrolling region, cursor
    b"\x1b[0m\x1b(B\x0f",  # colours, character set
    b"\r\n\x1b[J",  # a line of its own for what comes next, and nothing below it
))  # fmt: skip
"""Undoes modes that a full-screen program has set and cannot reset after a detach."""


def is_terminal() -> bool:
    return _isatty(0) and _isatty(1)


def _isatty(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def size() -> tuple[int, int]:
    """Rows and columns of the terminal, also when stdout is redirected."""
    for fd in (1, 0, 2):
        with contextlib.suppress(OSError):
            columns, lines = os.get_terminal_size(fd)
            if columns and lines:
                return lines, columns
    return _ROWS, _COLUMNS


def relay(channel: Channel, sink: Sink, *, tty: bool, detachable: bool = False) -> bool:
    """Relays until the run ends; returns False if the user detached, or if the terminal of a
    `detachable` relay was closed.
    """
    hangup = _Hangup()
    detach = hangup if detachable else None
    with _signals(channel, tty=tty, hangup=detach) as wakeup, _raw_mode(tty=tty):
        reading = True
        while not channel.ended and not hangup.has_come:
            # Backpressure: stdin is not read while the keeper is congested.
            sources: list[Channel | int] = [
                channel,
                wakeup,
                *([0] if reading and not channel.congested else []),
            ]
            ready, writable, _ = select.select(sources, [channel] if channel.congested else [], [])
            if writable:
                channel.flush()
            if wakeup in ready:
                os.read(wakeup, 512)
            if channel in ready:
                for stream, data in channel.receive():
                    sink("out" if tty else stream, data)
            if 0 in ready:
                data = _read_input()
                if detachable and (not data or DETACH in data):
                    # Without data the terminal was closed.
                    sink("out", _RESTORE if data else b"")
                    return False
                reading = bool(data)
                if data:
                    channel.write(data)
                else:
                    channel.close_input()
    return not hangup.has_come


def _read_input() -> bytes:
    try:
        return os.read(0, 1 << 16)
    except OSError:
        # Closed, or the terminal disappeared: end of input.
        return b""


class _Hangup:
    """Whether the terminal was closed."""

    has_come = False


@contextmanager
def _signals(channel: Channel, *, tty: bool, hangup: _Hangup | None) -> Iterator[int]:
    """Forwards signals to the run; yields a descriptor that wakes the loop. A hangup ends the run,
    unless it is to be noted in `hangup`.
    """
    interrupts = 0

    def interrupted(number: int, _: object) -> None:
        nonlocal interrupts
        interrupts += 1
        # The second Ctrl-C stops the run.
        channel.signal(number) if interrupts == 1 else channel.stop(grace_s=1.0)

    def ended(number: int, _: object) -> None:
        if hangup is not None and number == signal.SIGHUP:
            hangup.has_come = True
        else:
            channel.stop()

    def resized(*_: object) -> None:
        channel.resize(*size())

    wanted: dict[int, Callable[[int, FrameType | None], None]] = {
        signal.SIGINT: interrupted,
        signal.SIGTERM: ended,
        signal.SIGHUP: ended,
    }
    if tty:
        wanted[signal.SIGWINCH] = resized
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.signal(number, function) for number, function in wanted.items()}
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        if tty:
            # It may have changed since the channel was opened.
            resized()
        yield reader
    finally:
        signal.set_wakeup_fd(previous)
        for number, function in before.items():
            signal.signal(number, function)
        os.close(reader)
        os.close(writer)


@contextmanager
def _raw_mode(*, tty: bool) -> Iterator[None]:
    if not tty:
        yield
        return
    import termios  # noqa: PLC0415 - only with a terminal
    import tty as terminal  # noqa: PLC0415

    before = termios.tcgetattr(0)
    # TCSANOW keeps input that was typed ahead.
    terminal.setraw(0, termios.TCSANOW)
    try:
        yield
    finally:
        # The terminal may have been closed.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, before)
