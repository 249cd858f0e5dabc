"""How a capsule goes away: announced, stopped, saved, released, forgotten; each step repeatable.

Used by `rm`, by a `new` that failed, and by the reaper for what a crash left. The order makes loss
impossible: work is stored before the first file goes, whoever it is that removes.
"""

from __future__ import annotations

import time
from pathlib import Path

from atoll.drivers import registry
from atoll.engine import runs, views, windows
from atoll.engine.leases import isolation_plan, workspace_plan
from atoll.engine.session import Session
from atoll.host import files
from atoll.model.plan import Enclosure, Removal, WorkspacePlan
from atoll.model.state import Capsule, CapsuleState, RecoveryPoint, Work


def enclosure(session: Session, capsule: Capsule, *, is_open: bool = False) -> Enclosure:
    """How a process is started inside. Opens the capsule's view, where it has one, unless that
    `is_open`, or will be by whoever starts the process.
    """
    plan = isolation_plan(session, capsule)
    if plan.holder and not is_open:
        views.open_view(session, capsule)
    inside = registry.isolation_driver(plan.driver).enclosure(plan, session.owner)
    if inside.limits:
        limits = views.limits_of(workspace_plan(session, capsule), inside)
        inside = inside._replace(limits=limits)
    return inside


def find_work(session: Session, capsule: Capsule, *, keep_branch: bool = False) -> Work:
    """What exists only in this capsule, and would be lost with it."""
    plan = _losing(session, capsule, keep_branch=keep_branch)
    if _is_pristine(capsule, plan):
        return Work()
    return registry.workspace_driver(plan.driver).work(plan)


def _losing(session: Session, capsule: Capsule, *, keep_branch: bool) -> WorkspacePlan:
    """The workspace as far as removal would lose it."""
    plan = workspace_plan(session, capsule)
    return plan._replace(branch=None) if keep_branch else plan


def _is_pristine(capsule: Capsule, plan: WorkspacePlan) -> bool:
    """Whether nothing can be lost, by a look that costs next to nothing."""
    if not plan.pool or capsule.exported:
        return False
    return registry.layered_driver(plan.driver).is_pristine(plan)


def announce(session: Session, capsule: Capsule, *, keep_branch: bool = False) -> None:
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    removal = Removal(
        point=f"{capsule.name}/{stamp}-{capsule.id}",
        keep_branch=keep_branch,
        save=capsule.state is not CapsuleState.CREATING,
    )
    session.store.set_removing(capsule, removal)
    session.reach("rm.announced", capsule.name)


def remove(
    session: Session, capsule: Capsule, *, is_expendable: bool = False
) -> RecoveryPoint | None:
    """Carries an announced removal to its end, from wherever it stands. Nothing is stored of a
    capsule that `is_expendable`: the caller has looked at it since it could last be changed.
    """
    removal = session.store.removal(capsule)
    windows.end_window(capsule)
    runs.stop_all(session, capsule)
    session.reach("rm.stopped", capsule.name)
    workspace = workspace_plan(session, capsule)
    driver = registry.workspace_driver(workspace.driver)
    if workspace.pool:
        # Before anything is read: what a killed keeper left behind must not write meanwhile.
        views.end_view(session, capsule)
    saved = None
    losing = _losing(session, capsule, keep_branch=removal.keep_branch)
    if removal.save and not is_expendable and not _is_pristine(capsule, losing):
        saved = driver.save(
            losing, point=removal.point, base=capsule.base_commit, home=session.home
        )
    session.reach("rm.saved", capsule.name)
    isolation = isolation_plan(session, capsule)
    if isolation.limits:
        from atoll.engine import confines  # noqa: PLC0415 - only with limits

        confines.close_group(session, capsule)
    registry.isolation_driver(isolation.driver).release(isolation, home=session.home)
    session.reach("rm.isolation", capsule.name)
    # A branch that was never brought out is not ours to delete.
    keep_branch = removal.keep_branch or (bool(workspace.pool) and not capsule.exported)
    driver.release(workspace, home=session.home, keep_branch=keep_branch)
    session.reach("rm.workspace", capsule.name)
    files.discard(Path(capsule.directory), home=session.home)
    session.reach("rm.files", capsule.name)
    session.store.forget_capsule(capsule)
    session.reach("rm.forgotten", capsule.name)
    return saved


def finish(session: Session, capsule: Capsule) -> RecoveryPoint | None:
    """Removes a capsule that a command left half-made or half-removed."""
    if capsule.state is not CapsuleState.REMOVING:
        announce(session, capsule)
    return remove(session, capsule)
