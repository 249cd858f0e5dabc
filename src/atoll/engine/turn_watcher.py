"""The process that concludes a turn of an agent when its run has ended."""

from __future__ import annotations

import sys
from pathlib import Path

from atoll.engine.capsules import Capsule
from atoll.engine.run import runs
from atoll.engine.state.session import find_session
from atoll.model.state import CapsuleState


def main() -> None:
    """`HOME RUN`: records the end of a run, and what its turn has come to."""
    session = find_session(Path(sys.argv[1]))
    run = None if session is None else session.store.find_run(int(sys.argv[2]))
    if session is None or run is None:
        return
    runs.settle(session, run)
    capsule = session.store.capsule(run.capsule_id)
    if capsule is not None and capsule.state is CapsuleState.READY:
        Capsule(session=session, record=capsule).agent.conclude(run)
