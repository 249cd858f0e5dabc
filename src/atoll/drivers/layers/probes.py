"""What this host's filesystem and kernel can do, found out by trying, never by their names.

An answer holds for one place, user, kernel and boot; it is kept in Atoll's home for that long.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
_TRIAL = ".probe-"
_WAYS = {"privileged": PRIVILEGED, "rootless": ROOTLESS}


def overlay_way(name: str) -> OverlayWay:
    return _WAYS[name]


def find_overlay(home: Path) -> tuple[str | None, str]:
    """The name of the way in which overlays can be mounted here, or None; and the reason."""
    return remembered(home, "overlay", _try_overlay)


def find_btrfs(home: Path) -> tuple[str | None, str]:
    return remembered(home, "btrfs", _try_btrfs)


def find_reflink(home: Path) -> tuple[str | None, str]:
    return remembered(home, "reflink", _try_reflink)


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        return stream.read().strip()


def remembered(
    home: Path,
    name: str,
    probe: Callable[[Path], tuple[str | None, str]],
    *,
    is_curable: bool = False,
) -> tuple[str | None, str]:
    """What a probe says, which gets an empty directory; asked once per boot.

    A failure that `is_curable` while the machine runs is not remembered.
    """
    circumstances = [boot_id(), os.geteuid(), os.stat(home).st_dev, os.uname().release]
    known = _load(home, circumstances)
    if name not in known:
        with _turn(home):
            # Somebody else may have found out meanwhile.
            known = _load(home, circumstances)
            if name not in known:
                import tempfile  # noqa: PLC0415 - once per boot

                with tempfile.TemporaryDirectory(prefix=_TRIAL, dir=home) as place:
                    known[name] = probe(Path(place))
                if known[name][0] is not None or not is_curable:
                    files.write_atomic(home / _FILE, json.dumps(known).encode())
    way, reason = known[name]
    return way, reason


@contextmanager
def _turn(home: Path) -> Iterator[None]:
    """One at a time. The lock is on the directory itself and leaves nothing."""
    handle = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def sweep(home: Path, *, dry_run: bool = False) -> list[Path]:
    """Removes what probes that were killed left; returns it."""
    with _turn(home):
        found = [*home.glob(f"{_TRIAL}*"), *home.glob(f".{_FILE}.*")]
        for path in [] if dry_run else found:
            files.remove_tree(path, within=home)
    return found


def _load(home: Path, circumstances: list[object]) -> dict[str, Any]:
    """What is known under these circumstances."""
    content = files.read_regular(home / _FILE, limit_bytes=1 << 16)
    try:
        known = json.loads(content or b"{}")
    except ValueError:
        known = {}
    if not isinstance(known, dict) or known.get("circumstances") != circumstances:
        return {"circumstances": circumstances}
    return known


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
    try:
        with pool.building() as building:
            with open_bench(pool, nursery, way, building, ["lower"]) as inside:
                run(("sh", "-c", "test -s d/f && echo upper > d/f && mkdir e"), within=inside)
            seen = (building / "tree" / "d" / "f").read_text().strip()
    finally:
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
