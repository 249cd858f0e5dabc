"""Kernel overlayfs over frozen layers: one mount creates a workspace of any size."""

from __future__ import annotations

import os
from pathlib import Path

from atoll.drivers.contracts import ProbeResult, Sealed
from atoll.drivers.layers import probes
from atoll.drivers.layers.build_view import overlay
from atoll.drivers.layers.pool import Pool, new_upper
from atoll.drivers.layers.store_overlays import is_unchanged
from atoll.drivers.workspace import git_mv
from atoll.drivers.workspace.layered import LayeredWorkspace
from atoll.host import files
from atoll.host.tree.merged_tree import MergedTree
from atoll.model.enclosure import Mount
from atoll.model.errors import StateError
from atoll.model.layers import is_private
from atoll.model.plan import WorkspacePlan
from atoll.model.untrusted import InsidePath

_FEW = 50
_SMALL_BYTES = 1 << 10


class OverlayWorkspace(LayeredWorkspace):
    name = "overlay"
    stores_changes = True

    def probe(self, home: Path) -> ProbeResult:
        return probes.find_overlay(home)

    def tools(self, plan: WorkspacePlan) -> str:
        # Without redirects the kernel refuses to rename a directory of a lower layer.
        can_rename = probes.overlay_mode(plan.way).can_rename
        return "" if can_rename else str(Pool(plan.pool).inside / "bin")

    def prepare(self, plan: WorkspacePlan) -> None:
        Pool(plan.pool).make_upper(plan.upper)
        if tools := self.tools(plan):
            git_mv.install(Path(tools))

    def _is_user(self, plan: WorkspacePlan) -> bool:
        return probes.overlay_mode(plan.way).user

    def _state(self, plan: WorkspacePlan) -> Mount:
        pool = Pool(plan.pool)
        work = pool.layers / plan.upper / "work"
        if not _is_empty(work):
            # A volatile overlay leaves a mark that prevents it from being mounted again.
            files.remove_tree(work, within=pool.root)
        pool.make_upper(plan.upper)
        return overlay(probes.overlay_mode(plan.way), plan.layers, plan.upper, pool.state)

    def seal(self, plan: WorkspacePlan, *, busy: bool) -> Sealed:
        """Freezes the upper layer; a busy one is copied, since it is still written to."""
        if not busy:
            layers = (*plan.layers, plan.upper)
            after = self.on(plan, layers, new_upper())
            self.prepare(after)
            return Sealed(layers=layers, plan=after)
        from atoll.host.tree.tree_copy import copy_tree  # noqa: PLC0415 - copies: not for a start

        pool = Pool(plan.pool)
        with pool.building() as place:
            # Keeps overlayfs' extended attributes: this layer replaces the other.
            copied = copy_tree(pool.tree(plan.upper), place / "tree")
            layer = pool.freeze_moment(place)
        return Sealed(layers=(*plan.layers, layer.id), plan=plan, inexact=copied.differences)

    def is_untouched(self, plan: WorkspacePlan) -> bool:
        tree = Pool(plan.pool).tree(plan.upper)
        if not tree.is_dir():
            return False
        try:
            return all(is_unchanged(entry) for entry in tree.iterdir())
        except OSError:
            # A directory made inaccessible in the capsule is a change.
            return False

    def is_pristine(self, plan: WorkspacePlan) -> bool:
        """Whether its own layers contain only what every new workspace has.

        False with uncommitted changes of the owner, who may have lost them since.
        """
        if plan.is_dirty:
            return False
        expected = {
            InsidePath(b".git/HEAD"): f"ref: refs/heads/{plan.branch}\n".encode(),
            InsidePath(f".git/refs/heads/{plan.branch}".encode()): f"{plan.base_commit}\n".encode(),
        }
        own = [*plan.own_layers, plan.upper]
        base = [layer for layer in plan.layers if layer not in own]
        shown = [Pool(plan.pool).tree(layer) for layer in (*base, *own)]
        try:
            with MergedTree(shown, own=len(own), namespace=self._namespace(plan)) as tree:
                found = tree.changes(limit_entries=_FEW)
                held = {path: tree.read(path, limit_bytes=_SMALL_BYTES) for path in found.entries}
        except StateError:
            # More than a new one has, or unreadable and possibly changed.
            return False
        odd = {*found.hidden, *found.closed, *found.special} - expected.keys()
        return not odd and all(
            path in expected and content == expected[path] for path, content in held.items()
        )

    def put_back(self, plan: WorkspacePlan, aside: Path) -> None:
        self._put_back(plan, aside, overlay=self._namespace(plan))

    def _hide(self, tree: Path, relative: str) -> None:
        files.remove_beneath(tree, relative, whiteout=True)

    def _shown(self, layers: tuple[str, ...]) -> tuple[str, ...]:
        return layers

    def _set_aside(self, plan: WorkspacePlan, aside: Path) -> None:
        """Saves the capsule's changes as files of the owner."""
        from atoll.host.recovery import restored_files  # noqa: PLC0415 - reads and copies: not for a start

        pool = Pool(plan.pool)
        layers = [*plan.layers, plan.upper]
        # Includes what `--dirty` copied: the owner may not have it any more.
        first = next(number for number, layer in enumerate(layers) if is_private(layer))
        restored_files.save_changed_files(
            [pool.tree(layer) for layer in layers],
            own=len(layers) - first,
            namespace=self._namespace(plan),
            target=aside,
        )


def _is_empty(place: Path) -> bool:
    try:
        return not os.listdir(place)
    except OSError:
        return False
