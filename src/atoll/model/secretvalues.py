"""The forms in which the value of a secret can occur in output, files and commits.

Used to remove values from logs and to find them in commits. A value that a program has changed in
another way, such as compressed, encrypted or split, is not found.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

SHORTEST_BYTES = 8
"""Shorter values occur by chance."""
_SHORTEST_LINE_BYTES = 20
_MOST_LINES = 2_000


def parts_of(value: bytes) -> tuple[bytes, ...]:
    """The value as a program may print it: without white space around it, and, if it has several
    lines, also each long line without white space, such as those of a key.
    """
    whole = value.strip()
    lines = [line.strip() for line in whole.split(b"\n")[:_MOST_LINES]]
    found = [whole if len(whole) >= SHORTEST_BYTES else value]
    if len(lines) > 1:
        found += [b"\r\n".join(lines)]
        found += [line for line in lines if _is_key_like(line)]
    return tuple(dict.fromkeys(part for part in found if len(part) >= SHORTEST_BYTES))


def _is_key_like(line: bytes) -> bool:
    return len(line) >= _SHORTEST_LINE_BYTES and len(line.split()) == 1


def search_forms(value: bytes) -> tuple[bytes, ...]:
    """What to search for: the value and its parts as they are and as in JSON, and the whole value
    in Base64 and in hexadecimal.
    """
    found: dict[bytes, None] = {}
    for part in parts_of(value):
        found |= dict.fromkeys((part, *_json_forms(part)))
    whole = value.strip()
    if len(whole) >= SHORTEST_BYTES:
        found |= dict.fromkeys(_encoded_forms(whole))
    return tuple(found)


def _json_forms(part: bytes) -> Iterator[bytes]:
    text = part.decode("utf-8", "surrogateescape")
    for ascii_only in (True, False):
        escaped = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        yield escaped.encode("utf-8", "surrogateescape")


def _encoded_forms(whole: bytes) -> Iterator[bytes]:
    yield whole.hex().encode()
    yield whole.hex().upper().encode()
    for offset in range(3):
        encoded = _inner_base64(whole, offset)
        yield encoded
        yield encoded.translate(bytes.maketrans(b"+/", b"-_"))


def _inner_base64(part: bytes, offset: int) -> bytes:
    """The characters that stand for the value alone, where `offset` bytes come before it in its
    group of three: the same whatever these and the following bytes are.
    """
    encoded = base64.b64encode(bytes(offset) + part)
    first = (0, 2, 3)[offset]
    last = (offset + len(part)) * 8 // 6
    return encoded[first:last]


class Found(NamedTuple):
    """Where a value is in a text."""

    secret: str
    """The name of the secret."""
    at: int


class SecretSearch:
    """Searches texts for known values."""

    __slots__ = ("_forms", "longest")

    def __init__(self, values: Iterable[tuple[str, bytes]]) -> None:
        """`values` are pairs of a secret's name and its value."""
        self._forms = {form: name for name, value in values for form in search_forms(value)}
        self.longest = max(map(len, self._forms), default=0)

    def __bool__(self) -> bool:
        return bool(self._forms)

    def __repr__(self) -> str:
        """Without values: it may become part of a traceback."""
        return f"SecretSearch({sorted(set(self._forms.values()))!r})"

    def find(self, text: bytes) -> Found | None:
        """The first place of any value."""
        found = [(at, name) for form, name in self._forms.items() if (at := text.find(form)) >= 0]
        return Found(min(found)[1], min(found)[0]) if found else None


class StreamSearch:
    """Searches one text that arrives in pieces."""

    __slots__ = ("_lines", "_search", "_tail")

    def __init__(self, search: SecretSearch) -> None:
        self._search = search
        self._tail = b""
        self._lines = 0

    def find(self, piece: bytes) -> tuple[str, int] | None:
        """The name of the secret that the text has so far, and the line in which it begins."""
        text = self._tail + piece
        found = self._search.find(text)
        if found is not None:
            return found.secret, self._lines + text.count(b"\n", 0, found.at) + 1
        kept = min(len(text), self._search.longest - 1)
        self._lines += text.count(b"\n", 0, len(text) - kept)
        self._tail = text[len(text) - kept :]
        return None
