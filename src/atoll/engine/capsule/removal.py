"""Removal of a capsule: announce it, stop processes, store work, remove parts, delete the row.

Every step can be repeated. `rm`, a `new` that failed and the reaper use it; work is always stored
before the first file is removed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from atoll.drivers import registry
from atoll.engine.capsule import landed_work, parts
from atoll.engine.enclosure import views
from atoll.engine.run import runs
from atoll.engine.state import descriptions
from atoll.engine.state.leases import workspace_plan
from atoll.engine.state.session import Session
from atoll.host import disk_space, files
from atoll.host.recovery import recovery_points
from atoll.model.errors import AtollError, Interrupted, PrerequisiteError
from atoll.model.plan import Removal, WorkspacePlan
from atoll.model.state import CapsuleRecord, CapsuleState, RecoveryPoint, Work


def find_work(session: Session, capsule: CapsuleRecord, *, keep_branch: bool = False) -> Work:
    """The work that exists only in this capsule."""
    plan = _losing(session, capsule, keep_branch=keep_branch)
    if _is_pristine(capsule, plan):
        return Work()
    work = registry.workspace_driver(plan.driver).work(plan)
    return work if keep_branch else landed_work.without_landed(session, capsule, plan, work)


def _losing(session: Session, capsule: CapsuleRecord, *, keep_branch: bool) -> WorkspacePlan:
    """The workspace plan without what the removal keeps."""
    plan = workspace_plan(session, capsule)
    return plan._replace(branch=None) if keep_branch else plan


def _is_pristine(capsule: CapsuleRecord, plan: WorkspacePlan) -> bool:
    """Whether a cheap check shows that there is no work."""
    if not plan.is_layered or capsule.exported:
        return False
    return registry.layered_driver(plan.driver).is_pristine(plan)


def announce(session: Session, capsule: CapsuleRecord, *, keep_branch: bool = False) -> None:
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    removal = Removal(
        point=f"{capsule.name}/{stamp}-{capsule.id}",
        keep_branch=keep_branch,
        save=capsule.state is not CapsuleState.CREATING,
    )
    session.store.set_removing(capsule, removal)
    session.reach("rm.announced", capsule.name)


def remove(
    session: Session, capsule: CapsuleRecord, *, is_expendable: bool = False
) -> RecoveryPoint | None:
    """Completes an announced removal, from any step. No work is stored if the caller has checked
    that the capsule `is_expendable` and nothing could change it since.
    """
    removal = session.store.removal(capsule)
    workspace = workspace_plan(session, capsule)
    driver = registry.workspace_driver(workspace.driver)
    losing = _losing(session, capsule, keep_branch=removal.keep_branch)
    saved = None
    with _withdrawn_if_interrupted(session, capsule, losing):
        for part in parts.registered():
            part.stop(session, capsule)
        runs.stop_all(session, capsule)
        session.reach("rm.stopped", capsule.name)
        if workspace.is_layered:
            # First, so that processes which a killed keeper left cannot write meanwhile.
            views.end_view(session, capsule)
        if removal.save and not is_expendable and not _is_pristine(capsule, losing):
            with _withdrawn_if_unstorable(session, capsule, losing):
                saved = driver.save(
                    losing, point=removal.point, base=capsule.base_commit, home=session.home
                )
    # From here on the capsule is incomplete.
    descriptions.forget(Path(capsule.directory))
    session.reach("rm.saved", capsule.name)
    for part in reversed(parts.registered()):
        part.remove(session, capsule, removal)
    files.discard(Path(capsule.directory), home=session.home)
    session.reach("rm.files", capsule.name)
    session.store.forget_capsule(capsule)
    session.reach("rm.forgotten", capsule.name)
    return saved


@contextmanager
def _withdrawn_if_interrupted(
    session: Session, capsule: CapsuleRecord, plan: WorkspacePlan
) -> Iterator[None]:
    """Withdraws the announcement when the command that made it is interrupted before anything was
    removed, so that no later command completes the removal.

    Not for a worktree, whose files may have been moved by then.
    """
    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        if plan.is_layered and capsule.state is CapsuleState.READY:
            _withdraw(session, capsule, plan)
            session.warn(f"`{capsule.name}` is not removed; its runs may have been stopped")
        raise


@contextmanager
def _withdrawn_if_unstorable(
    session: Session, capsule: CapsuleRecord, plan: WorkspacePlan
) -> Iterator[None]:
    """Withdraws the announcement when the work cannot be stored: the capsule can be used as before,
    and no later command tries again.

    The announcement of a killed command stays, unless the disk is full: the owner has to be able
    to delete files in the capsule.
    """
    try:
        yield
    except (AtollError, OSError) as error:
        is_full = disk_space.is_shortage(error)
        is_own = capsule.state is CapsuleState.READY
        if isinstance(error, Interrupted) or not (is_own or (is_full and is_intact(capsule))):
            raise
        # Other programs may have used the first half of the reserve.
        disk_space.Reserve(session.home).release(everything=True)
        _withdraw(session, capsule, plan)
        if not is_full:
            raise
        raise _no_room(session, capsule, plan, error) from error


def _withdraw(session: Session, capsule: CapsuleRecord, plan: WorkspacePlan) -> None:
    """Withdraws the announcement, and removes files that were copied for an unfinished recovery
    point: the capsule still has them. Files of a worktree were moved there, and stay.
    """
    point = session.store.removal(capsule).point
    session.store.cancel_removal(capsule)
    shelf = recovery_points.Shelf(plan.repository, session.home)
    with suppress(AtollError, OSError):
        if plan.is_layered and recovery_points.find_point(shelf, point) is None:
            files.remove_tree(shelf.files_of(point), within=session.home)


def is_intact(capsule: CapsuleRecord) -> bool:
    """Whether nothing of the capsule has been removed yet."""
    return Path(capsule.directory, descriptions.NAME).is_file()


def _no_room(
    session: Session, capsule: CapsuleRecord, plan: WorkspacePlan, error: Exception
) -> PrerequisiteError:
    places = (session.home, Path(plan.repository))
    short = next(filter(None, map(disk_space.find_shortage, places)), None)
    mounts = dict.fromkeys(f"'{disk_space.mount_point(place)}'" for place in places)
    look = f"df -h {' '.join(mounts)}"
    reason = short.message if short is not None else f"more space is needed ({error})"
    return PrerequisiteError(
        f"the work of `{capsule.name}` cannot be stored: {reason}; `{capsule.name}` is unchanged",
        hint=f"{short.hint if short else look}; or remove files inside: "
        f"atoll run {capsule.name} -- rm FILE",
    )


def finish(session: Session, capsule: CapsuleRecord) -> RecoveryPoint | None:
    """Removes a capsule that a killed command left half-made or half-removed, or a temporary one,
    which holds no work.
    """
    if capsule.state is not CapsuleState.REMOVING:
        announce(session, capsule)
    return remove(session, capsule, is_expendable=bool(capsule.temporary))


def render_hint(capsule: CapsuleRecord, work: Work, *, is_layered: bool) -> str:
    """The hint for a capsule that has work and is therefore not removed."""
    name = capsule.name
    stored = f"atoll rm {name} --force (stores it; atoll recover brings it back)"
    committed = f'atoll commit {name} -m "…"'
    # Commits in the submodules of a worktree are only there.
    if work.is_recordable and is_layered:
        return f"{committed} (records what the submodules have committed), or {stored}"
    if work.needs_files:
        return stored
    if work.uncommitted or work.untracked:
        return f"{committed}, or {stored}"
    if work.stashes:
        return f"atoll run {name} -- git stash pop, or {stored}"
    if work.off_branch:
        return f"git fetch in your checkout, or {stored}" if work.only_fetched else stored
    return (
        f"git merge {capsule.branch}, or atoll rm {name} --keep-branch, or "
        f"atoll rm {name} --force (stores all of them; atoll recover brings them back)"
    )
