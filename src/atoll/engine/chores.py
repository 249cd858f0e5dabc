"""Has the work of `upkeep` done by a process of its own, after a command that left such work."""

from __future__ import annotations

import sys
from pathlib import Path

from atoll.engine.leases import workspace_plan
from atoll.engine.session import Session
from atoll.engine.views import own_layers
from atoll.host import locks
from atoll.host.process import own_environment
from atoll.model.state import Capsule

TOO_DEEP = 96
"""On more layers of its own than this no capsule stands: one mount can name only so many."""


def relieve(session: Session, capsule: Capsule) -> None:
    """Flattens here and now what the background has been too slow for."""
    if len(own_layers(workspace_plan(session, capsule))) > TOO_DEEP:
        from atoll.engine import upkeep  # noqa: PLC0415 - the work itself is not for all

        upkeep.flatten(session, capsule)


def start(session: Session) -> None:
    """Has the work done in the background, unless somebody is at it; or here and now, for a
    session whose home shall not be touched after its end.
    """
    if not session.background:
        from atoll.engine import upkeep  # noqa: PLC0415 - the work itself is not for all

        upkeep.work(session)
        return
    lock = session.upkeep_lock()
    if locks.is_locked(lock.path) or not lock.acquire():
        return
    root = str(Path(__file__).parents[2])
    program = f"import sys; sys.path.append({root!r}); from atoll.engine.upkeep import main; main()"
    argv = [sys.executable, "-I", "-c", program, str(session.home)]
    try:
        # There is no such lock, so it starts at once; the nursery leaves no zombie behind. It has
        # ours from its first moment: whoever comes before it can work does not start another.
        session.nursery.watch(
            str(session.home / "locks" / "none"), argv, own_environment(), keep=(lock.fd,)
        )
    finally:
        lock.release()
