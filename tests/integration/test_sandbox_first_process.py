"""The first process of a sandbox is out of reach, and a run inherits nothing but 0, 1 and 2."""

from __future__ import annotations

import json

from persons import as_both

# Writes one byte back to where it stands in a process' memory; tells what came of each path.
PAYLOAD = r"""
import ctypes, json, os, signal, sys
mark = ctypes.create_string_buffer(b"m")
child = os.fork()
if child == 0:
    signal.pause()
def write(path):
    try:
        with open(path, "r+b", buffering=0) as memory:
            memory.seek(ctypes.addressof(mark))
            memory.write(b"n")
        return "written"
    except OSError as error:
        return error.strerror
def listed(path):
    try:
        return os.listdir(path)
    except OSError as error:
        return error.strerror
first = ("/proc/1/mem", "/proc/1/task/1/mem", f"/proc/{child}/root/proc/1/mem",
         "/proc/self/task/../../1/mem", "/proc/1/environ", "/proc/1/maps")
found = {
    "first": {path: write(path) for path in first},
    "listed": [listed("/proc/1"), listed("/proc/1/fd"), listed("/proc/1/task")],
    "own": [write(f"/proc/{child}/mem"), write(f"/proc/{child}/task/{child}/mem")],
}
os.kill(child, signal.SIGKILL)
print(json.dumps(found))
"""


@as_both
def test_memory_of_the_first_process_cannot_be_written(person):
    person.atoll("new", "x")
    said = json.loads(person.atoll("run", "x", "--", "python3", "-c", PAYLOAD).stdout)
    assert set(said["first"].values()) == {"No such file or directory"}, said
    assert said["listed"] == [[], *["No such file or directory"] * 2]
    assert said["own"] == ["written", "written"]


@as_both
def test_tools_that_list_processes_work(person):
    person.atoll("new", "x")
    script = (
        # Until it has become what it is.
        "sleep 1000 & until pgrep -x sleep > /dev/null; do :; done; "
        "ps -eo comm=; top -bn1 | grep -c sleep; kill $!"
    )
    said = person.sh("x", script).split()
    assert "sleep" in said
    assert int(said[-1]) >= 1


@as_both
def test_a_run_inherits_three_descriptors(person):
    person.atoll("new", "x")
    listing = ("python3", "-c", "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))")
    assert person.atoll("run", "x", "--", *listing).stdout == "[0, 1, 2, 3]\n"
    many = ["a"] * 10_000
    assert person.atoll("run", "x", "--", *listing, *many).stdout == "[0, 1, 2, 3]\n"
