"""The process that concludes a turn of an agent when its run has ended."""

from __future__ import annotations

import sys

from atoll.engine.capsule.exports import settle_ended
from atoll.engine.capsules import Capsule


def main() -> None:
    """`HOME RUN`: records the end of a run, and what its turn has come to."""
    if (found := settle_ended(sys.argv[1:])) is not None:
        session, record, run = found
        Capsule(session=session, record=record).agent.conclude(run)
