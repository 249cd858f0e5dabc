"""Programs that Atoll starts in a view: its holder forks them, and they end with their client."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from atoll.drivers.layers.build_view import holding
from atoll.host import process
from atoll.host.forkserver import ForkServer
from atoll.host.process import run, wait_until
from atoll.model.enclosure import Bind, Bwrap, Enclosure, View
from atoll.model.errors import DriverError, IsolationError, StateError

CLIENT = """
import os, sys
from atoll.host.process import run
from atoll.model.enclosure import Enclosure
inside = Enclosure(env={"PATH": os.environ["PATH"]}, cwd=sys.argv[2], holder=sys.argv[1])
run(("sh", "-c", "echo $$ > pid; while :; do :; done"), within=inside)
"""


@pytest.fixture
def inside(tmp_path):
    for name in ("layers", "source", "shown", "held"):
        (tmp_path / name).mkdir()
    (tmp_path / "source" / "file").write_text("content")
    mount = Bind(str(tmp_path / "source"), str(tmp_path / "shown"))
    view = View(user=os.geteuid() != 0, pool=str(tmp_path / "layers"), mounts=(mount,))
    fork_server = ForkServer(str(tmp_path))
    with holding(fork_server, view, tmp_path / "held") as enclosure:
        yield enclosure._replace(cwd=str(tmp_path / "shown"))
    fork_server.close()


def test_program_runs_in_the_view_with_its_streams_and_nothing_else(inside):
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    script = "cat file -; echo error >&2; set -- /proc/$$/fd/*; echo $#; umask; exit 3"
    umask = os.umask(0o027)
    try:
        done = run(("sh", "-c", script), within=inside, stdin=b"input\n", allowed=(3,))
    finally:
        os.umask(umask)
        os.close(reader)
        os.close(writer)
    assert done.code == 3
    assert done.stderr == b"error\n"
    first, descriptors, mask = done.lines
    assert first == "contentinput"
    assert mask == "0027"
    # The three streams, the lock of the view, and the directory that the shell reads. A pipeline
    # would count its own pipe if it is read before the shell has closed it.
    assert int(descriptors) == 5
    assert not os.path.exists(os.path.join(inside.cwd, "file"))


def test_programs_start_beside_threads(inside):
    """At once, and each gets its own answer."""
    answers = {}

    def ask(number):
        for turn in range(5):
            answers[number, turn] = run(("sh", "-c", f"echo {number} {turn}"), within=inside).text

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {(n, t): f"{n} {t}\n" for n in range(4) for t in range(5)}


def test_program_that_cannot_start_is_reported(inside):
    with pytest.raises(DriverError, match="/no/such/place"):
        run(("true",), within=inside, cwd="/no/such/place")
    with pytest.raises(StateError):
        run(("true",), within=inside._replace(holder=f"{inside.holder}/none"))
    with pytest.raises(ValueError, match="descriptor"):
        run(("true",), within=inside, keep_fds=(0,))
    assert run(("cat", "file"), within=inside).text == "content"


def test_signals_and_output_limit_end_the_program(inside):
    assert run(("sh", "-c", "kill -9 $$"), within=inside, allowed=(-9,)).code == -signal.SIGKILL
    began = time.monotonic()
    with pytest.raises(DriverError, match="wrote more than"):
        run(("yes",), within=inside, limit_bytes=1 << 20)
    assert time.monotonic() - began < 10


def test_program_ends_with_its_client(inside, tmp_path):
    words = [sys.executable, "-c", CLIENT, inside.holder, inside.cwd]
    client = process.launch(words, keep_fds=(), env={**os.environ})
    marker = tmp_path / "source" / "pid"
    assert wait_until(lambda: marker.exists() and bool(marker.read_text()), timeout_s=20)
    pid = int(marker.read_text())
    os.kill(pid, 0)
    client.kill()
    client.wait()
    assert wait_until(lambda: not os.path.exists(f"/proc/{pid}"), timeout_s=10)


def test_walls_without_a_view_are_refused(tmp_path):
    walls = Bwrap("/usr/bin/bwrap", "/", (), b"", None, str(tmp_path))
    with pytest.raises(IsolationError):
        run(("true",), within=Enclosure(env={}, cwd=str(tmp_path), walls=walls))
