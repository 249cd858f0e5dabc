"""The capsules whose ports are published: their records in the store, and what listens in them.

Records are cached between two reads of the store: connections do not wait for a disk.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

from atoll.daemon.ports.host_listeners import PortForward
from atoll.daemon.ports.targets import LOOPBACK, Inside, Target
from atoll.engine.network import urls
from atoll.engine.project import levels
from atoll.engine.state.session import Session
from atoll.host.listening_sockets import Listening, dial_order
from atoll.model.state import CapsuleRecord, CapsuleState, CheckoutRecord, ProjectRecord


class StoreCache(NamedTuple):
    projects: dict[str, ProjectRecord] = {}  # noqa: RUF012 - a tuple's default, never changed
    labels: dict[str, str] = {}  # noqa: RUF012 - likewise
    """Project id → its part of a host name."""
    capsules: dict[int, CapsuleRecord] = {}  # noqa: RUF012 - likewise
    checkouts: dict[str, CheckoutRecord] = {}  # noqa: RUF012 - likewise
    """Project id → the capsule that has the canonical ports."""

    sites: dict[str, int] = {}  # noqa: RUF012 - likewise
    """The label of a capsule's own site → its id."""

    def checked_out(self, project_id: str) -> CapsuleRecord | None:
        """The capsule that has the project's canonical ports."""
        chosen = self.checkouts.get(project_id)
        return None if chosen is None else self.capsules.get(chosen.capsule_id)

    def with_capsule(self, capsule: CapsuleRecord) -> StoreCache:
        """The same with a newer record of one capsule."""
        return self._replace(capsules={**self.capsules, capsule.id: capsule})

    def leased_ports(self) -> set[int]:
        return {port for capsule in self.capsules.values() for port in capsule.ports.values()}

    def of_project(self, project_id: str) -> list[CapsuleRecord]:
        return [c for c in self.capsules.values() if c.project_id == project_id]

    def find_capsule(self, project_label: str, name: str) -> CapsuleRecord | None:
        for capsule in self.capsules.values():
            if capsule.name == name and self.labels[capsule.project_id] == project_label:
                return capsule
        return None

    def site_of(self, capsule: CapsuleRecord) -> str:
        """The label of a capsule's own site."""
        project = self.projects[capsule.project_id]
        return urls.site_label(capsule.name, project, self.labels[project.id])


def read_store(session: Session) -> StoreCache:
    projects = session.store.projects_by_age()
    known = {project.id for project in projects}
    capsules = session.store.capsules()
    found = StoreCache(
        projects={project.id: project for project in projects},
        labels=urls.project_labels(projects),
        capsules={
            c.id: c for c in capsules
            if c.project_id in known and c.state is not CapsuleState.REMOVING
        },
        checkouts=session.store.checkouts(),
    )  # fmt: skip
    return found._replace(sites={found.site_of(c): c.id for c in found.capsules.values()})


def declared(capsule: CapsuleRecord) -> dict[str, int]:
    """Its ports that have a name of their own, as the project knows them."""
    return {name: number for name, number in capsule.numbers.items() if not name.isdigit()}


def has_own_network(capsule: CapsuleRecord) -> bool:
    return levels.has_own_network(capsule.level)


class PublishedCapsule:
    """A capsule whose network can be reached now."""

    def __init__(self, inside: Inside) -> None:
        self.inside = inside
        self.forwards: dict[str, PortForward] = {}
        self.troubles: dict[str, OSError] = {}
        """Leases whose port another process has taken."""
        self.unpublished: frozenset[int] = frozenset()
        """Ports that listen and have no lease."""
        self.is_complete = True
        """Whether the listing named everything that listens."""
        self.leased_at: float | None = None
        """When a port that is not declared was last leased."""
        self._found: frozenset[Listening] = frozenset()
        self._addresses: dict[int, tuple[str, ...]] = {}
        self._idle_since: dict[str, float] | None = None
        self._first_look = math.inf

    @property
    def listening(self) -> Collection[int]:
        """The ports; asking for one of them does not depend on their number."""
        return self._addresses.keys()

    def see(self, inside: Inside, found: frozenset[Listening], *, is_complete: bool) -> bool:
        """Records a new listing. Returns whether it differs from the last one."""
        is_same = self.inside is inside and self._found == found and self.is_complete == is_complete
        self.inside, self._found, self.is_complete = inside, found, is_complete
        if is_same:
            return False
        places: dict[int, list[str]] = {}
        for address, port in found:
            places.setdefault(port, []).append(address)
        self._addresses = {port: tuple(dial_order(at)) for port, at in places.items()}
        return True

    def target(self, number: int) -> Target:
        """The address of a port inside. A port that is missing from an incomplete listing may still
        listen, so it is tried.
        """
        at = self._addresses.get(number, () if self.is_complete else LOOPBACK)
        return Target(self.inside, number, at, self.inside.capsule.id)

    def is_reachable(self, number: int) -> bool:
        return bool(self.target(number).addresses)

    def idle_leases(self, capsule: CapsuleRecord, now: float) -> dict[str, float]:
        """The leases of undeclared ports that do not listen, each with the time since when.

        Those that do not listen at the first listing are treated as long idle: their listeners
        ended with a former run.
        """
        known, since = (self._idle_since, now) if self._idle_since is not None else ({}, -math.inf)
        if self._idle_since is None:
            self._first_look = now
        self._idle_since = {
            name: known.get(name, since)
            for name, number in capsule.numbers.items()
            if name.isdigit() and not self.is_reachable(number)
        }
        return self._idle_since

    def leases_idle_for(self, duration_s: float, now: float) -> list[str]:
        """Those of `idle_leases` that have not listened for this long."""
        return [
            name
            for name, since in (self._idle_since or {}).items()
            if now >= max(since, self._first_look) + duration_s
        ]
