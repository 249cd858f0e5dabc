"""Compares the files of secrets in open views with the grants from time to time, so that what a
killed command has left does not stay readable.
"""

from __future__ import annotations

import asyncio

from atoll.engine.state.session import Session
from atoll.model.errors import AtollError

_EVERY_S = 20.0


class SecretWatcher:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def serve(self) -> None:
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(_EVERY_S)

    def look(self) -> None:
        from atoll.engine.secret import delivery  # noqa: PLC0415 - not for a start

        try:
            delivery.drop_all_revoked(self._session)
        except (AtollError, OSError):
            # The database is locked, or the disk is full: the next look may succeed.
            return
