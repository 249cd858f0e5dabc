"""Snapshots: take one, return to one, start another capsule from one.

Without runs the upper layer itself becomes the snapshot and a new one begins, at constant cost.
Active runs are frozen while the changes are copied. A rollback stores the present state as a
snapshot first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.engine.enclosure import views
from atoll.engine.history.workspace import require_layers
from atoll.engine.run import freezer, runs
from atoll.engine.state.leases import snapshot_layers
from atoll.engine.state.parts import Part
from atoll.engine.state.session import Session
from atoll.model.errors import StateError
from atoll.model.layers import is_changed_inside
from atoll.model.state import CapsuleRecord, Snapshot, SnapshotKind


class TimelineEntry(NamedTuple):
    snapshot: Snapshot
    files: int
    """How many were written since the previous snapshot."""
    removed: int
    bytes: int
    paths: tuple[str, ...]
    """Some of them, relative to the workspace."""


def take(
    session: Session,
    capsule: CapsuleRecord,
    parts: Sequence[Part],
    *,
    message: str = "",
    kind: SnapshotKind = SnapshotKind.MANUAL,
) -> Snapshot:
    """Takes a snapshot of the capsule as it is now. The caller holds the capsule's lock."""
    pool = Pool(require_layers(session, capsule).pool)
    with (
        pool.turn(shared=True),
        _frozen(session, capsule) as moment,
        _quiet(session, capsule, parts),
    ):
        busy = moment is not None
        changes = {part.name: part.snapshot(session, capsule, busy=busy) for part in parts}
        held = freezer.FrozenProcesses.NOTHING_RUNS if moment is None else moment.confirm()
        if moment is not None and held is freezer.FrozenProcesses.NOT_VERIFIED:
            session.warn(
                f"it is not verified that nothing wrote in `{capsule.name}` while its files were "
                f"copied: {moment.reason}"
            )
        session.reach("snapshot.sealed", capsule.name)
        made = session.store.add_snapshot(capsule, changes, message=message, kind=kind, moment=held)
    session.reach("snapshot.recorded", capsule.name)
    return made


def roll_back(
    session: Session, capsule: CapsuleRecord, target: Snapshot, parts: Sequence[Part]
) -> Snapshot:
    """Returns to a snapshot. Stores the present state as a snapshot itself, which is returned.

    Raises StateError while a run exists, and for a snapshot that `require_complete` refuses.
    """
    pool = Pool(require_layers(session, capsule).pool)
    require_complete(pool, capsule, target)
    _require_no_runs(session, capsule)
    for part in parts:
        part.stop(session, capsule)
    with pool.turn(shared=True), views.kept_closed(session, capsule):
        with _quiet(session, capsule, parts):
            changes = {part.name: part.restore(session, capsule, target) for part in parts}
            session.reach("rollback.prepared", capsule.name)
            what = f"before rollback to {target.message or f'snapshot {target.number}'}"
            made = session.store.add_snapshot(
                capsule,
                changes,
                message=what,
                kind=SnapshotKind.ROLLBACK,
                target=target.number,
            )
        session.reach("rollback.recorded", capsule.name)
    for part in parts:
        part.sweep(session, capsule)
    return made


def require_snapshot(session: Session, capsule: CapsuleRecord, text: str | None) -> Snapshot:
    """The snapshot with this number, or the latest that no rollback took."""
    found = session.store.snapshots(capsule)
    if text is None:
        own = [s for s in found if s.kind is not SnapshotKind.ROLLBACK] or found
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


def require_complete(pool: Pool, capsule: CapsuleRecord, snapshot: Snapshot) -> None:
    """Raises StateError unless the snapshot is one of this capsule's, with all of its layers."""
    hint = f"atoll snapshots {capsule.name}"
    if snapshot.capsule_id != capsule.id:
        raise StateError(
            f"snapshot {snapshot.number} (id {snapshot.id}) is not a snapshot of `{capsule.name}`",
            hint=hint,
        )
    missing = [layer for layer in snapshot_layers(snapshot) if not pool.tree(layer).is_dir()]
    if missing:
        raise StateError(
            f"snapshot {snapshot.number} of `{capsule.name}` is incomplete: the layer "
            f"`{missing[0]}` is missing",
            hint=hint,
        )


def timeline(
    session: Session, capsule: CapsuleRecord, *, count: int | None = None
) -> list[TimelineEntry]:
    """The latest `count` snapshots, the oldest first, with what changed up to each."""
    pool = Pool(require_layers(session, capsule).pool)
    found = session.store.snapshots(capsule)
    chosen = found if count is None else found[-count:]
    seen: set[str] = set()
    for snapshot in found[: len(found) - len(chosen)]:
        seen |= set(snapshot_layers(snapshot))
    entries = []
    for snapshot in chosen:
        layers = snapshot_layers(snapshot)
        fresh = [layer for layer in layers if is_changed_inside(layer) and layer not in seen]
        entries.append(_timeline_entry(snapshot, [pool.tree(layer) for layer in fresh]))
        seen |= set(layers)
    return entries


def _timeline_entry(snapshot: Snapshot, trees: list[Path]) -> TimelineEntry:
    from atoll.host.tree import overlays  # noqa: PLC0415 - only for this one verb

    changes = [overlays.changes(tree) for tree in trees if tree.is_dir()]
    paths = [path for change in changes for path in change.paths]
    inner = [path.removeprefix(f"{WORKSPACE}/") for path in paths]
    shown = [path for path in inner if not path.startswith((".git/", "home/", "tmp/"))]
    return TimelineEntry(
        snapshot=snapshot,
        files=sum(change.files for change in changes),
        removed=sum(change.removed for change in changes),
        bytes=sum(change.bytes for change in changes),
        paths=tuple(shown),
    )


def _require_no_runs(session: Session, capsule: CapsuleRecord) -> None:
    if living := runs.living(session, capsule):
        raise StateError(
            f"`{capsule.name}` is still running " + ", ".join(f"`{r.label}`" for r in living),
            hint=f"atoll stop {capsule.name}, or use --stop",
        )


@contextmanager
def _quiet(session: Session, capsule: CapsuleRecord, parts: Sequence[Part]) -> Iterator[None]:
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(part.quiesce(session, capsule))
        yield


@contextmanager
def _frozen(session: Session, capsule: CapsuleRecord) -> Iterator[freezer.FreezeTiming | None]:
    """Prevents writes by runs: they are frozen, or the view is kept closed if there are none."""
    if views.living_runs(capsule):
        with freezer.frozen(session, capsule) as moment:
            yield moment
        return
    with views.kept_closed(session, capsule):
        yield None
