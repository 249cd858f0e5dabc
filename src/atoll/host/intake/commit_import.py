"""Imports commits from an agent's repository into the owner's, without running the agent's git.

Objects are read as files. Loose ones are verified here; packs are copied and indexed again in a
first quarantine. Indexes, bitmaps, alternates, replacements, grafts, shallow lists and commit
graphs of the agent are never read. What the tips need is then packed from that clean store and
passes the strict check of `atoll.host.intake.quarantine` on its way to the owner.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from atoll.host.beneath import TreeReader
from atoll.host.intake import quarantine, secret_scan
from atoll.host.intake.loose_objects import LooseObjects, algorithm_of, copy_reachable
from atoll.host.intake.pack_writer import PackWriter
from atoll.host.intake.quarantine import OwnerStore, lines_of
from atoll.host.intake.refs import GIT_DIRECTORY
from atoll.host.intake.transfer import (
    LIMITS,
    ImportSize,
    IncompleteError,
    Transfer,
    TransferLimits,
    error_output,
    failure_of,
    require_ids,
    writing,
)
from atoll.host.process import Completed
from atoll.model.errors import StateError
from atoll.model.secretvalues import SecretSearch
from atoll.model.untrusted import InsidePath, ObjectId

_HEADER = struct.Struct(">4sII")
_PLAIN_INDEX = ("git", "index-pack", "--stdin", "--index-version=2")
"""Not strict: faulty objects that no tip needs do not matter. The second step is strict."""
_PACK = (
    "git", "-c", "pack.threads=1", "-c", "pack.windowMemory=256m", "-c", "pack.useBitmaps=false",
    "pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "-q",
)  # fmt: skip
_MOST_PACKS = 1_000
_MOST_TAGS = 8
_CHUNK_BYTES = 1 << 20


class Imported(NamedTuple):
    """The result of an import: both numbers are 0 if the owner had everything."""

    objects: int
    size_bytes: int
    commits: dict[ObjectId, ObjectId]
    """The commit of each tip: itself, or the target of a tag."""


def import_objects(  # noqa: PLR0913 - two repositories, and what may pass between them
    reader: TreeReader,
    repository: str,
    tips: Sequence[ObjectId],
    *,
    known: Sequence[str] = (),
    limits: TransferLimits = LIMITS,
    at: InsidePath = GIT_DIRECTORY,
    commits_only: bool = False,
    history: Path | None = None,
    search: SecretSearch | None = None,
) -> Imported:
    """Imports the commits `tips` and everything they need into the owner's `repository`.

    `known` are commits of the owner, below which nothing has to be searched. Tags are peeled. A
    tip that is no commit is refused, or left out if `commits_only`.

    `history` is the object directory that the agent can read, if that is not all of the owner's.
    What the tips need must be there or in the agent's own repository: objects do not become part
    of the agent's work because the owner happens to have them.

    What the tips add to `known` and to the owner's branches may not contain what `search` finds.

    Raises ValueError for invalid object ids; StateError for objects that are broken, malicious,
    secret, incomplete (IncompleteError) or over a limit; DriverError if a git or the disk fails;
    PrerequisiteError if git is missing. In all cases nothing was imported or, if the disk failed
    half-way, at most single unreferenced objects.
    """
    require_ids(*tips, *known)
    if not tips:
        return Imported(0, 0, {})
    store = OwnerStore.open(repository)
    transfer = Transfer.start(list(dict.fromkeys(tips)), limits, search=search, known=known)
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
        # The objects that the agent may build on: `info` is a directory without objects.
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
                secret_scan.require_clean(self._store.program, transfer)
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
        """The commits of the tips. Raises StateError for a tip that is none."""
        commits = {}
        for tip, (name, kind) in found.items():
            if kind == "commit":
                commits[tip] = ObjectId(name)
            elif not self._commits_only:
                raise self._transfer.no_commit(tip, kind)
        return commits

    def _peel_loose(self, tips: list[ObjectId]) -> dict[ObjectId, tuple[str, str]]:
        """(object, type) of the tips that are loose, or tags of objects that the owner has."""
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

    # Everything that the tips need is loose.

    def _from_loose(self, transfer: Transfer) -> ImportSize:
        with quarantine.quarantined(self._store) as (aside, pack):
            tips = [ObjectId(tip) for tip in transfer.tips]
            writer, _, absent = self._copy_loose(pack, tips)
            if not writer.objects:
                raise transfer.incomplete("it lacks an object that the owner does not have")
            self._require_visible(absent)
            brought = ImportSize(writer.objects, writer.size_bytes)
            quarantine.index(aside, transfer, pack)
            quarantine.accept_pack(self._store, aside, transfer, pack, brought)
        return brought

    def _copy_loose(
        self, pack: FileIO, tips: Sequence[ObjectId]
    ) -> tuple[PackWriter, set[ObjectId], set[ObjectId]]:
        """Writes a pack of the loose objects reachable from the tips; also returns all objects
        searched for, and those that are not loose.
        """
        writer = self._writer(pack)
        most = 2 * self._transfer.limits.objects
        seen, absent = copy_reachable(self._loose, writer, tips, without=self._known, most=most)
        if len(seen) > most:
            raise self._transfer.too_many()
        writer.finish()
        return writer, seen, absent

    def _require_visible(self, names: set[ObjectId]) -> None:
        """Raises IncompleteError for objects that are neither the agent's nor visible to it."""
        if self._visible is self._store or not names:
            return
        kinds = self._visible.kinds(sorted(names))
        if any(kind == "missing" for kind in kinds.values()):
            raise self._transfer.incomplete("it refers to objects that the capsule does not have")

    def _writer(self, pack: FileIO) -> PackWriter:
        _empty(pack)
        return PackWriter(pack, self._transfer, algorithm=self._algorithm)

    # Some objects are in packs.

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
            # A tip at or below a known commit needs no object, but the owner may lack one.
            if brought.objects:
                quarantine.index(aside, transfer, pack)
                quarantine.require_commits(aside, transfer)
                quarantine.accept_pack(self._store, aside, transfer, pack, brought)
            elif not (done := self._store.walk(transfer)).is_good:
                quarantine.require_host(done, "rev-list", self._store.repository)
                raise transfer.incomplete(error_output(done.completed))
            else:
                secret_scan.require_clean(self._store.program, transfer)
        return Imported(*brought, commits)

    def _packs(self) -> list[InsidePath]:
        names = self._reader.names(self._at.child(b"objects").child(b"pack"))
        return [path for path in names if path.name.endswith(b".pack")]

    def _index_packs(self, first: OwnerStore, pack: FileIO) -> None:
        """Copies and indexes all valid packs within the limits, small ones first."""
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

    def _copy_pack(self, path: InsidePath, pack: FileIO, left_bytes: int) -> ImportSize | None:
        """Returns None for an unreadable file or one that is no pack."""
        handle = self._reader.find_file(path)
        if handle is None:
            return None
        _empty(pack)
        copied = 0
        head = b""
        with open(handle, "rb", buffering=0) as file:
            while piece := _read(file):
                copied += len(piece)
                # It grows while it is being read.
                if copied > left_bytes:
                    return None
                head += piece[: _HEADER.size - len(head)]
                _write(pack, piece)
        if len(head) < _HEADER.size or not head.startswith(b"PACK"):
            return None
        return ImportSize(objects=_HEADER.unpack(head)[2], size_bytes=copied)

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

    def _pack(self, first: OwnerStore, pack: FileIO) -> tuple[dict[ObjectId, ObjectId], ImportSize]:
        """Packs what the tips need. Raises IncompleteError if the first store lacks something."""
        peeled = first.peeled(self._tips)
        for tip in self._tips:
            if peeled[tip][1] == "missing":
                raise self._too_large_or(self._transfer.no_commit(tip, "missing"))
        commits = self._commits({tip: peeled[tip] for tip in self._tips})
        # A known commit that the agent could not see may be in its own packs, or missing.
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
        if done.code < 0 or quarantine.is_fault_of_host(error_output(done)):
            return failure_of(done, "pack-objects", self._store.repository)
        return self._too_large_or(self._transfer.incomplete(error_output(done)))

    def _too_large_or(self, error: StateError) -> StateError:
        """The missing object may be in a pack that was left out."""
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
