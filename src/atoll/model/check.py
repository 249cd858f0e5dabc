"""Checks: commands that say whether a tree is good, and what was observed when they ran."""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Any, NamedTuple

TIMEOUT_S = 3600.0
"""Of a check that names none."""


class CheckSource(StrEnum):
    """Where a check comes from."""

    FILE = "atoll.toml"
    DETECTED = "detected"
    COMMAND_LINE = "command line"


class CheckSpec(NamedTuple):
    """A check as it was declared, detected or given."""

    name: str
    command: str
    """For `/bin/sh -c`, in the root of the project."""
    timeout_s: float = TIMEOUT_S
    retries: int = 0
    has_figures: bool = False
    junit: str | None = None
    """The JUnit XML file that it writes, below the root of the project."""
    needs: tuple[str, ...] = ()
    source: CheckSource = CheckSource.FILE

    @property
    def digest(self) -> str:
        """Names everything that decides the result, besides the tree."""
        content = (self.command, self.timeout_s, self.retries, self.has_figures, self.junit)
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def parse_check_spec(fields: dict[str, Any]) -> CheckSpec:
    """From the fields as JSON has them. Raises ValueError, TypeError or KeyError."""
    fixed = {"needs": tuple(fields["needs"]), "source": CheckSource(fields["source"])}
    return CheckSpec(**{**fields, **fixed})


class CheckStatus(StrEnum):
    PASSED = "passed"
    FLAKY = "flaky"
    """It passed after it had failed: not a pass."""
    FAILED = "failed"
    TIMEOUT = "timeout"
    ERROR = "error"
    """It could not be run, or was ended by a limit."""


class Figure(NamedTuple):
    """A number that a check measured."""

    name: str
    value: float
    unit: str = ""
    better: str = ""
    """`lower`, `higher`, or empty when it is not said which is better."""


class JunitCounts(NamedTuple):
    """What a JUnit report says."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    names: tuple[str, ...] = ()
    """Of the tests that were not skipped; bounded."""
    failures: tuple[str, ...] = ()
    """Of the tests that failed; bounded."""


class CheckResult(NamedTuple):
    """What was observed when a check ran on a tree."""

    id: int
    """0 before it is stored, and for one that is not."""
    project_id: str
    tree: str
    commit: str
    """One with this tree, for which it ran."""
    name: str
    digest: str
    """Of the `CheckSpec`."""
    command: str
    status: CheckStatus
    at: float
    took_s: float
    exit_code: int | None = None
    attempts: int = 1
    figures: tuple[Figure, ...] = ()
    tests: JunitCounts | None = None
    warnings: int = 0
    """Lines of its output that warn."""
    message: str = ""
    """Why it has no pass, in one line."""
    output: str = ""
    """The end of its output."""
    log: str = ""
    """The file below Atoll's home that holds more of it."""
    is_known: bool = False
    """Whether it was not run now, because the result for this tree was stored."""

    @property
    def passed(self) -> bool:
        return self.status is CheckStatus.PASSED

    def encode(self) -> str:
        """The fields that have no column of their own, as JSON."""
        fields = {key: value for key, value in self._asdict().items() if key not in _COLUMNS}
        if self.tests is not None:
            fields["tests"] = self.tests._asdict()
        return json.dumps(fields)


_COLUMNS = frozenset({
    "id", "project_id", "tree", "name", "digest", "status", "at", "is_known",
})  # fmt: skip


def parse_result(columns: dict[str, Any], payload: str) -> CheckResult:
    """Raises ValueError, TypeError or KeyError for a damaged record."""
    found: dict[str, Any] = json.loads(payload)
    tests = found.pop("tests")
    if tests is not None:
        lists = {key: tuple(tests[key]) for key in ("names", "failures")}
        tests = JunitCounts(**{**tests, **lists})
    figures = tuple(Figure(*figure) for figure in found.pop("figures"))
    status = CheckStatus(columns.pop("status"))
    return CheckResult(**columns, **found, status=status, figures=figures, tests=tests)
