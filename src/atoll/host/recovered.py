"""What a capsule changed, set aside as plain files of the owner.

The copy holds nothing but directories, files and links: no device, fifo or socket, no set-id bit.
Everything is read by descriptors from the layers; nothing is mounted and no program is started.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from atoll.host import user_namespace
from atoll.host.contents import Mover, Opened
from atoll.host.files import make_private_directory, remove_tree, write_new
from atoll.host.kernel import open_beneath
from atoll.host.layer_stack import Namespace
from atoll.host.merged import Entry, MergedTree
from atoll.host.tree_copy import copy_tree, explained, settle_as_file
from atoll.model.errors import StateError
from atoll.model.untrusted import InsidePath, find_link_target

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_WRITE = os.O_RDWR | os.O_CREAT | os.O_EXCL
_ENTRIES = 10_000_000
CHANGES, REMOVED = "changes", "removed.txt"
WHOLE = "workspace"
"""What all files of a workspace are kept under, where nothing says which of them differ."""
_LAYERS = "layers"


def set_changes_aside(
    layers: Sequence[Path], *, own: int, namespace: Namespace, target: Path
) -> None:
    """Copies what the `own` top layers of a stack change into the directory `target`.

    `target/changes` gets the files and links, `target/removed.txt` the paths that were removed or
    replaced, quoted, one per line. If the layers cannot be merged, `target/layers` gets the files
    of each own layer instead. Raises as `copy_tree`.
    """
    make_private_directory(target)
    with explained(layers[-1], target):
        try:
            _set_aside(layers, own, namespace, target)
        except StateError:
            # A layer is missing, or has marks that the kernel would not write.
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
    said = json.dumps([str(layer) for layer in layers])
    if user_namespace.call(__name__, [said, str(own), namespace, str(target)]) != [True]:
        raise StateError("the changes cannot be read")


def main() -> None:
    """`LAYERS OWN NAMESPACE TARGET`, in the child."""

    def work(argv: list[str]) -> tuple[bool]:
        layers = [Path(layer) for layer in json.loads(argv[0])]
        namespace: Namespace = "user" if argv[2] == "user" else "trusted"
        return (_copy_changes(layers, int(argv[1]), namespace, Path(argv[3])),)

    user_namespace.answer(work)


def _copy_changes(layers: Sequence[Path], own: int, namespace: Namespace, target: Path) -> bool:
    """Returns False when something of it could not be read."""
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


def _copy_entry(tree: MergedTree, root: int, path: InsidePath, entry: Entry) -> bool:
    """Returns False when it could not be read."""
    if entry.target is not None:
        pointed = find_link_target(entry.target)
        if pointed is not None:
            with Opened(_open_parent(root, path)) as parent, suppress(FileExistsError):
                os.symlink(pointed, path.name, dir_fd=parent)
        return True
    source = tree.find_entry(entry)
    if source is None:
        # Root, also of a user namespace, can read everything: then it has vanished.
        return os.geteuid() == 0
    with Opened(source), Opened(open_beneath(root, path.raw, _WRITE, 0o600)) as target:
        status, _ = Mover().move_live(source, target, _ignore)
        settle_as_file(target, status)
    return True


def _ignore(_: int) -> None:
    pass
