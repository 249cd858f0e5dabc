"""What the files of a workspace are, compared with commits: decided on the host, from the files.

The agent's git is not asked. Only what lies in the capsule's own layers can differ from the commit
that the workspace was made of; those files are read by descriptors and hashed here, and trees
are compared by their ids. What is ignored follows the `.gitignore` files as they are now and the
owner's own excludes; a file that a commit tracks is never ignored.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from atoll.drivers.layers import own_rules
from atoll.drivers.workspace.entry_reader import Found
from atoll.drivers.workspace.submodules import OwnerCheck, find_moved, has_changed, is_submodule
from atoll.host.beneath import TreeReader
from atoll.host.intake import comparison, trees
from atoll.host.intake.comparison import Moved
from atoll.host.intake.content import is_attributes, tracked_below
from atoll.host.intake.ignore import Ignore, is_git_name
from atoll.host.intake.store import Store
from atoll.host.intake.tree_objects import TreeEntry
from atoll.host.merged import MergedTree, TreeChanges
from atoll.model.untrusted import InsidePath, ObjectId, Untrusted, directories_of

GIT = InsidePath(b".git")
GITLINK = 0o160000
_LINK = 0o120000
_PLAIN, _EXECUTABLE = 0o100644, 0o100755
_ALL_READ = 0o444
_LARGEST_BYTES = 1 << 30
"""Of a file that is stored as a blob; a larger one is kept as a file."""
_AHEAD = 10_000
"""How many directories are looked into before it is asked whether they are ignored."""


class Workspace(NamedTuple):
    """The files of a workspace, and what they lie on."""

    tree: MergedTree
    below: TreeReader | None
    """What the workspace was made of, where that is known file by file."""
    is_whole: bool
    """Whether all files are the capsule's own, because no layer lies below them."""


ModuleCheck = Callable[[Workspace, InsidePath, ObjectId, ObjectId | None], bool]
"""(workspace, where the submodule is, the commit that is recorded for it, the one that the commit
of the survey records there)"""


class Survey(NamedTuple):
    """The workspace, as far as it can differ from `commit`, which it was made of."""

    commit: str
    found: dict[InsidePath, int]
    """Files and links that are there and not ignored, with their mode as git writes it."""
    ids: dict[InsidePath, ObjectId]
    """The object ids of those that were compared."""
    removed: frozenset[InsidePath]
    """What the commit tracks and is not there."""
    links: dict[InsidePath, Untrusted]
    """Where links point to."""
    reader: Found
    tracked: dict[InsidePath, TreeEntry]
    """What the commit tracks at these places."""
    repositories: tuple[InsidePath, ...]
    """Of their own, in the workspace: git cannot store them."""
    submodules: frozenset[InsidePath]
    """Those of them that are kept where git keeps the repositories of submodules."""
    closed: tuple[InsidePath, ...]
    """What cannot be read."""
    ignored: int
    own_rules: frozenset[InsidePath]
    """New `.gitignore` files that git ignores by their own rules, in directories where nothing is
    tracked, as caches of tools have them."""

    def entry(self, path: InsidePath) -> TreeEntry | None:
        """What a tree of the workspace has at a path; None for nothing.

        Only for what the survey has compared, or has not found.
        """
        if path in self.removed:
            return None
        if path in self.ids:
            return TreeEntry(self.found[path], self.ids[path])
        return self.tracked.get(path)

    def nested(self) -> tuple[str, ...]:
        """Repositories that no tree of the workspace can hold, for people; one that is no submodule
        ends with `/`.
        """
        return tuple(
            path.shown() if path in self.tracked or path in self.submodules else f"{path.shown()}/"
            for path in self.repositories
        )

    def unstorable(self) -> tuple[str, ...]:
        """Files and directories that no tree of the workspace can hold, for people."""
        return tuple(path.shown() for path in self.closed)

    def changed(self) -> dict[InsidePath, int]:
        """What a tree of the workspace has and the commit has not, or has otherwise."""
        return {
            path: mode
            for path, mode in self.found.items()
            if path not in self.ids or self.entry(path) != self.tracked.get(path)
        }


class Against(NamedTuple):
    """The workspace compared with a commit."""

    uncommitted: tuple[InsidePath, ...]
    untracked: tuple[InsidePath, ...]


def survey(  # noqa: PLR0913 - what is looked at, and by what it is judged
    store: Store,
    workspace: Workspace,
    commit: str,
    *,
    also: str | None = None,
    staged: Collection[InsidePath] = (),
    absent: frozenset[InsidePath] = frozenset(),
    is_changed: ModuleCheck | None = None,
    owner: OwnerCheck | None = None,
) -> Survey:
    """Looks at everything that can differ from `commit`, and from `also` if that is given.

    What is tracked or `staged` is not ignored; what is `absent` was never there. `is_changed` says
    whether a submodule holds something of its own, `owner` what of it exists elsewhere.
    """
    second = comparison.difference(store, commit, also or commit)
    known = {path for path, moved in second.items() if moved.after is not None} | set(staged)
    modules = find_moved(workspace.tree, workspace.below, owner)
    scratch, is_void = store.place, own_rules.is_void
    with Ignore(workspace.tree, store.settings, scratch=scratch, is_void=is_void) as ignore:
        walk = _Walk(workspace.tree, ignore)
        changes = walk.look()
        tracked = _tracked(store, commit, workspace, changes, walk, modules)
        # Something tracked lies in an ignored directory: then that has to be looked into.
        if walk.descend_into({*tracked, *known}):
            changes = walk.look()
            tracked = _tracked(store, commit, workspace, changes, walk, modules)
        known |= tracked.keys()
        ignored, closed, rules = _hidden(ignore, changes, known)
    closed |= {p for p in changes.entries if p not in ignored and _is_unstorable(changes, p)}
    found = _found(store, changes, tracked, ignored | closed)
    links = {path: entry.target for path, entry in changes.entries.items() if entry.target}
    reader = Found(workspace.tree, changes.entries)
    compared = found.keys() & known
    own = list(filter(is_attributes, found))
    ids = trees.blob_ids(store, commit, reader, compared, links=links, rules=own)
    # Nothing is hashed for the others yet, but what cannot be opened has to be told.
    loose = [path for path in found if path not in known and path not in links]
    unread = compared - {*ids} | _closed(reader, changes, loose)
    repositories = modules | _nested(workspace, walk.nested, (tracked, second), is_changed)
    return Survey(
        commit=commit,
        found={path: mode for path, mode in found.items() if path not in unread},
        ids=ids,
        links={path: links[path] for path in found if path in links},
        reader=reader,
        removed=_removed(workspace, changes, tracked, found) - absent,
        tracked=tracked,
        repositories=tuple(sorted(repositories)),
        submodules=frozenset(p for p in repositories if is_submodule(workspace.tree, p)),
        closed=tuple(sorted(closed | unread)),
        ignored=len(ignored) + len(walk.ignored),
        own_rules=_apart(store, commit, rules, known),
    )


def _found(
    store: Store,
    changes: TreeChanges,
    tracked: dict[InsidePath, TreeEntry],
    left_out: set[InsidePath],
) -> dict[InsidePath, int]:
    """The files and links that were changed, with their modes as git writes them."""
    return {
        path: git_mode(store, entry.mode, tracked.get(path))
        for path, entry in changes.entries.items()
        if path not in left_out
    }


def _tracked(
    store: Store,
    commit: str,
    workspace: Workspace,
    changes: TreeChanges,
    walk: _Walk,
    modules: Collection[InsidePath],
) -> dict[InsidePath, TreeEntry]:
    """What the commit tracks at all places that were changed."""
    places = [*changes.entries, *changes.hidden, *changes.special, *walk.ignored, *walk.nested]
    places += modules
    return tracked_below(store, commit, None if workspace.is_whole else places)


def _hidden(
    ignore: Ignore, changes: TreeChanges, known: Collection[InsidePath]
) -> tuple[set[InsidePath], set[InsidePath], set[InsidePath]]:
    """The files that are ignored, the closed directories that are not, and ignored rules."""
    loose = [path for path in changes.entries if path not in known]
    asked = [*((path, False) for path in loose), *((path, True) for path in changes.closed)]
    hidden = ignore.ignored(asked)
    # Rules never hide themselves: a patch has to show them.
    rules = {path for path in loose if path.name == b".gitignore"}
    return hidden.intersection(loose) - rules, set(changes.closed) - hidden, hidden & rules


def _apart(
    store: Store, commit: str, rules: Collection[InsidePath], known: Collection[InsidePath]
) -> frozenset[InsidePath]:
    """Those rules beside which nothing is tracked: elsewhere they may hide work."""
    places = [path.parent for path in rules if path.parent is not None]
    tracked = tracked_below(store, commit, places) if places else {}
    taken = directories_of((*tracked, *known))
    return frozenset(path for path in rules if path.parent is not None and path.parent not in taken)


def compare(
    store: Store, seen: Survey, commit: str | None, *, staged: Collection[InsidePath] = ()
) -> Against:
    """What of the workspace a commit does not hold; what is `staged` is not untracked."""
    added = set(staged)
    if commit is None:
        return Against((), tuple(sorted(seen.found.keys() - seen.own_rules)))
    moved = comparison.difference(store, seen.commit, commit)

    def held(path: InsidePath) -> TreeEntry | None:
        return moved[path].after if path in moved else seen.tracked.get(path)

    uncommitted: list[InsidePath] = []
    untracked: list[InsidePath] = []
    for path in sorted({*seen.found, *seen.removed, *moved}):
        before = held(path)
        if before is None:
            into = uncommitted if path in added else untracked
            into += [path] if path in seen.found and path not in seen.own_rules else []
        elif before.mode != GITLINK and before != _now(seen, moved, path):
            uncommitted.append(path)
    return Against(tuple(uncommitted), tuple(untracked))


def _now(seen: Survey, moved: dict[InsidePath, Moved], path: InsidePath) -> TreeEntry | None:
    if path in seen.found or path in seen.removed or path in seen.tracked:
        return seen.entry(path)
    # Untouched: as in the commit that the workspace was made of.
    return moved[path].before


def _is_unstorable(changes: TreeChanges, path: InsidePath) -> bool:
    """Whether git refuses its name, or Atoll its size."""
    return changes.entries[path].size > _LARGEST_BYTES or any(map(is_git_name, path.parts))


def _closed(
    reader: TreeReader, changes: TreeChanges, paths: Iterable[InsidePath]
) -> set[InsidePath]:
    """Those that cannot be opened. What everybody may read needs no try."""
    tried = (path for path in paths if changes.entries[path].mode & _ALL_READ != _ALL_READ)
    return {path for path in tried if not _can_read(reader, path)}


def _can_read(tree: TreeReader, path: InsidePath) -> bool:
    handle = tree.find_file(path)
    if handle is not None:
        os.close(handle)
    return handle is not None


def git_mode(store: Store | None, mode: int, entry: TreeEntry | None) -> int:
    """The mode of a file or link as git writes it, where `entry` is tracked."""
    if stat.S_ISLNK(mode):
        return _LINK
    if store is None or store.settings.file_mode:
        return _EXECUTABLE if mode & 0o100 else _PLAIN
    # The owner's git does not look at the executable bit.
    return entry.mode if entry is not None and entry.mode in (_PLAIN, _EXECUTABLE) else _PLAIN


class _Walk:
    """Decides which directories are looked into, and remembers those that are not."""

    def __init__(self, tree: MergedTree, ignore: Ignore) -> None:
        self._tree = tree
        self._ignore = ignore
        self._decided: dict[InsidePath, bool] = {}
        self._entered: set[InsidePath] = set()
        self._unknown: list[InsidePath] = []
        self.ignored: list[InsidePath] = []
        self.nested: list[InsidePath] = []

    def look(self) -> TreeChanges:
        """Walks until all directories on the way are decided. Directories are asked about in
        batches, since every question starts a program: so each walk goes some way ahead.
        """
        while True:
            self.ignored, self.nested, self._unknown = [], [], []
            changes = self._tree.changes(skip=self._skip)
            if not self._unknown:
                return changes
            ignored = self._ignore.ignored((path, True) for path in self._unknown)
            self._decided |= {path: path in ignored for path in self._unknown}
            if not ignored and len(self._unknown) < _AHEAD:
                return changes

    def descend_into(self, known: Iterable[InsidePath]) -> bool:
        """Whether directories that are ignored, or repositories of their own, hold something
        tracked; they are not skipped again.
        """
        above = directories_of(known)
        fresh = {path for path in (*self.ignored, *self.nested) if path in above}
        fresh -= self._entered
        self._entered |= fresh
        opened = {place for path in fresh for place in above if place.is_below(path)}
        self._decided |= dict.fromkeys(opened, False)
        return bool(fresh)

    def _skip(self, path: InsidePath, is_directory: bool) -> bool:  # noqa: FBT001 - called so
        if path.name == b".git":
            return True
        if not is_directory:
            return False
        decided = self._decided.get(path)
        if decided is None:
            if len(self._unknown) >= _AHEAD:
                return True
            self._unknown.append(path)
        elif decided:
            self.ignored.append(path)
            return True
        if self._tree.kind(path.child(b".git")) is not None:
            self.nested.append(path)
            return path not in self._entered
        return False


def _removed(
    workspace: Workspace,
    changes: TreeChanges,
    tracked: dict[InsidePath, TreeEntry],
    found: dict[InsidePath, int],
) -> frozenset[InsidePath]:
    """What the commit tracks below something that hides it."""
    hidden = set(changes.hidden) | set(changes.special) | set(found)
    gone = set()
    for path, entry in tracked.items():
        if path in found or (entry.mode == GITLINK and workspace.tree.kind(path) is not None):
            continue
        if workspace.is_whole:
            # A sparse checkout leaves out what was never there.
            if workspace.below is None or workspace.below.kind(path) is not None:
                gone.add(path)
        elif path in hidden or any(place in hidden for place in path.parents()):
            gone.add(path)
    return frozenset(gone)


def _nested(
    workspace: Workspace,
    repositories: list[InsidePath],
    recorded: tuple[Mapping[InsidePath, TreeEntry], Mapping[InsidePath, Moved]],
    is_changed: ModuleCheck | None,
) -> set[InsidePath]:
    """Repositories in the workspace that hold something that the owner does not have; `recorded`
    is what the commit tracks, and what the second one does otherwise.
    """
    found = set()
    tracked, second = recorded
    for path in repositories:
        before = _gitlink(tracked.get(path))
        commit = _gitlink(second[path].after) if path in second else before
        if commit is None:
            found.add(path)
        elif (
            before == commit
            and workspace.below is not None
            and not has_changed(workspace.tree, workspace.below, path)
        ):
            continue
        elif is_changed is None or is_changed(workspace, path, commit, before):
            found.add(path)
    return found


def _gitlink(entry: TreeEntry | None) -> ObjectId | None:
    return entry.object_id if entry is not None and entry.mode == GITLINK else None
