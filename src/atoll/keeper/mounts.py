"""A capsule's view: a mount namespace in which the workspace lies at the project's own path.

The engine decides what is mounted (`View`); here it is only carried out, in order, in a process
that has nothing else to do yet. Nothing is ever unmounted: the view goes with its last process.
"""

from __future__ import annotations

import os

from atoll.keeper import calls

_MS_RDONLY = 0x1
_MS_REMOUNT = 0x20
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 0x40000
_LOCKED_FLAGS = 0x2 | 0x4 | 0x8 | 0x400 | 0x800 | 0x200000
"""nosuid, nodev, noexec, noatime, nodiratime, relatime: a user namespace may not drop them."""
_OPTIONS_LIMIT_BYTES = 4095


class ViewError(Exception):
    """The view could not be built; says which step failed."""


def enter_view(view: dict[str, object]) -> None:
    """Unshare and mount all of `view`: `{"user": bool, "pool": DIR, "mounts": [...]}`.

    A mount is `{"bind": SOURCE, "at": TARGET, "read_only": bool}` or
    `{"overlay": [LOWER, ...], "upper": DIR, "work": DIR, "at": TARGET, "options": TEXT}`; the
    layers of an overlay are named relative to the pool, the lowest first.
    """
    uid, gid = os.geteuid(), os.getegid()
    is_user = bool(view["user"])
    try:
        calls.unshare(calls.CLONE_NEWNS | (calls.CLONE_NEWUSER if is_user else 0))
        if is_user:
            _map_to_self(uid, gid)
        calls.mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    except OSError as error:
        raise ViewError(f"no mount namespace: {error.strerror}") from error
    os.chdir(str(view["pool"]))
    mounts = view["mounts"]
    if not isinstance(mounts, list):
        raise ViewError("`mounts` is not a list")
    for mount in mounts:
        try:
            if "overlay" in mount:
                _mount_overlay(mount)
            else:
                _bind(mount["bind"], mount["at"], read_only=mount.get("read_only", False))
        except OSError as error:
            raise ViewError(f"cannot mount `{mount['at']}`: {error.strerror}") from error
    os.chdir("/")


def _map_to_self(uid: int, gid: int) -> None:
    """Keep the user's own id: mapped to 0, git would take every file for changed."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _mount_overlay(mount: dict[str, object]) -> None:
    layers = mount["overlay"]
    if not isinstance(layers, list):
        raise ViewError("`overlay` is not a list of layers")
    parts = ["lowerdir=" + ":".join(reversed(layers))]
    if "upper" in mount:
        parts += [f"upperdir={mount['upper']}", f"workdir={mount['work']}"]
    options = ",".join([*parts, *([str(mount["options"])] if mount.get("options") else [])])
    if len(os.fsencode(options)) > _OPTIONS_LIMIT_BYTES:
        raise ViewError(f"{len(layers)} layers are more than one mount can name")
    calls.mount("atoll", str(mount["at"]), "overlay", 0, options)


def _bind(source: str, target: str, *, read_only: bool) -> None:
    calls.mount(source, target, "", _MS_BIND)
    if read_only:
        kept = os.statvfs(target).f_flag & _LOCKED_FLAGS
        # statvfs reports relatime as 0x1000; mount(2) wants 0x200000.
        kept |= 0x200000 if os.statvfs(target).f_flag & 0x1000 else 0
        calls.mount("none", target, "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept)
