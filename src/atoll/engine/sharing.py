"""Whether other users of this machine may connect to the capsules' published ports.

They may not, unless the owner says so with `ATOLL_SHARE_PORTS=on`. What the owner says is kept for
the home, where the daemon finds it, until it is `off`.
"""

from __future__ import annotations

import os
from pathlib import Path

from atoll.engine.session import Session
from atoll.host import files
from atoll.model.errors import SpecError

VARIABLE = "ATOLL_SHARE_PORTS"
_FILE = "ports-are-shared"


def remember_choice(session: Session) -> None:
    """Keeps what the owner's environment says now. Raises SpecError when that is unclear."""
    word = session.owner.get(VARIABLE, "").lower()
    path = session.home / _FILE
    if word == "on":
        if not is_shared(session.home):
            files.write_atomic(path, b"")
    elif word == "off":
        path.unlink(missing_ok=True)
    elif word:
        raise SpecError(f"`{VARIABLE}={word}` is neither `on` nor `off`", hint=f"unset {VARIABLE}")


def is_shared(home: Path) -> bool:
    return os.path.lexists(home / _FILE)
