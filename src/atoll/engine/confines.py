"""The group of processes that a capsule's limits are set for, where the host lets us make one."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers import probes
from atoll.engine import machine
from atoll.engine.session import Session
from atoll.host import cgroups, strays
from atoll.host.cgroups import Places
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


_USES = {"memory_bytes": "memory", "cpus": "cpu", "pids": "pids"}
_ALWAYS = ("files",)
_NEVER_WATCHED = ("cpus",)


def tell(
    session: Session, limits: Mapping[str, float], holder: int = 0
) -> dict[str, tuple[float, str]]:
    """By name, each limit as it is in force and how it is held (`holding`).

    `holder` is the process that starts the capsule's runs, 0 where none is running.
    """
    if not limits:
        return {}
    parents = find_places(session.home).parents
    in_force = dict(limits)
    if "files" in limits:
        in_force["files"] = machine.files_in_force(limits["files"], holder)
    return {name: (value, holding(name, parents)) for name, value in in_force.items()}


_SENT = "files sent over sockets"
_UNCOUNTED = {
    "memory_bytes": ("pipes", "socket buffers", "System V IPC", _SENT),
    "disk_bytes": (_SENT, "unmapped parts of unlinked files"),
}


def uncounted(limit: str, how: str) -> tuple[str, ...]:
    """What a limit does not include where it is held like this."""
    return _UNCOUNTED.get(limit, ()) if how == "watched" else ()


def holding(limit: str, parents: Mapping[str, str]) -> str:
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
    parents = find_places(session.home).parents
    return [limit for limit in doubtful if holding(limit, parents) == "not held"]


def open_group(session: Session, capsule: Capsule, limits: Mapping[str, float]) -> dict[str, str]:
    """Makes the capsule's group, or takes it over; returns its directories by their use."""
    if not limits:
        return {}
    asked = _Asked(
        memory_bytes=_whole(limits.get("memory_bytes")),
        cpus=limits.get("cpus"),
        pids=_whole(limits.get("pids")),
    )
    made = cgroups.make_group(find_places(session.home), _name(session, capsule), asked)
    strays.mark(made.directories.values(), session.home)
    # What the kernel did not take for this one has to be watched.
    unmet = {_USES.get(limit, _USES.get(f"{limit}_bytes")) for limit in made.unmet}
    return {use: place for use, place in made.directories.items() if use not in unmet}


def close_group(session: Session, capsule: Capsule) -> None:
    """Removes the capsule's group, with whatever should still be in it; fine without one.

    Raises StateError when processes are left in it that cannot be killed.
    """
    places = find_places(session.home)
    name = _name(session, capsule)
    group = Group({use: f"{parent}/{name}" for use, parent in places.parents.items()})
    group.kill()
    left = group.remove()
    if left:
        raise StateError(_stuck(capsule.name, left), hint="atoll gc")
    for parent in set(places.parents.values()):
        # Not empty: others have groups there.
        with suppress(OSError):
            os.rmdir(parent)


def sweep(session: Session) -> list[str]:
    """Removes the groups of capsules that are no more; returns those of this home.

    Those of homes that are gone go, too, without a word: nothing of this one is removed.
    """
    living = {_name(session, capsule) for capsule in session.store.capsules()}
    places = find_places(session.home)
    strays.sweep(places.parents.values())
    swept = cgroups.sweep(places, _prefix(session), lambda name: name in living)
    for name, left in swept.stuck.items():
        session.warn(_stuck(name, left))
    return swept.removed


def _stuck(name: str, left: Collection[int]) -> str:
    return f"processes of `{name}` cannot be killed: {', '.join(map(str, left))}"


def _name(session: Session, capsule: Capsule) -> str:
    return f"{_prefix(session)}{capsule.id}"


def _prefix(session: Session) -> str:
    return f"{zlib.crc32(str(session.home).encode(errors='surrogateescape')):08x}-"


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
