"""Workspaces in plain directories, for hosts on which no overlay can be mounted.

`copy` works anywhere at a cost proportional to the project's size; `reflink` shares the data of
unchanged files; `btrfs` creates and keeps workspaces as snapshots of a subvolume.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from atoll.drivers.contracts import ProbeResult, Sealed
from atoll.drivers.layers import probes, subvolumes
from atoll.drivers.layers.pool import WORKSPACE, Layer, Pool
from atoll.drivers.workspace.layered import LayeredWorkspace
from atoll.host import files, kernel
from atoll.host.tree import overlays
from atoll.host.tree.tree_copy import copy_tree
from atoll.model.enclosure import Bind, Mount
from atoll.model.layers import LayerKind
from atoll.model.plan import WorkspacePlan

_TRUST_LESS = "[core]\n\tcheckStat = minimal\n\ttrustctime = false\n"
"""A copy has other inodes and ctimes than the index of its layer records."""


class CopyWorkspace(LayeredWorkspace):
    name = "copy"

    def probe(self, home: Path) -> ProbeResult:
        found = self._probe_files(home)
        if found.mode is None:
            return found
        # The view needs a mount namespace in any case.
        flags = kernel.CLONE_NEWNS | (kernel.CLONE_NEWUSER if os.geteuid() != 0 else 0)
        error = kernel.can_unshare(flags)
        return found if error is None else ProbeResult(None, f"no private mount namespace: {error}")

    def _probe_files(self, home: Path) -> ProbeResult:
        del home
        return ProbeResult("copy", "files can be copied anywhere")

    def prepare(self, plan: WorkspacePlan) -> None:
        pool = Pool(plan.pool)
        place = pool.layers / plan.upper
        if place.exists():
            return
        # Garbage collection would take the unfinished build for that of a dead process.
        with pool.turn(shared=True), pool.building() as building:
            self._materialise(pool, plan.layers, building)
            self._trust_less(building / "tree")
            os.rename(building, place)

    @staticmethod
    def _trust_less(tree: Path) -> None:
        """In a copy of a capsule's tree: follows no link."""
        path = f"{WORKSPACE}/.git/config"
        content = files.read_beneath(tree, path, limit_bytes=1 << 24)
        if content is not None and _TRUST_LESS.encode() not in content:
            files.write_beneath(tree, path, _TRUST_LESS.encode(), append=True)

    def _materialise(self, pool: Pool, layers: tuple[str, ...], building: Path) -> Sequence[str]:
        """Returns the paths that were changed while they were copied."""
        if len(layers) == 1:
            # A snapshot is complete by itself, and may have files that its owner must not read.
            return copy_tree(pool.tree(layers[0]), building / "tree").differences
        overlays.compose([pool.tree(layer) for layer in layers], building / "tree", whiteouts=False)
        return ()

    def _state(self, plan: WorkspacePlan) -> Mount:
        pool = Pool(plan.pool)
        return Bind(str(pool.tree(plan.upper)), str(pool.state))

    def seal(self, plan: WorkspacePlan, *, busy: bool) -> Sealed:
        del busy
        pool = Pool(plan.pool)
        with pool.building() as place:
            inexact = self._materialise(pool, (plan.upper,), place)
            layer = pool.freeze_moment(place)
        return Sealed(layers=(layer.id,), plan=plan, inexact=tuple(inexact))

    def place(self, plan: WorkspacePlan) -> Path | None:
        return Pool(plan.pool).tree(plan.upper) / WORKSPACE

    def _set_aside(self, plan: WorkspacePlan, aside: Path) -> None:
        """A copy instead of the tree itself, without set-id bits, devices, fifos and sockets."""
        files.make_private_directory(aside)
        source = Pool(plan.pool).tree(plan.upper) / WORKSPACE
        copy_tree(source, aside / "workspace", as_files=True)


class ReflinkWorkspace(CopyWorkspace):
    name = "reflink"

    def _probe_files(self, home: Path) -> ProbeResult:
        return probes.find_reflink(home)


class BtrfsWorkspace(CopyWorkspace):
    name = "btrfs"

    def _probe_files(self, home: Path) -> ProbeResult:
        return probes.find_btrfs(home)

    def _materialise(self, pool: Pool, layers: tuple[str, ...], building: Path) -> Sequence[str]:
        """Snapshots a subvolume that is composed once for each stack of layers."""
        source = layers[0]
        if len(layers) > 1 or not subvolumes.is_volume(pool.tree(source)):
            source = self._compose(pool, layers).id
        os.rmdir(building / "tree")
        subvolumes.snapshot(pool.tree(source), building / "tree")
        return ()

    def _compose(self, pool: Pool, layers: tuple[str, ...]) -> Layer:
        key = hashlib.blake2b(" ".join(layers).encode(), digest_size=8).hexdigest()
        name = LayerKind.COMPOSED.layer(key)
        found = pool.find(name)
        if found is not None:
            return found
        with pool.building() as place:
            os.rmdir(place / "tree")
            subvolumes.create(place / "tree")
            super()._materialise(pool, layers, place)
            # Made of layers that have their own digests.
            layer = Layer(id=name, kind="composed", below=layers, about="merged layers")
            return pool.freeze(place, layer, digests={})
