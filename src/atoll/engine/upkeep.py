"""What nobody waits for: reclaiming what was thrown away, syncing points, flattening deep stacks.

Runs in a process of its own after a command that left such work, one at a time per home; and in
the foreground for `atoll gc`. Killed at any moment it loses nothing: the next one goes on.
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
from atoll.drivers.layers.carried import load_carried
from atoll.drivers.layers.commit import current_layers
from atoll.drivers.layers.pool import Layer, Pool
from atoll.engine.layer_use import HELD_LAYERS, held_layers, layers_of, plan_of
from atoll.engine.leases import find_note, note_plan
from atoll.engine.session import Session, find_session
from atoll.engine.views import own_layers
from atoll.host import files, kernel, overlays
from atoll.model.errors import AtollError, StateError
from atoll.model.plan import WorkspacePlan
from atoll.model.state import Capsule, Project

DEEP = 48
"""A workspace on more layers of its own than this is flattened."""
KEEP_BASES_S = 7 * 86_400.0
"""How long the base of a project stays after its last capsule has gone."""


class Reclaimed(NamedTuple):
    trees: int = 0
    layers: tuple[str, ...] = ()


def main() -> None:
    """`HOME LOCK_FD`: works as long as there is something to do, with a lock that was given."""
    session = find_session(Path(sys.argv[1]))
    if session is None:
        return
    lock = session.upkeep_lock()
    lock.fd = int(sys.argv[2])
    while lock.fd >= 0:
        with lock:
            _work(session)
        # Whoever came while we were busy has left it to us.
        if not _is_wanted(session) or not lock.acquire():
            return


def _is_wanted(session: Session) -> bool:
    return any(_trash(session)) or any(not s.synced for s in session.store.snapshots())


def _trash(session: Session) -> Iterator[Path]:
    place = session.home / "trash"
    return place.iterdir() if place.is_dir() else iter(())


def work(session: Session, *, keep_bases_s: float = KEEP_BASES_S) -> Reclaimed:
    """All of it, once, after whoever is at it."""
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
    return Reclaimed(trees=reclaimed + reclaim(session), layers=tuple(layers))


def reclaim(session: Session) -> int:
    """Removes what was thrown away; returns how many trees."""
    count = 0
    for path in _trash(session):
        files.remove_tree(path, within=session.home)
        count += 1
    with contextlib.suppress(OSError):
        # Not empty when somebody has just thrown something away: that is for the next round.
        (session.home / "trash").rmdir()
    return count


def _sync(session: Session) -> None:
    unsynced = [s for s in session.store.snapshots() if not s.synced]
    if unsynced:
        kernel.sync_filesystem(session.home)
        session.store.set_synced(unsynced)


def used_layers(
    session: Session, project: Project, *, keep_bases_s: float = KEEP_BASES_S
) -> set[str]:
    """What some capsule or snapshot needs, and what the next capsule starts from. A project that
    has no capsules and had none for `keep_bases_s` is not expected to get another one soon.
    """
    pool = Pool(session.pool(project.id))
    used: set[str] = set()
    for capsule in session.store.capsules(project.id):
        used |= layers_of(session, capsule)
    for directory in (session.home / "projects" / project.id).glob("*"):
        # Of a capsule that the store has lost: its work is still to be saved.
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
    project: Project,
    *,
    dry_run: bool = False,
    keep_bases_s: float = KEEP_BASES_S,
) -> list[str]:
    """Throws away the layers that nothing needs, and what killed builders left; returns their
    names. Nobody builds meanwhile: whoever freezes or makes a capsule has the pool's turn.
    """
    pool = Pool(session.pool(project.id))
    if not pool.layers.is_dir():
        return []
    with pool.turn(shared=False):
        used = used_layers(session, project, keep_bases_s=keep_bases_s)
        remains = pool.remains()
        found = {name: _find(pool, name) for name in pool.all()}
        composed = {
            n for n, layer in found.items() if layer is not None and layer.kind == "composed"
        }
        used |= {n for n in composed if set(found[n].below) <= used}  # type: ignore[union-attr]
        doomed = sorted(found.keys() - used)
        told = [*doomed, *sorted(path.name for path in remains if path.parent == pool.layers)]
        if dry_run:
            return told
        for path in remains:
            files.discard(path, home=session.home)
        for name in doomed:
            files.discard(pool.layers / name, home=session.home)
        for path in history.unused(pool, used):
            files.discard(path, home=session.home)
        if Path(project.git_dir).is_dir():
            repository.unpin_unused(pool, project.git_dir)
    return told


def _find(pool: Pool, name: str) -> Layer | None:
    with contextlib.suppress(StateError):
        return pool.find(name)
    # Torn by a power cut: no reason to keep all others, and needed if some point needs it.
    return None


def flatten(session: Session, capsule: Capsule) -> bool:
    """Makes few layers of the many that a capsule with many snapshots lies on."""
    plan = plan_of(session, capsule)
    if plan is None or len(own_layers(plan)) <= DEEP:
        return False
    pool, own = Pool(plan.pool), own_layers(plan)
    with pool.turn(shared=True):
        # The layers are nobody's to write, so that nobody has to wait while they are merged.
        flat = [
            name
            for group in _groups(pool, own)
            for name in _merge(pool, group, _below(pool, plan, group[0]))
        ]
        return len(flat) < len(own) and _replace(session, capsule, own, flat)


def _replace(session: Session, capsule: Capsule, own: list[str], flat: list[str]) -> bool:
    """Puts a capsule on other layers that show the same, unless a command works on it.

    A view that is held stays on the layers it was opened with, which are kept for as long.
    """
    capsule_lock = session.lock_of(capsule)
    if not capsule_lock.acquire():
        return False
    with capsule_lock:
        plan = plan_of(session, capsule)
        if plan is None or own_layers(plan)[: len(own)] != own:
            return False
        at = plan.layers.index(own[0])
        layers = (*plan.layers[:at], *flat, *plan.layers[at + len(own) :])
        after = plan._replace(layers=layers)
        held = sorted({*own, *held_layers(session, capsule)})
        files.write_atomic(Path(capsule.directory, HELD_LAYERS), "\n".join(held).encode())
        session.store.set_plan(capsule, after)
        note_plan(capsule, after)
    return True


def _groups(pool: Pool, layers: list[str]) -> list[list[str]]:
    """Neighbours that can be merged; one that says where the kernel moved a directory cannot."""
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
    if len(layers) == 1:
        return layers
    trees = [pool.tree(name) for name in layers]
    with pool.building() as place:
        overlays.compose(trees, place / "tree", whiteouts=True, below=below)
        layer = pool.freeze_moment(place, about=f"{len(layers)} points as one")
    kernel.sync_filesystem(pool.layers)
    return [layer.id]
