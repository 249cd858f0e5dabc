"""Lookup in a stack of overlay layers by the rules of overlayfs, without a mount.

The upper layers are an agent's work, and the agent may be writing to them. Every directory is
opened by `open_beneath` from the descriptor of its layer, every name is looked up in an open
directory without following links. So whatever is replaced in the meantime, only the layers are
read. Overlayfs attributes are treated as hostile, too.

The rules are those of `ovl_lookup` in the kernel: from the top layer down; whiteouts, opaque
directories and non-directories end the search, and a redirect changes the name that is searched in
the layers below.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from atoll.keeper.handles import Opened
from atoll.model.errors import StateError
from atoll.model.names import printable
from atoll.model.untrusted import Untrusted, find_path

Namespace = Literal["user", "trusted"]
"""The namespace of overlayfs' attributes: `user` for mounts with the option `userxattr`."""

_DIRECTORY = os.O_PATH | os.O_DIRECTORY
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
# EINVAL: not a link any more; ENXIO: a socket.
_GONE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.EINVAL, errno.ENXIO}
)
_CLOSED = frozenset({errno.EACCES, errno.EPERM, errno.ENAMETOOLONG})
_NO_MARKS = frozenset({errno.EOPNOTSUPP, errno.ENODATA})
# Internal to the kernel; none of them changes what a layer shows.
HARMLESS = frozenset({"origin", "impure", "nlink", "upper", "uuid", "protattr"})


class LayerPosition(NamedTuple):
    """A path in one layer."""

    layer: int
    path: bytes


class PathComponent(NamedTuple):
    """One of the directories of a merged directory, open."""

    place: LayerPosition
    handle: int


class VisibleEntry(NamedTuple):
    """The topmost entry of a name."""

    status: os.stat_result
    places: tuple[LayerPosition, ...]
    """Its location; of a directory, all merged directories, topmost first."""

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)


def is_gone(error: OSError) -> bool:
    """Whether an entry vanished, or has changed its type."""
    return error.errno in _GONE


def is_closed(error: OSError) -> bool:
    """Whether an entry cannot be read because of its mode or the length of its path."""
    return error.errno in _CLOSED


class LayerStack:
    """Overlay layers, bottom first. Methods raise OSError."""

    def __init__(self, layers: Sequence[Path], namespace: Namespace | None) -> None:
        """Without a namespace neither attributes nor whiteouts have a meaning: for a plain tree.

        Raises StateError if a layer is missing.
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
    def top(self) -> tuple[LayerPosition, ...]:
        """The root of the overlay: attributes of the layers' roots have no meaning."""
        return tuple(LayerPosition(layer, b"") for layer in reversed(range(len(self._roots))))

    @contextmanager
    def opened(self, places: Sequence[LayerPosition]) -> Iterator[list[PathComponent]]:
        """The directories of a merged directory; vanished ones are left out."""
        parts: list[PathComponent] = []
        try:
            for place in places:
                try:
                    parts.append(PathComponent(place, self._open(place, _DIRECTORY)))
                except OSError as error:
                    if not is_gone(error):
                        raise
            yield parts
        finally:
            for part in parts:
                os.close(part.handle)

    def find_file(self, place: LayerPosition) -> int | None:
        """A descriptor of a regular file for reading; None if it no longer exists."""
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

    def read_link(self, place: LayerPosition) -> Untrusted:
        """The target of a link; raises OSError if it is no longer one."""
        directory, _, name = place.path.rpartition(b"/")
        with Opened(self._open(LayerPosition(place.layer, directory), _DIRECTORY)) as handle:
            return Untrusted(os.readlink(name, dir_fd=handle))

    def look_up(self, parts: Sequence[PathComponent], name: bytes) -> VisibleEntry | None:
        """The visible entry of a name. Raises StateError for unknown attributes."""
        search = _Search(name)
        for part in parts:
            self._search_layer(search, part)
            if search.is_absolute:
                self._search_from_root(search, part.place.layer)
                break
            if search.is_over:
                break
        return None if search.status is None else VisibleEntry(search.status, tuple(search.places))

    def _search_from_root(self, search: _Search, layer: int) -> None:
        """Continues below `layer` after a redirect relative to the overlay's root."""
        for lower in reversed(range(layer)):
            if search.is_over:
                return
            self._search_layer(search, PathComponent(LayerPosition(lower, b""), self._roots[lower]))

    def _open(self, place: LayerPosition, flags: int) -> int:
        from atoll.host.kernel import open_beneath  # noqa: PLC0415 - libc is not for every command

        return open_beneath(self._roots[place.layer], place.path, flags)

    def _search_layer(self, search: _Search, part: PathComponent) -> None:
        """Searches one layer, and determines what to search in the layers below."""
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
                    # Overlayfs continues to search for a directory until it finds anything else.
                    search.is_over = True
                    if rest or search.places or self._is_whiteout(status):
                        return
                    self._require_content(handle, name)
                elif layer:
                    self._apply_marks(search, handle, name)
                if rest:
                    below = self._open(LayerPosition(layer, path), _DIRECTORY)
                    _close_other(handle, part.handle)
                    handle = below
        except OSError as error:
            # It has just vanished.
            if not is_gone(error):
                raise
            return
        finally:
            _close_other(handle, part.handle)
        search.status = search.status or status
        search.places.append(LayerPosition(layer, path))

    def _is_whiteout(self, status: os.stat_result) -> bool:
        return self._prefix is not None and stat.S_ISCHR(status.st_mode) and status.st_rdev == 0

    def _apply_marks(self, search: _Search, directory: int, name: bytes) -> None:
        """Applies a directory's attributes to the search in the layers below."""
        redirect = None
        for mark, value in self._marks(directory, name):
            if mark == "opaque" and value == b"y":
                # An opaque directory cancels a redirect.
                search.is_over = True
                return
            if mark == "redirect":
                redirect = value
            elif mark not in HARMLESS:
                raise _unknown(name, mark)
        if redirect is not None:
            search.follow(redirect)

    def _require_content(self, directory: int, name: bytes) -> None:
        for mark, _ in self._marks(directory, name):
            if mark not in HARMLESS and mark != "opaque":
                raise _unknown(name, mark)

    def _marks(self, directory: int, name: bytes) -> Iterator[tuple[str, bytes]]:
        """The attributes that overlayfs reads, without escaped ones of a nested overlay."""
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
    """What a lookup has found so far, and what it searches in the next layer."""

    __slots__ = ("is_absolute", "is_over", "places", "status", "wanted")

    def __init__(self, name: bytes) -> None:
        self.wanted = [name]
        self.is_absolute = False
        """Whether `wanted` is relative to the overlay's root."""
        self.is_over = False
        self.status: os.stat_result | None = None
        self.places: list[LayerPosition] = []

    def follow(self, redirect: bytes) -> None:
        """Applies a redirect to the last component."""
        path = find_path(Untrusted(redirect.removeprefix(b"/")))
        if path is None or (not redirect.startswith(b"/") and len(path.parts) > 1):
            raise StateError("a directory of a layer has an invalid redirect")
        if redirect.startswith(b"/"):
            self.wanted = path.parts
            self.is_absolute = True
            self.is_over = False
        else:
            self.wanted[-1] = redirect


def list_names(parts: Sequence[PathComponent], *, limit: int) -> set[bytes]:
    """The names in all parts of a merged directory, including hidden ones.

    Raises StateError above the limit, and OSError if a part cannot be listed.
    """
    found: set[bytes] = set()
    for part in parts:
        own = os.open(".", _LIST, dir_fd=part.handle)
        with Opened(own), os.scandir(own) as listing:
            for entry in listing:
                found.add(os.fsencode(entry.name))
                if len(found) > limit:
                    raise StateError(f"a directory has more than {limit} entries")
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
        f"`{printable(os.fsdecode(name))}` in a layer has the overlayfs attribute "
        f"`{printable(mark)}`, which Atoll does not support"
    )
