"""What exists only in a workspace, and how it is kept when the workspace must go.

A recovery point is a commit under `refs/atoll/recovery/`: its tree is every file as it stood
(untracked ones too), its first parent the HEAD of that moment, its last the index where that
could be written. What git cannot store (repositories inside the workspace, a workspace whose git
link was destroyed) is kept aside as plain files.

All questions are asked inside the capsule; a `Site` says where its repository is and how its
commits come to the owner's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from atoll.drivers.workspace.points import PREFIX, find_point
from atoll.host import git
from atoll.host.process import Completed, tells_of_no_space
from atoll.model.errors import DriverError, PrerequisiteError, StateError, Unanswered
from atoll.model.plan import Enclosure, WorkspacePlan
from atoll.model.state import RecoveryPoint, Work

_BATCHED = ("-c", "core.fsync=all", "-c", "core.fsyncMethod=batch")
"""As `git.DURABLE`, with one wait for many objects."""
_CLOSED = rb"^warning: could not open directory '(.+)/': "
_FALLBACK_IDENTITY = {
    "GIT_AUTHOR_NAME": "Atoll",
    "GIT_AUTHOR_EMAIL": "atoll@localhost",
    "GIT_COMMITTER_NAME": "Atoll",
    "GIT_COMMITTER_EMAIL": "atoll@localhost",
}


class Site(Protocol):
    """A workspace and the repository that it belongs to."""

    @property
    def plan(self) -> WorkspacePlan: ...

    @property
    def inside(self) -> Enclosure: ...

    def is_there(self) -> bool:
        """Whether there are files."""

    def belongs(self) -> bool:
        """Whether git still sees the workspace as what it was made as."""

    def tips(self) -> list[str]:
        """HEAD first, then whatever else commits of the capsule hang on, as far as they are ours
        to lose. Raises StateError when they cannot be taken over."""

    def is_sound(self) -> bool:
        """Whether git finds all that the workspace's refs name."""

    def lost_submodules(self) -> list[str]:
        """Submodules whose recorded commits would be lost, although nothing is uncommitted."""

    def deliver(self, commits: Sequence[str]) -> None:
        """Sees that the owner's repository has these commits."""

    def set_aside(self, aside: Path) -> None:
        """Keeps the files as they are in a directory of Atoll's home."""


def find_work(site: Site) -> Work:
    try:
        return _ask_for_work(site)
    except Unanswered:
        # What cannot be asked may hold anything.
        return Work(nested=(".",))


def _ask_for_work(site: Site) -> Work:
    plan = site.plan
    if not Path(plan.repository).is_dir():
        return Work(nested=(".",) if site.is_there() else ())
    tips = _find_tips(site)
    if tips is None:
        return Work(nested=(".",))
    commits = _lonely_commits(site, tips)
    if not site.is_there():
        return Work(commits=commits)
    if not site.belongs():
        return Work(commits=commits, nested=(".",))
    with _frank_index(site) as env:
        status = _git(
            site, "status", "--porcelain=v2", "-z", "--untracked-files=all",
            "--ignored=matching", "--no-renames", "--ignore-submodules=none",
            env={**env, "LC_ALL": "C.UTF-8"}, allowed=(0, 128),
        )  # fmt: skip
    if status.code != 0:
        return Work(commits=commits, nested=(".",))
    found = _parse_status(status.stdout, commits=commits)
    # What git may not look into may hold anything.
    closed = [os.fsdecode(path) for path in re.findall(_CLOSED, status.stderr, re.MULTILINE)]
    nested = dict.fromkeys([*found.nested, *closed, *site.lost_submodules()])
    return found._replace(nested=tuple(nested))


def _find_tips(site: Site) -> list[str] | None:
    """None when what the capsule has committed is refused, broken or cannot be asked for: then its
    files are kept as they are.
    """
    try:
        return site.tips()
    except (StateError, Unanswered):
        return None
    except DriverError:
        if site.is_sound():
            raise
        return None


@contextmanager
def _frank_index(site: Site) -> Iterator[dict[str, str]]:
    """The environment in which git hides nothing: the index itself, unless that tells git to
    overlook files (`--assume-unchanged`, `--skip-worktree`) that are there.
    """
    if not _overlooked(site, {}):
        yield {}
        return
    with git.copied_index(cwd=site.plan.path, within=site.inside) as index:
        env = {"GIT_INDEX_FILE": index}
        _expose(site, env)
        yield env


def _overlooked(site: Site, env: dict[str, str]) -> list[str]:
    """The files that the index tells git to overlook."""
    listed = _git(site, "ls-files", "-v", "-z", env=env, allowed=(0, 128)).text.split("\0")
    return [entry[2:] for entry in listed if entry[:1] == "S" or entry[:1].islower()]


def _expose(site: Site, env: dict[str, str]) -> None:
    """Has git look at every file that is there; those of a sparse checkout that are not stay
    overlooked, and are no deletions.
    """
    overlooked = _overlooked(site, env)
    if not overlooked:
        return
    for flag in ("--no-assume-unchanged", "--no-skip-worktree"):
        _mark(site, flag, overlooked, env)
    missing = set(_git(site, "ls-files", "-z", "--deleted", env=env).text.split("\0"))
    _mark(site, "--skip-worktree", [path for path in overlooked if path in missing], env)


def _mark(site: Site, flag: str, paths: list[str], env: dict[str, str]) -> None:
    names = os.fsencode("".join(f"{path}\0" for path in paths))
    git.git(
        "update-index", flag, "-z", "--stdin",
        cwd=site.plan.path, within=site.inside, env=env, stdin=names,
    )  # fmt: skip


def _parse_status(text: bytes, *, commits: int) -> Work:
    uncommitted: list[str] = []
    untracked: list[str] = []
    nested: list[str] = []
    ignored = 0
    for record in os.fsdecode(text).split("\0"):
        match record[:1]:
            case "1" | "u":
                fields = record.split(" ", 8 if record[0] == "1" else 10)
                # A submodule's new commits live in this worktree's own copy of its repository.
                (nested if fields[2][0] == "S" else uncommitted).append(fields[-1])
            case "?":
                # Git lists files; only a repository of its own is shown as a directory.
                (nested if record.endswith("/") else untracked).append(record[2:])
            case "!":
                ignored += 1
            case _:
                continue
    return Work(
        uncommitted=tuple(uncommitted),
        untracked=tuple(untracked),
        nested=tuple(nested),
        commits=commits,
        ignored=ignored,
    )


def _lonely_commits(site: Site, tips: list[str]) -> int:
    plan = site.plan
    if not tips:
        return 0
    owner = git.find_commit("HEAD", cwd=plan.checkout) if Path(plan.checkout).is_dir() else None
    holders = [owner] if owner is not None else []
    holders += [f"--exclude={plan.branch}"] if plan.branch is not None else []
    # A branch that another removal deletes while it is listed would be a bad object.
    with git.turn(plan.repository, shared=True):
        answer = git.git(
            "rev-list", "--count", *tips, "--not", *holders,
            "--branches", "--remotes", "--tags", f"--glob={PREFIX}*",
            cwd=plan.repository,
        )  # fmt: skip
    return int(answer.text)


def save(site: Site, *, point: str, home: Path) -> RecoveryPoint | None:
    plan = site.plan
    work = find_work(site)
    ref = PREFIX + point
    if not Path(plan.repository).is_dir():
        return _save_without_repository(site, point, home) if work.any else None
    if not work.any:
        return find_point(ref, cwd=plan.repository)
    tips = _find_tips(site)
    stored = find_trees(site) if tips is not None and site.is_there() else None
    lost_to_git = work.nested or (stored is None and (work.uncommitted or work.untracked))
    aside = home / "recovered" / point if lost_to_git else None
    parents = list(dict.fromkeys(tips or ())) or [plan.base_commit]
    before = find_point(ref, cwd=plan.repository)
    if before is None or not _is_current(before, parents[0], stored, cwd=plan.repository):
        # Work that came after an interrupted removal had saved: both states are kept.
        parents += [before.commit] if before is not None else []
        commit = _commit_all(site, point, parents, stored, aside)
        git.move_ref(ref, commit, old=before and before.commit, cwd=plan.repository)
    if aside is not None:
        site.set_aside(aside)
    return find_point(ref, cwd=plan.repository)


def _is_current(point: RecoveryPoint, head: str, stored: Trees | None, *, cwd: str) -> bool:
    """Whether a point holds what the workspace holds now."""
    if stored is None:
        return True
    tree = git.git("rev-parse", f"{point.commit}^{{tree}}", cwd=cwd).text.strip()
    return (tree, point.head_commit) == (stored.everything, head)


def _save_without_repository(site: Site, point: str, home: Path) -> RecoveryPoint:
    """The owner's repository is gone, so the workspace is kept as plain files."""
    aside = home / "recovered" / point
    site.set_aside(aside)
    return RecoveryPoint(
        id=point,
        capsule=point.split("/", maxsplit=1)[0],
        ref="",
        commit="",
        base_commit=site.plan.base_commit,
        head_commit=site.plan.base_commit,
        stored_at=os.stat(aside).st_mtime,
        files=str(aside),
    )


class Trees(NamedTuple):
    """A workspace as git stores it: every file, and the index where it could be written."""

    everything: str
    staged: str | None


def _commit_all(
    site: Site, point: str, parents: list[str], trees: Trees | None, aside: Path | None
) -> str:
    if trees is not None:
        # The commits are made in the owner's repository: a capsule cannot read all parents.
        found = dict.fromkeys([trees.everything, trees.staged or trees.everything])
        site.deliver([commit_tree(site, tree, (), "trees") for tree in found])
    trailers = {
        "Capsule": point.split("/", maxsplit=1)[0],
        "Base": site.plan.base_commit,
        "Head": parents[0],
    }
    if trees is not None and trees.staged not in (None, trees.everything):
        staged = str(trees.staged)
        trailers["Index"] = commit_tree(site, staged, parents[:1], "index", on_host=True)
        parents = [*parents, trailers["Index"]]
    if aside is not None:
        trailers["Files"] = str(aside)
    tree = trees.everything if trees is not None else f"{parents[0]}^{{tree}}"
    lines = [f"Atoll-{key}: {value}" for key, value in trailers.items()]
    text = "\n".join([f"atoll: recovery point {point}", "", *lines])
    return commit_tree(site, tree, parents, text, on_host=True)


def find_trees(site: Site) -> Trees | None:
    """Writes both trees without touching the workspace's own index; None if that cannot be done,
    whatever is in the way: then the files themselves can still be kept.
    """
    try:
        return require_trees(site) if site.belongs() else None
    except (StateError, PrerequisiteError, Unanswered):
        return None


def require_trees(site: Site) -> Trees:
    """The same; raises StateError if a file defies git, PrerequisiteError if the disk is full."""
    with git.copied_index(cwd=site.plan.path, within=site.inside) as index:
        env = {"GIT_INDEX_FILE": index}
        staged = _git(site, *git.DURABLE, "write-tree", env=env, allowed=(0, 128))
        _expose(site, env)
        added = _git(site, *_BATCHED, "add", "--all", "--", ".", env=env, allowed=(0, 1, 128))
        written = _git(site, *git.DURABLE, "write-tree", env=env, allowed=(0, 128))
        if added.code != 0 or written.code != 0:
            said = os.fsdecode(added.stderr + written.stderr)
            if tells_of_no_space(said):
                raise PrerequisiteError(
                    f"no space left for what is not committed in `{site.plan.path}`",
                    hint="df -h; atoll gc",
                )
            raise StateError("git cannot store a file of the workspace", hint="atoll diff")
        return Trees(
            everything=written.text.strip(),
            staged=staged.text.strip() if staged.code == 0 else None,
        )


def commit_tree(
    site: Site, tree: str, parents: Sequence[str], text: str, *, on_host: bool = False
) -> str:
    """A commit that no ref names yet, made inside or in the owner's repository."""
    flags = [word for parent in parents for word in ("-p", parent)]
    answer = git.git(
        *git.DURABLE, "commit-tree", tree, *flags, "-F", "-",
        cwd=site.plan.repository if on_host else site.plan.path,
        within=None if on_host else site.inside,
        env=_FALLBACK_IDENTITY, stdin=text.encode(),
    )  # fmt: skip
    return answer.text.strip()


def _git(
    site: Site, *args: str, env: dict[str, str] | None = None, allowed: tuple[int, ...] = (0,)
) -> Completed:
    return git.git(*args, cwd=site.plan.path, within=site.inside, env=env, allowed=allowed)


def restore(
    plan: WorkspacePlan, point: RecoveryPoint, inside: Enclosure | None, *, lock: int
) -> None:
    """Files as they stood, index as it stood; the branch stands at the HEAD of that moment."""
    for words in (
        ("-u", "--reset", point.commit),
        (point.index_commit or point.head_commit,),
    ):
        git.git("read-tree", *words, cwd=plan.path, within=inside, keep_fds=(lock,))
