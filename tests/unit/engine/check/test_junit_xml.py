"""JUnit XML that is valid whatever a check has printed."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.check.junit_report import parse_report
from atoll.engine.check.junit_xml import render_junit
from atoll.model.check import CheckResult, CheckStatus

anything = st.text(st.characters(), max_size=60)


def result(status=CheckStatus.PASSED, name="test", **fields):
    return CheckResult(
        id=1, project_id="p", tree="t", commit="c", name=name, digest="d", command="make",
        status=status, at=0.0, took_s=1.5, **fields,
    )  # fmt: skip


@given(anything, anything, st.sampled_from(CheckStatus))
def test_it_is_valid(text, message, status):
    one = result(status, output=text, message=message, name=message)
    rendered = render_junit("x", [one, result()], commit="c", tree="t").encode()
    ET.fromstring(rendered)
    counts = parse_report(rendered)
    assert counts.passed == 2 - (status is not CheckStatus.PASSED)
    assert counts.failed == (status is not CheckStatus.PASSED)


def test_it_says_what_was_found():
    text = render_junit(
        "x",
        [result(CheckStatus.FLAKY, message="<&>"), result(CheckStatus.ERROR, output="]]>\x1b\x00")],
        tree="abc",
    )
    suite = ET.fromstring(text)[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "1")
    [failure] = suite.iter("failure")
    assert failure.attrib == {"type": "flaky", "message": "<&>"}
    facts = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert facts["atoll.tree"] == "abc"
    assert [node.text for node in suite.iter("system-out")] == ["]]>\ufffd\ufffd"]
