"""What the daemon keeps in memory: nothing of idle connections, and less after a burst."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tracemalloc
from pathlib import Path

from atoll.daemon.relay import CHUNK_BYTES, relay

PROGRAM = """
import sys
sys.path.append({source!r})
from atoll.daemon.memory import MemoryTrimmer, resident_bytes

trimmer = MemoryTrimmer()
assert not trimmer.trim_if_grown()
before = resident_bytes()
# Small pieces, which libc keeps for later: those between them stay in use.
pieces = [bytearray(2000) for _ in range(20_000)]
kept = pieces[::400]
full = resident_bytes()
del pieces[:]
idle = resident_bytes()
looks = 0
while not trimmer.trim_if_grown():
    looks += 1
    assert looks < 20
print(full - before, idle - before, resident_bytes() - before)
"""


def test_memory_is_returned():
    source = str(Path(__file__).parents[3] / "src")
    done = subprocess.run([sys.executable, "-I", "-c", PROGRAM.format(source=source)],
                          capture_output=True, text=True, timeout=60, check=True)  # fmt: skip
    full, idle, trimmed = map(int, done.stdout.split())
    # The control: without trimming most of it stays.
    assert idle > full / 2 > 10 << 20
    assert trimmed < idle / 4


def test_idle_connection_keeps_nothing_of_what_it_carried():
    count = 32

    async def story():
        ends, tasks = [], []
        for _ in range(count):
            (outer, left), (right, inner) = socket.socketpair(), socket.socketpair()
            for sock in (outer, left, right, inner):
                sock.setblocking(False)
            ends += [outer, inner]
            tasks.append(asyncio.create_task(relay(left, right)))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        tracemalloc.start()
        for outer, inner in zip(ends[::2], ends[1::2], strict=True):
            await loop.sock_sendall(outer, bytes(CHUNK_BYTES // 2))
            remaining = CHUNK_BYTES // 2
            while remaining:
                remaining -= len(await loop.sock_recv(inner, CHUNK_BYTES))
        now, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        for end in ends:
            end.close()
        await asyncio.gather(*tasks)
        return now, peak

    now, peak = asyncio.run(story())
    # The control: while it was carried, it was there.
    assert peak > CHUNK_BYTES // 2
    assert now < count * CHUNK_BYTES // 8
