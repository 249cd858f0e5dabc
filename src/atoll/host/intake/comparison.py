"""Compares trees in a temporary store, and converts an agent's index to a tree."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from atoll.host.beneath import TreeReader
from atoll.host.intake.index import IndexEntry
from atoll.host.intake.loose_objects import LooseObjects
from atoll.host.intake.refs import GIT_DIRECTORY
from atoll.host.intake.store import IntakeRepository
from atoll.host.intake.transfer import LIMITS, Transfer, require_ids
from atoll.host.intake.tree_objects import TreeEntry, build_tree, compared
from atoll.model.errors import DriverError, StateError
from atoll.model.untrusted import InsidePath, ObjectId, Untrusted, find_object_id, find_path

_GITLINK = 0o160000
_PACK_BYTES = 1 << 31


class RenamedPath(NamedTuple):
    """A path at which two trees differ; None where one has no entry."""

    before: TreeEntry | None
    after: TreeEntry | None


def difference(store: IntakeRepository, old: str, new: str) -> dict[InsidePath, RenamedPath]:
    """Where two commits or trees differ. Raises StateError for an invalid path."""
    require_ids(old, new)
    if old == new:
        return {}
    found = {}
    for raw, (before, after) in compared(store.objects, old, new).items():
        path = find_path(Untrusted(raw))
        if path is None:
            raise StateError(f"commit `{new}` has an invalid path")
        found[path] = RenamedPath(before, after)
    return found


def tree_of(store: IntakeRepository, commit: str) -> ObjectId:
    """The tree of a commit, or a tree itself."""
    return store.objects.tree_of(commit)


def pack(store: IntakeRepository, commit: str, *, known: Sequence[str]) -> bytes:
    """A thin pack of a commit and all that it needs beyond `known`."""
    require_ids(commit, *known)
    store.flush()
    asked = "".join(f"{name}\n" for name in (commit, *(f"^{name}" for name in known)))
    return store.run(
        "pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "-q",
        stdin=asked.encode(), limit_bytes=_PACK_BYTES,
    )  # fmt: skip


def write_index(
    store: IntakeRepository,
    reader: TreeReader,
    staged: Sequence[IndexEntry],
    *,
    given: Collection[str] | None,
) -> ObjectId | None:
    """The tree of an agent's index; None if it cannot be written: during a merge, or if an object
    is neither one of those `given` nor the agent's. Where the agent shares the owner's repository,
    nothing has to be given.
    """
    entries = [entry for entry in staged if not entry.intent_to_add]
    if any(entry.stage for entry in entries):
        return None
    try:
        if given is None:
            return _write_checked(store, entries)
        if not _fetch_missing(store, reader, entries, given):
            return None
        changes = {e.path.raw: TreeEntry(e.mode, e.object_id) for e in entries}
        return build_tree(store.objects, None, changes, ())
    except (StateError, DriverError):
        return None


def _write_checked(store: IntakeRepository, entries: Sequence[IndexEntry]) -> ObjectId | None:
    """Lets git write the tree, which checks that all objects exist."""
    lines = b"".join(
        f"{entry.mode:06o} {entry.object_id} 0\t".encode() + entry.path.raw + b"\0"
        for entry in entries
    )
    env = {"GIT_INDEX_FILE": str(store.place / "index-of-agent")}
    store.run("update-index", "-z", "--index-info", stdin=lines, env=env)
    answer = store.run("write-tree", env=env)
    return find_object_id(Untrusted(answer.strip()))


def _fetch_missing(
    store: IntakeRepository,
    reader: TreeReader,
    entries: Sequence[IndexEntry],
    given: Collection[str],
) -> bool:
    """Copies the blobs that only the agent's repository has; False if one is missing."""
    names = dict.fromkeys(entry.object_id for entry in entries if entry.mode != _GITLINK)
    missing = [name for name in names if name not in given]
    if not missing:
        return True
    transfer = Transfer.start(missing, LIMITS)
    loose = LooseObjects(reader, GIT_DIRECTORY, transfer)
    copied = [store.objects.copy(name, loose) for name in missing]
    return all(found is not None and found.kind == "blob" for found in copied)
