"""Refuses capsule host names on ports that are published by number.

Browsers separate sites by host name and ignore the port. The port of one capsule on 127.0.0.1,
addressed by the name of another (`http://web.fix--shop.localhost:20117`), would be part of that
other one's site, with its cookies. Only the router serves such names, so a connection to any other
port that begins with one is refused. A connection that is neither HTTP nor TLS is relayed
unchanged.
"""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import suppress
from typing import Any

from atoll.daemon.ports.pages import Page
from atoll.daemon.relay import CHUNK_BYTES, relay, relay_one_way
from atoll.daemon.streams import wait_readable
from atoll.drivers.network import http1

_HEAD_S = 15.0
"""How long the head of a request may take from its first byte."""
_CLIENT_FIRST_S = 0.1
"""How long a server that sends first waits: a browser sends its request at once, and must not treat
as its answer what was sent before the request was checked."""
_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ")
_REQUEST = re.compile(rb"[A-Z]+ [^\r\n]* HTTP/1\.[01]\r?")
_HOST = re.compile(rb"\n[ \t]*host[ \t]*:[ \t]*([^\r\n]*)", re.IGNORECASE)
_END = re.compile(rb"\n\r?\n")
_LABEL = re.compile(rb"(?<![a-z0-9-])([a-z0-9-]+)\.localhost", re.IGNORECASE)
_MARK = b"--"
_ENCODED = b"xn--"
_SHOWN_BYTES = 64
_TLS = b"\x16\x03"
_TLS_HEAD_BYTES = 5
_START_BYTES = 16
"""More than the longest method."""
_REFUSAL = Page(421, "this port does not serve capsule host names", "atoll ports")


class ForeignSiteError(Exception):
    """A connection begins with the name of a capsule; `is_http` selects the answer."""

    def __init__(self, *, is_http: bool) -> None:
        super().__init__(_REFUSAL.text)
        self.is_http = is_http


def is_complete(data: bytes | bytearray, seen: int = 0) -> bool:
    """Whether the first bytes of a connection are enough to check it. The first `seen` of them were
    not enough before.

    Raises ForeignSiteError when they name a capsule, or are too long to find out.
    """
    start = bytes(data[:_START_BYTES])
    if start.startswith(_TLS) or _TLS.startswith(start):
        return _is_complete_hello(data)
    if not start.startswith(_METHODS):
        return not any(method.startswith(start) for method in _METHODS)
    if data.find(b"\n", 0, seen) < 0:
        line = data.find(b"\n", seen)
        if line >= 0 and not _REQUEST.fullmatch(data, 0, line):
            return True
    end = _END.search(data, max(0, seen - 2))
    if end is None and len(data) > http1.MAX_HEAD_BYTES:
        raise ForeignSiteError(is_http=True)
    if end is not None:
        _require_no_site(data[: end.start()])
    return end is not None


def _require_no_site(head: bytes | bytearray) -> None:
    """Raises ForeignSiteError when the head of a request names a capsule."""
    if any(_names_capsule(host) for host in _HOST.findall(head)):
        raise ForeignSiteError(is_http=True)


def _judge_late(data: bytes | bytearray) -> None:
    """Of what is still not whole after a long time. A browser sends heads whole, and no page can
    make it send a part of one; so this is something else, unless it shows a request or a TLS hello.

    Raises ForeignSiteError, or TimeoutError for what began as a request or a hello.
    """
    if _names_capsule(data):
        raise ForeignSiteError(is_http=not data.startswith(_TLS))
    if data.startswith(_TLS) or b"\n" in data:
        raise TimeoutError


def _is_complete_hello(data: bytes | bytearray) -> bool:
    """A browser's first record holds the whole hello, with the server's name in plain text."""
    if len(data) < _TLS_HEAD_BYTES:
        return False
    end = _TLS_HEAD_BYTES + int.from_bytes(data[3:_TLS_HEAD_BYTES], "big")
    if len(data) < end:
        return False
    if _names_capsule(data[:end]):
        raise ForeignSiteError(is_http=False)
    return True


def _names_capsule(data: bytes | bytearray) -> bool:
    """Whether a label with `--` below `localhost` is in there. One that begins with `xn--` and has
    no second `--` is an encoded international name, which no capsule has (`urls.site_label`).
    """
    labels = (found[1].lower() for found in _LABEL.finditer(data))
    return any(
        label.count(_MARK) > 1 or (_MARK in label and not label.startswith(_ENCODED))
        for label in labels
    )


async def forward_guarded(client: socket.socket, server: socket.socket) -> None:
    """Relays a connection both ways unless it begins with the name of a capsule.

    Both sockets must be non-blocking. OSError when one side was lost before the check; then the
    caller closes both.
    """
    try:
        if await _client_is_first(client, server):
            first = await _receive_first(client)
            await relay(client, server, first=first)
        else:
            await _carry_server_first(client, server)
    except ForeignSiteError as error:
        await _refuse(client, is_http=error.is_http)


async def _client_is_first(client: socket.socket, server: socket.socket) -> bool:
    """Waits until one side sends something, or ends. An HTTP server is not relayed before the
    request.
    """
    if await wait_readable(client, timeout_s=_CLIENT_FIRST_S):
        return True
    if await wait_readable(client, server) is client:
        return True
    shown = b""
    with suppress(BlockingIOError):
        shown = server.recv(_SHOWN_BYTES, socket.MSG_PEEK)
    if b"http" in shown.lower():
        await wait_readable(client)
        return True
    return False


async def _receive_first(client: socket.socket) -> bytes:
    """The first bytes of the client, as many as the check needs. OSError when it is lost."""
    loop = asyncio.get_running_loop()
    found = bytearray(await loop.sock_recv(client, CHUNK_BYTES))
    seen = 0
    try:
        async with asyncio.timeout(_HEAD_S):
            while found and not is_complete(found, seen):
                seen = len(found)
                piece = await loop.sock_recv(client, CHUNK_BYTES)
                if not piece:
                    break
                found += piece
    except TimeoutError:
        _judge_late(found)
    return bytes(found)


async def _carry_server_first(client: socket.socket, server: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    back = loop.create_task(relay_one_way(server, client))
    first = loop.create_task(_receive_first(client))
    tasks: list[asyncio.Task[Any]] = [back, first]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if back.done():
            # Raises when the server was lost: then the client need not say anything.
            back.result()
        there = loop.create_task(relay_one_way(client, server, first=await first))
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
