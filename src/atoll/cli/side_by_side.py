"""A unified diff as rows with two sides.

The text is an agent's: lines are counted as the hunks announce them, so that no content can pass
for a header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(.*)")
_FILE = "diff --git "


class Side(NamedTuple):
    number: int
    text: str


class DiffRow(NamedTuple):
    """One line of a hunk; both sides are the same text where nothing has changed."""

    left: Side | None
    right: Side | None
    is_changed: bool


class Hunk(NamedTuple):
    title: str
    """What git shows of the surroundings, such as a function."""
    rows: tuple[DiffRow, ...]


class FileDiff(NamedTuple):
    path: str
    """As git prints it: unusual characters are escaped within quotation marks."""
    headers: tuple[str, ...]
    """What has changed besides lines, such as the mode; or that the file is binary."""
    hunks: tuple[Hunk, ...]


def parse_patch(text: str) -> list[FileDiff]:
    """The files of a patch as `git diff` prints it; what is cut off at its end is left out."""
    lines = text.split("\n")
    starts: list[int] = []
    at = 0
    while at < len(lines):
        if (found := _HUNK.fullmatch(lines[at])) is not None and starts:
            at = _end_of_hunk(lines, at, found)
            continue
        if lines[at].startswith(_FILE):
            starts.append(at)
        at += 1
    bounds = pairwise([*starts, len(lines)])
    return [_parse_file(lines[start:end]) for start, end in bounds]


def _counts(found: re.Match[str]) -> tuple[int, int]:
    return int(found[2] or 1), int(found[4] or 1)


def _end_of_hunk(lines: list[str], at: int, found: re.Match[str]) -> int:
    """The index after the last line of a hunk."""
    old, new = _counts(found)
    at += 1
    while at < len(lines) and (old > 0 or new > 0 or lines[at].startswith("\\")):
        sign = lines[at][:1]
        old -= sign in (" ", "-", "")
        new -= sign in (" ", "+", "")
        at += 1
    return at


def _parse_file(lines: list[str]) -> FileDiff:
    headers: list[str] = []
    hunks: list[Hunk] = []
    at = 1
    while at < len(lines):
        found = _HUNK.fullmatch(lines[at])
        if found is None:
            if lines[at]:
                headers.append(lines[at])
            at += 1
            continue
        end = _end_of_hunk(lines, at, found)
        rows = tuple(_rows(lines[at + 1 : end], int(found[1]), int(found[3])))
        hunks.append(Hunk(found[5].strip(), rows))
        at = end
    return FileDiff(
        _path_of(lines[0], headers),
        tuple(h for h in headers if not h.startswith(("index ", "--- ", "+++ "))),
        tuple(hunks),
    )


def _path_of(first: str, headers: list[str]) -> str:
    for start, prefix in (("+++ ", "b/"), ("--- ", "a/")):
        for header in headers:
            name = header.removeprefix(start).rstrip("\t")
            if header.startswith(start) and name != "/dev/null":
                quote = '"' if name.startswith('"') else ""
                return quote + name.removeprefix(quote).removeprefix(prefix)
    # Without lines, such as a binary or an empty file: the same name twice, and nothing is renamed.
    both = first.removeprefix(_FILE)
    half = both[: len(both) // 2]
    quote = '"' if half.startswith('"') else ""
    return quote + half.removeprefix(quote).removeprefix("a/")


def _rows(lines: list[str], old: int, new: int) -> Iterator[DiffRow]:
    """Pairs the deleted lines of a block with the added ones that follow."""
    gone: list[Side] = []
    added: list[Side] = []

    def paired() -> Iterator[DiffRow]:
        for index in range(max(len(gone), len(added))):
            left = gone[index] if index < len(gone) else None
            right = added[index] if index < len(added) else None
            yield DiffRow(left, right, is_changed=True)
        gone.clear()
        added.clear()

    for line in lines:
        sign, text = line[:1], line[1:]
        if sign == "-":
            if added:
                yield from paired()
            gone.append(Side(old, text))
            old += 1
        elif sign == "+":
            added.append(Side(new, text))
            new += 1
        elif sign != "\\":
            yield from paired()
            yield DiffRow(Side(old, text), Side(new, text), is_changed=False)
            old, new = old + 1, new + 1
    yield from paired()


def split_common(left: str, right: str) -> tuple[int, int]:
    """The lengths of what two lines have in common at their beginning and at their end."""
    most = min(len(left), len(right))
    start = 0
    while start < most and left[start] == right[start]:
        start += 1
    end = 0
    while end < most - start and left[-1 - end] == right[-1 - end]:
        end += 1
    return start, end
