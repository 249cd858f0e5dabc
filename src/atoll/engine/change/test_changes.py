"""How a change affects the project's own tests: what it removes, skips or no longer asserts.

Found by heuristics (`test_contents`), so a figure here is evidence and not proof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from atoll.engine.change.changes import Changes, FileChange
from atoll.engine.change.objects import ObjectReader, open_objects
from atoll.engine.change.test_contents import SuiteCounts, count_tests
from atoll.engine.change.test_files import SuiteRole, find_role

_CONTENT_BYTES = 1 << 20
_EXAMINED_BYTES = 64 << 20
_MOST_NAMES = 1000


class SuiteFile(NamedTuple):
    """A changed file of the suite."""

    change: FileChange
    role: SuiteRole
    removed: tuple[str, ...] = ()
    """Names of tests that it has no more; bounded."""
    added: tuple[str, ...] = ()
    skips_added: int = 0
    """More markers that skip a test, or fewer if negative."""
    assertions_added: int = 0
    """Likewise."""
    is_examined: bool = True
    """Whether both versions were read; False for a large file."""

    @property
    def path(self) -> str:
        return self.change.path


class SuiteChanges(NamedTuple):
    """The changed files of the suite, sorted by path, and their sums."""

    files: tuple[SuiteFile, ...] = ()
    removed: int = 0
    """Tests that are gone, without those that only moved to another file."""
    added: int = 0
    skips_added: int = 0
    """The sum over all files in which their number grew."""
    assertions_removed: int = 0
    """The sum over all files in which their number fell."""
    is_complete: bool = True

    @property
    def deleted_files(self) -> list[SuiteFile]:
        return [
            file for file in self.files if file.change.is_deleted and file.role is SuiteRole.TEST
        ]

    @property
    def settings(self) -> list[SuiteFile]:
        """Files that decide which tests run."""
        return [file for file in self.files if file.role is SuiteRole.SETTINGS]

    @property
    def is_weakened(self) -> bool:
        """Whether the suite may prove less than before."""
        return bool(
            self.removed
            or self.skips_added
            or self.assertions_removed
            or self.deleted_files
            or not self.is_complete
        )


def find_test_changes(changes: Changes) -> SuiteChanges:
    """Raises DriverError or StateError if the repository cannot be read."""
    files = [
        (change, role)
        for change in changes.files
        if (role := find_role(change.path) or _inline(change.path)) is not None
    ]
    if not files:
        return SuiteChanges(is_complete=changes.is_complete)
    found: list[SuiteFile] = []
    left_bytes = _EXAMINED_BYTES
    with open_objects(changes.repository) as objects:
        for change, role in files:
            before, after = _contents(objects, change, min(_CONTENT_BYTES, left_bytes))
            left_bytes -= len(before or b"") + len(after or b"")
            file = _compared(change, role, before, after)
            if file is not None:
                found.append(file)
    removed, added = _not_moved(found)
    return SuiteChanges(
        tuple(found),
        removed=removed,
        added=added,
        skips_added=sum(max(0, file.skips_added) for file in found),
        assertions_removed=sum(max(0, -file.assertions_added) for file in found),
        is_complete=changes.is_complete and all(file.is_examined for file in found),
    )


def _inline(path: str) -> SuiteRole | None:
    """Rust has tests in its sources."""
    return SuiteRole.TEST if path.endswith(".rs") else None


def _contents(
    objects: ObjectReader, change: FileChange, limit_bytes: int
) -> tuple[bytes | None, bytes | None]:
    """Both versions; empty for what is no file, None for what is too large."""

    def read(mode: int, name: str) -> bytes | None:
        is_file = mode in {0o100644, 0o100755}
        return objects.find_blob(name, limit_bytes=limit_bytes) if is_file else b""

    return read(change.old_mode, change.old_id), read(change.new_mode, change.new_id)


def _compared(
    change: FileChange, role: SuiteRole, before: bytes | None, after: bytes | None
) -> SuiteFile | None:
    """None for a source file without tests."""
    if before is None or after is None:
        # A large fixture has no tests; a large source file might.
        examined = role is SuiteRole.SUPPORT
        return SuiteFile(change, role, is_examined=examined)
    old, new = count_tests(change.path, before), count_tests(change.path, after)
    if find_role(change.path) is None:
        if not old.names and not new.names:
            return None
        # The assertions of ordinary code are no tests.
        old, new = old._replace(assertions=0), new._replace(assertions=0)
    return SuiteFile(
        change,
        role,
        removed=_names(old, new),
        added=_names(new, old),
        skips_added=new.skips - old.skips,
        # What is gone with its tests or its file is counted there.
        assertions_added=0 if change.is_deleted else new.assertions - old.assertions,
    )


def _names(one: SuiteCounts, other: SuiteCounts) -> tuple[str, ...]:
    missing = one.names - other.names
    return tuple(sorted(missing.elements())[:_MOST_NAMES])


def _not_moved(files: Iterable[SuiteFile]) -> tuple[int, int]:
    """How many tests are gone and new, without those with the same name elsewhere."""
    removed, added = Counter[str](), Counter[str]()
    for file in files:
        removed.update(file.removed)
        added.update(file.added)
    return (removed - added).total(), (added - removed).total()
