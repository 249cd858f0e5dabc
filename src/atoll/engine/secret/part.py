"""The secrets of a capsule as a part of it.

Grants are rows of the store and no state of the workspace: a snapshot has none, and a rollback
changes none. The placeholders in a private home are in snapshots; they are worth nothing elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from atoll.engine.state.parts import Part
from atoll.engine.state.session import Session
from atoll.host import files
from atoll.model.plan import Removal
from atoll.model.secret import AuditEntry, DeliveryKind, GrantRecord
from atoll.model.state import CapsuleRecord, Snapshot

WITHHELD = "withheld"
"""The act of the audit for a secret that a fork does not get."""
_CA_DIRECTORY = "broker"
_BROKERED = f", {DeliveryKind.BROKER} "
"""In the audit, of a secret that is set in this form."""


def find_held(session: Session, capsule: CapsuleRecord) -> set[str]:
    """The secrets whose values the capsule has, or once had, or which were in the files that it was
    made of. Brokered values never enter a capsule.
    """
    grants = session.store.secret_grants(capsule.id)
    held = {g.secret.name for g in grants if g.secret.delivery.kind is not DeliveryKind.BROKER}
    audit = session.store.audit(capsule.project_id)
    harmless = {
        secret.name
        for secret in session.store.secrets(capsule.project_id)
        if secret.delivery.kind is DeliveryKind.BROKER
    }
    # It may have had another form when it was granted.
    harmless -= {entry.secret for entry in audit if entry.act == "set" and _is_value(entry)}
    # A recovery point does not say which capsules its files come from.
    given = {
        entry.secret
        for entry in audit
        if entry.act in ("granted", WITHHELD)
        and (capsule.is_recovered or entry.capsule == capsule.name)
    }
    return held | (given - harmless)


def _is_value(entry: AuditEntry) -> bool:
    return _BROKERED not in entry.detail


class SecretGrants(Part):
    """Has no payload."""

    name = "secrets"

    def fork(
        self, session: Session, origin: CapsuleRecord, point: Snapshot, made: CapsuleRecord
    ) -> None:
        """A fork gets the brokered secrets, with the placeholders that are in its copy of the
        private home, for the time that is left. Values in variables and files are granted anew by
        the owner only.
        """
        del point
        now = time.time()
        withheld = []
        for grant in session.store.secret_grants(origin.id):
            if grant.is_expired(now):
                continue
            secret = grant.secret
            if secret.delivery.kind is DeliveryKind.BROKER:
                session.store.add_secret_grant(secret, made.id, grant.placeholder, grant.expires_at)
                _record(session, made, secret.name, "granted", origin)
            else:
                withheld.append(secret.name)
                _record(session, made, secret.name, WITHHELD, origin)
        for name in find_held(session, origin).difference(withheld):
            # Of a grant that has ended, or of an earlier form.
            _record(session, made, name, WITHHELD, origin)
        if withheld:
            named = ", ".join(f"`{name}`" for name in withheld)
            session.warn(
                f"`{made.name}` does not get {named} of `{origin.name}`; "
                f"atoll secret grant {withheld[0]} {made.name}"
            )

    def remove(self, session: Session, capsule: CapsuleRecord, removal: Removal) -> None:
        """Removes the CA's key before the rest of the directory."""
        del removal
        files.remove_tree(Path(capsule.directory, _CA_DIRECTORY), within=session.home)

    def report(self, session: Session, capsule: CapsuleRecord) -> Mapping[str, str]:
        now = time.time()
        return {
            grant.secret.name: _describe(grant, now)
            for grant in session.store.secret_grants(capsule.id)
        }


def _record(
    session: Session, capsule: CapsuleRecord, secret: str, act: str, origin: CapsuleRecord
) -> None:
    entry = AuditEntry(time.time(), secret, capsule.name, act, f"as a fork of {origin.name}")
    session.store.add_audit(capsule.project_id, entry)


def _describe(grant: GrantRecord, now: float) -> str:
    form = grant.secret.delivery.text
    if grant.expires_at is None:
        return form
    if grant.is_expired(now):
        return f"{form}, expired"
    return f"{form}, until {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(grant.expires_at))}"
