"""How a capsule goes away: announced, stopped, saved, released, forgotten; each step repeatable.

Used by `rm`, by a `new` that failed, and by the reaper for what a crash left. The order makes loss
impossible: work is stored before the first file goes, whoever it is that removes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from atoll.drivers import registry
from atoll.engine import descriptions, runs, views, windows
from atoll.engine.leases import isolation_plan, workspace_plan
from atoll.engine.session import Session
from atoll.host import files, points, space
from atoll.model.errors import AtollError, Interrupted, PrerequisiteError
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
    workspace = workspace_plan(session, capsule)
    driver = registry.workspace_driver(workspace.driver)
    losing = _losing(session, capsule, keep_branch=removal.keep_branch)
    saved = None
    with _kept_when_interrupted(session, capsule, losing):
        windows.end_window(capsule)
        runs.stop_all(session, capsule)
        session.reach("rm.stopped", capsule.name)
        if workspace.pool:
            # Before anything is read: what a killed keeper left behind must not write meanwhile.
            views.end_view(session, capsule)
        if removal.save and not is_expendable and not _is_pristine(capsule, losing):
            with _taken_back(session, capsule, losing):
                saved = driver.save(
                    losing, point=removal.point, base=capsule.base_commit, home=session.home
                )
    # From here on it is not whole any more.
    descriptions.forget(Path(capsule.directory))
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


@contextmanager
def _kept_when_interrupted(
    session: Session, capsule: Capsule, plan: WorkspacePlan
) -> Iterator[None]:
    """Takes the announcement back when the command that made it is interrupted before anything was
    removed, so that no later command has to finish the removal.

    The files of a worktree may have been moved away by then: such a removal is finished.
    """
    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        if plan.pool and capsule.state is CapsuleState.READY:
            _take_back(session, capsule, plan)
            session.warn(f"`{capsule.name}` is not removed; its runs may have been stopped")
        raise


@contextmanager
def _taken_back(session: Session, capsule: Capsule, plan: WorkspacePlan) -> Iterator[None]:
    """Takes the announcement back when the work cannot be stored: the capsule can be entered as
    before, and no later command tries it again.

    One that a dead command announced stays announced, unless the reason is that there is no room:
    its owner has to enter it then to make some.
    """
    try:
        yield
    except (AtollError, OSError) as error:
        is_full = space.is_shortage(error)
        is_own = capsule.state is CapsuleState.READY
        if isinstance(error, Interrupted) or not (is_own or (is_full and is_intact(capsule))):
            raise
        # Other programs may have used up the first half of the reserve meanwhile.
        space.Reserve(session.home).release(everything=True)
        _take_back(session, capsule, plan)
        if not is_full:
            raise
        raise _no_room(session, capsule, plan, error) from error


def _take_back(session: Session, capsule: Capsule, plan: WorkspacePlan) -> None:
    """Forgets an announcement. What was copied for a point that is not there goes: the next removal
    makes another point, and the capsule still has it all. Files of a worktree were moved, and stay.
    """
    point = session.store.removal(capsule).point
    session.store.cancel_removal(capsule)
    shelf = points.Shelf(plan.repository, session.home)
    with suppress(AtollError, OSError):
        if plan.pool and points.find_point(shelf, point) is None:
            files.remove_tree(shelf.files_of(point), within=session.home)


def is_intact(capsule: Capsule) -> bool:
    """Whether nothing of it has been removed yet."""
    return Path(capsule.directory, descriptions.NAME).is_file()


def _no_room(
    session: Session, capsule: Capsule, plan: WorkspacePlan, error: Exception
) -> PrerequisiteError:
    places = (session.home, Path(plan.repository))
    short = next(filter(None, map(space.find_shortage, places)), None)
    mounts = dict.fromkeys(f"'{space.mount_point(place)}'" for place in places)
    look = f"df -h {' '.join(mounts)}"
    reason = short.message if short is not None else f"it needs more room ({error})"
    return PrerequisiteError(
        f"the work of `{capsule.name}` cannot be stored: {reason}; `{capsule.name}` is kept as it "
        "was",
        hint=f"{short.hint if short else look}; or remove files inside: "
        f"atoll run {capsule.name} -- rm FILE",
    )


def finish(session: Session, capsule: Capsule) -> RecoveryPoint | None:
    """Removes a capsule that a command left half-made or half-removed."""
    if capsule.state is not CapsuleState.REMOVING:
        announce(session, capsule)
    return remove(session, capsule)


def render_way_out(capsule: Capsule, work: Work, *, is_layered: bool) -> str:
    """What to do about work that keeps a capsule from being removed."""
    name = capsule.name
    stored = f"atoll rm {name} --force (stores it; atoll recover brings it back)"
    committed = f'atoll commit {name} -m "…"'
    # A worktree's submodules are its own, and what is committed there stays in it.
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
