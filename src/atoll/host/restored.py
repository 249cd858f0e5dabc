"""Puts files that were set aside (`recovered.py`) back into the workspace of a new capsule.

The source is a copy of Atoll's own: directories, files and links, and nothing else. The target is a
plain directory, or the upper layer of an overlay that is not mounted; directories in it are opened
one by one, without following a link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from atoll.host import files
from atoll.host.contents import Mover, Opened
from atoll.host.intake.ignore import is_git_name
from atoll.host.kernel import open_beneath
from atoll.host.layer_stack import Namespace
from atoll.host.recovered import CHANGES, REMOVED, WHOLE
from atoll.host.tree_copy import explained, settle_as_file
from atoll.model.untrusted import InsidePath, Untrusted, find_path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_RDWR | os.O_CREAT | os.O_EXCL
_REMOVED_BYTES = 1 << 28
_GIT = InsidePath(b".git")
_MODULES = InsidePath(b".git/modules")
_LAYOUTS = (frozenset({b"head", b"objects", b"refs"}), frozenset({b"head", b"commondir"}))
"""By which git knows a repository without a `.git`, in lower case: some file systems ignore it."""


def find_kept(aside: Path, at: str) -> Path | None:
    """The directory in `aside` that holds files of the workspace; None when they are in layers of
    their own, or there are none.
    """
    for place in (aside / CHANGES / at, aside / WHOLE):
        if place.is_dir() and not place.is_symlink():
            return place
    return None


def is_whole(aside: Path) -> bool:
    """Whether all files of a workspace were kept, rather than those that differ."""
    return (aside / WHOLE).is_dir() and not (aside / CHANGES).is_dir()


def put_back(
    aside: Path,
    target: Path,
    *,
    at: str,
    overlay: Namespace | None = None,
    is_inside: bool = False,
) -> None:
    """Brings what was kept to `target`, and hides there what was removed. `at` is what the
    workspace is called in what was kept.

    With `overlay` the target is an upper layer, and marks of that namespace hide what lies below.
    A workspace that only processes inside of a capsule use (`is_inside`) gets the repositories in
    it, and those of its submodules. Anywhere else no `.git` is written: an agent may have put
    settings there that start programs. `remove_bare_heads` is for repositories without one. The
    repository of the target itself is never touched. Raises StateError when something cannot be
    written and PrerequisiteError when there is no space.
    """
    source = find_kept(aside, at)
    if source is None:
        return
    removed = [] if is_whole(aside) else list(_removed(aside, at))
    with explained(source, target):
        place = _Target(target, overlay, is_inside=is_inside)
        for path in removed:
            if not _is_directory(source, path):
                place.hide(path)
        opaque = {path for path in removed if _is_directory(source, path)}
        place.fill(source, opaque)


def remove_bare_heads(root: Path) -> tuple[InsidePath, ...]:
    """Removes the `HEAD` of each directory below `root`, a checkout of the owner's, that git takes
    for a bare repository: its settings may start programs when a git runs there. They can come
    from a commit as well as from files that were set aside. Without a `HEAD` it is a directory as
    any other. Returns what was removed.
    """
    top, target = os.fsencode(root), _Target(root, None, is_inside=False)
    found = []
    with explained(root, root):
        for place, directories, names in os.walk(top):
            # No commit and nothing that is put back has a `.git`: a set-up has made it.
            directories[:] = [name for name in directories if not is_git_name(name)]
            if place == top:
                # Git looks for a `.git` first, and the checkout has one.
                continue
            present = {name.lower() for name in (*directories, *names)}
            if any(layout <= present for layout in _LAYOUTS):
                heads = [name for name in (*directories, *names) if name.lower() == b"head"]
                inner = InsidePath(place[len(top) + 1 :])
                found += [inner.child(n) for n in heads if not _is_directory(root, inner.child(n))]
        for path in found:
            target.clear(path)
    return tuple(sorted(found))


def _removed(aside: Path, at: str) -> Iterator[InsidePath]:
    """What had been removed from the workspace, or replaced there."""
    content = files.read_regular(aside / REMOVED, limit_bytes=_REMOVED_BYTES) or b""
    top = f"{at}/".encode()
    for line in content.splitlines():
        raw = line.strip(b'"').decode("unicode_escape").encode("latin-1")
        path = find_path(Untrusted(raw.removeprefix(top)))
        if raw.startswith(top) and path is not None and not _is_git(path):
            yield path


def _is_git(path: InsidePath) -> bool:
    return path == _GIT or path.is_below(_GIT)


def _is_directory(source: Path, path: InsidePath) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(os.path.join(os.fsencode(source), path.raw)).st_mode)
    except OSError:
        return False


class _Target:
    def __init__(self, root: Path, overlay: Namespace | None, *, is_inside: bool) -> None:
        self._root = root
        self._overlay = overlay
        self._is_inside = is_inside
        self._mover = Mover()

    def hide(self, path: InsidePath) -> None:
        if self._overlay is None:
            with suppress(FileNotFoundError, NotADirectoryError):
                self.clear(path)
            return
        for above in reversed([*path.parents()]):
            self._make_directory(above, is_opaque=False)
        self.clear(path)
        with Opened(self._open_parent(path)) as parent:
            os.mknod(path.name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent)

    def fill(self, source: Path, opaque: Collection[InsidePath]) -> None:
        top = os.fsencode(source)
        for place, directories, names in os.walk(top):
            inner = place[len(top) + 1 :]
            for name in [*sorted(directories), *sorted(names)]:
                path = find_path(Untrusted(os.path.join(inner, name)))
                is_directory = name in directories and not os.path.islink(os.path.join(place, name))
                if path is None or not self._is_wanted(path, is_directory=is_directory):
                    directories[:] = [each for each in directories if each != name]
                    continue
                self._put(os.path.join(place, name), path, is_opaque=path in opaque)

    def _is_wanted(self, path: InsidePath, *, is_directory: bool) -> bool:
        if not self._is_inside:
            return not any(map(is_git_name, path.parts))
        if path in (_GIT, _MODULES):
            return is_directory
        return not _is_git(path) or path.is_below(_MODULES)

    def _put(self, source: bytes, path: InsidePath, *, is_opaque: bool) -> None:
        status = os.lstat(source)
        if stat.S_ISDIR(status.st_mode):
            self._make_directory(path, is_opaque=is_opaque)
            return
        self.clear(path)
        if stat.S_ISLNK(status.st_mode):
            with Opened(self._open_parent(path)) as parent:
                os.symlink(os.readlink(source), path.name, dir_fd=parent)
        elif stat.S_ISREG(status.st_mode):
            with (
                Opened(os.open(source, _READ)) as origin,
                Opened(self._open_root()) as root,
                Opened(open_beneath(root, path.raw, _WRITE, 0o600)) as copy,
            ):
                self._mover.move_live(origin, copy, _ignore)
                settle_as_file(copy, status)

    def _make_directory(self, path: InsidePath, *, is_opaque: bool) -> None:
        with Opened(self._open_parent(path)) as parent:
            found = _find_status(parent, path)
            if found is not None and not stat.S_ISDIR(found.st_mode):
                # A whiteout hid what lies below: so must the directory that takes its place.
                is_opaque = is_opaque or stat.S_ISCHR(found.st_mode)
                os.unlink(path.name, dir_fd=parent)
                found = None
            if found is None:
                os.mkdir(path.name, 0o755, dir_fd=parent)
        if is_opaque and self._overlay is not None:
            with (
                Opened(self._open_root()) as root,
                Opened(open_beneath(root, path.raw, _DIRECTORY)) as handle,
            ):
                os.setxattr(handle, f"{self._overlay}.overlay.opaque", b"y")

    def clear(self, path: InsidePath) -> None:
        """Removes what is there, whatever it is."""
        with Opened(self._open_parent(path)) as parent:
            found = _find_status(parent, path)
            if found is None:
                return
            if not stat.S_ISDIR(found.st_mode):
                os.unlink(path.name, dir_fd=parent)
                return
        place = self._root / os.fsdecode(path.raw)
        files.remove_tree(place, within=self._root)

    def _open_root(self) -> int:
        return os.open(self._root, _DIRECTORY | os.O_CLOEXEC)

    def _open_parent(self, path: InsidePath) -> int:
        above = path.parent
        with Opened(self._open_root()) as root:
            return open_beneath(root, b"" if above is None else above.raw, _DIRECTORY)


def _find_status(parent: int, path: InsidePath) -> os.stat_result | None:
    with suppress(FileNotFoundError):
        return os.stat(path.name, dir_fd=parent, follow_symlinks=False)
    return None


def _ignore(_: int) -> None:
    pass
