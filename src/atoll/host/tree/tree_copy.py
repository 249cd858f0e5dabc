"""Copies a complete tree that a hostile process may be writing to.

Every directory is opened beneath the root without following links, every entry by its name in an
open directory. So whatever is replaced in the meantime, nothing outside is read. Entries that
vanish or change are counted and not fatal. Paths may be longer than PATH_MAX.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from atoll.host import user_namespace
from atoll.host.disk_space import SHORTAGE
from atoll.host.files import remove_tree
from atoll.host.kernel import open_beneath
from atoll.host.tree.file_contents import Mover, give_owner, settle
from atoll.host.tree.layer_stack import is_gone
from atoll.keeper.handles import Opened
from atoll.model.errors import PrerequisiteError, StateError
from atoll.model.names import printable

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_NOCTTY
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_STEP_BYTES = 3000
_PATH_BYTES = 1 << 13
_ENTRIES = 10_000_000
_EXAMPLES = 20
_KEPT = ("user.", "trusted.overlay.", "system.posix_acl_")
_OVERLAY = ("user.overlay.", "trusted.overlay.")
# Not permitted, not supported by the filesystem, or owners that the namespace does not map.
_NOT_KEPT = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENODATA, errno.EINVAL})


class CopyOutcome(NamedTuple):
    entries: int
    vanished: int
    """Entries that had vanished, or changed their type, when they were to be copied."""
    changed: int
    """Files that were written to while they were copied."""
    left_out: int
    """Devices, and paths longer than 8 KiB; fifos and sockets if not wanted."""
    examples: tuple[str, ...] = ()
    """Some of the counted paths, for display."""

    @property
    def differences(self) -> tuple[str, ...]:
        """The examples if anything vanished, changed or was left out: the copy is not exact."""
        return self.examples if self.vanished or self.changed or self.left_out else ()


def copy_tree(source: Path, target: Path, *, as_files: bool = False) -> CopyOutcome:
    """Copies `source` into `target`, which is empty or missing.

    Preserves modes, times, owners as permitted, extended attributes including overlayfs',
    whiteouts, holes, hard links, fifos and sockets. Removes set-id bits and capabilities of files.
    With `as_files` the copy belongs to the calling user, who can read and remove all of it, and has
    only directories, files and links.

    Files that their mode closes to an ordinary user are copied, too. Raises StateError for entries
    that cannot be copied, and PrerequisiteError if there is no space.
    """
    with explained(source, target):
        try:
            return copy_readable(source, target, as_files=as_files)
        except PermissionError:
            if os.geteuid() == 0:
                raise
        if target.exists():
            remove_tree(target, within=target.parent)
        kind = "files" if as_files else "state"
        found = user_namespace.call(__name__, [str(source), str(target), kind])
    *numbers, examples = found
    shown = examples if isinstance(examples, list) else []
    entries, vanished, changed, left_out = (int(str(number)) for number in numbers)
    return CopyOutcome(entries, vanished, changed, left_out, tuple(map(str, shown)))


def main() -> None:
    """Runs in the child: `SOURCE TARGET files|state`."""

    def work(argv: list[str]) -> CopyOutcome:
        return copy_readable(Path(argv[0]), Path(argv[1]), as_files=argv[2] == "files")

    user_namespace.answer(work)


@contextmanager
def explained(source: Path, target: Path) -> Iterator[None]:
    """Converts filesystem errors to Atoll's."""
    try:
        yield
    except OSError as error:
        if error.errno in SHORTAGE:
            hint = f"df -h {shlex.quote(str(target.parent))}; atoll gc"
            raise PrerequisiteError(f"no space left on `{target}`", hint=hint) from error
        raise StateError(f"`{source}` cannot be copied: {error.strerror}") from error


def copy_readable(source: Path, target: Path, *, as_files: bool) -> CopyOutcome:
    """As `copy_tree`, in this process; raises PermissionError for unreadable entries."""
    with suppress(FileExistsError):
        os.mkdir(target, 0o700)
    with ExitStack() as stack:
        roots = []
        for place in (source, target):
            roots.append(os.open(place, _DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
            stack.callback(os.close, roots[-1])
        return _Copy(roots[0], roots[1], as_files=as_files).run()


def open_deep(root: int, path: bytes, flags: int) -> int:
    """As `open_beneath`, for a path of any length."""
    handle, parts = os.dup(root), path.split(b"/") if path else []
    try:
        while len(path) > _STEP_BYTES:
            count = length = 0
            while length < _STEP_BYTES and count < len(parts) - 1:
                length += len(parts[count]) + 1
                count += 1
            below = open_beneath(handle, b"/".join(parts[:count]), os.O_PATH | os.O_DIRECTORY)
            os.close(handle)
            handle = below
            parts = parts[count:]
            path = b"/".join(parts)
        return open_beneath(handle, path, flags)
    finally:
        os.close(handle)


class _Pair(NamedTuple):
    """A directory and its copy, both open."""

    path: bytes
    source: int
    target: int


class _Finished(NamedTuple):
    """A copied directory; its attributes are set when it is filled."""

    path: bytes
    status: os.stat_result
    attributes: dict[str, bytes]


class _Copy:
    def __init__(self, source: int, target: int, *, as_files: bool) -> None:
        self._source = source
        self._target = target
        self._as_files = as_files
        self._mover = Mover()
        self._owner = (os.geteuid(), os.fstat(target).st_gid)
        self._waiting = [b""]
        self._finished: list[_Finished] = []
        self._links: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self._counts = dict.fromkeys(("entries", "vanished", "changed", "left_out"), 0)
        self._examples: list[str] = []

    def run(self) -> CopyOutcome:
        while self._waiting:
            path = self._waiting.pop()
            with self._vanishing(path):
                self._copy_directory(path)
        for directory in reversed(self._finished):
            with Opened(open_deep(self._target, directory.path, _DIRECTORY)) as handle:
                self._settle(handle, directory.status, directory.attributes)
        return CopyOutcome(**self._counts, examples=tuple(self._examples))

    def _count(self, what: str, path: bytes) -> None:
        self._counts[what] += 1
        if what != "entries" and len(self._examples) < _EXAMPLES:
            self._examples.append(printable(os.fsdecode(path[:400])))
        if self._counts["entries"] > _ENTRIES:
            raise StateError(f"the tree has more than {_ENTRIES} entries")

    @contextmanager
    def _vanishing(self, path: bytes) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            # A directory that is written to while it is listed may return a name twice.
            self._count("changed", path)
        except OSError as error:
            if not is_gone(error):
                raise
            self._count("vanished", path)

    def _copy_directory(self, path: bytes) -> None:
        try:
            source = open_deep(self._source, path, _DIRECTORY)
        except OSError as error:
            if is_gone(error):
                self._remove_empty(path)
            raise
        with Opened(source), Opened(open_deep(self._target, path, _DIRECTORY)) as target:
            found = _Finished(path, os.fstat(source), self._attributes(source))
            self._finished.append(found)
            pair = _Pair(path, source, target)
            with os.scandir(source) as listing:
                for entry in listing:
                    name = os.fsencode(entry.name)
                    with self._vanishing(_join(path, name)):
                        self._copy_entry(pair, name, entry.stat(follow_symlinks=False))

    def _remove_empty(self, path: bytes) -> None:
        """Removes the copy of a directory that vanished before it was opened."""
        above, _, name = path.rpartition(b"/")
        with Opened(open_deep(self._target, above, _DIRECTORY)) as parent:
            os.rmdir(name, dir_fd=parent)

    def _copy_entry(self, pair: _Pair, name: bytes, status: os.stat_result) -> None:
        path, mode = _join(pair.path, name), status.st_mode
        self._count("entries", path)
        if stat.S_ISDIR(mode):
            if len(path) > _PATH_BYTES:
                self._count("left_out", path)
                return
            os.mkdir(name, 0o700, dir_fd=pair.target)
            self._waiting.append(path)
        elif stat.S_ISREG(mode):
            self._copy_file(pair, name)
        elif stat.S_ISLNK(mode):
            self._copy_link(pair, name, status)
        elif stat.S_ISCHR(mode) and status.st_rdev == 0:
            if not self._as_files:
                os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=pair.target)
        elif self._as_files or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            self._count("left_out", path)
        else:
            os.mknod(name, stat.S_IFMT(mode) | 0o600, dir_fd=pair.target)
            self._finish_name(pair, name, status)
            os.chmod(name, mode & 0o777, dir_fd=pair.target)

    def _copy_file(self, pair: _Pair, name: bytes) -> None:
        with Opened(os.open(name, _READ, dir_fd=pair.source)) as source:
            status = os.fstat(source)
            path, identity = _join(pair.path, name), (status.st_dev, status.st_ino)
            if not stat.S_ISREG(status.st_mode):
                self._count("vanished", path)
                return
            if status.st_nlink > 1 and self._link(identity, pair, name):
                return
            with Opened(os.open(name, _WRITE, 0o600, dir_fd=pair.target)) as target:
                status, has_changed = self._mover.move_live(source, target)
                self._settle(target, status, self._attributes(source))
            if has_changed:
                self._count("changed", path)
            if status.st_nlink > 1:
                self._links[identity] = (pair.path, name)

    def _link(self, identity: tuple[int, int], pair: _Pair, name: bytes) -> bool:
        """Creates a further hard link of a copied file."""
        if identity not in self._links:
            return False
        directory, first = self._links[identity]
        with Opened(open_deep(self._target, directory, _DIRECTORY)) as handle:
            try:
                os.link(first, name, src_dir_fd=handle, dst_dir_fd=pair.target)
            except OSError as error:
                if error.errno in {errno.EMLINK, errno.EPERM}:
                    return False
                raise
        return True

    def _copy_link(self, pair: _Pair, name: bytes, status: os.stat_result) -> None:
        pointed = os.readlink(name, dir_fd=pair.source)
        os.symlink(pointed, name, dir_fd=pair.target)
        if not self._as_files and os.geteuid() == 0:
            places = [f"/proc/self/fd/{handle}/".encode() + name for handle in pair[1:]]
            for key, value in _read_attributes(places[0], _OVERLAY).items():
                _set_attribute(places[1], key, value)
        self._finish_name(pair, name, status)

    def _finish_name(self, pair: _Pair, name: bytes, status: os.stat_result) -> None:
        if not self._as_files and self._owner != (status.st_uid, status.st_gid):
            give_owner(os.fsdecode(name), status, within=pair.target)
        times = (status.st_atime_ns, status.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=pair.target, follow_symlinks=False)

    def _attributes(self, handle: int) -> dict[str, bytes]:
        found = _read_attributes(handle, ("user.",) if self._as_files else _KEPT)
        if self._as_files:
            return {key: value for key, value in found.items() if not key.startswith(_OVERLAY)}
        return found

    def _settle(self, handle: int, status: os.stat_result, extended: dict[str, bytes]) -> None:
        for key, value in extended.items():
            _set_attribute(handle, key, value)
        if self._as_files:
            settle_as_file(handle, status)
        else:
            settle(handle, status, {}, self._owner)


def settle_as_file(handle: int, status: os.stat_result) -> None:
    """Sets mode and times of a copy for the calling user: readable, without set-id bits."""
    own = 0o700 if stat.S_ISDIR(status.st_mode) else 0o600
    os.fchmod(handle, status.st_mode & 0o777 | own)
    os.utime(handle, ns=(status.st_atime_ns, status.st_mtime_ns))


def _read_attributes(place: int | bytes, kept: tuple[str, ...]) -> dict[str, bytes]:
    follow = isinstance(place, int)
    found = {}
    with _tolerating(errno.EOPNOTSUPP):
        for name in os.listxattr(place, follow_symlinks=follow):
            if name.startswith(kept):
                with _tolerating(errno.ENODATA):
                    found[name] = os.getxattr(place, name, follow_symlinks=follow)
    return found


@contextmanager
def _tolerating(number: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != number:
            raise


def _set_attribute(place: int | bytes, key: str, value: bytes) -> None:
    try:
        os.setxattr(place, key, value, follow_symlinks=isinstance(place, int))
    except OSError as error:
        # Without one of its attributes a layer would show what it has to hide.
        if error.errno not in _NOT_KEPT or key.startswith(_OVERLAY):
            raise


def _join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name
