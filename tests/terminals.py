"""A real terminal for a program under test, as a person sits before it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest


class Terminal:
    """A program on a pty of its own, as the terminal's foreground process."""

    def __init__(self, argv, cwd, rows=24, cols=80, env=None, become=None):
        def take_terminal():
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            if become is not None:
                become()

        self.master, slave = pty.openpty()
        self.resize(rows, cols)
        self.process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**(os.environ if become is None else {}), "TERM": "xterm", **(env or {})},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=take_terminal,  # noqa: PLW1509 - no threads here
        )
        os.close(slave)
        self.seen = ""

    def resize(self, rows, cols):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, text):
        os.write(self.master, text.encode())

    def expect(self, pattern, timeout_s=20.0):
        deadline = time.monotonic() + timeout_s
        while not (found := re.search(pattern, self.seen)):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                pytest.fail(f"waited for {pattern!r}, saw {self.seen!r}")
            try:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
            except OSError:
                pytest.fail(f"the terminal closed; waited for {pattern!r}, saw {self.seen!r}")
        self.seen = self.seen[found.end() :]
        return found

    def close(self):
        self.process.kill()
        self.process.wait(timeout=20)
        os.close(self.master)
