"""Bodies of HTTP/1 messages without their transfer coding, as strict as `http1`.

Nothing here does I/O.
"""

from __future__ import annotations

from atoll.drivers.network.http1 import ChunkedBody, Framing, SizedBody, UnboundedBody

_LINE_END_BYTES = 2


class BodyDecoder:
    """Takes the bytes of a connection and returns what the body says."""

    def __init__(self, framing: Framing) -> None:
        self._body: _PayloadChunks | SizedBody | UnboundedBody
        if framing.chunked:
            self._body = _PayloadChunks()
        elif framing.length is None:
            self._body = UnboundedBody()
        else:
            self._body = SizedBody(framing.length)

    @property
    def is_over(self) -> bool:
        return self._body.is_over

    @property
    def is_unbounded(self) -> bool:
        """Whether the body ends with the connection."""
        return isinstance(self._body, UnboundedBody)

    def feed(self, data: bytes) -> tuple[int, bytes]:
        """How many bytes at the start of `data` belong to the body, and the content in them.

        HttpError when it is malformed.
        """
        taken = self._body.take(data)
        if isinstance(self._body, _PayloadChunks):
            return taken, self._body.take_payload()
        return taken, data[:taken]


class _PayloadChunks(ChunkedBody):
    def __init__(self) -> None:
        super().__init__()
        self._payload = bytearray()

    def take_payload(self) -> bytes:
        """What the chunks that were taken carried since the last call."""
        payload = bytes(self._payload)
        self._payload.clear()
        return payload

    def _pass_chunk(self, data: bytes | bytearray, at: int) -> int:
        payload_end = at + max(0, self._left - _LINE_END_BYTES)
        end = super()._pass_chunk(data, at)
        self._payload += data[at : min(end, payload_end)]
        return end


def encode_chunk(data: bytes) -> bytes:
    """One chunk; of no data, nothing: an empty chunk would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


LAST_CHUNK = b"0\r\n\r\n"
