"""Counts tests, skip markers and assertions in source text: heuristics by language, not parsers.

They look at lines, so that hostile text costs linear time. They miss tests that a program makes,
and take a marker in a string for a marker. They are evidence for a person, never a decision.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

_LINE_BYTES = 2000
"""Longer lines are cut."""
_NAME = 200


class _Language(NamedTuple):
    test: re.Pattern[str]
    """A test; its first group that matched is the name."""
    skip: re.Pattern[str]
    assertion: re.Pattern[str]
    comment: tuple[str, ...] = ("//", "*", "/*")
    marker: re.Pattern[str] | None = None
    """If set, `test` counts only on a line after one with this, as for `@Test`."""


_PYTHON = _Language(
    re.compile(r"^\s*(?:async\s+)?def\s+(test\w*)"),
    re.compile(
        r"@(?:pytest\.)?mark\.(?:skip|skipif|xfail)\b|pytestmark\s*=.*\b(?:skip|xfail)"
        r"|\bpytest\.(?:skip|xfail|importorskip)\(|@(?:unittest\.)?(?:skip\w*|expectedFailure)\b"
        r"|\bself\.skipTest\(|\braise\s+(?:unittest\.)?SkipTest|\bcollect_ignore|\b__test__\s*=\s*False"
    ),
    re.compile(r"^\s*assert\b|\bself\.(?:assert\w+|fail)\(|\bpytest\.(?:raises|warns|fail)\("),
    ("#",),
)
_SCRIPT = _Language(
    re.compile(
        r"(?:^|[^\w.])(?:it|test|specify|bench)(?:\.\w+){0,3}\s{0,8}\(\s{0,8}"
        r"(?:'([^']{1,200})|\"([^\"]{1,200})|`([^`]{1,200}))"
    ),
    re.compile(
        r"(?:^|[^\w.])(?:(?:it|test|describe|context|suite|specify)"
        r"(?:\.\w+)?\.(?:skip\w*|todo|only|fixme|failing|fails)\b"
        r"|(?:xit|xtest|xdescribe|xcontext|xspecify|fit|fdescribe|fcontext)\s{0,8}[(.])"
        r"|\bthis\.skip\(|\b(?:t|ctx|context)\.skip\("
    ),
    re.compile(r"\bexpect(?:\.\w+)?\(|\bassert(?:\.\w+)*\(|\.should\b|\bt\.(?:is|deepEqual|equal|throws|true|truthy|ok)\("),
)  # fmt: skip
_GO = _Language(
    re.compile(r"^func\s+((?:Test|Benchmark|Fuzz|Example)\w*)\s*\("),
    re.compile(r"\b[tbf]\.Skip(?:Now|f)?\(|^//go:build\s+.*\bignore\b|\btesting\.Short\("),
    re.compile(r"\b[tbf]\.(?:Error|Errorf|Fatal|Fatalf|Fail|FailNow)\(|\b(?:assert|require)\.\w+\("),
)  # fmt: skip
_RUST = _Language(
    re.compile(r"\bfn\s+(\w+)"),
    re.compile(r"#\[ignore\b|#\[cfg_attr\([^]]*ignore|#\[cfg\(any\(\)\)\]|#\[should_panic\b"),
    re.compile(r"\b(?:debug_)?assert(?:_\w+)?!|\bpanic!|\binsta::assert"),
    marker=re.compile(r"#\[(?:\w+::)*(?:test|rstest|test_case|proptest|quickcheck|bench)\b"),
)
_JAVA = _Language(
    re.compile(r"(?:\bfun\s+(?:`([^`]{1,200})`|(\w+))|\b(\w+)\s*\()"),
    re.compile(
        r"@(?:Disabled\w*|Ignore\w*|EnabledIf\w*)\b|\bAssum(?:e|ptions)\.|\bassume(?:True|False|That)\("
        r"|\[(?:Ignore|Explicit)\b|\bSkip\s*=|\bAssert\.(?:Ignore|Inconclusive)\("
    ),
    re.compile(r"\b[aA]ssert\w*(?:\.\w+)?\(|\bverify\(|\bshould\w*\("),
    marker=re.compile(
        r"@(?:Test|ParameterizedTest|RepeatedTest|TestFactory|Property)\b"
        r"|\[(?:Fact|Theory|Test|TestCase|TestMethod|DataTestMethod)\b"
    ),
)
_RUBY = _Language(
    re.compile(
        r"^\s*(?:it|specify|example|scenario|test)\s*\(?\s*"
        r"(?:'([^']{1,200})|\"([^\"]{1,200}))|^\s*def\s+(test_\w+)"
    ),
    re.compile(
        r"^\s*(?:xit|xdescribe|xcontext|xspecify|fit|fdescribe|fcontext|pending|skip)\b"
        r"|,\s*(?:skip|pending|focus)\b|(?:skip|pending|focus):"
    ),
    re.compile(r"\bexpect\s*[({]|\bassert\w*[ (]|\brefute\w*[ (]|\.should\b|\bmust_\w+"),
    ("#",),
)
_PHP = _Language(
    re.compile(r"\bfunction\s+(test\w*)|^\s*(?:it|test)\(\s*['\"]([^'\"]{1,200})", re.IGNORECASE),
    re.compile(r"markTest(?:Skipped|Incomplete)|->(?:skip|todo|only)\(|@doesNotPerformAssertions"),
    re.compile(r"(?:\$this->|self::|static::)(?:assert\w+|expect\w+|fail)\(|\bexpect\("),
    ("#", "//", "*", "/*"),
)
_OTHER = _Language(
    re.compile(
        r"^\s*(?:func\s+(test\w*)|@test\s+\"([^\"]{1,200})|test\s+\"([^\"]{1,200})"
        r"|(?:TEST|TEST_F|TEST_P|TEST_CASE|BOOST_AUTO_TEST_CASE)\(([^)]{1,200})|Scenario:(.{1,200}))"
    ),
    re.compile(r"\bskip\b|\bXCTSkip|GTEST_SKIP|@tag\s+:?skip|\bDISABLED_|@(?:skip|wip|ignore)\b"),
    re.compile(r"\b(?:XCT)?[aA]ssert\w*|\b(?:EXPECT|ASSERT|CHECK|REQUIRE)(?:_\w+)?\(|#expect\("),
)

_LANGUAGES = {
    **dict.fromkeys(("py",), _PYTHON),
    **dict.fromkeys(
        ("js", "jsx", "ts", "tsx", "mjs", "cjs", "mts", "cts", "vue", "svelte", "coffee", "dart"),
        _SCRIPT,
    ),
    "go": _GO,
    "rs": _RUST,
    **dict.fromkeys(("java", "kt", "kts", "scala", "groovy", "cs", "fs", "vb"), _JAVA),
    **dict.fromkeys(("rb", "cr"), _RUBY),
    "php": _PHP,
    **dict.fromkeys(
        ("c", "cc", "cpp", "cxx", "m", "mm", "swift", "exs", "bats", "feature", "lua"), _OTHER
    ),
}


class SuiteCounts(NamedTuple):
    """What a source file of tests contains."""

    names: Counter[str]
    """Of the tests; a name may be there several times."""
    skips: int = 0
    """Markers that skip a test, expect it to fail, or run only some."""
    assertions: int = 0


def count_tests(path: str, content: bytes) -> SuiteCounts:
    """What a file contains; nothing for a language that is not known."""
    language = _LANGUAGES.get(path.rpartition(".")[2].lower())
    if language is None or b"\0" in content:
        return SuiteCounts(Counter())
    names: Counter[str] = Counter()
    skips = assertions = 0
    is_marked = language.marker is None
    for line in _lines(content, language.comment):
        skips += sum(1 for _ in language.skip.finditer(line))
        assertions += sum(1 for _ in language.assertion.finditer(line))
        marked = None if language.marker is None else language.marker.search(line)
        is_marked = is_marked or marked is not None
        start = 0 if marked is None else marked.end()
        for found in language.test.finditer(line, start) if is_marked else ():
            names[next(filter(None, found.groups()), "")[:_NAME]] += 1
            is_marked = language.marker is None
    return SuiteCounts(names, skips, assertions)


def _lines(content: bytes, comment: tuple[str, ...]) -> Iterator[str]:
    for raw in content.split(b"\n"):
        line = raw[:_LINE_BYTES].decode("utf-8", "replace")
        start = line.lstrip()
        # `//go:build ignore` is no comment to Go.
        if start.startswith(comment) and not start.startswith("//go:"):
            continue
        yield line
