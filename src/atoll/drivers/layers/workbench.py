"""A view to build a layer in: what is written there becomes the layer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers.pool import Pool
from atoll.host import files, locks, views
from atoll.host.nursery import Nursery
from atoll.host.process import own_environment, wait_until
from atoll.model.errors import DriverError
from atoll.model.plan import Enclosure, View

_ENDED_S = 10.0
_IDLE_S = 600.0


class OverlayWay(NamedTuple):
    """How overlays are mounted on this host, as a probe found out."""

    user: bool
    """In a user namespace of its own: without root."""
    options: str

    @property
    def can_rename(self) -> bool:
        """Whether a directory of a lower layer can be renamed, rather than answering EXDEV."""
        return "redirect_dir=on" in self.options


PRIVILEGED = OverlayWay(user=False, options="redirect_dir=on,index=off,metacopy=off,volatile")
ROOTLESS = OverlayWay(user=True, options="userxattr,index=off,volatile")


def overlay(
    way: OverlayWay, lowers: Sequence[str], upper: str | None, at: str | Path
) -> dict[str, object]:
    """One overlay as the keeper mounts it; layers are named by their place in the pool."""
    mount: dict[str, object] = {"overlay": [f"{layer}/tree" for layer in lowers], "at": str(at)}
    if upper is None:
        options = [o for o in way.options.split(",") if o == "userxattr"]
        return {**mount, "options": ",".join(options)}
    return {
        **mount,
        "upper": f"{upper}/tree",
        "work": f"{upper}/work",
        "options": way.options,
    }


@contextmanager
def open_bench(
    pool: Pool, nursery: Nursery, way: OverlayWay, place: Path, lowers: Sequence[str]
) -> Iterator[Enclosure]:
    """The layers `lowers` with `place` (from `Pool.building`) as the one that is written."""
    merged = place / "merged"
    for part in ("work", "merged"):
        (place / part).mkdir()
    mount = overlay(way, lowers, place.name, merged)
    view = View(user=way.user, pool=str(pool.layers), mounts=(mount,))
    with holding(nursery, view, place) as inside:
        yield inside._replace(cwd=str(merged))
    for part in ("work", "merged"):
        files.remove_tree(place / part, within=pool.root)


@contextmanager
def holding(nursery: Nursery, view: View, place: Path) -> Iterator[Enclosure]:
    """A view that lasts as long as the context does; its holder listens in `place`."""
    lock = locks.Lock(place / "lock")
    lock.acquire()
    held = {**view._asdict(), "directory": str(place), "idle_s": _IDLE_S, "is_bound": True}
    try:
        nursery.hold(held, lock.fd)
    finally:
        lock.release()
    try:
        yield Enclosure(env=own_environment(), cwd=str(place), holder=str(place))
    finally:
        views.ask(str(place), {"end": True})
        if not wait_until(lambda: not locks.is_locked(lock.path), timeout_s=_ENDED_S):
            raise DriverError(f"the view in `{place}` does not end")
        os.unlink(lock.path)
