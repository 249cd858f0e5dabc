"""Whether a submodule in a capsule holds anything that the owner does not have.

Commits that a remote-tracking ref of the submodule leads to were fetched: they are no work, whether
or not the owner has fetched them, too. To decide that, its objects are copied into a store of ours,
through the same checks as an import.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from atoll.drivers.workspace.owner_modules import ModulePlace, find_place, is_kept
from atoll.drivers.workspace.submodules import MODULES
from atoll.drivers.workspace.survey import GITLINK, Workspace, git_mode
from atoll.host import git
from atoll.host.intake.content import blob_id, tracked_below
from atoll.host.intake.objects import import_objects
from atoll.host.intake.refs import load_fetched, load_refs
from atoll.host.intake.store import Store, open_store
from atoll.host.intake.tree_objects import TreeEntry
from atoll.host.merged import Entry
from atoll.model.errors import DriverError, StateError
from atoll.model.plan import WorkspacePlan
from atoll.model.untrusted import InsidePath, ObjectId, as_content

_MOST_ASKED = 20
"""So many commits are asked for one by one."""
_MOST_FETCHED = 10_000
_FILE_BYTES = 1 << 28

Entries = dict[InsidePath, TreeEntry]


class ModuleState:
    """Answers for one workspace; `scratch` is where a store for one question may be made."""

    def __init__(self, plan: WorkspacePlan, workspace: Workspace, scratch: Path) -> None:
        self._plan, self._workspace, self._scratch = plan, workspace, scratch
        self._entries: dict[tuple[InsidePath, ObjectId], Entries | None] = {}

    def has_all(self, module: InsidePath, tips: Collection[ObjectId]) -> bool:
        """Whether the owner has these commits, or they were fetched."""
        place = find_place(self._plan, self._workspace.tree, module)
        if place.owner is not None and len(tips) <= _MOST_ASKED:
            owner = place.owner
            if all(is_kept(owner, tip) for tip in tips):
                return True
        return place.inside is not None and self._are_fetched(place, place.inside, list(tips))

    def _are_fetched(self, place: ModulePlace, inside: InsidePath, tips: list[ObjectId]) -> bool:
        fetched = load_fetched(self._workspace.tree, inside)
        if not fetched or len(fetched) > _MOST_FETCHED:
            return False
        try:
            with self._imported(place, inside, [*tips, *fetched]) as (store, commits):
                if any(tip not in commits for tip in tips):
                    # It is not a commit, so no remote branch leads to it.
                    return False
                known = [commits[tip] for tip in fetched if tip in commits]
                asked = [*(commits[tip] for tip in tips), *(f"^{name}" for name in known)]
                asked += [f"^{commit}" for commit in _refs_of(place.owner)]
                given = "".join(f"{word}\n" for word in asked).encode()
                return store.run("rev-list", "--count", "--stdin", stdin=given).strip() == b"0"
        except (StateError, DriverError):
            return False

    @contextmanager
    def _imported(
        self, place: ModulePlace, inside: InsidePath, tips: list[ObjectId]
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
