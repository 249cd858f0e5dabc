"""Finds work in a capsule's submodules that exists nowhere else.

Commits count as known if they are reachable from a ref of the owner's submodule, if the capsule was
given them, or if the project's base commit records them. The submodule's own remote-tracking refs
prove nothing: an agent can write them. To decide reachability, objects are copied into a store of
Atoll's own, through the same checks as an import.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from atoll.drivers.workspace.file_status import GITLINK, WorkspaceFiles, git_mode
from atoll.drivers.workspace.submodules import (
    MODULES,
    ModulePlace,
    find_module,
    find_place,
    has_objects,
    is_kept,
)
from atoll.host import git
from atoll.host.beneath import TreeReader
from atoll.host.intake import comparison
from atoll.host.intake.blob_filters import blob_id, tracked_below
from atoll.host.intake.commit_import import import_objects
from atoll.host.intake.refs import load_refs
from atoll.host.intake.store import IntakeRepository, open_store
from atoll.host.intake.tree_objects import TreeEntry
from atoll.host.tree.merged_tree import MergedEntry, MergedTree, PlainTree
from atoll.model.errors import DriverError, StateError
from atoll.model.plan import WorkspacePlan
from atoll.model.untrusted import (
    InsidePath,
    ObjectId,
    Untrusted,
    as_content,
    find_object_id,
    find_path,
)

_FILE_BYTES = 1 << 28
_SHA1 = 40


def find_lost_submodules(
    plan: WorkspacePlan, tree: TreeReader, store: IntakeRepository, head: str
) -> list[InsidePath]:
    """Submodules that `head` records at a commit which the owner's copies lack."""
    moved = comparison.difference(store, plan.base_commit, head)
    return [
        path
        for path, (_, after) in moved.items()
        if after is not None
        and after.mode == GITLINK
        and not owner_has(plan, tree, path, after.object_id)
    ]


def is_changed(
    plan: WorkspacePlan,
    tree: MergedTree,
    module: InsidePath,
    commit: ObjectId,
    *,
    modules: Path | None,
) -> bool:
    """Whether a submodule differs from the files of its recorded commit, or has refs to commits
    that the owner's copy lacks. `modules` is the path of its repository.
    """
    owner = find_module(plan, module)
    if owner is None or modules is None or not modules.is_dir():
        return True
    with PlainTree(modules) as kept:
        name = os.path.relpath(owner, os.path.join(os.path.realpath(plan.repository), "modules"))
        refs = load_refs(kept, InsidePath(os.fsencode(name)))
    if refs is None or refs.head != commit or refs.refused:
        return True
    tips = {*refs.refs.values(), *refs.fetched.values(), *refs.stashes, *refs.worktrees, commit}
    if not has_objects(owner, tips):
        return True
    listed = git.git(
        "ls-tree", "-r", "-z", "--full-tree", commit, cwd=owner, env={"GIT_DIR": owner}
    )
    expected = {}
    for line in listed.stdout.split(b"\0")[:-1]:
        head, _, raw = line.partition(b"\t")
        expected[module.raw + b"/" + raw] = head.split(b" ")[-1].decode()
    return _blobs(tree, module, "sha1" if len(commit) == _SHA1 else "sha256") != expected


def _blobs(tree: MergedTree, module: InsidePath, algorithm: str) -> dict[bytes, str | None]:
    """All files below a directory with the blob ids of their current contents."""

    def skip(path: InsidePath, is_directory: bool) -> bool:  # noqa: FBT001 - called so
        del is_directory
        inside = path.is_below(module) or module.is_below(path)
        return not inside or path.name == b".git"

    changes = tree.changes(skip=skip)
    found: dict[bytes, str | None] = {
        path.raw: None for path in (*changes.closed, *changes.special) if path.is_below(module)
    }
    for path, entry in changes.entries.items():
        if path.is_below(module):
            target = entry.target
            content = (
                tree.read(path, limit_bytes=_FILE_BYTES) if target is None else as_content(target)
            )
            found[path.raw] = None if content is None else blob_id(content, algorithm)
    return found


def owner_has(plan: WorkspacePlan, tree: TreeReader, path: InsidePath, commit: str) -> bool:
    """Whether the owner's repository of a submodule has a commit, and a ref keeps it."""
    owner = find_place(plan, tree, path).owner
    return owner is not None and is_kept(owner, commit)


_MOST_ASKED = 20
"""Up to this many commits are checked one by one."""
_MOST_TIPS = 10_000

Entries = dict[InsidePath, TreeEntry]


class ModuleState:
    """The state of submodules in one workspace; temporary stores are created in `scratch`."""

    def __init__(self, plan: WorkspacePlan, workspace: WorkspaceFiles, scratch: Path) -> None:
        self._plan, self._workspace, self._scratch = plan, workspace, scratch
        self._entries: dict[tuple[InsidePath, ObjectId], Entries | None] = {}

    def has_all(
        self, module: InsidePath, tips: Collection[ObjectId], *, known: Collection[ObjectId]
    ) -> bool:
        place = find_place(self._plan, self._workspace.tree, module)
        held = {*known, *_refs_of(place.owner)}
        left = [tip for tip in tips if tip not in held]
        if left and (recorded := self._find_recorded(module)) is not None:
            held.add(recorded)
            left = [tip for tip in left if tip != recorded]
        owner = place.owner
        if owner is not None and len(left) <= _MOST_ASKED:
            left = [tip for tip in left if not is_kept(owner, tip)]
        if not left:
            return True
        return place.inside is not None and self._lead_nowhere_else(place, left, held)

    def _lead_nowhere_else(
        self, place: ModulePlace, tips: Sequence[ObjectId], held: Collection[str]
    ) -> bool:
        """Whether everything reachable from these commits is reachable from known ones."""
        if place.inside is None or not held or len(tips) > _MOST_TIPS:
            return False
        try:
            with self._imported(place, place.inside, tips) as (store, commits):
                if any(tip not in commits for tip in tips):
                    # It is not a commit, so it is reachable from none.
                    return False
                asked = [*(commits[tip] for tip in tips), *(f"^{name}" for name in held)]
                given = "".join(f"{word}\n" for word in asked).encode()
                # Known commits may be missing both in the owner's repository and below these.
                words = ("rev-list", "--count", "--ignore-missing", "--stdin")
                return store.run(*words, stdin=given).strip() == b"0"
        except (StateError, DriverError):
            return False

    def _find_recorded(self, module: InsidePath) -> ObjectId | None:
        """The commit at which the base commit records a submodule, nested or not."""
        if module.is_below(MODULES):
            return None
        path, commit = self._find_outermost(module)
        while path is not None and commit is not None and path != module:
            inner = {
                _within(path, below): entry.object_id
                for below, entry in (self.entries(path, commit) or {}).items()
                if entry.mode == GITLINK
            }
            path = next((below for below in inner if module.is_below(below)), None)
            commit = None if path is None else inner[path]
        return commit

    def _find_outermost(self, module: InsidePath) -> tuple[InsidePath | None, ObjectId | None]:
        """The top-level submodule that is or contains `module`, and its commit."""
        repository = self._plan.repository
        asked = [os.fsdecode(path.raw) for path in (module, *module.parents())]
        answer = git.git(
            "--literal-pathspecs", "ls-tree", "-z", "--full-tree", self._plan.base_commit, "--",
            *asked, cwd=repository, env={"GIT_DIR": repository}, allowed=(0, 128),
        )  # fmt: skip
        for line in answer.stdout.split(b"\0"):
            head, _, raw = line.partition(b"\t")
            path = find_path(Untrusted(raw))
            if path is not None and head.startswith(b"160000 ") and module.is_below(path):
                return path, find_object_id(Untrusted(head.split(b" ")[-1]))
        return None, None

    @contextmanager
    def _imported(
        self, place: ModulePlace, inside: InsidePath, tips: Sequence[ObjectId]
    ) -> Iterator[tuple[IntakeRepository, dict[ObjectId, ObjectId]]]:
        """A store with access to the owner's objects that holds these commits of the capsule."""
        owner = place.owner or self._plan.repository
        with open_store(owner, scratch=self._scratch) as store:
            taken = import_objects(
                self._workspace.tree, str(store.git_dir), tips, at=inside, commits_only=True
            )
            yield store, taken.commits

    def entries(self, module: InsidePath, commit: ObjectId) -> Entries | None:
        """The entries that a submodule commit tracks; None if unknown."""
        key = module, commit
        if key not in self._entries:
            place = find_place(self._plan, self._workspace.tree, module)
            try:
                self._entries[key] = self._load_entries(place, commit)
            except (StateError, DriverError):
                self._entries[key] = None
        return self._entries[key]

    def _load_entries(self, place: ModulePlace, commit: ObjectId) -> Entries | None:
        if place.owner is not None and is_kept(place.owner, commit):
            with open_store(place.owner, scratch=self._scratch) as store:
                return tracked_below(store, commit, None)
        if place.inside is None:
            return None
        with self._imported(place, place.inside, [commit]) as (store, _):
            return tracked_below(store, commit, None)

    def is_changed(self, module: InsidePath, commit: ObjectId, before: ObjectId | None) -> bool:
        """Whether a submodule's HEAD is not `commit`, or its files differ from that commit.
        `before` is the commit that the base records there.

        The rest of its repository is not examined: see `find_moved`.
        """
        tree = self._workspace.tree
        place = find_place(self._plan, tree, module)
        if place.inside is None or not place.inside.is_below(MODULES):
            return True
        refs = load_refs(tree, place.inside)
        expected = self.entries(module, commit)
        start = self._frozen(module, before)
        if refs is None or refs.head != commit or expected is None or start is None:
            return True
        links = {path: e.object_id for path, e in expected.items() if e.mode == GITLINK}
        now = self._files(module, start, [_within(module, path) for path in links])
        wanted = {path: entry for path, entry in expected.items() if path not in links}
        return now != wanted or any(
            tree.names(_within(module, path))
            and self.is_changed(_within(module, path), link, _gitlink(start.get(path)))
            for path, link in links.items()
        )

    def _frozen(self, module: InsidePath, before: ObjectId | None) -> Entries | None:
        """The files that were not changed by the capsule, because the owner had them checked out
        when the base was frozen.
        """
        below = self._workspace.below
        if before is None or below is None or self._workspace.is_whole:
            return {}
        is_there = below.kind(module.child(b".git")) is not None
        return self.entries(module, before) if is_there else {}

    def _files(
        self, module: InsidePath, start: Entries, nested: Collection[InsidePath]
    ) -> Entries | None:
        """The files of a submodule as git would record them; None if some cannot be read."""

        def skip(path: InsidePath, is_directory: bool) -> bool:  # noqa: FBT001 - called so
            del is_directory
            outside = not (path.is_below(module) or module.is_below(path) or path == module)
            return outside or path.name == b".git" or path in nested

        changes = self._workspace.tree.changes(skip=skip)
        if any(path.is_below(module) for path in (*changes.closed, *changes.special)):
            return None
        gone = set(changes.hidden)
        found = {
            path: entry
            for path, entry in start.items()
            if entry.mode != GITLINK and not gone & {_within(module, path), *_above(module, path)}
        }
        for path, changed in changes.entries.items():
            if path.is_below(module):
                blob = self._blob(path, changed, len(self._plan.base_commit))
                if blob is None:
                    return None
                relative = InsidePath(path.raw[len(module.raw) + 1 :])
                found[relative] = TreeEntry(git_mode(None, changed.mode, None), blob)
        return found

    def _blob(self, path: InsidePath, entry: MergedEntry, width: int) -> ObjectId | None:
        if entry.target is not None:
            content: bytes | None = as_content(entry.target)
        else:
            content = self._workspace.tree.read(path, limit_bytes=_FILE_BYTES)
        algorithm = "sha1" if width == 40 else "sha256"
        return None if content is None else blob_id(content, algorithm)


def _gitlink(entry: TreeEntry | None) -> ObjectId | None:
    return entry.object_id if entry is not None and entry.mode == GITLINK else None


def _within(module: InsidePath, path: InsidePath) -> InsidePath:
    return InsidePath(module.raw + b"/" + path.raw)


def _above(module: InsidePath, path: InsidePath) -> Iterator[InsidePath]:
    yield from _within(module, path).parents()


def _refs_of(owner: str | None) -> list[str]:
    """The commits that the owner's refs name."""
    if owner is None:
        return []
    answer = git.git("for-each-ref", "--format=%(objectname)", cwd=owner, env={"GIT_DIR": owner})
    return list(dict.fromkeys(answer.lines))
