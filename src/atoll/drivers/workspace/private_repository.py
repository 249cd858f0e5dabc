"""A capsule's private repository: its files and commits are read on the host, as data.

It is never used as the repository, object store, index, configuration or work tree of a git on the
host. Refs and the index are parsed here; objects pass a quarantine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path

from atoll.drivers.layers import history
from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.drivers.workspace.file_status import GIT, WorkspaceFiles
from atoll.drivers.workspace.referenced_objects import Parts, export_parts
from atoll.drivers.workspace.submodule_state import ModuleState, find_lost_submodules
from atoll.drivers.workspace.unique_work import HOLDERS, ImportedRefs, branch_commits
from atoll.host import files, git, ref_files
from atoll.host.intake.commit_import import import_objects
from atoll.host.intake.index import IndexEntry, parse_index
from atoll.host.intake.refs import STASH, AgentRefs, load_refs
from atoll.host.intake.store import IntakeRepository, open_store
from atoll.host.tree.layer_stack import Namespace
from atoll.host.tree.merged_tree import MergedTree
from atoll.model.errors import DriverError, StateError
from atoll.model.plan import WorkspacePlan
from atoll.model.secretvalues import SecretSearch
from atoll.model.untrusted import InsidePath, ObjectId

_REFS_LIMIT = 1_000
_INDEX_BYTES = 64 << 20
"""Or twice the number of refs that the workspace was created with."""
_FIRST_INDEX_BYTES = 1 << 30
_PACKED_BYTES = 1 << 28
_INDEX = GIT.child(b"index")


def _stashes(refs: AgentRefs, tips: Sequence[ObjectId]) -> tuple[ObjectId, ...]:
    """The stash entries, newest first, with autostashes of a rebase at the end."""
    if STASH not in refs.refs:
        return ()
    own = {refs.head, *(tip for ref, tip in refs.refs.items() if ref != STASH)}
    found = dict.fromkeys((refs.refs[STASH], *reversed(refs.stashes)))
    return tuple(tip for tip in found if tip in tips and tip not in own)


def _fetched(refs: AgentRefs, tips: Sequence[ObjectId]) -> tuple[ObjectId, ...]:
    """The tips that only remote-tracking refs name."""
    own = {refs.head, *refs.refs.values(), *refs.stashes, *refs.worktrees}
    fetched = set(refs.fetched.values()) - own
    return tuple(tip for tip in tips if tip in fetched)


@contextmanager
def open_workspace(
    pool: Pool, layers: Sequence[str], own: int, namespace: Namespace, below: Sequence[str]
) -> Iterator[WorkspaceFiles]:
    """The workspace merged from layers, of which the topmost `own` are the capsule's."""
    with ExitStack() as stack:
        shown = [pool.tree(layer) for layer in layers]
        tree = stack.enter_context(MergedTree(shown, own=own, namespace=namespace, at=WORKSPACE))
        lower = [pool.tree(layer) for layer in below]
        # A rolled-back copy consists of its snapshot alone.
        base = (
            stack.enter_context(MergedTree(lower, own=1, namespace=namespace, at=WORKSPACE))
            if lower
            else None
        )
        yield WorkspaceFiles(tree, base, is_whole=own == len(layers))


class PrivateSite:
    """A workspace on layers; `opening` opens its files. With `search`, nothing that it finds is
    imported.
    """

    def __init__(
        self,
        plan: WorkspacePlan,
        opening: Callable[[], AbstractContextManager[WorkspaceFiles]],
        set_aside: Callable[[Path], None],
        search: SecretSearch | None = None,
    ) -> None:
        self.plan = plan
        self.search = search
        self.scratch = Pool(plan.pool).root
        self.set_aside = set_aside
        self._opening = opening
        self._index: tuple[bytes, tuple[IndexEntry, ...] | None] | None = None

    def is_there(self) -> bool:
        return Pool(self.plan.pool).tree(self.plan.upper).is_dir()

    @contextmanager
    def opened(self) -> Iterator[tuple[WorkspaceFiles, IntakeRepository]]:
        pool = Pool(self.plan.pool)
        # Garbage collection would take the store for that of a dead process.
        with (
            pool.turn(shared=True),
            self._opening() as workspace,
            open_store(self.plan.repository, scratch=self.scratch) as store,
        ):
            yield workspace, store

    def take(self, workspace: WorkspaceFiles, *, everything: bool) -> ImportedRefs | None:
        refs = load_refs(workspace.tree)
        if refs is None:
            return None
        own = f"refs/heads/{self.plan.branch}"
        branch = next((tip for ref, tip in refs.refs.items() if ref == own), None)
        first = [tip for tip in (refs.head, branch) if tip is not None]
        wanted = self._tips(refs) if everything else (first, [])
        tips, is_delivered = self._deliver_all(workspace, *wanted)
        return ImportedRefs(
            head=refs.head,
            head_ref=refs.head_ref,
            branch=branch,
            tips=tuple(tips),
            is_whole=is_delivered and not refs.refused and self._can_be_read(workspace),
            stashes=_stashes(refs, tips),
            fetched=_fetched(refs, tips),
        )

    def _can_be_read(self, workspace: WorkspaceFiles) -> bool:
        """Whether everything that defines what is committed or staged can be read."""
        content, _ = self._indexes(workspace)
        if content is None and workspace.tree.kind(_INDEX) is not None:
            return False
        if content is not None and self._parsed(content) is None:
            return False
        objects = GIT.child(b"objects")

        def skip(path: InsidePath, is_directory: bool) -> bool:  # noqa: FBT001 - called so
            del is_directory
            return not (path == GIT or path.is_below(GIT)) or path == objects

        return not workspace.tree.changes(skip=skip).closed

    def _deliver_all(
        self, workspace: WorkspaceFiles, own: list[ObjectId], fetched: list[ObjectId]
    ) -> tuple[list[ObjectId], bool]:
        """All tips, and whether the fetched ones are included: history that was fetched
        incompletely or exceeds the limits must not prevent the capsule's own work from being saved.
        """
        if 0 < len(fetched) <= _REFS_LIMIT:
            with suppress(StateError, DriverError):
                return self._deliver(workspace, [*own, *fetched]), True
        return self._deliver(workspace, own), not fetched

    def _tips(self, refs: AgentRefs) -> tuple[list[ObjectId], list[ObjectId]]:
        """HEAD first, then the refs that changed since the capsule was created; and separately the
        commits that only remote-tracking refs name.
        """
        at_first = self._first_refs()
        own, fetched = (
            [tip for ref, tip in found.items() if f"{tip} {ref}" not in at_first]
            for found in (refs.refs, refs.fetched)
        )
        head = [] if refs.head is None else [refs.head]
        tips = list(dict.fromkeys([*head, *own, *refs.stashes, *refs.worktrees]))
        if len(tips) > _REFS_LIMIT:
            raise StateError(f"the capsule has more than {_REFS_LIMIT} refs of its own")
        return tips, self._unknown(set(fetched).difference(tips))

    def _unknown(self, fetched: Collection[ObjectId]) -> list[ObjectId]:
        """The commits that no ref of the owner names: there may be more remote branches than refs
        can be imported.
        """
        held: set[str] = set()
        if fetched:
            with suppress(ref_files.UnusualError):
                held.update(ref_files.values(self.plan.repository, below=HOLDERS, without=None))
        return sorted(tip for tip in fetched if tip not in held)

    def _deliver(self, workspace: WorkspaceFiles, tips: Sequence[ObjectId]) -> list[ObjectId]:
        """Imports these commits into the owner's repository."""
        known = list(dict.fromkeys([self.plan.base_commit, *self.committed]))
        fresh = [tip for tip in tips if tip not in known]
        taken = import_objects(
            workspace.tree, self.plan.repository, fresh,
            known=known, commits_only=True, history=history.require_store(self.plan),
            search=self.search,
        )  # fmt: skip
        named = {tip: taken.commits.get(tip) if tip in fresh else tip for tip in tips}
        return list(dict.fromkeys(commit for commit in named.values() if commit is not None))

    def export_parts(
        self, workspace: WorkspaceFiles, store: IntakeRepository, tips: Sequence[str]
    ) -> Parts:
        return export_parts(
            self.plan, workspace, store, tips, scratch=self.scratch, search=self.search
        )

    def staged(self, workspace: WorkspaceFiles) -> tuple[IndexEntry, ...] | None:
        content, before = self._indexes(workspace)
        return None if content is None or content == before else self._parsed(content)

    @staticmethod
    def _indexes(workspace: WorkspaceFiles) -> tuple[bytes | None, bytes | None]:
        """The index, and the one that the workspace was created with."""
        below = workspace.below
        before = None if below is None else below.read(_INDEX, limit_bytes=_FIRST_INDEX_BYTES)
        most = max(_INDEX_BYTES, 2 * len(before or b""))
        return workspace.tree.read(_INDEX, limit_bytes=most), before

    def _parsed(self, content: bytes) -> tuple[IndexEntry, ...] | None:
        """Cached: it is needed several times."""
        if self._index is None or self._index[0] != content:
            found = parse_index(content, id_bytes=len(self.plan.base_commit) // 2)
            self._index = content, None if found is None else tuple(found)
        return self._index[1]

    def _first_refs(self) -> set[str]:
        """From the frozen layer, which no capsule can write to."""
        layer = history.layer_of(self.plan)
        path = Pool(self.plan.pool).tree(layer) / WORKSPACE / ".git" / "packed-refs"
        content = files.read_regular(path, limit_bytes=_PACKED_BYTES)
        return set((content or b"").decode(errors="surrogateescape").split("\n"))

    def visible(self, names: Collection[ObjectId]) -> set[ObjectId]:
        env = {
            "GIT_DIR": self.plan.repository,
            "GIT_OBJECT_DIRECTORY": str(history.require_store(self.plan)),
        }
        answer = git.git(
            "cat-file", "--batch-check=%(objectname) %(objecttype)",
            cwd=self.plan.repository, env=env, stdin="".join(f"{n}\n" for n in names).encode(),
        )  # fmt: skip
        found = {line.removesuffix(" blob") for line in answer.lines}
        return {name for name in names if name in found}

    @cached_property
    def committed(self) -> list[str]:
        """What was exported before to the capsule's branch."""
        return branch_commits(self.plan)

    def is_changed_module(
        self, workspace: WorkspaceFiles, path: InsidePath, commit: ObjectId, before: ObjectId | None
    ) -> bool:
        return self.owner_check(workspace).is_changed(path, commit, before)

    def owner_check(self, workspace: WorkspaceFiles) -> ModuleState:
        return ModuleState(self.plan, workspace, self.scratch)

    def lost_submodules(
        self, workspace: WorkspaceFiles, store: IntakeRepository, head: str
    ) -> list[InsidePath]:
        return find_lost_submodules(self.plan, workspace.tree, store, head)
