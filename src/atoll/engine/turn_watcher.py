"""The process that concludes a turn of an agent when its run has ended, and lets one go on that
ended while a quota held it.
"""

from __future__ import annotations

import sys

from atoll.engine.capsule.exports import settle_ended
from atoll.engine.capsules import Capsule
from atoll.engine.secret.vault_keys import VaultLockedError


def main() -> None:
    """`HOME RUN [KEY]`: records the end of a run, and what its turn has come to."""
    if (found := settle_ended(sys.argv[1:])) is not None:
        session, record, run = found
        agent = Capsule(session=session, record=record).agent
        try:
            agent.conclude(run)
        except VaultLockedError:
            # A look at the agent provides for it once the vault is unlocked.
            return
        agent.go_on_when_free()
