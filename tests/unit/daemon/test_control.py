"""The control socket answers also when the daemon has many descriptors, or none left."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.keeper import requests, wire
from present import present

PROGRAM = """
import asyncio, os, resource, socket, sys
sys.path.append({source!r})
from atoll.daemon.control import Control
from atoll.keeper import wire
from atoll.model.daemon_messages import AttachReply

async def answer(request):
    return AttachReply(True, {{}})

async def main():
    listener = wire.listen({place!r}, "socket", socket.SOCK_SEQPACKET)
    serving = asyncio.create_task(Control(listener, answer).serve())
    await asyncio.sleep(0)
    highest = error = 0
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, ({most}, hard))
    try:
        while highest < {count}:
            highest = os.dup(0)
    except OSError as failure:
        error = failure.errno
    os.write(1, b"%d\\n" % error)
    await serving

asyncio.run(main())
"""
EMFILE = 24


@pytest.fixture
def serve(tmp_path):
    """`serve(most, count)`: a control socket in a process that holds descriptors up to the number
    `count`, and may have `most`; gives the error with which that ended, and asks.
    """
    started = []

    def start(most: int, count: int):
        source = str(Path(__file__).parents[3] / "src")
        program = PROGRAM.format(source=source, place=str(tmp_path), most=most, count=count)
        process = subprocess.Popen([sys.executable, "-I", "-c", program],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)  # fmt: skip
        started.append(process)
        error = int(present(process.stdout).readline())

        def ask():
            seqpacket = socket.SOCK_SEQPACKET
            with wire.connect(tmp_path, "socket", seqpacket, timeout_s=60) as sock:
                return requests.ask(sock, {"do": "attach", "capsule": 1})[0].get("held")

        return error, ask

    yield start
    for process in started:
        process.kill()
        process.wait()
        present(process.stdout).close()


def test_answers_without_any_descriptor_left(serve):
    error, ask = serve(256, 1000)
    # The control: nothing else can be opened there.
    assert error == EMFILE
    assert [ask() for _ in range(20)] == [True] * 20


def test_answers_with_many_descriptors(serve):
    """`select` refuses those above 1,023."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 4096:
        pytest.skip("needs a limit of 4,096 descriptors")
    error, ask = serve(4096, 2000)
    assert error == 0
    assert ask()
