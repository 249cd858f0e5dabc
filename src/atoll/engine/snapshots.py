"""Time: points to which a whole capsule can return, and copies that start from one.

A quiet capsule's writable layer becomes the point itself and a new one begins: that costs the same
whatever has changed. A busy one is frozen for as long as its changes are copied. Going back is
only another step forward: what was there before is a point, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from atoll.drivers import registry
from atoll.drivers.layers.pool import Pool
from atoll.engine import freezer, profiles, runs, views, windows
from atoll.engine.leases import isolation_plan, note_plan, workspace_plan
from atoll.engine.session import Session
from atoll.model.errors import StateError
from atoll.model.names import branch_of
from atoll.model.plan import CapsulePlan, WorkspacePlan
from atoll.model.state import Capsule, RunState, Snapshot


def take(
    session: Session, capsule: Capsule, *, message: str = "", automatic: bool = False
) -> Snapshot:
    """Makes a point of the capsule as it is now. The capsule's lock is ours."""
    pool = Pool(require_layers(session, capsule).pool)
    with pool.turn(shared=True), _held_still(session, capsule) as moment:
        plan = workspace_plan(session, capsule)
        if moment is None:
            views.look_after(session, capsule, plan)
        with windows.held_still(session, capsule):
            kept = profiles.keep(session, capsule)
        busy = moment is not None
        sealed = registry.layered_driver(plan.driver).seal(plan, busy=busy)
        held = freezer.Held.NOTHING_RUNS if moment is None else moment.confirm()
        if moment is not None and held is freezer.Held.NOT_VERIFIED:
            session.warn(
                f"it is not verified that nothing wrote in `{capsule.name}` while its files were "
                f"copied: {moment.reason}"
            )
        session.reach("snapshot.sealed", capsule.name)
        made = session.store.add_snapshot(
            capsule, sealed.layers, sealed.plan, message=message, automatic=automatic,
            browser=(kept, profiles.current(session, capsule)), moment=held,
        )  # fmt: skip
        note_plan(capsule, sealed.plan)
    session.reach("snapshot.recorded", capsule.name)
    return made


def roll_back(session: Session, capsule: Capsule, target: Snapshot) -> Snapshot:
    """Returns to a point; what there was becomes one itself, which is returned.

    Raises StateError when something runs.
    """
    pool = Pool(require_layers(session, capsule).pool)
    _require_quiet(session, capsule)
    windows.end_window(capsule)
    with pool.turn(shared=True), views.kept_closed(session, capsule):
        plan = workspace_plan(session, capsule)
        driver = registry.layered_driver(plan.driver)
        views.look_after(session, capsule, plan)
        sealed = driver.seal(plan, busy=False)
        session.reach("rollback.sealed", capsule.name)
        after = driver.on(plan, target.layers)
        driver.prepare(after)
        # Nobody writes to the profile any more: as it is, it belongs to the new point.
        browser = (profiles.current(session, capsule), profiles.put_back(capsule, target.browser))
        session.reach("rollback.prepared", capsule.name)
        what = f"before rollback to {target.message or f'snapshot {target.number}'}"
        made = session.store.add_snapshot(
            capsule, sealed.layers, after, message=what, automatic=True, browser=browser
        )
        note_plan(capsule, after)
        session.reach("rollback.recorded", capsule.name)
    profiles.sweep(session, capsule)
    # The layer in which the old state would have gone on was never used.
    for leftover in {plan.upper, sealed.plan.upper} - {after.upper, *sealed.layers}:
        driver.discard(plan._replace(upper=leftover), home=session.home)
    return made


def fork_plan(
    session: Session, capsule: Capsule, plan: CapsulePlan, layers: tuple[str, ...]
) -> CapsulePlan:
    """The plan of a new capsule that starts from a point of another."""
    origin = require_layers(session, capsule)
    driver = registry.layered_driver(origin.driver)
    workspace = driver.on(origin, layers)._replace(branch=branch_of(plan.name))
    isolation = isolation_plan(session, capsule)._replace(
        holder=plan.directory, seed=str(Pool(workspace.pool).tree(workspace.upper))
    )
    return plan._replace(
        level=capsule.level,
        base_ref=capsule.base_ref,
        base_commit=capsule.base_commit,
        workspace=workspace,
        isolation=isolation,
        setup=(),
    )


def begin_fork(session: Session, made: Capsule, *, former: str) -> None:
    """Gives a leased fork its own branch. Everything else it has from where it came."""
    plan = workspace_plan(session, made)
    driver = registry.layered_driver(plan.driver)
    driver.prepare(plan)
    session.reach("fork.prepared", made.name)
    note_plan(made, plan)
    views.note_use(made)
    driver.rename(plan, former=former)
    session.reach("fork.renamed", made.name)


def require_snapshot(session: Session, capsule: Capsule, text: str | None) -> Snapshot:
    """The point with this number, or the latest that was not made by going back."""
    found = session.store.snapshots(capsule)
    if text is None:
        own = [s for s in found if not s.message.startswith("before rollback")] or found
        if own:
            return own[-1]
        raise StateError(
            f"`{capsule.name}` has no snapshot", hint=f'atoll snapshot {capsule.name} -m "…"'
        )
    for snapshot in found:
        if text.isdigit() and snapshot.number == int(text):
            return snapshot
    raise StateError(
        f"`{capsule.name}` has no snapshot `{text}`", hint=f"atoll snapshots {capsule.name}"
    )


def has_changed(session: Session, capsule: Capsule) -> bool:
    """Whether anything may have changed since the last point."""
    plan = require_layers(session, capsule)
    return not registry.layered_driver(plan.driver).is_untouched(plan)


def require_layers(session: Session, capsule: Capsule) -> WorkspacePlan:
    plan = workspace_plan(session, capsule)
    if not plan.pool:
        raise StateError(
            f"level `{capsule.level}` has no snapshots",
            hint="atoll new NAME --level clone",
        )
    return plan


def _require_quiet(session: Session, capsule: Capsule) -> None:
    living = [
        run
        for run in session.store.runs(capsule)
        if runs.settle(session, run).state is not RunState.ENDED
    ]
    if living:
        raise StateError(
            f"`{capsule.name}` is still running " + ", ".join(f"`{r.label}`" for r in living),
            hint=f"atoll stop {capsule.name}, or say --stop",
        )


@contextmanager
def _held_still(session: Session, capsule: Capsule) -> Iterator[freezer.Moment | None]:
    """Nothing writes meanwhile, because nothing runs; or what runs is held as the moment says."""
    if views.living_runs(capsule):
        with freezer.frozen(session, capsule) as moment:
            yield moment
        return
    with views.kept_closed(session, capsule):
        yield None
