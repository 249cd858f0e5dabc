"""JUnit reports that a check has written: counted, bounded, and never expanded."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.check import junit_report
from atoll.engine.check.junit_report import (
    LIMIT_BYTES,
    MOST_NAMES,
    BrokenReportError,
    parse_report,
    read_report,
)
from atoll.model.check import JunitCounts

REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest"><properties/>
<testcase classname="a.b" name="one" time="0.1"/>
<testcase classname="a.b" name="two"><failure message="no">trace &amp; more</failure></testcase>
<testcase name="three"><error/><skipped/></testcase>
<testcase name="four"><skipped message="later"/><system-out>&lt;failure/></system-out></testcase>
<testcase name="esc &#x9b; and&#10;line"/>
<testcase name="nested"><properties><failure/></properties></testcase>
</testsuite></testsuites>"""
LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">'
    '<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]><testsuite><testcase name="&c;"/></testsuite>'
)
OUTSIDE = (
    '<!DOCTYPE t [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
    '<testsuite><testcase name="one">&x;</testcase></testsuite>'
)


def test_tests_are_counted_and_named():
    assert parse_report(REPORT.encode()) == JunitCounts(
        passed=3, failed=2, skipped=1,
        names=("a.b.one", "a.b.two", "three", "esc \\x9b and\\nline", "nested"),
        failures=("a.b.two", "three"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LAUGHS, "document type"),
        (OUTSIDE, "document type"),
        ("<!DOCTYPE testsuite SYSTEM 'http://127.0.0.1:1/x.dtd'><testsuite/>", "document type"),
        ("<testsuite><testcase name='&x;'/></testsuite>", "not XML"),
        ("", "not XML"),
        ("passed 100", "not XML"),
        ("<testsuite>", "not XML"),
        ("<html/>", "not a JUnit report"),
        ("<testsuite>" + "<a>" * 100 + "</a>" * 100 + "</testsuite>", "nested too deeply"),
        ("<?xml version='1.0' encoding='no-such'?><testsuite/>", "not XML|encoding"),
    ],
)
def test_a_hostile_report_is_refused(text, why):
    with pytest.raises(BrokenReportError, match=why):
        parse_report(text.encode())


def test_counts_and_names_are_bounded(monkeypatch):
    cases = "".join(f"<testcase name='{'n' * 400}{number}'/>" for number in range(MOST_NAMES + 5))
    counts = parse_report(f"<testsuite>{cases}</testsuite>".encode())
    assert counts.passed == MOST_NAMES + 5
    assert sum(map(len, counts.names)) <= junit_report.NAMES_LENGTH
    assert all(len(name) == junit_report.NAME_LENGTH for name in counts.names)
    monkeypatch.setattr(junit_report, "MOST_TESTS", 10)
    with pytest.raises(BrokenReportError, match="more than 10 tests"):
        parse_report(f"<testsuite>{cases}</testsuite>".encode())


@given(st.binary(max_size=400))
def test_any_bytes_are_a_report_or_refused(content):
    for whole in (content, b"<testsuite><testcase>" + content + b"</testcase></testsuite>"):
        try:
            counts = parse_report(whole)
        except BrokenReportError:
            continue
        assert all(name.isprintable() for name in counts.names)


def test_only_a_new_regular_file_below_the_root_is_read(tmp_path):
    root = tmp_path / "root"
    (root / "out").mkdir(parents=True)
    secret = tmp_path / "secret.xml"
    secret.write_text(REPORT)
    (root / "link.xml").symlink_to(secret)
    (root / "up").symlink_to(tmp_path)
    os.mkfifo(root / "fifo")
    with (root / "huge").open("wb") as huge:
        huge.truncate(1 << 30)
    (root / "full").write_bytes(b" " * (LIMIT_BYTES + 1))
    for path in ("link.xml", "up/secret.xml", "../secret.xml", "fifo", "huge", "full", "out", "no"):
        with pytest.raises(BrokenReportError):
            read_report(root, path, since=0.0)
    (root / "out" / "good.xml").write_text(REPORT)
    assert read_report(root, "out/good.xml", since=0.0).passed == 3
    with pytest.raises(BrokenReportError, match="not written by this run"):
        read_report(root, "out/good.xml", since=time.time() + 1)
