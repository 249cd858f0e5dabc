"""The secrets of a project as they are shown: metadata only, never a value."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from atoll.engine.secret import vault_keys
from atoll.engine.state.session import Session
from atoll.model.secret import Delivery, DeliveryKind, SecretOrigin, SecretRecord
from atoll.model.state import ProjectRecord

if TYPE_CHECKING:
    from atoll.engine.project.settings import ProjectFileText


class GrantStatus(NamedTuple):
    capsule: str
    granted_at: float
    expires_at: float | None
    is_expired: bool
    used_at: float | None


class SecretStatus(NamedTuple):
    """A secret as `ls` shows it: metadata only."""

    name: str
    state: str
    """`set`; `declared` in the project file and not granted yet; `unnamed`: the vault has a value,
    and the database, which was lost, has no record of it."""
    origin: SecretOrigin | None = None
    delivery: Delivery | None = None
    ttl_s: float | None = None
    created_at: float | None = None
    rotated_at: float | None = None
    grants: tuple[GrantStatus, ...] = ()

    @property
    def used_at(self) -> float | None:
        return max((g.used_at for g in self.grants if g.used_at is not None), default=None)

    @property
    def expires_at(self) -> float | None:
        """When the first valid grant ends."""
        ends = (g.expires_at for g in self.grants if not g.is_expired)
        return min((end for end in ends if end is not None), default=None)

    @property
    def ends_at_once(self) -> bool:
        """Whether a revoked or expired grant ends in processes that run already."""
        return self.delivery is not None and self.delivery.kind is not DeliveryKind.VARIABLE


def list_secrets(session: Session, project: ProjectRecord) -> list[SecretStatus]:
    """Secrets that are set, and those that the project file declares, by name."""
    names = {capsule.id: capsule.name for capsule in session.store.capsules(project.id)}
    found = [_status(session, secret, names) for secret in session.store.secrets(project.id)]
    known = {one.name for one in found}
    file = load_project_file(session, project)
    declared = {} if file is None else file.secrets
    found += [
        SecretStatus(name, "declared", one.origin, one.delivery, one.ttl_s)
        for name, one in declared.items()
        if name not in known
    ]
    known |= set(declared)
    lost = vault_keys.vault_of(session).names(project.id)
    found += [SecretStatus(name, "unnamed") for name in lost if name not in known]
    return sorted(found, key=lambda one: one.name)


def _status(session: Session, secret: SecretRecord, names: dict[int, str]) -> SecretStatus:
    now = time.time()
    grants = tuple(
        GrantStatus(
            names.get(grant.capsule_id, "?"),
            grant.granted_at,
            grant.expires_at,
            grant.is_expired(now),
            grant.used_at,
        )
        for grant in session.store.grants_of_secret(secret)
    )
    return SecretStatus(
        secret.name, "set", secret.origin, secret.delivery, secret.ttl_s, secret.created_at,
        secret.rotated_at, grants,
    )  # fmt: skip


def load_project_file(session: Session, project: ProjectRecord) -> ProjectFileText | None:
    """Raises SpecError for one with mistakes."""
    from atoll.engine.project.settings import load_config  # noqa: PLC0415 - heavy

    return load_config(Path(project.root), session.owner).file
