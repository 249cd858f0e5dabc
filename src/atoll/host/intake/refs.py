"""Reads the refs of an agent's repository as bytes.

Everything below `.git` is hostile. A file that is not an ordinary ref (a link, a fifo, an invalid
name or content, too large) is left out and listed in `AgentRefs.refused`.
"""

from __future__ import annotations

from collections.abc import Iterator
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
_FETCHED = ("refs/remotes/", "refs/prefetch/")
"""Remote-tracking refs prove nothing: an agent can write them, and the remote may be in the
capsule's own `/tmp`."""
_IN_PROGRESS = (
    b"rebase-merge/autostash", b"rebase-apply/autostash", b"MERGE_AUTOSTASH",
    b"rebase-merge/orig-head", b"rebase-apply/orig-head", b"REBASE_HEAD",
    b"MERGE_HEAD", b"CHERRY_PICK_HEAD", b"REVERT_HEAD",
)  # fmt: skip
"""Files that may hold the only reference to a commit, one per line."""
_OTHER_FORMATS = (b"commondir", b"reftable")
_REF_BYTES = 4096
_PACKED_BYTES = 64 << 20
_LOG_BYTES = 16 << 20
_MOST_REFS = 100_000
_MOST_STASHES = 10_000
_MOST_WORKTREES = 1_000
_MOST_REFUSED = 100
"""Beyond this, nothing more is read: the import as a whole is refused."""
_LINES_PER_LOOK = 20
_BYTES_PER_LOOK = 1 << 16
_SYMBOLIC_DEPTH = 5
_SHOWN_CHARACTERS = 100


class AgentRefs(NamedTuple):
    """The refs of a capsule's repository; their objects are not checked yet."""

    head_ref: RefName | None
    """The ref that HEAD names; None if it is detached or unusable."""
    head: ObjectId | None
    """None if HEAD is unusable or its branch is unborn."""
    refs: dict[RefName, ObjectId]
    """All refs except remote-tracking ones. A tag may name a tag object."""
    fetched: dict[RefName, ObjectId]
    """Remote-tracking refs: whether a remote has the commits is not known."""
    stashes: tuple[ObjectId, ...]
    """All entries of the stash's reflog, newest first, and commits that an unfinished rebase, merge
    or the like has stashed or works on."""
    worktrees: tuple[ObjectId, ...]
    """HEADs of linked worktrees, and commits that only these name."""
    refused: tuple[str, ...]
    """What was left out, safe for display."""


class RefBudget:
    """How much may still be read, in file reads."""

    def __init__(self, looks: int = 20_000) -> None:
        self._left = looks

    def is_spent(self) -> bool:
        return self._left < 0

    def spend(self, looks: int = 1) -> bool:
        """Returns False if the budget is exhausted."""
        self._left -= looks
        return not self.is_spent()


class _Target(NamedTuple):
    """The content of a ref file: another ref or an object."""

    ref: RefName | None
    object_id: ObjectId | None


def load_refs(
    reader: TreeReader, at: InsidePath = GIT_DIRECTORY, budget: RefBudget | None = None
) -> AgentRefs | None:
    """The refs of the repository at `at`; those beyond the budget are refused.

    Returns None if it does not keep its refs in files of its own: there is no directory, it is a
    linked worktree (`commondir`), or it uses reftables.
    """
    if reader.kind(at) != "directory" or reader.kind(at.child(b"refs")) != "directory":
        return None
    if any(reader.kind(at.child(name)) is not None for name in _OTHER_FORMATS):
        return None
    return _Loader(reader, at, budget or RefBudget()).load()


class _Loader:
    def __init__(self, reader: TreeReader, at: InsidePath, budget: RefBudget) -> None:
        self._reader, self._at, self._budget = reader, at, budget
        self._packed: dict[RefName, ObjectId] = {}
        self._refused: list[str] = []
        self._is_over = False

    def load(self) -> AgentRefs:
        self._packed = self._load_packed()
        # Read first: cheap, and the most important.
        head = self._load_target(self._below(b"HEAD"))
        at = None if head is None else head.object_id or self._resolve(head.ref)
        refs = dict(self._packed)
        for name in self._loose_names():
            if not self._may_look():
                break
            found = self._resolve(name)
            # A loose ref takes precedence over a packed one, even if it is broken.
            refs.pop(name, None)
            if found is not None and len(refs) < _MOST_REFS:
                refs[name] = found
            elif found is not None:
                self._refuse(name.encode("utf-8", "surrogateescape"), "too many refs")
        return AgentRefs(
            head_ref=None if head is None else head.ref,
            head=at,
            refs={name: tip for name, tip in refs.items() if not name.startswith(_FETCHED)},
            fetched={name: tip for name, tip in refs.items() if name.startswith(_FETCHED)},
            stashes=self._load_stashes(),
            worktrees=self._load_worktrees(),
            refused=tuple(self._refused),
        )

    def _below(self, raw: bytes) -> InsidePath:
        return InsidePath(self._at.raw + b"/" + raw)

    def _refuse(self, what: bytes, why: str) -> None:
        if not self._is_over:
            shown = show(Untrusted(what), most=_SHOWN_CHARACTERS)
            self._refused.append(f"`{shown}`: {why}")
            if len(self._refused) >= _MOST_REFUSED:
                self._end()

    def _end(self) -> None:
        self._is_over = True
        self._refused.append("the remaining refs were not read")

    def _may_look(self, looks: int = 1) -> bool:
        """Whether this many more reads are within the limits."""
        if not self._is_over and not self._budget.spend(looks):
            self._end()
        return not self._is_over

    def _lines(self, content: bytes | None) -> Iterator[bytes]:
        """The lines within the limits, without empty ones, last first."""
        end = len(content or b"")
        while content is not None and end > 0 and self._may_look():
            for _ in range(_LINES_PER_LOOK):
                begin = content.rfind(b"\n", 0, end) + 1
                if begin < end:
                    yield content[begin:end]
                end = begin - 1
                if end <= 0:
                    return

    def _read(self, path: InsidePath, limit_bytes: int) -> bytes | None:
        """The content of a file; None if there is none or, reported, if it is unusable."""
        kind = self._reader.kind(path)
        if kind is None:
            return None
        content = self._reader.read(path, limit_bytes=limit_bytes) if kind == "file" else None
        if content is None:
            self._refuse(path.raw, f"a {kind} that cannot be read as a small file")
        self._budget.spend(len(content or b"") // _BYTES_PER_LOOK)
        return content

    def _names(self, directory: InsidePath) -> list[InsidePath]:
        if not self._may_look():
            return []
        try:
            return self._reader.names(directory)
        except StateError:
            self._refuse(directory.raw, "too many entries")
            return []

    def _load_packed(self) -> dict[RefName, ObjectId]:
        content = self._read(self._below(b"packed-refs"), _PACKED_BYTES)
        found: dict[RefName, ObjectId] = {}
        for line in self._lines(content):
            if line[:1] in (b"#", b"^"):
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
                found.setdefault(name, object_id)
        return found

    def _loose_names(self) -> list[RefName]:
        found: list[RefName] = []
        ahead = [self._below(b"refs")]
        while ahead and len(found) < _MOST_REFS:
            place = ahead.pop()
            for path in self._names(place):
                if not self._may_look():
                    return sorted(found)
                kind = self._reader.kind(path)
                name = find_ref_name(Untrusted(path.raw[len(self._at.raw) + 1 :]))
                if kind == "directory":
                    ahead.append(path)
                elif path.name.endswith(b".lock"):
                    # A lock file of a running or killed git: it holds no value yet.
                    continue
                elif kind != "file" or name is None:
                    self._refuse(path.raw, "not a ref")
                else:
                    found.append(name)
        if ahead:
            self._refuse(ahead[-1].raw, "too many refs")
        return sorted(found[:_MOST_REFS])

    def _resolve(self, name: RefName | None) -> ObjectId | None:
        """The object of a ref, through symbolic refs."""
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
        self._refuse((name or "").encode("utf-8", "surrogateescape"), "a cycle of symbolic refs")
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
        for line in self._lines(self._read(path, _LOG_BYTES)):
            fields = line.split(b" ", 2)
            object_id = _find_id(fields[1]) if len(fields) == 3 else None
            if object_id is not None and len(found) < _MOST_STASHES:
                found[object_id] = None
            else:
                self._refuse(path.raw, "has an invalid line, or too many")
        return tuple(found | dict.fromkeys(self._put_aside(self._at)))

    def _put_aside(self, git_directory: InsidePath) -> Iterator[ObjectId]:
        """Commits that an unfinished rebase, merge or the like has stashed or works on."""
        for raw in _IN_PROGRESS:
            content = self._read(InsidePath(git_directory.raw + b"/" + raw), _REF_BYTES)
            for line in (content or b"").split():
                object_id = _find_id(line)
                if object_id is not None:
                    yield object_id

    def _load_worktrees(self) -> tuple[ObjectId, ...]:
        places = self._names(self._below(b"worktrees"))
        if len(places) > _MOST_WORKTREES:
            self._refuse(b"worktrees", "too many worktrees")
        found: dict[ObjectId, None] = {}
        for place in places[:_MOST_WORKTREES]:
            if not self._may_look(1 + len(_IN_PROGRESS)):
                break
            head = self._load_target(place.child(b"HEAD"))
            at = None if head is None else head.object_id or self._resolve(head.ref)
            own = [at, *self._put_aside(place), *self._own_refs(place)]
            found |= {object_id: None for object_id in own if object_id is not None}
        return tuple(found)

    def _own_refs(self, worktree: InsidePath) -> Iterator[ObjectId | None]:
        """Refs that only a linked worktree has, such as those of a bisection."""
        ahead = [worktree.child(b"refs")]
        while ahead:
            for path in self._names(ahead.pop()):
                if not self._may_look():
                    return
                if self._reader.kind(path) == "directory":
                    ahead.append(path)
                elif (target := self._load_target(path)) is not None:
                    yield target.object_id or self._resolve(target.ref)


def _parse_target(content: bytes) -> _Target | None:
    """Parses a ref file as git does: a symbolic ref, or an object id and white space."""
    if content.startswith(b"ref:"):
        name = find_ref_name(Untrusted(content[4:].strip()))
        return None if name is None else _Target(name, None)
    words = content.split(None, 1)
    object_id = _find_id(words[0]) if words and content.startswith(words[0]) else None
    return None if object_id is None else _Target(None, object_id)


def _find_id(raw: bytes) -> ObjectId | None:
    found = find_object_id(Untrusted(raw))
    return None if found is None or not found.strip("0") else found
