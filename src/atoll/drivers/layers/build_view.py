"""A view for building a layer: everything written in it becomes part of the layer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers.pool import Pool
from atoll.host import files, locks, view_client
from atoll.host.forkserver import ForkServer
from atoll.host.process import own_environment, wait_until
from atoll.model.enclosure import Enclosure, HoldRequest, Overlay, View
from atoll.model.errors import DriverError

_ENDED_S = 10.0
_IDLE_S = 600.0


class OverlayMode(NamedTuple):
    """How overlays are mounted on this host, according to a probe."""

    user: bool
    """In a new user namespace, without root."""
    options: str

    @property
    def can_rename(self) -> bool:
        """Whether a directory of a lower layer can be renamed instead of failing with EXDEV."""
        return "redirect_dir=on" in self.options


PRIVILEGED = OverlayMode(user=False, options="redirect_dir=on,index=off,metacopy=off,volatile")
ROOTLESS = OverlayMode(user=True, options="userxattr,index=off,volatile")


def overlay(mode: OverlayMode, lowers: Sequence[str], upper: str | None, at: str | Path) -> Overlay:
    """One overlay for the keeper to mount; layers are given by their directory in the pool."""
    trees = tuple(f"{layer}/tree" for layer in lowers)
    if upper is None:
        options = ",".join(o for o in mode.options.split(",") if o == "userxattr")
        return Overlay(trees, str(at), options)
    return Overlay(trees, str(at), mode.options, upper=f"{upper}/tree", work=f"{upper}/work")


@contextmanager
def open_build_view(
    pool: Pool, forkserver: ForkServer, mode: OverlayMode, place: Path, lowers: Sequence[str]
) -> Iterator[Enclosure]:
    """Mounts `lowers` with `place` (from `Pool.building`) as the upper layer."""
    merged = place / "merged"
    for part in ("work", "merged"):
        (place / part).mkdir()
    mount = overlay(mode, lowers, place.name, merged)
    view = View(user=mode.user, pool=str(pool.layers), mounts=(mount,))
    with holding(forkserver, view, place) as inside:
        yield inside._replace(cwd=str(merged))
    for part in ("work", "merged"):
        files.remove_tree(place / part, within=pool.root)


@contextmanager
def holding(forkserver: ForkServer, view: View, place: Path) -> Iterator[Enclosure]:
    """Opens a view for the duration of the context; its holder listens in `place`."""
    lock = locks.Lock(place / "lock")
    lock.acquire()
    request = HoldRequest(view=view, directory=str(place), idle_s=_IDLE_S, is_bound=True)
    try:
        forkserver.hold(request, lock.fd)
    finally:
        lock.release()
    try:
        yield Enclosure(env=own_environment(), cwd=str(place), holder=str(place))
    finally:
        view_client.ask(str(place), {"end": True})
        if not wait_until(lambda: not locks.is_locked(lock.path), timeout_s=_ENDED_S):
            raise DriverError(f"cannot close the view in `{place}`: its holder is still running")
        os.unlink(lock.path)
