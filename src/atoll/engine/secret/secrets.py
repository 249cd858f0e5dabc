"""Secrets of a project, and which capsules may use them: set, granted, revoked, rotated, removed.

Values go to the vault before the database names them, and leave it before the database forgets
them. Every act is recorded in the audit.
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import TYPE_CHECKING

from atoll.engine.network import daemon_client
from atoll.engine.project import levels, trust
from atoll.engine.secret import brokered, delivery, listing, resolve, vault_keys
from atoll.engine.secret.listing import SecretStatus
from atoll.engine.secret.secret_spec import (
    SecretSpec,
    absolute_origin,
    require_capable,
    require_delivery,
    require_name,
)
from atoll.engine.state.session import Session
from atoll.model.errors import SecretUnavailable, SpecError, StateError
from atoll.model.names import printable
from atoll.model.secret import (
    AuditEntry,
    BrokerScope,
    DeclaredSecret,
    Delivery,
    DeliveryKind,
    GrantRecord,
    OriginKind,
    SecretOrigin,
    SecretRecord,
    make_placeholder,
)
from atoll.model.state import CapsuleRecord, CapsuleState, ProjectRecord

if TYPE_CHECKING:
    from atoll.model.adapter import Login

_PLACEHOLDER_BYTES = 10
_REVISION_BYTES = 8
_LOGIN = "login-"
_PLACES = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)")
"""Variables in the path of a login's file."""


def find(session: Session, project: ProjectRecord, name: str) -> SecretRecord | None:
    return session.store.find_secret(project.id, name)


def require(session: Session, project: ProjectRecord, name: str) -> SecretRecord:
    found = find(session, project, name)
    if found is None:
        raise _missing(name)
    return found


def _missing(name: str) -> StateError:
    return StateError(
        f"there is no secret `{printable(name[:60])}`",
        hint="atoll secret ls, or: atoll secret set NAME",
    )


def list_secrets(session: Session, project: ProjectRecord) -> list[SecretStatus]:
    """Secrets that are set, and those that the project file declares, by name."""
    return listing.list_secrets(session, project)


def audit(session: Session, project: ProjectRecord, name: str | None = None) -> list[AuditEntry]:
    """The oldest first; also of secrets that were removed."""
    return session.store.audit(project.id, name)


# Set, rotate, remove


def set_secret(session: Session, project: ProjectRecord, spec: SecretSpec) -> SecretRecord:
    """Creates a secret, or replaces it; its grants stay. Raises SpecError for what cannot be a
    secret, SecretUnavailable when its source has no value.
    """
    require_name(spec.name)
    origin = absolute_origin(session, project, spec.origin)
    form = require_form(session, project, spec.name, spec.delivery)
    if spec.ttl_s is not None and not spec.ttl_s > 0:
        raise SpecError("the lifetime of a grant must be longer than nothing", hint="--ttl 8h")
    if origin.kind is OriginKind.LOGIN:
        raise SpecError("a login is granted by `atoll spawn`")
    value = spec.value
    if origin.kind is not OriginKind.TYPED:
        value = resolve.read_source(session, project.root, origin, form, name=spec.name)
    if value is None:
        raise SpecError(f"the secret `{spec.name}` needs a value")
    resolve.require_usable(spec.name, form, value)
    before = find(session, project, spec.name)
    revision = _revision(before, origin, form)
    resolve.remember(session, project.id, spec.name, value, revision, is_change=True)
    saved = session.store.save_secret(
        project.id, spec.name, origin, form, spec.ttl_s, revision=revision
    )
    _note(session, saved, None, "set", f"{origin.text}, {form.text}")
    if before is not None:
        _renew(session, saved, before)
    return saved


def require_form(
    session: Session, project: ProjectRecord, name: str, form: Delivery | None
) -> Delivery:
    """The form that a secret gets if it is set to `form`; None keeps what it has.

    Raises SpecError for a form that cannot be meant, StateError for one that would put the value of
    a brokered secret into capsules which have a placeholder.
    """
    before = find(session, project, name)
    if form is None:
        form = Delivery(DeliveryKind.VARIABLE) if before is None else before.delivery
    require_delivery(form)
    is_brokered = before is not None and before.delivery.kind is DeliveryKind.BROKER
    if before is not None and is_brokered and form.kind is not DeliveryKind.BROKER:
        holders = [capsule.name for capsule in _holders(session, before)]
        if holders:
            shown = ", ".join(f"`{holder}`" for holder in holders)
            raise StateError(
                f"`{name}` is brokered, and granted to {shown}: as a {form.kind}, its value would "
                "enter what has a placeholder now",
                hint=f"atoll secret revoke {name} {holders[0]}, then set and grant it again",
            )
    return form


def _revision(before: SecretRecord | None, origin: SecretOrigin, form: Delivery) -> str:
    """A value that is stored for other settings cannot be delivered by these."""
    if before is not None and (before.origin, before.delivery) == (origin, form):
        return before.revision
    return os.urandom(_REVISION_BYTES).hex()


def rotate(
    session: Session, project: ProjectRecord, name: str, value: bytes | None = None
) -> SecretRecord:
    """Replaces the value, from the source again or by `value`; grants stay."""
    secret = require(session, project, name)
    if secret.origin.kind is OriginKind.LOGIN:
        login = brokered.require_login(session, secret)
        raise StateError(
            f"`{name}` is a login, which is read at every use", hint=login.cure or None
        )
    if (secret.origin.kind is OriginKind.TYPED) != (value is not None):
        raise SpecError(
            f"`{name}` is read from `{printable(secret.origin.text)}`"
            if value is not None
            else f"the secret `{name}` needs a value",
            hint=f"atoll secret set {name}" if value is not None else None,
        )
    if value is None:
        value = resolve.read_source(
            session, project.root, secret.origin, secret.delivery, name=name
        )
    resolve.require_usable(name, secret.delivery, value)
    resolve.remember(session, project.id, name, value, secret.revision)
    session.store.set_rotated(secret)
    _note(session, secret, None, "rotated", "")
    _renew(session, secret, secret)
    return require(session, project, name)


def remove(session: Session, project: ProjectRecord, name: str) -> None:
    """Removes the value, the grants and the record; the audit stays."""
    secret = find(session, project, name)
    if secret is not None:
        for capsule in session.store.capsules(project.id):
            _revoke(session, secret, capsule)
    had_value = vault_keys.vault_of(session).remove(project.id, name)
    if secret is None and not had_value:
        raise _missing(name)
    if secret is not None:
        session.store.forget_secret(secret)
    entry = AuditEntry(time.time(), name, None, "removed")
    session.store.add_audit(project.id, entry)


def _renew(session: Session, secret: SecretRecord, before: SecretRecord) -> None:
    """Gives active capsules the new value, as far as its form allows."""
    for held in session.store.grants_of_secret(secret):
        capsule = session.store.capsule(held.capsule_id)
        if capsule is None:
            continue
        if secret.delivery != before.delivery:
            delivery.withdraw(capsule, before)
        delivery.replace(session, capsule, held)
        _notify(session, capsule)


# Grant, revoke


def grant(
    session: Session,
    project: ProjectRecord,
    name: str,
    capsule: CapsuleRecord,
    *,
    ttl_s: float | None = None,
) -> GrantRecord:
    """Lets a capsule use a secret; again, it starts the lifetime anew. A secret that the approved
    project file declares is created by its first grant.

    Raises SecretUnavailable when there is no value, IsolationError when the capsule cannot hold it.
    """
    secret = find(session, project, name)
    if secret is not None:
        require_capable(session, capsule, secret.delivery, name)
        delivery.require_deliverable(capsule, secret)
        if secret.origin.kind is OriginKind.LOGIN:
            brokered.require_login(session, secret)
        else:
            resolve.resolve_value(session, secret)
    else:
        asked = _require_declared(session, project, name)
        require_capable(session, capsule, asked.delivery, name)
        record = SecretRecord(0, project.id, name, *asked, created_at=0)
        delivery.require_deliverable(capsule, record)
        spec = SecretSpec(name, asked.origin, asked.delivery, asked.ttl_s)
        secret = set_secret(session, project, spec)
    return _grant(session, secret, capsule, ttl_s if ttl_s is not None else secret.ttl_s)


def grant_login(
    session: Session, capsule: CapsuleRecord, adapter: str, login: Login
) -> GrantRecord:
    """Lets a capsule use the owner's login of an agent's program, through the broker.

    Idempotent. Raises SecretUnavailable when there is no login, or when it has expired.
    """
    places = set(_PLACES.findall(login.file or "")) | {"HOME"}
    owner = {key: session.owner[key] for key in places if os.path.isabs(session.owner.get(key, ""))}
    described = {"login": login.model_dump(mode="json", exclude_defaults=True), "owner": owner}
    origin = SecretOrigin(OriginKind.LOGIN, adapter, json.dumps(described, sort_keys=True))
    scope = BrokerScope(login.hosts, login.allow, login.deny, login.upstream)
    form = Delivery(DeliveryKind.BROKER, broker=scope)
    own = _find_own_login(session, capsule, adapter, origin)
    key = _find_login_key(session, capsule.project_id, login, own)
    name = _login_name(session, capsule, origin, own, key)
    require_capable(session, capsule, form, name)
    secret = session.store.find_secret(capsule.project_id, name)
    revision = _revision(secret, origin, form)
    if key is not None:
        _keep_key(session, capsule.project_id, name, key, revision)
    if secret is None or secret.revision != revision:
        secret = session.store.save_secret(
            capsule.project_id, name, origin, form, revision=revision
        )
    brokered.require_login(session, secret)
    held = {g.secret.id: g for g in session.store.secret_grants(capsule.id)}
    if secret.id in held:
        return held[secret.id]
    for grant in held.values():
        # Another login of the same agent is not needed any more.
        if (grant.secret.origin.kind, grant.secret.origin.of) == (OriginKind.LOGIN, adapter):
            _revoke(session, grant.secret, capsule)
    return _grant(session, secret, capsule, None)


def _login_name(
    session: Session,
    capsule: CapsuleRecord,
    origin: SecretOrigin,
    own: SecretRecord | None,
    key: bytes | None,
) -> str:
    """One secret for each login of an adapter, and for each key: the capsules that use another one
    keep it. `own` is what the capsule has had.
    """
    if own is not None and _can_have(session, capsule, own, key):
        return own.name
    stem = f"{_LOGIN}{origin.of}"
    name, number = stem, 1
    while True:
        found = session.store.find_secret(capsule.project_id, name)
        if found is None or not session.store.grants_of_secret(found):
            return name
        if _is_same_login(found.origin, origin) and _can_have(session, capsule, found, key):
            return name
        number += 1
        name = f"{stem}-{number}"


def _can_have(
    session: Session, capsule: CapsuleRecord, secret: SecretRecord, key: bytes | None
) -> bool:
    """Whether the secret of a login may have this key without changing that of other capsules."""
    if key is None:
        return True
    if all(g.capsule_id == capsule.id for g in session.store.grants_of_secret(secret)):
        return True
    kept = resolve.find_kept(session, secret.project_id, secret.name)
    return kept is not None and kept.value == key


def _is_same_login(one: SecretOrigin, other: SecretOrigin) -> bool:
    """Whether both are the same variable or file; what the broker may do with it can differ."""
    return one.of == other.of and _identity(one) == _identity(other)


def _identity(origin: SecretOrigin) -> tuple[object, ...]:
    stored = json.loads(origin.detail)
    login = stored["login"]
    return (login.get("kind"), login.get("variable"), login.get("file"), stored["owner"])


def _find_own_login(
    session: Session, capsule: CapsuleRecord, adapter: str, origin: SecretOrigin
) -> SecretRecord | None:
    for grant in session.store.secret_grants(capsule.id):
        secret = grant.secret
        if (secret.origin.kind, secret.origin.of) == (OriginKind.LOGIN, adapter) and (
            _is_same_login(secret.origin, origin)
        ):
            return secret
    return None


def _find_login_key(
    session: Session, project_id: str, login: Login, own: SecretRecord | None
) -> bytes | None:
    """The key in the owner's environment, else the one that the capsule has had; None if the login
    is none, or if the vault has a secret of that name, which is read at each use.

    Raises SecretUnavailable when there is none at all.
    """
    if login.kind != "key" or login.variable is None:
        return None
    same = session.store.find_secret(project_id, login.variable)
    if same is not None:
        _warn_of_other_key(session, same)
        return None
    if value := session.owner.get(login.variable, "").strip():
        return os.fsencode(value)
    kept = None if own is None else resolve.find_kept(session, project_id, own.name)
    if kept is None:
        raise SecretUnavailable(f"you are not logged in ({login.title})", hint=login.cure or None)
    return kept.value


def _warn_of_other_key(session: Session, secret: SecretRecord) -> None:
    given = session.owner.get(secret.name, "").strip()
    if given and os.fsencode(given) != resolve.detached_value(session, secret).strip():
        session.warn(
            f"agents use `{secret.name}` of the vault, which is not the one in your environment; "
            f"atoll secret rm {secret.name}"
        )


def _keep_key(session: Session, project_id: str, name: str, key: bytes, revision: str) -> None:
    """The daemon lacks the owner's environment."""
    resolve.require_usable(name, Delivery(DeliveryKind.BROKER), key)
    kept = resolve.find_kept(session, project_id, name)
    if kept is None or (kept.value, kept.revision) != (key, revision):
        resolve.remember(session, project_id, name, key, revision, is_change=True)


def revoke(session: Session, project: ProjectRecord, name: str, capsule: CapsuleRecord) -> None:
    """Takes a secret away from a capsule: at once, or for a variable from the next run on."""
    secret = require(session, project, name)
    if not _revoke(session, secret, capsule):
        raise StateError(f"`{name}` is not granted to `{capsule.name}`", hint="atoll secret ls")


def _grant(
    session: Session, secret: SecretRecord, capsule: CapsuleRecord, ttl_s: float | None
) -> GrantRecord:
    until = None if ttl_s is None else time.time() + ttl_s
    placeholder = make_placeholder(os.urandom(_PLACEHOLDER_BYTES))
    session.store.add_secret_grant(secret, capsule.id, placeholder, until)
    shown = "" if ttl_s is None else f"for {ttl_s:.0f} s"
    _note(session, secret, capsule, "granted", shown)
    _notify(session, capsule)
    [made] = [g for g in session.store.grants_of_secret(secret) if g.capsule_id == capsule.id]
    delivery.replace(session, capsule, made)
    return made


def _revoke(session: Session, secret: SecretRecord, capsule: CapsuleRecord) -> bool:
    # First, so that a command that is killed leaves no file without a grant; and again, since a run
    # may have started in between.
    delivery.withdraw(capsule, secret)
    was_granted = session.store.drop_secret_grant(secret, capsule.id)
    delivery.withdraw(capsule, secret)
    if not was_granted:
        return False
    _note(session, secret, capsule, "revoked", "")
    _notify(session, capsule)
    return True


def _holders(session: Session, secret: SecretRecord) -> list[CapsuleRecord]:
    found = (session.store.capsule(g.capsule_id) for g in session.store.grants_of_secret(secret))
    return [capsule for capsule in found if capsule is not None]


def _notify(session: Session, capsule: CapsuleRecord) -> None:
    if capsule.state is CapsuleState.READY and levels.has_own_network(capsule.level):
        daemon_client.notify(session, capsule)


def _note(
    session: Session, secret: SecretRecord, capsule: CapsuleRecord | None, act: str, detail: str
) -> None:
    name = None if capsule is None else capsule.name
    entry = AuditEntry(time.time(), secret.name, name, act, detail)
    session.store.add_audit(secret.project_id, entry)


def _require_declared(session: Session, project: ProjectRecord, name: str) -> DeclaredSecret:
    file = listing.load_project_file(session, project)
    declared = None if file is None else file.secrets.get(name)
    if file is None or declared is None:
        raise _missing(name)
    if not trust.is_trusted(session, file):
        raise StateError(
            f"`{file.path}` declares the secret `{name}` and is not approved as it is now",
            hint="read it, then: atoll trust",
        )
    return declared
