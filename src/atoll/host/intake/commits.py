"""Commits that the host creates in a temporary store: compared, written, published to the owner."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from atoll.host.intake import quarantine
from atoll.host.intake.blob_filters import prepare_attributes
from atoll.host.intake.lfs_objects import LfsStore
from atoll.host.intake.quarantine import OwnerStore, lines_of
from atoll.host.intake.secret_scan import searched
from atoll.host.intake.store import IntakeRepository, personal_files
from atoll.host.intake.transfer import (
    LIMITS,
    ImportSize,
    Transfer,
    failure_of,
    require_ids,
)
from atoll.host.process import stream
from atoll.model.errors import StateError
from atoll.model.lfs import Pointer
from atoll.model.secretvalues import SecretSearch
from atoll.model.units import render_size
from atoll.model.untrusted import InsidePath, ObjectId, Untrusted, find_path

_DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--find-renames", "--abbrev")
_PACK = ("pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "-q")
_COPY_BYTES = 1 << 20
_CRUD = "".join(map(chr, range(33))) + ".,:;<>\"\\'"
"""Characters that git strips from both ends of a name; it refuses an empty result."""


_FALLBACK_NAME = "Atoll"
_FALLBACK_EMAIL = "atoll@localhost"


def diff(
    store: IntakeRepository,
    old_tree: str,
    new_tree: str,
    *,
    stat: bool,
    limit_bytes: int,
    paths: Collection[InsidePath] | None = None,
) -> bytes:
    """The output of `git diff` for two trees, by the attributes of the old one.

    `paths` are the differing ones, if the caller knows them.
    The output contains agent-controlled text: escape it before display. Raises StateError if it is
    larger than `limit_bytes`.
    """
    require_ids(old_tree, new_tree)
    store.flush()
    prepare_attributes(
        store, old_tree, _changed(store, old_tree, new_tree) if paths is None else paths
    )
    form = ("--stat",) if stat else ("--patch",)
    program = store.program(
        *personal_files(store.git_dir), "diff-tree", "-r", *form, *_DIFF, old_tree, new_tree, "--"
    )
    answer = bytearray()
    done = stream(program, answer.extend, limit_bytes=limit_bytes, timeout_s=600)
    if done.ended == "size":
        raise StateError(f"the difference is larger than {render_size(limit_bytes)}")
    if not done.is_good:
        raise failure_of(done.completed, "diff-tree", str(store.git_dir))
    return bytes(answer)


def _changed(store: IntakeRepository, old_tree: str, new_tree: str) -> list[InsidePath]:
    answer = store.run("diff-tree", "-r", "-z", "--name-only", "--no-renames", old_tree, new_tree)
    found = (find_path(Untrusted(raw)) for raw in answer.split(b"\0")[:-1])
    return [path for path in found if path is not None]


def commit(  # noqa: PLR0913, PLR0917 - what a commit is made of
    store: IntakeRepository,
    tree: str,
    parents: Sequence[str],
    message: bytes,
    author: tuple[str, str],
    committer: tuple[str, str],
    when: int,
) -> ObjectId:
    """Writes a commit in UTF-8, without an encoding header.

    Empty names and addresses are replaced by Atoll's; `when` is in seconds since 1970.
    """
    require_ids(tree, *parents)
    text = message.decode("utf-8", "replace").replace("\0", "\ufffd")
    lines = [f"tree {tree}", *(f"parent {parent}" for parent in dict.fromkeys(parents))]
    lines += [f"author {_person(author)} {when} +0000"]
    lines += [f"committer {_person(committer)} {when} +0000", "", text]
    content = "\n".join(lines).encode("utf-8", "replace")
    return store.objects.write_commit(ObjectId(tree), content)


def _person(person: tuple[str, str]) -> str:
    """A name and address as git writes them: nothing in them can end a line or field."""
    kept = ("".join(c for c in part if c not in "\0\n<>").strip(_CRUD) for part in person)
    name, email = kept
    return f"{name or _FALLBACK_NAME} <{email or _FALLBACK_EMAIL}>"


def publish(
    store: IntakeRepository,
    repository: str,
    commits: Sequence[ObjectId],
    *,
    known: Sequence[str] = (),
    search: SecretSearch | None = None,
) -> ImportSize:
    """Copies commits of the store into the owner's `repository`, with the checks of an import.

    `known` are commits that the owner has; what is new may not contain what `search` finds. Raises
    as `import_objects` does.
    """
    require_ids(*commits, *known)
    if not commits:
        return ImportSize(objects=0, size_bytes=0)
    owner = OwnerStore.open(repository)
    transfer = Transfer.start(commits, LIMITS, search=search, known=known)
    _publish_lfs_objects(store, repository, search)
    if not store.has_other_objects():
        return _publish_made(store, owner, transfer)
    store.flush()
    with quarantine.quarantined(owner) as (aside, pack):
        asked = lines_of([*commits, *(f"^{name}" for name in known)])
        done, incoming = transfer.receive(pack, store.program(*_PACK, stdin=asked))
        if done.code != 0:
            raise failure_of(done, "pack-objects", str(store.git_dir))
        brought = incoming.brought()
        if brought.objects:
            quarantine.index(aside, transfer, pack)
            quarantine.require_commits(aside, transfer)
            quarantine.accept_pack(owner, aside, transfer, pack, brought)
    return brought


def _publish_made(store: IntakeRepository, owner: OwnerStore, transfer: Transfer) -> ImportSize:
    """Publishes the pack of objects written to the store, which is all that the commits need
    besides what the owner has.
    """
    made = store.objects.take_pack()
    if made is None:
        return ImportSize(objects=0, size_bytes=0)
    if made.objects > transfer.limits.objects:
        raise transfer.too_many()
    if made.size_bytes > transfer.limits.size_bytes:
        raise transfer.too_large()
    brought = ImportSize(made.objects, made.size_bytes)
    with quarantine.quarantined(owner) as (aside, _):
        quarantine.accept_own_pack(aside, transfer, made.file, made.names, brought)
    return brought


def _publish_lfs_objects(
    store: IntakeRepository, repository: str, search: SecretSearch | None
) -> None:
    """Copies the contents of Git LFS files to the owner's LFS store."""
    place = store.large_files
    if not place.is_dir():
        return
    target = LfsStore.of(repository, store.settings.lfs_storage)
    for source in sorted(place.iterdir()):
        pointer = Pointer(source.name, source.stat().st_size)
        if not target.has(pointer) and not target.take(
            pointer, searched(_pieces(source), search, pointer.oid)
        ):
            raise StateError(f"the Git LFS object `{pointer.oid}` changed while it was copied")


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_COPY_BYTES):
            yield piece
