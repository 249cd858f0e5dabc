"""Fixtures for tests that drive the program from outside while it runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


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
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(timeout=20)
        process.stdout.close()
