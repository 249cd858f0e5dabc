"""Suites in the trees of others: what replaces what, and what cannot be combined."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.race.evidence.change_facts import is_suite_path
from atoll.engine.race.evidence.suites import (
    Suite,
    TreeFile,
    base_suite,
    find_obstacle,
    overlay,
    parents,
    suite_of,
)


def is_test(path: str) -> bool:
    return path.startswith("tests/")


def listing(**blobs: str) -> dict[str, TreeFile]:
    """`listing(tests__a="1")` has the file `tests/a`."""
    return {name.replace("__", "/"): TreeFile("100644", blob) for name, blob in blobs.items()}


def combined(code: dict[str, TreeFile], suite: Suite) -> dict[str, TreeFile]:
    found = overlay(code, suite, is_test)
    assert not found.obstacle
    result = {**code, **{path: e for path, e in found.changes.items() if e is not None}}
    return {path: e for path, e in result.items() if found.changes.get(path, e) is not None}


BASE = listing(app="1", tests__a="1", tests__b="1")


def test_base_suite_restores_what_was_changed_and_removes_what_was_added() -> None:
    code = listing(app="2", tests__a="weak", tests__conftest="skip everything")
    assert combined(code, base_suite(BASE, is_test)) == {**BASE, **listing(app="2")}


def test_suite_of_a_candidate_keeps_what_it_deleted() -> None:
    own = suite_of(base_suite(BASE, is_test), listing(app="3", tests__a="2", tests__c="1"), is_test)
    assert own.changed == ("tests/a", "tests/c")
    assert own.entries == listing(tests__a="2", tests__b="1", tests__c="1")
    other = listing(app="4", tests__a="weak", tests__d="4")
    assert combined(other, own) == {**own.entries, **listing(app="4")}


def test_suite_with_the_same_files_has_the_same_key() -> None:
    base = base_suite(BASE, is_test)
    one = suite_of(base, listing(app="3", tests__c="1"), is_test)
    other = suite_of(base, listing(app="4", tests__c="1", tests__a="1"), is_test)
    assert one.key == other.key != base.key
    assert suite_of(base, listing(app="9"), is_test).changed == ()


def test_directory_that_is_a_file_elsewhere_cannot_be_combined() -> None:
    base = base_suite(BASE, is_test)
    assert overlay(listing(tests="a link"), base, is_test).obstacle == "tests/a"
    # A file of tests that became a directory is a part of the suite, and is replaced.
    assert not overlay(listing(app="1", tests__a__x="1"), base, is_test).obstacle
    deep = suite_of(base, listing(tests__a__x="1"), is_test)
    assert deep.entries == listing(tests__a__x="1", tests__b="1")


NAMES = st.sampled_from(["a", "b", "tests"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, TreeFile]:
    """Listings that can be trees."""
    made: dict[str, TreeFile] = {}
    for path in draw(st.lists(PATHS, max_size=6)):
        if find_obstacle([*made], [path]) is None:
            made[path] = TreeFile("100644", draw(st.sampled_from("123")))
    return made


@given(trees(), trees(), trees())
def test_combination_is_a_tree_with_exactly_the_tests_of_the_suite(
    base: dict[str, TreeFile], author: dict[str, TreeFile], code: dict[str, TreeFile]
) -> None:
    own = suite_of(base_suite(base, is_test), author, is_test)
    assert {path for path in author if is_test(path)} <= own.entries.keys()
    assert find_obstacle(own.entries, own.entries) is None
    found = overlay(code, own, is_test)
    if found.obstacle:
        assert found.obstacle in own.entries
        assert not found.changes
        return
    result = combined(code, own)
    assert find_obstacle(result, result) is None
    assert {path: e for path, e in result.items() if is_test(path)} == own.entries
    rest = {path: e for path, e in code.items() if not is_test(path)}
    assert {path: e for path, e in result.items() if not is_test(path)} == rest


@given(trees())
def test_suite_of_a_tree_fits_into_that_tree(base: dict[str, TreeFile]) -> None:
    assert combined(base, base_suite(base, is_test)) == base


def test_parents() -> None:
    assert parents("a/b/c") == ["a/b", "a"]
    assert parents("a") == []


def test_code_in_ambiguous_directories_is_no_part_of_a_suite() -> None:
    assert not is_suite_path("src/features/login.ts")
    assert not is_suite_path("src/atoll/testing/shop.py")
    assert not is_suite_path("src/app.py")
    assert is_suite_path("src/features/login.test.ts")
    assert is_suite_path("tests/features/data.json")
    assert is_suite_path("tests/conftest.py")
    assert is_suite_path("pytest.ini")
