"""What the commits of a capsule must not contain when they leave it: the values of its project's
secrets, as far as the vault has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.engine.secret.part import find_held
from atoll.engine.state.session import Session
from atoll.model.errors import SecretUnavailable
from atoll.model.secret import OriginKind
from atoll.model.state import CapsuleRecord

if TYPE_CHECKING:
    from atoll.model.secretvalues import SecretSearch


def find_search(session: Session, capsule: CapsuleRecord) -> SecretSearch | None:
    """Finds the known values in what a capsule exports; None when the project has none.

    Raises SecretUnavailable when the vault is locked and the capsule may hold one of its values:
    what cannot be searched is not exported.
    """
    known = session.store.secrets(capsule.project_id)
    if not any(secret.origin.kind is not OriginKind.LOGIN for secret in known):
        return None
    from atoll.engine.secret import resolve  # noqa: PLC0415 - cryptography: not without secrets
    from atoll.model.secretvalues import SecretSearch  # noqa: PLC0415

    try:
        return SecretSearch(resolve.known_values(session, capsule.project_id)) or None
    except SecretUnavailable as error:
        if find_held(session, capsule):
            raise SecretUnavailable(
                f"the commits of `{capsule.name}` cannot be searched for secrets: {error.message}",
                hint=error.hint,
            ) from error
    return None


def require_clean(
    capsule: CapsuleRecord, repository: str, tip: str, search: SecretSearch | None
) -> None:
    """Before a branch is moved to commits that were not imported, since a recovery point has them.
    Raises StateError.
    """
    if search is not None and capsule.is_recovered:
        from atoll.host.intake import quarantine  # noqa: PLC0415 - not for a start

        quarantine.require_clean(repository, tip, search)
