"""How many requests of a capsule are under way, and how much their headers take.

Header compression lets a client of HTTP/2 have megabytes of headers for a few bytes on the wire, in
requests that a server need not answer.
"""

from __future__ import annotations

MOST_REQUESTS = 256
MOST_HEADER_BYTES = 8 << 20
"""As they were sent; each takes a few times as much while its request is under way."""


class OpenRequests:
    """Of one capsule, over all its connections to the broker."""

    def __init__(self) -> None:
        self._count = 0
        self._header_bytes = 0

    def enter(self, header_bytes: int) -> bool:
        """Whether one more request may be served; then `leave` follows with the same number."""
        if self._count >= MOST_REQUESTS or self._header_bytes + header_bytes > MOST_HEADER_BYTES:
            return False
        self._count += 1
        self._header_bytes += header_bytes
        return True

    def leave(self, header_bytes: int) -> None:
        self._count -= 1
        self._header_bytes -= header_bytes
