"""Git through one door: machine formats only, no hook, no prompt, no option that can be injected.

Questions about an owner's repository are asked here on the host. Questions about a workspace pass
an Enclosure, so that they are asked with what the capsule may know and not with the owner's
environment.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from atoll.host import discovery, files, ref_files
from atoll.host.process import Completed, failure, run, wait_until
from atoll.model.errors import StateError
from atoll.model.names import printable
from atoll.model.plan import Enclosure

_SAFE = (
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "gc.auto=0",
    "-c",
    "advice.detachedHead=false",
)
DURABLE = ("-c", "core.fsync=all", "-c", "core.fsyncMethod=fsync")
"""Before a verb: what it writes is on disk when it returns. By itself git would not wait."""
_ABSENT = 128
_HALF_MADE = b"/commondir: "
"""Git gives up when it meets the record of a worktree that another git is making right now."""
_HALF_MADE_S = 2.0
_STALE_S = 2.0
_QUOTED = re.compile(rb'"((?:[^"\\]|\\[0-3][0-7]{2}|\\[abfnrtv\\"])*)"')
_LINE = re.compile(rb"[^\n]*")
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2}|.)")
_ESCAPED = {
    b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
}  # fmt: skip


class Checkout(NamedTuple):
    """A working tree of the owner's and the repository that it belongs to."""

    root: str
    repository: str


def git(  # noqa: PLR0913 - one door, and every caller names what it needs
    *args: str,
    cwd: str,
    within: Enclosure | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    keep_fds: Sequence[int] = (),
    alone: bool = False,
    allowed: Sequence[int] = (0,),
    safe: bool = True,
) -> Completed:
    """Runs git in `cwd`. `safe=False` lets the repository's own hooks run: only inside."""
    tried: list[Completed] = []

    def answered() -> bool:
        answer = run(
            ("git", *(_SAFE if safe else ()), *args),
            cwd=cwd,
            within=within,
            env=env,
            stdin=stdin,
            keep_fds=keep_fds,
            alone=alone,
            allowed=(*allowed, _ABSENT),
            patient=not safe,  # hooks do what they like
        )
        tried.append(answer)
        return answer.code != _ABSENT or _HALF_MADE not in answer.stderr

    wait_until(answered, timeout_s=_HALF_MADE_S)
    if tried[-1].code not in allowed:
        raise failure(tried[-1])
    return tried[-1]


@contextmanager
def turn(repository: str, *, shared: bool = False) -> Iterator[int]:
    """One at a time, or several readers: git's own locks do not cover worktrees being made.

    The lock is on the directory itself, so it leaves nothing and holds for every Atoll home. Tools
    that are handed the descriptor hold it as long as they live.
    """
    handle = os.open(repository, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def find_checkout(path: str) -> Checkout:
    """The checkout that holds `path`. Raises StateError when there is none that can be used."""
    if not os.path.isdir(path):
        raise StateError(f"there is no directory `{printable(path)}`")
    if (plain := discovery.find_plain_checkout(path)) is not None:
        return Checkout(root=plain, repository=os.path.join(plain, ".git"))
    answer = git(
        "rev-parse", "--is-bare-repository", "--is-inside-work-tree", "--show-cdup",
        "--path-format=absolute", "--git-common-dir",
        cwd=path, allowed=(0, _ABSENT),
    )  # fmt: skip
    if answer.code == _ABSENT:
        if b"not a git repository" not in answer.stderr:
            raise failure(answer)
        raise StateError(
            f"`{printable(path)}` is not in a git repository",
            hint="git init && git add -A && git commit -m start",
        )
    bare, inside, places = answer.text.removesuffix("\n").split("\n", 2)
    if bare != "true" and inside != "true":
        raise StateError(f"`{printable(path)}` is inside a repository's own files", hint="cd ..")
    if bare == "true":
        raise StateError(
            f"`{printable(path)}` is a bare repository: it has no checkout to make capsules of",
            hint=f"git clone '{printable(path)}' work && cd work",
        )
    # The way up is dots and slashes, so that only the last line can hold further ones.
    up, repository = places.split("\n", 1)
    root = os.path.realpath(os.path.join(path, up))
    return Checkout(root=root, repository=os.path.realpath(repository))


def find_commit(ref: str, *, cwd: str, within: Enclosure | None = None) -> str | None:
    """The commit that `ref` names, or None. A ref is never read as an option."""
    if ref.startswith("-") or not ref.isprintable():
        return None
    answer = git(
        "-c", "core.warnAmbiguousRefs=true",
        "rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}",
        cwd=cwd, within=within, allowed=(0, 1, _ABSENT),
    )  # fmt: skip
    # An ambiguous name answers with a warning and a guess; a guess is not good enough here.
    if answer.code != 0 or (ref != "HEAD" and b"ambiguous" in answer.stderr):
        return None
    lines = [line for line in answer.text.split("\n") if re.fullmatch("[0-9a-f]{40,64}", line)]
    return lines[-1] if lines else None


def find_ref(ref: str, *, cwd: str) -> str | None:
    """What a full ref name points to, or None; `cwd` is the repository itself."""
    with suppress(ref_files.UnusualError):
        return ref_files.find_ref(cwd, ref)
    answer = git("show-ref", "--verify", "--hash", ref, cwd=cwd, allowed=(0, 1, _ABSENT))
    return answer.text.strip() if answer.code == 0 else None


def create_ref(ref: str, commit: str, *, cwd: str, keep_fds: Sequence[int] = ()) -> bool:
    """Creates `ref` only if it does not exist; returns whether it did."""
    absent = "0" * len(commit)
    answer = git(
        "update-ref", ref, commit, absent,
        cwd=cwd, keep_fds=keep_fds, alone=True, allowed=(0, _ABSENT),
    )  # fmt: skip
    if answer.code == 0:
        return True
    if find_ref(ref, cwd=cwd) is None:
        raise failure(answer)
    return False


def move_ref(ref: str, commit: str, *, old: str | None, cwd: str) -> None:
    """Points `ref` to `commit` if it still is at `old`; None means that it must not exist.

    `cwd` is the repository itself. What this has done lives through a power cut.
    """
    remove_stale_lock(Path(cwd, f"{ref}.lock"))
    with suppress(ref_files.UnusualError):
        if old is None:
            ref_files.create_ref(cwd, ref, commit)
            return
    _update_ref(ref, commit, old or "0" * len(commit), cwd=cwd)
    _sync_ref(ref, cwd=cwd)


def set_ref(ref: str, commit: str, *, cwd: str) -> None:
    """As `move_ref`, from wherever it stands."""
    remove_stale_lock(Path(cwd, f"{ref}.lock"))
    _update_ref(ref, commit, cwd=cwd)
    _sync_ref(ref, cwd=cwd)


def delete_ref(ref: str, *, cwd: str, old: str | None = None) -> None:
    """Deletes one of Atoll's own refs. Raises DriverError if it is not at `old` where that is
    given.
    """
    remove_stale_lock(Path(cwd, f"{ref}.lock"))
    with suppress(ref_files.UnusualError):
        if _is_deleted_as_file(ref, cwd, old):
            return
    _update_ref("-d", ref, *([] if old is None else [old]), cwd=cwd)


def _is_deleted_as_file(ref: str, repository: str, old: str | None) -> bool:
    try:
        ref_files.delete_ref(repository, ref, old=old)
    except ref_files.RepackedError:
        lock = Path(repository, "packed-refs.lock")
        is_packed = wait_until(lambda: not lock.exists(), timeout_s=_STALE_S)
        return is_packed and find_ref(ref, cwd=repository) is None
    return True


def _update_ref(*args: str, cwd: str) -> None:
    """Alone: a deletion locks all packed refs for an instant, and nobody may end it in there.

    Durable: it writes them all anew, and a power cut must find them whole.
    """
    git(*DURABLE, "update-ref", *args, cwd=cwd, alone=True)


def remove_stale_lock(path: Path) -> None:
    """Git holds a ref's lock for an instant; one that stays is a killed git's.

    Only for refs that are Atoll's own.
    """
    if path.exists() and not wait_until(lambda: not path.exists(), timeout_s=_STALE_S):
        path.unlink(missing_ok=True)


def _sync_ref(ref: str, *, cwd: str) -> None:
    """Git syncs what a ref says, but not its name."""
    place = Path(cwd, ref).parent
    if place.is_dir():
        files.sync_directory(place)


def is_ancestor(commit: str, of: str, *, cwd: str) -> bool:
    """Whether a commit is part of the history of another; False when either is not there."""
    answer = git("merge-base", "--is-ancestor", commit, of, cwd=cwd, allowed=(0, 1, _ABSENT))
    return answer.code == 0


def distance(one: str, other: str, *, cwd: str) -> tuple[int, int]:
    """How many commits each of two has that the other one has not."""
    counts = git("rev-list", "--left-right", "--count", f"{one}...{other}", cwd=cwd).text.split()
    return int(counts[0]), int(counts[1])


def count_changed(*, cwd: str) -> int:
    """How many entries of a worktree differ from HEAD; an untracked directory counts once."""
    told = git("status", "--porcelain", "-z", "--no-renames", cwd=cwd).text
    return sum(1 for entry in told.split("\0") if entry)


def make_store(path: str, *, like: str, objects: str) -> str:
    """A bare repository in the format of another one that sees the object directory `objects`, has
    no settings of the other's and can be thrown away.
    """
    kind = git("rev-parse", "--show-object-format", cwd=like).text.strip()
    os.makedirs(path)
    git("init", "--quiet", "--bare", f"--object-format={kind}", "--template=", path, cwd=path)
    alternates = Path(path, "objects", "info", "alternates")
    alternates.parent.mkdir(exist_ok=True)
    alternates.write_bytes(os.fsencode(os.path.realpath(objects)) + b"\n")
    return path


def parse_alternates(content: bytes) -> list[str]:
    """The directories that a store's `info/alternates` names, as git reads it."""
    found = []
    place = 0
    while place < len(content):
        # What is in quotes may go over several lines; a quote that does not end is part of a name.
        entry = _QUOTED.match(content, place) or _LINE.match(content, place)
        if entry is None:
            break
        path = _ESCAPE.sub(_unescaped, entry[1]) if entry.re is _QUOTED else entry[0]
        if path and content[place : place + 1] != b"#":
            found.append(os.fsdecode(path))
        place = entry.end() + 1
    return found


def _unescaped(escape: re.Match[bytes]) -> bytes:
    said = escape[1]
    return bytes([int(said, 8)]) if said.isdigit() else _ESCAPED.get(said, said)


def refs_below(prefix: str, *, cwd: str) -> list[tuple[str, str]]:
    """(ref, commit) for all refs below a prefix."""
    answer = git("for-each-ref", "--format=%(objectname) %(refname)", prefix, cwd=cwd)
    pairs = [line.split(" ", 1) for line in answer.lines]
    return [(ref, commit) for commit, ref in pairs]


def checked_out_at(branch: str, *, cwd: str) -> str | None:
    """The working tree in which a branch is checked out, or None."""
    place = None
    for field in git("worktree", "list", "--porcelain", "-z", cwd=cwd).text.split("\0"):
        key, _, value = field.partition(" ")
        if key == "worktree":
            place = value
        elif key == "branch" and value == f"refs/heads/{branch}":
            return place
    return None


def current_branch(*, cwd: str) -> str | None:
    """The branch that is checked out in `cwd`; None when HEAD is detached."""
    answer = git("symbolic-ref", "--quiet", "--short", "HEAD", cwd=cwd, allowed=(0, 1))
    return answer.text.strip() or None


def setting(key: str, *, cwd: str, keep_fds: Sequence[int] = ()) -> str:
    answer = git("config", "--get", key, cwd=cwd, allowed=(0, 1), keep_fds=keep_fds)
    return answer.text.removesuffix("\n")


def identity(*, cwd: str) -> tuple[str, str]:
    """Name and address that the owner commits under; empty where git knows none."""
    answer = git("config", "-z", "--get-regexp", r"^user\.(name|email)$", cwd=cwd, allowed=(0, 1))
    found = dict(entry.split("\n", 1) for entry in answer.text.split("\0") if "\n" in entry)
    return found.get("user.name", ""), found.get("user.email", "")


def tracked(*, cwd: str) -> list[str]:
    return [path for path in git("ls-files", "-z", cwd=cwd).text.split("\0") if path]


def version() -> tuple[int, ...]:
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", run(("git", "--version")).text)
    return tuple(int(part) for part in found.groups()) if found else (0,)


def gitlinks(commit: str, *, cwd: str) -> dict[str, str]:
    """The submodules that a commit records, with their commits."""
    answer = git("ls-tree", "-r", "-z", "--full-tree", commit, cwd=cwd)
    rows = [entry.partition("\t") for entry in answer.text.split("\0") if entry]
    return {path: head.split(" ")[2] for head, _, path in rows if head.startswith("160000 ")}
