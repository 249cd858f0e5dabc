"""JSON web tokens, as logins have them: their claims are read, and copied without the signature.

Nothing here verifies a signature: what it reads is the owner's own login file.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import NamedTuple

_FORM = re.compile(r"[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]+")
_HEADER = ("alg", "typ", "kid")
_CREDENTIAL = re.compile(r"token|secret|passw|credential|nonce|api_?key", re.IGNORECASE)
_NEVER = object()
_DEEPEST = 8
_SIGNATURE_LENGTH = 44
"""A multiple of 4, so that the end of a decoder's last group is never cut."""


class WebToken(NamedTuple):
    header: Mapping[str, object]
    claims: Mapping[str, object]


def find_web_token(text: str) -> WebToken | None:
    """The token in `text`, or None if it is none."""
    if not _FORM.fullmatch(text):
        return None
    header, claims, _ = text.split(".")
    found = _decoded(header), _decoded(claims)
    return WebToken(found[0], found[1]) if found[0] is not None and found[1] is not None else None


def find_expiry_s(token: WebToken) -> float | None:
    value = token.claims.get("exp")
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and isinstance(value, (int, float)) else None


def placeholder_token(token: WebToken, signature: str, *, expires_at: int) -> str:
    """A token with the same claims that no server accepts: `signature` stands where the signature
    was, the expiry is replaced, and claims that may hold a credential are left out.
    """
    header = {name: token.header[name] for name in _HEADER if name in token.header}
    claims = without_credentials(dict(token.claims))
    if isinstance(claims, dict) and "exp" in claims:
        claims["exp"] = expires_at
    padded = signature.ljust(_SIGNATURE_LENGTH, "A")
    padded += "A" * (-len(padded) % 4)
    return f"{_encoded(header)}.{_encoded(claims)}.{padded}"


def without_credentials(value: object) -> object:
    """A JSON value without the entries that may hold a credential, by name and by form."""
    kept = _kept(value, 0)
    return None if kept is _NEVER else kept


def _kept(value: object, depth: int) -> object:
    if depth > _DEEPEST:
        return _NEVER
    if isinstance(value, Mapping):
        entries = {
            str(name): _kept(inner, depth + 1)
            for name, inner in value.items()
            if not _CREDENTIAL.search(str(name))
        }
        return {name: inner for name, inner in entries.items() if inner is not _NEVER}
    if isinstance(value, list):
        return [inner for one in value if (inner := _kept(one, depth + 1)) is not _NEVER]
    if isinstance(value, str) and find_web_token(value) is not None:
        return _NEVER
    return value


def _decoded(part: str) -> dict[str, object] | None:
    try:
        found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _encoded(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()
