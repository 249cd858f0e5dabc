"""Lines on a terminal that change in place, one for each thing that is under way."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from contextlib import suppress

from atoll.cli.tables import cut
from atoll.model.names import printable

_STEP_S = 0.2


class LiveLines:
    """Draws on standard error; elsewhere than on a terminal, each change is a line of its own."""

    def __init__(self, *, is_silent: bool) -> None:
        self._texts: dict[str, tuple[str, float | None]] = {}
        """By label: the text, and since when it is under way."""
        self._drawn: list[str] = []
        self._lock = threading.RLock()
        self._done = threading.Event()
        self._is_silent = is_silent
        self.is_animated = (
            not is_silent and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        )
        self._thread = threading.Thread(target=self._animate, daemon=True)
        if self.is_animated:
            self._thread.start()

    def show(self, label: str, text: str, *, is_active: bool = False) -> None:
        """Changes the line of a label; with `is_active` it shows how long that takes."""
        with self._lock:
            if self._texts.get(label, ("", None))[0] == text:
                return
            self._texts[label] = (text, time.monotonic() if is_active else None)
            if self.is_animated:
                self._draw()
            elif not self._is_silent:
                self._write(f"{printable(label)}: {printable(text)}\n")

    def interrupt(self, text: str) -> None:
        """Writes a line above the others."""
        with self._lock:
            self._erase()
            self._write(text + "\n")
            if self.is_animated:
                self._draw()

    def close(self) -> None:
        """Removes the lines: the answer says the same."""
        self._done.set()
        if self.is_animated:
            self._thread.join()
            with self._lock:
                self._erase()

    def _animate(self) -> None:
        while not self._done.wait(_STEP_S):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        size = shutil.get_terminal_size()
        lines = self.render_lines(size.columns - 1, size.lines)
        # What does not fit on the screen could not be drawn over again.
        lines = lines[-max(1, size.lines - 2) :]
        if lines != self._drawn:
            self._erase()
            self._write("".join(f"{line}\n" for line in lines))
            self._drawn = lines

    def render_lines(self, columns: int, lines: int) -> list[str]:
        """What is drawn on a terminal with so many columns and lines."""
        del lines
        width = max(map(len, self._texts), default=0)
        return [
            cut(f"{printable(label):<{width}}  {self._render(text, since)}", columns)
            for label, (text, since) in self._texts.items()
        ]

    @staticmethod
    def _render(text: str, since: float | None) -> str:
        shown = printable(text)
        return shown if since is None else f"{shown} … {time.monotonic() - since:.0f} s"

    def _erase(self) -> None:
        if self._drawn:
            self._write(f"\x1b[{len(self._drawn)}F\x1b[J")
            self._drawn = []

    @staticmethod
    def _write(text: str) -> None:
        # A closed standard error must not stop the command.
        with suppress(OSError, ValueError):
            sys.stderr.write(text.encode("utf-8", "backslashreplace").decode())
            sys.stderr.flush()
