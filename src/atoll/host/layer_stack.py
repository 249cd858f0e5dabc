"""Lookup in a stack of overlay layers by the rules of overlayfs, without a mount.

The upper layers are an agent's work, and the agent may be writing them at this moment. Every
directory is opened by `open_beneath` from the descriptor of its layer, every name is looked up in
an open directory without following a link. So whatever is exchanged meanwhile, only the layers are
ever read. The marks of the kernel are treated as hostile, too.

The rules are those of `ovl_lookup` in the kernel: from the top layer down; whiteouts, opaque
directories and anything but a directory end the search, and a redirect changes the name that is
looked for in the layers below.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from atoll.model.errors import StateError
from atoll.model.names import printable
from atoll.model.untrusted import Untrusted, find_path

Namespace = Literal["user", "trusted"]
"""Where overlayfs keeps its marks: in `user` for mounts with the option `userxattr`."""

_DIRECTORY = os.O_PATH | os.O_DIRECTORY
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
# EINVAL is the answer to reading a link that is none any more; ENXIO that of a socket.
_GONE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.EINVAL, errno.ENXIO}
)
_CLOSED = frozenset({errno.EACCES, errno.EPERM, errno.ENAMETOOLONG})
_NO_MARKS = frozenset({errno.EOPNOTSUPP, errno.ENODATA})
# What the kernel notes for itself; none of it changes what a layer shows.
_HARMLESS = frozenset({"origin", "impure", "nlink", "upper", "uuid", "protattr"})


class Place(NamedTuple):
    """A path in one layer."""

    layer: int
    path: bytes


class Part(NamedTuple):
    """One of the directories that are merged into one, open."""

    place: Place
    handle: int


class Shown(NamedTuple):
    """What a name shows: the topmost entry."""

    status: os.stat_result
    places: tuple[Place, ...]
    """Where it lies; of a directory, all that are merged into it, the topmost first."""

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)


def is_gone(error: OSError) -> bool:
    """Whether an entry vanished, or is something else by now."""
    return error.errno in _GONE


def is_closed(error: OSError) -> bool:
    """Whether an entry cannot be read for its mode, or lies too deep for a path."""
    return error.errno in _CLOSED


class LayerStack:
    """Overlay layers, the bottom one first. Methods raise OSError as it comes."""

    def __init__(self, layers: Sequence[Path], namespace: Namespace | None) -> None:
        """Without a namespace neither marks nor whiteouts mean anything: for a plain tree.

        Raises StateError when a layer is missing.
        """
        self._prefix = None if namespace is None else f"{namespace}.overlay."
        self._roots: list[int] = []
        try:
            for layer in layers:
                self._roots.append(_open_root(layer))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        while self._roots:
            os.close(self._roots.pop())

    @property
    def top(self) -> tuple[Place, ...]:
        """The root of the overlay: marks on the roots of layers mean nothing."""
        return tuple(Place(layer, b"") for layer in reversed(range(len(self._roots))))

    @contextmanager
    def opened(self, places: Sequence[Place]) -> Iterator[list[Part]]:
        """The parts of a merged directory; those that have vanished are left out."""
        parts: list[Part] = []
        try:
            for place in places:
                try:
                    parts.append(Part(place, self._open(place, _DIRECTORY)))
                except OSError as error:
                    if not is_gone(error):
                        raise
            yield parts
        finally:
            for part in parts:
                os.close(part.handle)

    def find_file(self, place: Place) -> int | None:
        """A descriptor of a regular file for reading; None when there is none by now."""
        try:
            handle = self._open(place, _READ)
        except OSError as error:
            if is_gone(error):
                return None
            raise
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
        return None

    def read_link(self, place: Place) -> Untrusted:
        """Where a link points to; raises OSError also when it is none by now."""
        directory, _, name = place.path.rpartition(b"/")
        handle = self._open(Place(place.layer, directory), _DIRECTORY)
        try:
            return Untrusted(os.readlink(name, dir_fd=handle))
        finally:
            os.close(handle)

    def look_up(self, parts: Sequence[Part], name: bytes) -> Shown | None:
        """What a merged directory shows under a name. Raises StateError for unknown marks."""
        search = _Search(name)
        for part in parts:
            self._search_layer(search, part)
            if search.is_absolute:
                self._search_from_root(search, part.place.layer)
                break
            if search.is_over:
                break
        return None if search.status is None else Shown(search.status, tuple(search.places))

    def _search_from_root(self, search: _Search, layer: int) -> None:
        """Goes on below `layer` after a redirect that counts from the root of the overlay."""
        for lower in reversed(range(layer)):
            if search.is_over:
                return
            self._search_layer(search, Part(Place(lower, b""), self._roots[lower]))

    def _open(self, place: Place, flags: int) -> int:
        from atoll.host.kernel import open_beneath  # noqa: PLC0415 - libc is not for every command

        return open_beneath(self._roots[place.layer], place.path, flags)

    def _search_layer(self, search: _Search, part: Part) -> None:
        """Looks for what is wanted in one layer, and finds out what to look for below it."""
        layer, path = part.place
        handle = part.handle
        wanted, search.wanted = search.wanted, []
        status = None
        try:
            for position, name in enumerate(wanted):
                rest = wanted[position + 1 :]
                status = _find_status(handle, name)
                if status is None:
                    search.wanted += [name, *rest]
                    return
                search.wanted.append(name)
                path = path + b"/" + name if path else name
                if not stat.S_ISDIR(status.st_mode):
                    # Overlayfs looks for more of a directory until it meets anything else.
                    search.is_over = True
                    if rest or search.places or self._is_whiteout(status):
                        return
                    self._require_content(handle, name)
                elif layer:
                    self._apply_marks(search, handle, name)
                if rest:
                    below = self._open(Place(layer, path), _DIRECTORY)
                    _close_other(handle, part.handle)
                    handle = below
        except OSError as error:
            # It was there a moment ago.
            if not is_gone(error):
                raise
            return
        finally:
            _close_other(handle, part.handle)
        search.status = search.status or status
        search.places.append(Place(layer, path))

    def _is_whiteout(self, status: os.stat_result) -> bool:
        return self._prefix is not None and stat.S_ISCHR(status.st_mode) and status.st_rdev == 0

    def _apply_marks(self, search: _Search, directory: int, name: bytes) -> None:
        """What the marks of a directory mean for the layers below it."""
        redirect = None
        for mark, value in self._marks(directory, name):
            if mark == "opaque" and value == b"y":
                # Then a redirect counts no more.
                search.is_over = True
                return
            if mark == "redirect":
                redirect = value
            elif mark not in _HARMLESS:
                raise _unknown(name, mark)
        if redirect is not None:
            search.follow(redirect)

    def _require_content(self, directory: int, name: bytes) -> None:
        for mark, _ in self._marks(directory, name):
            if mark not in _HARMLESS and mark != "opaque":
                raise _unknown(name, mark)

    def _marks(self, directory: int, name: bytes) -> Iterator[tuple[str, bytes]]:
        """The attributes that overlayfs reads, without those that it keeps for a nested one."""
        if self._prefix is None:
            return
        place = f"/proc/self/fd/{directory}/".encode() + name
        try:
            for found in os.listxattr(place, follow_symlinks=False):
                mark = found.removeprefix(self._prefix)
                if mark != found and not mark.startswith("overlay."):
                    yield mark, os.getxattr(place, found, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_MARKS:
                raise


class _Search:
    """What a lookup has found so far, and what it looks for in the next layer."""

    __slots__ = ("is_absolute", "is_over", "places", "status", "wanted")

    def __init__(self, name: bytes) -> None:
        self.wanted = [name]
        self.is_absolute = False
        """Whether `wanted` counts from the root of the overlay."""
        self.is_over = False
        self.status: os.stat_result | None = None
        self.places: list[Place] = []

    def follow(self, redirect: bytes) -> None:
        """A redirect on the last of what was looked for so far."""
        path = find_path(Untrusted(redirect.removeprefix(b"/")))
        if path is None or (not redirect.startswith(b"/") and len(path.parts) > 1):
            raise StateError("a directory of a layer has a redirect that is no path")
        if redirect.startswith(b"/"):
            self.wanted = path.parts
            self.is_absolute = True
            self.is_over = False
        else:
            self.wanted[-1] = redirect


def list_names(parts: Sequence[Part], *, limit: int) -> set[bytes]:
    """The names in all parts of a merged directory, hidden ones too.

    Raises StateError above the limit, and OSError if a part cannot be listed.
    """
    found: set[bytes] = set()
    for part in parts:
        handle = os.open(".", _LIST, dir_fd=part.handle)
        try:
            with os.scandir(handle) as listing:
                for entry in listing:
                    found.add(os.fsencode(entry.name))
                    if len(found) > limit:
                        raise StateError(f"a directory holds more than {limit} entries")
        finally:
            os.close(handle)
    return found


def _open_root(layer: Path) -> int:
    try:
        return os.open(layer, _DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise StateError(f"the layer `{layer}` cannot be opened: {error.strerror}") from error


def _find_status(directory: int, name: bytes) -> os.stat_result | None:
    try:
        return os.lstat(name, dir_fd=directory)
    except OSError as error:
        if is_gone(error):
            return None
        raise


def _close_other(handle: int, kept: int) -> None:
    if handle != kept:
        os.close(handle)


def _unknown(name: bytes, mark: str) -> StateError:
    return StateError(
        f"`{printable(os.fsdecode(name))}` in a layer has the mark `{printable(mark)}` of "
        "overlayfs, which Atoll does not support"
    )
