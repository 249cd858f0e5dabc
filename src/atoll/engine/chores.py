"""Has the work of `upkeep` done by a process of its own, after a command that left such work."""

from __future__ import annotations

import sys
from pathlib import Path

from atoll.engine.session import Session
from atoll.host import files
from atoll.host.process import own_environment


def start(session: Session) -> None:
    """Has the work done in the background, unless somebody is at it; or here and now, for a
    session whose home shall not be touched after its end.
    """
    if not session.background:
        from atoll.engine import upkeep  # noqa: PLC0415 - the work itself is not for all

        upkeep.work(session)
        return
    if files.is_locked(session.upkeep_lock().path):
        return
    root = str(Path(__file__).parents[2])
    program = f"import sys; sys.path.append({root!r}); from atoll.engine.upkeep import main; main()"
    argv = [sys.executable, "-I", "-c", program, str(session.home)]
    # There is no such lock, so it starts at once; the nursery leaves no zombie behind.
    session.nursery.watch(str(session.home / "locks" / "none"), argv, own_environment())
