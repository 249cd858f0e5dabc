"""What the daemon is asked over its socket: one JSON object in, one out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping

from atoll.keeper import asking, wire
from atoll.keeper.peers import Origin
from atoll.model.errors import AtollError
from atoll.version import __version__

Handler = Callable[[dict[str, object]], Awaitable[dict[str, object]]]


class Control:
    """Serves whoever may: the owner of the home, and root. Each request is one task."""

    def __init__(self, listener: socket.socket, handlers: Mapping[str, Handler]) -> None:
        self._listener = listener
        self._handlers = handlers
        # What is behind walls lives in a pid namespace of its own, and is not answered.
        self._origin = Origin(is_strict=False)

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as clients:
            while True:
                client, _ = await loop.sock_accept(self._listener)
                if self._origin.admits(client):
                    clients.create_task(self._serve(client))
                else:
                    client.close()

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
                    asking.send(client, {**answer, "version": __version__})
                except (OSError, wire.WireError):
                    return

    async def _answer(self, request: dict[str, object]) -> dict[str, object]:
        handler = self._handlers.get(str(request.get("do")))
        if handler is None:
            return {"error": f"the daemon cannot `{request.get('do')}`", "kind": "spec"}
        try:
            return await handler(request)
        except AtollError as error:
            return {"error": error.message, "kind": error.kind, "hint": error.hint}
