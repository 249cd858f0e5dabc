"""The process that carries a race on in the background."""

from __future__ import annotations

import sys
from pathlib import Path

from atoll.engine.capsule import reaper
from atoll.engine.projects import Project
from atoll.engine.state.session import find_session


def main() -> None:
    """`HOME RACE [KEY]`: carries a race on until it is finished.

    `KEY` is a descriptor with the key of the vault.
    """
    home = Path(sys.argv[1])
    session = find_session(home)
    if len(sys.argv) > 3:
        from atoll.engine.secret import vault_keys  # noqa: PLC0415 - only with a vault

        vault_keys.take_over(home, int(sys.argv[3]))
    race = None if session is None else session.store.race(int(sys.argv[2]))
    if session is None or race is None:
        return
    record = next((p for p in session.store.projects() if p.id == race.project_id), None)
    if record is None:
        return
    # As every command does: a killed coordinator may have left half-made capsules.
    reaper.settle(session, at=record.root)
    handle = Project(session=session, record=record).races.find(race.id)
    if handle is not None:
        handle.carry_on()
