"""What a worker leaves for the one that replaces it."""

from __future__ import annotations

import faulthandler
import mmap
import os

import pytest

from atoll.daemon.watcher_memory import WatcherMemory


def end_of(child) -> int:
    """The exit code of a process that only calls `child`."""
    pid = os.fork()
    if pid == 0:
        code = 1
        faulthandler.disable()
        try:
            child()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_next_worker_has_what_the_last_one_stored():
    memory = WatcherMemory()
    assert memory.load() == b""
    assert end_of(lambda: memory.store(b"key")) == 0
    assert memory.load() == b"key"


def test_nothing_of_what_was_stored_before_is_left():
    memory = WatcherMemory()
    memory.store(b"a long key")
    memory.store(b"")
    assert memory.load() == b""
    assert bytes(memory._memory) == bytes(mmap.PAGESIZE)


def test_children_of_a_worker_do_not_have_it():
    memory = WatcherMemory()
    memory.store(b"key")
    memory.keep_from_children()
    assert end_of(memory.load) < 0
    assert memory.load() == b"key"


def test_what_is_too_long_is_not_stored():
    with pytest.raises(ValueError, match="too long"):
        WatcherMemory().store(bytes(mmap.PAGESIZE))
