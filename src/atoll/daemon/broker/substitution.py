"""Placeholders in a request, and the real values that take their places.

Law: a real value appears only where a token of the client had the marker of a known placeholder,
and a credential without one is refused, since it would be somebody else's: an injected agent must
not use it to carry data out. Nothing here does I/O.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

from atoll.drivers.network.http1 import Field, usual_name
from atoll.model.secret import Substitution

CREDENTIAL_FIELDS = frozenset({
    b"authorization", b"proxy-authorization", b"x-api-key", b"api-key", b"x-goog-api-key",
    b"x-auth-token", b"private-token", b"cookie",
})  # fmt: skip
CREDENTIAL_PARAMETERS = frozenset({"key", "api_key", "apikey", "access_token", "private_token"})
_PUBLIC_FIELDS = frozenset({
    b"host", b"user-agent", b"referer", b"origin", b"from", b"via", b"forwarded",
    b"x-forwarded-for", b"x-forwarded-host", b"x-request-id", b"range", b"content-type",
    b"content-disposition", b"accept", b"accept-language", b"accept-encoding",
})  # fmt: skip
"""Fields that servers log, store or show: a real value is never put into one."""
_PUBLIC_WORDS = re.compile(
    r"version|beta|feature|idempotency|nonce|trace|correlation|cache|organization|project|^if-"
    r"|^access-control-|^sec-websocket-(?:key|extensions)|^prefer$"
)
"""In the names of fields whose values servers repeat, such as in the message of an error."""
_SECRET_WORDS = re.compile(r"auth|pass|secret|token")
_CREDENTIAL_WORDS = re.compile(r"auth|cookie|credential|jwt|key|pass|secret|token")
_COOKIE = re.compile(r"[!-+\--:<-~]+", re.ASCII)
"""One pair; some servers also begin a new one after a space or a comma."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+={0,2}", re.ASCII)
_SAFE_VALUE = re.compile(r"[!-~]+", re.ASCII)
_BASIC = re.compile(r"[Bb][Aa][Ss][Ii][Cc] +([A-Za-z0-9+/]{1,4096}={0,2})", re.ASCII)
_CREDENTIAL = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9-]* +)?(?:(?:access_token|api_?key|auth|key|token)=)?([!-~]+)",
    re.ASCII | re.IGNORECASE,
)
"""One credential with its scheme, and perhaps a name before it."""
_CONSTANT_PASSWORDS = frozenset(("", "x", "x-oauth-basic", "api_token", "unused"))
"""What servers expect as the password when the user name is the credential."""
_MOST_REPLACED = 64
_PUT_BACK_CHARACTERS = 128


class UnsafeValueError(ValueError):
    """A real value has characters that a header cannot carry. Never quotes it."""


class TooManyPlaceholdersError(ValueError):
    """A short request would become a long one."""


class Substituted(NamedTuple):
    """The parts of a request with real values. Not to be shown to anybody but the server."""

    fields: tuple[Field, ...]
    query: str
    replaced: tuple[tuple[str, str], ...]
    """Pairs of a real value and what is put back in its place: the token that it replaced, or its
    marker if the token is much longer, so that no response grows by much.
    """

    def __repr__(self) -> str:
        return f"Substituted({len(self.replaced)} replaced)"


def find_placeholders(
    fields: Iterable[Field], query: str, placeholders: Iterable[str]
) -> frozenset[str]:
    """The placeholders that occur in a request, where they would be replaced."""
    texts = [text for name, value in fields for text in _texts(name, value)]
    texts += [unquote(value) for _, value in _parameters(query)]
    return frozenset(p for p in placeholders if any(f"{p}x" in text for text in texts))


def find_misplaced(fields: Iterable[Field], query: str, placeholders: Iterable[str]) -> str | None:
    """The name of a header or parameter in which a placeholder would be replaced, although it does
    not carry credentials, as far as its name says.
    """
    known = tuple(f"{placeholder}x" for placeholder in placeholders)
    for name, value in fields:
        if any(_has(text, known) for text in _texts(name, value)) and not _may_carry(name):
            return usual_name(name).decode()
    for key, text in _parameters(query):
        if _has(unquote(text), known) and not _may_carry(unquote(key).encode()):
            return unquote(key)
    return None


def _is_public(name: bytes) -> bool:
    normal = usual_name(name)
    text = normal.decode("latin-1")
    is_shown = _PUBLIC_WORDS.search(text) and not _SECRET_WORDS.search(text)
    return normal in _PUBLIC_FIELDS or bool(is_shown)


def _may_carry(name: bytes) -> bool:
    return bool(_CREDENTIAL_WORDS.search(usual_name(name).decode("latin-1")))


def find_foreign(fields: Iterable[Field], query: str, placeholders: Iterable[str]) -> str | None:
    """The name of a header or parameter that carries a credential which is no known placeholder."""
    known = tuple(f"{placeholder}x" for placeholder in placeholders)
    for name, value in fields:
        lower = usual_name(name)
        if lower in CREDENTIAL_FIELDS and not _is_known(lower, value.decode("latin-1"), known):
            return lower.decode()
    # Some servers also begin a new parameter after a semicolon.
    for key, text in _parameters(query.replace(";", "&")):
        is_credential = unquote(key).lower() in CREDENTIAL_PARAMETERS
        if is_credential and text and not _is_one(unquote(text), known):
            return unquote(key).lower()
    return None


def _is_known(name: bytes, value: str, known: Sequence[str]) -> bool:
    if not value:
        return True
    if name == b"cookie":
        pairs = [pair.strip() for pair in value.split(";") if pair.strip()]
        is_plain = all(_COOKIE.fullmatch(pair) for pair in pairs)
        return is_plain and all(_is_one(pair.partition("=")[2] or pair, known) for pair in pairs)
    if basic := _BASIC.fullmatch(value):
        user, _, password = _decode_basic(basic[1]).partition(":")
        is_in_user = password.lower() in _CONSTANT_PASSWORDS and _is_one(user, known)
        return is_in_user or _is_one(password, known)
    match = _CREDENTIAL.fullmatch(value)
    return match is not None and _is_one(match[1], known)


def _is_one(text: str, known: Sequence[str]) -> bool:
    """Whether it is a placeholder, or several, and nothing else: a server might take one part of a
    text for the credential, and only the words with a placeholder are replaced.
    """
    words = _TOKEN.findall(text)
    return bool(words) and all(_has(word, known) for word in words)


def _has(text: str, known: Iterable[str]) -> bool:
    return any(marker in text for marker in known)


def substitute(
    fields: Iterable[Field], query: str, substitutions: Sequence[Substitution]
) -> Substituted:
    """Puts the real values in. Raises UnsafeValueError and TooManyPlaceholdersError."""
    for each in substitutions:
        if not _SAFE_VALUE.fullmatch(each.value):
            raise UnsafeValueError
    replacer = _Replacer(substitutions)
    changed = tuple((name, replacer.replace_field(name, value)) for name, value in fields)
    return Substituted(changed, replacer.replace_query(query), tuple(replacer.replaced.items()))


class _Replacer:
    def __init__(self, substitutions: Sequence[Substitution]) -> None:
        self._substitutions = substitutions
        self._count = 0
        self._marker = ""
        """The last that was replaced."""
        self.replaced: dict[str, str] = {}
        """Real value → what is put back."""

    def replace_field(self, name: bytes, value: bytes) -> bytes:
        if _is_public(name):
            return value
        text = value.decode("latin-1")
        if basic := _BASIC.fullmatch(text):
            user, colon, password = _decode_basic(basic[1]).partition(":")
            pair = f"{self._replace(user)}{colon}{self._replace(password)}"
            if pair == f"{user}{colon}{password}":
                return value
            encoded = base64.b64encode(pair.encode("latin-1"))
            self._note(encoded.decode(), basic[1])
            return b"Basic " + encoded
        changed = self._replace(text)
        return value if changed == text else changed.encode("latin-1")

    def replace_query(self, query: str) -> str:
        if not query:
            return query
        parts = []
        for part in query[1:].split("&"):
            key, equals, value = part.partition("=")
            plain = unquote(value, "latin-1")
            changed = self._replace(plain)
            if changed != plain:
                value = quote(changed.encode("latin-1"), safe="")
            parts.append(f"{key}{equals}{value}")
        return f"?{'&'.join(parts)}"

    def _replace(self, text: str) -> str:
        return _TOKEN.sub(lambda match: self._value_of(match[0]), text)

    def _value_of(self, token: str) -> str:
        for marker, value in self._substitutions:
            if marker in token:
                self._count += 1
                if self._count > _MOST_REPLACED:
                    raise TooManyPlaceholdersError
                self._marker = marker
                self._note(value, token)
                return value
        return token

    def _note(self, value: str, token: str) -> None:
        is_short = len(token) <= max(_PUT_BACK_CHARACTERS, 2 * len(value))
        self.replaced[value] = token if is_short else self._marker


def _texts(name: bytes, value: bytes) -> Iterator[str]:
    if _is_public(name):
        return
    text = value.decode("latin-1")
    basic = _BASIC.fullmatch(text)
    yield _decode_basic(basic[1]) if basic else text


def _decode_basic(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode("latin-1")
    except binascii.Error:
        return ""


def _parameters(query: str) -> Iterator[tuple[str, str]]:
    for part in query[1:].split("&"):
        key, _, value = part.partition("=")
        yield key, value
