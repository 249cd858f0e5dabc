"""Random system calls with random arguments, inside: the host is as it was afterwards.

`ATOLL_FUZZ_S` says for how many seconds; the seed is printed, and `ATOLL_FUZZ_SEED` repeats one.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from atoll.testing.remains import checkout_digest

FUZZ_S = float(os.environ.get("ATOLL_FUZZ_S", "20"))
SEED = os.environ.get("ATOLL_FUZZ_SEED") or os.urandom(4).hex()
# exit and friends, pauses and waits would only waste time; everything else is called.
PROGRAM = r"""
import ctypes, os, random, resource, signal, sys, time
seed, seconds = sys.argv[1], float(sys.argv[2])
chance = random.Random(seed)
libc = ctypes.CDLL(None, use_errno=True)
scratch = ctypes.create_string_buffer(os.urandom(4096), 4096)
paths = [ctypes.create_string_buffer(p) for p in
         (b"/", b"/proc/sys/kernel/core_pattern", b"/etc/passwd", b".", b"/dev/null", b"a/../..",
          b"/proc/1/root", b"/usr/bin/env", b"/tmp/x", b"tmpfs", b"proc", b"overlay")]
waste = {34, 35, 60, 61, 130, 202, 219, 230, 231, 247, 7, 23, 232, 270, 271, 281, 128}
def argument():
    kind = chance.randrange(8)
    if kind == 0: return chance.randrange(0, 10)
    if kind == 1: return chance.getrandbits(64) - (1 << 63)
    if kind == 2: return 1 << chance.randrange(63)
    if kind == 3: return ctypes.addressof(scratch) + chance.randrange(64)
    if kind == 4: return ctypes.addressof(chance.choice(paths))
    if kind == 5: return -chance.randrange(1, 101)
    if kind == 6: return os.getpid() + chance.randrange(-3, 3)
    return chance.getrandbits(32)
for number in range(1, signal.NSIG):
    if number != signal.SIGCHLD:
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
end, made = time.monotonic() + seconds, 0
while time.monotonic() < end:
    todo = []
    for _ in range(300):
        number = chance.randrange(0, 475)
        if number not in waste: todo.append((number, [argument() for _ in range(6)]))
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
            resource.setrlimit(resource.RLIMIT_NPROC, (400, 400))
            for fd in range(3): os.dup2(os.open("/dev/null", os.O_RDWR), fd)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(2)
            for number, given in todo:
                libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, given))
        finally:
            os._exit(0)
    made += len(todo)
    print(made, flush=True)
    stop = time.monotonic() + 3
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > stop:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
"""


def host_facts(repo):
    switches = ("kernel/core_pattern", "kernel/hostname", "kernel/panic", "vm/overcommit_memory")
    return {
        "checkout": checkout_digest(repo),
        "name": socket.gethostname(),
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "root": sorted(os.listdir("/")),
        "etc": {e.name: e.stat(follow_symlinks=False).st_mtime_ns for e in os.scandir("/etc")},
        "switches": [Path("/proc/sys", name).read_text() for name in switches],
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text(),
    }


@pytest.mark.slow
def test_random_calls_change_nothing(project, capsule, repo, git):
    before, clock = host_facts(repo), time.time() - time.monotonic()
    end, made, turn = time.monotonic() + FUZZ_S, 0, 0
    # One of the calls may kill them all: then the next run goes on.
    while (left_s := end - time.monotonic()) > 0:
        argv = ["/usr/bin/python3", "-c", PROGRAM, f"{SEED}-{turn}", str(left_s)]
        done = capsule.run(argv, timeout_s=left_s + 30)
        made += int((done.stdout.split() or [b"0"])[-1])
        turn += 1
    assert made > 1000, f"seed {SEED}: {done}"
    after = host_facts(repo)
    assert {key for key in before if before[key] != after[key]} == set(), f"seed {SEED}"
    assert abs(time.time() - time.monotonic() - clock) < 60
    git("fsck", "--full", "--strict", cwd=repo)
    capsule.remove(force=True)
    assert project.new("after").run(["true"]).exit_code == 0
