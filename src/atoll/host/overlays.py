"""Overlay layers, merged without a mount: what overlayfs would show becomes a tree, or one layer.

The upper layers are an agent's work: names are only ever joined to a directory that is open,
links are never followed, and a mark that is not understood is refused, since a layer that is read
wrongly shows what its owner had removed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from atoll.host.contents import Method, Opened
from atoll.host.copying import Marks, Part, copy_parts
from atoll.host.trees import (
    LeftOut,
    Manifest,
    Root,
    is_gone,
    parents,
    special_kind,
    stamp_of,
    unreadable,
    walk,
)
from atoll.host.workers import Progress
from atoll.model.errors import StateError
from atoll.model.names import printable

_BOTH = ("user", "trusted")
_OPAQUE, _REDIRECT, _METACOPY = "opaque", "redirect", "metacopy"
# What the kernel notes for itself; none of it changes what a layer shows.
_HARMLESS = frozenset({"origin", "impure", "nlink", "upper", "uuid", "protattr"})


class Composition(NamedTuple):
    method: Method
    manifest: Manifest
    """Without whiteouts; the stamps are those of the layers."""
    left_out: list[LeftOut]


class Changes(NamedTuple):
    """What one upper layer holds."""

    files: int
    bytes: int
    """What is allocated; hard links count once."""
    removed: int
    paths: list[str]
    """The first names of what changed or was removed, directories excepted."""
    is_complete: bool
    """False when there was more than the walk may visit."""


def is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def compose(  # noqa: PLR0913 - one door, and every caller names what it needs
    layers: Sequence[Path],
    target: Path,
    *,
    whiteouts: bool,
    below: Sequence[Path] = (),
    namespaces: Sequence[str] = _BOTH,
    threads: int = 4,
    progress: Progress | None = None,
    limit_entries: int = 5_000_000,
) -> Composition:
    """Copies what the layers show together, the bottom one first, into a new directory.

    With `whiteouts` the result is a layer again, which hides what its parts hid. Name what it
    will lie on as `below`: a whiteout over nothing would show as a name without a file. Without
    `whiteouts` the bottom layer has to be complete. Marks count in the given namespaces: `user`
    for mounts with `userxattr`, else `trusted`. Sockets, fifos and devices are left out.

    Raises StateError for marks of redirect, metacopy and those unknown, for more entries than the
    limit, for what cannot be read, or if a layer changes meanwhile; and as copy_entries.
    """
    merge = _Merge(namespaces, limit_entries=limit_entries)
    for layer in reversed(layers):
        merge.add(layer)
    marks = Marks()
    if whiteouts:
        # Nothing shines through an opaque directory anyway.
        hidden = [
            path
            for path in merge.whiteouts
            if merge.opaque.isdisjoint(parents(path))
            and (not below or shows(below, path, namespaces))
        ]
        marks = Marks(hidden, sorted(merge.opaque), namespaces)
    report = copy_parts(
        merge.parts[::-1], target, marks, threads=threads, progress=progress, digests=False
    )
    if report.vanished:
        raise _vanished(report.vanished[0])
    return Composition(report.method, report.manifest, merge.left_out)


def can_merge(layer: Path, *, namespaces: Sequence[str] = _BOTH) -> bool:
    """Whether `compose` takes a layer: not if it has a mark of redirect, metacopy or unknown."""
    try:
        _Merge(namespaces, limit_entries=5_000_000).add(layer)
    except StateError:
        return False
    return True


def _vanished(path: str) -> StateError:
    return StateError(f"`{printable(path)}` vanished while its layer was being merged")


class _Merge:
    """Layers put together from the top down, so that what is hidden is never even visited."""

    def __init__(self, namespaces: Sequence[str], *, limit_entries: int) -> None:
        self.parts: list[Part] = []
        self.whiteouts: list[str] = []
        self.opaque: set[str] = set()
        self.left_out: list[LeftOut] = []
        self._namespaces = namespaces
        self._limit = limit_entries
        self._count = 0
        self._seen: dict[str, bool] = {}
        """Every path that is decided; True for a directory into which lower layers shine."""

    def add(self, layer: Path) -> None:
        """Puts a layer under those that were added before."""
        part = Part(layer, {})
        self.parts.append(part)
        closing: list[str] = []
        waiting = [""]
        with Root(layer) as root:
            while waiting:
                directory = waiting.pop()
                handle = root.find(directory)
                if handle is None:
                    raise _vanished(f"{layer}/{directory}")
                with Opened(handle):
                    place = f"{layer}/{directory}"
                    try:
                        if directory and _is_opaque(handle, self._namespaces, place):
                            closing.append(directory)
                        waiting += self._add_directory(handle, directory, part, closing)
                    except OSError as error:
                        raise unreadable(place, error) from error
        # Only now: what closes a directory to lower layers does not hide what this one has in it.
        for path in closing:
            self._seen[path] = False
        self.opaque.update(closing)

    def _add_directory(
        self, handle: int, directory: str, part: Part, closing: list[str]
    ) -> list[str]:
        """Decides about one directory's entries; returns the directories to look into."""
        prefix = f"{directory}/" if directory else ""
        inside = []
        with os.scandir(handle) as listing:
            for entry in listing:
                self._count += 1
                if self._count > self._limit:
                    raise StateError(f"the layers hold more than {self._limit} entries")
                path = prefix + entry.name
                shines = self._seen.get(path)
                if shines is False:
                    continue
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    inside.append(path)
                    if shines is None:
                        self._seen[path] = True
                        part.entries[path] = stamp_of(status)
                elif shines:
                    # Overlayfs looks for more of a directory only until it meets something else.
                    closing.append(path)
                else:
                    self._seen[path] = False
                    self._add_other(handle, entry.name, path, status, part)
        return inside

    def _add_other(
        self, handle: int, name: str, path: str, status: os.stat_result, part: Part
    ) -> None:
        kind = None if is_whiteout(status) else special_kind(status.st_mode)
        if kind is not None:
            self.left_out.append(LeftOut(path, kind))
        if kind is not None or is_whiteout(status):
            # What is left out still hides what it stood over.
            self.whiteouts.append(path)
            return
        target = None
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(name, dir_fd=handle)
        else:
            place = f"/proc/self/fd/{handle}/{name}"
            _check_file(place, self._namespaces, f"{part.source}/{path}")
        part.entries[path] = stamp_of(status, target)


def _check_file(place: str, namespaces: Sequence[str], origin: str) -> None:
    for mark in _marks(place, namespaces):
        if not mark.endswith(f".{_OPAQUE}"):
            _require_known(mark, origin)


def _is_opaque(place: int | str, namespaces: Sequence[str], origin: str) -> bool:
    opaque = False
    for mark in _marks(place, namespaces):
        value = os.getxattr(place, mark, follow_symlinks=isinstance(place, int))
        if mark.endswith(f".{_OPAQUE}") and value == b"y":
            opaque = True
        else:
            _require_known(mark, origin)
    return opaque


def _marks(place: int | str, namespaces: Sequence[str]) -> list[str]:
    """The attributes that overlayfs reads, without those that it keeps for a nested one."""
    try:
        names = os.listxattr(place, follow_symlinks=isinstance(place, int))
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return []
        raise
    return [
        name
        for name in names
        for namespace in namespaces
        if name.startswith(f"{namespace}.overlay.")
        and not name.startswith(f"{namespace}.overlay.overlay.")
    ]


def _require_known(mark: str, origin: str) -> None:
    kind = mark.rpartition(".")[2]
    if kind in _HARMLESS:
        return
    if kind == _REDIRECT:
        raise StateError(f"`{printable(origin)}` was moved by redirect: its layer cannot be merged")
    if kind == _METACOPY:
        raise StateError(
            f"`{printable(origin)}` has no content of its own (metacopy): cannot be merged"
        )
    raise StateError(
        f"`{printable(origin)}` has the mark `{printable(mark)}`, which Atoll does not know"
    )


def shows(layers: Sequence[Path], path: str, namespaces: Sequence[str] = _BOTH) -> bool:
    """Whether a mount of these layers, the bottom one first, would have something at `path`."""
    stack = [str(layer) for layer in reversed(layers)]
    for name in path.split("/"):
        found: list[str] = []
        for directory in stack:
            place = f"{directory}/{name}"
            try:
                status = os.lstat(place)
            except OSError as error:
                if is_gone(error):
                    continue
                raise unreadable(place, error) from error
            is_directory = stat.S_ISDIR(status.st_mode)
            if is_whiteout(status) or (found and not is_directory):
                break
            found.append(place)
            if not is_directory or _is_opaque(place, namespaces, place):
                break
        stack = found
    return bool(stack)


def changes(layer: Path, *, limit_paths: int = 20, limit_entries: int = 100_000) -> Changes:
    """Sums up an upper layer for people; visits no more than the limit."""
    files = size = removed = 0
    paths: list[str] = []
    linked: set[tuple[int, int]] = set()
    for number, (path, status) in enumerate(walk(layer, limit=limit_entries + 1)):
        if number == limit_entries:
            return Changes(files, size, removed, paths, is_complete=False)
        if stat.S_ISDIR(status.st_mode):
            continue
        if len(paths) < limit_paths:
            paths.append(path)
        if is_whiteout(status):
            removed += 1
            continue
        files += 1
        identity = (status.st_dev, status.st_ino)
        if status.st_nlink == 1 or identity not in linked:
            linked.add(identity)
            size += status.st_blocks * 512
    return Changes(files, size, removed, paths, is_complete=True)
