"""Suites: the test files of one tree, put into the tree of another. Pure.

A suite is the base's test files with those that a candidate added or changed; what the candidate
deleted stays as in the base. On the code of another candidate a suite replaces all test files
there, so that no file of tests, fixtures or settings of the other one decides the result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple


class TreeFile(NamedTuple):
    """What a tree has at a path."""

    mode: str
    blob: str


Listing = Mapping[str, TreeFile]
"""The files of a tree, by path."""
IsTest = Callable[[str], bool]


class Suite(NamedTuple):
    """Test files, and how they differ from those of the base."""

    entries: Listing
    changed: tuple[str, ...]
    """The paths that the base does not have, or has with other content; sorted."""

    @property
    def key(self) -> str:
        """Equal for equal suites."""
        lines = sorted(f"{entry.mode} {entry.blob} {p}" for p, entry in self.entries.items())
        return hashlib.sha256("\0".join(lines).encode(errors="surrogateescape")).hexdigest()[:40]


class SuiteOverlay(NamedTuple):
    """What changes in a tree when a suite replaces its tests: None removes a path."""

    changes: dict[str, TreeFile | None]
    obstacle: str = ""
    """A path of the suite that cannot exist in the tree; then nothing can be combined."""


def base_suite(base: Listing, is_test: IsTest) -> Suite:
    return Suite({path: entry for path, entry in base.items() if is_test(path)}, ())


def suite_of(base: Suite, listing: Listing, is_test: IsTest) -> Suite:
    """The suite of a candidate with the files in `listing`."""
    own = {
        path: entry
        for path, entry in listing.items()
        if base.entries.get(path) != entry and is_test(path)
    }
    kept = without_obstructed(base.entries, own)
    return Suite({**kept, **own}, tuple(sorted(own)))


def without_obstructed(kept: Listing, own: Collection[str]) -> dict[str, TreeFile]:
    """The paths that can exist beside `own`: not below one of them, and no directory of one."""
    above = {part for path in own for part in parents(path)}
    files = set(own)
    return {
        path: entry
        for path, entry in kept.items()
        if path not in above and files.isdisjoint(parents(path))
    }


def overlay(code: Listing, suite: Suite, is_test: IsTest) -> SuiteOverlay:
    """Replaces the test files of a tree by those of a suite."""
    rest = {path for path in code if not is_test(path)}
    if (obstacle := find_obstacle(rest - suite.entries.keys(), suite.entries)) is not None:
        return SuiteOverlay({}, obstacle)
    changes: dict[str, TreeFile | None] = {
        path: None for path in code if path not in rest and path not in suite.entries
    }
    changes |= {path: entry for path, entry in suite.entries.items() if code.get(path) != entry}
    return SuiteOverlay(changes)


def find_obstacle(files: Collection[str], added: Collection[str]) -> str | None:
    """A path of `added` that is below one of `files`, or that is a directory of one."""
    above = {part for path in files for part in parents(path)}
    there = set(files)
    clashes = (p for p in added if p in above or not there.isdisjoint(parents(p)))
    return min(clashes, default=None)


def parents(path: str) -> list[str]:
    """The directories above a path, the nearest first."""
    found = []
    while "/" in path:
        path = path.rpartition("/")[0]
        found.append(path)
    return found
