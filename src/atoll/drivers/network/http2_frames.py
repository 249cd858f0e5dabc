"""A budget for the frames of an HTTP/2 client that carry nothing.

PING, SETTINGS, PRIORITY, WINDOW_UPDATE, RST_STREAM, CONTINUATION and empty DATA frames cost the
receiver work and answers, and flow control does not bound them. A client begins with a number of
such frames; each frame that carries a request or its body, and each frame that is sent to it, earns
some more, and so does time. The frames are counted on the wire, because not every frame becomes an
event of a library. Nothing here does I/O.
"""

from __future__ import annotations

from atoll.drivers.network.http1 import MAX_HEAD_BYTES

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MOST_FRAMES = 4096
"""Control frames at once."""
_PER_SECOND = 10.0
"""For keep-alives of a connection that lives for days."""
_PER_FRAME = 4.0
"""For each frame with content, in either direction: two windows are opened after it, and more."""
_BYTES_PER_FRAME = 1024
"""Of content that was sent: some clients open two windows for each few kilobytes that they read."""
_HEADER_BYTES = 9
_DATA, _HEADERS, _CONTINUATION = 0x0, 0x1, 0x9
_PADDED = 0x8
_MOST_PADDING = 256


class FrameFloodError(ValueError):
    """A client sends more control frames than its traffic explains, or headers without an end."""


class FrameBudget:
    """Of one connection; fed with all that the client sends, in pieces."""

    def __init__(self, now_s: float) -> None:
        self._left = float(MOST_FRAMES)
        self._at_s = now_s
        self._skipped = len(PREFACE)
        """Bytes until the next header of a frame."""
        self._header = b""
        """The beginning of an incomplete one."""
        self._block_bytes = 0
        """Of the header block that is being received."""

    def earn(self, sent_bytes: int = 0) -> None:
        """A frame with content has come, or was sent to the client."""
        earned = max(_PER_FRAME, sent_bytes / _BYTES_PER_FRAME)
        self._left = min(MOST_FRAMES, self._left + earned)

    def feed(self, data: bytes, now_s: float) -> None:
        """Raises FrameFloodError."""
        self._left = min(MOST_FRAMES, self._left + (now_s - self._at_s) * _PER_SECOND)
        self._at_s = now_s
        data, at = self._header + data, self._skipped
        while at + _HEADER_BYTES <= len(data):
            size = int.from_bytes(data[at : at + 3], "big")
            self._count(data[at + 3], data[at + 4], size)
            at += _HEADER_BYTES + size
        self._header = data[at:]
        self._skipped = max(0, at - len(data))

    def _count(self, kind: int, flags: int, size: int) -> None:
        if kind in (_HEADERS, _CONTINUATION):
            self._block_bytes = size + (self._block_bytes if kind == _CONTINUATION else 0)
            if self._block_bytes > MAX_HEAD_BYTES:
                raise FrameFloodError("the headers of a request are too long")
        is_content = kind == _HEADERS or (
            kind == _DATA and size > (_MOST_PADDING if flags & _PADDED else 0)
        )
        if is_content:
            self.earn()
            return
        self._left -= 1
        if self._left < 0:
            raise FrameFloodError("too many control frames")
