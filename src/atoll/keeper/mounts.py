"""A capsule's view: a mount namespace in which the workspace lies at the project's own path.

The engine decides what is mounted (`View`); here it is only carried out, in order, in a process
that has nothing else to do yet. Nothing is ever unmounted: the view goes with its last process.
"""

from __future__ import annotations

import errno
import os

from atoll.keeper import calls, networks, rooms, shares, stores

_MS_RDONLY = 0x1
_MS_REMOUNT = 0x20
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SLAVE = 0x80000
_LOCKED_FLAGS = 0x2 | 0x4 | 0x8 | 0x400 | 0x800 | 0x200000
"""nosuid, nodev, noexec, noatime, nodiratime, relatime: a user namespace may not drop them."""
_OPTIONS_LIMIT_BYTES = 4095
_NOBODYS = 2_147_000_000


class ViewError(Exception):
    """The view could not be built; says which step failed."""


def enter_view(view: dict[str, object]) -> None:
    """Unshare and mount all of `view`: `{"user": bool, "pool": DIR, "mounts": [...]}`.

    It shares its maker's network if that is `"host"`, and has one of its own otherwise
    (`networks.py`). With `"uid"` what is ours in the pool is shown as that user's. A `"room"`,
    `{"root": DIR, "entries": [...]}`, is furnished last (`rooms.py`).

    A mount is `{"bind": SOURCE, "at": TARGET, "read_only": bool}` or
    `{"overlay": [LOWER, ...], "upper": DIR, "work": DIR, "at": TARGET, "options": TEXT}`; the
    layers of an overlay are named relative to the pool, the lowest first. An overlay with `"store"`
    is one of a package store (`stores.py`).
    """
    uid, gid = os.geteuid(), os.getegid()
    is_user, network = bool(view["user"]), str(view.get("network", networks.HOST))
    is_alone = network != networks.HOST
    flags = calls.CLONE_NEWNS | (calls.CLONE_NEWUSER if is_user else 0)
    try:
        calls.unshare(flags | (calls.CLONE_NEWNET if is_alone else 0))
        if is_user:
            _map_to_self(uid, gid)
            shares.limit_namespace()
        # What the host unmounts goes from here, too, so that its device is released. What is
        # mounted below is made private: nothing new of the host's appears in it.
        calls.mount("none", "/", "", _MS_REC | _MS_SLAVE)
    except OSError as error:
        # The kernel has no better word for this one.
        is_full = error.errno == errno.ENOSPC
        reason = "a limit in /proc/sys/user is reached" if is_full else error.strerror
        raise ViewError(f"no namespaces: {reason}") from error
    try:
        if is_alone:
            networks.bring_up(network)
    except OSError as error:
        raise ViewError(f"no network of its own (`{network}`): {error.strerror}") from error
    namespace = _shift(str(view["pool"]), view.get("uid"))
    os.chdir(str(view["pool"]))
    mounts = view["mounts"]
    if not isinstance(mounts, list):
        raise ViewError("`mounts` is not a list")
    for mount in mounts:
        try:
            if "store" in mount:
                stores.mount_store(mount, namespace)
            elif "overlay" in mount:
                _mount_overlay(mount)
            else:
                _bind(mount["bind"], mount["at"], read_only=mount.get("read_only", False))
        except OSError as error:
            raise ViewError(f"cannot mount `{mount['at']}`: {error.strerror}") from error
    os.chdir("/")
    _furnish(view, namespace)


def _shift(pool: str, uid: object) -> int:
    """Show what is ours in the pool as the user's; returns the namespace that says so, or -1."""
    if uid is None:
        return -1
    try:
        namespace = _make_mapping(int(str(uid)))
        tree = calls.clone_mounts(pool)
        calls.change_mounts(tree, namespace=namespace)
        place = os.open(pool, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        calls.attach_mounts(tree, place)
        os.close(place)
        os.close(tree)
    except OSError as error:
        raise ViewError(f"files cannot be shown as another user's: {error.strerror}") from error
    return namespace


def _make_mapping(uid: int) -> int:
    """A user namespace in which 0 on disk is `uid`, and what root makes is nobody's."""
    mapping = f"0 {uid} 1\n{_NOBODYS} 0 1\n"
    ready_read, ready_write = os.pipe()
    done_read, done_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            calls.unshare(calls.CLONE_NEWUSER)
            os.write(ready_write, b".")
            os.close(done_write)
            os.read(done_read, 1)
        finally:
            os._exit(0)
    os.close(ready_write)
    os.close(done_read)
    try:
        if not os.read(ready_read, 1):
            raise OSError(errno.EPERM, "no user namespace")
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
                file.write(mapping)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready_read)
        os.close(done_write)  # it goes now; the kernel buries it, or whoever reaps for us


def _furnish(view: dict[str, object], namespace: int) -> None:
    room, uid = view.get("room"), view.get("uid")
    if not isinstance(room, dict):
        return
    user = None if uid is None else int(str(uid))
    builder = rooms.Builder(str(room["root"]), uid=user, namespace=namespace)
    try:
        # The walls take devices and kernel settings from there later.
        for place in ("/dev", "/proc"):
            calls.mount(place, place, "", _MS_BIND | _MS_REC)
            calls.mount("none", place, "", calls.MS_PRIVATE | _MS_REC)
        builder.build(room["entries"])
    except OSError as error:
        raise ViewError(f"the room cannot be furnished: {error}") from error


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
    calls.mount("none", target, "", calls.MS_PRIVATE)
    if read_only:
        kept = os.statvfs(target).f_flag & _LOCKED_FLAGS
        # statvfs reports relatime as 0x1000; mount(2) wants 0x200000.
        kept |= 0x200000 if os.statvfs(target).f_flag & 0x1000 else 0
        calls.mount("none", target, "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept)
