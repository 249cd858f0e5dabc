"""Decides which untracked paths are ignored, by git's rules but in a skeleton work tree.

Git gets a work tree with nothing but directories and copies of `.gitignore` files, and a repository
with the owner's excludes. The agent's excludes and settings have no effect. If git fails or takes
too long over hostile patterns, nothing more is ignored: then too much is shown and nothing hidden.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path
from typing import Self

from atoll.host.beneath import TreeReader
from atoll.host.intake.store import (
    IntakeRepository,
    OwnerSettings,
    make_store,
    personal_files,
    scratch_directory,
)
from atoll.host.intake.transfer import error_output
from atoll.host.process import stream
from atoll.model.untrusted import InsidePath

_FILE_BYTES = 1 << 20
_ALL_FILES_BYTES = 64 << 20
_MOST_DIRECTORIES = 500_000
_ASKED_BYTES = 3500
"""Longer paths are not checked: they are close to the limits of git and the kernel."""
_TIMEOUT_S = 30.0
_NONE_IGNORED = 1
_NAME = b".gitignore"
_HFS_IGNORED = {*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF}


class Ignore:
    """A context manager. `scratch` is a directory of Atoll."""

    def __init__(
        self,
        reader: TreeReader,
        settings: OwnerSettings,
        *,
        scratch: Path,
        is_void: Callable[[bytes, str], bool] = lambda _content, _directory: False,
    ) -> None:
        """`is_void` decides, by content and directory, whether a `.gitignore` must be ignored."""
        self._reader, self._settings, self._scratch = reader, settings, scratch
        self._is_void = is_void
        self._stack = ExitStack()
        self._store: IntakeRepository | None = None
        self._root = -1
        self._prepared: set[bytes] = set()
        self._made: set[bytes] = {b""}
        self._left_bytes = _ALL_FILES_BYTES
        self.failure: str | None = None
        """Why nothing is ignored any more."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            place = stack.enter_context(scratch_directory(self._scratch))
            store = stack.enter_context(make_store(place, "", self._settings))
            self._root = os.open(store.staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, self._root)
            self._store = store
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._store = None

    def ignored(self, paths: Iterable[tuple[InsidePath, bool]]) -> set[InsidePath]:
        """The ignored ones of `paths` (each with whether it is a directory).

        Runs one program per call: pass all entries of a tree level at once, and none below an
        ignored directory.
        """
        asked: dict[bytes, InsidePath] = {}
        for path, is_directory in paths:
            if len(path.raw) <= _ASKED_BYTES and self.failure is None and self._prepare(path):
                if is_directory:
                    self._make(path.raw)
                asked[path.raw] = path
        if not asked:
            return set()
        return {asked[raw] for raw in self._ask(asked) if raw in asked}

    def _ask(self, asked: Iterable[bytes]) -> list[bytes]:
        if self._store is None:
            raise ValueError("it is not open")
        # This command takes no literal paths; with this prefix none starts with `:`.
        given = b"".join(b"./" + raw + b"\0" for raw in asked)
        program = self._store.program(
            *personal_files(self._store.git_dir),
            "check-ignore", "--stdin", "-z", "--no-index",
            stdin=given, env={"GIT_LITERAL_PATHSPECS": "0"},
        )  # fmt: skip
        answer = bytearray()
        # Without `--verbose` git prints no pattern: its output is a subset of its input.
        done = stream(
            program, answer.extend, limit_bytes=len(given) + (1 << 20), timeout_s=_TIMEOUT_S
        )
        if done.ended != "whole" or done.completed.code not in (0, _NONE_IGNORED):
            why = (
                error_output(done.completed)
                if done.ended == "whole"
                else f"over a limit ({done.ended})"
            )
            self.failure = f"`git check-ignore` failed: {why}"
            return []
        return [raw.removeprefix(b"./") for raw in bytes(answer).split(b"\0")]

    def _prepare(self, path: InsidePath) -> bool:
        """Copies the `.gitignore` files that apply to a path; False if it cannot be checked."""
        if any(is_git_name(part) for part in path.parts):
            return False
        places: list[InsidePath | None] = [*reversed(list(path.parents())), None]
        for place in places:
            raw = b"" if place is None else place.raw
            if raw in self._prepared:
                continue
            if len(self._prepared) >= _MOST_DIRECTORIES or not self._make(raw):
                return False
            self._prepared.add(raw)
            self._copy(place)
        return True

    def _copy(self, place: InsidePath | None) -> None:
        source = InsidePath(_NAME) if place is None else place.child(_NAME)
        content = self._reader.read(source, limit_bytes=min(_FILE_BYTES, self._left_bytes))
        if content is None or self._is_void(content, os.fsdecode(place.raw if place else b"")):
            return
        self._left_bytes -= len(content)
        how = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(FileExistsError), open(_opened(source.raw, how, self._root), "wb") as file:
            file.write(content)

    def _make(self, raw: bytes) -> bool:
        """Creates a directory of the skeleton and its parents."""
        for place in _ways(raw):
            if place in self._made:
                continue
            if place.rpartition(b"/")[2] == _NAME:
                return False
            try:
                os.mkdir(place, mode=0o700, dir_fd=self._root)
            except OSError:
                return False
            self._made.add(place)
        return True


def _opened(raw: bytes, how: int, root: int) -> int:
    return os.open(raw, how, mode=0o600, dir_fd=root)


def _ways(raw: bytes) -> Iterator[bytes]:
    """A directory and its parents, outermost first."""
    parts = raw.split(b"/")
    for count in range(1, len(parts) + 1):
        yield b"/".join(parts[:count])


@lru_cache(maxsize=1 << 14)
def is_git_name(name: bytes) -> bool:
    """Whether some filesystem considers a name equal to `.git`."""
    # Nearly all names are plain ASCII without a match.
    if name.isascii() and not name.lower().startswith((b".git", b"git~")):
        return False
    text = os.fsdecode(name)
    plain = "".join(c for c in text if ord(c) not in _HFS_IGNORED).lower()
    return plain.split(":")[0].rstrip(". ") in (".git", "git~1")
