"""Lists, compares and builds git trees from the objects of an `ObjectDatabase`.

Paths are raw bytes here, and a hostile tree may contain anything: callers validate them. A few
trees that refer to each other many times can expand to an astronomical number of files, so every
walk counts what it lists.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from atoll.host.intake.object_database import TREE, ObjectDatabase, ObjectEntry
from atoll.model.errors import StateError
from atoll.model.untrusted import ObjectId

_LISTED_BYTES = 256 << 20
_ENTRY_BYTES = 50
"""The cost of an entry besides its path."""
_CHANGE_BYTES = 500
"""The cost of a difference besides its path: about half a million can be listed."""
_PATH_BYTES = 4096
_GITLINK = 0o160000


class TreeEntry(NamedTuple):
    mode: int
    object_id: ObjectId


Sides = tuple[TreeEntry | None, TreeEntry | None]


class TooManyFilesError(StateError):
    """A commit or tree expands to more files than a walk may list."""


class _Count:
    """The limit of a walk."""

    def __init__(self, name: str, limit_bytes: int, each_bytes: int = _ENTRY_BYTES) -> None:
        self._name, self._left_bytes, self._each_bytes = name, limit_bytes, each_bytes

    def add(self, path: bytes) -> None:
        self._left_bytes -= len(path) + self._each_bytes
        if self._left_bytes < 0:
            raise TooManyFilesError(f"commit `{self._name}` expands to too many files")
        if len(path) > _PATH_BYTES:
            raise StateError(f"commit `{self._name}` has an invalid path")


def listing(
    objects: ObjectDatabase,
    name: str,
    places: Collection[bytes] | None,
    *,
    limit_bytes: int = _LISTED_BYTES,
) -> dict[bytes, TreeEntry]:
    """The files, links and submodules of a commit or tree at these paths and below them, or all of
    them for None. Raises StateError if there are far too many.
    """
    wanted = None if places is None else set(places)
    on_the_way = None if wanted is None else _above(wanted)
    count = _Count(name, limit_bytes)
    found: dict[bytes, TreeEntry] = {}
    # (path with its slash, tree, whether all of it is wanted)
    level = [(b"", objects.tree_of(name), wanted is None)]
    while level:
        objects.load(tree for _, tree, _ in level)
        below = []
        for prefix, tree, is_wanted in level:
            for part, entry in objects.tree(tree).items():
                path = prefix + part
                is_inside = is_wanted or (wanted is not None and path in wanted)
                if stat.S_ISDIR(entry.mode):
                    if is_inside or (on_the_way is not None and path in on_the_way):
                        count.add(path)
                        below.append((path + b"/", entry.object_id, is_inside))
                elif is_inside:
                    count.add(path)
                    found[path] = _as_today(entry)
        level = below
    return dict(sorted(found.items()))


def _above(places: Collection[bytes]) -> set[bytes]:
    """All parent directories of these paths."""
    found: set[bytes] = set()
    for place in places:
        parent = place.rpartition(b"/")[0]
        while parent and parent not in found:
            found.add(parent)
            parent = parent.rpartition(b"/")[0]
    return found


def _as_today(entry: ObjectEntry) -> TreeEntry:
    """With the canonical mode."""
    kind = stat.S_IFMT(entry.mode)
    if kind == stat.S_IFREG:
        return TreeEntry(kind | (0o755 if entry.mode & 0o100 else 0o644), entry.object_id)
    return TreeEntry(kind if kind == stat.S_IFLNK else _GITLINK, entry.object_id)


def compared(
    objects: ObjectDatabase, old: str, new: str, *, limit_bytes: int = _LISTED_BYTES
) -> dict[bytes, Sides]:
    """Where two commits or trees differ: the entry of each, or None."""
    count = _Count(new, limit_bytes, _CHANGE_BYTES)
    found: dict[bytes, Sides] = {}
    level: list[tuple[bytes, ObjectId | None, ObjectId | None]] = [
        (b"", objects.tree_of(old), objects.tree_of(new))
    ]
    while level:
        objects.load(tree for _, *both in level for tree in both if tree is not None)
        below = []
        for prefix, *both in level:
            before, after = ({} if tree is None else objects.tree(tree) for tree in both)
            for part in before.keys() | after.keys():
                one, other = before.get(part), after.get(part)
                if one == other:
                    continue
                path = prefix + part
                count.add(path)
                trees, files = _split(one), _split(other)
                if (trees[0] or files[0]) and trees[0] != files[0]:
                    below.append((path + b"/", trees[0], files[0]))
                if trees[1] != files[1]:
                    found[path] = (trees[1], files[1])
        level = below
    return dict(sorted(found.items()))


def _split(entry: ObjectEntry | None) -> tuple[ObjectId | None, TreeEntry | None]:
    """An entry as a directory or as a file; at most one is set."""
    if entry is None:
        return None, None
    if stat.S_ISDIR(entry.mode):
        return entry.object_id, None
    return None, _as_today(entry)


class _Change:
    """The changes of one directory."""

    __slots__ = ("below", "entries", "removed")

    def __init__(self) -> None:
        self.entries: dict[bytes, TreeEntry] = {}
        self.removed: set[bytes] = set()
        self.below: dict[bytes, _Change] = {}


def build_tree(
    objects: ObjectDatabase,
    base: ObjectId | None,
    changed: Mapping[bytes, TreeEntry],
    removed: Collection[bytes],
) -> ObjectId:
    """Builds a tree from `base` with changes: removals first; a changed path replaces what is at it
    or at one of its parents. Empty directories are removed.
    """
    top = _Change()
    for path in removed:
        *parents, name = path.split(b"/")
        _reach(top, parents).removed.add(name)
    for path, entry in changed.items():
        *parents, name = path.split(b"/")
        _reach(top, parents).entries[name] = entry
    return _build(objects, base, top)


def _reach(top: _Change, parents: list[bytes]) -> _Change:
    place = top
    for part in parents:
        if part not in place.below:
            place.below[part] = _Change()
        place = place.below[part]
    return place


def _build(objects: ObjectDatabase, base: ObjectId | None, top: _Change) -> ObjectId:
    """Writes changed directories, children first."""
    old: dict[int, dict[bytes, ObjectEntry]] = {}
    order: list[tuple[_Change, _Change | None, bytes]] = []
    ahead: list[tuple[_Change, _Change | None, bytes, ObjectId | None]] = [(top, None, b"", base)]
    while ahead:
        change, parent, name, tree = ahead.pop()
        entries = {} if tree is None else dict(objects.tree(tree))
        for part in change.removed:
            entries.pop(part, None)
        old[id(change)] = entries
        order.append((change, parent, name))
        for part, below in change.below.items():
            entry = entries.get(part)
            is_directory = entry is not None and stat.S_ISDIR(entry.mode)
            ahead.append((below, change, part, entry.object_id if entry and is_directory else None))
    made: ObjectId | None = None
    for change, parent, name in reversed(order):
        entries = old.pop(id(change))
        entries |= {part: ObjectEntry(*entry) for part, entry in change.entries.items()}
        if parent is None:
            made = objects.write_tree(dict(_sorted(entries)))
        elif entries:
            tree = objects.write_tree(dict(_sorted(entries)))
            old[id(parent)][name] = ObjectEntry(TREE, tree)
        elif (known := old[id(parent)].get(name)) is not None and stat.S_ISDIR(known.mode):
            del old[id(parent)][name]
    if made is None:
        raise ValueError("a tree has a top")
    return made


def _sorted(entries: dict[bytes, ObjectEntry]) -> Iterator[tuple[bytes, ObjectEntry]]:
    """In git's order, in which a directory's name ends with a slash."""

    def key(item: tuple[bytes, ObjectEntry]) -> bytes:
        return item[0] + b"/" if stat.S_ISDIR(item[1].mode) else item[0]

    return iter(sorted(entries.items(), key=key))
