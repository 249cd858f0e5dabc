"""Saves the files that a capsule changed, and restores them into another capsule's workspace.

The saved copy holds directories, files and symbolic links only: no device, fifo or socket, no
set-id bit. Files are read through descriptors from the layers; nothing is mounted and no program is
started. The target of a restore is a plain directory or the upper layer of an overlay that is not
mounted; its directories are opened one by one, without following links.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from atoll.host import files, user_namespace
from atoll.host.files import make_private_directory, remove_tree, write_new
from atoll.host.intake.ignore import is_git_name
from atoll.host.kernel import open_beneath
from atoll.host.tree.file_contents import Mover
from atoll.host.tree.layer_stack import Namespace
from atoll.host.tree.merged_tree import MergedEntry, MergedTree
from atoll.host.tree.tree_copy import copy_tree, explained, settle_as_file
from atoll.keeper.handles import Opened
from atoll.model.errors import StateError
from atoll.model.untrusted import InsidePath, Untrusted, find_link_target, find_path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_WRITE = os.O_RDWR | os.O_CREAT | os.O_EXCL
_ENTRIES = 10_000_000
CHANGES, REMOVED = "changes", "removed.txt"
WHOLE = "workspace"
"""The directory for all files of a workspace, if it is unknown which of them differ."""
_LAYERS = "layers"


def save_changed_files(
    layers: Sequence[Path], *, own: int, namespace: Namespace, target: Path
) -> None:
    """Copies what the topmost `own` layers of a stack change into the directory `target`.

    `target/changes` gets the files and links, `target/removed.txt` the removed or replaced paths,
    quoted, one per line. If the layers cannot be merged, `target/layers` gets the files of each
    own layer instead. Raises as `copy_tree`.
    """
    make_private_directory(target)
    with explained(layers[-1], target):
        try:
            _set_aside(layers, own, namespace, target)
        except StateError:
            # A layer is missing, or has attributes that the kernel would not write.
            remove_tree(target / CHANGES, within=target)
            present = [layer for layer in layers[-own:] if layer.is_dir()]
            for number, layer in enumerate(present):
                make_private_directory(target / _LAYERS)
                copy_tree(layer, target / _LAYERS / str(number), as_files=True)


def _set_aside(layers: Sequence[Path], own: int, namespace: Namespace, target: Path) -> None:
    if _copy_changes(layers, own, namespace, target):
        return
    if os.geteuid() == 0:
        raise StateError("the changes cannot be read")
    remove_tree(target / CHANGES, within=target)
    paths = json.dumps([str(layer) for layer in layers])
    if user_namespace.call(__name__, [paths, str(own), namespace, str(target)]) != [True]:
        raise StateError("the changes cannot be read")


def main() -> None:
    """`LAYERS OWN NAMESPACE TARGET`, in the child."""

    def work(argv: list[str]) -> tuple[bool]:
        layers = [Path(layer) for layer in json.loads(argv[0])]
        namespace: Namespace = "user" if argv[2] == "user" else "trusted"
        return (_copy_changes(layers, int(argv[1]), namespace, Path(argv[3])),)

    user_namespace.answer(work)


def _copy_changes(layers: Sequence[Path], own: int, namespace: Namespace, target: Path) -> bool:
    """Returns False if something could not be read."""
    place = target / CHANGES
    with MergedTree(layers, own=own, namespace=namespace, at="") as tree:
        found = tree.changes(limit_entries=_ENTRIES)
        if found.closed:
            return False
        os.mkdir(place, 0o700)
        with Opened(os.open(place, _DIRECTORY | os.O_CLOEXEC)) as root:
            for directory in sorted(found.directories):
                _make_directory(root, directory)
            for path, entry in found.entries.items():
                if not _copy_entry(tree, root, path, entry):
                    return False
    removed = sorted(path for path in found.hidden if path not in found.entries)
    write_new(target / REMOVED, b"".join(path.quoted() + b"\n" for path in removed), mode=0o600)
    return True


def _make_directory(root: int, path: InsidePath) -> None:
    with Opened(_open_parent(root, path)) as parent, suppress(FileExistsError):
        os.mkdir(path.name, 0o700, dir_fd=parent)


def _open_parent(root: int, path: InsidePath) -> int:
    above = path.parent
    return open_beneath(root, b"" if above is None else above.raw, _DIRECTORY)


def _copy_entry(tree: MergedTree, root: int, path: InsidePath, entry: MergedEntry) -> bool:
    """Returns False if it could not be read."""
    if entry.target is not None:
        pointed = find_link_target(entry.target)
        if pointed is not None:
            with Opened(_open_parent(root, path)) as parent, suppress(FileExistsError):
                os.symlink(pointed, path.name, dir_fd=parent)
        return True
    source = tree.find_entry(entry)
    if source is None:
        # Root, also of a user namespace, can read everything: the entry has vanished.
        return os.geteuid() == 0
    with Opened(source), Opened(open_beneath(root, path.raw, _WRITE, 0o600)) as target:
        status, _ = Mover().move_live(source, target)
        settle_as_file(target, status)
    return True


_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_REMOVED_BYTES = 1 << 28
_GIT = InsidePath(b".git")
_MODULES = InsidePath(b".git/modules")
_LAYOUTS = (frozenset({b"head", b"objects", b"refs"}), frozenset({b"head", b"commondir"}))
"""How git recognises a repository without `.git`, in lower case: some filesystems ignore case."""


def find_saved(aside: Path, at: str) -> Path | None:
    """The directory in `aside` with files of the workspace; None if they are saved by layer, or if
    there are none.
    """
    for place in (aside / CHANGES / at, aside / WHOLE):
        if place.is_dir() and not place.is_symlink():
            return place
    return None


def is_whole(aside: Path) -> bool:
    """Whether all files of a workspace were saved, instead of the changed ones."""
    return (aside / WHOLE).is_dir() and not (aside / CHANGES).is_dir()


def put_back(
    aside: Path,
    target: Path,
    *,
    at: str,
    overlay: Namespace | None = None,
    is_inside: bool = False,
) -> None:
    """Restores saved files to `target`, and hides removed paths there. `at` is the workspace's
    path in the saved files.

    With `overlay` the target is an upper layer, and overlayfs attributes of that namespace hide
    lower layers. A workspace that only processes in a capsule use (`is_inside`) gets nested
    repositories and those of submodules. Elsewhere no `.git` is written: an agent may have put
    settings there that start programs. `remove_bare_heads` is for repositories without one. The
    target's own repository is never changed. Raises StateError if something cannot be written and
    PrerequisiteError if there is no space.
    """
    source = find_saved(aside, at)
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
    """Removes the `HEAD` of each directory below `root`, a checkout of the owner, that git
    considers a bare repository: its settings may start programs when git runs there. Such
    directories can come from commits as well as from saved files. Returns what was removed.
    """
    top, target = os.fsencode(root), _Target(root, None, is_inside=False)
    found = []
    with explained(root, root):
        for place, directories, names in os.walk(top):
            # Neither commits nor restored files have a `.git`: a setup command has created it.
            directories[:] = [name for name in directories if not is_git_name(name)]
            if place == top:
                # Git looks for `.git` first, and the checkout has one.
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
    """The paths that had been removed from the workspace, or replaced there."""
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
                self._mover.move_live(origin, copy)
                settle_as_file(copy, status)

    def _make_directory(self, path: InsidePath, *, is_opaque: bool) -> None:
        with Opened(self._open_parent(path)) as parent:
            found = _find_status(parent, path)
            if found is not None and not stat.S_ISDIR(found.st_mode):
                # A whiteout hid the lower layers: the directory that replaces it must be opaque.
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
        """Removes any entry at the path."""
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
