"""Fixtures for tests that drive the program from outside while it runs."""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

import atoll
import persons
from present import present
from upstreams import Upstream


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


@pytest.fixture
def project(repo, atoll_home, monkeypatch):
    """A project whose capsules are at level `sandbox`; they are removed."""
    monkeypatch.setenv("ATOLL_LEVEL", "sandbox")
    opened = atoll.open_project(repo)
    yield opened
    for capsule in opened.capsules():
        capsule.remove(force=True)
    opened.session.store.close()


@pytest.fixture
def upstream():
    """The URL of a server of the owner that remembers the keys it gets."""
    Upstream.keys.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()
