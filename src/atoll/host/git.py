"""Runs git: machine formats only, no hooks, no prompts, no option injection.

Queries about the owner's repository run on the host. Queries about a workspace pass an Enclosure,
so that git runs with the capsule's environment instead of the owner's.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

from atoll.host import files, ref_files
from atoll.host.locks import hold_directory
from atoll.host.process import Completed, failure, run, wait_until
from atoll.model.enclosure import Enclosure
from atoll.model.errors import SpecError, StateError
from atoll.model.names import printable

SAFE = (
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
"""Options before a verb that make git sync what it writes."""
_UNTRUSTED = "atoll.untrusted"
"""The setting of a repository that Atoll cloned from a URL."""
_ABSENT = 128
_HALF_MADE = b"/commondir: "
"""Git fails if it reads the record of a worktree that another git is creating."""
_HALF_MADE_S = 2.0
_STALE_S = 2.0


class Checkout(NamedTuple):
    """A working tree of the owner and its repository."""

    root: str
    repository: str


def git(  # noqa: PLR0913 - callers name what they need
    *args: str,
    cwd: str,
    within: Enclosure | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    keep_fds: Sequence[int] = (),
    alone: bool = False,
    allowed: Sequence[int] = (0,),
) -> Completed:
    """Runs git in `cwd`, without hooks and other programs that the repository configures."""
    tried: list[Completed] = []

    def answered() -> bool:
        answer = run(
            ("git", *SAFE, *args),
            cwd=cwd,
            within=within,
            env=env,
            stdin=stdin,
            keep_fds=keep_fds,
            alone=alone,
            allowed=(*allowed, _ABSENT),
        )
        tried.append(answer)
        return answer.code != _ABSENT or _HALF_MADE not in answer.stderr

    wait_until(answered, timeout_s=_HALF_MADE_S)
    if tried[-1].code not in allowed:
        raise failure(tried[-1])
    return tried[-1]


def turn(repository: str, *, shared: bool = False) -> AbstractContextManager[int]:
    """Locks a repository, shared or exclusively, for every Atoll home: git's own locks do not
    cover new worktrees.
    """
    return hold_directory(repository, shared=shared)


def find_checkout(path: str) -> Checkout:
    """The checkout that contains `path`. Raises StateError if there is no usable one."""
    if not os.path.isdir(path):
        raise StateError(f"there is no directory `{printable(path)}`")
    if (plain := find_plain_checkout(path)) is not None:
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
        raise StateError(f"`{printable(path)}` is inside a `.git` directory", hint="cd ..")
    if bare == "true":
        raise StateError(
            f"`{printable(path)}` is a bare repository: capsules need a checkout",
            hint=f"git clone '{printable(path)}' work && cd work",
        )
    # The relative path consists of dots and slashes, so only the last line can contain newlines.
    up, repository = places.split("\n", 1)
    root = os.path.realpath(os.path.join(path, up))
    return Checkout(root=root, repository=os.path.realpath(repository))


def find_commit(ref: str, *, cwd: str) -> str | None:
    """The commit that `ref` names, or None. A ref is never parsed as an option."""
    if ref.startswith("-") or not ref.isprintable():
        return None
    answer = git(
        "-c", "core.warnAmbiguousRefs=true",
        "rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}",
        cwd=cwd, allowed=(0, 1, _ABSENT),
    )  # fmt: skip
    # For an ambiguous name git warns and guesses; the guess is not used.
    if answer.code != 0 or (ref != "HEAD" and b"ambiguous" in answer.stderr):
        return None
    lines = [line for line in answer.text.split("\n") if re.fullmatch("[0-9a-f]{40,64}", line)]
    return lines[-1] if lines else None


def find_tree(commit: str, *, cwd: str) -> str | None:
    """The tree of a commit, given by its hash; None when there is no such commit."""
    if not re.fullmatch("[0-9a-f]{40,64}", commit):
        return None
    answer = git("rev-parse", "--verify", f"{commit}^{{tree}}", cwd=cwd, allowed=(0, 1, _ABSENT))
    return answer.text.strip() if answer.code == 0 else None


def find_ref(ref: str, *, cwd: str) -> str | None:
    """The object of a full ref name, or None; `cwd` is the repository itself."""
    with suppress(ref_files.UnusualError):
        return ref_files.find_ref(cwd, ref)
    answer = git("show-ref", "--verify", "--hash", ref, cwd=cwd, allowed=(0, 1, _ABSENT))
    return answer.text.strip() if answer.code == 0 else None


def create_ref(ref: str, commit: str, *, cwd: str, keep_fds: Sequence[int] = ()) -> bool:
    """Creates `ref` if it does not exist; returns whether it was created."""
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
    """Moves `ref` to `commit` if it is still at `old`; None means that it must not exist.

    `cwd` is the repository itself. The change is synced to disk.
    """
    remove_stale_lock(Path(cwd, f"{ref}.lock"))
    with suppress(ref_files.UnusualError):
        if old is None:
            ref_files.create_ref(cwd, ref, commit)
            return
    _update_ref(ref, commit, old or "0" * len(commit), cwd=cwd)
    sync_ref(ref, cwd=cwd)


def set_ref(ref: str, commit: str, *, cwd: str) -> None:
    """As `move_ref`, independent of the old value."""
    remove_stale_lock(Path(cwd, f"{ref}.lock"))
    _update_ref(ref, commit, cwd=cwd)
    sync_ref(ref, cwd=cwd)


def delete_ref(ref: str, *, cwd: str, old: str | None = None) -> None:
    """Deletes one of Atoll's refs. Raises DriverError if it is not at `old`, if given."""
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
    """Runs `update-ref` without interruption: a deletion locks all packed refs for a moment.

    It is durable, because it rewrites `packed-refs`, which must survive a power failure.
    """
    git(*DURABLE, "update-ref", *args, cwd=cwd, alone=True)


def remove_stale_lock(path: Path) -> None:
    """Removes the lock of a killed git: git holds a ref's lock only for a moment.

    Only for Atoll's own refs.
    """
    if path.exists() and not wait_until(lambda: not path.exists(), timeout_s=_STALE_S):
        path.unlink(missing_ok=True)


def sync_ref(ref: str, *, cwd: str) -> None:
    """Syncs the directory of a ref: git syncs its content only."""
    place = Path(cwd, ref).parent
    if place.is_dir():
        files.sync_directory(place)


def is_ancestor(commit: str, of: str, *, cwd: str) -> bool:
    """Whether a commit is an ancestor of another; False if either is missing."""
    answer = git("merge-base", "--is-ancestor", commit, of, cwd=cwd, allowed=(0, 1, _ABSENT))
    return answer.code == 0


def distance(one: str, other: str, *, cwd: str) -> tuple[int, int]:
    """How many commits each of two has that the other lacks."""
    counts = git("rev-list", "--left-right", "--count", f"{one}...{other}", cwd=cwd).text.split()
    return int(counts[0]), int(counts[1])


def count_changed(*, cwd: str) -> int:
    """The number of entries that differ from HEAD; an untracked directory counts once."""
    status = git("status", "--porcelain", "-z", "--no-renames", cwd=cwd).text
    return sum(1 for entry in status.split("\0") if entry)


def make_store(path: str, *, like: str, objects: str) -> str:
    """Creates a disposable bare repository in the format of another one, without its settings, that
    has access to the object directory `objects`.
    """
    kind = git("rev-parse", "--show-object-format", cwd=like).text.strip()
    os.makedirs(path)
    git("init", "--quiet", "--bare", f"--object-format={kind}", "--template=", path, cwd=path)
    alternates = Path(path, "objects", "info", "alternates")
    alternates.parent.mkdir(exist_ok=True)
    alternates.write_bytes(os.fsencode(os.path.realpath(objects)) + b"\n")
    return path


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


def setting(key: str, *, cwd: str, keep_fds: Sequence[int] = ()) -> str:
    answer = git("config", "--get", key, cwd=cwd, allowed=(0, 1), keep_fds=keep_fds)
    return answer.text.removesuffix("\n")


def mark_untrusted(repository: str) -> None:
    """Records that what this repository tracks is not the owner's, and turns off the filters that
    the owner has installed for every program that reads its files.
    """
    wanted = {_UNTRUSTED: "true"}
    for name in filter_names(cwd=repository):
        wanted |= _no_filter(name)
    answer = git("config", "--local", "--list", "-z", cwd=repository)
    pairs = [entry.partition("\n") for entry in answer.text.split("\0") if entry]
    known = {key: value for key, _, value in pairs}
    for key, value in wanted.items():
        if known.get(key) != value:
            git("config", "--local", "--replace-all", key, value, cwd=repository)


def untrusted_options(repository: str, keep_fds: Sequence[int] = ()) -> tuple[str, ...]:
    """Options before a verb with which no filter of the owner's runs on files of a repository that
    is marked as untrusted; git-lfs is left to the caller. None for the owner's own repositories.
    """
    if setting(_UNTRUSTED, cwd=repository, keep_fds=keep_fds) != "true":
        return ()
    return without_filters(filter_names(cwd=repository, keep_fds=keep_fds))


def filter_names(*, cwd: str, keep_fds: Sequence[int] = ()) -> list[str]:
    """The filters that any git settings define, such as `filter.x`, without that of git-lfs.

    Raises SpecError for a name that cannot be part of an option.
    """
    answer = git(
        "config", "-z", "--name-only", "--get-regexp", r"^filter\.",
        cwd=cwd, allowed=(0, 1), keep_fds=keep_fds,
    )  # fmt: skip
    keys = os.fsdecode(answer.stdout).split("\0")
    names = {key.rpartition(".")[0] for key in keys if key} - {"filter.lfs"}
    # An option ends at its first `=`, which the name of a filter may have.
    odd = [name for name in names if "=" in name]
    if odd:
        raise SpecError(f"the name of the git filter `{printable(odd[0])}` has a `=`")
    return sorted(names)


def without_filters(names: Sequence[str]) -> tuple[str, ...]:
    """Options before a verb with which these filters do not run."""
    pairs = [pair for name in names for pair in _no_filter(name).items()]
    return tuple(word for key, value in pairs for word in ("-c", f"{key}={value}"))


def _no_filter(name: str) -> dict[str, str]:
    empty = {f"{name}.{key}": "" for key in ("process", "smudge", "clean")}
    return {**empty, f"{name}.required": "false"}


def identity(*, cwd: str) -> tuple[str, str]:
    """The owner's name and address for commits; empty where git has none."""
    answer = git("config", "-z", "--get-regexp", r"^user\.(name|email)$", cwd=cwd, allowed=(0, 1))
    found = dict(entry.split("\n", 1) for entry in answer.text.split("\0") if "\n" in entry)
    return found.get("user.name", ""), found.get("user.email", "")


def tracked(*, cwd: str) -> list[str]:
    return [path for path in git("ls-files", "-z", cwd=cwd).text.split("\0") if path]


def version() -> tuple[int, ...]:
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", run(("git", "--version")).text)
    return tuple(int(part) for part in found.groups()) if found else (0,)


def gitlinks(commit: str, *, cwd: str) -> dict[str, str]:
    """The submodules recorded by a commit, with their commits."""
    answer = git("ls-tree", "-r", "-z", "--full-tree", commit, cwd=cwd)
    rows = [entry.partition("\t") for entry in answer.text.split("\0") if entry]
    return {path: head.split(" ")[2] for head, _, path in rows if head.startswith("160000 ")}


_CONFIG_BYTES = 1 << 20
_PLAIN_LINE = re.compile(rb"\s*(\[[^\]]+\]|[a-z][a-z0-9-]*\s*=.*[^\\]|[#;].*)?\s*", re.IGNORECASE)
"""A line of a config file that needs no interpretation by git."""
_MOVED = re.compile(
    rb"worktree|include|^\s*bare\s*(?!\s*=\s*false\s*$)", re.IGNORECASE | re.MULTILINE
)
"""Settings that may move the checkout, or make the repository bare."""
_STEERING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_CEILING_DIRECTORIES",
             "GIT_OBJECT_DIRECTORY", "GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS")  # fmt: skip
"""Variables that override git's files."""


def find_plain_checkout(path: str) -> str | None:
    """The root of the checkout that contains `path` and has its repository in `.git`.

    Returns None for everything that git has to decide: linked worktrees, submodules, bare
    repositories, settings that move the checkout, repositories of other users.
    """
    if any(name in os.environ for name in _STEERING):
        return None
    place = os.path.realpath(path)
    try:
        device = os.stat(place).st_dev
        while not os.path.lexists(os.path.join(place, ".git")):
            above = os.path.dirname(place)
            if above == place or _is_repository(place) or os.stat(above).st_dev != device:
                return None
            place = above
        return place if not _is_repository(place) and _is_plain(place) else None
    except OSError:
        return None


def _is_repository(place: str) -> bool:
    """Whether git could consider the directory itself a repository."""
    return os.path.lexists(os.path.join(place, "HEAD")) and os.path.lexists(
        os.path.join(place, "objects")
    )


def _is_plain(root: str) -> bool:
    repository = os.path.join(root, ".git")
    owned = [os.lstat(place) for place in (repository, root)]
    if not all(stat.S_ISDIR(status.st_mode) for status in owned):
        return False
    # Git refuses a repository of another user unless configured otherwise.
    if any(status.st_uid != os.geteuid() for status in owned):
        return False
    names = set(os.listdir(repository))
    if not {"HEAD", "objects", "refs", "config"} <= names or "commondir" in names:
        return False
    with open(os.path.join(repository, "config"), "rb") as stream:
        content = stream.read(_CONFIG_BYTES + 1)
    with open(os.path.join(repository, "HEAD"), "rb") as stream:
        head = stream.read(_CONFIG_BYTES)
    if re.match(rb"ref: refs/|[0-9a-f]{40}", head) is None or len(content) > _CONFIG_BYTES:
        return False
    lines = content.split(b"\n")
    return _MOVED.search(content) is None and all(map(_PLAIN_LINE.fullmatch, lines))
