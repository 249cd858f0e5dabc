"""What this host's filesystem and kernel can do, found out by trying, never by their names.

An answer holds for one place, user, kernel and boot; it is kept in Atoll's home for that long.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atoll.drivers.layers import volumes
from atoll.drivers.layers.pool import Pool
from atoll.drivers.layers.workbench import PRIVILEGED, ROOTLESS, OverlayWay, open_bench
from atoll.host import files
from atoll.host.nursery import Nursery
from atoll.host.process import run
from atoll.model.errors import AtollError

_FILE = "probes.json"
_WAYS = {"privileged": PRIVILEGED, "rootless": ROOTLESS}


def overlay_way(name: str) -> OverlayWay:
    return _WAYS[name]


def find_overlay(home: Path) -> tuple[str | None, str]:
    """The name of the way in which overlays can be mounted here, or None; and the reason."""
    return _remembered(home, "overlay", _try_overlay)


def find_btrfs(home: Path) -> tuple[str | None, str]:
    return _remembered(home, "btrfs", _try_btrfs)


def find_reflink(home: Path) -> tuple[str | None, str]:
    return _remembered(home, "reflink", _try_reflink)


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        return stream.read().strip()


def _remembered(
    home: Path, name: str, probe: Callable[[Path], tuple[str | None, str]]
) -> tuple[str | None, str]:
    circumstances = [boot_id(), os.geteuid(), os.stat(home).st_dev, os.uname().release]
    known = _load(home)
    if known.get("circumstances") != circumstances:
        known = {"circumstances": circumstances}
    if name not in known:
        with tempfile.TemporaryDirectory(prefix=".probe-", dir=home) as place:
            known[name] = probe(Path(place))
        files.write_atomic(home / _FILE, json.dumps(known).encode())
    way, reason = known[name]
    return way, reason


def _load(home: Path) -> dict[str, Any]:
    content = files.read_regular(home / _FILE, limit_bytes=1 << 16)
    try:
        known = json.loads(content or b"{}")
    except ValueError:
        return {}
    return known if isinstance(known, dict) else {}


def _try_overlay(place: Path) -> tuple[str | None, str]:
    reasons = []
    for name, way in _WAYS.items():
        if way is PRIVILEGED and os.geteuid() != 0:
            continue
        try:
            _mount_one(Pool(place / name), way)
        except (AtollError, OSError) as error:
            reasons.append(str(error))
            continue
        how = "as root" if way is PRIVILEGED else "in a user namespace"
        return name, f"an overlay was mounted {how}, written to and unmounted"
    return None, "; ".join(reasons)


def _mount_one(pool: Pool, way: OverlayWay) -> None:
    """Mounts a small overlay, writes through it, and sees that the lower layer stays as it was."""
    pool.make()
    lower = pool.tree("lower")
    (lower / "d").mkdir(parents=True)
    (lower / "d" / "f").write_text("lower")
    nursery = Nursery(str(pool.root))
    with pool.building() as building:
        with open_bench(pool, nursery, way, building, ["lower"]) as inside:
            run(("sh", "-c", "test -s d/f && echo upper > d/f && mkdir e"), within=inside)
        seen = (building / "tree" / "d" / "f").read_text().strip()
    nursery.close()
    if (lower / "d" / "f").read_text() != "lower" or seen != "upper":
        raise OSError("an overlay was mounted, but does not keep its layers apart")


def _try_btrfs(place: Path) -> tuple[str | None, str]:
    try:
        volumes.create(place / "one")
        volumes.snapshot(place / "one", place / "two")
    except OSError as error:
        return None, f"no subvolume can be made: {error.strerror}"
    finally:
        for name in ("one", "two"):
            volumes.remove(place / name, within=place)
    return "btrfs", "a subvolume was made, snapshot and removed"


def _try_reflink(place: Path) -> tuple[str | None, str]:
    source = place / "source"
    source.write_bytes(b"x" * 4096)
    try:
        volumes.clone_file(source, place / "target")
    except OSError as error:
        return None, f"no file can be cloned: {error.strerror}"
    return "reflink", "a file was cloned"
