"""A capsule's view: opened on first use, held by its holder, ended when idle or on request.

There is at most one holder per capsule: every process in a view holds the view's lock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from atoll.drivers import registry
from atoll.drivers.layers import probes, store_overlays
from atoll.drivers.layers.pool import Pool
from atoll.engine.state.leases import isolation_plan, workspace_plan
from atoll.engine.state.session import Session
from atoll.host import files, locks, procfs, view_client
from atoll.host.forkserver import Confined
from atoll.host.process import wait_until
from atoll.keeper.requests import SYNCED, WRITTEN
from atoll.model.enclosure import Enclosure, HoldRequest, View
from atoll.model.errors import DriverError, IsolationError, StateError
from atoll.model.plan import WorkspacePlan
from atoll.model.state import CapsuleRecord

IDLE_S = 60.0
"""How long an unused view stays."""
_MONITOR_DIR = "lookout"
_PATIENCE_S = 20.0
_REAPED_S = 1.0
_STRAY_S = 3.0
_SHOWN = 5
_KEEPER = "atoll-keeper"


def open_view(session: Session, capsule: CapsuleRecord) -> None:
    """Opens the capsule's view if it is not. Raises IsolationError when it cannot be built."""
    lock = session.view_lock(capsule)

    def is_held() -> bool:
        if view_client.ask(capsule.directory, {"ping": True}) is not None:
            return True
        if not lock.acquire():
            return False
        try:
            _start_holder(session, capsule, lock)
        finally:
            lock.release()
        return True

    if not wait_until(is_held, timeout_s=_PATIENCE_S):
        raise _occupied(capsule, lock, "from an earlier run")


def _start_holder(session: Session, capsule: CapsuleRecord, lock: locks.Lock) -> None:
    # Read under the lock: a snapshot or a rollback may have changed it until now.
    plan = workspace_plan(session, capsule)
    driver = registry.layered_driver(plan.driver)
    if capsule.is_recovered:
        from atoll.drivers.layers import history  # noqa: PLC0415 - only for these

        history.adopt_recovered(plan, capsule.name)
    recover_unclean(session, capsule, plan)
    view = store_overlays.add_store_mounts(
        with_isolation(session, capsule, driver.view(plan)), Pool(plan.pool)
    )
    confine = plan_scope(session, capsule)
    if confine is None:
        view = view._replace(group=open_group(session, capsule))
    note_use(capsule)
    isolation = isolation_plan(session, capsule)
    inside = registry.isolation_driver(isolation.driver).enclosure(isolation, session.owner)
    inside = with_disk_root(plan, inside)
    request = HoldRequest(
        view=view,
        directory=capsule.directory,
        idle_s=IDLE_S,
        walls=inside.walls,
        limits=inside.limits,
        monitor_dir=str(session.home / _MONITOR_DIR) if inside.limits else "",
    )
    try:
        session.forkserver.hold(request, lock.fd, confine)
    except DriverError as error:
        raise IsolationError(
            f"cannot open the view of `{capsule.name}`: {error}", hint="atoll doctor"
        ) from error


def with_disk_root(plan: WorkspacePlan, inside: Enclosure) -> Enclosure:
    """The enclosure with the upper layer as the directory that counts towards the disk limit."""
    if not inside.limits:
        return inside
    upper = f"{plan.pool}/layers/{plan.upper}/tree"
    return inside._replace(limits=inside.limits._replace(disk_root=upper))


def with_isolation(session: Session, capsule: CapsuleRecord, view: View) -> View:
    """The view of the workspace, with the mounts of the isolation driver."""
    plan = isolation_plan(session, capsule)
    return registry.isolation_driver(plan.driver).extend_view(plan, view, session.owner)


def open_group(session: Session, capsule: CapsuleRecord) -> dict[str, str]:
    limits = isolation_plan(session, capsule).limits
    if not limits:
        return {}
    from atoll.engine.enclosure import cgroup_limits  # noqa: PLC0415 - only with limits

    return cgroup_limits.open_group(session, capsule, limits)


def plan_scope(session: Session, capsule: CapsuleRecord) -> Callable[[int], Confined] | None:
    limits = isolation_plan(session, capsule).limits
    if not limits:
        return None
    from atoll.engine.enclosure import cgroup_limits  # noqa: PLC0415 - only with limits

    return cgroup_limits.plan_scope(session, capsule, limits)


def recover_unclean(session: Session, capsule: CapsuleRecord, plan: WorkspacePlan) -> None:
    """Before a view is used again: warns of a crash, once, and restores what it may have lost.

    The view's lock is ours.
    """
    is_new, is_first = _written(capsule) is None, not plan.own_layers
    # One that starts from a snapshot of another was recorded as used when it was created.
    unclean = is_unclean(capsule) or (is_new and not is_first)
    if unclean:
        session.warn(unclean_message(session, capsule))
        now = session.store.require_capsule(capsule.project_id, capsule.name)
        plan = plan._replace(base_commit=[plan.base_commit, *filter(None, now.exported)][-1])
        # It may have exported more than it still has, which must not be overwritten.
        session.store.set_exported(capsule, ())
    if is_first and (is_new or unclean):
        # New capsules do not wait for the disk, so a power failure before or during their first use
        # may have lost what all of them have.
        registry.layered_driver(plan.driver).apply(plan, lock=-1)
        isolation = isolation_plan(session, capsule)
        registry.isolation_driver(isolation.driver).apply(isolation)
    if is_new or unclean:
        note_use(capsule)


def note_use(capsule: CapsuleRecord) -> None:
    """Records that the workspace was written in this boot."""
    files.make_private_directory(Path(capsule.directory))
    Path(capsule.directory, WRITTEN).write_text(probes.boot_id())


def _written(capsule: CapsuleRecord) -> str | None:
    content = files.read_regular(Path(capsule.directory, WRITTEN), limit_bytes=1 << 10)
    return None if content is None else content.decode(errors="replace")


def is_unclean(capsule: CapsuleRecord) -> bool:
    """Whether the machine went down while the workspace was being written."""
    return _written(capsule) not in (None, SYNCED, probes.boot_id())


def unclean_message(session: Session, capsule: CapsuleRecord) -> str:
    synced = [s for s in session.store.snapshots(capsule) if s.synced]
    hint = (
        f"; if files are damaged: atoll rollback {capsule.name} {synced[-1].number} "
        "(the last snapshot known to be on disk)"
        if synced
        else f"; earlier commits are in the branch `{capsule.branch}`"
        if capsule.exported
        else ""
    )
    return (
        f"`{capsule.name}` was in use when the machine went down: the latest writes may be "
        f"incomplete{hint}"
    )


def host_path(session: Session, capsule: CapsuleRecord, *, pin: bool = True) -> Path:
    """The host path of the live workspace.

    Through /proc, since the view is private: with `pin` it stays open from now on. Programs that
    resolve all links end up in the project itself, and should be started inside.
    """
    plan = workspace_plan(session, capsule)
    if not plan.is_layered:
        return Path(capsule.workspace)
    place = registry.layered_driver(plan.driver).place(plan)
    if place is not None:
        return place
    open_view(session, capsule)
    answer = view_client.ask(capsule.directory, {"pin": True} if pin else {"ping": True})
    if answer is None:
        raise StateError(f"the view of `{capsule.name}` has just ended", hint="try again")
    return Path(f"/proc/{answer[0]['pid']}/root{capsule.workspace}")


def living_runs(capsule: CapsuleRecord) -> int:
    """How many runs the view's holder has."""
    answer = view_client.ask(capsule.directory, {"ping": True})
    return 0 if answer is None else int(str(answer[0]["runs"]))


@contextlib.contextmanager
def kept_closed(session: Session, capsule: CapsuleRecord) -> Iterator[None]:
    """Closes the view and keeps it closed meanwhile. Raises StateError when a run is active."""
    lock = session.view_lock(capsule)
    began = time.monotonic()
    deadline, stray_at = began + _PATIENCE_S, began + _STRAY_S
    while True:
        answer = view_client.ask(capsule.directory, {"end": True})
        is_busy = answer is not None and bool(answer[0]["runs"])
        # A run that has just ended may not be reaped yet.
        if is_busy and time.monotonic() > began + _REAPED_S:
            raise StateError(
                f"`{capsule.name}` still has running processes", hint=f"atoll stop {capsule.name}"
            )
        if not is_busy and lock.acquire():
            break
        now = time.monotonic()
        # Keepers need a moment to end; any other process has lost its parent.
        if now > deadline or (now > stray_at and answer is None and not _has_keeper(lock)):
            raise _occupied(capsule, lock, "of this capsule")
        stray_at = max(stray_at, now + _REAPED_S) if now > stray_at else stray_at
    try:
        yield
    finally:
        lock.release()


def _has_keeper(lock: locks.Lock) -> bool:
    found = procfs.find_openers(lock.path)
    return not found or any(process.name == _KEEPER for process in found)


def _occupied(capsule: CapsuleRecord, lock: locks.Lock, origin: str) -> StateError:
    """Names the processes, so that the owner can kill those that Atoll cannot."""
    found = procfs.find_openers(lock.path)[:_SHOWN]
    pids = " ".join(str(process.pid) for process in found)
    who = ", ".join(f"`{process.name}`, pid {process.pid}" for process in found)
    return StateError(
        f"`{capsule.name}`: a process {origin} is still alive" + (f" ({who})" if who else ""),
        hint=f"atoll stop {capsule.name}"
        + (f"; if that does not help: kill {pids}" if found else ""),
    )


def end_view(session: Session, capsule: CapsuleRecord) -> None:
    """Closes the capsule's view. Raises StateError when a run is active."""
    with kept_closed(session, capsule):
        session.view_lock(capsule).path.unlink(missing_ok=True)
