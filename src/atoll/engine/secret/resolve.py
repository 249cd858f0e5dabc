"""The value of a secret now: from the vault, or from the source that it was set with.

A value that was read from a source is kept in the vault, too: the daemon lacks the owner's
environment, and exports are searched for what capsules were given. But it never stands in for a
source that fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from atoll.drivers import registry
from atoll.drivers.contracts import KeptValue, SourceRequest
from atoll.engine.secret import vault_keys
from atoll.engine.state.session import Session
from atoll.model.errors import AtollError, SecretUnavailable, SpecError
from atoll.model.secret import Delivery, DeliveryKind, OriginKind, SecretOrigin, SecretRecord

COMMAND_FRESH_S = 60.0
"""How long the output of a command is used before it is run again."""
VALUE_LIMIT_BYTES = 64 << 10
_HIDDEN = (vault_keys.PASSPHRASE,)


class _Turns:
    """One lock for each secret: two requests at once shall not run a command twice, and a command
    that hangs delays no other secret.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[tuple[str, str], threading.Lock] = {}

    def of(self, secret: SecretRecord) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault((secret.project_id, secret.name), threading.Lock())


class _Failure(NamedTuple):
    at: float
    secret: SecretRecord
    """As it was then: one that is set again or rotated is tried at once."""
    error: AtollError


_turns = _Turns()
_failures: dict[tuple[str, str], _Failure] = {}
"""Of commands that the daemon ran, the last one of each secret."""


def resolve_value(session: Session, secret: SecretRecord) -> bytes:
    """The value, in a process that has the owner's environment; in one that goes on after a command
    of theirs, as `detached_value`.

    Raises SecretUnavailable when it cannot be read now, SpecError when it does not fit its form.
    """
    if session.is_detached:
        return detached_value(session, secret)
    if secret.origin.kind is OriginKind.TYPED:
        return _kept_value(session, secret, cure=f"atoll secret set {secret.name}")
    return _sourced(session, secret)


def detached_value(session: Session, secret: SecretRecord) -> bytes:
    """The value, in the daemon: a variable is taken from the vault, other sources are read again.

    Raises as `resolve_value`.
    """
    if secret.origin.kind in (OriginKind.TYPED, OriginKind.ENV):
        return _kept_value(session, secret, cure=f"atoll secret rotate {secret.name}")
    if secret.origin.kind is not OriginKind.COMMAND:
        return _sourced(session, secret)
    return _find_fresh(session, secret) or _run_once(session, secret)


def _run_once(session: Session, secret: SecretRecord) -> bytes:
    """What the command prints; one that has failed is not started again for a minute.

    A capsule decides how often its requests need the value.
    """
    place = secret.project_id, secret.name
    with _turns.of(secret):
        if (fresh := _find_fresh(session, secret)) is not None:
            return fresh
        failure = _failures.get(place)
        if (
            failure is not None
            and failure.secret == secret
            and time.monotonic() - failure.at < COMMAND_FRESH_S
        ):
            raise type(failure.error)(failure.error.message, hint=failure.error.hint)
        try:
            value = _read_and_keep(session, secret)
        except AtollError as error:
            _failures[place] = _Failure(time.monotonic(), secret, error)
            raise
        _failures.pop(place, None)
        return value


def read_source(
    session: Session, root: str, origin: SecretOrigin, delivery: Delivery, *, name: str
) -> bytes:
    """What the source of a secret has now. Raises as `resolve_value`."""
    owner = {key: value for key, value in session.owner.items() if key not in _HIDDEN}
    path = origin.detail or owner.get("PATH", "")
    request = SourceRequest(origin.of, owner, root, path)
    value = registry.secret_source(origin.kind).read(request)
    is_text = origin.kind in (OriginKind.FILE, OriginKind.COMMAND)
    if is_text and delivery.kind is not DeliveryKind.FILE:
        value = value.removesuffix(b"\n").removesuffix(b"\r")
    require_usable(name, delivery, value)
    return value


def remember(
    session: Session,
    project_id: str,
    name: str,
    value: bytes,
    revision: str,
    *,
    is_change: bool = False,
) -> None:
    """Stores a value in the vault, for the settings of this revision.

    Raises SecretUnavailable when the vault has one for other settings; not with `is_change`.
    """
    key = vault_keys.ensure_key(session)
    vault = vault_keys.vault_of(session)
    if not vault.put(key, project_id, name, value, revision=revision, is_change=is_change):
        raise _other_settings(name)


def find_kept(session: Session, project_id: str, name: str) -> KeptValue | None:
    """What the vault has. Raises SecretUnavailable when it is locked."""
    vault = vault_keys.vault_of(session)
    if name not in vault.names(project_id):
        return None
    return vault.find(vault_keys.open_key(session), project_id, name)


def require_same_settings(secret: SecretRecord, kept: KeptValue) -> None:
    """Raises SecretUnavailable for a value that was stored for another form, host or source.

    The vault and the database are written one after the other: a command that was killed in
    between, or that runs now, has changed only one of them.
    """
    if kept.revision != secret.revision:
        raise _other_settings(secret.name)


def _other_settings(name: str) -> SecretUnavailable:
    return SecretUnavailable(
        f"the value of `{name}` in the vault is not for its present source and form: it was "
        "changed at this moment, or a change was interrupted",
        hint=f"set it again with its form: atoll secret set {name} --broker HOST, or --as-variable",
    )


def known_values(session: Session, project_id: str) -> tuple[tuple[str, bytes], ...]:
    """Every value of the project's secrets that the vault has, with earlier ones, by name.

    Raises SecretUnavailable when the vault is locked. What a login is now is not in the vault.
    """
    vault = vault_keys.vault_of(session)
    names = vault.names(project_id)
    if not names:
        return ()
    key = vault_keys.open_key(session)
    found = []
    for name in names:
        kept = vault.find(key, project_id, name)
        found += [] if kept is None else [(name, one) for one in (kept.value, *kept.earlier)]
    return tuple(found)


def require_usable(name: str, delivery: Delivery, value: bytes) -> None:
    """Raises SpecError for a value that cannot be delivered in this form; never quotes it."""
    if not value:
        raise SpecError(f"the value of `{name}` is empty")
    if len(value) > VALUE_LIMIT_BYTES:
        raise SpecError(f"the value of `{name}` is larger than {VALUE_LIMIT_BYTES >> 10} KiB")
    if delivery.kind is DeliveryKind.FILE:
        return
    if b"\0" in value or not _is_text(value):
        raise SpecError(
            f"the value of `{name}` is not text, and cannot be in a variable",
            hint=f"atoll secret set {name} --as-file",
        )
    if delivery.kind is DeliveryKind.BROKER and not all(0x20 <= byte <= 0x7E for byte in value):
        raise SpecError(
            f"the value of `{name}` has characters that a request cannot carry: it must be one "
            "line of ASCII text"
        )


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _kept_value(session: Session, secret: SecretRecord, *, cure: str) -> bytes:
    kept = find_kept(session, secret.project_id, secret.name)
    if kept is None:
        raise SecretUnavailable(f"the vault has no value of `{secret.name}`", hint=cure)
    require_same_settings(secret, kept)
    return kept.value


def _sourced(session: Session, secret: SecretRecord) -> bytes:
    if secret.origin.kind is OriginKind.LOGIN:
        raise SecretUnavailable(f"`{secret.name}` is a login, which has no single value")
    if secret.origin.kind is OriginKind.COMMAND:
        with _turns.of(secret):
            return _find_fresh(session, secret) or _read_and_keep(session, secret)
    return _read_and_keep(session, secret)


def _find_fresh(session: Session, secret: SecretRecord) -> bytes | None:
    """What the command has printed a short time ago."""
    kept = find_kept(session, secret.project_id, secret.name)
    if kept is None:
        return None
    require_same_settings(secret, kept)
    is_fresh = abs(time.time() - kept.stored_at) < COMMAND_FRESH_S
    return kept.value if is_fresh else None


def _read_and_keep(session: Session, secret: SecretRecord) -> bytes:
    root = _roots(session)[secret.project_id]
    value = read_source(session, root, secret.origin, secret.delivery, name=secret.name)
    if secret.delivery.kind is DeliveryKind.BROKER:
        # It never enters a capsule, so that it does not matter whether the vault has it.
        with suppress(SecretUnavailable):
            _keep(session, secret, value)
    else:
        _keep(session, secret, value)
    return value


def _keep(session: Session, secret: SecretRecord, value: bytes) -> None:
    kept = find_kept(session, secret.project_id, secret.name)
    if kept is not None:
        require_same_settings(secret, kept)
    if secret.origin.kind is OriginKind.COMMAND or kept is None or kept.value != value:
        remember(session, secret.project_id, secret.name, value, secret.revision)


def _roots(session: Session) -> Mapping[str, str]:
    return {project.id: project.root for project in session.store.projects()}
