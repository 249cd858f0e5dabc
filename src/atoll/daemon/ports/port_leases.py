"""Leases for ports that begin to listen in a capsule: how many, which, and how often.

The listing comes from inside and may name thousands of ports that change all the time. An update
takes time linear in the listing, at most one transaction, and reads of the store that do not depend
on the listing.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from atoll.daemon.ports.published_capsule import PublishedCapsule
from atoll.engine.network import ports
from atoll.engine.project import settings
from atoll.engine.state.session import Session
from atoll.model.errors import SpecError, StateError
from atoll.model.state import CapsuleRecord, ProjectRecord

MAX_PORTS = 64
"""Leases of one capsule: one that listens on thousands must not use up those of all others."""
RECYCLE_AFTER_S = 30.0
"""How long a lease outlives its listener when another port needs the room, so that the URL of a
server that restarts stays the same."""
FORGET_AFTER_S = 300.0
"""How long it is kept while no other port needs the room."""
COALESCE_S = 1.0
"""The least time between two transactions for undeclared ports of one capsule."""


class Change(NamedTuple):
    """What to write to the store."""

    lease: dict[str, int]
    release: tuple[str, ...] = ()


class PortLeases:
    def __init__(self, session: Session, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock = clock
        self._files: dict[str, tuple[object, dict[str, int]]] = {}

    async def update(
        self, one: PublishedCapsule, capsule: CapsuleRecord, project: ProjectRecord
    ) -> CapsuleRecord:
        """Leases a port for what listens and has none, within the bounds above. Returns the
        capsule as it is then.

        Raises StateError when the capsule is gone.
        """
        now = self._clock()
        idle = one.idle_leases(capsule, now)
        missing = frozenset(one.listening) - set(capsule.numbers.values())
        one.unpublished = missing
        is_due = one.leased_at is None or now >= one.leased_at + COALESCE_S
        forgotten = one.leases_idle_for(FORGET_AFTER_S, now) if is_due else []
        if not missing and not forgotten:
            return capsule
        services = await asyncio.to_thread(self._services, project)
        old = [name for name, since in idle.items() if now >= since + RECYCLE_AFTER_S]
        change = plan_change(capsule, missing, services, old, with_undeclared=is_due)
        change = change._replace(release=tuple(dict.fromkeys([*change.release, *forgotten])))
        if not change.lease and not change.release:
            return capsule
        if change.release or any(name.isdigit() for name in change.lease):
            one.leased_at = now
        fresh = await asyncio.to_thread(self._apply, capsule, change)
        one.unpublished = missing - set(fresh.numbers.values())
        return fresh

    def has_forgettable(self, one: PublishedCapsule) -> bool:
        """Whether a lease has been idle long enough for `update` to release it."""
        return bool(one.leases_idle_for(FORGET_AFTER_S, self._clock()))

    def _apply(self, capsule: CapsuleRecord, change: Change) -> CapsuleRecord:
        ports.lease_more(self._session, capsule, change.lease, change.release)
        found = self._session.store.capsule(capsule.id)
        if found is None:
            raise StateError(f"the capsule `{capsule.name}` has been removed")
        return found

    def _services(self, project: ProjectRecord) -> dict[str, int]:
        """The ports that the project file declares now; none when it cannot be read."""
        root = Path(project.root)
        try:
            state = (root / settings.FILE_NAME).stat()
        except OSError:
            return {}
        stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
        known = self._files.get(project.id)
        if known is None or known[0] != stamp:
            services: dict[str, int] = {}
            with suppress(SpecError, StateError):
                file = settings.load_config(root, self._session.owner).file
                services = file.services if file is not None else {}
            self._files[project.id] = known = (stamp, services)
        return known[1]


def plan_change(
    capsule: CapsuleRecord,
    missing: Collection[int],
    services: Mapping[str, int],
    idle: Collection[str],
    *,
    with_undeclared: bool = True,
) -> Change:
    """Declared ports first, then the lowest. Leases in `idle` make room for others; for a declared
    port also the highest undeclared one does. Declared leases are never given up.
    """
    names = {
        port: name for name, port in services.items()
        if port in missing and name not in capsule.ports
    }  # fmt: skip
    room = max(0, MAX_PORTS - len(capsule.ports))
    given_up = set(idle)
    found = [(n in given_up, capsule.numbers[n], n) for n in capsule.ports if n.isdigit()]
    # The kernel picks ephemeral ports from the top: these are the least likely to return.
    spare = [name for _, _, name in sorted(found, reverse=True)]
    fitting = heapq.nsmallest(room + len(spare), names)
    lease = {names[port]: port for port in fitting}
    if with_undeclared:
        left = room + len(given_up) - len(lease)
        others = heapq.nsmallest(max(0, left), (p for p in missing if p not in names))
        lease |= {str(port): port for port in others}
    return Change(lease, tuple(spare[: max(0, len(lease) - room)]))
