"""WebSocket frames (RFC 6455): reading messages out of a byte stream, and writing frames.

No I/O. Extensions are not supported: the peers must not have agreed on any. Memory is bounded: of a
message that is longer than the limit, only its beginning is kept.
"""

from __future__ import annotations

import base64
import hashlib
from typing import NamedTuple

TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA
_CONTINUATION = 0x0
_FINAL, _RESERVED, _OPCODE = 0x80, 0x70, 0x0F
_MASKED, _LENGTH = 0x80, 0x7F
_MAX_CONTROL = 125
_MASK_BYTES = 4
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class WebSocketError(ValueError):
    """The bytes are no WebSocket frames, or use an extension."""


class Message(NamedTuple):
    opcode: int
    data: bytes
    is_whole: bool = True
    """Whether `data` is all of it; otherwise its beginning."""


class _Head(NamedTuple):
    is_final: bool
    opcode: int
    length: int
    mask: bytes


class MessageReader:
    """Takes bytes in any portions and returns the messages that are complete."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._unread = bytearray()
        self._head: _Head | None = None
        self._left = 0
        """Bytes of the present frame's payload that are still to come."""
        self._control = bytearray()
        self._data = bytearray()
        self._opcode = 0
        """Of the fragmented message that is being read; 0: none."""
        self._is_whole = True

    def feed(self, data: bytes) -> list[Message]:
        """Raises WebSocketError when the stream cannot be read any further."""
        self._unread += data
        found: list[Message] = []
        while True:
            if self._head is None and not self._read_head():
                return found
            assert self._head is not None  # noqa: S101 - just read
            self._read_payload(self._head)
            if self._left:
                return found
            message = self._end_frame(self._head)
            self._head = None
            if message is not None:
                found.append(message)

    def _read_head(self) -> bool:
        head, size = _parse_head(self._unread)
        if head is None:
            return False
        del self._unread[:size]
        is_control = head.opcode >= CLOSE
        if not is_control and (head.opcode == _CONTINUATION) != bool(self._opcode):
            raise WebSocketError("a fragment is out of order")
        if head.opcode in (TEXT, BINARY):
            self._opcode = head.opcode
        self._head, self._left = head, head.length
        return True

    def _read_payload(self, head: _Head) -> None:
        part = bytes(self._unread[: self._left])
        if not part:
            return
        done = head.length - self._left
        del self._unread[: len(part)]
        self._left -= len(part)
        target = self._control if head.opcode >= CLOSE else self._data
        room = self._limit - len(target)
        if len(part) > room and target is self._data:
            self._is_whole = False
        target += _unmask(part[: max(room, 0)], head.mask, done)

    def _end_frame(self, head: _Head) -> Message | None:
        if head.opcode >= CLOSE:
            message = Message(head.opcode, bytes(self._control))
            self._control.clear()
            return message
        if not head.is_final:
            return None
        message = Message(self._opcode, bytes(self._data), self._is_whole)
        self._data.clear()
        self._opcode, self._is_whole = 0, True
        return message


def frame(opcode: int, payload: bytes, *, mask: bytes = b"") -> bytes:
    """One final frame; a client must give a mask of 4 random bytes."""
    flag, length = _MASKED if mask else 0, len(payload)
    if length <= _MAX_CONTROL:
        size = bytes([flag | length])
    elif length < 1 << 16:
        size = bytes([flag | 126]) + length.to_bytes(2, "big")
    else:
        size = bytes([flag | 127]) + length.to_bytes(8, "big")
    return bytes([_FINAL | opcode]) + size + mask + _unmask(payload, mask, 0)


def accept_key(key: bytes) -> bytes:
    """The value of `Sec-WebSocket-Accept` for one of `Sec-WebSocket-Key`."""
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())


def _parse_head(data: bytearray) -> tuple[_Head | None, int]:
    """The head of a frame and its size; None when bytes are missing."""
    if len(data) < 2:
        return None, 0
    first, second = data[0], data[1]
    opcode, short = first & _OPCODE, second & _LENGTH
    if first & _RESERVED or opcode not in (_CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
        raise WebSocketError("a frame has a reserved bit or opcode")
    if opcode >= CLOSE and (short > _MAX_CONTROL or not first & _FINAL):
        raise WebSocketError("a control frame is too long or fragmented")
    extra = {126: 2, 127: 8}.get(short, 0)
    masked = _MASK_BYTES if second & _MASKED else 0
    size = 2 + extra + masked
    if len(data) < size:
        return None, 0
    length = int.from_bytes(data[2 : 2 + extra], "big") if extra else short
    if length >= 1 << 63:
        raise WebSocketError("a frame is too long")
    return _Head(bool(first & _FINAL), opcode, length, bytes(data[size - masked : size])), size


def _unmask(data: bytes, mask: bytes, offset: int) -> bytes:
    """Applies a mask to a part of a payload that begins at `offset`; undoes it, too."""
    if not mask or not data:
        return data
    start = offset % _MASK_BYTES
    turned = mask[start:] + mask[:start]
    key = (turned * (len(data) // _MASK_BYTES + 1))[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(len(data), "big")
