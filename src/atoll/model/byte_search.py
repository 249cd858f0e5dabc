"""Finds any of many byte strings in a text; how many there are hardly changes the speed."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    _Words = dict[int, dict[tuple[int, int], set[bytes]]]
    """By word: the strings that have it, by its place in them and their length."""

_WORD_BYTES = 8
_SPAN_BYTES = 2 * _WORD_BYTES - 1
"""A string of this length has a whole word of the text in it, wherever it is in the text."""
_MOST_SEARCHED = 12
"""Up to so many strings are searched for one by one, which takes the least time for each."""


class ByteSearch:
    """The strings to find.

    With many of them, the text is read as words of 8 bytes, and a set has all words that one of the
    longer strings can show: 8 of each string, since it can begin anywhere between two words.
    """

    __slots__ = ("_single", "_words", "longest")

    def __init__(self, strings: Iterable[bytes]) -> None:
        strings = tuple(dict.fromkeys(strings))
        is_many = len(strings) > _MOST_SEARCHED
        indexed = [one for one in strings if is_many and len(one) >= _SPAN_BYTES]
        self._words = _words_of(indexed)
        self._single = [one for one in strings if not is_many or len(one) < _SPAN_BYTES]
        self.longest = max(map(len, strings), default=0)

    def __bool__(self) -> bool:
        return self.longest > 0

    def find(self, text: bytes, start: int = 0) -> tuple[int, bytes] | None:
        """The first place of any string, and the string; of those that end at `start` or before,
        none.
        """
        found: tuple[int, bytes] | None = None
        for one in self._single:
            at = text.find(one, max(0, start - len(one) + 1))
            if at >= 0 and (found is None or at < found[0]):
                found = at, one
        return min(filter(None, (found, self._find_indexed(text, start))), default=None)

    def _find_indexed(self, text: bytes, start: int) -> tuple[int, bytes] | None:
        if not self._words:
            return None
        begin = max(0, start - self.longest + 1)
        begin -= begin % _WORD_BYTES
        whole = len(text) - (len(text) - begin) % _WORD_BYTES
        words = memoryview(text)[begin:whole].cast("Q")
        if self._words.keys().isdisjoint(words):
            return None
        return min(self._matches(text, words, begin), default=None)

    def _matches(self, text: bytes, words: memoryview, begin: int) -> Iterator[tuple[int, bytes]]:
        known = self._words
        for number, word in enumerate(words):
            if word not in known:
                continue
            for (offset, length), strings in known[word].items():
                at = begin + number * _WORD_BYTES - offset
                if at >= 0 and (one := text[at : at + length]) in strings:
                    yield at, one


def _words_of(strings: list[bytes]) -> _Words:
    found: _Words = {}
    for one in strings:
        for offset in _rarest(one, found):
            places = found.setdefault(_word(one, offset), {})
            places.setdefault((offset, len(one)), set()).add(one)
    return found


def _rarest(one: bytes, taken: _Words) -> range:
    """Where to take the words of a string: not where it is like others, as keys are at their
    beginning.
    """
    last = len(one) - _SPAN_BYTES
    spans = [range(at, at + _WORD_BYTES) for at in dict.fromkeys((last, last // 2, 0))]
    return min(spans, key=lambda span: sum(_word(one, at) in taken for at in span))


def _word(one: bytes, offset: int) -> int:
    return int.from_bytes(one[offset : offset + _WORD_BYTES], sys.byteorder)
