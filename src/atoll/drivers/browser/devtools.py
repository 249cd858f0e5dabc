"""A minimal DevTools client: checks that a browser answers, opens a page, closes the browser.

Any process inside a capsule may listen on that port, so replies are bounded in size and time, and
only one path of them is used, after validation.
"""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote

Dial = Callable[[], socket.socket]
"""Opens a connection to the port. Raises OSError when nothing listens."""

_TIMEOUT_S = 5.0
_MAX_BYTES = 1 << 20
_LENGTH = re.compile(rb"^content-length:\s*(\d{1,7})\s*$", re.IGNORECASE | re.MULTILINE)
_BROWSER = re.compile(r"^ws://[^/]*(/devtools/browser/[\w-]{1,100})$")
_TEXT_FRAME, _MASKED = 0x81, 0x80


class NotABrowserError(OSError):
    """The reply is not that of a browser."""


def is_answering(dial: Dial) -> bool:
    """Whether a browser answers."""
    try:
        _browser_path(dial)
    except OSError:
        return False
    return True


def open_page(dial: Dial, url: str) -> None:
    """Raises OSError when it cannot."""
    _ask(dial, "PUT", f"/json/new?{quote(url, safe='')}")


def close(dial: Dial) -> None:
    """Makes the browser save its state and exit. Raises OSError when it does not answer."""
    path = _browser_path(dial)
    deadline = time.monotonic() + _TIMEOUT_S
    with dial() as sock:
        key = base64.b64encode(os.urandom(16)).decode()
        upgrade = (
            "Connection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
        )
        _send(sock, "GET", path, upgrade)
        head, _ = _read_head(sock, deadline)
        if not head.startswith(b"HTTP/1.1 101 "):
            raise NotABrowserError(f"unexpected reply {head[:40]!r}")
        sock.sendall(_frame(json.dumps({"id": 1, "method": "Browser.close"}).encode()))
        # The reply, or the end of the connection: either shows that it was received.
        with suppress(OSError):
            _receive(sock, deadline)


def _browser_path(dial: Dial) -> str:
    try:
        version = json.loads(_ask(dial, "GET", "/json/version"))
        found = _BROWSER.match(str(version["webSocketDebuggerUrl"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise NotABrowserError("invalid reply to /json/version") from error
    if found is None:
        raise NotABrowserError("no WebSocket URL in the reply")
    return found[1]


def _ask(dial: Dial, method: str, path: str) -> bytes:
    deadline = time.monotonic() + _TIMEOUT_S
    with dial() as sock:
        _send(sock, method, path)
        head, body = _read_head(sock, deadline)
        length = _LENGTH.search(head)
        if not head.startswith(b"HTTP/1.1 200 ") or length is None:
            raise NotABrowserError(f"unexpected reply {head[:40]!r}")
        wanted = min(int(length[1]), _MAX_BYTES)
        while len(body) < wanted:
            body += _receive(sock, deadline)
    return body[:wanted]


def _send(sock: socket.socket, method: str, path: str, more: str = "") -> None:
    sock.settimeout(_TIMEOUT_S)
    sock.sendall(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}\r\n".encode("ascii"))


def _read_head(sock: socket.socket, deadline: float) -> tuple[bytes, bytes]:
    """The head of a reply, and the bytes that follow it."""
    content = b""
    while (end := content.find(b"\r\n\r\n")) < 0:
        if len(content) > _MAX_BYTES:
            raise NotABrowserError("the head of the reply is too long")
        content += _receive(sock, deadline)
    return content[:end].replace(b"\r\n", b"\n"), content[end + 4 :]


def _receive(sock: socket.socket, deadline: float) -> bytes:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the reply takes too long")
    sock.settimeout(left_s)
    piece = sock.recv(1 << 16)
    if not piece:
        raise NotABrowserError("the connection was closed")
    return piece


def _frame(payload: bytes) -> bytes:
    """A short WebSocket message of a client, with a mask of zeros."""
    return bytes([_TEXT_FRAME, _MASKED | len(payload)]) + bytes(4) + payload
