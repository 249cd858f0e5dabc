"""Whether a submodule in a capsule holds anything that the owner does not have.

What is known elsewhere are the commits that refs of the owner's submodule lead to, those that the
capsule was given, and the one that the base commit of the project records. The submodule's own
remote-tracking refs are no evidence: anybody inside can write them. To find out what leads where,
its objects are copied into a store of ours, through the same checks as an import.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from atoll.drivers.workspace.owner_modules import ModulePlace, find_place, is_kept
from atoll.drivers.workspace.submodules import MODULES
from atoll.drivers.workspace.survey import GITLINK, Workspace, git_mode
from atoll.host import git
from atoll.host.intake.content import blob_id, tracked_below
from atoll.host.intake.objects import import_objects
from atoll.host.intake.refs import load_refs
from atoll.host.intake.store import Store, open_store
from atoll.host.intake.tree_objects import TreeEntry
from atoll.host.merged import Entry
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

_MOST_ASKED = 20
"""So many commits are asked for one by one."""
_MOST_TIPS = 10_000
_FILE_BYTES = 1 << 28

Entries = dict[InsidePath, TreeEntry]


class ModuleState:
    """Answers for one workspace; `scratch` is where a store for one question may be made."""

    def __init__(self, plan: WorkspacePlan, workspace: Workspace, scratch: Path) -> None:
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
        """Whether commits that are held lead to all that these lead to."""
        if place.inside is None or not held or len(tips) > _MOST_TIPS:
            return False
        try:
            with self._imported(place, place.inside, tips) as (store, commits):
                if any(tip not in commits for tip in tips):
                    # It is not a commit, so no other commit leads to it.
                    return False
                asked = [*(commits[tip] for tip in tips), *(f"^{name}" for name in held)]
                given = "".join(f"{word}\n" for word in asked).encode()
                # What is held may be neither in the owner's repository nor below these.
                words = ("rev-list", "--count", "--ignore-missing", "--stdin")
                return store.run(*words, stdin=given).strip() == b"0"
        except (StateError, DriverError):
            return False

    def _find_recorded(self, module: InsidePath) -> ObjectId | None:
        """The commit at which the base commit records a submodule, or one in a submodule."""
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
        """The submodule of the project that is `module` or holds it, and its commit."""
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
    ) -> Iterator[tuple[Store, dict[ObjectId, ObjectId]]]:
        """A store that sees the owner's objects and holds these commits of the capsule's."""
        owner = place.owner or self._plan.repository
        with open_store(owner, scratch=self._scratch) as store:
            taken = import_objects(
                self._workspace.tree, str(store.git_dir), tips, at=inside, commits_only=True
            )
            yield store, taken.commits

    def entries(self, module: InsidePath, commit: ObjectId) -> Entries | None:
        """What a commit of a submodule tracks; None when that cannot be found out."""
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
        """Whether a submodule that is recorded at `commit` stands elsewhere, or its files differ
        from that commit. `before` is the commit that the base records there.

        What its repository holds besides is not looked at: see `find_moved`.
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
        """The files of a submodule that are no changes of the capsule's, because the owner had
        them checked out when its base was frozen.
        """
        below = self._workspace.below
        if before is None or below is None or self._workspace.is_whole:
            return {}
        is_there = below.kind(module.child(b".git")) is not None
        return self.entries(module, before) if is_there else {}

    def _files(
        self, module: InsidePath, start: Entries, nested: Collection[InsidePath]
    ) -> Entries | None:
        """The files of a submodule as git would record them; None when some cannot be read."""

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

    def _blob(self, path: InsidePath, entry: Entry, width: int) -> ObjectId | None:
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
    """The commits that refs of the owner's lead to."""
    if owner is None:
        return []
    answer = git.git("for-each-ref", "--format=%(objectname)", cwd=owner, env={"GIT_DIR": owner})
    return list(dict.fromkeys(answer.lines))
