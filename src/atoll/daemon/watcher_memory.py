"""A few bytes that outlive a worker: the key of the vault that its owner has given to the daemon.

A worker that is replaced would otherwise lose the key, and every brokered secret would be
unavailable until the owner unlocks the vault again. The watcher and its workers share a page of
memory that has no name and no descriptor. It is in no file, no core dump and no child process of a
worker, and ends with the watcher.
"""

from __future__ import annotations

import mmap
import struct

_SIZE = struct.Struct("=I")


class WatcherMemory:
    """Made before the first worker is forked."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._memory.madvise(mmap.MADV_DONTDUMP)

    def keep_from_children(self) -> None:
        """For a worker: no process that it starts inherits the page."""
        self._memory.madvise(mmap.MADV_DONTFORK)

    def store(self, data: bytes) -> None:
        """Replaces what was stored; nothing erases it. ValueError when it is too long."""
        if len(data) > mmap.PAGESIZE - _SIZE.size:
            raise ValueError("too long to be kept")
        # A worker may end at any moment: what is incomplete counts as nothing.
        self._memory[:] = bytes(mmap.PAGESIZE)
        self._memory[_SIZE.size : _SIZE.size + len(data)] = data
        _SIZE.pack_into(self._memory, 0, len(data))

    def load(self) -> bytes:
        """What was stored last, also by a worker that has ended."""
        (size,) = _SIZE.unpack_from(self._memory)
        return self._memory[_SIZE.size : _SIZE.size + size]
