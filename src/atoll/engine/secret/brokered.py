"""Brokered secrets as the daemon uses them: which ones a capsule may use, and their values now."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from atoll.drivers import registry
from atoll.drivers.contracts import FoundLogin
from atoll.engine.network import rules
from atoll.engine.secret import resolve
from atoll.engine.secret.vault_keys import VaultLockedError
from atoll.engine.state.session import Session
from atoll.model.errors import SecretUnavailable, StateError
from atoll.model.presets import PRESETS
from atoll.model.secret import (
    USE_NOTED_S,
    AuditEntry,
    GrantRecord,
    OriginKind,
    SecretRecord,
    Substitution,
    marker_of,
)

if TYPE_CHECKING:
    from atoll.model.adapter import Login

NOTED_S = 60.0
"""The least time between two lines of the audit about the same use of a secret."""
_NOTES_HELD = 1024
_MODEL_HOSTS = frozenset(PRESETS["model-apis"])
_noted: dict[tuple[int, int, str], float] = {}
_used: dict[tuple[int, int], float] = {}


class BrokeredSecret(NamedTuple):
    grant: GrantRecord
    model: bool
    """Whether its requests are for a model: their usage is counted."""


def brokered(session: Session, capsule_id: int) -> tuple[BrokeredSecret, ...]:
    """The brokered secrets that a capsule may use now. Reads the database only."""
    return tuple(
        BrokeredSecret(grant, _is_for_model(grant.secret))
        for grant in rules.brokered_grants(session, capsule_id)
    )


def public_hosts(session: Session, capsule_id: int) -> list[str]:
    """The network rules that the capsule needs for them; its policy includes these."""
    return rules.brokered_rules(session, capsule_id)


def substitutions(session: Session, secret: BrokeredSecret) -> tuple[Substitution, ...]:
    """The real values now, with the markers of their placeholders. May take seconds.

    Raises SecretUnavailable with the cure when there is no value now, SpecError when it cannot be
    sent.
    """
    grant = secret.grant
    try:
        values = _values_of(session, grant.secret)
    except VaultLockedError as error:
        raise SecretUnavailable(error.message, hint="atoll secret unlock") from None
    return tuple(
        Substitution(marker_of(grant.placeholder, field), value) for field, value in values.items()
    )


def _values_of(session: Session, secret: SecretRecord) -> Mapping[str, str]:
    """By field."""
    if secret.origin.kind is OriginKind.LOGIN:
        return require_login(session, secret).values
    return {"": resolve.detached_value(session, secret).decode("ascii")}


def require_login(session: Session, secret: SecretRecord) -> FoundLogin:
    """The login of an agent's program, read from where the program keeps it.

    Raises SecretUnavailable when there is none any more, and when it has expired.
    """
    login, owner = _describe(session, secret)
    if login.variable is not None:
        owner |= _key_of(session, secret, login.variable)
    found = registry.find_login(login, owner)
    if found is None:
        raise SecretUnavailable(
            f"you are not logged in to `{secret.origin.of}` any more ({login.title})",
            hint=login.cure,
        )
    if found.is_expired:
        raise SecretUnavailable(
            f"your login of `{secret.origin.of}` has expired ({login.title})",
            hint=found.cure or login.cure,
        )
    return found


def login_of(secret: SecretRecord) -> Login:
    """The description of a login in the adapter of its agent."""
    from atoll.model.adapter import Login  # noqa: PLC0415 - pydantic

    return Login.model_validate(json.loads(secret.origin.detail)["login"])


def find_file_tokens(session: Session, secret: SecretRecord) -> tuple[str, ...]:
    """The tokens in the file of a login, expired or not; none of a login that is a key, or that
    cannot be used any more.
    """
    login, owner = _describe(session, secret)
    found = None
    if login.file is not None:
        with suppress(StateError):
            found = registry.find_login(login, owner)
    return () if found is None else tuple(found.values.values())


def _describe(session: Session, secret: SecretRecord) -> tuple[Login, dict[str, str]]:
    """The login of a secret, and the variables that say where its file is."""
    places = json.loads(secret.origin.detail)["owner"]
    return login_of(secret), {**session.owner, **places}


def _key_of(session: Session, secret: SecretRecord, variable: str) -> dict[str, str]:
    """A login that is a key: the secret of that name, or the value that the owner had."""
    same = session.store.find_secret(secret.project_id, variable)
    if same is not None and same.origin.kind is not OriginKind.LOGIN:
        return {variable: resolve.detached_value(session, same).decode("ascii", "replace")}
    kept = resolve.find_kept(session, secret.project_id, secret.name)
    if kept is None:
        return {}
    resolve.require_same_settings(secret, kept)
    return {variable: kept.value.decode("ascii", "replace")}


def note_use(session: Session, secret: BrokeredSecret, *, refused: str = "") -> None:
    """Records that a capsule has used a secret, or why it was refused: at most one line of the
    audit per minute, secret and capsule for each.
    """
    grant = secret.grant
    _store_use(session, grant, refused)
    key, now = (grant.capsule_id, grant.secret.id, "refused" if refused else "used"), time.time()
    if abs(now - _noted.get(key, 0.0)) < NOTED_S:
        return
    if len(_noted) >= _NOTES_HELD:
        _noted.clear()
    _noted[key] = now
    capsule = session.store.capsule(grant.capsule_id)
    name = None if capsule is None else capsule.name
    entry = AuditEntry(now, grant.secret.name, name, key[2], refused[:200])
    session.store.add_audit(grant.secret.project_id, entry)


def _store_use(session: Session, grant: GrantRecord, refused: str) -> None:
    key, now = (grant.capsule_id, grant.secret.id), time.time()
    if refused or abs(now - _used.get(key, 0.0)) < USE_NOTED_S:
        return
    if len(_used) >= _NOTES_HELD:
        _used.clear()
    _used[key] = now
    session.store.set_secret_used(grant)


def _is_for_model(secret: SecretRecord) -> bool:
    scope = secret.delivery.broker
    hosts = set() if scope is None else set(scope.hosts)
    return secret.origin.kind is OriginKind.LOGIN or bool(hosts & _MODEL_HOSTS)
