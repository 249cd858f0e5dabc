"""Renders the results of checks as JUnit XML, for CI systems: valid whatever the output holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape, quoteattr

from atoll.model.check import CheckResult, CheckStatus

_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What an XML document cannot contain, and C1 control characters."""


def render_junit(
    capsule: str, results: Sequence[CheckResult], *, commit: str = "", tree: str = ""
) -> str:
    """A test suite with one test case for each check of a capsule."""
    failures = [one for one in results if not one.passed and one.status is not CheckStatus.ERROR]
    errors = [one for one in results if one.status is CheckStatus.ERROR]
    counts = f'tests="{len(results)}" failures="{len(failures)}" errors="{len(errors)}"'
    took_s = sum(one.took_s for one in results)
    name = _attribute(f"atoll check {capsule}")
    suite = f'<testsuite name={name} {counts} time="{took_s:.3f}">'
    facts = {"atoll.commit": commit, "atoll.tree": tree}
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f"<testsuites {counts}>",
        suite,
        "<properties>",
        *(
            f"<property name={_attribute(key)} value={_attribute(value)}/>"
            for key, value in facts.items()
        ),
        "</properties>",
        *(line for result in results for line in _case(capsule, result)),
        "</testsuite>",
        "</testsuites>",
    ]
    return "\n".join(lines) + "\n"


def _case(capsule: str, result: CheckResult) -> Iterator[str]:
    place = _attribute(f"atoll.{capsule}")
    yield (
        f'<testcase classname={place} name={_attribute(result.name)} time="{result.took_s:.3f}">'
    )
    if not result.passed:
        tag = "error" if result.status is CheckStatus.ERROR else "failure"
        kind, message = _attribute(result.status), _attribute(result.message)
        yield f"<{tag} type={kind} message={message}/>"
    if result.output:
        yield f"<system-out>{escape(_valid(result.output))}</system-out>"
    yield "</testcase>"


def _valid(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def _attribute(text: str) -> str:
    return quoteattr(_valid(text))
