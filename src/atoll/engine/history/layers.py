"""The frozen layers of a project: show and check them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers import base_check, history, probes
from atoll.drivers.layers.base_check import Gaps
from atoll.drivers.layers.carry_selection import tracked_secrets
from atoll.drivers.layers.commit import current_layers
from atoll.drivers.layers.dependency_layers import find_fresh, forget_carried, load_carried
from atoll.drivers.layers.pool import Layer, Pool
from atoll.engine.history import upkeep
from atoll.engine.state.session import Session
from atoll.host import files, locks
from atoll.host.tree.layer_stack import Namespace
from atoll.host.tree.manifests import LeftOut
from atoll.model.errors import StateError
from atoll.model.plan import FileSelection
from atoll.model.state import ProjectRecord

__all__ = [
    "Checked",
    "Gaps",
    "Layer",
    "LayerSummary",
    "check",
    "check_base",
    "describe",
    "find_frozen",
]


def describe(session: Session, project: ProjectRecord, names: Sequence[str]) -> list[Layer]:
    pool = Pool(session.pool(project.id))
    return [layer for name in names if (layer := pool.find(name)) is not None]


class LayerSummary(NamedTuple):
    """The current base, and the files that were left out."""

    layers: list[Layer]
    left_out: list[LeftOut]
    tracked_secrets: list[LeftOut]
    """Files that look like secrets and are included, because git tracks them."""


def find_frozen(session: Session, project: ProjectRecord) -> LayerSummary | None:
    pool = Pool(session.pool(project.id))
    carried = load_carried(pool)
    if carried is None:
        return None
    names = (*current_layers(pool), *carried.layers)
    secrets = tracked_secrets(project.root) if Path(project.root).is_dir() else []
    return LayerSummary(describe(session, project, names), list(carried.left_out), secrets)


class Checked(NamedTuple):
    layer: Layer
    damaged: list[str]
    """Paths that have changed since they were frozen."""
    users: list[str]
    """Capsules that use it."""


def check(session: Session, project: ProjectRecord) -> list[Checked]:
    """Reads every frozen layer and history store. Removes damaged layers that no capsule uses and
    damaged stores that no open view uses: they are built again when needed.
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


def check_base(
    session: Session, project: ProjectRecord, selection: FileSelection, commit: str
) -> Gaps:
    """Compares the base of a new capsule with the commit and the checkout.

    If a file is missing, the dependency layers are frozen again when they are next needed.
    """
    pool = Pool(session.pool(project.id))
    carried = load_carried(pool)
    if carried is None:
        return Gaps([], [])
    driver, _ = probes.find_overlay(session.home)
    namespace: Namespace | None = None
    if driver is not None:
        namespace = "user" if probes.overlay_mode(driver).user else "trusted"
    with pool.turn(shared=True):
        frozen = base_check.FrozenFiles(pool, current_layers(pool), carried, namespace)
        is_fresh = find_fresh(pool, project.root, selection, commit) is not None
        gaps = base_check.find_gaps(frozen, project.root, selection, is_fresh=is_fresh)
        if gaps.missing:
            forget_carried(pool)
    return gaps


def _checked_store(session: Session, project: ProjectRecord, store: history.StoreState) -> Checked:
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
            if not upkeep.layers_of(session, capsule).isdisjoint(store.layers)
            and locks.is_locked(session.view_lock(capsule).path)
        ]
        if not users:
            files.discard(store.path, home=session.home)
    return Checked(layer, store.damaged, users)


def _read(pool: Pool, name: str) -> tuple[Layer | None, list[str]]:
    try:
        layer = pool.find(name)
    except StateError:
        return Layer(id=name, kind="damaged"), ["layer.json"]
    return layer, pool.damage(layer) if layer is not None else []


def _users(session: Session, project: ProjectRecord, layer: str) -> list[str]:
    return [
        capsule.name
        for capsule in session.store.capsules(project.id)
        if layer in upkeep.layers_of(session, capsule)
    ]
