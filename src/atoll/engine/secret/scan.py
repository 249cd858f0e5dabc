"""What the commits of a capsule must not contain when they leave it: the values of its project's
secrets, as far as the vault has them, and the logins of agents as they are now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.engine.secret.part import find_held
from atoll.engine.state.session import Session
from atoll.model.errors import SecretUnavailable
from atoll.model.secret import OriginKind, SecretRecord
from atoll.model.state import CapsuleRecord

if TYPE_CHECKING:
    from atoll.model.secretvalues import SecretSearch

Values = list[tuple[str, bytes]]
"""With the names of their secrets."""


def find_search(session: Session, capsule: CapsuleRecord) -> SecretSearch | None:
    """Finds the known values in what a capsule exports; None when the project has none.

    Raises SecretUnavailable when the capsule may hold a value that is not known now, because the
    vault is locked or lacks it: what cannot be searched is not exported.
    """
    known = session.store.secrets(capsule.project_id)
    if not known:
        return None
    from atoll.model.secretvalues import SecretSearch  # noqa: PLC0415 - not without secrets

    values = _stored_values(session, capsule, known) + _login_values(session, known)
    return SecretSearch(values) or None


def _stored_values(session: Session, capsule: CapsuleRecord, known: list[SecretRecord]) -> Values:
    from atoll.engine.secret import resolve  # noqa: PLC0415 - cryptography: not without secrets

    try:
        found = list(resolve.known_values(session, capsule.project_id))
    except SecretUnavailable as error:
        if find_held(session, capsule):
            raise _unsearched(capsule, error.message, error.hint) from error
        return []
    stored = {name for name, _ in found}
    missing = {one.name for one in known if one.origin.kind is not OriginKind.LOGIN} - stored
    if missing and (held := sorted(missing & find_held(session, capsule))):
        raise _unsearched(
            capsule,
            f"the vault has no value of `{held[0]}`, which it may have",
            f"restore the vault from a backup, or store it again: atoll secret rotate {held[0]}",
        )
    return found


def is_locked(session: Session, capsule: CapsuleRecord) -> bool:
    """Whether nothing of a capsule can be exported until the vault is unlocked."""
    if not session.store.secrets(capsule.project_id):
        return False
    from atoll.engine.secret import vault_keys  # noqa: PLC0415 - not without secrets

    return vault_keys.is_locked(session) and bool(find_held(session, capsule))


def hand_over_key(session: Session, capsule_id: int) -> int | None:
    """The key of the vault for the process that exports what a run leaves (`vault_keys`); None if
    nothing of the capsule needs it.
    """
    capsule = session.store.capsule(capsule_id)
    if capsule is None or not session.store.secrets(capsule.project_id):
        return None
    from atoll.engine.secret import vault_keys  # noqa: PLC0415 - not without secrets

    return vault_keys.hand_over(session) if find_held(session, capsule) else None


def _unsearched(capsule: CapsuleRecord, why: str, hint: str | None) -> SecretUnavailable:
    message = f"the commits of `{capsule.name}` cannot be searched for secrets: {why}"
    return SecretUnavailable(message, hint=hint)


def _login_values(session: Session, known: list[SecretRecord]) -> Values:
    """What is in the files of logins now. Keys are in the vault."""
    from atoll.engine.secret import brokered  # noqa: PLC0415 - not without logins

    found: Values = []
    for secret in known:
        if secret.origin.kind is OriginKind.LOGIN:
            tokens = brokered.find_file_tokens(session, secret)
            found += [(secret.name, token.encode()) for token in tokens]
    return found


def require_clean(
    capsule: CapsuleRecord, repository: str, tip: str, search: SecretSearch | None
) -> None:
    """Before a branch is moved to commits that were not imported, since a recovery point has them.
    Raises StateError.
    """
    if search is not None and capsule.is_recovered:
        from atoll.host.intake import quarantine  # noqa: PLC0415 - not for a start

        quarantine.require_clean(repository, tip, search)
