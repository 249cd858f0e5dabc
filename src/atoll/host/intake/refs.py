"""Reads the refs of an agent's repository as bytes.

Everything below `.git` is hostile. A file that is not an ordinary ref (a link, a fifo, a name or a
content that git would not accept, too large) is left out and listed in `AgentRefs.refused`.
"""

from __future__ import annotations

from typing import NamedTuple

from atoll.host.beneath import TreeReader
from atoll.model.errors import StateError
from atoll.model.untrusted import (
    InsidePath,
    ObjectId,
    RefName,
    Untrusted,
    find_object_id,
    find_ref_name,
    show,
)

GIT_DIRECTORY = InsidePath(b".git")
STASH = RefName("refs/stash")
_FOREIGN = ("refs/remotes/", "refs/prefetch/")
"""Of what others have: not the agent's work."""
_AUTOSTASHES = (b"rebase-merge/autostash", b"rebase-apply/autostash", b"MERGE_AUTOSTASH")
_OTHER_FORMATS = (b"commondir", b"reftable")
_REF_BYTES = 4096
_PACKED_BYTES = 64 << 20
_LOG_BYTES = 16 << 20
_MOST_REFS = 100_000
_MOST_DIRECTORIES = 100_000
_MOST_STASHES = 10_000
_MOST_WORKTREES = 1_000
_MOST_REFUSED = 100
_SYMBOLIC_DEPTH = 5
_SHOWN_CHARACTERS = 100


class AgentRefs(NamedTuple):
    """What the refs of a capsule's repository say; nobody has looked for the objects yet."""

    head_ref: RefName | None
    """Where HEAD leads to; None when it is detached or unusable."""
    head: ObjectId | None
    """None when HEAD is unusable or its branch has no commit yet."""
    refs: dict[RefName, ObjectId]
    """All but those of remotes. A tag may name a tag object."""
    stashes: tuple[ObjectId, ...]
    """All entries of the stash's log, newest first, and what a rebase or merge has put aside."""
    worktrees: tuple[ObjectId, ...]
    """Where the HEADs of linked worktrees stand."""
    refused: tuple[str, ...]
    """What was left out, as text that can be shown."""


class _Target(NamedTuple):
    """What a ref file holds: another ref or an object."""

    ref: RefName | None
    object_id: ObjectId | None


def load_refs(reader: TreeReader, at: InsidePath = GIT_DIRECTORY) -> AgentRefs | None:
    """The refs of the repository at `at`.

    None when that is no repository that keeps its refs in files of its own: there is no directory,
    it is a linked worktree (`commondir`), or it uses reftables.
    """
    if reader.kind(at) != "directory" or reader.kind(at.child(b"refs")) != "directory":
        return None
    if any(reader.kind(at.child(name)) is not None for name in _OTHER_FORMATS):
        return None
    return _Loader(reader, at).load()


class _Loader:
    def __init__(self, reader: TreeReader, at: InsidePath) -> None:
        self._reader, self._at = reader, at
        self._packed: dict[RefName, ObjectId] = {}
        self._refused: list[str] = []
        self._refused_more = 0
        self._directories_left = _MOST_DIRECTORIES

    def load(self) -> AgentRefs:
        self._packed = self._load_packed()
        refs = {
            name: found for name, found in self._packed.items() if not name.startswith(_FOREIGN)
        }
        for name in self._loose_names():
            found = self._resolve(name)
            # A loose ref hides a packed one, also when it is broken.
            refs.pop(name, None)
            if found is not None and len(refs) < _MOST_REFS:
                refs[name] = found
            elif found is not None:
                self._refuse(name.encode("utf-8", "surrogateescape"), "too many refs")
        head = self._load_target(self._below(b"HEAD"))
        at = None if head is None else head.object_id or self._resolve(head.ref)
        return AgentRefs(
            head_ref=None if head is None else head.ref,
            head=at,
            refs=refs,
            stashes=self._load_stashes(),
            worktrees=self._load_worktrees(),
            refused=self._all_refused(),
        )

    def _below(self, raw: bytes) -> InsidePath:
        return InsidePath(self._at.raw + b"/" + raw)

    def _refuse(self, what: bytes, why: str) -> None:
        if len(self._refused) < _MOST_REFUSED:
            shown = show(Untrusted(what), most=_SHOWN_CHARACTERS)
            self._refused.append(f"`{shown}`: {why}")
        else:
            self._refused_more += 1

    def _all_refused(self) -> tuple[str, ...]:
        more = [f"{self._refused_more} more"] if self._refused_more else []
        return (*self._refused, *more)

    def _read(self, path: InsidePath, limit_bytes: int) -> bytes | None:
        """The content of a file; None when there is none or, reported, when it is unusable."""
        kind = self._reader.kind(path)
        if kind is None:
            return None
        content = self._reader.read(path, limit_bytes=limit_bytes) if kind == "file" else None
        if content is None:
            self._refuse(path.raw, f"a {kind} that cannot be read as a small file")
        return content

    def _names(self, directory: InsidePath) -> list[InsidePath]:
        self._directories_left -= 1
        if self._directories_left < 0:
            return []
        try:
            return self._reader.names(directory)
        except StateError:
            self._refuse(directory.raw, "too many entries")
            return []

    def _load_packed(self) -> dict[RefName, ObjectId]:
        content = self._read(self._below(b"packed-refs"), _PACKED_BYTES)
        found: dict[RefName, ObjectId] = {}
        for line in (content or b"").split(b"\n"):
            if not line or line[:1] in (b"#", b"^"):
                continue
            raw_id, _, raw_name = line.partition(b" ")
            object_id = _find_id(raw_id)
            name = find_ref_name(Untrusted(raw_name))
            if object_id is None or name is None:
                self._refuse(line, "not a line of `packed-refs`")
            elif len(found) >= _MOST_REFS:
                self._refuse(line, "too many refs")
                break
            else:
                found[name] = object_id
        return found

    def _loose_names(self) -> list[RefName]:
        """The loose refs, but for those of remotes."""
        found: list[RefName] = []
        ahead = [self._below(b"refs")]
        while ahead and len(found) < _MOST_REFS:
            place = ahead.pop()
            for path in self._names(place):
                kind = self._reader.kind(path)
                name = find_ref_name(Untrusted(path.raw[len(self._at.raw) + 1 :]))
                if kind == "directory":
                    below = path.raw[len(self._at.raw) + 1 :].decode(errors="replace") + "/"
                    ahead += [] if below in _FOREIGN else [path]
                elif path.name.endswith(b".lock"):
                    # Of a git that is at work, or was killed: it holds nothing yet.
                    continue
                elif kind != "file" or name is None:
                    self._refuse(path.raw, "not a ref")
                else:
                    found.append(name)
        if ahead:
            self._refuse(ahead[-1].raw, "too many refs")
        return sorted(found[:_MOST_REFS])

    def _resolve(self, name: RefName | None) -> ObjectId | None:
        """Where a ref leads to in the end, through symbolic refs."""
        for _ in range(_SYMBOLIC_DEPTH):
            if name is None:
                return None
            path = self._below(name.encode("utf-8", "surrogateescape"))
            if self._reader.kind(path) in (None, "directory"):
                return self._packed.get(name)
            target = self._load_target(path)
            if target is None or target.object_id is not None:
                return None if target is None else target.object_id
            name = target.ref
        self._refuse((name or "").encode("utf-8", "surrogateescape"), "symbolic refs in a circle")
        return None

    def _load_target(self, path: InsidePath) -> _Target | None:
        content = self._read(path, _REF_BYTES)
        if content is None:
            return None
        target = _parse_target(content)
        if target is None:
            self._refuse(path.raw, "neither an object id nor a ref")
        return target

    def _load_stashes(self) -> tuple[ObjectId, ...]:
        path = self._below(b"logs/refs/stash")
        found: dict[ObjectId, None] = {}
        lines = (self._read(path, _LOG_BYTES) or b"").split(b"\n")
        for line in reversed(lines):
            fields = line.split(b" ", 2)
            object_id = _find_id(fields[1]) if len(fields) == 3 else None
            if object_id is not None and len(found) < _MOST_STASHES:
                found[object_id] = None
            elif line:
                self._refuse(path.raw, "has a line that is no entry, or too many")
        for raw in _AUTOSTASHES:
            content = self._read(self._below(raw), _REF_BYTES)
            object_id = None if content is None else _find_id(content.strip())
            if object_id is not None:
                found[object_id] = None
        return tuple(found)

    def _load_worktrees(self) -> tuple[ObjectId, ...]:
        places = self._names(self._below(b"worktrees"))
        if len(places) > _MOST_WORKTREES:
            self._refuse(b"worktrees", "too many worktrees")
        found: dict[ObjectId, None] = {}
        for place in places[:_MOST_WORKTREES]:
            head = self._load_target(place.child(b"HEAD"))
            at = None if head is None else head.object_id or self._resolve(head.ref)
            if at is not None:
                found[at] = None
        return tuple(found)


def _parse_target(content: bytes) -> _Target | None:
    """As git reads a ref file: a symbolic ref, or an object id and then nothing but white space."""
    if content.startswith(b"ref:"):
        name = find_ref_name(Untrusted(content[4:].strip()))
        return None if name is None else _Target(name, None)
    words = content.split(None, 1)
    object_id = _find_id(words[0]) if words and content.startswith(words[0]) else None
    return None if object_id is None else _Target(None, object_id)


def _find_id(raw: bytes) -> ObjectId | None:
    found = find_object_id(Untrusted(raw))
    return None if found is None or not found.strip("0") else found
