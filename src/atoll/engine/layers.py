"""The frozen layers of a project, as they can be shown and checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers import completeness, history, probes
from atoll.drivers.layers.carried import find_fresh, forget_carried, load_carried
from atoll.drivers.layers.carry import tracked_secrets
from atoll.drivers.layers.commit import current_layers
from atoll.drivers.layers.completeness import Gaps
from atoll.drivers.layers.pool import Layer, Pool
from atoll.engine import layer_use
from atoll.engine.session import Session
from atoll.host import files, locks
from atoll.host.layer_stack import Namespace
from atoll.host.trees import LeftOut
from atoll.model.errors import StateError
from atoll.model.plan import Ground
from atoll.model.state import Project

__all__ = ["Checked", "Frozen", "Gaps", "Layer", "check", "check_base", "describe", "find_frozen"]


def describe(session: Session, project: Project, names: Sequence[str]) -> list[Layer]:
    pool = Pool(session.pool(project.id))
    return [layer for name in names if (layer := pool.find(name)) is not None]


class Frozen(NamedTuple):
    """What was frozen last, and what stayed out of it."""

    layers: list[Layer]
    left_out: list[LeftOut]
    tracked_secrets: list[LeftOut]
    """Files that look like secrets and are not left out, because git tracks them."""


def find_frozen(session: Session, project: Project) -> Frozen | None:
    pool = Pool(session.pool(project.id))
    carried = load_carried(pool)
    if carried is None:
        return None
    names = (*current_layers(pool), *carried.layers)
    told = tracked_secrets(project.root) if Path(project.root).is_dir() else []
    return Frozen(describe(session, project, names), list(carried.left_out), told)


class Checked(NamedTuple):
    layer: Layer
    damaged: list[str]
    """Paths that are not as they were frozen."""
    users: list[str]
    """Capsules that lie on it."""


def check(session: Session, project: Project) -> list[Checked]:
    """Reads every frozen layer and history store. A damaged layer that no capsule lies on is
    removed, and so is a damaged store that no view shows: both are built again when needed.
    """
    pool = Pool(session.pool(project.id))
    if not pool.layers.is_dir():
        return []
    with pool.turn(shared=False):
        found = []
        for name in pool.all():
            layer, damaged = _read(pool, name)
            users = _users(session, project, name) if damaged else []
            if damaged and not users:
                files.discard(pool.layers / name, home=session.home)
            if layer is not None:
                found.append(Checked(layer, damaged, users))
        found += [_checked_store(session, project, store) for store in history.check_stores(pool)]
    return found


def check_base(session: Session, project: Project, ground: Ground, commit: str) -> Gaps:
    """Compares what a new capsule contains with the commit and the checkout.

    If a file is missing, everything beside the commit is frozen anew when it is next needed.
    """
    pool = Pool(session.pool(project.id))
    carried = load_carried(pool)
    if carried is None:
        return Gaps([], [])
    way, _ = probes.find_overlay(session.home)
    namespace: Namespace | None = None
    if way is not None:
        namespace = "user" if probes.overlay_way(way).user else "trusted"
    with pool.turn(shared=True):
        frozen = completeness.Frozen(pool, current_layers(pool), carried, namespace)
        is_fresh = find_fresh(pool, project.root, ground, commit) is not None
        gaps = completeness.find_gaps(frozen, project.root, ground, is_fresh=is_fresh)
        if gaps.missing:
            forget_carried(pool)
    return gaps


def _checked_store(session: Session, project: Project, store: history.StoreState) -> Checked:
    layer = Layer(
        id=store.path.name,
        kind="history",
        files=store.packs,
        bytes=store.size_bytes,
        about=store.about,
    )
    users: list[str] = []
    if store.damaged:
        users = [
            capsule.name
            for capsule in session.store.capsules(project.id)
            if not layer_use.layers_of(session, capsule).isdisjoint(store.layers)
            and locks.is_locked(session.view_lock(capsule).path)
        ]
        if not users:
            files.discard(store.path, home=session.home)
    return Checked(layer, store.damaged, users)


def _read(pool: Pool, name: str) -> tuple[Layer | None, list[str]]:
    try:
        layer = pool.find(name)
    except StateError:
        # Not even what it is can be read.
        return Layer(id=name, kind="damaged"), ["layer.json"]
    return layer, pool.damage(layer) if layer is not None else []


def _users(session: Session, project: Project, layer: str) -> list[str]:
    return [
        capsule.name
        for capsule in session.store.capsules(project.id)
        if layer in layer_use.layers_of(session, capsule)
    ]
