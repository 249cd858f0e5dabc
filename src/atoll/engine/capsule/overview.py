"""What `ls` shows of each capsule, without runs and locks: `rm` does not rely on it."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import NamedTuple

from atoll.drivers import registry
from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.engine.capsule import disk_use, removal
from atoll.engine.capsule.disk_use import DiskUse
from atoll.engine.run import freezer, runs
from atoll.engine.state.leases import workspace_plan
from atoll.engine.state.session import Session
from atoll.host import git
from atoll.host.tree.manifests import walk
from atoll.model import state
from atoll.model.errors import AtollError
from atoll.model.layers import is_private
from atoll.model.plan import Refs, WorkspacePlan
from atoll.model.state import CapsuleState, Run

_MOST_ENTRIES = 20_000
_NOT_WORK = frozenset({
    ".git", "node_modules", ".venv", "venv", "__pycache__", ".mypy_cache", ".pytest_cache",
    ".ruff_cache", ".tox",
})  # fmt: skip
"""Directories that do not count as changed files, by name."""


class Changed(NamedTuple):
    files: int
    """Files written or removed since the base commit of the capsule."""
    is_complete: bool
    """False when there were more entries than are counted."""


class Summary(NamedTuple):
    capsule: state.CapsuleRecord
    project: str
    runs: list[Run]
    """Those that are running."""
    is_paused: bool
    changed: Changed | None
    """None when it is unknown, as while the capsule is being created."""
    ahead: int | None
    """Commits of its branch that the branch it was created from does not have now."""
    behind: int | None
    """The reverse."""
    disk: DiskUse


def summaries(session: Session, project: state.ProjectRecord) -> list[Summary]:
    """Of each capsule of a project, in the order in which they were made."""
    records = [c for c in session.store.capsules(project.id) if not c.temporary]
    refs = _refs(session, project) if records else None
    found = []
    for record in records:
        is_ready = record.state is CapsuleState.READY
        ahead, behind = _distance(project, record, refs)
        found.append(
            Summary(
                capsule=record,
                project=project.name,
                runs=runs.living(session, record),
                is_paused=is_ready and freezer.is_paused(record),
                changed=find_changed(session, record) if is_ready else None,
                ahead=ahead,
                behind=behind,
                disk=disk_use.of_capsule(session, record),
            )
        )
    return found


def _refs(session: Session, project: state.ProjectRecord) -> Refs | None:
    """None when the repository cannot be asked, as when it was deleted."""
    try:
        return session.ref_cache.refs(project)
    except (AtollError, OSError):
        return None


def _distance(
    project: state.ProjectRecord, record: state.CapsuleRecord, refs: Refs | None
) -> tuple[int | None, int | None]:
    if refs is None:
        return None, None
    base = refs.find(f"refs/heads/{record.base_ref}") or record.base_commit
    tip = refs.find(f"refs/heads/{record.branch}") if record.branch else None
    tip = tip or record.base_commit
    if tip == base:
        return 0, 0
    try:
        return git.distance(tip, base, cwd=project.root)
    except AtollError:
        return None, None


def find_changed(session: Session, capsule: state.CapsuleRecord) -> Changed | None:
    """What a capsule has changed; None when that cannot be read."""
    try:
        plan = workspace_plan(session, capsule)
        if not plan.is_layered:
            return Changed(git.count_changed(cwd=plan.path), is_complete=True)
        if registry.layered_driver(plan.driver).stores_changes:
            return _changed_in_layers(plan)
        work = removal.find_work(session, capsule)
    except (AtollError, OSError):
        return None
    kinds = (work.uncommitted, work.untracked, work.nested, work.unstorable, work.large)
    files = sum(map(len, kinds))
    return Changed(files, is_complete=True)


def _changed_in_layers(plan: WorkspacePlan) -> Changed:
    pool = Pool(plan.pool)
    layers = [layer for layer in plan.layers if is_private(layer)]
    paths: set[str] = set()
    left = _MOST_ENTRIES
    for layer in (*layers, plan.upper):
        for path, status in walk(Path(pool.tree(layer), WORKSPACE), limit=left + 1):
            left -= 1
            if left < 0:
                return Changed(len(paths), is_complete=False)
            if not stat.S_ISDIR(status.st_mode) and _NOT_WORK.isdisjoint(path.split("/")):
                paths.add(path)
    return Changed(len(paths), is_complete=True)
