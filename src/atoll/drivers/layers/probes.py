"""Probes what this host's filesystem and kernel support, by trying it out.

A result is valid for one directory, user, kernel and boot, and is cached in Atoll's home.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atoll.drivers.contracts import ProbeResult
from atoll.drivers.layers import subvolumes
from atoll.drivers.layers.build_view import PRIVILEGED, ROOTLESS, OverlayMode, open_build_view
from atoll.drivers.layers.pool import Pool
from atoll.host import files, locks
from atoll.host.forkserver import ForkServer
from atoll.host.process import run
from atoll.model.errors import AtollError

_FILE = "probes.json"
_TRIAL = ".probe-"
_MODES = {"privileged": PRIVILEGED, "rootless": ROOTLESS}


def overlay_mode(name: str) -> OverlayMode:
    return _MODES[name]


def find_overlay(home: Path) -> ProbeResult:
    """Whether overlays can be mounted here, and how: its `mode` is for `overlay_mode`."""
    return ProbeResult(*remembered(home, "overlay", _try_overlay))


def find_btrfs(home: Path) -> ProbeResult:
    return ProbeResult(*remembered(home, "btrfs", _try_btrfs))


def find_reflink(home: Path) -> ProbeResult:
    return ProbeResult(*remembered(home, "reflink", _try_reflink))


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
    """Runs a probe in an empty directory, once per boot, and returns its cached result.

    A failure that `is_curable` without a reboot is not cached.
    """
    circumstances = [boot_id(), os.geteuid(), os.stat(home).st_dev, os.uname().release]
    known = _load(home, circumstances)
    if name not in known:
        with locks.hold_directory(home):
            # Another process may have cached a result in the meantime.
            known = _load(home, circumstances)
            if name not in known:
                import tempfile  # noqa: PLC0415 - once per boot

                with tempfile.TemporaryDirectory(prefix=_TRIAL, dir=home) as place:
                    known[name] = probe(Path(place))
                if known[name][0] is not None or not is_curable:
                    files.write_atomic(home / _FILE, json.dumps(known).encode())
    mode, reason = known[name]
    return mode, reason


def sweep(home: Path, *, dry_run: bool = False) -> list[Path]:
    """Removes and returns the remains of killed probes."""
    with locks.hold_directory(home):
        found = [*home.glob(f"{_TRIAL}*"), *home.glob(f".{_FILE}.*")]
        for path in [] if dry_run else found:
            files.remove_tree(path, within=home)
    return found


def _load(home: Path, circumstances: list[object]) -> dict[str, Any]:
    """The cached results for these circumstances."""
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
    for name, mode in _MODES.items():
        if mode is PRIVILEGED and os.geteuid() != 0:
            continue
        try:
            _mount_one(Pool(place / name), mode)
        except (AtollError, OSError) as error:
            reasons.append(str(error))
            continue
        how = "as root" if mode is PRIVILEGED else "in a user namespace"
        return name, f"an overlay was mounted {how}, written to and unmounted"
    return None, "; ".join(reasons)


def _mount_one(pool: Pool, mode: OverlayMode) -> None:
    """Mounts a small overlay, writes through it, and checks that the lower layer is unchanged."""
    pool.make()
    lower = pool.tree("lower")
    (lower / "d").mkdir(parents=True)
    (lower / "d" / "f").write_text("lower")
    forkserver = ForkServer(str(pool.root))
    try:
        with pool.building() as building:
            with open_build_view(pool, forkserver, mode, building, ["lower"]) as inside:
                run(("sh", "-c", "test -s d/f && echo upper > d/f && mkdir e"), within=inside)
            seen = (building / "tree" / "d" / "f").read_text().strip()
    finally:
        forkserver.close()
    if (lower / "d" / "f").read_text() != "lower" or seen != "upper":
        raise OSError("an overlay was mounted, but writes to it change its lower layer")


def _try_btrfs(place: Path) -> tuple[str | None, str]:
    try:
        subvolumes.create(place / "one")
        subvolumes.snapshot(place / "one", place / "two")
    except OSError as error:
        return None, f"cannot create a subvolume: {error.strerror}"
    finally:
        for name in ("one", "two"):
            subvolumes.remove(place / name, within=place)
    return "btrfs", "a subvolume was created, snapshotted and removed"


def _try_reflink(place: Path) -> tuple[str | None, str]:
    source = place / "source"
    source.write_bytes(b"x" * 4096)
    try:
        subvolumes.clone_file(source, place / "target")
    except OSError as error:
        return None, f"cannot clone a file: {error.strerror}"
    return "reflink", "a file was cloned"
