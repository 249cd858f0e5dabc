"""Scopes of the systemd user manager: a cgroup subtree per capsule, delegated to the user.

A login session's cgroup belongs to root, and only root can move a process out of it. The user
manager can do so on request: it creates a transient scope for a given process id and delegates it.
A scope ends with its last process, and its cgroups with it. A probe determines what scopes can be
used for.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from atoll.host import cgroups, dbus, programs
from atoll.host.cgroups import LIMITED, UNIFIED, CgroupParents, CreatedCgroup, find_unified
from atoll.host.process import wait_until
from atoll.keeper.groups import Group, write
from atoll.model.enclosure import Limits

_MANAGER = "systemd/private"
_START = dbus.Method(
    "org.freedesktop.systemd1",
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
    "StartTransientUnit",
)
_UNLIMITED = (1 << 64) - 1
_ANSWER_S = 5.0
_MOVED_S = 5.0
_SETTLED_S = 2.0
_GONE_S = 2.0
_LEAF, _PARENT = "keeper", "atoll"
"""Children of a scope: the leaf of its first process, and the parent of cgroups."""
_UNIT = re.compile(r"atoll-([0-9a-f]{8}-[0-9]+)-[0-9a-f]{8}\.scope")
_USES = (UNIFIED, *LIMITED)


class ScopeError(Exception):
    """No scope is available, or it is not usable."""


class NoAnswerError(ScopeError):
    """The manager is not running, or hangs: its abilities are unknown."""


class Scopes(NamedTuple):
    """Where the user manager creates scopes, and the possible uses of cgroups in them."""

    directory: str
    uses: list[str]
    missing: dict[str, str]
    """Why the other uses do not work."""


def find_manager() -> str | None:
    """The socket of this user's systemd manager; None if there is none.

    Root needs none. A stopped manager may have left the socket behind.
    """
    uid = os.geteuid()
    if uid == 0:
        return None
    # The variable may be another user's, as after `sudo`.
    places = (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{uid}")
    paths = [os.path.join(place, _MANAGER) for place in places if os.path.isabs(place)]
    return next((path for path in paths if _is_own_socket(path, uid)), None)


def _is_own_socket(path: str, uid: int) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    is_ours = stat.S_ISSOCK(status.st_mode) and status.st_uid == uid
    return is_ours and programs.is_trusted(path, programs.untrusted_roots())


def unit_name(group: str) -> str:
    """A unique name for a new scope: the manager may still hold an earlier one."""
    return f"atoll-{group}-{os.urandom(4).hex()}.scope"


def start(manager: str, unit: str, pid: int, description: str) -> str:
    """Lets the manager put a process into a new scope; returns the scope's directory.

    Raises ScopeError.
    """
    body = dbus.DBusBody()
    body.string(unit)
    body.string("fail")
    body.properties(
        [
            ("Description", "s", description),
            ("PIDs", "au", [pid]),
            ("Delegate", "b", True),
            # Otherwise the manager keeps a failed unit.
            ("CollectMode", "s", "inactive-or-failed"),
            # Atoll sets the limits.
            ("TasksMax", "t", _UNLIMITED),
        ]
    )
    body.no_units()
    try:
        dbus.call(manager, _START, body, timeout_s=_ANSWER_S)
    except dbus.DBusError as error:
        raise ScopeError(f"the systemd user manager refused to create a scope: {error}") from error
    except (OSError, EOFError) as error:
        raise NoAnswerError(f"the systemd user manager does not answer: {error}") from error
    found: list[str] = []

    def is_moved() -> bool:
        place = find_unified(pid) or ""
        found[:] = [place] if os.path.basename(place) == unit else []
        return bool(found) or not os.path.exists(f"/proc/{pid}")

    # It replies before it has moved the process.
    if not wait_until(is_moved, timeout_s=_MOVED_S) or not found:
        raise NoAnswerError("the systemd user manager did not move the process to its scope")
    return found[0]


def settle(scope: str) -> None:
    """Moves the processes of a scope to a leaf: cgroups with limits cannot have siblings there.

    Raises OSError or ScopeError if that fails.
    """
    leaf = os.path.join(scope, _LEAF)
    with suppress(FileExistsError):
        os.mkdir(leaf)

    def is_clear() -> bool:
        with open(os.path.join(scope, "cgroup.procs"), encoding="ascii") as stream:
            left = stream.read().split()
        for pid in left:
            # A child that was forked before its parent was moved, and may have exited since.
            with suppress(ProcessLookupError):
                write(leaf, "cgroup.procs", pid)
        return not left

    if not wait_until(is_clear, timeout_s=_SETTLED_S):
        raise ScopeError(f"`{scope}` always has processes of its own")


def make_group(scopes: Scopes, scope: str, name: str, limits: Limits) -> CreatedCgroup:
    """As `cgroups.make_group`, in a settled scope."""
    parent = os.path.join(scope, _PARENT)
    return cgroups.make_group(
        CgroupParents(dict.fromkeys(scopes.uses, parent), scopes.missing), name, limits
    )


def try_scopes(manager: str) -> Scopes:
    """Puts a child into a scope and probes there what a capsule's view holder needs; removes both.
    Raises ScopeError.
    """
    orders, results = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(orders[1])
            os.close(results[0])
            _try_inside(orders[0], results[1])
        finally:
            os._exit(0)
    os.close(orders[0])
    os.close(results[1])
    with os.fdopen(orders[1], "wb") as order, os.fdopen(results[0], "rb") as answer:
        try:
            unit = unit_name(f"{0:08x}-{pid}")
            scope = start(manager, unit, pid, "Atoll tries whether scopes can be used")
            order.write(os.fsencode(scope) + b"\n")
            order.flush()
            line = answer.readline()
        finally:
            order.close()
            os.waitpid(pid, 0)
    if not line:
        raise NoAnswerError("the probe in a scope died")
    found = json.loads(line)
    if "error" in found:
        raise ScopeError(found["error"])
    _await_end(scope)
    return Scopes(os.path.dirname(scope), found["uses"], found["missing"])


def _try_inside(orders: int, results: int) -> None:
    """Runs in the child: moves to a leaf and starts a process in a cgroup, as a holder would."""
    with os.fdopen(orders, "rb") as order:
        scope = os.fsdecode(order.readline()).removesuffix("\n")
    if not scope:
        return
    found: dict[str, object]
    try:
        settle(scope)
        tried = cgroups.try_directory(scope, _USES)
        uses = [use for use in _USES if use in tried.works]
        found = {"uses": uses, "missing": tried.reasons}
    except (OSError, ScopeError) as error:
        found = {"error": str(error)}
    os.write(results, json.dumps(found).encode() + b"\n")


def find_scopes(directory: str, is_wanted: Callable[[str], bool]) -> dict[str, str]:
    """The directories of scopes with wanted cgroups, and the names of these cgroups."""
    try:
        units = sorted(os.listdir(directory))
    except OSError:
        return {}
    named = ((unit, _UNIT.fullmatch(unit)) for unit in units)
    return {
        os.path.join(directory, unit): match[1]
        for unit, match in named
        if match is not None and is_wanted(match[1])
    }


def end(scope: str) -> list[int]:
    """Kills everything in a scope and waits for it; returns the processes that cannot be killed.

    If the manager hangs, the empty directory stays until it continues.
    """
    group = Group({UNIFIED: scope})
    group.kill()
    _await_end(scope)
    return group.pids()


def _await_end(scope: str) -> None:
    wait_until(lambda: not os.path.exists(scope), timeout_s=_GONE_S)
