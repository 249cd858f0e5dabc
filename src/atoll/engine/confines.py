"""The group of processes that a capsule's limits are set for, where the host lets us make one."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers import probes
from atoll.engine import machine
from atoll.engine.session import Session
from atoll.host import cgroups, scopes, strays
from atoll.host.cgroups import LIMITED, Made, Places, Swept
from atoll.host.hierarchies import can_enter
from atoll.host.nursery import Confined
from atoll.host.scopes import NoAnswerError, ScopeError, Scopes
from atoll.keeper.groups import Group
from atoll.model.errors import StateError
from atoll.model.state import Capsule


class _Asked(NamedTuple):
    memory_bytes: int | None
    cpus: float | None
    pids: int | None


def find_places(home: Path) -> Places:
    """Where groups can be made; tried once per boot."""

    def probe(_: Path) -> tuple[str | None, str]:
        return json.dumps(cgroups.find_places()._asdict()), "groups were made and removed"

    found, _ = probes.remembered(home, "groups", probe)
    return Places(**json.loads(str(found)))


def find_scopes(home: Path) -> Scopes | None:
    """What scopes of the systemd user manager are good for; tried once per boot.

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


def choose(direct: Places, scoped: Scopes | None) -> Places:
    """What holds the limits of a capsule, by use; the directories are not those of its group."""
    if scoped is not None and prefers_scope(direct.parents, scoped):
        return Places(dict.fromkeys(scoped.uses, scoped.directory), scoped.missing)
    if scoped is None:
        return direct
    missing = {
        use: "; ".join(filter(None, (reason, scoped.missing.get(use))))
        for use, reason in direct.missing.items()
    }
    return direct._replace(missing=missing)


def _chosen(home: Path) -> Places:
    return choose(find_places(home), find_scopes(home))


_USES = {"memory_bytes": "memory", "cpus": "cpu", "pids": "pids"}
_ALWAYS = ("files",)
_NEVER_WATCHED = ("cpus",)


def tell(
    session: Session, limits: Mapping[str, float], holder: Mapping[str, object] | None = None
) -> dict[str, tuple[float, str]]:
    """By name, each limit as it is in force and how it is held (`holding`).

    `holder` is what the process that starts the capsule's runs answers to a ping, None where none
    is running.
    """
    if not limits:
        return {}
    held = _chosen(session.home).parents if holder is None else _held_by(session, holder)
    pid = 0 if holder is None else int(str(holder["pid"]))
    in_force = dict(limits)
    if "files" in limits:
        in_force["files"] = machine.files_in_force(limits["files"], pid)
    return {name: (value, holding(name, held)) for name, value in in_force.items()}


def _held_by(session: Session, holder: Mapping[str, object]) -> Collection[str]:
    """What the group of a holder is for. One of a former version does not say, and has no scope."""
    held = holder.get("held")
    return held if isinstance(held, list) else find_places(session.home).parents


_SENT = "files sent over sockets"
_UNCOUNTED = {
    "memory_bytes": ("pipes", "socket buffers", "System V IPC", _SENT),
    "disk_bytes": (_SENT, "unmapped parts of unlinked files"),
}


def uncounted(limit: str, how: str) -> tuple[str, ...]:
    """What a limit does not include where it is held like this."""
    return _UNCOUNTED.get(limit, ()) if how == "watched" else ()


def holding(limit: str, parents: Collection[str]) -> str:
    """How a limit is held where groups for these uses can be made: `enforced` by the kernel,
    `watched` by the keeper, which ends a run that was seen beyond it, or `not held`.
    """
    if limit in _ALWAYS or _USES.get(limit) in parents:
        return "enforced"
    return "not held" if limit in _NEVER_WATCHED else "watched"


def find_unheld(session: Session, limits: Collection[str]) -> list[str]:
    """Those of these limits, by their names in settings, that nothing holds on this machine."""
    doubtful = [limit for limit in limits if limit in _NEVER_WATCHED]
    if not doubtful:
        return []
    parents = _chosen(session.home).parents
    return [limit for limit in doubtful if holding(limit, parents) == "not held"]


def open_group(session: Session, capsule: Capsule, limits: Mapping[str, float]) -> dict[str, str]:
    """Makes the capsule's group, or takes it over; returns its directories by their use."""
    if not limits:
        return {}
    name = _name(session, capsule)
    made = cgroups.make_group(find_places(session.home), name, _asked(limits))
    strays.mark(made.directories.values(), session.home)
    return _taken(made)


def plan_scope(
    session: Session, capsule: Capsule, limits: Mapping[str, float]
) -> Callable[[int], Confined] | None:
    """What gives the capsule's holder, by its process id, a scope with the capsule's group; None
    where `open_group` does as well.
    """
    if not limits:
        return None
    manager, scoped = scopes.find_manager(), find_scopes(session.home)
    if manager is None or scoped is None:
        return None
    if not prefers_scope(find_places(session.home).parents, scoped):
        return None

    def confine(holder: int) -> Confined:
        name = _name(session, capsule)
        # The lock of the view is ours: what a former holder has left is nobody's.
        for scope in scopes.find_scopes(scoped.directory, lambda found: found == name):
            scopes.end(scope)
        try:
            unit = scopes.unit_name(name)
            scope = scopes.start(manager, unit, holder, f"Atoll capsule {capsule.name}")
            scopes.settle(scope)
            made = scopes.make_group(scoped, scope, name, _asked(limits))
        except (ScopeError, OSError) as error:
            # The manager was stopped, or hangs: as where there is none.
            session.warn(f"the limits of `{capsule.name}` are not enforced: {error}")
            return Confined(_open_reachable(session, capsule, limits), is_scoped=False)
        return Confined(_taken(made), is_scoped=True)

    return confine


def _open_reachable(
    session: Session, capsule: Capsule, limits: Mapping[str, float]
) -> dict[str, str]:
    """As `open_group`, unless another session of the user has found out where groups can be made,
    and this one cannot enter them.
    """
    parents = find_places(session.home).parents.values()
    return open_group(session, capsule, limits) if can_enter(parents) else {}


def _asked(limits: Mapping[str, float]) -> _Asked:
    return _Asked(
        memory_bytes=_whole(limits.get("memory_bytes")),
        cpus=limits.get("cpus"),
        pids=_whole(limits.get("pids")),
    )


def _taken(made: Made) -> dict[str, str]:
    """What the kernel did not take for this one has to be watched."""
    unmet = {_USES.get(limit, _USES.get(f"{limit}_bytes")) for limit in made.unmet}
    return {use: place for use, place in made.directories.items() if use not in unmet}


def close_group(session: Session, capsule: Capsule) -> None:
    """Removes the capsule's group, with whatever should still be in it; fine without one.

    Raises StateError when processes are left in it that cannot be killed.
    """
    places = find_places(session.home)
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


def _end_scopes(session: Session, capsule: Capsule) -> None:
    name, scoped = _name(session, capsule), find_scopes(session.home)
    if scoped is None:
        return
    for scope in scopes.find_scopes(scoped.directory, lambda found: found == name):
        left = scopes.end(scope)
        if left:
            raise StateError(_stuck(capsule.name, left), hint="atoll gc")


def sweep(session: Session) -> list[str]:
    """Removes the groups of capsules that are no more; returns those of this home.

    Those of homes that are gone go, too, without a word: nothing of this one is removed.
    """
    living = {_name(session, capsule) for capsule in session.store.capsules()}
    places = find_places(session.home)
    strays.sweep(places.parents.values())
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


def _name(session: Session, capsule: Capsule) -> str:
    return f"{_prefix(session)}{capsule.id}"


def _prefix(session: Session) -> str:
    return f"{zlib.crc32(str(session.home).encode(errors='surrogateescape')):08x}-"


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
