"""What a candidate's tree changes of the base, as far as it matters for a choice."""

from __future__ import annotations

from atoll.engine.change.changes import Changes, FileChange, load_changes
from atoll.engine.change.dependency_files import find_dependency_files
from atoll.engine.change.risky_files import find_risky
from atoll.engine.change.test_changes import find_test_changes
from atoll.engine.change.test_files import SuiteRole, find_role
from atoll.model.evidence import ChangedFile, ChangeFacts

_AMBIGUOUS = frozenset({"features", "testing", "t"})
"""Directories of tests in some projects, and of ordinary code in others."""


def is_suite_path(path: str) -> bool:
    """Whether a file is part of the suite that replaces that of another tree.

    Narrower than what counts as a test elsewhere: code that is taken for tests would be taken out
    of a candidate.
    """
    role = find_role(path)
    if role is not SuiteRole.SUPPORT:
        return role is not None
    # The conventions of the other directories have to say so, too.
    plain = "/".join(part for part in path.split("/") if part.lower() not in _AMBIGUOUS)
    return find_role(plain) is not None


def load_facts(repository: str, base: str, tip: str) -> ChangeFacts:
    """The facts about the difference between two trees. Raises StateError or DriverError when the
    repository cannot be read.
    """
    changes = load_changes(repository, base, tip)
    suite = find_test_changes(changes)
    found = find_dependency_files(changes)
    return ChangeFacts(
        files=tuple(map(_file, changes.files)),
        changed_tests=tuple(
            file.path for file in changes.files if file.old_id and is_suite_path(file.path)
        ),
        deleted_tests=suite.removed,
        deleted_test_files=tuple(file.path for file in suite.deleted_files),
        skipped_tests=suite.skips_added,
        assertions_removed=suite.assertions_removed,
        dependencies=_paths(found.manifests),
        locks=_paths(found.locks),
        risky=_risky(changes),
        is_complete=changes.is_complete,
    )


def _file(change: FileChange) -> ChangedFile:
    return ChangedFile(
        change.path,
        str(change.kind),
        change.added or 0,
        change.removed or 0,
        is_binary=change.added is None,
    )


def _paths(files: tuple[FileChange, ...]) -> tuple[str, ...]:
    return tuple(file.path for file in files)


def _risky(changes: Changes) -> tuple[str, ...]:
    return tuple(dict.fromkeys(file.path for file in find_risky(changes)))
