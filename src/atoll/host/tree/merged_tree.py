"""A capsule's tree read on the host: merged layers, or one plain directory.

Nothing is mounted, no link is followed, and whatever the capsule changes meanwhile, only its layers
are read: see `layer_stack`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from atoll.host.beneath import EntryKind
from atoll.host.tree.layer_stack import (
    LayerPosition,
    LayerStack,
    Namespace,
    PathComponent,
    VisibleEntry,
    is_closed,
    is_gone,
    list_names,
)
from atoll.model.errors import StateError
from atoll.model.untrusted import InsidePath, Untrusted

Skip = Callable[[InsidePath, bool], bool]

_NAMES = 500_000


class MergedEntry(NamedTuple):
    """A regular file or a symbolic link."""

    mode: int
    """The complete `st_mode`."""
    size: int
    mtime_ns: int
    target: Untrusted | None
    """The target of a link; None for a file."""
    place: LayerPosition
    """Its layer and path, for `MergedTree.find_entry`."""


class TreeChanges(NamedTuple):
    """The changes of the own layers of a stack, unordered."""

    entries: dict[InsidePath, MergedEntry]
    """Files and links of the own layers, and everything below a redirected directory."""
    directories: list[InsidePath]
    """Directories of the own layers, and those below a redirected one."""
    hidden: list[InsidePath]
    """Paths of the lower layers that are hidden with everything below them: removed, replaced (a
    file that replaces a file is an entry, too), or below an opaque or redirected directory."""
    closed: list[InsidePath]
    """Paths that could not be read, because of their mode or the length of paths in them."""
    special: list[InsidePath]
    """Fifos, sockets and devices."""


class MergedTree:
    """A `TreeReader` of a stack of overlay layers; a context manager."""

    def __init__(
        self,
        layers: Sequence[Path],
        *,
        own: int,
        namespace: Namespace | None,
        at: str = "workspace",
    ) -> None:
        """`layers` are the trees of the layers, bottom first; the topmost `own` belong to the
        capsule. The tree is the directory `at` of the overlay, or all of it. Without a namespace,
        attributes and whiteouts have no meaning.

        Raises StateError if a layer is missing. Every method raises StateError for an unsupported
        overlayfs attribute: a misread layer would show what the capsule has removed.
        """
        if not 1 <= own <= len(layers):
            raise ValueError("a stack has at least one layer of its own")
        self._first_own = len(layers) - own
        self._stack = LayerStack(layers, namespace)
        try:
            self._top = self._find_top(at)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    def kind(self, path: InsidePath) -> EntryKind | None:
        """The type of an entry; None if there is none, or if it is unreachable."""
        shown = self._find(path)
        return None if shown is None else _kind_of(shown.status.st_mode)

    def names(self, directory: InsidePath | None) -> list[InsidePath]:
        """The entries of a directory, sorted; None is the root. Empty if it is no directory or
        cannot be listed. Raises StateError if it has more than a fixed number of entries.
        """
        places = self._top
        if directory is not None:
            shown = self._find(directory)
            places = shown.places if shown is not None and shown.is_directory else ()
        found = []
        try:
            with self._stack.opened(places) as parts:
                for name in list_names(parts, limit=_NAMES):
                    path = _join(directory, name)
                    if path is not None and self._stack.look_up(parts, name) is not None:
                        found.append(path)
        except OSError as error:
            _require_absent(error)
            return []
        return sorted(found)

    def find_file(self, path: InsidePath) -> int | None:
        """A descriptor of a regular file for reading; None if there is no readable one."""
        shown = self._find(path)
        if shown is None or not stat.S_ISREG(shown.status.st_mode):
            return None
        return self._find_file(shown.places[0])

    def find_entry(self, entry: MergedEntry) -> int | None:
        """As `find_file`, for a result of `changes`, without searching all layers again."""
        return self._find_file(entry.place)

    def read(self, path: InsidePath, *, limit_bytes: int) -> bytes | None:
        """The content of a regular file; None if there is none, or it exceeds the limit."""
        handle = self.find_file(path)
        if handle is None:
            return None
        with os.fdopen(handle, "rb") as stream:
            if os.fstat(handle).st_size > limit_bytes:
                return None
            content = stream.read(limit_bytes + 1)
        return content if len(content) <= limit_bytes else None

    def changes(self, *, skip: Skip | None = None, limit_entries: int = 2_000_000) -> TreeChanges:
        """The changes of the own layers.

        `skip(path, is_directory)` is called top-down; entries for which it is true are neither
        reported nor descended into. Raises StateError if there are more entries than the limit,
        including hidden ones, and if the root cannot be read.
        """
        return _Walk(self._stack, self._first_own, skip, limit_entries).run(self._top)

    def _find_file(self, place: LayerPosition) -> int | None:
        try:
            return self._stack.find_file(place)
        except OSError as error:
            _require_absent(error)
            return None

    def _find(self, path: InsidePath) -> VisibleEntry | None:
        shown: VisibleEntry | None = None
        places = self._top
        for name in path.parts:
            try:
                with self._stack.opened(places) as parts:
                    shown = self._stack.look_up(parts, name)
            except OSError as error:
                _require_absent(error)
                return None
            places = shown.places if shown is not None and shown.is_directory else ()
        return shown

    def _find_top(self, at: str) -> tuple[LayerPosition, ...]:
        places = self._stack.top
        for name in at.encode().split(b"/") if at else ():
            try:
                with self._stack.opened(places) as parts:
                    look = _look_at(self._stack, parts, name, self._first_own)
            except OSError as error:
                raise StateError(f"`{at}` cannot be read: {error.strerror}") from error
            if look.hides:
                raise StateError(f"the capsule replaced the entire directory `{at}`")
            shown = look.shown
            places = shown.places if shown is not None and shown.is_directory else ()
        return places


class PlainTree(MergedTree):
    """A `TreeReader` of one directory that belongs to the capsule entirely."""

    def __init__(self, root: Path) -> None:
        """Raises StateError if there is no such directory."""
        super().__init__([root], own=1, namespace=None, at="")


class _Look(NamedTuple):
    """A name in a merged directory, and what the capsule changed about it."""

    shown: VisibleEntry | None
    hides: bool
    """Whether it hides something of the lower layers."""
    is_moved: bool
    """Whether it is a directory redirected to another path of the lower layers."""


def _look_at(
    stack: LayerStack, parts: Sequence[PathComponent], name: bytes, first_own: int
) -> _Look:
    shown = stack.look_up(parts, name)
    lower = stack.look_up([part for part in parts if part.place.layer < first_own], name)
    if shown is not None and shown.places[0].layer < first_own:
        return _Look(shown, hides=False, is_moved=False)
    natural = () if lower is None else lower.places
    merged = () if shown is None else shown.places
    below = tuple(place for place in merged if place.layer < first_own)
    return _Look(
        shown, hides=bool(natural) and below != natural, is_moved=below not in ((), natural)
    )


class _Waiting(NamedTuple):
    path: InsidePath | None
    places: tuple[LayerPosition, ...]
    is_moved: bool
    """Whether lower layers count as changes, too: they are shown at another path."""


class _Walk:
    def __init__(
        self, stack: LayerStack, first_own: int, skip: Skip | None, limit_entries: int
    ) -> None:
        self._stack = stack
        self._first_own = first_own
        self._skip = skip
        self._limit = limit_entries
        self._count = 0
        self._found = TreeChanges({}, [], [], [], [])
        self._waiting: list[_Waiting] = []

    def run(self, top: tuple[LayerPosition, ...]) -> TreeChanges:
        self._waiting.append(_Waiting(None, top, is_moved=False))
        while self._waiting:
            directory = self._waiting.pop()
            with self._closing(directory.path):
                self._visit(directory)
        return self._found

    @contextmanager
    def _closing(self, path: InsidePath | None) -> Iterator[None]:
        """Reports unreadable paths as closed."""
        try:
            yield
        except OSError as error:
            if is_gone(error):
                return
            if not is_closed(error) or path is None:
                name = "the root directory" if path is None else f"`{path.shown()}`"
                raise StateError(f"{name} cannot be read: {error.strerror}") from error
            self._found.closed.append(path)

    def _visit(self, directory: _Waiting) -> None:
        with self._stack.opened(directory.places) as parts:
            listed = [
                part for part in parts if directory.is_moved or part.place.layer >= self._first_own
            ]
            names = list_names(listed, limit=self._limit - self._count)
            self._count += len(names)
            is_complete = True
            for name in names:
                path = _join(directory.path, name)
                if path is None:
                    is_complete = False
                    continue
                with self._closing(path):
                    self._visit_name(directory, parts, path)
        if not is_complete and directory.path is not None:
            self._found.closed.append(directory.path)

    def _visit_name(
        self, directory: _Waiting, parts: Sequence[PathComponent], path: InsidePath
    ) -> None:
        shown, hides, is_moved = _look_at(self._stack, parts, path.name, self._first_own)
        is_directory = shown is not None and shown.is_directory
        if self._skip is not None and self._skip(path, is_directory):
            return
        if hides:
            self._found.hidden.append(path)
        is_moved = is_moved or directory.is_moved
        if shown is None or (shown.places[0].layer < self._first_own and not is_moved):
            return
        if is_directory:
            self._found.directories.append(path)
            self._waiting.append(_Waiting(path, shown.places, is_moved))
            return
        kind = _kind_of(shown.status.st_mode)
        if kind == "special":
            self._found.special.append(path)
        else:
            self._add_entry(path, shown)

    def _add_entry(self, path: InsidePath, shown: VisibleEntry) -> None:
        status, place = shown.status, shown.places[0]
        target = None
        if stat.S_ISLNK(status.st_mode):
            target = self._stack.read_link(place)
        self._found.entries[path] = MergedEntry(
            status.st_mode, status.st_size, status.st_mtime_ns, target, place
        )


def _join(directory: InsidePath | None, name: bytes) -> InsidePath | None:
    """None if the path is too long to be opened."""
    try:
        return InsidePath(name) if directory is None else directory.child(name)
    except ValueError:
        return None


def _kind_of(mode: int) -> EntryKind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "link" if stat.S_ISLNK(mode) else "special"


def _require_absent(error: OSError) -> None:
    """Raises StateError unless the entry has vanished or cannot be read."""
    if not is_gone(error) and not is_closed(error):
        raise StateError(f"a layer cannot be read: {error.strerror}") from error
