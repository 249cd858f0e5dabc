"""The sandbox root: the whole tree that sandboxed processes see, built once by the holder.

Every entry is named by its path in the root. Some of them are in directories that the capsule's own
processes can write, and may have filled with links: no link is ever followed, and files in the way
are moved aside. All mounts go on descriptors, never on paths. What must stay where it is has mounts
all the way down to it, because a mount point cannot be renamed.

What is mounted or copied comes from descriptors, too, which are opened through no link at all: a
link on the way to a source, or in its place, is an error.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress

from atoll.keeper import calls
from atoll.keeper.handles import Opened
from atoll.model.enclosure import (
    Copy,
    Devpts,
    Directory,
    Link,
    PrivateTmpfs,
    Shown,
    TextFile,
    Tmpfs,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from atoll.model.enclosure import RootEntry

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 0x2, 0x4, 0x8
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ASIDE = "moved-aside"
_NUMBERED = 100
_TURNS = 10
_COPY_BYTES = 1 << 20


class RootBuilder:
    """Builds one root. `uid` is the user of the capsule, if that is not ours; `namespace` maps our
    files to that user.
    """

    def __init__(self, root: str, *, uid: int | None, namespace: int) -> None:
        self._root = root
        self._uid = uid
        self._namespace = namespace
        self._mounted: set[str] = set()
        self.private: int | None = None
        """A descriptor of the private tmpfs, by which it can be written."""

    def build(self, entries: Iterable[RootEntry]) -> None:
        """Mount the root and place the entries in it, in order."""
        calls.mount("atoll", self._root, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=32m")
        with Opened(os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as handle:
            for entry in entries:
                if not (isinstance(entry, Shown) and entry.is_store):
                    self._place(handle, entry)
                elif os.path.isdir(entry.source):
                    # Without it the capsule's tools begin with an empty store.
                    with suppress(OSError):
                        self._place(handle, entry)
            calls.change_mounts(handle, calls.MOUNT_READ_ONLY, deep=False)

    def _place(self, root: int, entry: RootEntry) -> None:
        *above, name = entry.at.strip("/").split("/")
        is_fixed = isinstance(entry, Shown) and entry.is_fixed
        with Opened(self._reach(root, above, is_fixed=is_fixed)) as parent:
            if isinstance(entry, Shown) and entry.is_store and _is_filled(parent, name):
                return
            self._make(parent, name, entry)
        if isinstance(entry, Shown | Tmpfs | Devpts | PrivateTmpfs):
            self._mounted.add("/" + "/".join((*above, name)))

    def _reach(self, root: int, names: list[str], *, is_fixed: bool) -> int:
        """A descriptor of the directory, which is made where it is missing."""
        place = os.dup(root)
        own = os.fstat(root).st_dev
        for number, name in enumerate(names, 1):
            self._make_directory(place, name, 0o755)
            path = "/" + "/".join(names[:number])
            if is_fixed and path not in self._mounted:
                with _opened(place, name) as found:
                    # The root's own directories cannot be renamed: it will be read-only.
                    if os.fstat(found).st_dev != own:
                        _bind_to_itself(found)
                        self._mounted.add(path)
            below = os.open(name, _PLACE | os.O_DIRECTORY, dir_fd=place)
            os.close(place)
            place = below
        return place

    def _make(self, parent: int, name: str, entry: RootEntry) -> None:
        match entry:
            case Link():
                os.symlink(entry.target, name, dir_fd=parent)
            case TextFile():
                self._write(parent, name, entry.text.encode(errors="surrogateescape"))
            case Copy():
                self._copy(entry.source, parent, name)
            case Directory():
                self._make_directory(parent, name, entry.mode)
            case Tmpfs():
                self._mount(parent, name, "tmpfs", _MS_NOSUID | _MS_NODEV, entry.options)
            case Devpts():
                self._mount(parent, name, "devpts", _MS_NOSUID | _MS_NOEXEC, entry.options)
            case PrivateTmpfs():
                self._mount_private(parent, name, entry)
            case Shown():
                self._bind(parent, name, entry)

    def _mount(self, parent: int, name: str, kind: str, flags: int, options: str) -> None:
        self._make_directory(parent, name, 0o755)
        with _opened(parent, name) as place:
            calls.mount("atoll", _path(place), kind, flags, options)

    def _mount_private(self, parent: int, name: str, entry: PrivateTmpfs) -> None:
        """The mount in the root is read-only; a second one, which is attached nowhere, is not."""
        self._mount(parent, name, "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, entry.options)
        with _opened(parent, name) as place:
            self.private = calls.clone_mounts(place)
            calls.change_mounts(place, calls.MOUNT_READ_ONLY)

    def _bind(self, parent: int, name: str, entry: Shown) -> None:
        try:
            with Opened(calls.open_source(entry.source)) as source:
                is_directory = stat.S_ISDIR(os.fstat(source).st_mode)
                tree = calls.clone_mounts(source)
        except OSError:
            if entry.is_optional:
                return
            raise
        try:
            self._restrict(tree, entry)
            if is_directory:
                self._make_directory(parent, name, 0o755)
            else:
                self._write(parent, name, b"")
            with _opened(parent, name) as place:
                calls.attach_mounts(tree, place)
        finally:
            os.close(tree)

    def _restrict(self, tree: int, entry: Shown) -> None:
        """Sets the attributes of a detached mount before anything inside can reach it.

        Filesystems such as overlayfs, NFS and most FUSE ones have no ID-mapped mounts
        (mount_setattr fails with EINVAL), and a mount that has a mapping takes no second one
        (EPERM). An optional source is then mounted without a mapping: the capsule's user can read
        what is world-readable in it, which is never more than with the mapping.
        """
        flags = calls.MOUNT_NO_SETUID | calls.MOUNT_NO_DEVICES
        flags |= calls.MOUNT_READ_ONLY if entry.is_read_only else 0
        namespace = self._namespace if entry.is_shifted else -1
        try:
            calls.change_mounts(tree, flags, namespace=namespace)
        except OSError as error:
            if namespace < 0 or not (entry.is_optional and entry.is_read_only):
                raise OSError(error.errno, f"cannot mount `{entry.at}`: {error}") from error
            calls.change_mounts(tree, flags)

    def _make_directory(self, parent: int, name: str, mode: int) -> None:
        """Ensures that it exists; another entry in its place is moved aside, not removed."""
        if not _is(stat.S_ISDIR, parent, name):
            self._clear(parent, name)
            with self._acting(parent):
                os.mkdir(name, dir_fd=parent)
                os.chmod(name, mode, dir_fd=parent)

    def _copy(self, source: str, parent: int, name: str) -> None:
        """Copy the world-readable files of a small tree of the host: cheaper than mounts."""
        above, last = os.path.split(source)
        with Opened(calls.open_source(above)) as directory:
            self._copy_from(directory, last, parent, name)

    def _copy_from(self, directory: int, source: str, parent: int, name: str) -> None:
        mode = os.stat(source, dir_fd=directory, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(source, dir_fd=directory), name, dir_fd=parent)
        elif not mode & stat.S_IROTH:
            return
        elif stat.S_ISDIR(mode):
            self._make_directory(parent, name, 0o755)
            handle = os.open(source, _READ | os.O_DIRECTORY, dir_fd=directory)
            with Opened(handle), _opened(parent, name) as place:
                for entry in os.listdir(handle):
                    self._copy_from(handle, entry, place, entry)
        elif stat.S_ISREG(mode):
            with os.fdopen(os.open(source, _READ, dir_fd=directory), "rb") as stream:
                if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                    self._write(parent, name, stream.read(_COPY_BYTES))

    def _write(self, parent: int, name: str, content: bytes) -> None:
        if _is(stat.S_ISREG, parent, name) and not content:
            return
        self._clear(parent, name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._acting(parent):
            handle = os.open(name, flags, 0o644, dir_fd=parent)
        os.fchmod(handle, 0o644)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)

    def _clear(self, parent: int, name: str) -> None:
        """Moves an existing entry aside; OSError if no name is left for it."""
        if not _is(_anything, parent, name):
            return
        marks = [f"-{number}" if number else "" for number in range(_NUMBERED)]
        # A capsule that has taken all these names cannot guess the others.
        marks += [f"-{os.urandom(8).hex()}" for _ in range(_TURNS)]
        with self._acting(parent):
            for aside in (f"{name}.{_ASIDE}{mark}" for mark in marks):
                if not _is(_anything, parent, aside):
                    os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=parent)
                    return
        raise OSError(errno.EEXIST, f"`{name}` cannot be moved aside", name)

    @contextmanager
    def _acting(self, parent: int) -> Iterator[None]:
        """Act as the capsule's user in directories that it owns, so that new files are its own.

        Write permission is added where it is missing: the user could add it, too.
        """
        status = os.fstat(parent)
        if self._uid is None or status.st_uid != self._uid:
            yield
            return
        mode = stat.S_IMODE(status.st_mode)
        os.setegid(self._uid)
        os.seteuid(self._uid)
        try:
            os.chmod(_path(parent), mode | stat.S_IRWXU)
            yield
            os.chmod(_path(parent), mode)
        finally:
            os.seteuid(0)
            os.setegid(0)


def _anything(_mode: int) -> bool:
    return True


def _is(kind: Callable[[int], bool], parent: int, name: str) -> bool:
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return False
    return kind(mode)


def _is_filled(parent: int, name: str) -> bool:
    """Whether it is a directory with something in it, reached through no link."""
    try:
        handle = os.open(name, _READ | os.O_DIRECTORY, dir_fd=parent)
    except OSError:
        return False
    try:
        with os.scandir(handle) as listing:
            return next(listing, None) is not None
    finally:
        os.close(handle)


def _opened(parent: int, name: str) -> Opened:
    return Opened(os.open(name, _PLACE, dir_fd=parent))


def _bind_to_itself(place: int) -> None:
    with Opened(calls.clone_mounts(place)) as tree:
        calls.change_mounts(tree)
        calls.attach_mounts(tree, place)


def _path(place: int) -> str:
    return f"/proc/self/fd/{place}"
