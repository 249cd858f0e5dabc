"""A group of processes in the kernel's cgroups: entered, frozen, killed, asked, removed.

Which directory serves which controller is data, found by trying (`atoll.host.cgroups`); versions 1
and 2 are distinguished by their files. A process that manages a group is never in it, and the
limits are set before the first process enters.
"""

from __future__ import annotations

import errno
import os
import signal

from atoll.keeper.handles import Opened
from atoll.keeper.loop import wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_BATCH = 64
_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.EOPNOTSUPP})
"""Of a file that was never there, of a group that is being removed, of a threaded group."""


class Group:
    """Directories by what they are for: `memory`, `pids`, `cpu`, `freezer`, `unified`.

    Any may be missing, and several may be the same directory. `unified` is one of version 2,
    with or without controllers.
    """

    __slots__ = ("_by_use", "_directories", "_to_enter")

    def __init__(self, directories: dict[str, str]) -> None:
        self._by_use = dict(directories)
        self._directories = list(dict.fromkeys(directories.values()))
        self._to_enter = self._directories

    def fork(self) -> int:
        """As `os.fork`, for a child that is going to `enter` and to execute something soon.

        To move a process into a group of version 2 the kernel waits until all others have been
        seen to rest, which takes as long as to build a run's walls: so it is forked there.
        """
        unified = self._by_use.get("unified")
        pid = None if unified is None else _find_fork(unified)
        if pid is None:
            return os.fork()
        if pid == 0:
            self._to_enter = [place for place in self._directories if place != unified]
        return pid

    def enter(self) -> None:
        """Move the calling process, which has one thread, into the cgroup, before it drops its
        privileges.

        OSError if a directory does not accept it: it may be in others by then, and must not
        continue.
        """
        for directory in self._to_enter:
            try:
                # Of version 1, for a thread: a whole process would have to wait as in version 2.
                write(directory, "tasks", "0")
            except FileNotFoundError:
                write(directory, "cgroup.procs", "0")

    def freeze(self, timeout_s: float = 2.0) -> bool:
        """Stop all processes; False if not all stopped in time, or if there is no freezer."""
        return self._turn("1", "FROZEN", timeout_s)

    def thaw(self, timeout_s: float = 2.0) -> bool:
        """Resume all processes; False as for `freeze`."""
        return self._turn("0", "THAWED", timeout_s)

    def is_frozen(self) -> bool:
        """Whether all processes of the group are frozen now."""
        unified, freezer = self._by_use.get("unified"), self._by_use.get("freezer")
        if _read(unified, "cgroup.freeze") is not None:
            return _field(unified, "cgroup.events", "frozen") == 1
        return (_read(freezer, "freezer.state") or "").strip() == "FROZEN"

    def freezable(self) -> set[int]:
        """The processes that `freeze` stops."""
        unified, freezer = self._by_use.get("unified"), self._by_use.get("freezer")
        has_freezer = _read(unified, "cgroup.freeze") is not None
        directory = unified if has_freezer else freezer
        return set() if directory is None else set(_members_below(directory))

    def kill(self, timeout_s: float = 10.0) -> bool:
        """Kill all processes, frozen or not; False if some are left after the timeout.

        Dead processes count as pids until they are reaped.
        """

        def is_over() -> bool:
            if not self._members():
                return True
            self._strike()
            return False

        return wait_until(is_over, timeout_s=timeout_s)

    def pids(self) -> list[int]:
        """Those that can be seen from here, each once."""
        return [pid for pid in self._members() if pid]

    def oom_kills(self) -> int | None:
        """Processes that the kernel has killed for lack of memory; None if they are not counted."""
        memory = self._by_use.get("memory")
        found = _field(memory, "memory.events", "oom_kill")
        return _field(memory, "memory.oom_control", "oom_kill") if found is None else found

    def remove(self, timeout_s: float = 1.0) -> list[int]:
        """Remove the group; what is already gone is fine. Returns the processes that are left.

        OSError if it cannot be removed for another reason.
        """
        if wait_until(self._is_removed, timeout_s=timeout_s):
            return []
        left = self.pids()
        if not left:
            number = errno.EBUSY
            raise OSError(number, os.strerror(number), self._directories[0])
        return left

    def _turn(self, v2: str, v1: str, timeout_s: float) -> bool:
        unified, freezer = self._by_use.get("unified"), self._by_use.get("freezer")
        if _try_write(unified, "cgroup.freeze", v2):

            def is_set() -> bool:
                return _field(unified, "cgroup.events", "frozen") == int(v2)

            return wait_until(is_set, timeout_s=timeout_s)

        def is_turned() -> bool:
            # Repeated each time: a process that was just being forked may have been missed.
            _try_write(freezer, "freezer.state", v1)
            return (_read(freezer, "freezer.state") or "").strip() == v1

        is_there = _try_write(freezer, "freezer.state", v1)
        return is_there and wait_until(is_turned, timeout_s=timeout_s)

    def _strike(self) -> None:
        is_killed = _try_write(self._by_use.get("unified"), "cgroup.kill", "1")
        if not is_killed and not self.freeze(timeout_s=0.2):
            self._signal(signal.SIGSTOP)
        # Also after `cgroup.kill`: a process that failed to enter may be in some directories only.
        self._signal(signal.SIGKILL)
        # In version 1 the killed die only when thawed; in both no process may enter a frozen group.
        self.thaw()

    def _signal(self, number: int) -> None:
        me = os.getpid()
        pids = [pid for pid in self.pids() if pid != me]
        for start in range(0, len(pids), _BATCH):
            handles = {pid: _open_process(pid) for pid in pids[start : start + _BATCH]}
            # With a pidfd of each, only processes in the cgroup are signalled, and no reused pid.
            members = set(self.pids())
            for pid, handle in handles.items():
                if pid in members:
                    _send(pid, handle, number)
                if handle is not None:
                    os.close(handle)

    def _members(self) -> list[int]:
        """As `pids`, with 0 for those of other pid namespaces."""
        found = (pid for place in self._directories for pid in _members_below(place))
        return list(dict.fromkeys(found))

    def _groups(self) -> Iterator[str]:
        """The directories and all below them, the deepest first."""
        for directory in self._directories:
            for path, _, _ in os.walk(directory, topdown=False):
                yield path

    def _is_removed(self) -> bool:
        for group in self._groups():
            try:
                os.rmdir(group)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                    raise
                return False
        return True


def _members_below(directory: str) -> list[int]:
    return [
        int(line)
        for path, _, _ in os.walk(directory, topdown=False)
        for line in (_read(path, "cgroup.procs") or "").split()
    ]


def _find_fork(unified: str) -> int | None:
    """As `fork`, in a directory of version 2; None where that cannot be, and nothing was done."""
    from atoll.keeper import calls  # noqa: PLC0415 - libc is not for those who only ask

    try:
        place = os.open(unified, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return calls.fork_into(place)
    except OSError:  # an old kernel, a filter, a full group: os.fork reports it better
        return None
    finally:
        os.close(place)


def _open_process(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:  # gone, or no pidfd here (old kernel, filter, no descriptor left)
        return None


def _send(pid: int, handle: int | None, number: int) -> None:
    try:
        if handle is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):  # survivors are found by the next listing
        return


def _read(directory: str | None, name: str) -> str | None:
    """None if there is no such file, or no such group any more."""
    if directory is None:
        return None
    try:
        with open(os.path.join(directory, name), encoding="ascii") as file:
            return file.read()
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise


def write(directory: str, name: str, text: str) -> None:
    # Unbuffered and never created: a mistake must not look like success in a temporary directory.
    with Opened(os.open(os.path.join(directory, name), os.O_WRONLY | os.O_CLOEXEC)) as fd:
        os.write(fd, text.encode("ascii"))


def _try_write(directory: str | None, name: str, text: str) -> bool:
    """False if there is no such file, or no such group any more."""
    if directory is None:
        return False
    try:
        write(directory, name, text)
    except OSError as error:
        if error.errno in _GONE:
            return False
        raise
    return True


def _field(directory: str | None, name: str, key: str) -> int | None:
    """A line `key number` of a file."""
    for line in (_read(directory, name) or "").splitlines():
        found, _, value = line.partition(" ")
        if found == key and value.isdecimal():
            return int(value)
    return None
