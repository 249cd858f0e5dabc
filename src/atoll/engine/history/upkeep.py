"""Background upkeep of an Atoll home: empty the trash, remove unused layers, flatten deep stacks,
sync snapshots to disk.

It runs in its own process after a command that left such work, one process per home, and in the
foreground for `atoll gc`. It can be killed at any time; the next process continues.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers import history, repository
from atoll.drivers.layers.pool import Layer, Pool
from atoll.engine.state import events
from atoll.engine.state.leases import (
    find_note,
    set_workspace_plan,
    snapshot_layers,
    workspace_plan,
)
from atoll.engine.state.session import Session, find_session
from atoll.host import files
from atoll.host.programs import own_environment, python_command
from atoll.model.errors import AtollError, StateError
from atoll.model.plan import WorkspacePlan
from atoll.model.state import CapsuleRecord, ProjectRecord

# Most commands import this module only to start the process: what does the work is imported where
# it is used.

DEEP = 48
"""A workspace on more layers of its own than this is flattened."""
TOO_DEEP = 96
"""A workspace on more layers of its own than this is flattened before its next snapshot: a mount
can have only so many lower directories."""
KEEP_BASES_S = 7 * 86_400.0
"""How long the base of a project is kept after its last capsule was removed."""
_HELD_LAYERS = "held-layers"
"""A file in a capsule's directory: layers that its open view may still be mounted on."""


class Reclaimed(NamedTuple):
    trees: int = 0
    layers: tuple[str, ...] = ()


def start(session: Session) -> None:
    """Starts the process, unless there is one or nothing to do. A session without background work
    waits instead.
    """
    if not session.background:
        work(session)
        return
    if not _is_wanted(session):
        return
    argv = python_command("atoll.engine.history.upkeep", str(session.home))
    session.forkserver.start_once(session.upkeep_lock(), argv, own_environment())


def main() -> None:
    """`HOME LOCK_FD`: works until nothing is left to do, with an inherited lock."""
    session = find_session(Path(sys.argv[1]))
    if session is None:
        return
    lock = session.upkeep_lock()
    lock.fd = int(sys.argv[2])
    while lock.fd >= 0:
        with lock:
            _work(session)
        # A command that found the lock taken started no process.
        if not _is_wanted(session) or not lock.acquire():
            return


def _is_wanted(session: Session) -> bool:
    return any(_trash(session)) or any(not s.synced for s in session.store.snapshots())


def _trash(session: Session) -> Iterator[Path]:
    place = session.home / "trash"
    return place.iterdir() if place.is_dir() else iter(())


def work(session: Session, *, keep_bases_s: float = KEEP_BASES_S) -> Reclaimed:
    """Does everything once; waits for a process that is at work."""
    lock = session.upkeep_lock()
    lock.acquire(wait=True)
    with lock:
        return _work(session, keep_bases_s=keep_bases_s)


def _work(session: Session, *, keep_bases_s: float = KEEP_BASES_S) -> Reclaimed:
    reclaimed = reclaim(session)
    for capsule in session.store.capsules():
        with contextlib.suppress(AtollError):
            flatten(session, capsule)
    layers = [
        layer
        for project in session.store.projects()
        for layer in collect(session, project, keep_bases_s=keep_bases_s)
    ]
    _sync(session)
    session.store.prune_events(keep=events.KEPT)
    return Reclaimed(trees=reclaimed + reclaim(session), layers=tuple(layers))


def reclaim(session: Session) -> int:
    """Empties the trash; returns the number of trees."""
    count = 0
    for path in _trash(session):
        files.remove_tree(path, within=session.home)
        count += 1
    with contextlib.suppress(OSError):
        # Not empty if a command has just discarded something: that is left for the next round.
        (session.home / "trash").rmdir()
    return count


def _sync(session: Session) -> None:
    from atoll.host import kernel  # noqa: PLC0415 - see above

    unsynced = [s for s in session.store.snapshots() if not s.synced]
    if unsynced:
        kernel.sync_filesystem(session.home)
        session.store.set_synced(unsynced)


# Layers in use


def find_layered_plan(session: Session, capsule: CapsuleRecord) -> WorkspacePlan | None:
    """The workspace plan of a capsule, if its workspace has layers."""
    try:
        plan = workspace_plan(session, capsule)
    except StateError:
        return None
    return plan if plan.is_layered else None


def layers_of(session: Session, capsule: CapsuleRecord) -> set[str]:
    """The layers of a capsule's workspace, of its snapshots and of its open view."""
    plan = find_layered_plan(session, capsule)
    if plan is None:
        return set()
    points = {layer for s in session.store.snapshots(capsule) for layer in snapshot_layers(s)}
    held = _held_layers(session, capsule)
    return {*plan.layers, plan.upper, history.layer_of(plan), *points, *held}


def _held_layers(session: Session, capsule: CapsuleRecord) -> set[str]:
    """The layers of a view that was opened before its workspace was flattened and is still open."""
    path = Path(capsule.directory, _HELD_LAYERS)
    if not path.exists():
        return set()
    lock = session.view_lock(capsule)
    if lock.acquire():
        # The view is closed; the next one has the layers of the plan.
        path.unlink(missing_ok=True)
        lock.release()
        return set()
    content = files.read_regular(path, limit_bytes=1 << 20)
    return set((content or b"").decode(errors="replace").split())


def used_layers(
    session: Session, project: ProjectRecord, *, keep_bases_s: float = KEEP_BASES_S
) -> set[str]:
    """The layers of all capsules and snapshots of a project, and those of its base, unless the
    project has had no capsule for `keep_bases_s`.
    """
    from atoll.drivers.layers.commit import current_layers  # noqa: PLC0415 - see above
    from atoll.drivers.layers.dependency_layers import load_carried  # noqa: PLC0415 - see above

    pool = Pool(session.pool(project.id))
    used: set[str] = set()
    for capsule in session.store.capsules(project.id):
        used |= layers_of(session, capsule)
    for directory in (session.home / "projects" / project.id).glob("*"):
        # A capsule that the database has lost: its work is still to be stored.
        noted = find_note(directory)
        if noted is not None:
            used |= {*noted.layers, noted.upper, history.layer_of(noted)}
    idle_s = time.time() - os.stat(pool.layers).st_mtime
    if keep_bases_s <= 0 or (not used and idle_s > keep_bases_s):
        return used
    carried = load_carried(pool)
    used |= set(carried.layers) if carried is not None else set()
    return used | set(current_layers(pool))


def collect(
    session: Session,
    project: ProjectRecord,
    *,
    dry_run: bool = False,
    keep_bases_s: float = KEEP_BASES_S,
) -> list[str]:
    """Discards unused layers and the leftovers of killed builders; returns their names.

    Commands that freeze layers or make capsules hold the pool's lock, so none is under way.
    """
    pool = Pool(session.pool(project.id))
    if not pool.layers.is_dir():
        return []
    with pool.turn(shared=False):
        used = used_layers(session, project, keep_bases_s=keep_bases_s)
        remains = pool.remains()
        found = {name: _find(pool, name) for name in pool.all()}
        used |= {
            name
            for name, layer in found.items()
            if layer is not None and layer.kind == "composed" and set(layer.below) <= used
        }
        unused = sorted(found.keys() - used)
        names = [*unused, *sorted(path.name for path in remains if path.parent == pool.layers)]
        if dry_run:
            return names
        for path in remains:
            files.discard(path, home=session.home)
        for name in unused:
            files.discard(pool.layers / name, home=session.home)
        for path in history.unused(pool, used):
            files.discard(path, home=session.home)
        if Path(project.git_dir).is_dir():
            repository.unpin_unused(pool, project.git_dir)
    return names


def _find(pool: Pool, name: str) -> Layer | None:
    # None for one that a power failure damaged: kept only if something uses it.
    with contextlib.suppress(StateError):
        return pool.find(name)
    return None


# Flattening


def flatten_too_deep(session: Session, capsule: CapsuleRecord) -> None:
    """Flattens a workspace now that the background process has not kept up with."""
    if len(workspace_plan(session, capsule).own_layers) > TOO_DEEP:
        flatten(session, capsule)


def flatten(session: Session, capsule: CapsuleRecord) -> bool:
    """Merges the layers of a capsule with many snapshots into few."""
    plan = find_layered_plan(session, capsule)
    if plan is None or len(plan.own_layers) <= DEEP:
        return False
    pool, own = Pool(plan.pool), plan.own_layers
    with pool.turn(shared=True):
        # Frozen layers never change, so no command has to wait while they are merged.
        flat = [
            name
            for group in _groups(pool, own)
            for name in _merge(pool, group, _below(pool, plan, group[0]))
        ]
        return len(flat) < len(own) and _replace(session, capsule, own, flat)


def _replace(session: Session, capsule: CapsuleRecord, own: list[str], flat: list[str]) -> bool:
    """Changes a workspace to merged layers, unless a command works on the capsule.

    An open view stays on its layers, which are kept until it is closed.
    """
    capsule_lock = session.lock_of(capsule)
    if not capsule_lock.acquire():
        return False
    with capsule_lock:
        plan = find_layered_plan(session, capsule)
        if plan is None or plan.own_layers[: len(own)] != own:
            return False
        at = plan.layers.index(own[0])
        layers = (*plan.layers[:at], *flat, *plan.layers[at + len(own) :])
        held = sorted({*own, *_held_layers(session, capsule)})
        files.write_atomic(Path(capsule.directory, _HELD_LAYERS), "\n".join(held).encode())
        set_workspace_plan(session, capsule, plan._replace(layers=layers))
    return True


def _groups(pool: Pool, layers: list[str]) -> list[list[str]]:
    """Neighbours that can be merged; a layer in which the kernel redirected a directory cannot."""
    from atoll.host.tree import overlays  # noqa: PLC0415 - see above

    groups: list[list[str]] = [[]]
    for name in layers:
        if overlays.can_merge(pool.tree(name)):
            groups[-1].append(name)
        else:
            groups += [[name], []]
    return [group for group in groups if group]


def _below(pool: Pool, plan: WorkspacePlan, layer: str) -> list[Path]:
    return [pool.tree(name) for name in plan.layers[: plan.layers.index(layer)]]


def _merge(pool: Pool, layers: list[str], below: list[Path]) -> list[str]:
    from atoll.host import kernel  # noqa: PLC0415 - see above
    from atoll.host.tree import overlays  # noqa: PLC0415 - see above

    if len(layers) == 1:
        return layers
    trees = [pool.tree(name) for name in layers]
    with pool.building() as place:
        overlays.compose(trees, place / "tree", whiteouts=True, below=below)
        layer = pool.freeze_moment(place, about=f"{len(layers)} snapshots as one")
    kernel.sync_filesystem(pool.layers)
    return [layer.id]
