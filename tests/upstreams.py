"""The server of an owner, which sees the real values of brokered secrets."""

from __future__ import annotations

import http.server


class Upstream(http.server.BaseHTTPRequestHandler):
    """The owner's own server, to which the daemon brings the real value."""

    protocol_version = "HTTP/1.1"
    keys: list[str] = []  # noqa: RUF012 - of one test

    def do_GET(self):
        self.keys.append(self.headers["X-Key"])
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"used")

    def log_message(self, *_):
        return
