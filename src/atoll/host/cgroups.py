"""Where this host lets us make groups of processes with limits, and the groups themselves.

Found out by trying, never by names or versions: a group is made, limited, entered by a child,
read back and removed. All groups lie in one directory, `atoll` (or `atoll-<uid>`, which an
administrator may have made for that user), at the highest place of a hierarchy that works: it is
the same for every terminal and service of a user, so that what one leaves another can sweep.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from atoll.host.hierarchies import Hierarchy, load_hierarchies
from atoll.keeper.groups import Group

UNIFIED, FREEZER = "unified", "freezer"
LIMITED = ("memory", "pids", "cpu")
"""What limits need. `unified` (version 2, also without controllers) and `freezer` stop and end."""

_PARENT = "atoll"
_PERIOD_US = 100_000
_LEAST_QUOTA_US = 1_000
_PAGE = os.sysconf("SC_PAGE_SIZE")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,199}")
_PROBE = re.compile(r"probe-([0-9]+)-[0-9a-f]+")
_TRIAL = {"memory": 64 << 20, "pids": 64, "cpu": 0.1}
_TURNS = 100


class Limits(Protocol):
    """As in `atoll.model.spec.Limits`; None is no limit."""

    @property
    def memory_bytes(self) -> int | None: ...
    @property
    def cpus(self) -> float | None: ...
    @property
    def pids(self) -> int | None: ...


class Attempt(NamedTuple):
    """What one directory gave when it was tried."""

    parent: str
    works: frozenset[str]
    reasons: dict[str, str]
    """Why the others do not."""


class Places(NamedTuple):
    """The directories for groups, by what they are for, and in words why some are missing."""

    parents: dict[str, str]
    missing: dict[str, str]


class Made(NamedTuple):
    """A group: its directories as `atoll.keeper.groups.Group` takes them."""

    directories: dict[str, str]
    unmet: dict[str, str]
    """The limits (`memory`, `cpus`, `pids`) that were asked for and are not enforced: why."""


class Swept(NamedTuple):
    removed: list[str]
    stuck: dict[str, list[int]]
    """Groups that are still there, with the processes that are left in them."""


Try = Callable[[str, Sequence[str]], Attempt]


def find_places(
    hierarchies: Iterable[Hierarchy] | None = None, attempt: Try | None = None
) -> Places:
    """Tries the directories in question, version 2 first. Leaves no group behind."""
    known = load_hierarchies() if hierarchies is None else list(hierarchies)
    choice = _Choice(attempt or try_directory)
    choice.make((tree for tree in known if tree.is_unified), (UNIFIED, *LIMITED))
    # What version 2 can freeze needs no other freezer.
    others = LIMITED if UNIFIED in choice.parents else (*LIMITED, FREEZER)
    for use in others:
        if use not in choice.parents:
            choice.make((tree for tree in known if use in tree.controllers), (use,))
    missing = {
        use: "; ".join(dict.fromkeys(choice.reasons.get(use, ())))
        or f"no hierarchy with `{use}` is mounted"
        for use in (*others, UNIFIED)
        if use not in choice.parents
    }
    return Places(choice.parents, missing)


class _Choice:
    def __init__(self, attempt: Try) -> None:
        self._attempt = attempt
        self.parents: dict[str, str] = {}
        self.reasons: dict[str, list[str]] = {}

    def make(self, trees: Iterable[Hierarchy], uses: Sequence[str]) -> None:
        """Takes the directory that works for most of the uses, the highest among equals."""
        best: Attempt | None = None
        for directory in (path for tree in trees for path in tree.candidates()):
            tried = self._attempt(directory, uses)
            for use, reason in tried.reasons.items():
                self.reasons.setdefault(use, []).append(reason)
            if len(tried.works) > (0 if best is None else len(best.works)):
                best = tried
            if len(tried.works) == len(uses):
                break
        if best is not None:
            self.parents.update(dict.fromkeys(best.works, best.parent))


def try_directory(directory: str, uses: Sequence[str]) -> Attempt:
    """Makes a group below `directory`, limits it, sends a child through and removes it."""
    parent = _parent_in(directory)
    was_there = os.path.exists(parent)
    name = f"probe-{os.getpid()}-{os.urandom(4).hex()}"
    reasons: dict[str, str] = {}
    try:
        group, reasons = _make_directory(parent, name, uses)
        try:
            for use in uses:
                reason = reasons.get(use) or _try_use(group, use)
                if reason is not None:
                    reasons[use] = reason
            closed = _try_entering(group)
        finally:
            Group({UNIFIED: group}).remove()
    except OSError as error:
        closed = _said(error)
    if not was_there:
        _remove_if_empty(parent)
    if closed is not None:
        return Attempt(parent, frozenset(), dict.fromkeys(uses, closed))
    return Attempt(parent, frozenset(use for use in uses if use not in reasons), reasons)


def _parent_in(directory: str) -> str:
    """Our directory there, which may still have to be made."""
    uid = os.geteuid()
    paths = [os.path.join(directory, name) for name in (f"{_PARENT}-{uid}", _PARENT)]
    owners = [_owner(path) for path in paths]
    if uid in owners:
        return paths[owners.index(uid)]
    # One of somebody else's is not for us: its owner can freeze and kill what is in it.
    return paths[1] if owners[1] is None else paths[0]


def _owner(path: str) -> int | None:
    try:
        return os.stat(path).st_uid
    except OSError:
        return None


def _make_directory(parent: str, name: str, uses: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The directory of a group, and why it does not serve some of its uses; OSError if none."""
    group = os.path.join(parent, name)
    for turn in range(1, _TURNS + 1):
        try:
            with suppress(FileExistsError):
                os.mkdir(parent)
            reasons = _enable(parent, uses)
            with suppress(FileExistsError):
                os.mkdir(group)
        except OSError as error:
            # Another Atoll may just have removed the parent, which was empty, again and again.
            if error.errno not in (errno.ENOENT, errno.ENODEV) or turn == _TURNS:
                raise
        else:
            return group, reasons
    raise AssertionError  # the last turn returns or raises


def _enable(parent: str, uses: Sequence[str]) -> dict[str, str]:
    """Has version 2 give its controllers to the groups in `parent`; why not, by use."""
    if not os.path.exists(os.path.join(parent, "cgroup.subtree_control")):
        return {}
    reasons = {}
    for use in uses:
        for directory in (os.path.dirname(parent), parent) if use in LIMITED else ():
            reason = _enable_in(directory, use)
            if reason is not None:
                reasons[use] = reason
                break
    return reasons


def _enable_in(directory: str, controller: str) -> str | None:
    if controller not in _read(directory, "cgroup.controllers").split():
        return f"`{directory}` does not offer `{controller}`"
    if controller in _read(directory, "cgroup.subtree_control").split():
        return None
    try:
        _write(directory, "cgroup.subtree_control", f"+{controller}")
    except OSError as error:
        if error.errno == errno.EBUSY:
            return f"`{directory}` holds processes itself, so nothing below it can be limited"
        return _said(error)
    return None


def _try_use(group: str, use: str) -> str | None:
    if use in _TRIAL:
        return set_limit(group, use, _TRIAL[use])
    wanted = "freezer.state" if use == FREEZER else "cgroup.freeze"
    return None if os.path.exists(os.path.join(group, wanted)) else f"no `{wanted}` in `{group}`"


def _try_entering(group: str) -> str | None:
    """Has a child enter; None if that worked, else why not."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            inside = Group({UNIFIED: group})
            inside.enter()
            os.write(writer, b"ok" if os.getpid() in inside.pids() else b"entering has no effect")
        except OSError as error:
            os.write(writer, os.fsencode(_said(error)))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        said = os.fsdecode(stream.read())
    os.waitpid(pid, 0)
    return None if said == "ok" else said or "the probe died"


def plan_settings(use: str, value: float | None, files: Collection[str]) -> list[tuple[str, str]]:
    """Which of a group's files get which text, in this order; None takes a limit away."""
    if use == "cpu":
        quota = None if value is None else str(max(round(value * _PERIOD_US), _LEAST_QUOTA_US))
        wanted = [("cpu.max", f"{quota or 'max'} {_PERIOD_US}")]
        if "cpu.max" not in files:
            wanted = [("cpu.cfs_period_us", str(_PERIOD_US)), ("cpu.cfs_quota_us", quota or "-1")]
    elif use == "pids":
        wanted = [("pids.max", "max" if value is None else str(int(value)))]
    elif "memory.max" in files:
        text, swap, together = ("max", "max", "0") if value is None else (str(int(value)), "0", "1")
        wanted = [
            ("memory.max", text),
            ("memory.swap.max", swap),
            ("memory.oom.group", together),
        ]
    else:
        text, both = "-1" if value is None else str(int(value)), "memory.memsw.limit_in_bytes"
        # Memory with swap may never be less than memory alone, also on the way.
        wanted = [(both, "-1"), ("memory.limit_in_bytes", text), (both, text)]
    return [setting for setting in wanted if setting[0] in files]


def set_limit(group: str, use: str, value: float | None) -> str | None:
    """Writes and reads back; None if the limit holds, else why not."""
    try:
        settings = plan_settings(use, value, os.listdir(group))
        for file, text in settings:
            _write(group, file, text)
        for file, text in dict(settings).items():
            if not _holds(_read(group, file), text):
                return f"`{os.path.join(group, file)}` did not take `{text}`"
    except OSError as error:
        return _said(error)
    return None if settings else f"`{group}` has no limit for `{use}`"


def _holds(found: str, text: str) -> bool:
    if text == "-1":  # shown as the highest number, or as that of a parent
        return True
    if text.isdecimal() and found.strip().isdecimal() and int(text) >= _PAGE:
        return 0 <= int(text) - int(found) < _PAGE
    return found.split() == text.split()


def make_group(places: Places, name: str, limits: Limits) -> Made:
    """Makes the group `name` in all places and sets its limits; one that is there is taken over.

    Never fails for lack of a limit, since the caller can watch instead: see `Made.unmet`.
    ValueError if it cannot be a name.
    """
    if not _NAME.fullmatch(name) or _PROBE.fullmatch(name):
        raise ValueError(f"`{name}` cannot be the name of a group")
    directories: dict[str, str] = {}
    reasons = dict(places.missing)
    for parent, uses in _uses(places).items():
        try:
            group, refused = _make_directory(parent, name, uses)
        except OSError as error:
            reasons.update(dict.fromkeys(uses, _said(error)))
            continue
        reasons.update(refused)
        directories.update(dict.fromkeys((use for use in uses if use not in refused), group))
    unmet = {}
    asked = {"memory": limits.memory_bytes, "cpus": limits.cpus, "pids": limits.pids}
    for limit, value in asked.items():
        use = "cpu" if limit == "cpus" else limit
        reason = reasons.get(use)
        if use in directories:
            reason = set_limit(directories[use], use, value)
        if value is not None and reason is not None:
            unmet[limit] = reason
    return Made(directories, unmet)


def sweep(places: Places, prefix: str, is_alive: Callable[[str], bool]) -> Swept:
    """Ends and removes the groups `prefix…` that are not alive, and what dead probes left.

    A parent that is empty then goes, too. OSError if a group is not ours to remove.
    """
    if not prefix:
        raise ValueError("without a prefix, other homes' groups would be swept")
    found: dict[str, dict[str, str]] = {}
    for parent, uses in _uses(places).items():
        for name in _groups_in(parent):
            if _is_dead_probe(name) or (name.startswith(prefix) and not is_alive(name)):
                directory = os.path.join(parent, name)
                found.setdefault(name, {}).update(dict.fromkeys(uses, directory))
    swept = Swept([], {})
    for name, directories in found.items():
        group = Group(directories)
        group.kill()
        left = group.remove()
        if left:
            swept.stuck[name] = left
        else:
            swept.removed.append(name)
    for parent in _uses(places):
        _remove_if_empty(parent)
    return swept


def _uses(places: Places) -> dict[str, list[str]]:
    """What each directory is for."""
    found: dict[str, list[str]] = {}
    for use, parent in places.parents.items():
        found.setdefault(parent, []).append(use)
    return found


def _groups_in(parent: str) -> list[str]:
    try:
        with os.scandir(parent) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def _is_dead_probe(name: str) -> bool:
    match = _PROBE.fullmatch(name)
    return match is not None and not os.path.exists(f"/proc/{match[1]}")


def _remove_if_empty(parent: str) -> None:
    with suppress(OSError):  # in use, gone, or an administrator's
        os.rmdir(parent)


def _read(directory: str, name: str) -> str:
    with open(os.path.join(directory, name), encoding="ascii") as stream:
        return stream.read()


def _write(directory: str, name: str, text: str) -> None:
    # Never created: where there is no such file, nothing would heed it.
    fd = os.open(os.path.join(directory, name), os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)


def _said(error: OSError) -> str:
    return f"`{error.filename}`: {error.strerror}" if error.filename else str(error.strerror)
