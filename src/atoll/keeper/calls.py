"""The keeper's own few libc calls: the only ctypes in the package."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct

from atoll.keeper.handles import Opened

CLONE_NEWNS = 0x00020000
MS_PRIVATE = 0x40000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
MOUNT_READ_ONLY = 0x1
MOUNT_NO_SETUID = 0x2
MOUNT_NO_DEVICES = 0x4
_MOUNT_IDMAP = 0x100000

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

# The same on every architecture: these calls are younger than the common table.
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_CLONE3 = 435
_SYS_OPENAT2 = 437
_SYS_MOUNT_SETATTR = 442
_MNT_DETACH = 0x2
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 0x1
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MOVE_MOUNT_T_EMPTY_PATH = 0x40
_CLONE_INTO_CGROUP = 0x200000000
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_RESOLVE_IN_ROOT = 0x10

_PTRACE_DETACH = 17
_PTRACE_SEIZE = 0x4206
_PTRACE_INTERRUPT = 0x4207
_PTRACE_O_TRACEFORK = 0x2
_PTRACE_O_TRACEVFORK = 0x4
_PTRACE_O_TRACECLONE = 0x8
_PTRACE_O_EXITKILL = 0x100000

_libc = ctypes.CDLL(None, use_errno=True)
_libc_by_one = ctypes.PyDLL(None, use_errno=True)
"""Keeps the interpreter's lock: for a call that returns in two processes."""


def _raise_errno(call: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{call}: {os.strerror(number)}")


def _prctl(option: int, value: ctypes.c_ulong | ctypes.c_char_p) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(ctypes.c_int(option), value, zero, zero, zero) != 0:
        _raise_errno(f"prctl({option})")


def unshare(flags: int) -> None:
    if _libc.unshare(ctypes.c_int(flags)) != 0:
        _raise_errno("unshare")


def enter_namespace(fd: int) -> None:
    if _libc.setns(ctypes.c_int(fd), ctypes.c_int(0)) != 0:
        _raise_errno("setns")


def fork_into(group: int) -> int:
    """As `os.fork`, with the child in a group of version 2 from its first moment on.

    `group` is a descriptor of the group's directory. The interpreter does not learn of the fork:
    for a process with one thread, and a child that executes something else soon.
    """
    content = struct.pack("=11Q", _CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, group)
    arguments = ctypes.create_string_buffer(content, len(content))
    pid: int = _libc_by_one.syscall(
        ctypes.c_long(_SYS_CLONE3), arguments, ctypes.c_size_t(len(content))
    )
    if pid < 0:
        _raise_errno("clone3")
    return pid


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """`mount(2)`; an empty kind or option is a null pointer."""
    if (
        _libc.mount(
            ctypes.c_char_p(os.fsencode(source)),
            ctypes.c_char_p(os.fsencode(target)),
            ctypes.c_char_p(kind.encode() or None),
            ctypes.c_ulong(flags),
            ctypes.c_char_p(os.fsencode(options) or None),
        )
        != 0
    ):
        _raise_errno(f"mount on `{target}`")


def unmount(target: str) -> None:
    """Removes the topmost mount at a path, even while it is in use."""
    if _libc.umount2(ctypes.c_char_p(os.fsencode(target)), ctypes.c_int(_MNT_DETACH)) != 0:
        _raise_errno(f"unmount `{target}`")


def _system_call(number: int, name: str, *arguments: object) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        _raise_errno(name)
    return result


def clone_mounts(place: str | int) -> int:
    """A descriptor of a copy of the mounts at a path or descriptor and below, attached nowhere."""
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
    directory, path = (_AT_FDCWD, place) if isinstance(place, str) else (place, "")
    flags |= 0 if path else _AT_EMPTY_PATH
    return _system_call(
        _SYS_OPEN_TREE, f"open_tree `{path}`",
        ctypes.c_int(directory), ctypes.c_char_p(os.fsencode(path)), ctypes.c_uint(flags),
    )  # fmt: skip


def change_mounts(fd: int, flags: int = 0, *, namespace: int = -1, deep: bool = True) -> None:
    """Adds `MOUNT_*` to mounts; with a user namespace owners are shown as that maps them.

    They become private, too: no mount that is made elsewhere later appears below them.
    """
    flags |= _MOUNT_IDMAP if namespace >= 0 else 0
    content = struct.pack("=QQQQ", flags, 0, MS_PRIVATE, max(0, namespace))
    _system_call(
        _SYS_MOUNT_SETATTR, "mount_setattr",
        ctypes.c_int(fd), ctypes.c_char_p(b""),
        ctypes.c_uint(_AT_EMPTY_PATH | (_AT_RECURSIVE if deep else 0)),
        ctypes.c_char_p(content), ctypes.c_size_t(len(content)),
    )  # fmt: skip


def attach_mounts(fd: int, place: int) -> None:
    """Puts what `clone_mounts` gave on the directory or file that `place` is a descriptor of."""
    _system_call(
        _SYS_MOVE_MOUNT, "move_mount",
        ctypes.c_int(fd), ctypes.c_char_p(b""), ctypes.c_int(place), ctypes.c_char_p(b""),
        ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH),
    )  # fmt: skip


def open_beneath(directory: int, path: str, flags: int, *, links: bool = False) -> int:
    """Opens a path that cannot leave `directory`: through no link, or, with `links`, as if the
    directory were the root of everything.
    """
    how = _RESOLVE_IN_ROOT if links else _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS
    content = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, how)
    return _system_call(
        _SYS_OPENAT2, f"open `{path}`",
        ctypes.c_int(directory), ctypes.c_char_p(os.fsencode(path)),
        ctypes.c_char_p(content), ctypes.c_size_t(len(content)),
    )  # fmt: skip


def open_source(path: str, flags: int = os.O_PATH) -> int:
    """Opens a place of the host. OSError where it is named relatively or by a link."""
    if not path.startswith("/"):
        raise OSError(errno.EINVAL, "not an absolute path", path)
    with Opened(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
        return open_beneath(root, path.strip("/") or ".", flags)


def _ptrace(request: int, name: str, tid: int, data: int = 0) -> None:
    if _libc.ptrace(ctypes.c_long(request), ctypes.c_int(tid), None, ctypes.c_void_p(data)) == -1:
        _raise_errno(name)


def seize_thread(tid: int) -> None:
    """Become the tracer of a thread and of everything that it forks, and stop it.

    It stops soon, not at once. If the tracer dies, all that it traces is killed.
    """
    options = _PTRACE_O_TRACEFORK | _PTRACE_O_TRACEVFORK | _PTRACE_O_TRACECLONE
    _ptrace(_PTRACE_SEIZE, "ptrace seize", tid, options | _PTRACE_O_EXITKILL)
    _ptrace(_PTRACE_INTERRUPT, "ptrace interrupt", tid)


def detach_thread(tid: int, signal_number: int = 0) -> None:
    """Resumes a stopped thread, with a signal that was pending for it."""
    _ptrace(_PTRACE_DETACH, "ptrace detach", tid, signal_number)


def become_subreaper() -> None:
    """From now on orphans among the descendants become children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))


def die_with_parent(signal_number: int, parent_pid: int) -> bool:
    """Ask for a signal when the parent dies; False if it had died already."""
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number))
    return os.getppid() == parent_pid


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show; the kernel keeps 15 bytes."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()))


def hide_descriptors() -> None:
    """Other processes of the same user can neither open what this one has open nor read its memory,
    until it executes a program.
    """
    _prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(0))


def sync_filesystem(place: str | os.PathLike[str]) -> None:
    """Has everything on the filesystem of a directory written to its disk."""
    with Opened(os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        if _libc.syncfs(ctypes.c_int(fd)) != 0:
            _raise_errno("syncfs")


def disconnect(fd: int) -> None:
    """Disconnect a datagram socket, so that it receives from all senders; it stays bound."""
    unspecified = bytes(16)
    if _libc.connect(ctypes.c_int(fd), unspecified, ctypes.c_uint(len(unspecified))) != 0:
        _raise_errno("connect")
