"""Compares trees that the store sees, and turns an agent's index into one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from io import FileIO
from typing import NamedTuple

from atoll.host.beneath import TreeReader
from atoll.host.intake.content import TreeEntry
from atoll.host.intake.index import Staged
from atoll.host.intake.loose import LooseObjects, PackWriter
from atoll.host.intake.refs import GIT_DIRECTORY
from atoll.host.intake.store import Store
from atoll.host.transfer import LIMITS, Transfer, require_ids
from atoll.model.errors import DriverError, StateError
from atoll.model.untrusted import InsidePath, ObjectId, Untrusted, find_object_id, find_path

_ABSENT = 0
_GITLINK = 0o160000
_PACK_BYTES = 1 << 31
_LISTED_BYTES = 128 << 20
"""Of the names of all files in a tree: millions."""
_CHANGED_BYTES = 48 << 20
"""Of what differs between two trees: some hundred thousand files."""


class Moved(NamedTuple):
    """A path at which two trees differ; None where one has nothing."""

    before: TreeEntry | None
    after: TreeEntry | None


def difference(store: Store, old: str, new: str) -> dict[InsidePath, Moved]:
    """Where two commits or trees differ. Raises StateError for a path that no file can have."""
    require_ids(old, new)
    if old == new:
        return {}
    for name in (old, new):
        _require_bounded(store, name)
    answer = store.look(
        "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", old, new,
        limit_bytes=_CHANGED_BYTES,
    )  # fmt: skip
    fields = answer.split(b"\0")
    found = {}
    for head, raw in zip(fields[:-1:2], fields[1::2], strict=False):
        words = head.removeprefix(b":").split(b" ")
        path = find_path(Untrusted(raw))
        if path is None:
            raise StateError(f"commit `{new}` has a path that no file can have")
        found[path] = Moved(_entry(words[0], words[2]), _entry(words[1], words[3]))
    return found


def _require_bounded(store: Store, tree: str) -> None:
    """A few trees that name each other many times unfold to more files than there are atoms. Git
    lists them one by one, which can be ended, but compares them only when it has all of them.
    """
    store.require(
        "ls-tree", "-r", "-t", "-z", "--name-only", tree,
        limit_bytes=_LISTED_BYTES, reason=f"commit `{tree}` unfolds to too many files",
    )  # fmt: skip


def _entry(mode: bytes, raw: bytes) -> TreeEntry | None:
    number, object_id = int(mode, 8), find_object_id(Untrusted(raw))
    return None if number == _ABSENT or object_id is None else TreeEntry(number, object_id)


def tree_of(store: Store, commit: str) -> ObjectId:
    """The tree of a commit, or a tree itself."""
    require_ids(commit)
    answer = store.look("rev-parse", "--verify", f"{commit}^{{tree}}")
    found = find_object_id(Untrusted(answer.strip()))
    if found is None:
        raise StateError(f"`{commit}` has no tree")
    return found


def pack(store: Store, commit: str, *, known: Sequence[str]) -> bytes:
    """A commit with all that it needs beyond `known`, as a pack that may build on those."""
    require_ids(commit, *known)
    asked = "".join(f"{name}\n" for name in (commit, *(f"^{name}" for name in known)))
    return store.run(
        "pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "-q",
        stdin=asked.encode(), limit_bytes=_PACK_BYTES,
    )  # fmt: skip


def write_index(
    store: Store, reader: TreeReader, staged: Sequence[Staged], *, given: Collection[str] | None
) -> ObjectId | None:
    """The tree that an agent's index describes; None when that cannot be written: in the middle of
    a merge, or when an object is neither one of those `given` nor the agent's own. Where the agent
    shares the owner's repository nothing has to be given.
    """
    entries = [entry for entry in staged if not entry.intent_to_add]
    if any(entry.stage for entry in entries):
        return None
    try:
        if given is not None and not _fetch_missing(store, reader, entries, given):
            return None
        lines = b"".join(
            f"{entry.mode:06o} {entry.object_id} 0\t".encode() + entry.path.raw + b"\0"
            for entry in entries
        )
        env = {"GIT_INDEX_FILE": str(store.place / "index-of-agent")}
        store.run("update-index", "-z", "--index-info", stdin=lines, env=env)
        answer = store.run("write-tree", env=env)
    except (StateError, DriverError):
        return None
    return find_object_id(Untrusted(answer.strip()))


def _fetch_missing(
    store: Store, reader: TreeReader, entries: Sequence[Staged], given: Collection[str]
) -> bool:
    """Copies the blobs that only the agent's repository has; False when one cannot be had."""
    names = dict.fromkeys(entry.object_id for entry in entries if entry.mode != _GITLINK)
    missing = [name for name in names if name not in given]
    if not missing:
        return True
    transfer = Transfer.start(missing, LIMITS)
    loose = LooseObjects(reader, GIT_DIRECTORY, transfer)
    with FileIO(store.place / "staged.pack", "w+") as file:
        writer = PackWriter(file, transfer, algorithm=store.settings.algorithm)
        copied = [loose.copy(name, writer) for name in missing]
        writer.finish()
        if any(found is None or found.kind != "blob" for found in copied):
            return False
        store.run("index-pack", "--stdin", stdin=file)
    return True
