"""What a project file may make happen, only after its owner has seen it.

The approval is bound to the file's place and content: a changed file asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.engine.state.session import Session
from atoll.model.errors import StateError

if TYPE_CHECKING:
    from atoll.engine.project.settings import Config, ProjectFileText

_GATED = ("capsule.setup", "capsule.level", "capsule.network", "capsule.allow", "capsule.env",
          "project.carry", "tools.")  # fmt: skip
"""What `new` would act on, besides limits above the owner's (`Config.raised`).

Other commands in the file wait for the verbs that run them.
"""


def is_trusted(session: Session, file: ProjectFileText) -> bool:
    return session.store.trusted_digest(str(file.path)) == file.digest


def trust(session: Session, file: ProjectFileText) -> None:
    session.store.set_trusted(str(file.path), file.digest)


def untrust(session: Session, file_path: str) -> bool:
    return session.store.forget_trust(file_path)


def require_trust(session: Session, config: Config) -> None:
    """Raises StateError when the file asks for something that its owner has not approved."""
    file = config.file
    if file is None or is_trusted(session, file):
        return
    gated = [
        claim for claim in file.claims if claim.key.startswith(_GATED) or claim.key in config.raised
    ]
    if not gated:
        return
    known = session.store.trusted_digest(str(file.path)) is not None
    lines = "\n".join(f"  {claim.key} = {claim.text}" for claim in gated[:20])
    raise StateError(
        f"`{file.path}` {'has changed since it was approved' if known else 'is not approved'}, "
        f"and it asks for:\n{lines}",
        hint="read it, then: atoll trust",
    )
