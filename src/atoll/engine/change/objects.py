"""Reads objects of the owner's repository: trees and bounded blobs, each through one `cat-file`.

The content is an agent's. Git gets constant settings, fetches nothing, and is limited in memory and
time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from atoll.host.intake.object_database import ObjectDatabase, ObjectEntry
from atoll.host.intake.transfer import require_ids
from atoll.host.pipes import Dialogue
from atoll.host.process import Program, Streamed, converse, failure, stream

BLOB_BYTES = 1 << 20
"""Up to this size, the content of a file is examined unless a caller names another limit."""
_SAFE = (
    "git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0",
    "-c", "core.bigFileThreshold=16m", "-c", f"core.attributesFile={os.devnull}",
)  # fmt: skip
_TIMEOUT_S = 600.0
_MEMORY_BYTES = 1 << 30
_OUTPUT_BYTES = 256 << 20
_DIRECTORY = 0o040000


def program(repository: str, *args: str, stdin: bytes = b"") -> Program:
    """Git in the owner's repository, without settings of the owner that only apply to people."""
    return Program(
        (*_SAFE, *args),
        cwd=repository,
        env={
            "GIT_DIR": repository,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_NO_LAZY_FETCH": "1",
        },
        stdin=stdin,
        memory_bytes=_MEMORY_BYTES,
    )


def answer(
    asked: Program,
    take: Callable[[bytes], object],
    *,
    timeout_s: float = _TIMEOUT_S,
    limit_bytes: int = _OUTPUT_BYTES,
) -> Streamed:
    """Passes what git prints to `take`, up to a limit. Raises DriverError if git cannot start."""
    return stream(asked, take, limit_bytes=limit_bytes, timeout_s=timeout_s)


class ObjectReader:
    """Trees and blobs of a repository; created by `open_objects`."""

    def __init__(self, repository: str, trees: ObjectDatabase, blobs: Dialogue) -> None:
        self.repository = repository
        self.trees = trees
        self._blobs = blobs

    def find_blob(
        self, name: str, *, limit_bytes: int = BLOB_BYTES, known_bytes: int | None = None
    ) -> bytes | None:
        """The content of a blob; None if it is missing, larger than the limit, or no blob.

        `known_bytes` is its size, if the caller has asked git for it.
        """
        require_ids(name)
        size = self._size(name) if known_bytes is None else known_bytes
        if size is None or size > limit_bytes:
            return None
        self._blobs.ask(f"contents {name}\n".encode())
        self._blobs.read_line()
        return self._blobs.read(size + 1)[:-1]

    def _size(self, name: str) -> int | None:
        self._blobs.ask(f"info {name}\n".encode())
        words = self._blobs.read_line().split(b" ")
        if len(words) != 3 or words[1] != b"blob" or not words[2].isdigit():
            return None
        return int(words[2])

    def find_entry(self, root: str, parts: Sequence[bytes]) -> ObjectEntry | None:
        """The entry at a path in a commit or tree; None if there is none."""
        entry = ObjectEntry(_DIRECTORY, self.trees.tree_of(root))
        for part in parts:
            if entry.mode != _DIRECTORY:
                return None
            below = self.trees.tree(entry.object_id).get(part)
            if below is None:
                return None
            entry = below
        return entry

    def names(self, root: str, directory: Sequence[bytes]) -> Iterable[bytes]:
        """The names in a directory of a commit or tree; none if there is no such directory."""
        entry = self.find_entry(root, directory)
        if entry is None or entry.mode != _DIRECTORY:
            return ()
        return self.trees.tree(entry.object_id)


@contextmanager
def open_objects(repository: str) -> Iterator[ObjectReader]:
    """Raises DriverError if git cannot be started."""

    def reader() -> Program:
        return program(repository, "cat-file", "--batch")

    trees = ObjectDatabase(reader, Path(repository), "sha1")
    asked = program(repository, "cat-file", "--batch-command")
    try:
        with converse(asked, timeout_s=_TIMEOUT_S) as blobs:
            yield ObjectReader(repository, trees, blobs)
    finally:
        trees.close()


def read_blob(repository: str, name: str, limit_bytes: int = BLOB_BYTES) -> bytes | None:
    """The content of one blob; None if it is missing, larger than the limit, or no blob."""
    with open_objects(repository) as objects:
        return objects.find_blob(name, limit_bytes=limit_bytes)


def sizes(repository: str, names: Iterable[str]) -> dict[str, int]:
    """The sizes of those blobs that exist."""
    asked = "".join(f"{name}\n" for name in dict.fromkeys(names))
    if not asked:
        return {}
    said = bytearray()
    form = "--batch-check=%(objectname) %(objectsize)"
    words = program(repository, "cat-file", "--buffer", form, stdin=asked.encode())
    done = answer(words, said.extend)
    if not done.is_good:
        raise failure(done.completed)
    found = {}
    for line in bytes(said).splitlines():
        name, _, size = line.partition(b" ")
        if size.isdigit():
            found[name.decode()] = int(size)
    return found
