"""What the store says of projects and capsules, held in memory between two looks.

Connections are many and must not wait for a disk: they are decided by the last look.
"""

from __future__ import annotations

from typing import NamedTuple

from atoll.engine import levels, urls
from atoll.engine.session import Session
from atoll.model.state import Capsule, CapsuleState, Checkout, Project


class Census(NamedTuple):
    projects: dict[str, Project] = {}  # noqa: RUF012 - a tuple's default, never changed
    labels: dict[str, str] = {}  # noqa: RUF012 - likewise
    """Project id → its part of a host name."""
    capsules: dict[int, Capsule] = {}  # noqa: RUF012 - likewise
    checkouts: dict[str, Checkout] = {}  # noqa: RUF012 - likewise
    """Project id → the capsule that has the canonical ports."""

    sites: dict[str, int] = {}  # noqa: RUF012 - likewise
    """The label of a capsule's own site → its id."""

    def checked_out(self, project_id: str) -> Capsule | None:
        """The capsule that has the project's canonical ports."""
        chosen = self.checkouts.get(project_id)
        return None if chosen is None else self.capsules.get(chosen.capsule_id)

    def with_capsule(self, capsule: Capsule) -> Census:
        """The same with a newer record of one capsule."""
        return self._replace(capsules={**self.capsules, capsule.id: capsule})

    def leased_ports(self) -> set[int]:
        return {port for capsule in self.capsules.values() for port in capsule.ports.values()}

    def of_project(self, project_id: str) -> list[Capsule]:
        return [c for c in self.capsules.values() if c.project_id == project_id]

    def find_capsule(self, project_label: str, name: str) -> Capsule | None:
        for capsule in self.capsules.values():
            if capsule.name == name and self.labels[capsule.project_id] == project_label:
                return capsule
        return None

    def site_of(self, capsule: Capsule) -> str:
        """The label of a capsule's own site."""
        project = self.projects[capsule.project_id]
        return urls.site_label(capsule.name, project, self.labels[project.id])


def take(session: Session) -> Census:
    projects = session.store.projects_by_age()
    known = {project.id for project in projects}
    capsules = session.store.capsules()
    found = Census(
        projects={project.id: project for project in projects},
        labels=urls.project_labels(projects),
        capsules={
            c.id: c for c in capsules
            if c.project_id in known and c.state is not CapsuleState.REMOVING
        },
        checkouts=session.store.checkouts(),
    )  # fmt: skip
    return found._replace(sites={found.site_of(c): c.id for c in found.capsules.values()})


def declared(capsule: Capsule) -> dict[str, int]:
    """Its ports that have a name of their own, as the project knows them."""
    return {name: number for name, number in capsule.numbers.items() if not name.isdigit()}


def has_own_network(capsule: Capsule) -> bool:
    return levels.has_own_network(capsule.level)
