"""What the daemon is asked over its socket: one JSON object in, one out."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Mapping

from atoll.daemon.setbacks import SCARCE, SETBACKS
from atoll.keeper import asking, wire
from atoll.keeper.peers import Origin
from atoll.model.errors import AtollError
from atoll.version import DAEMON_REVISION, __version__

_BUILD = {"version": __version__, "revision": DAEMON_REVISION}
_RESERVED = 4
_RETRY_S = 0.1
_BROKEN = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP)
"""Of the listener itself; everything else concerns one client, or passes."""

Handler = Callable[[dict[str, object]], Awaitable[dict[str, object]]]


class Control:
    """Serves whoever may: the owner of the home, and root. Each request is one task."""

    def __init__(self, listener: socket.socket, handlers: Mapping[str, Handler]) -> None:
        self._listener = listener
        self._handlers = handlers
        # What is behind walls lives in a pid namespace of its own, and is not answered.
        self._origin = Origin(is_strict=False)
        self._reserve: list[int] = []
        """Descriptors that are closed to accept a client when no others are left."""

    async def serve(self) -> None:
        try:
            async with asyncio.TaskGroup() as clients:
                while True:
                    self._fill_reserve()
                    client = await self._accept()
                    if self._origin.admits(client):
                        clients.create_task(self._serve(client))
                    else:
                        client.close()
        finally:
            self._release_reserve()

    async def _accept(self) -> socket.socket:
        """Waits for a client, also while the process has no descriptors left."""
        while True:
            try:
                client, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            except OSError as error:
                if error.errno in _BROKEN:
                    raise
                if self._reserve and error.errno in SCARCE:
                    # All of them: to check who the client is takes descriptors, too.
                    self._release_reserve()
                else:
                    await asyncio.sleep(_RETRY_S)
            else:
                return client

    def _fill_reserve(self) -> None:
        try:
            while len(self._reserve) < _RESERVED:
                self._reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            # Tried again after the next client.
            return

    def _release_reserve(self) -> None:
        while self._reserve:
            os.close(self._reserve.pop())

    async def _serve(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with client:
            client.setblocking(False)  # noqa: FBT003
            while True:
                try:
                    payload = await loop.sock_recv(client, asking.MAX_BYTES)
                    if not payload:
                        return
                    answer = await self._answer(wire.parse_json(payload))
                    # So that who asks need not ask first who answers.
                    asking.send(client, {**answer, **_BUILD})
                except (OSError, wire.WireError, MemoryError):
                    return

    async def _answer(self, request: dict[str, object]) -> dict[str, object]:
        handler = self._handlers.get(str(request.get("do")))
        if handler is None:
            return {"error": f"the daemon cannot `{request.get('do')}`", "kind": "spec"}
        try:
            return await handler(request)
        except AtollError as error:
            return {"error": error.message, "kind": error.kind, "hint": error.hint}
        except (*SETBACKS, LookupError, TypeError, ValueError) as error:
            told = {"message": f"the request `{request.get('do')}` failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(told)
            text = f"the daemon failed over `{request.get('do')}`: {error}"
            return {"error": text, "kind": "driver", "hint": "atoll daemon logs"}
