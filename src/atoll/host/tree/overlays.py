"""Merges overlay layers without a mount, into a plain tree or into one layer.

The upper layers are an agent's work: names are only used relative to an open directory, links are
never followed, and an unknown attribute is refused, since a misread layer would show what its owner
has removed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from atoll.host.tree.file_contents import Method
from atoll.host.tree.layer_copy import NAMESPACES, CopiedPart, Marks, copy_parts
from atoll.host.tree.layer_stack import HARMLESS
from atoll.host.tree.manifests import (
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
from atoll.keeper.handles import Opened
from atoll.model.errors import StateError
from atoll.model.names import printable

_ENTRIES = 5_000_000
_OPAQUE, _REDIRECT, _METACOPY = "opaque", "redirect", "metacopy"


class Composition(NamedTuple):
    method: Method
    manifest: Manifest
    """Without whiteouts; the stamps are those of the layers."""
    left_out: list[LeftOut]


class LayerChanges(NamedTuple):
    """The content of one upper layer."""

    files: int
    bytes: int
    """Allocated space; hard links count once."""
    removed: int
    paths: list[str]
    """The first paths that changed or were removed, without directories."""
    is_complete: bool
    """False if the walk reached its limit."""


def is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def compose(
    layers: Sequence[Path],
    target: Path,
    *,
    whiteouts: bool,
    below: Sequence[Path] = (),
    limit_entries: int = _ENTRIES,
) -> Composition:
    """Copies the merged layers, bottom first, into a new directory.

    With `whiteouts` the result is a layer, which hides what its parts hid. Pass the layers that
    will be under it as `below`: a whiteout over nothing would show as a name without a file.
    Without `whiteouts` the bottom layer has to be complete. Attributes count in both namespaces:
    `user` for mounts with `userxattr`, else `trusted`. Sockets, fifos and devices are left out.

    Raises StateError for redirect, metacopy and unknown attributes, for more entries than the
    limit, for unreadable entries, or if a layer changes meanwhile; and as copy_entries.
    """
    merge = _Merge(limit_entries=limit_entries)
    for layer in reversed(layers):
        merge.add(layer)
    marks = Marks()
    if whiteouts:
        # Lower layers do not show through an opaque directory anyway.
        hidden = [
            path
            for path in merge.whiteouts
            if merge.opaque.isdisjoint(parents(path)) and (not below or shows(below, path))
        ]
        marks = Marks(hidden, sorted(merge.opaque))
    report = copy_parts(merge.parts[::-1], target, marks, digests=False)
    if report.vanished:
        raise _vanished(report.vanished[0])
    return Composition(report.method, report.manifest, merge.left_out)


def can_merge(layer: Path) -> bool:
    """Whether `compose` supports a layer: no redirect, metacopy or unknown attribute."""
    try:
        _Merge().add(layer)
    except StateError:
        return False
    return True


def _vanished(path: str) -> StateError:
    return StateError(f"`{printable(path)}` vanished while its layer was being merged")


class _Merge:
    """Merges layers from the top down, so that hidden entries are never visited."""

    def __init__(self, *, limit_entries: int = _ENTRIES) -> None:
        self.parts: list[CopiedPart] = []
        self.whiteouts: list[str] = []
        self.opaque: set[str] = set()
        self.left_out: list[LeftOut] = []
        self._limit = limit_entries
        self._count = 0
        self._seen: dict[str, bool] = {}
        """All decided paths; True for a directory that lower layers show through."""

    def add(self, layer: Path) -> None:
        """Adds a layer below the previous ones."""
        part = CopiedPart(layer, {})
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
                        if directory and _is_opaque(handle, place):
                            closing.append(directory)
                        waiting += self._add_directory(handle, directory, part, closing)
                    except OSError as error:
                        raise unreadable(place, error) from error
        # Only now: an opaque directory hides lower layers, but not its own entries.
        for path in closing:
            self._seen[path] = False
        self.opaque.update(closing)

    def _add_directory(
        self, handle: int, directory: str, part: CopiedPart, closing: list[str]
    ) -> list[str]:
        """Decides about one directory's entries; returns the directories to descend into."""
        prefix = f"{directory}/" if directory else ""
        inside = []
        with os.scandir(handle) as listing:
            for entry in listing:
                self._count += 1
                if self._count > self._limit:
                    raise StateError(f"the layers have more than {self._limit} entries")
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
                    # Overlayfs continues to search for a directory until it finds anything else.
                    closing.append(path)
                else:
                    self._seen[path] = False
                    self._add_other(handle, entry.name, path, status, part)
        return inside

    def _add_other(
        self, handle: int, name: str, path: str, status: os.stat_result, part: CopiedPart
    ) -> None:
        kind = None if is_whiteout(status) else special_kind(status.st_mode)
        if kind is not None:
            self.left_out.append(LeftOut(path, kind))
        if kind is not None or is_whiteout(status):
            # An entry that is left out still hides those below it.
            self.whiteouts.append(path)
            return
        target = None
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(name, dir_fd=handle)
        else:
            place = f"/proc/self/fd/{handle}/{name}"
            _check_file(place, f"{part.source}/{path}")
        part.entries[path] = stamp_of(status, target)


def _check_file(place: str, origin: str) -> None:
    for mark in _marks(place):
        if not mark.endswith(f".{_OPAQUE}"):
            _require_known(mark, origin)


def _is_opaque(place: int | str, origin: str) -> bool:
    opaque = False
    for mark in _marks(place):
        value = os.getxattr(place, mark, follow_symlinks=isinstance(place, int))
        if mark.endswith(f".{_OPAQUE}") and value == b"y":
            opaque = True
        else:
            _require_known(mark, origin)
    return opaque


def _marks(place: int | str) -> list[str]:
    """The attributes that overlayfs reads, without escaped ones of a nested overlay."""
    try:
        names = os.listxattr(place, follow_symlinks=isinstance(place, int))
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return []
        raise
    return [
        name
        for name in names
        for namespace in NAMESPACES
        if name.startswith(f"{namespace}.overlay.")
        and not name.startswith(f"{namespace}.overlay.overlay.")
    ]


def _require_known(mark: str, origin: str) -> None:
    kind = mark.rpartition(".")[2]
    if kind in HARMLESS:
        return
    if kind == _REDIRECT:
        raise StateError(f"cannot merge the layer: `{printable(origin)}` was renamed by a redirect")
    if kind == _METACOPY:
        raise StateError(f"cannot merge the layer: `{printable(origin)}` has no content (metacopy)")
    raise StateError(
        f"`{printable(origin)}` has the unknown overlayfs attribute `{printable(mark)}`"
    )


def shows(layers: Sequence[Path], path: str) -> bool:
    """Whether a mount of these layers, bottom first, would have an entry at `path`."""
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
            if not is_directory or _is_opaque(place, place):
                break
        stack = found
    return bool(stack)


def changes(layer: Path, *, limit_paths: int = 20, limit_entries: int = 100_000) -> LayerChanges:
    """Summarises an upper layer; visits no more than the limit."""
    files = size = removed = 0
    paths: list[str] = []
    linked: set[tuple[int, int]] = set()
    for number, (path, status) in enumerate(walk(layer, limit=limit_entries + 1)):
        if number == limit_entries:
            return LayerChanges(files, size, removed, paths, is_complete=False)
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
    return LayerChanges(files, size, removed, paths, is_complete=True)
