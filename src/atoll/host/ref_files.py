"""Reads and writes refs of the owner's repository through git's files, without running git.

Only the plain files backend is handled here. For anything else (another ref storage, the HEAD of a
linked worktree, a file that cannot be parsed) `UnusualError` is raised, and the caller runs git.
Only the owner can write these files, no capsule can.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from atoll.host import files

_HEX = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64})\s*\Z")
_SYMBOLIC = re.compile(rb"ref: (refs/[^\0\n]+)\n?\Z")
_PACKED = re.compile(
    rb"^([0-9a-f]{40}|[0-9a-f]{64}) (refs/[^\n]+)(?:\n\^([0-9a-f]+))?$", re.MULTILINE
)
_REF_BYTES = 4096
_PACKED_BYTES = 64 << 20
_MOST_LINKS = 5
_MOST_REFS = 2_000


class UnusualError(Exception):
    """The files are not conclusive: run git."""


class RepackedError(UnusualError):
    """A ref was deleted while `packed-refs` was rewritten: it may reappear there."""


def find_ref(repository: str, ref: str) -> str | None:
    """The object of a full ref name, or None if there is no such ref."""
    _require_plain(repository)
    return _find(repository, os.fsencode(ref), _MOST_LINKS)


def find_head(checkout: str, repository: str) -> str | None:
    """The commit of a checkout's HEAD; None on an unborn branch."""
    _require_plain(repository)
    own = os.path.join(checkout, ".git")
    if os.path.islink(own) or not os.path.isdir(own) or os.path.realpath(own) != repository:
        raise UnusualError
    return _find(repository, b"HEAD", _MOST_LINKS)


def values(repository: str, *, below: tuple[str, ...], without: str | None) -> Iterator[str]:
    """The objects of refs below these prefixes, and the targets of annotated tags if recorded.
    Raises UnusualError if there are too many.
    """
    _require_plain(repository)
    for prefix in below:
        yield from _loose(repository, prefix, without, [_MOST_REFS])
    prefixes = tuple(os.fsencode(prefix) for prefix in below)
    packed = _read(repository, b"packed-refs", _PACKED_BYTES) or b""
    excluded = None if without is None else os.fsencode(without)
    for entry in _PACKED.finditer(packed):
        if not entry[2].startswith(prefixes) or entry[2] == excluded:
            continue
        # A loose ref of the same name takes precedence.
        if not os.path.lexists(os.path.join(repository, os.fsdecode(entry[2]))):
            yield (entry[3] or entry[1]).decode()


def create_ref(repository: str, ref: str, commit: str) -> None:
    """Creates a ref below `refs/atoll/`, which only Atoll writes, durably. Raises UnusualError if
    that takes more than a new file: git has to decide.
    """
    path = Path(repository, ref)
    if not ref.startswith("refs/atoll/") or find_ref(repository, ref) is not None:
        raise UnusualError
    # A shared repository needs group permissions: leave it to git.
    if os.stat(Path(repository, "refs")).st_mode & 0o022:
        raise UnusualError
    lock = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UnusualError from error
    try:
        with open(handle, "wb") as stream:
            stream.write(f"{commit}\n".encode())
            stream.flush()
            os.fsync(handle)
        os.rename(lock, path)
    except BaseException:
        lock.unlink(missing_ok=True)
        raise
    # Each directory may be new, and its entry is in its parent.
    for place in (path.parent, *path.parent.parents):
        files.sync_directory(place)
        if place.name == "refs":
            break


def delete_ref(repository: str, ref: str, *, old: str | None = None) -> None:
    """Deletes a loose ref and its reflog. Raises UnusualError if it is not only loose, or is not at
    `old` if given, and RepackedError if it is deleted but a `git pack-refs` may have read it
    before.

    Git copies refs into `packed-refs` under `packed-refs.lock` and without the refs' locks. That
    lock is not taken here: one left by a killed Atoll would look like one of a running git and
    block every git that deletes or packs refs. A git that may have read the ref before its
    deletion still holds the lock afterwards, or has changed `packed-refs`.
    """
    _require_plain(repository)
    path, log = Path(repository, ref), Path(repository, "logs", ref)
    lock = path.with_name(f"{path.name}.lock")
    try:
        os.close(os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    except OSError as error:
        raise UnusualError from error
    try:
        packed = _settled_pack(repository)
        value = _HEX.match(_read(repository, os.fsencode(ref), _REF_BYTES) or b"")
        if value is None or b" %s\n" % os.fsencode(ref) in packed:
            raise UnusualError
        if old is not None and value[1].decode() != old:
            raise UnusualError
        path.unlink()
        log.unlink(missing_ok=True)
        _require_same_pack(repository, packed)
    finally:
        lock.unlink(missing_ok=True)
    files.sync_directory(path.parent)


def _settled_pack(repository: str) -> bytes:
    """The packed refs. Raises UnusualError while they are being rewritten."""
    if os.path.lexists(os.path.join(repository, "packed-refs.lock")):
        raise UnusualError
    return _read(repository, b"packed-refs", _PACKED_BYTES) or b""


def _require_same_pack(repository: str, packed: bytes) -> None:
    try:
        is_same = _settled_pack(repository) == packed
    except UnusualError as error:
        raise RepackedError from error
    if not is_same:
        raise RepackedError


def is_checked_out(repository: str, ref: str) -> bool:
    """Whether the repository's only checkout is on a branch."""
    _require_plain(repository)
    if os.path.lexists(os.path.join(repository, "worktrees")):
        raise UnusualError
    head = _SYMBOLIC.match(_read(repository, b"HEAD", _REF_BYTES) or b"")
    return head is not None and head[1] == os.fsencode(ref)


def _require_plain(repository: str) -> None:
    if (
        not os.path.isfile(os.path.join(repository, "HEAD"))
        or not os.path.isdir(os.path.join(repository, "refs"))
        or os.path.lexists(os.path.join(repository, "reftable"))
    ):
        raise UnusualError


def _find(repository: str, ref: bytes, links: int) -> str | None:
    if links == 0 or b".." in ref:
        raise UnusualError
    content = _read(repository, ref, _REF_BYTES)
    if content is None:
        packed = _read(repository, b"packed-refs", _PACKED_BYTES) or b""
        found = re.search(rb"^([0-9a-f]+) %s$" % re.escape(ref), packed, re.MULTILINE)
        return None if found is None else found[1].decode()
    if value := _HEX.match(content):
        return value[1].decode()
    target = _SYMBOLIC.match(content)
    if target is None:
        raise UnusualError
    return _find(repository, target[1], links - 1)


def _read(repository: str, name: bytes, limit_bytes: int) -> bytes | None:
    """None if there is no such file."""
    try:
        with open(os.path.join(os.fsencode(repository), name), "rb") as stream:
            content = stream.read(limit_bytes + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise UnusualError from error
    if len(content) > limit_bytes:
        raise UnusualError
    return content


def _loose(repository: str, prefix: str, without: str | None, left: list[int]) -> Iterator[str]:
    place = os.path.join(repository, prefix)
    for directory, _, names in os.walk(place):
        for name in names:
            left[0] -= 1
            if left[0] < 0:
                raise UnusualError
            ref = os.path.relpath(os.path.join(directory, name), repository)
            if ref == without or name.endswith(".lock"):
                continue
            value = _find(repository, os.fsencode(ref), _MOST_LINKS)
            if value is not None:
                yield value
