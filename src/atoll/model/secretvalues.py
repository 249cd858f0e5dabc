"""The forms in which the value of a secret can occur in output, files and commits.

Used to remove values from logs and to find them in commits. A value that a program has changed in
another way, such as compressed, encrypted or split, is not found.
"""

from __future__ import annotations

import base64
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from atoll.model.byte_search import ByteSearch

SHORTEST_BYTES = 8
"""Shorter values occur by chance."""
_SHORTEST_LINE_BYTES = 20
_LEAST_VARIETY = 6
"""Different bytes of such a line."""
_MOST_LINES = 2_000
_WHITE = b" \t\r\n"
_BEHIND_BYTES = 4 << 20
"""How far the line of a value is looked for that is spread over many pieces of a text."""


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
    # A line that separates others, such as a row of `#`, is in many texts.
    is_varied = len(set(line)) >= _LEAST_VARIETY
    return len(line) >= _SHORTEST_LINE_BYTES and is_varied and len(line.split()) == 1


def encoded_forms(value: bytes) -> Iterator[bytes]:
    """The value in hexadecimal and in Base64, without the white space that programs put in."""
    whole = value.strip()
    if len(whole) < SHORTEST_BYTES:
        return
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


# Texts as they are searched

_BACKSLASH = b"\xc0\x80"
"""Stands for an escaped backslash until all others are replaced; not valid in UTF-8."""
_SIMPLE = {
    b"/": b"\\/", b'"': b'\\"', b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t", b"\b": b"\\b",
    b"\f": b"\\f",
}  # fmt: skip
_CODES = re.compile(rb"(?:\\u[0-9a-fA-F]{4})+")
_INCOMPLETE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z|\\(?:u[0-9a-fA-F]{0,3})?\Z"
)
_LONGEST_ESCAPE = 12


def compact(text: bytes) -> bytes:
    """The text without the white space by which encoded values are wrapped."""
    return text.translate(None, _WHITE)


class JsonUnescaper:
    """Replaces the escapes of JSON by what they stand for, as far as values can have that."""

    __slots__ = ("_has_backslash", "_simple")

    def __init__(self, values: Iterable[bytes]) -> None:
        used = {bytes([byte]) for byte in set().union(*values)}
        self._simple = [(escape, plain) for plain, escape in _SIMPLE.items() if plain in used]
        self._has_backslash = b"\\" in used

    def __call__(self, text: bytes) -> bytes:
        if b"\\" not in text:
            return text
        if self._has_backslash:
            text = text.replace(b"\\\\", _BACKSLASH)
        for escape, plain in self._simple:
            text = text.replace(escape, plain)
        if b"\\u" in text:
            text = _CODES.sub(_characters, text)
        return text.replace(_BACKSLASH, b"\\") if self._has_backslash else text


def _characters(match: re.Match[bytes]) -> bytes:
    units = bytes.fromhex(match[0].replace(b"\\u", b"").decode("ascii"))
    text = units.decode("utf-16-be", "surrogatepass")
    try:
        # Python writes a byte that is not text as half of a surrogate pair.
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _incomplete_escape(text: bytes) -> int:
    """Where an escape begins that the text may continue, or its length."""
    first = max(0, len(text) - _LONGEST_ESCAPE)
    while (match := _INCOMPLETE.search(text, first)) is not None:
        at = match.start()
        before = at - len(text[:at].rstrip(b"\\"))
        if before % 2 == 0:
            return at
        # This backslash is itself escaped.
        first = at + 1
    return len(text)


class Found(NamedTuple):
    """Where a value is in a text."""

    secret: str
    """The name of the secret."""
    line: int
    """In which it begins."""


class SecretSearch:
    """Searches texts for known values."""

    __slots__ = ("_names", "encoded", "plain", "unescape_json")

    def __init__(self, values: Iterable[tuple[str, bytes]]) -> None:
        """`values` are pairs of a secret's name and its value."""
        self._names: dict[bytes, str] = {}
        plain: list[bytes] = []
        encoded: list[bytes] = []
        for name, value in values:
            parts, forms = parts_of(value), tuple(encoded_forms(value))
            plain += parts
            encoded += forms
            self._names |= dict.fromkeys((*parts, *forms), name)
        self.plain = ByteSearch(plain)
        self.unescape_json = JsonUnescaper(plain)
        self.encoded = ByteSearch(encoded)

    def __bool__(self) -> bool:
        return bool(self._names)

    def __repr__(self) -> str:
        """Without values: it may become part of a traceback."""
        return f"SecretSearch({sorted(set(self._names.values()))!r})"

    def name_of(self, form: bytes) -> str:
        return self._names[form]

    def find(self, text: bytes) -> Found | None:
        """The first place of any value."""
        return StreamSearch(self).find(text)


class _Piece(NamedTuple):
    """A piece of a text as one view shows it."""

    content: bytes
    begin: int
    """Where it begins in the view of the whole text."""
    lines: int
    """How many lines end before it."""


class _View:
    """A text that arrives in pieces, changed in one way, and searched."""

    __slots__ = (
        "_begin",
        "_behind",
        "_behind_bytes",
        "_change",
        "_held",
        "_lines",
        "_search",
        "tail",
    )

    def __init__(self, search: ByteSearch, change: Callable[[bytes], bytes]) -> None:
        self._search = search
        self._change = change
        self.tail = self._held = b""
        self._begin = self._lines = self._behind_bytes = 0
        self._behind: deque[_Piece] = deque()
        """The last pieces, as far as a value can begin in them."""

    def branch(self, change: Callable[[bytes], bytes]) -> _View:
        """A view that goes on from here with another change."""
        made = _View(self._search, change)
        made.tail, made._begin, made._lines = self.tail, self._begin, self._lines
        made._behind, made._behind_bytes = self._behind.copy(), self._behind_bytes
        return made

    def find(self, content: bytes) -> tuple[int, bytes] | None:
        """The number of lines before the first place of any string, and the string."""
        content = self._held + content
        at = (
            _incomplete_escape(content) if isinstance(self._change, JsonUnescaper) else len(content)
        )
        content, self._held = content[:at], content[at:]
        seen = self._change(content)
        self._behind.append(_Piece(content, self._begin, self._lines))
        self._behind_bytes += len(content)
        text = self.tail + seen
        found = self._search.find(text, len(self.tail))
        if found is not None:
            return self._lines_before(self._begin - len(self.tail) + found[0]), found[1]
        self._begin += len(seen)
        self._lines += content.count(b"\n")
        kept = min(len(text), self._search.longest - 1)
        self.tail = text[len(text) - kept :]
        self._forget(self._begin - kept)
        return None

    def _forget(self, begin: int) -> None:
        behind = self._behind
        while behind and (
            self._behind_bytes > _BEHIND_BYTES
            or (behind[1].begin if len(behind) > 1 else self._begin) <= begin
        ):
            self._behind_bytes -= len(behind.popleft().content)

    def _lines_before(self, at: int) -> int:
        piece = next((one for one in reversed(self._behind) if one.begin <= at), self._behind[0])
        low, high = 0, len(piece.content)
        # The shortest beginning of the piece that shows what is at this place.
        while low < high:
            middle = (low + high) // 2
            if len(self._change(piece.content[:middle])) > at - piece.begin:
                high = middle
            else:
                low = middle + 1
        return piece.lines + piece.content.count(b"\n", 0, max(low - 1, 0))


class StreamSearch:
    """Searches one text that arrives in pieces: as it is, without the white space in what may be
    Base64 or hexadecimal, and with the escapes of JSON replaced.
    """

    __slots__ = ("_encoded", "_json", "_plain", "_search")

    def __init__(self, search: SecretSearch) -> None:
        self._search = search
        self._plain = _View(search.plain, _unchanged)
        self._encoded = _View(search.encoded, compact)
        self._json: _View | None = None
        """None as long as it is as the plain one."""

    def find(self, piece: bytes) -> Found | None:
        """The first place of any value in the text so far."""
        if not self._search:
            return None
        if self._json is None and b"\\" in piece:
            self._json = self._plain.branch(self._search.unescape_json)
        views = (self._plain, self._encoded, self._json)
        found = [view.find(piece) for view in views if view is not None]
        if (first := min(filter(None, found), default=None)) is not None:
            return Found(self._search.name_of(first[1]), first[0] + 1)
        if b"\\" not in piece and b"\\" not in self._plain.tail:
            self._json = None
        return None


def _unchanged(text: bytes) -> bytes:
    return text
