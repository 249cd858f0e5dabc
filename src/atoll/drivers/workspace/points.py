"""Recovery points: commits under `refs/atoll/recovery/` that hold what a removed capsule held.

Nothing but `atoll recover --drop` removes one, or what lies beside it as plain files.
"""

from __future__ import annotations

import re
from pathlib import Path

from atoll.host import files, git
from atoll.model.state import RecoveryPoint

PREFIX = "refs/atoll/recovery/"


def find_point(ref: str, *, cwd: str) -> RecoveryPoint | None:
    commit = git.find_ref(ref, cwd=cwd)
    return None if commit is None else _parse_point(ref, commit, cwd=cwd)


def _parse_point(ref: str, commit: str, *, cwd: str) -> RecoveryPoint:
    answer = git.git("log", "-1", "--format=%ct%n%B", commit, "--", cwd=cwd).text
    stamp, _, text = answer.partition("\n")
    trailers = dict(re.findall(r"^Atoll-(\w+): (.*)$", text, re.MULTILINE))
    point = ref.removeprefix(PREFIX)
    return RecoveryPoint(
        id=point,
        capsule=trailers.get("Capsule", point.split("/")[0]),
        ref=ref,
        commit=commit,
        base_commit=trailers.get("Base", commit),
        head_commit=trailers.get("Head", commit),
        index_commit=trailers.get("Index"),
        stored_at=float(stamp),
        files=trailers.get("Files"),
    )


def points(*, cwd: str) -> list[RecoveryPoint]:
    """All recovery points of a repository, the newest first."""
    found = [_parse_point(ref, commit, cwd=cwd) for ref, commit in git.refs_below(PREFIX, cwd=cwd)]
    return sorted(found, key=lambda point: (point.stored_at, point.id), reverse=True)


def drop(point: RecoveryPoint, *, cwd: str, home: Path) -> None:
    if point.files is not None:
        files.remove_tree(home / "recovered" / point.id, within=home / "recovered")
    git.delete_ref(point.ref, cwd=cwd, old=point.commit)
