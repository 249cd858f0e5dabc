"""Bases: the layers that new capsules start from, frozen when they are first needed.

A base consists of the layers of the commit, of the repository's refs, of the dependencies and, on
request, of uncommitted changes. It is not stored as such.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from atoll.drivers import registry
from atoll.drivers.layers import probes
from atoll.drivers.layers.commit import (
    CommitLayer,
    CommitLayerBuilder,
    find_committed,
    freeze_commit,
)
from atoll.drivers.layers.dependency_layers import (
    DependencyLayers,
    WatchedChanges,
    find_fresh,
    load_carried,
)
from atoll.drivers.layers.pool import FreezeProgress, Layer, Pool, new_upper
from atoll.drivers.layers.repository import Source, find_git_layer, freeze_git_layer
from atoll.engine.history import checkout_watch
from atoll.engine.state.session import Session
from atoll.host import git
from atoll.model import state
from atoll.model.errors import StateError
from atoll.model.plan import CapsulePlan, FileSelection, Refs, WorkspacePlan

__all__ = ["Base", "FreezeProgress", "ensure_base", "with_base"]


class Base(NamedTuple):
    commit: CommitLayer
    git: Layer
    carried: DependencyLayers
    dirty: Layer | None = None

    @property
    def layers(self) -> tuple[str, ...]:
        top = () if self.dirty is None else (self.dirty.id,)
        return (*self.commit.stack, self.git.id, *self.carried.layers, *top)


@contextmanager
def with_base(
    session: Session,
    project: state.ProjectRecord,
    plans: Sequence[CapsulePlan],
    *,
    on_progress: FreezeProgress | None = None,
    point: state.RecoveryPoint | None = None,
) -> Iterator[list[CapsulePlan]]:
    """The plans with their layers, which upkeep does not collect meanwhile.

    Capsules that start from a recovery point can also read its commit and the commit that its files
    are based on, but nothing else that the text of the point refers to.
    """
    first = plans[0]
    if not first.workspace.is_layered:
        yield list(plans)
        return
    pool = Pool(first.workspace.pool)
    driver = registry.layered_driver(first.workspace.driver)
    extra = first.visible if point is None else (*first.visible, point.commit)
    if point is not None and point.lacks and point.files_base is not None:
        extra = (*extra, point.files_base)
    with pool.turn(shared=True):
        base = ensure_base(
            session, project, first.workspace.base_commit, first.selection,
            refs=first.refs, on_progress=on_progress, extra=extra,
            is_passing=bool(first.temporary),
        )  # fmt: skip
        checkout_watch.note_use(session, project)
        yield [_on(driver.on(plan.workspace, base.layers, new_upper()), plan) for plan in plans]


def _on(workspace: WorkspacePlan, plan: CapsulePlan) -> CapsulePlan:
    seed = str(Pool(workspace.pool).tree(workspace.upper))
    return plan._replace(workspace=workspace, isolation=plan.isolation._replace(seed=seed))


def ensure_base(  # noqa: PLR0913 - a base and how it is made
    session: Session,
    project: state.ProjectRecord,
    commit: str,
    selection: FileSelection,
    *,
    refs: Refs | None = None,
    on_progress: FreezeProgress | None = None,
    thorough: bool = False,
    extra: tuple[str, ...] = (),
    is_passing: bool = False,
) -> Base:
    """The base of a commit, frozen or refreshed as necessary. The caller holds the pool's lock.

    A commit that is passing, such as one that is only checked, is not what later ones build on.
    """
    pool = Pool(session.pool(project.id))
    pool.make()
    source = Source(
        checkout=project.root,
        repository=project.git_dir,
        git_dir=_own_git_dir(project),
        refs=refs or session.ref_cache.refs(project),
        commit=commit,
        extra=extra,
        is_passing=is_passing,
    )
    git_layer = find_git_layer(pool, source)[1] or freeze_git_layer(pool, source)
    builder = _builder(session, pool, on_progress)
    commit_layers = find_committed(pool, source) or freeze_commit(builder, source, git_layer)
    carried = _ensure_carried(session, source, selection, builder, project, thorough=thorough)
    base = Base(commit=commit_layers, git=git_layer, carried=carried)
    if selection.dirty:
        base = base._replace(dirty=_freeze_dirty(session, pool, source, selection, base))
    return base


def _ensure_carried(
    session: Session,
    source: Source,
    selection: FileSelection,
    builder: CommitLayerBuilder,
    project: state.ProjectRecord,
    *,
    thorough: bool,
) -> DependencyLayers:
    """The dependency layers, updated in the cheapest way that is safe."""
    pool = builder.pool
    # Before anything is read: later changes are reported the next time.
    known = load_carried(pool)
    watched = checkout_watch.ask_changes(session, project, known)
    # Changes during another watch, or without one, were not reported.
    is_lost = known is not None and known.watch != watched.watch
    thorough = thorough or is_lost
    fresh = None if thorough else _find_current(builder, source, selection, watched)
    if fresh is not None:
        return fresh
    from atoll.drivers.layers import layer_builder  # noqa: PLC0415 - slow to import

    order = layer_builder.BuildOrder(
        commit=source.commit,
        deltas=builder.mode is not None,
        thorough=thorough or watched.is_continued,
        on_progress=builder.on_progress,
        watched=watched,
    )
    return layer_builder.freeze_carried(pool, source.checkout, selection, order)


def _find_current(
    builder: CommitLayerBuilder, source: Source, selection: FileSelection, watched: WatchedChanges
) -> DependencyLayers | None:
    """The dependency layers, if they are up to date without walking the checkout."""
    pool = builder.pool
    known = load_carried(pool)
    is_listed = known is not None and watched.is_continued and watched.paths is not None
    if not is_listed or watched.paths == ():
        # Also without changes: stamps may show what the watch does not report.
        fresh = find_fresh(pool, source.checkout, selection, source.commit)
        if fresh is not None or not is_listed:
            return fresh
    if builder.mode is None or known is None:
        return None
    from atoll.drivers.layers import refresh  # noqa: PLC0415 - slow to import

    return refresh.refresh_carried(pool, source, selection, known, watched)


def _freeze_dirty(
    session: Session, pool: Pool, source: Source, selection: FileSelection, base: Base
) -> Layer | None:
    from atoll.drivers.layers import layer_builder  # noqa: PLC0415 - as above

    dirty = layer_builder.freeze_dirty(
        pool, source, selection, git_layer=base.git, commit_layer=base.commit.layer
    )
    if os.path.lexists(os.path.join(source.git_dir, "MERGE_HEAD")):
        session.warn(
            f"a merge is in progress in `{source.checkout}`: the capsule gets its files and "
            "conflicts, but a commit made there does not record the merge\n"
            "hint: git merge --continue, then atoll new NAME"
        )
    return dirty


def _builder(
    session: Session, pool: Pool, on_progress: FreezeProgress | None
) -> CommitLayerBuilder:
    name, _ = probes.find_overlay(session.home)
    mode = None if name is None else probes.overlay_mode(name)
    return CommitLayerBuilder(
        pool=pool, forkserver=session.forkserver, mode=mode, on_progress=on_progress
    )


def _own_git_dir(project: state.ProjectRecord) -> str:
    """The git directory of the checkout, which in a linked worktree is not the repository."""
    pointer = Path(project.root, ".git")
    if pointer.is_dir() and not pointer.is_symlink():
        return str(pointer)
    answer = git.git("rev-parse", "--absolute-git-dir", cwd=project.root)
    place = answer.text.removesuffix("\n")
    if not os.path.isdir(place):
        raise StateError(f"`{project.root}` has no git directory")
    return place
