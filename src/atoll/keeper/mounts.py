"""A capsule's view: a mount namespace that has the workspace at the project's own path.

The engine decides what is mounted (`View`); here it is only carried out, in order, in a process
that has nothing else to do yet. Nothing is ever unmounted: the view goes with its last process.
"""

from __future__ import annotations

import errno
import os

from atoll.keeper import calls, networks, sandbox_root, stores, user_quotas
from atoll.model.enclosure import Overlay, StoreOverlay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from atoll.model.enclosure import Bind, SandboxRoot, View

_MS_RDONLY = 0x1
_MS_REMOUNT = 0x20
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SLAVE = 0x80000
_LOCKED_FLAGS = 0x2 | 0x4 | 0x8 | 0x400 | 0x800 | 0x200000
"""nosuid, nodev, noexec, noatime, nodiratime, relatime: a user namespace may not drop them."""
_OPTIONS_LIMIT_BYTES = 4095
_UNUSED_UID = 2_147_000_000


class ViewError(Exception):
    """The view could not be built; says which step failed."""


def enter_view(view: View) -> int | None:
    """Unshare the namespaces of `view` and mount everything in it. Returns a descriptor of its
    private tmpfs, if it has one.

    It shares the caller's network if that is `host`, and has its own otherwise (`networks.py`).
    With `view.uid` the caller's files in the pool are shown as that user's. The sandbox root is
    built last (`sandbox_root.py`).
    """
    uid, gid = os.geteuid(), os.getegid()
    network = view.network
    is_alone = network != networks.HOST
    flags = calls.CLONE_NEWNS | (calls.CLONE_NEWUSER if view.user else 0)
    try:
        calls.unshare(flags | (calls.CLONE_NEWNET if is_alone else 0))
        if view.user:
            _map_to_self(uid, gid)
            user_quotas.limit_namespace()
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
    namespace = _shift(view.pool, view.uid)
    os.chdir(view.pool)
    for mount in view.mounts:
        try:
            if isinstance(mount, StoreOverlay):
                stores.mount_store(mount, namespace)
            elif isinstance(mount, Overlay):
                _mount_overlay(mount)
            else:
                _bind(mount)
        except OSError as error:
            raise ViewError(f"cannot mount `{mount.at}`: {error.strerror}") from error
    os.chdir("/")
    return None if view.root is None else _build_root(view.root, view.uid, namespace)


def _shift(pool: str, uid: int | None) -> int:
    """Show our files in the pool as owned by `uid`; returns the mapping namespace, or -1."""
    if uid is None:
        return -1
    try:
        namespace = _make_mapping(uid)
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
    """A user namespace in which 0 on disk is `uid`; files that root creates get an unused id."""
    mapping = f"0 {uid} 1\n{_UNUSED_UID} 0 1\n"
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
        os.close(done_write)  # the child exits; the kernel or our reaper collects it


def _build_root(root: SandboxRoot, uid: int | None, namespace: int) -> int | None:
    builder = sandbox_root.RootBuilder(root.path, uid=uid, namespace=namespace)
    try:
        # bwrap mounts devices and kernel settings from there later.
        for place in ("/dev", "/proc"):
            calls.mount(place, place, "", _MS_BIND | _MS_REC)
            calls.mount("none", place, "", calls.MS_PRIVATE | _MS_REC)
        builder.build(root.entries)
    except OSError as error:
        raise ViewError(f"the sandbox root cannot be built: {error}") from error
    return builder.private


def _map_to_self(uid: int, gid: int) -> None:
    """Keep the user's own id: mapped to 0, git would take every file for changed."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _mount_overlay(mount: Overlay) -> None:
    parts = ["lowerdir=" + ":".join(reversed(mount.lowers))]
    if mount.upper:
        parts += [f"upperdir={mount.upper}", f"workdir={mount.work}"]
    options = ",".join([*parts, *([mount.options] if mount.options else [])])
    if len(os.fsencode(options)) > _OPTIONS_LIMIT_BYTES:
        raise ViewError(f"{len(mount.lowers)} layers are more than one mount can name")
    calls.mount("atoll", mount.at, "overlay", 0, options)


def _bind(mount: Bind) -> None:
    calls.mount(mount.source, mount.at, "", _MS_BIND)
    calls.mount("none", mount.at, "", calls.MS_PRIVATE)
    if mount.is_read_only:
        found = os.statvfs(mount.at).f_flag
        # statvfs reports relatime as 0x1000; mount(2) wants 0x200000.
        kept = (found & _LOCKED_FLAGS) | (0x200000 if found & 0x1000 else 0)
        calls.mount("none", mount.at, "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept)
