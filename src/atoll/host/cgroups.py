"""Cgroups v1 and v2: the mounted hierarchies, which of them are usable, and capsules' cgroups.

A hierarchy is usable if a probe succeeds: create a cgroup, set a limit, move a child into it, read
it back and remove it. Names and versions decide nothing. All cgroups are in one directory, `atoll`
(or `atoll-<uid>`, which an administrator may have created for that user), as high in the hierarchy
as works: it is the same in every session of a user, so that one session can remove what another
left behind.

Each cgroup records its Atoll home in an extended attribute. An empty cgroup whose home no longer
exists is removed if it belongs to this user and was created in this mount namespace (in another,
the same path may be another directory).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from atoll.keeper.groups import Group, write
from atoll.model.enclosure import LIMITS, Limits


class Hierarchy(NamedTuple):
    """One mounted cgroup hierarchy."""

    controllers: frozenset[str]
    """Controllers of version 1; in version 2 each directory lists its own."""
    is_unified: bool
    mount: str
    own: str
    """The cgroup of the process, or the mount point if that is not visible."""

    def candidates(self) -> list[str]:
        """The directories from the mount point down to the process's own."""
        found = [self.mount]
        for part in PurePosixPath(self.own).relative_to(self.mount).parts:
            found.append(os.path.join(found[-1], part))
        return found


def parse_hierarchies(mountinfo: str, cgroup: str) -> list[Hierarchy]:
    """Parses the contents of `/proc/self/mountinfo` and `/proc/self/cgroup`."""
    ours: dict[frozenset[str], str] = {}
    for line in filter(None, cgroup.split("\n")):
        _, listed, path = line.split(":", 2)
        ours[frozenset(listed.split(",")) - {""}] = path
    found = []
    for line in mountinfo.split("\n"):
        left, _, right = line.partition(" - ")
        kind = right.partition(" ")[0]
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, mount = (_unescaped(field) for field in left.split(" ")[3:5])
        is_unified = kind == "cgroup2"
        options = frozenset(right.rpartition(" ")[2].split(","))
        for names, path in ours.items():
            if not names if is_unified else names and names <= options:
                found.append(Hierarchy(names, is_unified, mount, _visible_path(mount, root, path)))
    return found


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _visible_path(mount: str, root: str, path: str) -> str:
    """The path of cgroup `path` if cgroup `root` is what is mounted."""
    if ".." in path.split("/") or not PurePosixPath(path).is_relative_to(root):
        return mount
    return str(mount / PurePosixPath(path).relative_to(root))


def load_hierarchies(pid: int | str = "self") -> list[Hierarchy]:
    """The hierarchies visible to this process; `own` is the cgroup of process `pid`."""
    texts = []
    for place in ("self/mountinfo", f"{pid}/cgroup"):
        try:
            with open(f"/proc/{place}", encoding="utf-8", errors="surrogateescape") as stream:
                texts.append(stream.read())
        except (FileNotFoundError, ProcessLookupError):
            return []
    return parse_hierarchies(*texts)


def find_unified(pid: int | str = "self") -> str | None:
    """The cgroup directory of a process in version 2, if that is mounted."""
    return next((tree.own for tree in load_hierarchies(pid) if tree.is_unified), None)


def can_enter(directories: Iterable[str]) -> bool:
    """Whether this process may move itself to these cgroups of version 2: that requires write
    access to the common ancestor.
    """
    own = find_unified()
    return own is not None and all(
        os.access(os.path.join(os.path.commonpath([own, place]), "cgroup.procs"), os.W_OK)
        for place in directories
    )


UNIFIED, FREEZER = "unified", "freezer"
LIMITED = tuple(kind.controller for kind in LIMITS if kind.controller)
"""The controllers that limits need; `unified` (version 2) and `freezer` freeze and kill."""

_PARENT = "atoll"
_PERIOD_US = 100_000
_LEAST_QUOTA_US = 1_000
_PAGE = os.sysconf("SC_PAGE_SIZE")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,199}")
_PROBE = re.compile(r"probe-([0-9]+)-[0-9a-f]+")
_TRIAL = {"memory": 64 << 20, "pids": 64, "cpu": 0.1}
_TURNS = 100


class CgroupProbe(NamedTuple):
    """The result of probing one directory."""

    parent: str
    works: frozenset[str]
    reasons: dict[str, str]
    """Why the other uses do not work."""


class CgroupParents(NamedTuple):
    """The parent directories for cgroups by use, and why some uses are missing."""

    parents: dict[str, str]
    missing: dict[str, str]


class CreatedCgroup(NamedTuple):
    """A cgroup: its directories as `atoll.keeper.groups.Group` expects them."""

    directories: dict[str, str]
    unmet: dict[str, str]
    """The requested limits (`memory`, `cpus`, `pids`) that are not enforced, with reasons."""


class Swept(NamedTuple):
    removed: list[str]
    stuck: dict[str, list[int]]
    """Cgroups that could not be removed, with the processes in them."""


Try = Callable[[str, Sequence[str]], CgroupProbe]


def find_cgroup_parents(
    hierarchies: Iterable[Hierarchy] | None = None, attempt: Try | None = None
) -> CgroupParents:
    """Probes the candidate directories, version 2 first. Leaves no cgroup behind."""
    known = load_hierarchies() if hierarchies is None else list(hierarchies)
    choice = _Choice(attempt or try_directory)
    choice.make((tree for tree in known if tree.is_unified), (UNIFIED, *LIMITED))
    # Where version 2 can freeze, no other freezer is needed.
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
    return CgroupParents(choice.parents, missing)


class _Choice:
    def __init__(self, attempt: Try) -> None:
        self._attempt = attempt
        self.parents: dict[str, str] = {}
        self.reasons: dict[str, list[str]] = {}

    def make(self, trees: Iterable[Hierarchy], uses: Sequence[str]) -> None:
        """Selects the directory that works for the most uses, the highest among equals."""
        best: CgroupProbe | None = None
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


def try_directory(directory: str, uses: Sequence[str]) -> CgroupProbe:
    """Creates a cgroup below `directory`, sets limits, moves a child through it and removes it."""
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
        closed = _reason(error)
    if not was_there:
        _remove_if_empty(parent)
    if closed is not None:
        return CgroupProbe(parent, frozenset(), dict.fromkeys(uses, closed))
    return CgroupProbe(parent, frozenset(use for use in uses if use not in reasons), reasons)


def _parent_in(directory: str) -> str:
    """Atoll's directory there, which may not exist yet."""
    uid = os.geteuid()
    paths = [os.path.join(directory, name) for name in (f"{_PARENT}-{uid}", _PARENT)]
    owners = [_owner(path) for path in paths]
    if uid in owners:
        return paths[owners.index(uid)]
    # A directory of another user is not usable: its owner can freeze and kill what is in it.
    return paths[1] if owners[1] is None else paths[0]


def _owner(path: str) -> int | None:
    try:
        return os.stat(path).st_uid
    except OSError:
        return None


def _make_directory(parent: str, name: str, uses: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The directory of a cgroup, and why some uses do not work; OSError if none does."""
    group = os.path.join(parent, name)
    for turn in range(1, _TURNS + 1):
        try:
            with suppress(FileExistsError):
                os.mkdir(parent)
            reasons = _enable(parent, uses)
            with suppress(FileExistsError):
                os.mkdir(group)
        except OSError as error:
            # Another Atoll may have just removed the empty parent, repeatedly.
            if error.errno not in (errno.ENOENT, errno.ENODEV) or turn == _TURNS:
                raise
        else:
            return group, reasons
    raise AssertionError  # the last iteration returns or raises


def _enable(parent: str, uses: Sequence[str]) -> dict[str, str]:
    """Enables version 2's controllers for the children of `parent`; returns failures by use."""
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
        write(directory, "cgroup.subtree_control", f"+{controller}")
    except OSError as error:
        if error.errno == errno.EBUSY:
            return f"`{directory}` contains processes, so cgroups below it cannot be limited"
        return _reason(error)
    return None


def _try_use(group: str, use: str) -> str | None:
    if use in _TRIAL:
        return set_limit(group, use, _TRIAL[use])
    wanted = "freezer.state" if use == FREEZER else "cgroup.freeze"
    return None if os.path.exists(os.path.join(group, wanted)) else f"no `{wanted}` in `{group}`"


def _try_entering(group: str) -> str | None:
    """Moves a child into the cgroup; None on success, otherwise the reason."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            inside = Group({UNIFIED: group})
            inside.enter()
            os.write(writer, b"ok" if os.getpid() in inside.pids() else b"entering has no effect")
        except OSError as error:
            os.write(writer, os.fsencode(_reason(error)))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        result = os.fsdecode(stream.read())
    os.waitpid(pid, 0)
    return None if result == "ok" else result or "the probe died"


def plan_settings(use: str, value: float | None, files: Collection[str]) -> list[tuple[str, str]]:
    """The files of a cgroup to write, in order, with their content; None removes a limit."""
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
        # The limit of memory with swap must never be below that of memory alone.
        wanted = [(both, "-1"), ("memory.limit_in_bytes", text), (both, text)]
    return [setting for setting in wanted if setting[0] in files]


def set_limit(group: str, use: str, value: float | None) -> str | None:
    """Writes a limit and reads it back; None on success, otherwise the reason."""
    try:
        settings = plan_settings(use, value, os.listdir(group))
        for file, text in settings:
            write(group, file, text)
        for file, text in dict(settings).items():
            if not _holds(_read(group, file), text):
                return f"`{os.path.join(group, file)}` did not accept `{text}`"
    except OSError as error:
        return _reason(error)
    return None if settings else f"`{group}` has no limit for `{use}`"


def _holds(found: str, text: str) -> bool:
    if text == "-1":  # shown as the highest number, or as that of a parent
        return True
    if text.isdecimal() and found.strip().isdecimal() and int(text) >= _PAGE:
        return 0 <= int(text) - int(found) < _PAGE
    return found.split() == text.split()


def make_group(places: CgroupParents, name: str, limits: Limits) -> CreatedCgroup:
    """Creates the cgroup `name` in all parents and sets its limits; an existing one is reused.

    Does not fail if a limit cannot be set, since the caller can watch it instead: see
    `CreatedCgroup.unmet`. Raises ValueError for an unusable name.
    """
    if not _NAME.fullmatch(name) or _PROBE.fullmatch(name):
        raise ValueError(f"`{name}` cannot be the name of a cgroup")
    directories: dict[str, str] = {}
    reasons = dict(places.missing)
    for parent, uses in _uses(places).items():
        try:
            group, refused = _make_directory(parent, name, uses)
        except OSError as error:
            reasons.update(dict.fromkeys(uses, _reason(error)))
            continue
        reasons.update(refused)
        directories.update(dict.fromkeys((use for use in uses if use not in refused), group))
    unmet = {}
    for kind in LIMITS:
        use = kind.controller
        if not use:
            continue
        value: float | None = getattr(limits, kind.field)
        reason = reasons.get(use)
        if use in directories:
            reason = set_limit(directories[use], use, value)
        if value is not None and reason is not None:
            unmet[kind.name] = reason
    return CreatedCgroup(directories, unmet)


def sweep(places: CgroupParents, prefix: str, is_alive: Callable[[str], bool]) -> Swept:
    """Kills and removes the cgroups `prefix…` that are not alive, and the remains of dead probes.

    Removes empty parents as well. Raises OSError if a cgroup may not be removed.
    """
    if not prefix:
        raise ValueError("without a prefix, cgroups of other homes would be removed")
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


def _uses(places: CgroupParents) -> dict[str, list[str]]:
    """The uses of each directory."""
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


def _reason(error: OSError) -> str:
    return f"`{error.filename}`: {error.strerror}" if error.filename else str(error.strerror)


_HOME = "user.atoll.home"
_CAPSULE_NAME = re.compile(r"[0-9a-f]{8}-[0-9]+")


def record_home(directories: Iterable[str], home: Path) -> None:
    """Records the home for which the directories of a cgroup were created."""
    value = f"{_namespace()} {home}".encode(errors="surrogateescape")
    for directory in set(directories):
        with suppress(OSError):  # without the record it is not swept as an orphan
            os.setxattr(directory, _HOME, value)


def sweep_orphans(parents: Iterable[str]) -> None:
    """Removes orphaned cgroups below these directories."""
    namespace = _namespace()
    for parent in set(parents):
        for name in _names(parent):
            path = os.path.join(parent, name)
            if _is_orphan(path, namespace):
                # The kernel refuses to remove one with processes or children.
                with suppress(OSError):
                    os.rmdir(path)


def _names(parent: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(parent) if _CAPSULE_NAME.fullmatch(name))
    except OSError:
        return []


def _is_orphan(group: str, namespace: int) -> bool:
    try:
        if os.stat(group).st_uid != os.geteuid():
            return False
        made_in, _, home = os.getxattr(group, _HOME).decode(errors="surrogateescape").partition(" ")
    except OSError:
        return False
    return made_in == str(namespace) and os.path.isabs(home) and _is_gone(home)


def _is_gone(path: str) -> bool:
    """True only if the kernel reports that the path does not exist."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _namespace() -> int:
    return os.stat("/proc/self/ns/mnt").st_ino
