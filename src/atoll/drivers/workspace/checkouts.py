"""What of a workspace the owner's own checkout holds, too."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from atoll.drivers.workspace.entry_reader import Found
from atoll.drivers.workspace.survey import Against, Survey, git_mode
from atoll.host import git
from atoll.host.intake import trees
from atoll.host.intake.store import Store
from atoll.host.intake.tree_objects import TreeEntry
from atoll.host.merged import PlainTree
from atoll.model.errors import DriverError, StateError
from atoll.model.untrusted import InsidePath


def without_held(checkout: Path, store: Store, seen: Survey, against: Against) -> Against:
    """Leaves out the changes that the checkout has just the same; none if it cannot be read."""
    try:
        held = _find_held(checkout, store, seen, {*against.uncommitted, *against.untracked})
    except StateError:
        return against
    return Against(
        tuple(path for path in against.uncommitted if path not in held),
        tuple(path for path in against.untracked if path not in held),
    )


def staged_by_owner(checkout: Path) -> set[tuple[bytes, str]]:
    """The paths and object ids in the index of the checkout; none if it cannot be read."""
    try:
        answer = git.git("ls-files", "--stage", "--full-name", "-z", cwd=str(checkout))
    except (StateError, DriverError, OSError):
        return set()
    rows = (row.partition(b"\t") for row in answer.stdout.split(b"\0") if row)
    return {(path, head.split(b" ")[1].decode()) for head, _, path in rows}


def _find_held(
    checkout: Path, store: Store, seen: Survey, paths: Collection[InsidePath]
) -> set[InsidePath]:
    found = [path for path in paths if path in seen.found]
    ids = trees.blob_ids(store, seen.commit, seen.reader, found, links=seen.links)
    ours = {path: TreeEntry(seen.found[path], name) for path, name in ids.items()}
    above = {place for path in found for place in path.parents()}

    def skip(path: InsidePath, is_directory: bool) -> bool:  # noqa: FBT001 - called so
        return path not in (above if is_directory else ours)

    with PlainTree(checkout) as there:
        entries = there.changes(skip=skip).entries
        links = {path: entry.target for path, entry in entries.items() if entry.target}
        names = trees.blob_ids(
            store, seen.commit, Found(there, entries), list(entries), links=links
        )
        theirs = {
            path: TreeEntry(git_mode(store, entries[path].mode, seen.tracked.get(path)), name)
            for path, name in names.items()
        }
        gone = {
            path
            for path in paths
            if path in seen.removed and there.kind(path) in (None, "directory")
        }
    return gone | {path for path, entry in ours.items() if theirs.get(path) == entry}
