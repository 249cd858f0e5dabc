"""A capsule's view: opened by the first who needs it, held by its keeper, ended when it must be.

At most one holder per capsule: whoever lives in a view holds its lock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from atoll.drivers import registry
from atoll.drivers.layers import probes, store_overlays
from atoll.drivers.layers.pool import Pool
from atoll.engine.leases import isolation_plan, workspace_plan
from atoll.engine.session import Session
from atoll.host import files, locks, procfs, views
from atoll.host.nursery import Confined
from atoll.host.process import wait_until
from atoll.keeper.asking import SYNCED, WRITTEN
from atoll.model.errors import DriverError, IsolationError, StateError
from atoll.model.plan import Enclosure, View, WorkspacePlan
from atoll.model.state import Capsule

IDLE_S = 60.0
"""How long a view that nobody uses stays."""
_LOOKOUT = "lookout"
_PATIENCE_S = 20.0
_BURIED_S = 1.0
_STRAY_S = 3.0
_SHOWN = 5
_KEEPER = "atoll-keeper"


def open_view(session: Session, capsule: Capsule) -> None:
    """Sees that the capsule's view is held. Raises IsolationError when it cannot be built."""
    lock = session.view_lock(capsule)

    def is_held() -> bool:
        if views.ask(capsule.directory, {"ping": True}) is not None:
            return True
        if not lock.acquire():
            return False
        try:
            _start_holder(session, capsule, lock)
        finally:
            lock.release()
        return True

    if not wait_until(is_held, timeout_s=_PATIENCE_S):
        raise _occupied(capsule, lock, "a former view")


def _start_holder(session: Session, capsule: Capsule, lock: locks.Lock) -> None:
    # Read under the lock: a snapshot or a rollback may have changed it until now.
    plan = workspace_plan(session, capsule)
    driver = registry.layered_driver(plan.driver)
    if capsule.base_ref == "recovered":
        from atoll.drivers.layers import history  # noqa: PLC0415 - only for these

        history.adopt_recovered(plan, capsule.name)
    look_after(session, capsule, plan)
    view = store_overlays.lay(furnished(session, capsule, driver.view(plan)), Pool(plan.pool))
    confine = plan_scope(session, capsule)
    if confine is None:
        view = view._replace(group=open_group(session, capsule))
    note_use(capsule)
    given = _given_to_runs(session, capsule, plan)
    request: dict[str, object] = {
        **view._asdict(),
        **given,
        "directory": capsule.directory,
        "idle_s": IDLE_S,
        "lookout": str(session.home / _LOOKOUT) if given["limits"] else None,
    }
    try:
        session.nursery.hold(request, lock.fd, confine)
    except DriverError as error:
        raise IsolationError(
            f"the view of `{capsule.name}` cannot be built: {error}", hint="atoll doctor"
        ) from error


def limits_of(plan: WorkspacePlan, inside: Enclosure) -> dict[str, object] | None:
    """The limits of what runs inside, with the directory that counts as the capsule's disk."""
    if not inside.limits:
        return inside.limits
    return {**inside.limits, "upper": f"{plan.pool}/layers/{plan.upper}/tree"}


def _given_to_runs(session: Session, capsule: Capsule, plan: WorkspacePlan) -> dict[str, object]:
    """What the holder gives to every run, whatever that asks for."""
    isolation = isolation_plan(session, capsule)
    inside = registry.isolation_driver(isolation.driver).enclosure(isolation, session.owner)
    walls = None if inside.walls is None else {**inside.walls, "workspace": inside.cwd}
    return {"walls": walls, "limits": limits_of(plan, inside)}


def furnished(session: Session, capsule: Capsule, view: View) -> View:
    """A view of the workspace, with what else the capsule's processes see."""
    plan = isolation_plan(session, capsule)
    return registry.isolation_driver(plan.driver).furnish(plan, view, session.owner)


def open_group(session: Session, capsule: Capsule) -> dict[str, str]:
    limits = isolation_plan(session, capsule).limits
    if not limits:
        return {}
    from atoll.engine import confines  # noqa: PLC0415 - only with limits

    return confines.open_group(session, capsule, limits)


def plan_scope(session: Session, capsule: Capsule) -> Callable[[int], Confined] | None:
    limits = isolation_plan(session, capsule).limits
    if not limits:
        return None
    from atoll.engine import confines  # noqa: PLC0415 - only with limits

    return confines.plan_scope(session, capsule, limits)


def look_after(session: Session, capsule: Capsule, plan: WorkspacePlan) -> None:
    """Before a view is used again: tells of a crash, once, and makes up for what one took.

    The view's lock is ours.
    """
    is_new, is_first = _written(capsule) is None, not own_layers(plan)
    # One that starts from a point of another was noted as used when it was made.
    unclean = is_unclean(capsule) or (is_new and not is_first)
    if unclean:
        session.warn(unclean_message(session, capsule))
        now = session.store.require_capsule(capsule.project_id, capsule.name)
        plan = plan._replace(base_commit=[plan.base_commit, *filter(None, now.exported)][-1])
        # What it had brought out may be more than what it still has: not to be overwritten.
        session.store.set_exported(capsule, ())
    if is_first and (is_new or unclean):
        # New capsules do not wait for the disk, so a power cut before or during their first use
        # may have taken what is the same for all of them.
        registry.layered_driver(plan.driver).apply(plan, lock=-1)
        isolation = isolation_plan(session, capsule)
        registry.isolation_driver(isolation.driver).apply(isolation)
    if is_new or unclean:
        note_use(capsule)


def own_layers(plan: WorkspacePlan) -> list[str]:
    """Those that hold what the capsule has changed, the lowest first."""
    return [layer for layer in plan.layers if layer[0] in "us"]


def note_use(capsule: Capsule) -> None:
    """Writes down that the workspace is written in this boot."""
    files.make_private_directory(Path(capsule.directory))
    Path(capsule.directory, WRITTEN).write_text(probes.boot_id())


def _written(capsule: Capsule) -> str | None:
    content = files.read_regular(Path(capsule.directory, WRITTEN), limit_bytes=1 << 10)
    return None if content is None else content.decode(errors="replace")


def is_unclean(capsule: Capsule) -> bool:
    """Whether the machine went down while the workspace was being written."""
    return _written(capsule) not in (None, SYNCED, probes.boot_id())


def unclean_message(session: Session, capsule: Capsule) -> str:
    synced = [s for s in session.store.snapshots(capsule) if s.synced]
    way = (
        f"; if files are damaged: atoll rollback {capsule.name} {synced[-1].number} "
        "(the last point that is known to be on disk)"
        if synced
        else f"; what was committed before is in the branch `{capsule.branch}`"
        if capsule.exported
        else ""
    )
    return (
        f"`{capsule.name}` was in use when the machine went down: what was written last may be "
        f"incomplete{way}"
    )


def host_path(session: Session, capsule: Capsule, *, pin: bool = True) -> Path:
    """Where programs outside of the view find the workspace, live.

    Through /proc, since the view is nobody else's: with `pin` it stays open from now on. Programs
    that resolve links to their end come out at the project itself, and are better started inside.
    """
    plan = workspace_plan(session, capsule)
    if not plan.pool:
        return Path(capsule.workspace)
    place = registry.layered_driver(plan.driver).place(plan)
    if place is not None:
        return place
    open_view(session, capsule)
    answer = views.ask(capsule.directory, {"pin" if pin else "ping": True})
    if answer is None:
        raise StateError(f"the view of `{capsule.name}` has just ended", hint="try again")
    return Path(f"/proc/{answer[0]['pid']}/root{capsule.workspace}")


def living_runs(capsule: Capsule) -> int:
    """How many runs the view's holder has."""
    answer = views.ask(capsule.directory, {"ping": True})
    return 0 if answer is None else int(str(answer[0]["runs"]))


@contextlib.contextmanager
def kept_closed(session: Session, capsule: Capsule) -> Iterator[None]:
    """Ends the view and sees that nobody opens it meanwhile. Raises StateError when a run lives."""
    lock = session.view_lock(capsule)
    began = time.monotonic()
    deadline, stray_at = began + _PATIENCE_S, began + _STRAY_S
    while True:
        answer = views.ask(capsule.directory, {"end": True})
        is_busy = answer is not None and bool(answer[0]["runs"])
        # A run that has just ended may not be buried yet.
        if is_busy and time.monotonic() > began + _BURIED_S:
            raise StateError(
                f"`{capsule.name}` is still running something", hint=f"atoll stop {capsule.name}"
            )
        if not is_busy and lock.acquire():
            break
        now = time.monotonic()
        # Keepers need a moment to end; what else is in there has lost whoever waited for it.
        if now > deadline or (now > stray_at and answer is None and not _has_keeper(lock)):
            raise _occupied(capsule, lock, "the view")
        stray_at = max(stray_at, now + _BURIED_S) if now > stray_at else stray_at
    try:
        yield
    finally:
        lock.release()


def _has_keeper(lock: locks.Lock) -> bool:
    found = procfs.find_openers(lock.path)
    return not found or any(process.name == _KEEPER for process in found)


def _occupied(capsule: Capsule, lock: locks.Lock, where: str) -> StateError:
    """Names who is in there, so that the owner can end what Atoll cannot."""
    found = procfs.find_openers(lock.path)
    who = ", ".join(f"`{process.name}` (process {process.pid})" for process in found[:_SHOWN])
    ending = " ".join(str(process.pid) for process in found[:_SHOWN])
    return StateError(
        f"{who or 'something'} still lives in {where} of `{capsule.name}`",
        hint=f"atoll stop {capsule.name}"
        + (f"; if that does not help: kill {ending}" if found else ""),
    )


def end_view(session: Session, capsule: Capsule) -> None:
    """Sees that nothing holds the capsule's view any more. Raises StateError when a run does."""
    with kept_closed(session, capsule):
        session.view_lock(capsule).path.unlink(missing_ok=True)
