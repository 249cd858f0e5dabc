"""Recovery points: commits under `refs/atoll/recovery/` with the work of removed capsules.

The description of a point is in a file below Atoll's home, out of reach of any capsule, and bound
to the commit by its id. Commit messages are not trusted: a point without a file (from another home
or an earlier version) is described by its ref, and a trailer counts only if the commit's parents
confirm it.

Only `atoll recover --drop` removes a point, or the plain files and Git LFS objects that belong to
it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from atoll.host import files, git
from atoll.model.errors import StateError
from atoll.model.state import RecoveryPoint
from atoll.model.untrusted import Untrusted, find_number, find_object_id, find_ref_name

PREFIX = "refs/atoll/recovery/"
FILES = "recovered"
"""Below Atoll's home: files that git cannot store, by the point's id."""
_NOTES = "points"
_OBJECTS = ".lfs"
_NOTE_BYTES = 1 << 16
_LATEST_S = 1 << 40
_CAPSULE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_POINT = re.compile(r"[a-z0-9][a-z0-9-]*/[A-Za-z0-9][A-Za-z0-9.-]*")

EMPTY_TREES = {
    40: "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    64: "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
"""The id of the empty tree, by length."""

Warn = Callable[[str], None]


class Shelf(NamedTuple):
    """The descriptions of one repository's points."""

    repository: str
    home: Path

    @property
    def notes(self) -> Path:
        digest = hashlib.sha256(os.fsencode(os.path.realpath(self.repository))).hexdigest()
        return self.home / _NOTES / digest[:16]

    def note_of(self, point: str) -> Path:
        return self.notes / f"{require_id(point)}.json"

    def files_of(self, point: str) -> Path:
        return self.home / FILES / require_id(point)

    def objects_of(self, point: str) -> Path:
        """The Git LFS objects of a point (`kept_lfs_objects.py`)."""
        return self.notes / f"{require_id(point)}{_OBJECTS}"

    def all_objects_of(self, point: str) -> list[Path]:
        """Includes those saved while the repository was elsewhere."""
        return sorted(self.notes.parent.glob(f"*/{require_id(point)}{_OBJECTS}"))

    def all_objects(self) -> list[Path]:
        return sorted(self.notes.glob(f"*/*{_OBJECTS}"))


def require_id(point: str) -> str:
    """The id of a point, which becomes part of a path: `CAPSULE/STAMP` and nothing else."""
    if _POINT.fullmatch(point) is None or ".." in point:
        raise StateError("not the id of a recovery point", hint="atoll recover")
    return point


def describe(shelf: Shelf, point: RecoveryPoint) -> None:
    """Writes the description of a point, durably, before its ref exists."""
    path = shelf.note_of(point.id)
    files.make_private_directory(path.parent)
    files.write_atomic(path, json.dumps({**point._asdict(), "version": 1}).encode())


def find_point(shelf: Shelf, point: str) -> RecoveryPoint | None:
    ref = PREFIX + require_id(point)
    commit = git.find_ref(ref, cwd=shelf.repository)
    return None if commit is None else _known(shelf, ref, commit)


def points(shelf: Shelf, *, warn: Warn) -> list[RecoveryPoint]:
    """All recovery points of a repository, newest first. An invalid one is reported and left
    unchanged.
    """
    found = []
    for ref, commit in git.refs_below(PREFIX, cwd=shelf.repository):
        point = _known(shelf, ref, commit)
        if point is None:
            shown = ascii(ref)[1:-1][:200]
            warn(f"`{shown}` is not a recovery point of Atoll: ignored")
        else:
            found.append(point)
    return sorted(found, key=lambda point: (point.stored_at, point.id), reverse=True)


def _known(shelf: Shelf, ref: str, commit: str) -> RecoveryPoint | None:
    point = ref.removeprefix(PREFIX)
    name = point.partition("/")[0]
    if _POINT.fullmatch(point) is None or ".." in point or not _CAPSULE.fullmatch(name):
        return None
    return _load(shelf, point, commit) or _confirmed(shelf, point, commit)


def _load(shelf: Shelf, point: str, commit: str) -> RecoveryPoint | None:
    """The stored description, if it belongs to this commit."""
    try:
        content = files.read_regular(shelf.note_of(point), limit_bytes=_NOTE_BYTES)
        raw = json.loads(content or b"")
        raw.pop("version")
        found = RecoveryPoint(**raw)
        found = found._replace(stashes=tuple(found.stashes))
    except (ValueError, TypeError, KeyError, AttributeError, StateError):
        return None
    named = (
        *(found.commit, found.base_commit, found.head_commit),
        *(found.index_commit, found.files_base, *found.stashes),
    )
    is_ours = (found.id, found.ref, found.commit) == (point, PREFIX + point, commit) and all(
        name is None or find_object_id(Untrusted(str(name).encode())) is not None for name in named
    )
    kept = shelf.files_of(point)
    # The path of saved files is never read from a file: it follows from the id.
    return found._replace(files=str(kept) if found.files else None) if is_ours else None


def _confirmed(shelf: Shelf, point: str, commit: str) -> RecoveryPoint:
    """Described by the commit alone: `cat-file` prints its bytes unconverted."""
    parents, stamp, trailers = _parse_commit(
        git.git("cat-file", "commit", commit, cwd=shelf.repository).stdout
    )
    head = parents[0] if parents else commit
    index = trailers.get("Index")
    base = trailers.get("Base")
    if base is None or not git.is_ancestor(base, commit, cwd=shelf.repository):
        base = head
    kept = shelf.files_of(point)
    return RecoveryPoint(
        id=point,
        capsule=point.partition("/")[0],
        ref=PREFIX + point,
        commit=commit,
        base_commit=base,
        head_commit=head,
        index_commit=index if index in parents else None,
        stored_at=float(stamp),
        files=str(kept) if kept.is_dir() and not kept.is_symlink() else None,
    )


def _parse_commit(content: bytes) -> tuple[list[str], int, dict[str, str]]:
    """Parents, time and the trailers that are object ids; malformed ones are left out."""
    head, _, text = content.partition(b"\n\n")
    parents: list[str] = []
    stamp = 0
    for line in head.split(b"\n"):
        key, _, value = line.partition(b" ")
        if key == b"parent" and (parent := find_object_id(Untrusted(value))) is not None:
            parents.append(parent)
        elif key == b"committer":
            seconds = value.rpartition(b"> ")[2].partition(b" ")[0]
            stamp = find_number(Untrusted(seconds), most=_LATEST_S) or 0
    trailers = {}
    for key, value in re.findall(rb"^Atoll-(Base|Head|Index): (.*)$", text, re.MULTILINE):
        if (named := find_object_id(Untrusted(value))) is not None:
            trailers[key.decode()] = str(named)
    return parents, stamp, trailers


def recovered_tree(point: RecoveryPoint) -> str:
    """The initial tree of a restored workspace; `files` are applied on top."""
    if not point.lacks:
        return point.commit
    return point.files_base or EMPTY_TREES[len(point.commit)]


def drop(shelf: Shelf, point: RecoveryPoint) -> None:
    """Drops a point: its files first, so that an interrupted drop can be repeated."""
    if find_ref_name(Untrusted(os.fsencode(PREFIX + require_id(point.id)))) is None:
        raise StateError("not the id of a recovery point", hint="atoll recover")
    if os.path.lexists(kept := shelf.files_of(point.id)):
        files.remove_tree(kept, within=shelf.home / FILES)
    # Includes those saved while the repository was at another path.
    for objects in shelf.all_objects_of(point.id):
        files.remove_tree(objects, within=shelf.home)
    git.delete_ref(PREFIX + point.id, cwd=shelf.repository, old=point.commit)
    shelf.note_of(point.id).unlink(missing_ok=True)
