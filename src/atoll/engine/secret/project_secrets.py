"""The secrets of one project: what `Project.secrets` returns."""

from __future__ import annotations

from collections.abc import Callable

from atoll.engine.network import daemon_client
from atoll.engine.secret import listing, secrets, vault_keys
from atoll.engine.secret.listing import SecretStatus
from atoll.engine.secret.secret_spec import SecretSpec, require_name
from atoll.engine.state.session import Session
from atoll.model.daemon_messages import DoneReply, LockRequest, UnlockRequest
from atoll.model.errors import StateError
from atoll.model.secret import (
    AuditEntry,
    Delivery,
    GrantRecord,
    OriginKind,
    SecretOrigin,
)
from atoll.model.state import CapsuleRecord, ProjectRecord


class Secrets:
    """A handle. `require_capsule` finds a capsule by its name."""

    def __init__(
        self,
        session: Session,
        project: ProjectRecord,
        require_capsule: Callable[[str], CapsuleRecord],
    ) -> None:
        self._session = session
        self._project = project
        self._require_capsule = require_capsule

    def statuses(self) -> list[SecretStatus]:
        """What is set and what the project file declares, by name."""
        return listing.list_secrets(self._session, self._project)

    def require(self, name: str) -> SecretStatus:
        """Raises StateError when there is none, or when it is only declared."""
        secrets.require(self._session, self._project, name)
        return next(one for one in self.statuses() if one.name == name)

    def set(
        self,
        name: str,
        value: bytes | None = None,
        *,
        origin: SecretOrigin = SecretOrigin(OriginKind.TYPED),  # noqa: B008 - a tuple
        delivery: Delivery | None = None,
        ttl_s: float | None = None,
    ) -> SecretStatus:
        """Sets a secret to a value, or to what its origin has; grants stay. Without a delivery, it
        keeps the one that it has, or becomes a variable.

        Raises StateError when a brokered secret that is granted would get another form.
        """
        spec = SecretSpec(name, origin, delivery, ttl_s, value)
        secrets.set_secret(self._session, self._project, spec)
        return self.require(name)

    def require_settable(self, name: str, delivery: Delivery | None = None) -> None:
        """Raises SpecError and StateError as `set` would, before there is a value."""
        require_name(name)
        secrets.require_form(self._session, self._project, name, delivery)

    def grant(self, name: str, capsule: str, *, ttl_s: float | None = None) -> GrantRecord:
        """Lets a capsule use a secret, for `ttl_s` or as long as the secret says."""
        record = self._require_capsule(capsule)
        return secrets.grant(self._session, self._project, name, record, ttl_s=ttl_s)

    def revoke(self, name: str, capsule: str) -> None:
        record = self._require_capsule(capsule)
        secrets.revoke(self._session, self._project, name, record)

    def rotate(self, name: str, value: bytes | None = None) -> SecretStatus:
        """Replaces a value, by the given one or from its origin; grants stay."""
        secrets.rotate(self._session, self._project, name, value)
        return self.require(name)

    def remove(self, name: str) -> None:
        """Removes a secret with its grants; the audit stays."""
        secrets.remove(self._session, self._project, name)

    def audit(self, name: str | None = None) -> list[AuditEntry]:
        """The oldest first; of one secret, or of all, also of removed ones."""
        return secrets.audit(self._session, self._project, name)

    @property
    def has_passphrase(self) -> bool:
        return vault_keys.key_store_of(self._session).place() == "passphrase"

    def set_passphrase(self, passphrase: str) -> None:
        """Protects the vault of this home, for all projects; an empty one removes it."""
        vault_keys.protect(self._session, passphrase)

    def unlock(self) -> None:
        """Gives the key of the vault to the daemon, for as long as that runs."""
        vault_keys.require_vault(self._session)
        key = vault_keys.load_afresh(self._session)
        daemon_client.ask(self._session, UnlockRequest(key.id, key.secret.hex()), DoneReply)

    def lock(self) -> bool:
        """Takes the key back; returns whether a daemon was running."""
        vault_keys.drop(self._session.home)
        try:
            daemon_client.ask(self._session, LockRequest(), DoneReply, start=False)
        except StateError:
            return False
        return True
