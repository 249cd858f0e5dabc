"""How much a commit differs from another one."""

from __future__ import annotations

from typing import NamedTuple

from atoll.host import git


class ChangedLines(NamedTuple):
    files: int = 0
    added: int = 0
    """Lines of text files."""
    removed: int = 0


def count(base: str, commit: str, *, repository: str) -> ChangedLines:
    """Renames count as a removal and an addition."""
    if base == commit:
        return ChangedLines()
    said = git.git(
        "diff-tree", "-r", "-z", "--numstat", "--no-renames", "--no-ext-diff", "--no-textconv",
        "--end-of-options", base, commit,
        cwd=repository,
    ).stdout  # fmt: skip
    return parse(said)


def parse(said: bytes) -> ChangedLines:
    """Reads `ADDED TAB REMOVED TAB PATH NUL`; of binary files both numbers are `-`."""
    files = added = removed = 0
    for entry in said.split(b"\0"):
        more, _, rest = entry.partition(b"\t")
        less, has_path, _ = rest.partition(b"\t")
        if not has_path:
            continue
        files += 1
        added += int(more) if more.isdigit() else 0
        removed += int(less) if less.isdigit() else 0
    return ChangedLines(files, added, removed)
