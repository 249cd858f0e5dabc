"""Real values in the responses of servers, replaced by the placeholders again.

A server repeats a value as it is, or escaped in one of many ways, and also twice: for a URL, JSON,
JavaScript or HTML, with any case and for any of its characters. Therefore no list of escaped forms
is searched for: the text is unescaped as often as something changes, at most `_ROUNDS` times, and
the value is searched for in each of these texts. What is found is replaced in the original one.
Time is linear in the length of the text. Nothing here does I/O.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from html.entities import html5
from itertools import accumulate
from typing import NamedTuple

_ROUNDS = 3
_PIECE_BYTES = 8 << 10
_ESCAPE = re.compile(
    rb"%(?:u00)?(?P<url>HH)"
    rb"|\\(?:u00|x|U0{6})(?P<hex>HH)"
    rb"|\\u\{0{0,6}(?P<braces>HH)\}"
    rb"|\\(?P<itself>[!-/:-@\[-`{-~])"
    rb"|&\#0{0,8}(?P<decimal>[0-9]{2,3});"
    rb"|&\#[xX]0{0,8}(?P<entity>HH);"
    rb"|&(?P<name>[A-Za-z]{2,12});".replace(b"H", b"[0-9A-Fa-f]")
)
_INCOMPLETE = re.compile(
    rb"(?:%(?:u0{0,2})?H?|\\(?:u0{0,2}H?|u\{0{0,6}H{0,2}|xH?|U0{0,6}H?)?"
    rb"|&(?:\#0{0,8}[0-9]{0,3}|\#[xX]0{0,8}H{0,2}|[A-Za-z]{0,12})?)\Z".replace(b"H", b"[0-9A-Fa-f]")
)
_LONGEST = 16
"""Bytes of one escape."""
_NAMED = {
    name[:-1].encode(): ord(text)
    for name, text in html5.items()
    if name.endswith(";") and len(text) == 1 and "!" <= text <= "~"
}


def conceal(data: bytes, replaced: Iterable[tuple[str, str]]) -> bytes:
    """Puts the tokens back where a server repeats a real value."""
    concealer = Concealer(replaced)
    return concealer.feed(data) + concealer.flush()


class Concealer:
    """Puts the tokens back in a text that arrives in pieces. The end of a piece that may be the
    beginning of a real value is held until the next piece, or `flush`.
    """

    def __init__(self, replaced: Iterable[tuple[str, str]]) -> None:
        """`replaced` are pairs of a real value and the token that takes its place."""
        self._forms = {
            form: token.encode()
            for value, token in replaced
            for form in (text.data for text in _unescape(value.encode()))
        }
        pattern = b"|".join(map(re.escape, sorted(self._forms, key=len, reverse=True)))
        self._pattern = re.compile(pattern) if pattern else None
        self._held = b""

    @property
    def piece_bytes(self) -> int:
        """How much to feed at once: tokens may be longer than what they stand for, and others must
        not wait for long.
        """
        return _PIECE_BYTES if self._pattern else 1 << 30

    def feed(self, data: bytes) -> bytes:
        if self._pattern is None:
            return data
        data, ready, at, hold = self._held + data, bytearray(), 0, len(self._held) + len(data)
        found: list[tuple[int, int, bytes]] = []
        for text in _unescape(data):
            end = 0
            for match in self._pattern.finditer(text.data):
                end = match.end()
                token = self._forms[match[0]]
                found.append((text.origin(match.start()), text.origin(end), token))
            # The last escape may become a character of the value, or stay what it is.
            ends = {text.data, text.data[: text.incomplete]}
            begins = min(_find_beginning(d, form, end) for d in ends for form in self._forms)
            hold = min(hold, text.origin(min(begins, text.incomplete)))
        for first, end, token in sorted(found):
            if first >= at:
                ready += data[at:first] + token
            at = max(at, end)
        hold = max(hold, at)
        ready += data[at:hold]
        self._held = data[hold:]
        return bytes(ready)

    def flush(self) -> bytes:
        data, self._held = self._held, b""
        return data


class _Text(NamedTuple):
    """A text after some rounds of unescaping."""

    data: bytes
    incomplete: int
    """Where an escape begins that may end in the next piece, or the length."""
    maps: tuple[tuple[list[int], list[int]], ...] = ()
    """Of each round, the last first: the positions of the characters that were escaped, and by how
    many bytes what follows the first n of them was moved.
    """

    def origin(self, position: int) -> int:
        """The position in the original text."""
        for places, moved in self.maps:
            position += moved[bisect_left(places, position)]
        return position


def _unescape(data: bytes) -> list[_Text]:
    """The text itself, and what it is after each round that changes something."""
    texts = [_Text(data, len(data))]
    for _ in range(_ROUNDS):
        text = texts[-1]
        plain, places, lengths, incomplete = _unescape_once(text.data)
        # What follows is the same in both texts.
        unsettled = len(text.data) - min(incomplete, text.incomplete)
        texts[-1] = text._replace(incomplete=len(text.data) - unsettled)
        if not places:
            break
        maps = ((places, list(accumulate(lengths, initial=0))), *text.maps)
        texts.append(_Text(plain, len(plain) - unsettled, maps))
    return texts


def _unescape_once(data: bytes) -> tuple[bytes, list[int], list[int], int]:
    """The text, the places of what was escaped, by how much each was longer, and where an escape
    begins that may not be complete.
    """
    plain, at, end = bytearray(), 0, 0
    places: list[int] = []
    lengths: list[int] = []
    for match in _ESCAPE.finditer(data):
        end = match.end()
        character = _character(match)
        if not 0x21 <= character <= 0x7E:
            # No real value has others.
            continue
        plain += data[at : match.start()]
        places.append(len(plain))
        lengths.append(end - match.start() - 1)
        plain.append(character)
        at = end
    plain += data[at:]
    return bytes(plain), places, lengths, _find_incomplete(data, end)


def _find_incomplete(data: bytes, first: int) -> int:
    """Where an escape begins that may not be complete, or the length. A character of it may be
    escaped itself, and so on: then the part of an escape comes before the part of another one.
    """
    at = len(data)
    for _ in range(_ROUNDS + 1):
        rest = _INCOMPLETE.search(data, max(first, at - _LONGEST), at)
        if rest is None:
            break
        at = rest.start()
    return at


def _character(match: re.Match[bytes]) -> int:
    kind, said = match.lastgroup, match[match.lastgroup or 0]
    if kind == "itself":
        return said[0]
    if kind == "name":
        return _NAMED.get(said, 0)
    return int(said, 10 if kind == "decimal" else 16)


def _find_beginning(data: bytes, form: bytes, first: int) -> int:
    """Where the last part of `data` starts that `form` begins with, or its length."""
    at = max(first, len(data) - len(form) + 1) - 1
    while (at := data.find(form[:1], at + 1)) >= 0:
        if form.startswith(data[at:]):
            return at
    return len(data)
