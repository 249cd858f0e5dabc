"""Kernel overlayfs over frozen layers: a workspace in the time of one mount, whatever its size."""

from __future__ import annotations

import os
from pathlib import Path

from atoll.drivers.contracts import Sealed
from atoll.drivers.layers import probes
from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.drivers.layers.workbench import overlay
from atoll.drivers.workspace import git_mv
from atoll.drivers.workspace.layered import LayeredWorkspace, own_layers
from atoll.host import files
from atoll.model.plan import Enclosure, WorkspacePlan


class OverlayWorkspace(LayeredWorkspace):
    name = "overlay"

    def probe(self, home: Path) -> tuple[str | None, str]:
        return probes.find_overlay(home)

    def tools(self, plan: WorkspacePlan) -> str:
        # Without redirects the kernel refuses to rename a directory of a lower layer.
        can_rename = probes.overlay_way(plan.way).can_rename
        return "" if can_rename else str(Pool(plan.pool).inside / "bin")

    def prepare(self, plan: WorkspacePlan) -> None:
        Pool(plan.pool).make_upper(plan.upper)
        if tools := self.tools(plan):
            git_mv.install(Path(tools))

    def _is_user(self, plan: WorkspacePlan) -> bool:
        return probes.overlay_way(plan.way).user

    def _state(self, plan: WorkspacePlan) -> dict[str, object]:
        pool = Pool(plan.pool)
        work = pool.layers / plan.upper / "work"
        if not _is_empty(work):
            # A volatile overlay leaves a mark that keeps it from being mounted again.
            files.remove_tree(work, within=pool.root)
        pool.make_upper(plan.upper)
        return overlay(probes.overlay_way(plan.way), plan.layers, plan.upper, pool.state)

    def seal(self, plan: WorkspacePlan, *, busy: bool) -> Sealed:
        """Pushes the upper layer down; a busy one is copied, since it goes on being written."""
        if not busy:
            layers = (*plan.layers, plan.upper)
            after = self.on(plan, layers)
            self.prepare(after)
            return Sealed(layers=layers, plan=after)
        from atoll.host.tree_copy import copy_tree  # noqa: PLC0415 - copies: not for a start

        pool = Pool(plan.pool)
        with pool.building() as place:
            # With all marks of the kernel's: this layer takes the other's place.
            copied = copy_tree(pool.tree(plan.upper), place / "tree")
            layer = pool.freeze_moment(place)
        return Sealed(layers=(*plan.layers, layer.id), plan=plan, inexact=copied.differences)

    def is_untouched(self, plan: WorkspacePlan) -> bool:
        tree = Pool(plan.pool).tree(plan.upper)
        return tree.is_dir() and not any(tree.iterdir())

    def is_pristine(self, plan: WorkspacePlan) -> bool:
        """By what lies in its own layers: nothing in the workspace but what every new one has."""
        ref = f".git/refs/heads/{plan.branch}"
        expected = {".git/HEAD": f"ref: refs/heads/{plan.branch}\n", ref: f"{plan.base_commit}\n"}
        parents = {str(place) for place in Path(ref).parents}
        pool = Pool(plan.pool)
        try:
            return all(
                _holds_only(pool.tree(layer) / WORKSPACE, expected, parents)
                for layer in own_layers(plan)
            )
        except OSError:
            # What cannot be listed may hold anything.
            return False

    def _set_aside(self, plan: WorkspacePlan, inside: Enclosure, aside: Path) -> None:
        """What the capsule has changed, as files of the owner."""
        from atoll.host import recovered  # noqa: PLC0415 - reads and copies: not for a start

        del inside
        pool = Pool(plan.pool)
        own = own_layers(plan)
        layers = [*plan.layers, plan.upper]
        recovered.set_changes_aside(
            [pool.tree(layer) for layer in layers],
            own=len(layers) - layers.index(own[0]),
            namespace="user" if self._is_user(plan) else "trusted",
            target=aside,
        )


def _is_empty(place: Path) -> bool:
    try:
        return not os.listdir(place)
    except OSError:
        return False


def _holds_only(root: Path, files_in_it: dict[str, str], directories: set[str]) -> bool:
    """Whether a tree holds nothing but these; a directory may also be new, or hide others."""
    waiting = ["."] if root.is_dir() else []
    while waiting:
        directory = waiting.pop()
        for name in os.listdir(root / directory):
            path = name if directory == "." else f"{directory}/{name}"
            if path in directories and (root / path).is_dir() and not (root / path).is_symlink():
                waiting.append(path)
                continue
            said = files.read_beneath(root, path, limit_bytes=1 << 10)
            if said is None or said.decode(errors="replace") != files_in_it.get(path):
                return False
    return True
