"""What all drivers with layers share: the view, the private repository, and how work leaves it.

Nothing in the workspace is trusted: git is asked about it inside the capsule, and what comes out
passes a quarantine. On the host only the refs of frozen layers are read, and files that are
opened without following a link.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from atoll.drivers.contracts import Sealed, WorkspaceRequest
from atoll.drivers.layers import history, repair
from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.drivers.layers.repository import UNBORN_HEAD
from atoll.drivers.workspace import points, recovery
from atoll.drivers.workspace.branches import forget_branch
from atoll.drivers.workspace.private import PrivateSite
from atoll.host import files, git
from atoll.model.errors import PrerequisiteError, StateError
from atoll.model.names import branch_of
from atoll.model.plan import Enclosure, View, WorkspacePlan
from atoll.model.state import Problem, RecoveryPoint, Work

_COMMIT = re.compile(rb"[0-9a-f]{40}([0-9a-f]{24})?\n?")


class LayeredWorkspace:
    """The common part of `overlay`, `btrfs`, `reflink` and `copy`."""

    name: str

    def check(self, home: Path) -> list[Problem]:
        import shutil  # noqa: PLC0415 - only for a check

        if shutil.which("git") is None:
            return [Problem(what="git is not installed", cure="apt-get install git")]
        way, reason = self.probe(home)
        return [] if way is not None else [Problem(what=f"driver `{self.name}`: {reason}")]

    @abstractmethod
    def probe(self, home: Path) -> tuple[str | None, str]:
        """How this driver works here, or None; and the reason."""

    def plan(self, request: WorkspaceRequest) -> WorkspacePlan:
        checkout, pool = Path(request.checkout), Path(request.pool)
        if checkout in pool.parents:
            raise PrerequisiteError(
                f"Atoll's home `{pool.parents[1]}` lies inside of the project `{checkout}`, whose "
                "place a capsule's view takes",
                hint="set ATOLL_HOME to a directory outside of it",
            )
        way, _ = self.probe(pool.parents[1])
        plan = request.planned(self.name, path=request.checkout, branch=branch_of(request.name))
        return plan._replace(pool=request.pool, way=way or "")

    def on(self, plan: WorkspacePlan, layers: tuple[str, ...]) -> WorkspacePlan:
        git_layer = history.layer_of(plan._replace(layers=(*layers, *plan.layers)))
        upper = f"u{os.urandom(6).hex()}"
        return plan._replace(layers=layers, upper=upper, git=git_layer)

    def tools(self, plan: WorkspacePlan) -> str:
        """A directory of programs that must come first in the view; empty when none must."""
        del plan
        return ""

    @abstractmethod
    def prepare(self, plan: WorkspacePlan) -> None: ...

    @abstractmethod
    def seal(self, plan: WorkspacePlan, *, busy: bool) -> Sealed: ...

    @abstractmethod
    def _state(self, plan: WorkspacePlan) -> dict[str, object]:
        """The mount that shows all that the capsule may write."""

    @abstractmethod
    def _set_aside(self, plan: WorkspacePlan, inside: Enclosure, aside: Path) -> None: ...

    def apply(self, plan: WorkspacePlan, *, lock: int) -> None:
        del lock
        self.prepare(plan)
        tree = Pool(plan.pool).tree(plan.upper)
        branch = _branch(plan)
        for name, mode in ((WORKSPACE, _mode(plan.checkout)), ("home", 0o700), ("tmp", 0o700)):
            # Nobody but the keeper can put anything else there: these are mount points inside.
            (tree / name).mkdir(exist_ok=True)
            (tree / name).chmod(mode)
        for path, text in (
            (f"{WORKSPACE}/.git/refs/heads/{branch}", f"{plan.base_commit}\n"),
            (f"{WORKSPACE}/.git/HEAD", f"ref: refs/heads/{branch}\n"),
        ):
            # Idempotent, and never over what a commit has changed meanwhile.
            said = files.read_beneath(tree, path, limit_bytes=1 << 16)
            if said in (None, b"", UNBORN_HEAD.encode()):
                repair.bring_base(plan)
                files.write_beneath(tree, path, text.encode())

    def discard(self, plan: WorkspacePlan, *, home: Path) -> None:
        files.discard(Pool(plan.pool).layers / plan.upper, home=home)

    def release(self, plan: WorkspacePlan, *, home: Path, keep_branch: bool) -> None:
        if plan.upper:
            self.discard(plan, home=home)
        if keep_branch or not Path(plan.repository).is_dir():
            return
        with git.turn(plan.repository):
            forget_branch(plan.repository, _branch(plan))

    def view(self, plan: WorkspacePlan) -> View:
        pool = Pool(plan.pool)
        pool.make()
        if not Path(plan.checkout).is_dir():
            raise StateError(
                f"the checkout `{plan.checkout}` is gone: a view has no place to be shown at",
                hint=f"mkdir -p '{plan.checkout}'",
            )
        mounts: list[dict[str, object]] = [
            {
                "bind": str(history.require_store(plan)),
                "at": str(pool.objects),
                "read_only": True,
            },
            self._state(plan),
            {"bind": str(pool.state / WORKSPACE), "at": plan.checkout},
            # Layers are nobody's to write, whatever the modes inside of them say.
            {"bind": str(pool.layers), "at": str(pool.layers), "read_only": True},
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
        relative = f"{WORKSPACE}/.git/refs/heads/{plan.branch}"
        for layer in reversed((*plan.layers, plan.upper)):
            tree = Pool(plan.pool).tree(layer)
            content = files.read_beneath(tree, relative, limit_bytes=100) if tree.is_dir() else None
            if content is not None:
                return content.decode().strip() if _COMMIT.fullmatch(content) else None
        return None

    def bring(self, plan: WorkspacePlan, inside: Enclosure, *, everything: bool) -> str | None:
        site = self._site(plan, inside)
        if not site.belongs():
            raise StateError(
                f"the repository in `{plan.path}` is not the one that it was made with",
                hint="atoll rm --force keeps its files as they are",
            )
        tip = git.find_commit(f"refs/heads/{plan.branch}", cwd=plan.path, within=inside)
        if everything:
            tip = site.commit_rest(tip)
        if tip is not None:
            site.deliver([tip])
        return tip

    def rename(self, plan: WorkspacePlan, inside: Enclosure, *, former: str) -> None:
        git.git("branch", "-M", former, _branch(plan), cwd=plan.path, within=inside)

    def compare(
        self,
        before: tuple[WorkspacePlan, Enclosure],
        after: tuple[WorkspacePlan, Enclosure],
        *,
        place: str,
        stat: bool,
    ) -> bytes:
        from atoll.drivers.workspace import comparing  # noqa: PLC0415 - only to compare

        return comparing.compare(before, after, place=place, stat=stat)

    def _site(self, plan: WorkspacePlan, inside: Enclosure) -> PrivateSite:
        return PrivateSite(plan, inside, lambda aside: self._set_aside(plan, inside, aside))

    def is_pristine(self, plan: WorkspacePlan) -> bool:
        del plan
        return False

    def work(self, plan: WorkspacePlan, inside: Enclosure) -> Work:
        return recovery.find_work(self._site(plan, inside))

    def save(
        self, plan: WorkspacePlan, inside: Enclosure, *, point: str, home: Path
    ) -> RecoveryPoint | None:
        return recovery.save(self._site(plan, inside), point=point, home=home)

    def restore(
        self, plan: WorkspacePlan, point: RecoveryPoint, inside: Enclosure, *, lock: int
    ) -> None:
        recovery.restore(plan, point, inside, lock=lock)

    def points(self, repository: str) -> list[RecoveryPoint]:
        return points.points(cwd=repository)

    def drop(self, repository: str, point: RecoveryPoint, *, home: Path) -> None:
        points.drop(point, cwd=repository, home=home)


def _mode(path: str) -> int:
    return os.stat(path).st_mode & 0o777


def _branch(plan: WorkspacePlan) -> str:
    if plan.branch is None:
        raise ValueError("a private repository needs a branch")
    return plan.branch


def own_layers(plan: WorkspacePlan) -> Sequence[str]:
    """The layers that hold what the capsule has changed, the lowest first."""
    return [layer for layer in plan.layers if layer[0] in "us"] + [plan.upper]
