"""Converts files to blobs by the base commit's attributes and the owner's settings.

Most files are hashed as they are. Line endings, `ident` and encodings are converted by git, on a
copy in a staging directory of Atoll. Git LFS files become pointers here, without git-lfs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from enum import Enum

from atoll.host.beneath import TreeReader
from atoll.host.intake.ignore import is_git_name
from atoll.host.intake.store import IntakeRepository, OwnerSettings, personal_files
from atoll.host.intake.transfer import require_ids
from atoll.host.intake.tree_objects import TreeEntry, listing
from atoll.model.errors import DriverError, StateError
from atoll.model.lfs import Pointer, parse_pointer, render_pointer
from atoll.model.untrusted import (
    InsidePath,
    ObjectId,
    Untrusted,
    directories_of,
    find_object_id,
    find_path,
)

ATTRIBUTES = ("text", "eol", "crlf", "filter", "ident", "working-tree-encoding")
_FILE = b".gitattributes"
_RULES_BYTES = 256 << 10
_MOST_RULES = 200
_UNSPECIFIED = b"unspecified"
CONVERTED_BYTES = 256 << 20
"""Git converts in memory; larger files are not converted."""


class Conversion(Enum):
    NONE = "none"
    LINE_ENDINGS = "line endings"
    """Only if the file contains a CRLF."""
    GIT = "git"
    LFS = "lfs"


def tracked(
    store: IntakeRepository, commit: str, paths: Collection[InsidePath] | None = None
) -> dict[InsidePath, TreeEntry]:
    """The files, links and submodules of a commit or tree; only `paths` if given.

    Raises StateError if the tree has an invalid path, or far too many.
    """
    found = tracked_below(store, commit, paths)
    wanted = None if paths is None else set(paths)
    return {path: entry for path, entry in found.items() if wanted is None or path in wanted}


def tracked_below(
    store: IntakeRepository, commit: str, places: Collection[InsidePath] | None
) -> dict[InsidePath, TreeEntry]:
    """What a commit or tree tracks at these paths and below them; everything for None."""
    require_ids(commit)
    if places is not None and not places:
        return {}
    wanted = None if places is None else {place.raw for place in places}
    listed = listing(store.objects, commit, wanted)
    found = {}
    for raw, entry in listed.items():
        path = find_path(Untrusted(raw))
        if path is None:
            raise StateError(f"commit `{commit}` has an invalid path")
        found[path] = entry
    return found


def prepare_attributes(store: IntakeRepository, commit: str, paths: Collection[InsidePath]) -> bool:
    """Fills the store's index with what determines the conversion of `paths`; False if nothing
    does.

    That is the commit's `.gitattributes` in their parent directories and the paths themselves,
    since git does not convert files that are committed with CRLF.
    """
    places = directories_of(paths)
    candidates = {InsidePath(_FILE), *(place.child(_FILE) for place in places)}
    found = tracked(store, commit, candidates)
    settings = store.settings
    has_any = bool(found)
    (store.git_dir / "index").unlink(missing_ok=True)
    has_own = bool(settings.attributes or settings.personal_attributes)
    if not has_any and not has_own and settings.autocrlf == "false":
        return False
    found |= tracked(store, commit, paths)
    lines = b"".join(
        f"{entry.mode:o} {entry.object_id}\t".encode() + path.raw + b"\0"
        for path, entry in found.items()
    )
    store.run("update-index", "-z", "--index-info", stdin=lines)
    return True


def find_conversions(
    store: IntakeRepository, commit: str, paths: Collection[InsidePath]
) -> dict[InsidePath, Conversion]:
    """The conversion of each path; paths without one are left out."""
    if not paths or not prepare_attributes(store, commit, paths):
        return {}
    answer = store.run(
        *personal_files(store.git_dir), "check-attr", "--cached", "--stdin", "-z", *ATTRIBUTES,
        stdin=b"".join(path.raw + b"\0" for path in paths),
    ).split(b"\0")  # fmt: skip
    values: dict[bytes, dict[str, bytes]] = {}
    for raw, name, value in zip(answer[:-1:3], answer[1::3], answer[2::3], strict=True):
        values.setdefault(raw, {})[name.decode()] = value
    planned = {path: _conversion(values.get(path.raw, {}), store.settings) for path in paths}
    return {path: how for path, how in planned.items() if how is not Conversion.NONE}


def apply_rules(
    store: IntakeRepository,
    commit: str,
    reader: TreeReader,
    rules: Collection[InsidePath],
    conversions: dict[InsidePath, Conversion],
    paths: Collection[InsidePath],
) -> dict[InsidePath, Conversion]:
    """The conversions, with Git LFS decided by the current `.gitattributes` files.

    `rules` are those that may differ from the commit's. So `git lfs track` in a capsule works
    before it is part of a base. All other attributes are those of the commit: they could hide
    content from a comparison, which a pointer cannot.
    """
    if not rules or not paths or not store.settings.has_lfs:
        return conversions
    chosen = _lfs_paths(store, commit, reader, rules, paths)
    kept = {path: how for path, how in conversions.items() if how is not Conversion.LFS}
    return kept | dict.fromkeys(chosen, Conversion.LFS)


def _lfs_paths(
    store: IntakeRepository,
    commit: str,
    reader: TreeReader,
    rules: Collection[InsidePath],
    paths: Collection[InsidePath],
) -> list[InsidePath]:
    places = {place for path in paths for place in path.parents()}
    candidates = {InsidePath(_FILE), *(place.child(_FILE) for place in places)}
    found = {path: entry.object_id for path, entry in tracked(store, commit, candidates).items()}
    for path in sorted(candidates & set(rules))[:_MOST_RULES]:
        content = reader.read(path, limit_bytes=_RULES_BYTES)
        if content is not None:
            made = store.run("hash-object", "-w", "--stdin", stdin=content).strip()
            found[path] = ObjectId(made.decode())
    lines = b"".join(f"100644 {blob}\t".encode() + path.raw + b"\0" for path, blob in found.items())
    env = {"GIT_INDEX_FILE": str(store.place / "index-of-rules")}
    store.run("update-index", "-z", "--index-info", stdin=lines, env=env)
    answer = store.run(
        *personal_files(store.git_dir), "check-attr", "--cached", "--stdin", "-z", "filter",
        stdin=b"".join(path.raw + b"\0" for path in paths), env=env,
    ).split(b"\0")  # fmt: skip
    (store.place / "index-of-rules").unlink(missing_ok=True)
    chosen = {
        raw for raw, value in zip(answer[:-1:3], answer[2::3], strict=True) if value == b"lfs"
    }
    return [path for path in paths if path.raw in chosen]


def _conversion(values: Mapping[str, bytes], settings: OwnerSettings) -> Conversion:
    if values.get("filter") == b"lfs" and settings.has_lfs:
        return Conversion.LFS
    encoding = values.get("working-tree-encoding", _UNSPECIFIED)
    if values.get("ident") == b"set" or encoding not in (_UNSPECIFIED, b"unset", b"set", b""):
        return Conversion.GIT
    text, eol = values.get("text", _UNSPECIFIED), values.get("eol", _UNSPECIFIED)
    if text == _UNSPECIFIED:
        # Its old name.
        text = values.get("crlf", _UNSPECIFIED)
    if text == b"unset" or (
        text == _UNSPECIFIED and eol == _UNSPECIFIED and settings.autocrlf == "false"
    ):
        return Conversion.NONE
    return Conversion.LINE_ENDINGS


def is_pointer(content: bytes) -> bool:
    """Whether Git LFS would leave the content as it is."""
    return not content or parse_pointer(content) is not None


def pointer_to(sha256: str, size_bytes: int) -> bytes:
    return render_pointer(Pointer(sha256, size_bytes))


def blob_id(content: bytes, algorithm: str) -> ObjectId:
    digest = hashlib.new(algorithm, b"blob %d\0" % len(content), usedforsecurity=False)
    digest.update(content)
    return ObjectId(digest.hexdigest())


def is_attributes(path: InsidePath) -> bool:
    return path.name == _FILE


def stage(store: IntakeRepository, path: InsidePath) -> int | None:
    """A new file at `path` in the staging directory, for writing; None if it cannot be created."""
    if any(is_git_name(part) for part in path.parts):
        return None
    root = os.open(store.staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for place in reversed(list(path.parents())):
            with suppress(FileExistsError):
                os.mkdir(place.raw, mode=0o700, dir_fd=root)
        how = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(path.raw, how, mode=0o600, dir_fd=root)
    except OSError:
        return None
    finally:
        os.close(root)


def convert_staged(
    store: IntakeRepository, paths: Sequence[InsidePath]
) -> dict[InsidePath, ObjectId]:
    """The blobs that git writes for staged files; files that it cannot convert are left out.

    The index that `prepare_attributes` fills decides, and is unchanged afterwards, so that no
    staged file affects another one. (`hash-object` does not read the index.)
    """
    if not paths:
        return {}
    index = store.git_dir / "index"
    before = index.read_bytes() if index.exists() else None
    try:
        return _convert_staged(store, paths)
    finally:
        index.unlink(missing_ok=True)
        if before is not None:
            index.write_bytes(before)


def _convert_staged(
    store: IntakeRepository, paths: Sequence[InsidePath]
) -> dict[InsidePath, ObjectId]:
    given = b"".join(path.raw + b"\0" for path in paths)
    try:
        store.run(
            *personal_files(store.git_dir), "update-index", "-z", "--add", "--replace", "--stdin",
            stdin=given,
        )  # fmt: skip
    except DriverError:
        if len(paths) == 1:
            return {}
        middle = len(paths) // 2
        halves = (paths[:middle], paths[middle:])
        return {path: made for half in halves for path, made in convert_staged(store, half).items()}
    found = {}
    for line in store.run("ls-files", "--stage", "-z").split(b"\0")[:-1]:
        head, _, raw = line.partition(b"\t")
        path, object_id = find_path(Untrusted(raw)), find_object_id(Untrusted(head.split(b" ")[1]))
        if path is not None and object_id is not None:
            found[path] = object_id
    return {path: found[path] for path in paths if path in found}
