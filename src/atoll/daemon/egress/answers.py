"""What somebody inside reads when something is refused: short, and with the way to get it."""

from __future__ import annotations

from atoll.daemon.egress.reaching import Refusal
from atoll.drivers.network import heads

_REASONS = {400: b"Bad Request", 403: b"Forbidden", 502: b"Bad Gateway"}
BAD_REQUEST, FORBIDDEN, BAD_GATEWAY = 400, 403, 502


def render_text(status: int, text: str, *, method: str = "") -> bytes:
    """A whole response, after which the connection ends."""
    body = f"atoll: {text}\n".encode()
    first = b"HTTP/1.1 %d %s" % (status, _REASONS[status])
    fields = [
        (b"Content-Type", b"text/plain; charset=utf-8"),
        (b"Content-Length", b"%d" % len(body)),
        (b"Connection", b"close"),
    ]
    return heads.render(first, fields) + (b"" if method == "HEAD" else body)


def render_refusal(capsule: str, refusal: Refusal) -> str:
    """Why, and the command with which the owner allows it, if any does."""
    why, ask = refusal.shown.why, refusal.shown.ask
    return f"{why}\nthe owner can allow it: atoll allow {capsule} {ask}" if ask else why
