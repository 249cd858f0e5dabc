"""Reads the JUnit XML report that a check writes in its capsule.

The report is hostile: it is opened without following links, bounded in size, depth and count, and
one with a document type is refused, so that no entity is ever expanded and nothing is fetched.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from atoll.host.beneath import open_by_parts
from atoll.model.check import JunitCounts
from atoll.model.names import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT_BYTES = 32 << 20
MOST_TESTS = 200_000
MOST_NAMES = 10_000
NAMES_LENGTH = 1 << 20
"""Of all names together."""
NAME_LENGTH = 200
_DEPTH = 64
_VERDICTS = ("failure", "error", "skipped")


class BrokenReportError(ValueError):
    """The report cannot be read, or is none."""


def read_report(root: Path, path: str, *, since: float) -> JunitCounts:
    """What a report below `root` says. Raises BrokenReportError, also for one that is older than
    `since`: it came with the tree.
    """
    return parse_report(_read(root, path, since))


def _read(root: Path, path: str, since: float) -> bytes:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
    try:
        top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise BrokenReportError("the workspace cannot be opened") from error
    try:
        handle = open_by_parts(top, os.fsencode(path), flags)
    except FileNotFoundError as error:
        raise BrokenReportError("it was not written") from error
    except OSError as error:
        raise BrokenReportError("it is no regular file that can be read") from error
    finally:
        os.close(top)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise BrokenReportError("it is no regular file")
    with os.fdopen(handle, "rb") as stream:
        if found.st_size > LIMIT_BYTES:
            raise BrokenReportError(f"it is larger than {LIMIT_BYTES} bytes")
        # A process of the capsule can set the other times of a file, but not this one.
        if found.st_ctime < since:
            raise BrokenReportError("it was not written by this run")
        try:
            content = stream.read(LIMIT_BYTES + 1)
        except OSError as error:
            raise BrokenReportError("it cannot be read") from error
    if len(content) > LIMIT_BYTES:
        raise BrokenReportError(f"it is larger than {LIMIT_BYTES} bytes")
    return content


def parse_report(content: bytes) -> JunitCounts:
    """What a report says. Raises BrokenReportError."""
    from xml.parsers import expat  # noqa: PLC0415 - for few checks

    reader = _Reader()
    parser = expat.ParserCreate()
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    parser.StartDoctypeDeclHandler = _refuse
    parser.EntityDeclHandler = _refuse
    parser.ExternalEntityRefHandler = _refuse
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    try:
        parser.Parse(content, True)  # noqa: FBT003 - a C function
    except expat.ExpatError as error:
        raise BrokenReportError(f"it is not XML: {error}") from error
    except (UnicodeError, LookupError) as error:
        raise BrokenReportError("its encoding is unknown") from error
    return reader.counts()


def _refuse(*_: object) -> NoReturn:
    raise BrokenReportError("it has a document type, which is refused")


class _Reader:
    """Counts the test cases of a document."""

    def __init__(self) -> None:
        self._depth = 0
        self._case = ""
        self._case_depth = 0
        self._verdict = ""
        self._count = {"passed": 0, "failed": 0, "skipped": 0}
        self._names: list[str] = []
        self._failures: list[str] = []
        self._length = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        if self._depth > _DEPTH:
            raise BrokenReportError("it is nested too deeply")
        if self._depth == 1 and tag not in ("testsuites", "testsuite"):
            raise BrokenReportError("it is not a JUnit report")
        if tag == "testcase" and not self._case_depth:
            self._case_depth = self._depth
            self._case = _name_of(attributes)
            self._verdict = ""
        elif tag in _VERDICTS and self._depth == self._case_depth + 1 and self._case_depth:
            is_skip = tag == "skipped"
            # A test that failed and is also skipped has failed.
            self._verdict = (self._verdict or "skipped") if is_skip else "failed"

    def end(self, tag: str) -> None:
        if tag == "testcase" and self._depth == self._case_depth:
            self._add()
            self._case_depth = 0
        self._depth -= 1

    def _add(self) -> None:
        verdict = self._verdict or "passed"
        self._count[verdict] += 1
        if sum(self._count.values()) > MOST_TESTS:
            raise BrokenReportError(f"it has more than {MOST_TESTS} tests")
        if verdict == "skipped" or self._length + len(self._case) > NAMES_LENGTH:
            return
        self._length += len(self._case)
        if len(self._names) < MOST_NAMES:
            self._names.append(self._case)
        if verdict == "failed" and len(self._failures) < MOST_NAMES:
            self._failures.append(self._case)

    def counts(self) -> JunitCounts:
        return JunitCounts(**self._count, names=tuple(self._names), failures=tuple(self._failures))


def _name_of(attributes: Mapping[str, str]) -> str:
    place, name = attributes.get("classname", ""), attributes.get("name", "")
    whole = f"{place}.{name}" if place else name
    return printable(whole[:NAME_LENGTH])
