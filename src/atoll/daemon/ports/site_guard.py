"""Keeps the names of capsules off the ports that are published by number.

Browsers keep sites apart by host name and ignore the port. The port of one capsule on 127.0.0.1,
addressed by the name of another (`http://web.fix--shop.localhost:20117`), would be part of that
other one's site, with its cookies. Only the router answers to such names, so a connection to any
other port that begins with one is refused. Everything else is none of our business: what the first
bytes of a connection show to be neither HTTP nor TLS is carried as it is.
"""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import suppress
from typing import Any

from atoll.daemon.carrying import CHUNK_BYTES, carry, pour
from atoll.daemon.ports.pages import Answer

HEAD_BYTES = 1 << 16
_HEAD_S = 15.0
"""How long the head of a request may take from its first byte."""
_CLIENT_FIRST_S = 0.1
"""How long a server that speaks first waits: a browser sends its request at once, and must not
take for an answer what was sent before it was known whom the request is for."""
_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ")
_REQUEST = re.compile(rb"[A-Z]+ [^\r\n]* HTTP/1\.[01]\r?")
_HOST = re.compile(rb"\n[ \t]*host[ \t]*:[ \t]*([^\r\n]*)", re.IGNORECASE)
_SITE = re.compile(rb"[a-z0-9-]*--[a-z0-9-]*\.localhost", re.IGNORECASE)
_SHOWN_BYTES = 64
_TLS = b"\x16\x03"
_TLS_HEAD_BYTES = 5
_REFUSAL = Answer(421, "this port does not answer to the name of a capsule", "atoll ports")


class ForeignSiteError(Exception):
    """A connection begins with the name of a capsule; `is_http` tells how to answer."""

    def __init__(self, *, is_http: bool) -> None:
        super().__init__(_REFUSAL.text)
        self.is_http = is_http


def is_complete(data: bytes) -> bool:
    """Whether the first bytes of a connection are enough to judge it.

    Raises ForeignSiteError when they name a capsule, or are too long to find out.
    """
    if data.startswith(_TLS) or _TLS.startswith(data[:2]):
        return _is_complete_hello(data)
    if not data.startswith(_METHODS):
        return not any(method.startswith(data) for method in _METHODS)
    line, end, _ = data.partition(b"\n")
    if end and not _REQUEST.fullmatch(line):
        return True
    head, end, _ = data.replace(b"\r\n", b"\n").partition(b"\n\n")
    if not end and len(data) > HEAD_BYTES:
        raise ForeignSiteError(is_http=True)
    if end and any(_SITE.search(host) for host in _HOST.findall(head)):
        raise ForeignSiteError(is_http=True)
    return bool(end)


def _is_complete_hello(data: bytes) -> bool:
    """A browser's first record holds the whole hello, with the server's name in plain text."""
    if len(data) < _TLS_HEAD_BYTES:
        return False
    end = _TLS_HEAD_BYTES + int.from_bytes(data[3:_TLS_HEAD_BYTES], "big")
    if _SITE.search(data[:end]):
        raise ForeignSiteError(is_http=False)
    return len(data) >= end


async def lead_guarded(client: socket.socket, server: socket.socket) -> None:
    """Carries a connection both ways unless it begins with the name of a capsule.

    Both sockets must be non-blocking. OSError when one side was lost before it could be judged;
    then they are left to be closed.
    """
    try:
        if await _client_is_first(client, server):
            first = await _receive_first(client)
            await carry(client, server, first=first)
        else:
            await _carry_server_first(client, server)
    except ForeignSiteError as error:
        await _refuse(client, is_http=error.is_http)


async def _client_is_first(client: socket.socket, server: socket.socket) -> bool:
    """Waits until one side speaks, or ends. A server that speaks HTTP is not heard before it was
    asked.
    """
    if await _wait_readable(client, timeout_s=_CLIENT_FIRST_S):
        return True
    if await _wait_readable(client, server) is client:
        return True
    shown = b""
    with suppress(BlockingIOError):
        shown = server.recv(_SHOWN_BYTES, socket.MSG_PEEK)
    if b"http" in shown.lower():
        await _wait_readable(client)
        return True
    return False


async def _wait_readable(
    *sockets: socket.socket, timeout_s: float | None = None
) -> socket.socket | None:
    """The first of them that has something, or has ended; None after `timeout_s`."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[socket.socket] = loop.create_future()

    def settle(sock: socket.socket) -> None:
        if not found.done():
            found.set_result(sock)

    for sock in sockets:
        loop.add_reader(sock.fileno(), settle, sock)
    try:
        async with asyncio.timeout(timeout_s):
            return await found
    except TimeoutError:
        return None
    finally:
        for sock in sockets:
            loop.remove_reader(sock.fileno())


async def _receive_first(client: socket.socket) -> bytes:
    """What the client says first, as far as it takes to judge it. OSError when it is lost."""
    loop = asyncio.get_running_loop()
    found = await loop.sock_recv(client, CHUNK_BYTES)
    async with asyncio.timeout(_HEAD_S):
        while found and not is_complete(found):
            piece = await loop.sock_recv(client, CHUNK_BYTES)
            if not piece:
                break
            found += piece
    return found


async def _carry_server_first(client: socket.socket, server: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    back = loop.create_task(pour(server, client))
    receiving = loop.create_task(_receive_first(client))
    tasks: list[asyncio.Task[Any]] = [back, receiving]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if back.done():
            # Raises when the server was lost: then the client need not say anything.
            back.result()
        there = loop.create_task(pour(client, server, first=await receiving))
        tasks.append(there)
        await asyncio.gather(back, there)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _refuse(client: socket.socket, *, is_http: bool) -> None:
    with suppress(OSError):
        if is_http:
            await asyncio.get_running_loop().sock_sendall(client, _REFUSAL.render())
            client.shutdown(socket.SHUT_WR)
