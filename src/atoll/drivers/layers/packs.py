"""Packs of objects that are reachable from given commits of the owner's repository.

Git runs on the host, in the owner's repository, with settings independent of it: no replaced
objects, no grafts, no fetching.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from atoll.host import files, git

_CHUNK_BYTES = 8 << 20
_CHECKSUM_BYTES = 32
"""The longest checksum that git writes: SHA-256."""
_FIELDS = 2
_KINDS = ("commit", "tag", "tree", "blob")
CONSTANT = {
    # Use the objects themselves, not their replacements.
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": f"{os.devnull}/none",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
}
_PACK = (
    *git.DURABLE, "-c", "pack.packSizeLimit=0", "-c", "pack.writeReverseIndex=false",
    "pack-objects", "-q", "--revs", "--non-empty", "--delta-base-offset", "--window=0",
)  # fmt: skip
"""Reuses deltas of the owner's packs and searches for no new ones."""


def pack(repository: str, directory: Path, wanted: Sequence[str]) -> list[str]:
    """Packs what is reachable from `wanted`; returns pack names, empty if all was excluded.

    Git writes temporary files to its object directory and renames them: that must be in the pool,
    which may be on another filesystem than the repository.
    """
    (directory / "scratch").mkdir()
    env = {
        **CONSTANT,
        "GIT_OBJECT_DIRECTORY": str(directory / "scratch"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted_path(f"{repository}/objects"),
    }
    answer = git.git(*_PACK, str(directory / "pack"), cwd=repository, env=env, stdin=_lines(wanted))
    files.remove_tree(directory / "scratch", within=directory)
    return [f"pack-{line}" for line in answer.lines]


def contains(repository: str, commits: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether the commits `parts` are all reachable from `commits`."""
    if set(parts) <= set(commits):
        return True
    answer = git.git(
        "rev-list", "--max-count=1", "--stdin",
        cwd=repository, env=CONSTANT, allowed=(0, 128),
        stdin=_lines([*parts, *(f"^{commit}" for commit in commits)]),
    )  # fmt: skip
    return answer.code == 0 and not answer.text


def kinds(repository: str, names: Sequence[str]) -> dict[str, str]:
    """The types of the named objects; missing objects are left out."""
    answer = git.git(
        "cat-file", "--batch-check=%(objectname) %(objecttype)",
        cwd=repository, env=CONSTANT, stdin=_lines(names),
    )  # fmt: skip
    rows = [line.split(" ") for line in answer.lines]
    return {row[0]: row[1] for row in rows if len(row) == _FIELDS and row[1] in _KINDS}


def first_parents(repository: str, commits: Sequence[str]) -> dict[str, str]:
    if not commits:
        return {}
    answer = git.git(
        "rev-list", "--no-walk=unsorted", "--parents", "--stdin",
        cwd=repository, env=CONSTANT, stdin=_lines(commits),
    )  # fmt: skip
    rows = [line.split(" ") for line in answer.lines]
    return {row[0]: row[1] for row in rows if len(row) > 1}


def is_sound(path: Path) -> bool:
    """Whether a pack or its index ends with the checksum of its content."""
    import hashlib  # noqa: PLC0415 - only to check

    digests = (hashlib.sha1(usedforsecurity=False), hashlib.sha256())
    held = b""
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                held += chunk
                for digest in digests:
                    digest.update(held[:-_CHECKSUM_BYTES])
                held = held[-_CHECKSUM_BYTES:]
    except OSError:
        return False
    if len(held) < _CHECKSUM_BYTES:
        return False
    for digest in digests:
        digest.update(held[: -digest.digest_size])
    return any(held.endswith(digest.digest()) for digest in digests)


def quoted_path(path: str) -> str:
    """A path quoted for a list of alternate object directories."""
    if ":" not in path and not path.startswith('"'):
        return path
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _lines(words: Iterable[str]) -> bytes:
    return "".join(f"{word}\n" for word in words).encode()
