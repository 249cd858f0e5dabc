"""The head of an HTTP/2 request, written as HTTP/1.1 and parsed by the one strict parser."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from atoll.drivers.network import http1
from atoll.drivers.network.http1 import Field, HttpError, Request

_CONNECTION_FIELDS = frozenset({
    b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade",
})  # fmt: skip
_BREAKS = re.compile(rb"[\r\n\0]")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]{1,256}")
_METHOD, _SCHEME, _PATH, _AUTHORITY = b":method", b":scheme", b":path", b":authority"


def parse_request(headers: Sequence[Field], *, is_ended: bool) -> Request:
    """`is_ended`: the request has no body. Raises HttpError for all that is not plain."""
    if any(_BREAKS.search(value) for _, value in headers):
        raise HttpError("a header has a line break")
    pseudo = [(name, value) for name, value in headers if name.startswith(b":")]
    special = dict(pseudo)
    if len(special) != len(pseudo) or not special.keys() <= {_METHOD, _SCHEME, _PATH, _AUTHORITY}:
        raise HttpError("a pseudo-header is unknown or repeated")
    method, path = special.get(_METHOD, b""), special.get(_PATH, b"")
    if special.get(_SCHEME) != b"https" or b" " in method or b" " in path:
        raise HttpError("a pseudo-header is malformed")
    fields = [(name, value) for name, value in headers if not name.startswith(b":")]
    for name, _ in fields:
        if name in _CONNECTION_FIELDS or not _NAME.fullmatch(name):
            raise HttpError("a header is not allowed in HTTP/2")
    hosts = {value for name, value in fields if name == b"host"}
    hosts |= {special[_AUTHORITY]} if _AUTHORITY in special else set()
    if len(hosts) != 1:
        raise HttpError("the request needs exactly one host")
    plain = [field for field in fields if field[0] not in (b"host", b"cookie", b"te")]
    cookies = [value for name, value in fields if name == b"cookie"]
    if cookies:
        # HTTP/2 may split them; HTTP/1.1 has one field.
        plain.append((b"cookie", b"; ".join(cookies)))
    plain += _framing(plain, is_ended=is_ended)
    head = http1.render(b"%b %b HTTP/1.1" % (method, path), [(b"host", hosts.pop()), *plain])
    # Without the lines: the request may take long, and has the fields.
    return replace(http1.parse_request(head), lines=())


def _framing(fields: Sequence[Field], *, is_ended: bool) -> list[Field]:
    lengths = [value for name, value in fields if name == b"content-length"]
    if is_ended and any(value != b"0" for value in lengths):
        raise HttpError("the request has no body, but a length")
    return [] if is_ended or lengths else [(b"transfer-encoding", b"chunked")]
