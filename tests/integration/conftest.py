"""Fixtures for tests that drive the program from outside while it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import persons
from present import present


def hear_interrupts():
    """A shell starts background jobs with SIGINT ignored, and so may the parent of the tests."""
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
        present(process.stdout).close()


@pytest.fixture
def person(request):
    """Who uses Atoll at level `sandbox`: `@as_both` for root and a user, else the current user."""
    who = getattr(request, "param", "root" if os.geteuid() == 0 else "user")
    if who == "root" and os.geteuid() != 0:
        pytest.skip("only root can try what root may do")
    persons.require("bwrap")
    with persons.living(who, Path(tempfile.mkdtemp(prefix="atoll-person-"))) as made:
        yield made
