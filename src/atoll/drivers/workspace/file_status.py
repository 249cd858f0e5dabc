"""Compares the files of a workspace with commits, on the host and from the files alone.

The capsule's git is not asked. Only files in the capsule's own layers can differ from the commit
that the workspace was made from; they are read through descriptors and hashed here, and trees are
compared by id. Ignore rules come from the current `.gitignore` files and the owner's excludes; a
file that a commit tracks is never ignored.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers import ignore_rules
from atoll.drivers.workspace.submodules import OwnerCheck, find_moved, has_changed, is_submodule
from atoll.host import git
from atoll.host.beneath import EntryKind, TreeReader
from atoll.host.intake import comparison, workspace_tree
from atoll.host.intake.blob_filters import is_attributes, tracked_below
from atoll.host.intake.comparison import RenamedPath
from atoll.host.intake.ignore import Ignore, is_git_name
from atoll.host.intake.store import IntakeRepository
from atoll.host.intake.tree_objects import TreeEntry
from atoll.host.tree.merged_tree import MergedEntry, MergedTree, PlainTree, TreeChanges
from atoll.model.errors import DriverError, StateError
from atoll.model.untrusted import InsidePath, ObjectId, Untrusted, directories_of


class FoundEntry:
    """A `TreeReader` that opens an entry found by a walk without searching all layers again."""

    def __init__(self, tree: MergedTree, entries: Mapping[InsidePath, MergedEntry]) -> None:
        self._tree = tree
        self._entries = entries

    def kind(self, path: InsidePath) -> EntryKind | None:
        return self._tree.kind(path)

    def names(self, directory: InsidePath | None) -> list[InsidePath]:
        return self._tree.names(directory)

    def find_file(self, path: InsidePath) -> int | None:
        entry = self._entries.get(path)
        return self._tree.find_file(path) if entry is None else self._tree.find_entry(entry)

    def read(self, path: InsidePath, *, limit_bytes: int) -> bytes | None:
        handle = self.find_file(path)
        if handle is None:
            return None
        with open(handle, "rb") as stream:
            content = stream.read(limit_bytes + 1)
        return content if len(content) <= limit_bytes else None


GIT = InsidePath(b".git")
GITLINK = 0o160000
_LINK = 0o120000
_PLAIN, _EXECUTABLE = 0o100644, 0o100755
_ALL_READ = 0o444
_LARGEST_BYTES = 1 << 30
"""The largest file that is stored as a blob; larger ones are saved as files."""
_AHEAD = 10_000
"""How many directories are read before asking whether they are ignored."""


class WorkspaceFiles(NamedTuple):
    """The files of a workspace, and the layers below them."""

    tree: MergedTree
    below: TreeReader | None
    """The source of the workspace, if it is known file by file."""
    is_whole: bool
    """Whether all files belong to the capsule, because there is no layer below them."""


ModuleCheck = Callable[[WorkspaceFiles, InsidePath, ObjectId, ObjectId | None], bool]
"""(workspace, path of the submodule, its recorded commit, the commit recorded at that path by the
commit being compared)"""


class FileStatus(NamedTuple):
    """Everything in the workspace that can differ from `commit`, its source."""

    commit: str
    found: dict[InsidePath, int]
    """Existing files and links that are not ignored, with their git modes."""
    ids: dict[InsidePath, ObjectId]
    """The object ids of the compared ones."""
    removed: frozenset[InsidePath]
    """Tracked by the commit, but missing."""
    links: dict[InsidePath, Untrusted]
    """Targets of symbolic links."""
    reader: FoundEntry
    tracked: dict[InsidePath, TreeEntry]
    """What the commit tracks at these paths."""
    repositories: tuple[InsidePath, ...]
    """Nested repositories: git cannot store them."""
    submodules: frozenset[InsidePath]
    """Those whose repository is where git keeps submodules."""
    closed: tuple[InsidePath, ...]
    """Paths that cannot be read."""
    ignored: int
    own_rules: frozenset[InsidePath]
    """New `.gitignore` files that ignore themselves, in directories without tracked files, as tool
    caches have them."""

    def entry(self, path: InsidePath) -> TreeEntry | None:
        """The entry of a tree of the workspace at a path; None if there is none.

        Only for paths that were compared, or that are missing.
        """
        if path in self.removed:
            return None
        if path in self.ids:
            return TreeEntry(self.found[path], self.ids[path])
        return self.tracked.get(path)

    def nested(self) -> tuple[str, ...]:
        """Repositories that no tree of the workspace can hold, for display; those that are no
        submodules end with `/`.
        """
        return tuple(
            path.shown() if path in self.tracked or path in self.submodules else f"{path.shown()}/"
            for path in self.repositories
        )

    def unstorable(self) -> tuple[str, ...]:
        """Files and directories that no tree of the workspace can hold, for display."""
        return tuple(path.shown() for path in self.closed)

    def changed(self) -> dict[InsidePath, int]:
        """The entries of the workspace that the commit lacks or has with another content."""
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
    store: IntakeRepository,
    workspace: WorkspaceFiles,
    commit: str,
    *,
    also: str | None = None,
    staged: Collection[InsidePath] = (),
    absent: frozenset[InsidePath] = frozenset(),
    is_changed: ModuleCheck | None = None,
    owner: OwnerCheck | None = None,
) -> FileStatus:
    """Compares everything that can differ from `commit`, and from `also` if given.

    `staged` and tracked paths are not ignored; `absent` ones never existed. `is_changed` reports
    whether a submodule has unique content, `owner` which content exists elsewhere.
    """
    second = comparison.difference(store, commit, also or commit)
    known = {path for path, moved in second.items() if moved.after is not None} | set(staged)
    modules = find_moved(workspace.tree, workspace.below, owner)
    scratch, is_void = store.place, ignore_rules.is_void
    with Ignore(workspace.tree, store.settings, scratch=scratch, is_void=is_void) as ignore:
        walk = _Walk(workspace.tree, ignore)
        changes = walk.run()
        tracked = _tracked(store, commit, workspace, changes, walk, modules)
        # An ignored directory contains a tracked path: it has to be walked.
        if walk.descend_into({*tracked, *known}):
            changes = walk.run()
            tracked = _tracked(store, commit, workspace, changes, walk, modules)
        known |= tracked.keys()
        ignored, closed, rules = _hidden(ignore, changes, known)
    closed |= {p for p in changes.entries if p not in ignored and _is_unstorable(changes, p)}
    found = _found(store, changes, tracked, ignored | closed)
    links = {path: entry.target for path, entry in changes.entries.items() if entry.target}
    reader = FoundEntry(workspace.tree, changes.entries)
    compared = found.keys() & known
    own = list(filter(is_attributes, found))
    ids = workspace_tree.blob_ids(store, commit, reader, compared, links=links, rules=own)
    # The others are not hashed yet, but files that cannot be opened must be reported.
    loose = [path for path in found if path not in known and path not in links]
    unread = compared - {*ids} | _closed(reader, changes, loose)
    repositories = modules | _nested(workspace, walk.nested, (tracked, second), is_changed)
    return FileStatus(
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
    store: IntakeRepository,
    changes: TreeChanges,
    tracked: dict[InsidePath, TreeEntry],
    left_out: set[InsidePath],
) -> dict[InsidePath, int]:
    """The changed files and links, with their git modes."""
    return {
        path: git_mode(store, entry.mode, tracked.get(path))
        for path, entry in changes.entries.items()
        if path not in left_out
    }


def _tracked(
    store: IntakeRepository,
    commit: str,
    workspace: WorkspaceFiles,
    changes: TreeChanges,
    walk: _Walk,
    modules: Collection[InsidePath],
) -> dict[InsidePath, TreeEntry]:
    """What the commit tracks at all changed paths."""
    places = [*changes.entries, *changes.hidden, *changes.special, *walk.ignored, *walk.nested]
    places += modules
    return tracked_below(store, commit, None if workspace.is_whole else places)


def _hidden(
    ignore: Ignore, changes: TreeChanges, known: Collection[InsidePath]
) -> tuple[set[InsidePath], set[InsidePath], set[InsidePath]]:
    """The ignored files, the unreadable directories that are not ignored, and ignored rules."""
    loose = [path for path in changes.entries if path not in known]
    asked = [*((path, False) for path in loose), *((path, True) for path in changes.closed)]
    hidden = ignore.ignored(asked)
    # Rules never hide themselves: a patch must show them.
    rules = {path for path in loose if path.name == b".gitignore"}
    return hidden.intersection(loose) - rules, set(changes.closed) - hidden, hidden & rules


def _apart(
    store: IntakeRepository,
    commit: str,
    rules: Collection[InsidePath],
    known: Collection[InsidePath],
) -> frozenset[InsidePath]:
    """The rules with no tracked file beside them: elsewhere they may hide work."""
    places = [path.parent for path in rules if path.parent is not None]
    tracked = tracked_below(store, commit, places) if places else {}
    taken = directories_of((*tracked, *known))
    return frozenset(path for path in rules if path.parent is not None and path.parent not in taken)


def compare(
    store: IntakeRepository,
    seen: FileStatus,
    commit: str | None,
    *,
    staged: Collection[InsidePath] = (),
) -> Against:
    """What in the workspace differs from a commit; `staged` paths are not untracked."""
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


def _now(
    seen: FileStatus, moved: dict[InsidePath, RenamedPath], path: InsidePath
) -> TreeEntry | None:
    if path in seen.found or path in seen.removed or path in seen.tracked:
        return seen.entry(path)
    # Unchanged since the source commit.
    return moved[path].before


def _is_unstorable(changes: TreeChanges, path: InsidePath) -> bool:
    """Whether git refuses its name or Atoll its size."""
    return changes.entries[path].size > _LARGEST_BYTES or any(map(is_git_name, path.parts))


def _closed(
    reader: TreeReader, changes: TreeChanges, paths: Iterable[InsidePath]
) -> set[InsidePath]:
    """The files that cannot be opened. World-readable ones need no attempt."""
    tried = (path for path in paths if changes.entries[path].mode & _ALL_READ != _ALL_READ)
    return {path for path in tried if not _can_read(reader, path)}


def _can_read(tree: TreeReader, path: InsidePath) -> bool:
    handle = tree.find_file(path)
    if handle is not None:
        os.close(handle)
    return handle is not None


def git_mode(store: IntakeRepository | None, mode: int, entry: TreeEntry | None) -> int:
    """The git mode of a file or link; `entry` is the tracked one."""
    if stat.S_ISLNK(mode):
        return _LINK
    if store is None or store.settings.file_mode:
        return _EXECUTABLE if mode & 0o100 else _PLAIN
    # The owner's git ignores the executable bit.
    return entry.mode if entry is not None and entry.mode in (_PLAIN, _EXECUTABLE) else _PLAIN


class _Walk:
    """Decides which directories are walked, and remembers those that are not."""

    def __init__(self, tree: MergedTree, ignore: Ignore) -> None:
        self._tree = tree
        self._ignore = ignore
        self._decided: dict[InsidePath, bool] = {}
        self._entered: set[InsidePath] = set()
        self._unknown: list[InsidePath] = []
        self.ignored: list[InsidePath] = []
        self.nested: list[InsidePath] = []

    def run(self) -> TreeChanges:
        """Walks until all directories are decided. Directories are checked in batches, since every
        check starts a program: each walk reads some directories ahead.
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
        """Whether an ignored directory or nested repository contains a tracked path; those that do
        are not skipped again.
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
    workspace: WorkspaceFiles,
    changes: TreeChanges,
    tracked: dict[InsidePath, TreeEntry],
    found: dict[InsidePath, int],
) -> frozenset[InsidePath]:
    """Tracked paths below an entry that hides them."""
    hidden = set(changes.hidden) | set(changes.special) | set(found)
    gone = set()
    for path, entry in tracked.items():
        if path in found or (entry.mode == GITLINK and workspace.tree.kind(path) is not None):
            continue
        if workspace.is_whole:
            # A sparse checkout leaves out paths that never existed.
            if workspace.below is None or workspace.below.kind(path) is not None:
                gone.add(path)
        elif path in hidden or any(place in hidden for place in path.parents()):
            gone.add(path)
    return frozenset(gone)


def _nested(
    workspace: WorkspaceFiles,
    repositories: list[InsidePath],
    recorded: tuple[Mapping[InsidePath, TreeEntry], Mapping[InsidePath, RenamedPath]],
    is_changed: ModuleCheck | None,
) -> set[InsidePath]:
    """Nested repositories with content that the owner does not have; `recorded` is what the commit
    tracks, and what the second commit tracks differently.
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


def without_owner_copies(
    checkout: Path, store: IntakeRepository, seen: FileStatus, against: Against
) -> Against:
    """The changes without those that the checkout has as well; empty if it cannot be read."""
    try:
        held = _find_held(checkout, store, seen, {*against.uncommitted, *against.untracked})
    except StateError:
        return against
    return Against(
        tuple(path for path in against.uncommitted if path not in held),
        tuple(path for path in against.untracked if path not in held),
    )


def owner_staged(checkout: Path) -> set[tuple[bytes, str]]:
    """The paths and object ids in the checkout's index; empty if it cannot be read."""
    try:
        answer = git.git("ls-files", "--stage", "--full-name", "-z", cwd=str(checkout))
    except (StateError, DriverError, OSError):
        return set()
    rows = (row.partition(b"\t") for row in answer.stdout.split(b"\0") if row)
    return {(path, head.split(b" ")[1].decode()) for head, _, path in rows}


def _find_held(
    checkout: Path, store: IntakeRepository, seen: FileStatus, paths: Collection[InsidePath]
) -> set[InsidePath]:
    found = [path for path in paths if path in seen.found]
    ids = workspace_tree.blob_ids(store, seen.commit, seen.reader, found, links=seen.links)
    ours = {path: TreeEntry(seen.found[path], name) for path, name in ids.items()}
    above = {place for path in found for place in path.parents()}

    def skip(path: InsidePath, is_directory: bool) -> bool:  # noqa: FBT001 - called so
        return path not in (above if is_directory else ours)

    with PlainTree(checkout) as there:
        entries = there.changes(skip=skip).entries
        links = {path: entry.target for path, entry in entries.items() if entry.target}
        names = workspace_tree.blob_ids(
            store, seen.commit, FoundEntry(there, entries), list(entries), links=links
        )
        theirs = {
            path: TreeEntry(git_mode(store, entries[path].mode, seen.tracked.get(path)), name)
            for path, name in names.items()
        }
        gone = {
            path
            for path in paths
            if path in seen.removed and there.kind(path) in (None, "directory")
        }
    return gone | {path for path, entry in ours.items() if theirs.get(path) == entry}
