"""The common part of the layered drivers: view, private repository, and export of work.

Nothing in the workspace is trusted. Its content is read on the host, through descriptors and
without following links (`file_status.py`); nothing in it is executed. Commits are imported as data
through a quarantine (`private_repository.py`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atoll.drivers.contracts import (
    Author,
    CommitResult,
    ExportedCommits,
    ProbeResult,
    Sealed,
    WorkspaceRequest,
)
from atoll.drivers.layers import history, stand_in_repositories
from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.drivers.layers.repository import UNBORN_HEAD
from atoll.drivers.workspace import changes, recovery_save, unique_work
from atoll.drivers.workspace.branches import delete_branch, require_branch
from atoll.drivers.workspace.file_status import WorkspaceFiles
from atoll.drivers.workspace.private_repository import PrivateSite, open_workspace
from atoll.host import files, git, programs
from atoll.host.intake.refs import load_refs
from atoll.host.tree.layer_stack import Namespace
from atoll.model.enclosure import Bind, Mount, View
from atoll.model.errors import PrerequisiteError, StateError
from atoll.model.layers import is_private
from atoll.model.names import branch_of
from atoll.model.plan import WorkspacePlan
from atoll.model.secretvalues import SecretSearch
from atoll.model.state import WHOLE, Patch, Problem, RecoveryPoint, Work
from atoll.model.untrusted import InsidePath, Untrusted, find_object_id

_REF_BYTES = 100
_PACKED_BYTES = 64 << 20


class LayeredWorkspace(ABC):
    """The base class of `overlay`, `btrfs`, `reflink` and `copy`."""

    name: str
    stores_changes = False

    def check(self, home: Path) -> list[Problem]:
        if programs.find_program("git") is None:
            return [Problem(what="git is not installed", cure="apt-get install git")]
        mode, reason = self.probe(home)
        return [] if mode is not None else [Problem(what=f"driver `{self.name}`: {reason}")]

    @abstractmethod
    def probe(self, home: Path) -> ProbeResult: ...

    def plan(self, request: WorkspaceRequest) -> WorkspacePlan:
        checkout, pool = Path(request.checkout), Path(request.pool)
        if checkout in pool.parents:
            raise PrerequisiteError(
                f"Atoll's home `{pool.parents[1]}` is inside the project `{checkout}`, where a "
                "capsule's view is mounted",
                hint="set ATOLL_HOME to a directory outside the project",
            )
        plan = request.planned(self.name, path=request.checkout, branch=branch_of(request.name))
        return plan._replace(pool=request.pool, way=request.mode)

    def on(self, plan: WorkspacePlan, layers: tuple[str, ...], upper: str) -> WorkspacePlan:
        git_layer = history.layer_of(plan._replace(layers=(*layers, *plan.layers)))
        return plan._replace(layers=layers, upper=upper, git=git_layer)

    def tools(self, plan: WorkspacePlan) -> str:
        """A directory of programs that must come first in PATH; empty if there is none."""
        del plan
        return ""

    @abstractmethod
    def prepare(self, plan: WorkspacePlan) -> None: ...

    @abstractmethod
    def seal(self, plan: WorkspacePlan, *, busy: bool) -> Sealed: ...

    @abstractmethod
    def _state(self, plan: WorkspacePlan) -> Mount:
        """The mount of everything that the capsule may write."""

    @abstractmethod
    def _set_aside(self, plan: WorkspacePlan, aside: Path) -> None: ...

    def apply(self, plan: WorkspacePlan, *, lock: int) -> None:
        del lock
        self.prepare(plan)
        tree = Pool(plan.pool).tree(plan.upper)
        branch = require_branch(plan)
        shown = os.stat(plan.checkout).st_mode & 0o777
        for name, mode in ((WORKSPACE, shown), ("home", 0o700), ("tmp", 0o700)):
            # Only the keeper can change these: they are mount points inside.
            (tree / name).mkdir(exist_ok=True)
            (tree / name).chmod(mode)
        for path, text in (
            (f"{WORKSPACE}/.git/refs/heads/{branch}", f"{plan.base_commit}\n"),
            (f"{WORKSPACE}/.git/HEAD", f"ref: refs/heads/{branch}\n"),
        ):
            # Idempotent, and never overwrites what a commit has changed in the meantime.
            current = files.read_beneath(tree, path, limit_bytes=1 << 16)
            if current in (None, b"", UNBORN_HEAD.encode()):
                history.restore_base(plan)
                files.write_beneath(tree, path, text.encode())

    def discard(self, plan: WorkspacePlan, *, home: Path) -> None:
        # Without a name it would be the directory of all layers.
        if plan.upper:
            files.discard(Pool(plan.pool).layers / plan.upper, home=home)

    def release(self, plan: WorkspacePlan, *, home: Path, keep_branch: bool) -> None:
        self.discard(plan, home=home)
        # A branch of that name in another repository at the same path is not Atoll's.
        if keep_branch or not stand_in_repositories.has_repository(plan):
            return
        with git.turn(plan.repository):
            delete_branch(plan.repository, require_branch(plan))

    def view(self, plan: WorkspacePlan) -> View:
        pool = Pool(plan.pool)
        pool.make()
        if not Path(plan.checkout).is_dir():
            raise StateError(
                f"the checkout `{plan.checkout}` does not exist, so no view can be mounted there",
                hint=f"mkdir -p '{plan.checkout}'",
            )
        store = history.require_store(plan)
        shown = [(store, pool.objects)]
        # Stores of earlier versions, and of projects without Git LFS, have no such objects.
        if (large := store.with_name("lfs")).is_dir():
            shown.append((large, pool.large_files))
        mounts: list[Mount] = [
            *(Bind(str(of), str(at), is_read_only=True) for of, at in shown),
            self._state(plan),
            Bind(str(pool.state / WORKSPACE), plan.checkout),
            # Layers are read-only, independent of the modes inside them.
            Bind(str(pool.layers), str(pool.layers), is_read_only=True),
        ]
        return View(user=self._is_user(plan), pool=str(pool.layers), mounts=tuple(mounts))

    def is_untouched(self, plan: WorkspacePlan) -> bool:
        del plan
        return False

    def place(self, plan: WorkspacePlan) -> Path | None:
        del plan
        return None

    def _is_user(self, plan: WorkspacePlan) -> bool:
        del plan
        return os.geteuid() != 0

    def tip(self, plan: WorkspacePlan) -> str | None:
        # Called after every run: cheap, and follows no link. A wrong result costs one export.
        relative = f"{WORKSPACE}/.git/refs/heads/{plan.branch}"
        for layer in reversed((*plan.layers, plan.upper)):
            tree = Pool(plan.pool).tree(layer)
            if not tree.is_dir():
                continue
            content = files.read_beneath(tree, relative, limit_bytes=_REF_BYTES)
            if content is not None:
                return find_object_id(Untrusted(content.removesuffix(b"\n")))
        return None

    def export_commits(
        self, plan: WorkspacePlan, *, everything: bool, search: SecretSearch | None = None
    ) -> ExportedCommits | None:
        return changes.export_commits(self._site(plan, search), everything=everything)

    def commit(
        self,
        plan: WorkspacePlan,
        message: str,
        author: Author,
        *,
        search: SecretSearch | None = None,
    ) -> CommitResult:
        return changes.commit(self._site(plan, search), message, author)

    def tree(self, plan: WorkspacePlan) -> str:
        return changes.tree(self._site(plan))

    def has_hook(self, plan: WorkspacePlan, name: str) -> bool:
        return changes.has_hook(self._site(plan), name)

    def diff(self, plan: WorkspacePlan, *, base: str, stat: bool) -> Patch:
        return changes.diff(self._site(plan), base=base, stat=stat)

    def diff_since(self, plan: WorkspacePlan, layers: tuple[str, ...], *, stat: bool) -> Patch:
        with (
            self._site(plan).opened() as (now, store),
            self._opened(plan, layers) as then,
        ):
            return changes.diff_between(plan, store, then, now, stat=stat)

    def rename(self, plan: WorkspacePlan, *, former: str) -> None:
        """Writes the refs into the upper layer, which is not mounted yet."""
        packed_refs = InsidePath(b".git/packed-refs")
        with self._opened(plan, (*plan.layers, plan.upper)) as workspace:
            refs = load_refs(workspace.tree)
            packed = workspace.tree.read(packed_refs, limit_bytes=_PACKED_BYTES) or b""
            loose = InsidePath(f".git/refs/heads/{former}".encode())
            is_loose = workspace.tree.kind(loose) == "file"
        if refs is None:
            raise StateError(
                "the repository in the workspace has been replaced",
                hint="atoll new NAME",
            )
        before, after = f"refs/heads/{former}", f"refs/heads/{require_branch(plan)}"
        stands = next((tip for ref, tip in refs.refs.items() if ref == before), None)
        tree = Pool(plan.pool).tree(plan.upper)
        if stands is not None:
            files.write_beneath(tree, f"{WORKSPACE}/.git/{after}", f"{stands}\n".encode())
        if refs.head_ref == before:
            files.write_beneath(tree, f"{WORKSPACE}/.git/HEAD", f"ref: {after}\n".encode())
        mark = f" {before}".encode()
        lines = [line for line in packed.split(b"\n") if not line.endswith(mark)]
        if len(lines) != packed.count(b"\n") + 1:
            files.write_beneath(tree, f"{WORKSPACE}/.git/packed-refs", b"\n".join(lines))
        if is_loose:
            self._hide(tree, f"{WORKSPACE}/.git/{before}")

    def _hide(self, tree: Path, relative: str) -> None:
        """Hides a file of a lower layer."""
        files.remove_beneath(tree, relative)

    def _site(self, plan: WorkspacePlan, search: SecretSearch | None = None) -> PrivateSite:
        return PrivateSite(
            plan,
            lambda: self._opened(plan, (*plan.layers, plan.upper)),
            lambda aside: self._set_aside_whole(plan, aside),
            search,
        )

    def _set_aside_whole(self, plan: WorkspacePlan, aside: Path) -> None:
        """Renames the copy when it is complete: an interrupted one is made again."""
        part = aside.with_name(f".{aside.name}")
        files.make_private_directory(aside.parent)
        for place in (part, aside):
            files.remove_tree(place, within=aside.parent)
        self._set_aside(plan, part)
        os.rename(part, aside)
        files.sync_directory(aside.parent)

    def put_back(self, plan: WorkspacePlan, aside: Path) -> None:
        self._put_back(plan, aside, overlay=None)

    def _put_back(self, plan: WorkspacePlan, aside: Path, *, overlay: Namespace | None) -> None:
        from atoll.host.recovery import restored_files  # noqa: PLC0415 - copies: not for a start

        target = Pool(plan.pool).tree(plan.upper) / WORKSPACE
        restored_files.put_back(aside, target, at=WORKSPACE, overlay=overlay, is_inside=True)

    @contextmanager
    def _opened(self, plan: WorkspacePlan, layers: tuple[str, ...]) -> Iterator[WorkspaceFiles]:
        """Opens the workspace as merged from these layers; the topmost may still be written to."""
        pool = Pool(plan.pool)
        base = [layer for layer in plan.layers if not is_private(layer)]
        shown = self._shown(layers)
        own = sum(1 for layer in shown if layer not in base)
        with open_workspace(pool, shown, own, self._namespace(plan), base) as workspace:
            yield workspace

    def _shown(self, layers: tuple[str, ...]) -> tuple[str, ...]:
        """The layers that make up the workspace: drivers that copy need only one."""
        return layers[-1:]

    def _namespace(self, plan: WorkspacePlan) -> Namespace:
        """The extended-attribute namespace of overlayfs in these layers."""
        return "user" if self._is_user(plan) else "trusted"

    def is_pristine(self, plan: WorkspacePlan) -> bool:
        del plan
        return False

    def work(self, plan: WorkspacePlan) -> Work:
        if not stand_in_repositories.has_repository(plan):
            return Work(nested=WHOLE)
        return unique_work.find_work(self._site(plan))

    def save(
        self, plan: WorkspacePlan, *, point: str, base: str, home: Path
    ) -> RecoveryPoint | None:
        stored = stand_in_repositories.stored_in(plan, home)
        made = recovery_save.save(self._site(stored), point=point, base=base, home=home)
        if made is None or stored is plan:
            return made
        return made._replace(repository=stored.repository)
