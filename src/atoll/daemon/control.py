"""The daemon's control socket: one request in, one reply out."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable

from atoll.daemon.resource_errors import SCARCE, TRANSIENT_ERRORS
from atoll.keeper import requests, wire
from atoll.keeper.peer_check import Origin
from atoll.model.daemon_messages import DaemonReply, DaemonRequest, encode_reply, parse_request
from atoll.model.errors import AtollError
from atoll.version import DAEMON_REVISION, __version__

_BUILD = {"version": __version__, "revision": DAEMON_REVISION}
_RESERVED = 4
_RETRY_S = 0.1
_BROKEN = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP)
"""Errors of the listener itself; all others concern one client, or are transient."""

Answer = Callable[[DaemonRequest], Awaitable[DaemonReply]]


class Control:
    """Serves the owner of the home, and root. Each client is one task."""

    def __init__(self, listener: socket.socket, answer: Answer) -> None:
        self._listener = listener
        self._respond = answer
        # Processes in a sandbox are in another pid namespace, and get no answer.
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
                    # All of them: checking the client needs descriptors, too.
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
                    payload = await loop.sock_recv(client, requests.MAX_BYTES)
                    if not payload:
                        return
                    answer = await self._answer(wire.parse_json(payload))
                    # Every reply names the version, so that clients need no second request.
                    requests.send(client, {**answer, **_BUILD})
                except (OSError, wire.WireError, MemoryError):
                    return

    async def _answer(self, value: dict[str, object]) -> dict[str, object]:
        try:
            return encode_reply(await self._respond(parse_request(value)))
        except AtollError as error:
            return {"error": error.message, "kind": error.kind, "hint": error.hint}
        except (*TRANSIENT_ERRORS, LookupError, TypeError, ValueError) as error:
            context = {"message": f"the request `{value.get('do')}` failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            text = f"the daemon failed over `{value.get('do')}`: {error}"
            return {"error": text, "kind": "driver", "hint": "atoll daemon logs"}
