"""Fixtures for tests that drive the program from outside while it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest


def hear_interrupts():
    """A shell starts background jobs deaf to SIGINT, and so may whoever started the tests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def start_cli(atoll_home):
    """`start_cli("run", "x", "--", "cat", cwd=repo)`: the program, running, with pipes."""
    started = []

    def start(*args, cwd):
        process = subprocess.Popen(
            [sys.executable, "-m", "atoll", *args],
            cwd=cwd,
            env=dict(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=hear_interrupts,  # noqa: PLW1509 - no threads here
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(timeout=20)
        process.stdout.close()
