"""What a candidate's tree changes of the base, as far as it matters for a choice."""

from __future__ import annotations

import re

from atoll.host import git
from atoll.model.evidence import ChangedFile, ChangeFacts

_TEST = re.compile(
    r"(^|/)(tests?|__tests__|spec|specs)/|(^|/)(test_[^/]*|[^/]*_test)\.[a-z]+$"
    r"|(^|/)conftest\.py$|\.(test|spec)\.[a-z]+$"
)
_STATUS = {"A": "added", "M": "modified", "D": "deleted", "T": "type-changed"}


def is_test_path(path: str) -> bool:
    return _TEST.search(path) is not None


def load_facts(repository: str, base: str, tip: str) -> ChangeFacts:
    """The facts about the difference between two trees."""
    words = ("-r", "-z", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
    raw = git.git("diff-tree", *words, "--raw", base, tip, cwd=repository).text.split("\0")
    statuses = dict(zip(raw[1::2], (head.split(" ")[-1] for head in raw[::2]), strict=False))
    counts = git.git("diff-tree", *words, "--numstat", base, tip, cwd=repository).text.split("\0")
    files = []
    for line in filter(None, counts):
        added, deleted, path = line.split("\t", 2)
        status = _STATUS.get(statuses.get(path, "M"), "modified")
        is_binary = added == "-"
        files.append(
            ChangedFile(
                path,
                status,
                0 if is_binary else int(added),
                0 if is_binary else int(deleted),
                is_binary,
            )
        )
    tests = [file for file in files if is_test_path(file.path)]
    return ChangeFacts(
        tuple(files),
        changed_tests=tuple(file.path for file in tests if file.status != "added"),
        deleted_tests=tuple(file.path for file in tests if file.status == "deleted"),
    )
