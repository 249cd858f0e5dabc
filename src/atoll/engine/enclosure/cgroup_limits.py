"""The limits of a capsule: its cgroup, where the host permits one, and how each limit is held."""

from __future__ import annotations

import json
import os
import resource
import zlib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from atoll.drivers.layers import probes
from atoll.engine.project import levels
from atoll.engine.state.session import Session
from atoll.host import cgroups, scopes
from atoll.host.cgroups import LIMITED, CgroupParents, CreatedCgroup, Swept, can_enter
from atoll.host.forkserver import Confined
from atoll.host.scopes import NoAnswerError, ScopeError, Scopes
from atoll.keeper import rlimits
from atoll.keeper.groups import Group
from atoll.model.enclosure import LIMITS, LIMITS_BY_FIELD, SETTABLE_LIMITS, Limits
from atoll.model.errors import StateError
from atoll.model.state import CapsuleRecord

_PID_MAX = "/proc/sys/kernel/pid_max"
_BY_FIELD = {kind.field: kind for kind in LIMITS}


def find_cgroup_parents(home: Path) -> CgroupParents:
    """Where groups can be made; tried once per boot."""

    def probe(_: Path) -> tuple[str | None, str]:
        return json.dumps(cgroups.find_cgroup_parents()._asdict()), "groups were made and removed"

    found, _ = probes.remembered(home, "groups", probe)
    return CgroupParents(**json.loads(str(found)))


def find_scopes(home: Path) -> Scopes | None:
    """Which limits scopes of the systemd user manager enforce; tested once per boot.

    None where there is no such manager, or where it did not answer: then it is tried again.
    """
    manager = scopes.find_manager()
    if manager is None:
        return None

    def probe(_: Path) -> tuple[str | None, str]:
        found = try_scopes(manager)
        return None if found is None else json.dumps(found._asdict()), "a scope was made and left"

    found, _ = probes.remembered(home, "scopes", probe, is_curable=True)
    return None if found is None else Scopes(**json.loads(found))


def try_scopes(manager: str) -> Scopes | None:
    """None when the manager does not answer."""
    try:
        return scopes.try_scopes(manager)
    except NoAnswerError:
        return None
    except ScopeError as error:
        return Scopes("", [], dict.fromkeys(LIMITED, str(error)))


def prefers_scope(direct: Mapping[str, str], scoped: Scopes | None) -> bool:
    """Whether scopes hold limits, and no fewer than groups that are made without one.

    With as many, too: a scope can be had in every session of the user, and what can be entered
    without one depends on the session.
    """
    if scoped is None:
        return False
    held = sum(use in scoped.uses for use in LIMITED)
    return held > 0 and held >= sum(use in direct for use in LIMITED)


def choose(direct: CgroupParents, scoped: Scopes | None) -> CgroupParents:
    """What holds the limits of a capsule, by use; the directories are not those of its group."""
    if scoped is not None and prefers_scope(direct.parents, scoped):
        return CgroupParents(dict.fromkeys(scoped.uses, scoped.directory), scoped.missing)
    if scoped is None:
        return direct
    missing = {
        use: "; ".join(filter(None, (reason, scoped.missing.get(use))))
        for use, reason in direct.missing.items()
    }
    return direct._replace(missing=missing)


def _chosen(home: Path) -> CgroupParents:
    return choose(find_cgroup_parents(home), find_scopes(home))


def describe(
    session: Session, limits: Limits, holder: Mapping[str, object] | None = None
) -> dict[str, tuple[float, str]]:
    """By name, each limit as it is in force and how it is held (`holding`).

    `holder` is what the process that starts the capsule's runs answers to a ping, None where none
    is running.
    """
    if not limits:
        return {}
    held = _chosen(session.home).parents if holder is None else _held_by(session, holder)
    pid = 0 if holder is None else int(str(holder["pid"]))
    if limits.files is not None:
        limits = limits._replace(files=files_in_force(limits.files, pid))
    return {field: (value, holding(field, held)) for field, value in limits.by_field().items()}


def _held_by(session: Session, holder: Mapping[str, object]) -> Collection[str]:
    """What the group of a holder is for. One of a former version does not say, and has no scope."""
    held = holder.get("held")
    return held if isinstance(held, list) else find_cgroup_parents(session.home).parents


def uncounted(limit: str, how: str) -> tuple[str, ...]:
    """What a limit does not include where it is held like this."""
    return LIMITS_BY_FIELD[limit].uncounted if how == "watched" else ()


def holding(limit: str, parents: Collection[str]) -> str:
    """How a limit is held where groups for these uses can be made: `enforced` by the kernel,
    `watched` by the keeper, which ends a run that exceeds it, or `not enforced`.
    """
    kind = LIMITS_BY_FIELD[limit]
    return "enforced" if kind.controller in parents else kind.fallback


def find_unheld(session: Session, limits: Collection[str]) -> list[str]:
    """Those of these limits, by their names in settings, that nothing holds on this machine."""
    doubtful = [k for k in LIMITS if k.name in limits and k.fallback == "not enforced"]
    if not doubtful:
        return []
    parents = _chosen(session.home).parents
    return [kind.name for kind in doubtful if holding(kind.field, parents) == "not enforced"]


def open_group(session: Session, capsule: CapsuleRecord, limits: Limits) -> dict[str, str]:
    """Makes the capsule's group, or takes it over; returns its directories by their use."""
    if not limits:
        return {}
    name = _name(session, capsule)
    made = cgroups.make_group(find_cgroup_parents(session.home), name, limits)
    cgroups.record_home(made.directories.values(), session.home)
    return _taken(made)


def plan_scope(
    session: Session, capsule: CapsuleRecord, limits: Limits
) -> Callable[[int], Confined] | None:
    """What gives the capsule's holder, by its process id, a scope with the capsule's group; None
    where `open_group` does as well.
    """
    if not limits:
        return None
    manager, scoped = scopes.find_manager(), find_scopes(session.home)
    if manager is None or scoped is None:
        return None
    if not prefers_scope(find_cgroup_parents(session.home).parents, scoped):
        return None

    def confine(holder: int) -> Confined:
        name = _name(session, capsule)
        # The lock of the view is ours: what an earlier holder has left is unused.
        for scope in scopes.find_scopes(scoped.directory, lambda found: found == name):
            scopes.end(scope)
        try:
            unit = scopes.unit_name(name)
            scope = scopes.start(manager, unit, holder, f"Atoll capsule {capsule.name}")
            scopes.settle(scope)
            made = scopes.make_group(scoped, scope, name, limits)
        except (ScopeError, OSError) as error:
            # The manager was stopped, or hangs: as where there is none.
            session.warn(f"the limits of `{capsule.name}` are not enforced: {error}")
            return Confined(_open_reachable(session, capsule, limits))
        return Confined(_taken(made))

    return confine


def _open_reachable(session: Session, capsule: CapsuleRecord, limits: Limits) -> dict[str, str]:
    """As `open_group`, unless another session of the user has found out where groups can be made,
    and this one cannot enter them.
    """
    parents = find_cgroup_parents(session.home).parents.values()
    return open_group(session, capsule, limits) if can_enter(parents) else {}


def _taken(made: CreatedCgroup) -> dict[str, str]:
    """What the kernel did not take for this one has to be watched."""
    unmet = {kind.controller for kind in LIMITS if kind.name in made.unmet}
    return {use: place for use, place in made.directories.items() if use not in unmet}


def close_group(session: Session, capsule: CapsuleRecord) -> None:
    """Kills what is left in the capsule's group and removes it; fine without one.

    Raises StateError when processes are left in it that cannot be killed.
    """
    places = find_cgroup_parents(session.home)
    name = _name(session, capsule)
    _end_scopes(session, capsule)
    group = Group({use: f"{parent}/{name}" for use, parent in places.parents.items()})
    group.kill()
    left = group.remove()
    if left:
        raise StateError(_stuck(capsule.name, left), hint="atoll gc")
    for parent in set(places.parents.values()):
        # Not empty: others have groups there.
        with suppress(OSError):
            os.rmdir(parent)


def _end_scopes(session: Session, capsule: CapsuleRecord) -> None:
    name, scoped = _name(session, capsule), find_scopes(session.home)
    if scoped is None:
        return
    for scope in scopes.find_scopes(scoped.directory, lambda found: found == name):
        left = scopes.end(scope)
        if left:
            raise StateError(_stuck(capsule.name, left), hint="atoll gc")


def sweep(session: Session) -> list[str]:
    """Removes the groups of capsules that are no more; returns those of this home.

    Those of homes that no longer exist are removed, too, and not reported.
    """
    living = {_name(session, capsule) for capsule in session.store.capsules()}
    places = find_cgroup_parents(session.home)
    cgroups.sweep_orphans(places.parents.values())
    swept = cgroups.sweep(places, _prefix(session), lambda name: name in living)
    _sweep_scopes(session, swept)
    for name, left in swept.stuck.items():
        session.warn(_stuck(name, left))
    return swept.removed


def _sweep_scopes(session: Session, swept: Swept) -> None:
    prefix, scoped = _prefix(session), find_scopes(session.home)
    if scoped is None:
        return
    found = scopes.find_scopes(scoped.directory, lambda name: name.startswith(prefix))
    # Read afterwards: a capsule is in the store before it has a scope.
    living = {_name(session, capsule) for capsule in session.store.capsules()}
    for scope, name in found.items():
        if name in living:
            continue
        left = scopes.end(scope)
        if left:
            swept.stuck[name] = left
        else:
            swept.removed.append(os.path.basename(scope))


def _stuck(name: str, left: Collection[int]) -> str:
    return f"processes of `{name}` cannot be killed: {', '.join(map(str, left))}"


def _name(session: Session, capsule: CapsuleRecord) -> str:
    return f"{_prefix(session)}{capsule.id}"


def _prefix(session: Session) -> str:
    return f"{zlib.crc32(str(session.home).encode(errors='surrogateescape')):08x}-"


def capacity(home: Path) -> dict[str, float]:
    """How much there is of what can be limited, by the names that settings use."""
    filesystem = os.statvfs(home)
    return {
        **levels.MACHINE,
        "pids": _pid_max(),
        "files": files_in_force(SETTABLE_LIMITS["files"].highest),
        "disk": filesystem.f_blocks * filesystem.f_frsize,
    }


def files_in_force(limit: float, pid: int = 0) -> int:
    """The limit on open files that a process started by `pid` (0: this process) really gets.

    A hard limit is never raised, so the one of the parent counts where it is lower.
    """
    try:
        hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
    except OSError:  # it has just ended
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return rlimits.files_limit(int(limit), hard)


def describe_excess(limits: Mapping[str, float | None], available: Mapping[str, float]) -> str:
    """Names the limits that exceed what is available; empty if none does."""
    from atoll.model.limits import render_limit  # noqa: PLC0415 - only for chosen limits

    found = [
        f"`{name}={render_limit(SETTABLE_LIMITS[name], value)}` "
        f"(of {render_limit(SETTABLE_LIMITS[name], available[name])})"
        for name, value in limits.items()
        if value is not None and value > available.get(name, float("inf"))
    ]
    if not found:
        return ""
    return f"limits above what this machine has, so the smaller number applies: {', '.join(found)}"


def _pid_max() -> int:
    try:
        with open(_PID_MAX, encoding="ascii") as file:
            return int(file.read(32))
    except (OSError, ValueError):
        return int(SETTABLE_LIMITS["pids"].highest)
