"""Git LFS objects for capsules: those that the commits of a history store need, and no others.

They are beside the store's git objects, as hard links to the owner's:

    ROOT/history/hID/lfs/objects/AA/BB/OID

A view mounts them read-only where git-lfs looks for the objects of an alternate, so that files can
be checked out in the capsule without a network and without a copy of the owner's LFS store.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from atoll.drivers.layers.packs import CONSTANT
from atoll.host import git, programs
from atoll.host.intake.lfs_objects import SMALLEST_POINTER_BYTES, LfsStore, parse_batch
from atoll.model.lfs import POINTER_BYTES, WITHOUT_LFS, Pointer, parse_pointer

_OFFLINE = ("-c", "lfs.url=none:", "-c", "lfs.skipDownloadErrors=true")
"""A commit may come from a capsule, and its `.lfsconfig` could name any server. Objects that the
owner's store lacks stay pointers."""
FILTER = (
    ("filter.lfs.process", "git-lfs filter-process"), ("filter.lfs.smudge", "git-lfs smudge -- %f"),
    ("filter.lfs.clean", "git-lfs clean -- %f"), ("filter.lfs.required", "true"),
)  # fmt: skip
"""The settings of `git lfs install`."""
_PORTION = 50_000
_COPIED_BYTES = 1 << 30
"""The limit for copies where linking is not possible; further objects are left out."""
_FOR_OTHERS = stat.S_IROTH


def owner_store(repository: str, keep_fds: Sequence[int] = ()) -> LfsStore:
    chosen = git.setting("lfs.storage", cwd=repository, keep_fds=keep_fds)
    return LfsStore.of(repository, chosen)


def build_options(repository: str, keep_fds: Sequence[int] = ()) -> tuple[str, ...]:
    """Git options for checking out a commit into a layer: git-lfs reads the owner's store, writes
    nothing to layers and uses no network. Without git-lfs, files stay pointers. No other filter of
    the owner's runs on files of a repository that is not trusted.
    """
    if programs.find_program("git-lfs") is None:
        return pointer_options(repository, keep_fds)
    storage = os.path.realpath(owner_store(repository, keep_fds).objects.parent)
    safe = git.untrusted_options(repository, keep_fds)
    return (*safe, "-c", f"lfs.storage={storage}", *_OFFLINE)


def pointer_options(repository: str, keep_fds: Sequence[int] = ()) -> tuple[str, ...]:
    """The same with which all Git LFS files stay pointers."""
    return (*git.untrusted_options(repository, keep_fds), *WITHOUT_LFS)


def filter_options() -> tuple[str, ...]:
    """Git options for checking out a commit without the owner's settings: git-lfs is the only
    filter, and uses no network.
    """
    return (*(word for key, value in FILTER for word in ("-c", f"{key}={value}")), *_OFFLINE)


def is_at_fault(output: str) -> bool:
    """Whether git failed because git-lfs did, as it does on a pointer with an absurd size."""
    return "git-lfs" in output or "filter 'lfs'" in output or "filter lfs failed" in output


def link_objects(repository: str, commits: Sequence[str], target: Path) -> None:
    """Fills `target/objects` with the objects that these commits and their parents refer to: one
    parent of a recovery point is the index.
    """
    source = owner_store(repository)
    if not source.objects.is_dir():
        return
    left_bytes = _COPIED_BYTES
    for pointer in sorted(set(_pointers(repository, commits)), key=lambda p: p.size_bytes):
        if not source.has(pointer):
            continue
        place = target / "objects" / pointer.place
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        if _link(source.path_of(pointer), place):
            continue
        if pointer.size_bytes <= left_bytes:
            left_bytes -= pointer.size_bytes
            _copy(source.path_of(pointer), place)


def _link(source: Path, target: Path) -> bool:
    """Returns False if linking is not possible, or if the sandbox user of a root owner could not
    read the link.
    """
    real = Path(os.path.realpath(source))
    if os.geteuid() == 0 and not real.stat().st_mode & _FOR_OTHERS:
        return False
    try:
        os.link(real, target)
    except OSError:
        return False
    return True


def _copy(source: Path, target: Path) -> None:
    import shutil  # noqa: PLC0415 - only where links are not possible

    shutil.copyfile(source, target)
    target.chmod(0o444)


def _pointers(repository: str, commits: Sequence[str]) -> Iterator[Pointer]:
    """The LFS pointers in the trees of commits."""
    names: dict[str, None] = {}
    parents = git.git(
        "rev-parse", *(f"{commit}^@" for commit in commits), cwd=repository, env=CONSTANT
    )
    for commit in dict.fromkeys([*commits, *parents.lines]):
        listed = git.git(
            "ls-tree", "-r", "-z", "--long", "--full-tree", commit, cwd=repository, env=CONSTANT
        )
        for entry in listed.text.split("\0"):
            words = entry.partition("\t")[0].split()
            # mode, kind, id, size
            if len(words) == 4 and words[1] == "blob" and _may_point(words[3]):
                names[words[2]] = None
    asked = list(names)
    for start in range(0, len(asked), _PORTION):
        given = "".join(f"{name}\n" for name in asked[start : start + _PORTION])
        answer = git.git(
            "cat-file", "--buffer", "--batch", cwd=repository, env=CONSTANT, stdin=given.encode()
        ).stdout
        for _, content in parse_batch(answer):
            if (pointer := parse_pointer(content)) is not None:
                yield pointer


def _may_point(size: str) -> bool:
    return size.isdigit() and SMALLEST_POINTER_BYTES <= int(size) < POINTER_BYTES
