"""Copies trees: complete ones, and changes as overlay layers.

No link is followed and nothing outside is read: every source directory is opened by a descriptor
that must be where its path says, every file by its name in it. The report has the state of each
entry when it was copied, not that of an earlier walk.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from atoll.host.disk_space import SHORTAGE
from atoll.host.tree.file_contents import (
    Method,
    Mover,
    attributes,
    find_file,
    give_owner,
    settle,
)
from atoll.host.tree.manifests import (
    Difference,
    Manifest,
    Root,
    Stamp,
    is_gone,
    parents,
    stamp_of,
    unreadable,
)
from atoll.host.tree.thread_pool import Progress, WorkerThread, progress_of, run_parallel
from atoll.keeper.handles import Opened
from atoll.model.errors import AtollError, PrerequisiteError, StateError
from atoll.model.names import printable

_WRITE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BATCH_FILES = 64
NAMESPACES = ("user", "trusted")
"""Of overlayfs' attributes; the first is for mounts with the option `userxattr`."""


class CopyReport(NamedTuple):
    method: Method
    """The method that copied the most files."""
    manifest: Manifest
    """The copied entries, with the stamps of their sources at that time."""
    digests: dict[str, str]
    """Of every regular file, read back from the copy."""
    vanished: list[str]
    """Entries that had vanished, or changed their type, when they were to be copied."""


class CopiedPart(NamedTuple):
    """Entries and their tree. Their parents are entries of some part."""

    source: Path
    entries: Manifest


class Marks(NamedTuple):
    """Whiteouts and opaque directories of a layer."""

    whiteouts: Sequence[str] = ()
    opaque: Sequence[str] = ()


def copy_entries(
    source: Path,
    target: Path,
    entries: Manifest,
    *,
    progress: Progress | None = None,
    digests: bool = True,
) -> CopyReport:
    """Copies `entries`, which include the parents of all entries, into a new directory.

    Preserves modes, times, owners as permitted, `user.*` attributes, holes and hard links among
    the entries; the target itself gets the mode and time of the source. Removes set-id bits of
    files. On failure the caller removes the partial copy.

    Raises StateError for a file that cannot be read or keeps changing, or if the target exists,
    and PrerequisiteError if there is no space.
    """
    part = CopiedPart(source, entries)
    return copy_parts([part], target, progress=progress, digests=digests)


def copy_changes(
    source: Path,
    target: Path,
    changes: Difference,
    manifest: Manifest,
    *,
    progress: Progress | None = None,
) -> CopyReport:
    """Creates the layer that turns the old tree into that of `manifest`; raises as copy_entries.

    An entry that was removed with its directory needs no whiteout of its own. No directory needs
    to be opaque: each removed entry is hidden by itself, and overlayfs does not search below a file
    for the rest of a directory above it.
    """
    wanted = set(changes.changed)
    whiteouts = {path for path in map(partial(_hidden_by, manifest), changes.removed) if path}
    for path in (*changes.changed, *whiteouts):
        wanted.update(parents(path))
    part = CopiedPart(source, {path: manifest[path] for path in sorted(wanted)})
    marks = Marks(whiteouts=sorted(whiteouts))
    return copy_parts([part], target, marks, progress=progress)


def _hidden_by(manifest: Manifest, path: str) -> str | None:
    """The path of the whiteout for a removed path; None if another entry hides it anyway."""
    for place in (*reversed(list(parents(path))), path):
        stamp = manifest.get(place)
        if stamp is None:
            return place
        if not stamp.is_directory:
            return None
    return None


def copy_parts(
    parts: Sequence[CopiedPart],
    target: Path,
    marks: Marks | None = None,
    *,
    progress: Progress | None = None,
    digests: bool = True,
) -> CopyReport:
    """Copies trees without common files into one new directory, with the last one's root."""
    applied = marks or Marks()
    with ExitStack() as stack:
        roots = [stack.enter_context(Root(part.source)) for part in parts]
        copy = _Copy(parts, roots, target, digests=digests)
        copy.make_directories()
        copy.make_whiteouts(applied.whiteouts)
        workers = run_parallel(copy.batches, copy.copy_batch, progress=progress)
        workers.append(WorkerThread(threading.Event()))
        copy.copy_hard_links(workers[-1])
        copy.settle_directories(applied)
    if progress is not None:
        progress(*progress_of(workers))
    return CopyReport(copy.mover.method, copy.manifest, copy.digests, sorted(copy.vanished))


class _Batch(NamedTuple):
    """Some entries of one directory, for one thread."""

    part: int
    directory: str
    names: list[str]
    leads: bool
    """Whether the attributes of the directory itself are read with this batch."""


class _Place(NamedTuple):
    """A directory of a part and its copy, both open."""

    part: int
    directory: str
    source: int
    target: int


class _Copy:
    """A copy in progress; its public methods are called once each, in this order."""

    def __init__(
        self, parts: Sequence[CopiedPart], roots: Sequence[Root], target: Path, *, digests: bool
    ) -> None:
        self.mover = Mover()
        self.manifest: Manifest = {}
        self.digests: dict[str, str] = {}
        self.vanished: list[str] = []
        self.batches: list[_Batch] = []
        self._roots = roots
        self._target = target
        self._wants_digests = digests
        self._owner = (os.geteuid(), os.getegid())
        self._directories: dict[str, tuple[os.stat_result, dict[str, bytes]]] = {}
        self._links: dict[tuple[int, int, int], str] = {}
        self._followers: list[_Batch] = []
        for number, part in enumerate(parts):
            self.manifest.update(part.entries)
            self._plan(number, part.entries, leads_root=number == len(parts) - 1)

    def _plan(self, number: int, entries: Manifest, *, leads_root: bool) -> None:
        """Divides the work by directories; further names of a hard link come at the end."""
        by_directory: dict[str, list[str]] = {"": []}
        linked: set[int] = set()
        for path, stamp in entries.items():
            if stamp.is_directory:
                by_directory.setdefault(path, [])
                continue
            directory, _, name = path.rpartition("/")
            if stamp.links > 1 and stamp.is_file:
                if stamp.inode in linked:
                    self._followers.append(_Batch(number, directory, [name], leads=False))
                    continue
                linked.add(stamp.inode)
            by_directory.setdefault(directory, []).append(name)
        for directory, names in by_directory.items():
            leads = directory in entries if directory else leads_root
            for start in range(0, len(names) or 1, _BATCH_FILES):
                some = names[start : start + _BATCH_FILES]
                self.batches.append(_Batch(number, directory, some, leads and start == 0))

    def _all_directories(self) -> list[str]:
        """Parents first."""
        return sorted(path for path, stamp in self.manifest.items() if stamp.is_directory)

    def make_directories(self) -> None:
        """Creates the target and all directories, writable until they are filled."""
        with _explained(self._target, str(self._target)):
            try:
                os.mkdir(self._target, 0o700)
            except FileExistsError as error:
                if os.listdir(self._target):
                    raise StateError(f"`{self._target}` exists already") from error
            self._owner = (os.geteuid(), os.stat(self._target).st_gid)
            for path in self._all_directories():
                os.mkdir(f"{self._target}/{path}", 0o700)

    def make_whiteouts(self, paths: Iterable[str]) -> None:
        with _explained(self._target, str(self._target)):
            for path in paths:
                os.mknod(f"{self._target}/{path}", stat.S_IFCHR, os.makedev(0, 0))

    def copy_batch(self, batch: _Batch, worker: WorkerThread) -> None:
        number, directory, names, leads = batch
        root = self._roots[number]
        handle = root.find(directory)
        if handle is None:
            for name in names:
                self._lose(_join(directory, name))
            return
        with Opened(handle) as source, _explained(self._target, f"{root.path}/{directory}"):
            if leads:
                self._directories[directory] = (os.fstat(source), attributes(source))
            with Opened(self._open_copy(directory)) as target:
                place = _Place(number, directory, source, target)
                for name in names:
                    self._copy_name(place, name, worker)

    def _open_copy(self, directory: str) -> int:
        return os.open(f"{self._target}/{directory}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _copy_name(self, place: _Place, name: str, worker: WorkerThread) -> None:
        path = _join(place.directory, name)
        try:
            if self.manifest[path].target is not None:
                stamp = self._copy_link(place, name)
            else:
                stamp = self._copy_file(place, name, path, worker)
        except OSError as error:
            raise _failure(error, self._target, f"{self._roots[place.part].path}/{path}") from error
        if stamp is None:
            self._lose(path)
        else:
            self.manifest[path] = stamp
        worker.files += 1
        worker.tick(0)

    def _lose(self, path: str) -> None:
        self.vanished.append(path)
        self.manifest.pop(path, None)

    def _copy_link(self, place: _Place, name: str) -> Stamp | None:
        try:
            status = os.lstat(name, dir_fd=place.source)
            pointed = os.readlink(name, dir_fd=place.source)
        except OSError as error:
            if is_gone(error):
                return None
            raise
        os.symlink(pointed, name, dir_fd=place.target)
        if self._owner != (status.st_uid, status.st_gid):
            give_owner(name, status, within=place.target)
        times = (status.st_atime_ns, status.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=place.target, follow_symlinks=False)
        return stamp_of(status, pointed)

    def _copy_file(self, place: _Place, name: str, path: str, worker: WorkerThread) -> Stamp | None:
        origin = f"{self._roots[place.part].path}/{path}"
        found = find_file(name, within=place.source, origin=origin)
        if found is None:
            return None
        handle, status = found
        with Opened(handle) as source:
            identity = (place.part, status.st_dev, status.st_ino)
            if status.st_nlink > 1 and self._link(identity, place, name, path):
                return self.manifest[self._links[identity]]
            with Opened(os.open(name, _WRITE, 0o600, dir_fd=place.target)) as target:
                status, content = self.mover.move(
                    source, target, worker.tick,
                    origin=origin, status=status, wants_digest=self._wants_digests,
                )  # fmt: skip
                if content:
                    self.digests[path] = content
                settle(target, status, attributes(source), self._owner)
        if status.st_nlink > 1:
            self._links[identity] = path
        return stamp_of(status)

    def _link(self, identity: tuple[int, int, int], place: _Place, name: str, path: str) -> bool:
        """Creates a further hard link of a copied file."""
        first = self._links.get(identity)
        if first is None:
            return False
        try:
            copied = f"{self._target}/{first}"
            os.link(copied, name, dst_dir_fd=place.target, follow_symlinks=False)
        except OSError as error:
            if error.errno in {errno.EMLINK, errno.EPERM}:
                return False
            raise
        if first in self.digests:
            self.digests[path] = self.digests[first]
        return True

    def copy_hard_links(self, worker: WorkerThread) -> None:
        for batch in self._followers:
            self.copy_batch(batch, worker)

    def settle_directories(self, marks: Marks) -> None:
        """Sets attributes, deepest directories first: a parent's mode may forbid access."""
        opaque = frozenset(marks.opaque)
        for path in [*reversed(self._all_directories()), ""]:
            found = self._directories.get(path)
            with _explained(self._target, f"{self._target}/{path}"):
                if found is None:
                    self._drop_directory(path)
                    continue
                with Opened(self._open_copy(path)) as handle:
                    if path in opaque:
                        _mark_opaque(handle)
                    settle(handle, *found, self._owner)
            if path:
                self.manifest[path] = stamp_of(found[0])

    def _drop_directory(self, path: str) -> None:
        """Removes the copy of a vanished directory, unless it has entries."""
        try:
            os.rmdir(f"{self._target}/{path}")
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
        else:
            self._lose(path)


def _mark_opaque(handle: int) -> None:
    refused: OSError | None = None
    marked = False
    for namespace in NAMESPACES:
        try:
            os.setxattr(handle, f"{namespace}.overlay.opaque", b"y")
            marked = True
        except OSError as error:
            if error.errno not in {errno.EPERM, errno.EOPNOTSUPP}:
                raise
            refused = error
    if refused is not None and not marked:
        # Without the attribute the directory would show what it has to hide.
        raise refused


@contextmanager
def _explained(target: Path, origin: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _failure(error, target, origin) from error


def _failure(error: OSError, target: Path, origin: str) -> AtollError:
    if error.errno in SHORTAGE:
        place = shlex.quote(str(target.parent))
        return PrerequisiteError(f"no space left on `{target}`", hint=f"df -h {place}")
    if error.errno == errno.ENAMETOOLONG:
        return unreadable(origin, error)
    return StateError(f"`{printable(origin)}` cannot be copied: {error.strerror}")


def _join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name
