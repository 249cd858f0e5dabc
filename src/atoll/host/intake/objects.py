"""Imports commits from an agent's repository into the owner's, without asking the agent's git.

Objects are read as files. Loose ones are verified here; packs are copied and indexed anew in a
first quarantine. Indexes, bitmaps, alternates, replacements, grafts, shallow lists and commit
graphs of the agent are never looked at. What the tips need is then packed from that clean store and
passes the strict check of `atoll.host.quarantine` on its way to the owner.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from atoll.host import quarantine
from atoll.host.beneath import TreeReader
from atoll.host.intake.loose import LooseObjects, algorithm_of, copy_reachable
from atoll.host.intake.pack_writer import PackWriter
from atoll.host.intake.refs import GIT_DIRECTORY
from atoll.host.process import Completed
from atoll.host.quarantine import OwnerStore, lines_of
from atoll.host.transfer import (
    LIMITS,
    Brought,
    IncompleteError,
    Limits,
    Transfer,
    failure_of,
    require_ids,
    said_by,
    writing,
)
from atoll.model.errors import StateError
from atoll.model.untrusted import InsidePath, ObjectId

_HEADER = struct.Struct(">4sII")
_PLAIN_INDEX = ("git", "index-pack", "--stdin", "--index-version=2")
"""Not strict: faults of an object that no tip needs do not matter. The second step is strict."""
_PACK = (
    "git", "-c", "pack.threads=1", "-c", "pack.windowMemory=256m", "-c", "pack.useBitmaps=false",
    "pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "-q",
)  # fmt: skip
_MOST_PACKS = 1_000
_MOST_TAGS = 8
_CHUNK_BYTES = 1 << 20


class Imported(NamedTuple):
    """What came: both numbers are 0 when the owner had everything."""

    objects: int
    size_bytes: int
    commits: dict[ObjectId, ObjectId]
    """The commit that each tip stands for: itself, or what a tag names."""


def import_objects(  # noqa: PLR0913 - two repositories, and what may pass between them
    reader: TreeReader,
    repository: str,
    tips: Sequence[ObjectId],
    *,
    known: Sequence[str] = (),
    limits: Limits = LIMITS,
    at: InsidePath = GIT_DIRECTORY,
    keep_fds: Sequence[int] = (),
    commits_only: bool = False,
    history: Path | None = None,
) -> Imported:
    """Brings the commits `tips` and all that they need into the owner's `repository`.

    `known` are commits that the owner has and below which nothing has to be looked for. Tags are
    peeled. A tip that stands for anything but a commit is refused, or left out if `commits_only`.
    `keep_fds` stay open in every git that is started.

    `history` is the object directory that the agent can read, where that is not all of the
    owner's. What the tips need has to be there or in the agent's own repository: nothing becomes
    part of the agent's work because the owner happens to have it.

    Raises ValueError for what is no object id; StateError for objects that are broken, malicious,
    incomplete (IncompleteError) or over a limit; DriverError when a git or the disk fails;
    PrerequisiteError when there is no git. In all cases nothing was taken, or at most, when the
    disk fails half-way, single objects that nothing refers to.
    """
    require_ids(*tips, *known)
    if not tips:
        return Imported(0, 0, {})
    store = OwnerStore.open(repository, keep_fds)
    transfer = Transfer.start(list(dict.fromkeys(tips)), limits)
    return _Import(reader, at, store, transfer, commits_only, history).run(known)


class _Import:
    def __init__(
        self,
        reader: TreeReader,
        at: InsidePath,
        store: OwnerStore,
        transfer: Transfer,
        commits_only: bool,  # noqa: FBT001 - one caller
        history: Path | None,
    ) -> None:
        self._reader, self._at, self._store = reader, at, store
        # What the agent may build on: `info` is a directory without objects.
        self._visible = (
            store if history is None else store._replace(objects=history, target=history / "info")
        )
        self._transfer, self._commits_only = transfer, commits_only
        self._tips = [ObjectId(tip) for tip in transfer.tips]
        self._algorithm = algorithm_of(transfer.tips[0])
        self._loose = LooseObjects(reader, at, transfer)
        self._known: list[ObjectId] = []
        self._is_too_large = False

    def run(self, known: Sequence[str]) -> Imported:
        peeled = self._store.peeled((*self._tips, *known))
        self._known = [ObjectId(name) for name in known if peeled[name] == (name, "commit")]
        seen = peeled if self._visible is self._store else self._visible.peeled(self._tips)
        found = {tip: seen[tip] for tip in self._tips if seen[tip][1] != "missing"}
        found |= {tip: peeled[tip] for tip in self._tips if tip in self._known}
        had = set(found)
        found |= self._peel_loose([tip for tip in self._tips if tip not in found])
        commits = self._commits(found)
        has_packs = bool(self._packs())
        if len(found) < len(self._tips) and not has_packs:
            raise self._transfer.no_commit(self._first_without(found), "missing")
        if len(found) == len(self._tips):
            transfer = self._transfer._replace(tips=tuple(commits.values()))
            if not commits or (had >= set(commits) and self._store.walk(transfer).is_good):
                return Imported(0, 0, commits)
            try:
                return Imported(*self._from_loose(transfer), commits)
            except IncompleteError:
                if not has_packs:
                    raise
        return self._from_packs()

    def _first_without(self, found: dict[ObjectId, tuple[str, str]]) -> ObjectId:
        return next(tip for tip in self._tips if tip not in found)

    def _commits(self, found: dict[ObjectId, tuple[str, str]]) -> dict[ObjectId, ObjectId]:
        """The commits that tips stand for. Raises StateError for one that is none."""
        commits = {}
        for tip, (name, kind) in found.items():
            if kind == "commit":
                commits[tip] = ObjectId(name)
            elif not self._commits_only:
                raise self._transfer.no_commit(tip, kind)
        return commits

    def _peel_loose(self, tips: list[ObjectId]) -> dict[ObjectId, tuple[str, str]]:
        """(object, kind) for those tips that are loose, and tags of what the owner has."""
        found: dict[ObjectId, tuple[str, str]] = {}
        elsewhere: dict[ObjectId, ObjectId] = {}
        for tip in tips:
            name: ObjectId = tip
            for _ in range(_MOST_TAGS):
                loaded = self._loose.load(name)
                if loaded is None:
                    elsewhere[tip] = name
                    break
                if loaded.kind != "tag" or not loaded.links:
                    found[tip] = (name, loaded.kind)
                    break
                name = loaded.links[0]
        tagged = {tip: name for tip, name in elsewhere.items() if tip != name}
        peeled = self._visible.peeled(list(tagged.values())) if tagged else {}
        hits = {tip: peeled[name] for tip, name in tagged.items()}
        return found | {tip: hit for tip, hit in hits.items() if hit[1] != "missing"}

    # What the tips need is loose.

    def _from_loose(self, transfer: Transfer) -> Brought:
        with quarantine.quarantined(self._store) as (aside, pack):
            tips = [ObjectId(tip) for tip in transfer.tips]
            writer, _, absent = self._copy_loose(pack, tips)
            if not writer.objects:
                raise transfer.incomplete("an object that the owner lacks is not there")
            self._require_visible(absent)
            brought = Brought(writer.objects, writer.size_bytes)
            quarantine.index(aside, transfer, pack)
            quarantine.take_over(self._store, aside, transfer, pack, brought)
        return brought

    def _copy_loose(
        self, pack: FileIO, tips: Sequence[ObjectId]
    ) -> tuple[PackWriter, set[ObjectId], set[ObjectId]]:
        """Writes a pack of the loose objects that tips lead to; also returns all that were looked
        for, and those of them that are not loose.
        """
        writer = self._writer(pack)
        most = 2 * self._transfer.limits.objects
        seen, absent = copy_reachable(self._loose, writer, tips, without=self._known, most=most)
        if len(seen) > most:
            raise self._transfer.too_many()
        writer.finish()
        return writer, seen, absent

    def _require_visible(self, names: set[ObjectId]) -> None:
        """Raises IncompleteError for objects that are neither the agent's nor shown to it."""
        if self._visible is self._store or not names:
            return
        kinds = self._visible.kinds(sorted(names))
        if any(kind == "missing" for kind in kinds.values()):
            raise self._transfer.incomplete("it refers to objects that the capsule does not have")

    def _writer(self, pack: FileIO) -> PackWriter:
        _empty(pack)
        return PackWriter(pack, self._transfer, algorithm=self._algorithm)

    # Some of it is in packs.

    def _from_packs(self) -> Imported:
        with quarantine.quarantined(self._store) as (aside, pack):
            first = aside._replace(target=aside.target / "first", objects=self._visible.objects)
            with writing():
                first.target.mkdir(mode=0o700)
            self._index_packs(first, pack)
            writer, seen, _ = self._copy_loose(pack, self._tips)
            self._index(first, pack, writer)
            try:
                commits, brought = self._pack(first, pack)
            except IncompleteError:
                self._index_other_loose(first, pack, seen)
                commits, brought = self._pack(first, pack)
            transfer = self._transfer._replace(tips=tuple(commits.values()))
            # A tip at or below a known commit needs no object, but the owner may have lost one.
            if brought.objects:
                quarantine.index(aside, transfer, pack)
                quarantine.require_commits(aside, transfer)
                quarantine.take_over(self._store, aside, transfer, pack, brought)
            elif not (done := self._store.walk(transfer)).is_good:
                quarantine.require_host(done, "rev-list", self._store.repository)
                raise transfer.incomplete(said_by(done.completed))
        return Imported(*brought, commits)

    def _packs(self) -> list[InsidePath]:
        names = self._reader.names(self._at.child(b"objects").child(b"pack"))
        return [path for path in names if path.name.endswith(b".pack")]

    def _index_packs(self, first: OwnerStore, pack: FileIO) -> None:
        """Copies and indexes all packs that are sound and within the limits, small ones first."""
        packs = self._packs()
        self._is_too_large = len(packs) > _MOST_PACKS
        left_bytes = self._transfer.limits.size_bytes
        left_objects = self._transfer.limits.objects
        sized = [(self._size(path), path) for path in packs[:_MOST_PACKS]]
        for size, path in sorted(sized):
            self._transfer.require_in_time()
            if size > left_bytes:
                self._is_too_large = True
                break
            copied = self._copy_pack(path, pack, left_bytes)
            objects = 0 if copied is None else copied.objects
            if copied is None or objects > left_objects:
                self._is_too_large |= objects > left_objects
                continue
            left_bytes -= copied.size_bytes
            left_objects -= objects
            done = first.read(_PLAIN_INDEX, self._transfer, pack)
            if not done.is_good:
                quarantine.require_host(done, "index-pack", first.repository)

    def _size(self, path: InsidePath) -> int:
        handle = self._reader.find_file(path)
        if handle is None:
            return 0
        try:
            return os.fstat(handle).st_size
        finally:
            os.close(handle)

    def _copy_pack(self, path: InsidePath, pack: FileIO, left_bytes: int) -> Brought | None:
        """None for what cannot be read or is no pack."""
        handle = self._reader.find_file(path)
        if handle is None:
            return None
        _empty(pack)
        copied = 0
        head = b""
        with open(handle, "rb", buffering=0) as file:
            while piece := _read(file):
                copied += len(piece)
                # It grows while it is read.
                if copied > left_bytes:
                    return None
                head += piece[: _HEADER.size - len(head)]
                _write(pack, piece)
        if len(head) < _HEADER.size or not head.startswith(b"PACK"):
            return None
        return Brought(objects=_HEADER.unpack(head)[2], size_bytes=copied)

    def _index(self, first: OwnerStore, pack: FileIO, writer: PackWriter) -> None:
        if writer.objects:
            done = first.read(_PLAIN_INDEX, self._transfer, pack)
            if not done.is_good:
                raise failure_of(done.completed, "index-pack", first.repository)

    def _index_other_loose(self, first: OwnerStore, pack: FileIO, seen: set[ObjectId]) -> None:
        writer = self._writer(pack)
        width = len(self._tips[0])
        for name in self._loose.names():
            if name not in seen and len(name) == width:
                self._loose.copy(name, writer)
        writer.finish()
        self._index(first, pack, writer)

    def _pack(self, first: OwnerStore, pack: FileIO) -> tuple[dict[ObjectId, ObjectId], Brought]:
        """Packs what the tips need. Raises IncompleteError when the first store lacks something."""
        peeled = first.peeled(self._tips)
        for tip in self._tips:
            if peeled[tip][1] == "missing":
                raise self._too_large_or(self._transfer.no_commit(tip, "missing"))
        commits = self._commits({tip: peeled[tip] for tip in self._tips})
        # A known commit that the agent was not shown may be in its own packs, or not at all.
        shared = first.kinds(self._known) if self._known else {}
        known = [name for name in self._known if shared[name] == "commit"]
        asked = lines_of([*commits.values(), *(f"^{commit}" for commit in known)])
        _empty(pack)
        program = first.program(_PACK, self._transfer, asked)
        done, incoming = self._transfer.receive(pack, program)
        if done.code != 0:
            raise self._failure(done)
        return commits, incoming.brought()

    def _failure(self, done: Completed) -> Exception:
        if done.code < 0 or quarantine.is_fault_of_host(said_by(done)):
            return failure_of(done, "pack-objects", self._store.repository)
        return self._too_large_or(self._transfer.incomplete(said_by(done)))

    def _too_large_or(self, error: StateError) -> StateError:
        """What is missing may be in a pack that was left out."""
        if not self._is_too_large:
            return error
        large = self._transfer.too_large()
        return IncompleteError(large.message, hint=large.hint)


def _empty(file: FileIO) -> None:
    with writing():
        file.seek(0)
        file.truncate()


def _read(file: FileIO) -> bytes:
    try:
        return file.read(_CHUNK_BYTES)
    except OSError:
        return b""


def _write(file: FileIO, piece: bytes) -> None:
    with writing():
        while piece:
            piece = piece[file.write(piece) :]
