"""Pages that the router itself serves: short, self-contained, in the format that the client
accepts.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import NamedTuple

_STYLE = "body{font:16px/1.5 system-ui,sans-serif;max-width:44em;margin:4em auto;padding:0 1em}"
_MOST_LINKS = 100
AGAIN_S = 2


class Page(NamedTuple):
    """`links` are the URLs that would have been right, each with what is there."""

    status: int
    text: str
    hint: str = ""
    links: Sequence[tuple[str, str]] = ()
    again: bool = False
    """Whether a browser shall ask again by itself."""

    def render(self, *, accept: str = "", method: str = "GET") -> bytes:
        """The whole response, after which the connection ends."""
        phrase = HTTPStatus(self.status).phrase
        kind, body = self._body(accept)
        head = (
            f"HTTP/1.1 {self.status} {phrase}\r\nContent-Type: {kind}; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\n"
            "X-Content-Type-Options: nosniff\r\n"
            "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode("ascii") + (b"" if method == "HEAD" else body)

    def _body(self, accept: str) -> tuple[str, bytes]:
        accepted = accept.lower()
        if "text/html" in accepted:
            return "text/html", self._html().encode()
        if "json" in accepted:
            urls = [{"url": url, "about": about} for url, about in self.links]
            shape = {"error": self.text, "hint": self.hint or None, "urls": urls}
            return "application/json", json.dumps(shape).encode() + b"\n"
        return "text/plain", self._plain().encode()

    def _plain(self) -> str:
        lines = [f"atoll: {self.text}", *([f"hint: {self.hint}"] if self.hint else [])]
        lines += [f"  {url}  {about}" for url, about in self.links[:_MOST_LINKS]]
        return "\n".join(lines) + "\n"

    def _html(self) -> str:
        title = html.escape(f"{self.status} {HTTPStatus(self.status).phrase}")
        again = f'<meta http-equiv="refresh" content="{AGAIN_S}">' if self.again else ""
        items = "".join(
            f'<li><a href="{html.escape(url)}">{html.escape(url)}</a> {html.escape(about)}</li>'
            for url, about in self.links[:_MOST_LINKS]
        )
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8">{again}'
            f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>"
            f"<p>{html.escape(self.text)}</p>"
            + (f"<p><code>{html.escape(self.hint)}</code></p>" if self.hint else "")
            + (f"<ul>{items}</ul>" if items else "")
            + "</body></html>\n"
        )
