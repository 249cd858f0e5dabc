"""Which paths belong to a project's test suite, by the conventions of the common test runners."""

from __future__ import annotations

import re
from enum import StrEnum

_DIRECTORIES = frozenset({
    "test", "tests", "spec", "specs", "__tests__", "__mocks__", "__snapshots__", "__fixtures__",
    "testdata", "test-data", "test_data", "e2e", "cypress", "features", "testing", "unittests",
    "androidtest", "integrationtest", "inttest", "functionaltest", "t",
})  # fmt: skip
"""Everything below one of these counts as part of the suite."""
_SUFFIXED_DIRECTORY = re.compile(r".+[._-](?:tests?|specs?)")
"""Such as `Shop.Tests` or `shop-tests`."""
_SCRIPT = r"(?:[cm]?[jt]sx?|vue|svelte|coffee|dart)"
_TEST_FILES = (
    re.compile(r"test_.*\.py|.*_tests?\.py|tests?\.py|conftest\.py"),
    re.compile(rf".*[._-](?:test|tests|spec|specs|cy|e2e)\.{_SCRIPT}"),
    re.compile(r".*_test\.(?:go|rs|rb|cc|cpp|cxx|c|dart|exs|lua|ml|erl|clj|sh|php)"),
    re.compile(r".*_(?:spec|tests)\.(?:rb|lua|cr|rs|erl)"),
    re.compile(r"test_.*\.(?:c|cc|cpp|cxx|rb|sh|lua|ml|jl|r|rs)"),
    re.compile(r".*\.(?:bats|snap|feature|phpt)|.*\.snap\.\w+|.*\.t"),
)
"""In lower case."""
_CAMEL = re.compile(
    r".*(?:Tests?|TestCase|IT|Spec|Specs|Suite|Cest)\.(?:java|kt|kts|scala|groovy|cs|fs|vb|php|swift|m|mm)"
    r"|Test[A-Z0-9].*\.(?:java|kt|scala|groovy)"
)
"""With case, which distinguishes `OrderTest` from `latest`."""
_CODE = re.compile(
    rf".*\.(?:{_SCRIPT}|py|go|rs|rb|java|kt|kts|scala|groovy|cs|fs|vb|php|swift|m|mm|c|cc|cpp|cxx"
    r"|exs?|lua|jl|r|bats|sh|feature|phpt|t|erl|clj|ml|cr|pl)"
)
_SETTINGS = re.compile(
    r"pytest\.ini|\.pytest\.ini|tox\.ini|noxfile\.py|\.coveragerc|\.rspec|phpunit\.xml.*|behat\.yml"
    r"|(?:jest|vitest|karma|playwright|cypress|ava|tap|wdio)\.(?:config|conf|setup|workspace)\..*"
    r"|\.mocharc.*|\.nycrc.*|\.taprc|nextest\.toml|codecov\.yml|\.codecov\.yml"
)


class SuiteRole(StrEnum):
    """The part that a file has in the suite."""

    TEST = "test"
    SUPPORT = "support"
    """A fixture, a snapshot or another file that tests use."""
    SETTINGS = "settings"
    """It decides which tests run."""


def find_role(path: str) -> SuiteRole | None:
    """The role of a file; None if it does not belong to the suite."""
    parts = path.split("/")
    name = parts[-1]
    lower = name.lower()
    if _SETTINGS.fullmatch(lower):
        return SuiteRole.SETTINGS
    if lower == "conftest.py":
        return SuiteRole.SUPPORT
    if any(pattern.fullmatch(lower) for pattern in _TEST_FILES) or _CAMEL.fullmatch(name):
        return SuiteRole.TEST
    if not any(_is_suite(part) for part in parts[:-1]):
        return None
    is_test = lower.startswith("test") and _CODE.fullmatch(lower)
    return SuiteRole.TEST if is_test or _is_rust_test(parts) else SuiteRole.SUPPORT


def _is_suite(part: str) -> bool:
    lower = part.lower()
    return lower in _DIRECTORIES or _SUFFIXED_DIRECTORY.fullmatch(lower) is not None


def _is_rust_test(parts: list[str]) -> bool:
    """Cargo runs every file directly in `tests`."""
    return parts[-1].endswith(".rs") and len(parts) > 1 and parts[-2] == "tests"


def is_test_path(path: str) -> bool:
    """Whether a file belongs to the suite: a test, or what tests use."""
    return find_role(path) in {SuiteRole.TEST, SuiteRole.SUPPORT}
