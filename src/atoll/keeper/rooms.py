"""The room: the whole tree that the processes of a walled capsule see, built once by its holder.

Every entry is named by its place in the room. Some of them lie in directories that the capsule's
own processes can write, and may have filled with links: no place is ever reached through one, and
what stands in the way is moved aside. All mounts go on descriptors, never on paths. What must stay
where it is has mounts all the way down to it, because a mount point cannot be renamed.

What is mounted or copied comes from descriptors, too, which are opened through no link at all: a
link on the way to a source, or in its place, is an error.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress

from atoll.keeper import calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 0x2, 0x4, 0x8
_MOUNTS = ("bind", "tmpfs", "devpts")
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ASIDE = "moved-aside"
_NUMBERED = 100
_TURNS = 10
_COPY_BYTES = 1 << 20


class Builder:
    """Furnishes one room. `uid` is whom it is for, where that is not us; `namespace` shows what
    is ours as theirs.
    """

    def __init__(self, root: str, *, uid: int | None, namespace: int) -> None:
        self._root = root
        self._uid = uid
        self._namespace = namespace
        self._mounted: set[str] = set()

    def build(self, entries: list[dict[str, object]]) -> None:
        """In order. An entry has `at` and one of `directory` (its mode), `link` (its target),
        `file` (its text), `copy` (its source), `tmpfs` (its options), `devpts` (likewise) and
        `bind` (its source).
        A bind may be `read_only`, `shifted` (shown as theirs), `fixed` (nobody can move the
        directories above it), `optional` (passed over without a source) and a `store` (likewise,
        and where the capsule has a package store of its own already).
        """
        calls.mount("atoll", self._root, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=32m")
        handle = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for entry in entries:
                if not entry.get("store"):
                    self._place(handle, entry)
                elif os.path.isdir(str(entry["bind"])):
                    # Without it the capsule's tools begin with an empty store.
                    with suppress(OSError):
                        self._place(handle, entry)
            calls.change_mounts(handle, calls.MOUNT_READ_ONLY, deep=False)
        finally:
            os.close(handle)

    def _place(self, root: int, entry: dict[str, object]) -> None:
        *above, name = str(entry["at"]).strip("/").split("/")
        parent = self._reach(root, above, is_fixed=bool(entry.get("fixed")))
        try:
            if entry.get("store") and _is_filled(parent, name):
                return
            self._furnish(parent, name, entry)
        finally:
            os.close(parent)
        if not entry.keys().isdisjoint(_MOUNTS):
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
                    # The room's own directories cannot be renamed: it will be read-only.
                    if os.fstat(found).st_dev != own:
                        _bind_to_itself(found)
                        self._mounted.add(path)
            below = os.open(name, _PLACE | os.O_DIRECTORY, dir_fd=place)
            os.close(place)
            place = below
        return place

    def _furnish(self, parent: int, name: str, entry: dict[str, object]) -> None:
        if "link" in entry:
            os.symlink(str(entry["link"]), name, dir_fd=parent)
        elif "file" in entry:
            self._write(parent, name, str(entry["file"]).encode(errors="surrogateescape"))
        elif "copy" in entry:
            self._copy(str(entry["copy"]), parent, name)
        elif "directory" in entry:
            self._make_directory(parent, name, int(str(entry["directory"])))
        elif "tmpfs" in entry or "devpts" in entry:
            self._make_directory(parent, name, 0o755)
            kind = "tmpfs" if "tmpfs" in entry else "devpts"
            flags = _MS_NOSUID | (_MS_NODEV if kind == "tmpfs" else _MS_NOEXEC)
            with _opened(parent, name) as place:
                calls.mount("atoll", _path(place), kind, flags, str(entry[kind]))
        else:
            self._bind(parent, name, entry)

    def _bind(self, parent: int, name: str, entry: dict[str, object]) -> None:
        try:
            with _opened_source(str(entry["bind"])) as source:
                is_directory = stat.S_ISDIR(os.fstat(source).st_mode)
                tree = calls.clone_mounts(source)
        except OSError:
            if entry.get("optional"):
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

    def _restrict(self, tree: int, entry: dict[str, object]) -> None:
        """Sets the attributes of a detached mount before anything inside can reach it.

        Filesystems such as overlayfs, NFS and most FUSE ones have no ID-mapped mounts
        (mount_setattr fails with EINVAL), and a mount that has a mapping takes no second one
        (EPERM). An optional source is then mounted without a mapping: the capsule's user can read
        what everybody may read of it, which is never more than with the mapping.
        """
        flags = calls.MOUNT_NO_SETUID | calls.MOUNT_NO_DEVICES
        flags |= calls.MOUNT_READ_ONLY if entry.get("read_only") else 0
        namespace = self._namespace if entry.get("shifted") else -1
        try:
            calls.change_mounts(tree, flags, namespace=namespace)
        except OSError as error:
            if namespace < 0 or not (entry.get("optional") and entry.get("read_only")):
                raise OSError(error.errno, f"cannot mount `{entry['at']}`: {error}") from error
            calls.change_mounts(tree, flags)

    def _make_directory(self, parent: int, name: str, mode: int) -> None:
        """Sees that there is one; something else in its place is moved aside, not removed."""
        if not _is(stat.S_ISDIR, parent, name):
            self._clear(parent, name)
            with self._acting(parent):
                os.mkdir(name, dir_fd=parent)
                os.chmod(name, mode, dir_fd=parent)

    def _copy(self, source: str, parent: int, name: str) -> None:
        """What everybody may read of a small tree of the host's: cheaper than a mount for each."""
        above, last = os.path.split(source)
        with _opened_source(above) as directory:
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
            try:
                with _opened(parent, name) as place:
                    for entry in os.listdir(handle):
                        self._copy_from(handle, entry, place, entry)
            finally:
                os.close(handle)
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
        """Moves aside what stands there; OSError if no name is left for it."""
        if not _is(_anything, parent, name):
            return
        marks = [f"-{number}" if number else "" for number in range(_NUMBERED)]
        # Whoever has taken all these cannot know the others.
        marks += [f"-{os.urandom(8).hex()}" for _ in range(_TURNS)]
        with self._acting(parent):
            for aside in (f"{name}.{_ASIDE}{mark}" for mark in marks):
                if not _is(_anything, parent, aside):
                    os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=parent)
                    return
        raise OSError(errno.EEXIST, f"`{name}` cannot be moved aside", name)

    @contextmanager
    def _acting(self, parent: int) -> Iterator[None]:
        """In what is theirs, as the one whom the room is for: what is made there is theirs.

        Also where they may not write, since they may let themselves: that must not stop us.
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


@contextmanager
def _opened(parent: int, name: str) -> Iterator[int]:
    place = os.open(name, _PLACE, dir_fd=parent)
    try:
        yield place
    finally:
        os.close(place)


@contextmanager
def _opened_source(path: str) -> Iterator[int]:
    """A descriptor of a place of the host. OSError where it is named relatively or by a link."""
    if not path.startswith("/"):
        raise OSError(errno.EINVAL, "not an absolute path", path)
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        source = calls.open_beneath(root, path.strip("/") or ".", os.O_PATH)
    finally:
        os.close(root)
    try:
        yield source
    finally:
        os.close(source)


def _bind_to_itself(place: int) -> None:
    tree = calls.clone_mounts(place)
    try:
        calls.change_mounts(tree)
        calls.attach_mounts(tree, place)
    finally:
        os.close(tree)


def _path(place: int) -> str:
    return f"/proc/self/fd/{place}"
