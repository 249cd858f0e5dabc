"""What exists only in a worktree, and how it is kept when the worktree must go.

A recovery point is a commit under `refs/atoll/recovery/`: its tree is every file as it stood
(untracked ones too), its first parent the HEAD of that moment, its second the index where that
could be written. What git cannot store (repositories inside the workspace, a workspace whose git
link was destroyed) is moved aside as plain files. Nothing but `atoll recover --drop` removes any
of it.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from atoll.host import files, git
from atoll.host.process import Completed
from atoll.model.plan import Enclosure, WorkspacePlan
from atoll.model.state import RecoveryPoint, Work

PREFIX = "refs/atoll/recovery/"
_FALLBACK_IDENTITY = {
    "GIT_AUTHOR_NAME": "Atoll",
    "GIT_AUTHOR_EMAIL": "atoll@localhost",
    "GIT_COMMITTER_NAME": "Atoll",
    "GIT_COMMITTER_EMAIL": "atoll@localhost",
}


def find_work(plan: WorkspacePlan, inside: Enclosure) -> Work:
    if not Path(plan.repository).is_dir():
        return Work(nested=(".",) if Path(plan.path).is_dir() else ())
    commits = _lonely_commits(plan, inside)
    if not Path(plan.path).is_dir() or not os.listdir(plan.path):
        return Work(commits=commits)
    if not _belongs(plan, inside):
        return Work(commits=commits, nested=(".",))
    with _frank_index(plan, inside) as env:
        status = _git(
            plan, inside, "status", "--porcelain=v2", "-z", "--untracked-files=all",
            "--ignored=matching", "--no-renames", "--ignore-submodules=none",
            env=env, allowed=(0, 128),
        )  # fmt: skip
    if status.code != 0:
        return Work(commits=commits, nested=(".",))
    return _parse_status(status.stdout, commits=commits)


@contextmanager
def _frank_index(plan: WorkspacePlan, inside: Enclosure) -> Iterator[dict[str, str]]:
    """The environment in which git hides nothing: the index itself, unless that tells git to
    overlook files (`--assume-unchanged`, `--skip-worktree`) that are there.
    """
    if not _hidden(plan, inside, {}):
        yield {}
        return
    with _copied_index(plan, inside) as index:
        env = {"GIT_INDEX_FILE": index}
        _expose(plan, inside, env)
        yield env


def _hidden(plan: WorkspacePlan, inside: Enclosure, env: dict[str, str]) -> list[str]:
    """The files that are there and that the index tells git to overlook."""
    listed = _git(plan, inside, "ls-files", "-v", "-z", env=env, allowed=(0, 128)).text.split("\0")
    overlooked = [entry[2:] for entry in listed if entry[:1] == "S" or entry[:1].islower()]
    return [path for path in overlooked if os.path.lexists(os.path.join(plan.path, path))]


def _expose(plan: WorkspacePlan, inside: Enclosure, env: dict[str, str]) -> None:
    hidden = _hidden(plan, inside, env)
    if not hidden:
        return
    names = os.fsencode("".join(f"{path}\0" for path in hidden))
    for flag in ("--no-assume-unchanged", "--no-skip-worktree"):
        git.git(
            "update-index", flag, "-z", "--stdin",
            cwd=plan.path, within=inside, env=env, stdin=names,
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


def _belongs(plan: WorkspacePlan, inside: Enclosure) -> bool:
    """Whether the workspace is still linked to the owner's repository."""
    answer = git.git(
        "rev-parse", "--path-format=absolute", "--git-common-dir", "--show-toplevel",
        cwd=plan.path, within=inside, allowed=(0, 128),
    )  # fmt: skip
    if answer.code != 0:
        return False
    expected = f"{os.path.realpath(plan.repository)}\n{os.path.realpath(plan.path)}\n"
    return answer.text == expected


def _tips(plan: WorkspacePlan, inside: Enclosure) -> tuple[str | None, str | None]:
    """HEAD of the workspace and the tip of its branch, as far as they are ours to lose."""
    head = tip = None
    if Path(plan.path).is_dir() and _belongs(plan, inside):
        head = git.find_commit("HEAD", cwd=plan.path, within=inside)
    if plan.branch is not None:
        tip = git.find_ref(f"refs/heads/{plan.branch}", cwd=plan.repository)
    return head, tip


def _lonely_commits(plan: WorkspacePlan, inside: Enclosure) -> int:
    tips = [tip for tip in _tips(plan, inside) if tip is not None]
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


def save(plan: WorkspacePlan, inside: Enclosure, *, point: str, home: Path) -> RecoveryPoint | None:
    work = find_work(plan, inside)
    ref = PREFIX + point
    if not Path(plan.repository).is_dir():
        return _save_without_repository(plan, point, home) if work.any else None
    if not work.any:
        return find_point(ref, cwd=plan.repository)
    head, tip = _tips(plan, inside)
    stored = _trees(plan, inside) if head is not None else None
    lost_to_git = work.nested or (stored is None and (work.uncommitted or work.untracked))
    aside = home / "recovered" / point if lost_to_git else None
    parents = [parent for parent in dict.fromkeys((head, tip)) if parent is not None]
    parents = parents or [plan.base_commit]
    before = find_point(ref, cwd=plan.repository)
    if before is None or not _is_current(before, parents[0], stored, cwd=plan.repository):
        # Work that came after an interrupted removal had saved: both states are kept.
        parents += [before.commit] if before is not None else []
        commit = _commit_all(plan, inside, point, parents, stored, aside)
        git.move_ref(ref, commit, old=before and before.commit, cwd=plan.repository)
    if aside is not None:
        _move_aside(plan, aside)
    return find_point(ref, cwd=plan.repository)


def _is_current(point: RecoveryPoint, head: str, stored: _Trees | None, *, cwd: str) -> bool:
    """Whether a point holds what the workspace holds now."""
    if stored is None:
        return True
    tree = git.git("rev-parse", f"{point.commit}^{{tree}}", cwd=cwd).text.strip()
    return (tree, point.head_commit) == (stored.everything, head)


def _save_without_repository(plan: WorkspacePlan, point: str, home: Path) -> RecoveryPoint:
    """The owner's repository is gone, so the workspace is kept as plain files."""
    aside = home / "recovered" / point
    files.move(Path(plan.path), aside / "workspace")
    return RecoveryPoint(
        id=point,
        capsule=point.split("/", maxsplit=1)[0],
        ref="",
        commit="",
        base_commit=plan.base_commit,
        head_commit=plan.base_commit,
        stored_at=os.stat(aside).st_mtime,
        files=str(aside),
    )


class _Trees(NamedTuple):
    """A workspace as git stores it: every file, and the index where it could be written."""

    everything: str
    staged: str | None


def _commit_all(
    plan: WorkspacePlan,
    inside: Enclosure,
    point: str,
    parents: list[str],
    trees: _Trees | None,
    aside: Path | None,
) -> str:
    trailers = {
        "Capsule": point.split("/", maxsplit=1)[0],
        "Base": plan.base_commit,
        "Head": parents[0],
    }
    if trees is not None and trees.staged not in (None, trees.everything):
        trailers["Index"] = _commit(plan, inside, str(trees.staged), parents[:1], "index")
        parents = [*parents, trailers["Index"]]
    if aside is not None:
        trailers["Files"] = str(aside)
    tree = trees.everything if trees is not None else f"{parents[0]}^{{tree}}"
    lines = [f"Atoll-{key}: {value}" for key, value in trailers.items()]
    text = "\n".join([f"atoll: recovery point {point}", "", *lines])
    return _commit(plan, inside, tree, parents, text)


def _trees(plan: WorkspacePlan, inside: Enclosure) -> _Trees | None:
    """Writes both trees without touching the workspace's own index; None if a file defies git."""
    with _copied_index(plan, inside) as index:
        env = {"GIT_INDEX_FILE": index}
        staged = _git(plan, inside, "write-tree", env=env, allowed=(0, 128))
        _expose(plan, inside, env)
        added = _git(plan, inside, "add", "--all", "--", ".", env=env, allowed=(0, 1, 128))
        if added.code != 0:
            return None
        return _Trees(
            everything=_git(plan, inside, "write-tree", env=env).text.strip(),
            staged=staged.text.strip() if staged.code == 0 else None,
        )


@contextmanager
def _copied_index(plan: WorkspacePlan, inside: Enclosure) -> Iterator[str]:
    real = _git(plan, inside, "rev-parse", "--path-format=absolute", "--git-path", "index").text
    # In the capsule's own directory: what a kill leaves of it goes with the capsule.
    beside = Path(plan.path).parents[1]
    with tempfile.TemporaryDirectory(prefix="atoll-index-", dir=beside) as place:
        copy = Path(place, "index")
        content = files.read_regular(Path(real.removesuffix("\n")), limit_bytes=1 << 32)
        if content is not None:
            copy.write_bytes(content)
        yield str(copy)


def _commit(
    plan: WorkspacePlan, inside: Enclosure, tree: str, parents: list[str], text: str
) -> str:
    flags = [word for parent in parents for word in ("-p", parent)]
    answer = git.git(
        "commit-tree", tree, *flags, "-F", "-",
        cwd=plan.repository, within=inside, env=_FALLBACK_IDENTITY, stdin=text.encode(),
    )  # fmt: skip
    return answer.text.strip()


def _git(
    plan: WorkspacePlan,
    inside: Enclosure,
    *args: str,
    env: dict[str, str] | None = None,
    allowed: tuple[int, ...] = (0,),
) -> Completed:
    return git.git(*args, cwd=plan.path, within=inside, env=env, allowed=allowed)


def _move_aside(plan: WorkspacePlan, aside: Path) -> None:
    """Moves what git cannot store, with the repositories of this worktree's submodules."""
    pointer = Path(plan.path, ".git")
    plain = pointer.is_file() and not pointer.is_symlink()
    link = files.read_regular(pointer, limit_bytes=1 << 16) if plain else None
    record = Path(os.fsdecode((link or b"").removeprefix(b"gitdir: ").rstrip(b"\n")))
    if record.parent == Path(plan.repository, "worktrees") and (record / "modules").is_dir():
        files.move(record / "modules", aside / "modules")
    files.move(Path(plan.path), aside / "workspace")


def find_point(ref: str, *, cwd: str) -> RecoveryPoint | None:
    commit = git.find_ref(ref, cwd=cwd)
    return None if commit is None else _parse_point(ref, commit, cwd=cwd)


def _parse_point(ref: str, commit: str, *, cwd: str) -> RecoveryPoint:
    answer = git.git("log", "-1", "--format=%ct%n%B", commit, "--", cwd=cwd).text
    stamp, _, text = answer.partition("\n")
    trailers = dict(re.findall(r"^Atoll-(\w+): (.*)$", text, re.MULTILINE))
    point = ref.removeprefix(PREFIX)
    return RecoveryPoint(
        id=point,
        capsule=trailers.get("Capsule", point.split("/")[0]),
        ref=ref,
        commit=commit,
        base_commit=trailers.get("Base", commit),
        head_commit=trailers.get("Head", commit),
        index_commit=trailers.get("Index"),
        stored_at=float(stamp),
        files=trailers.get("Files"),
    )


def points(*, cwd: str) -> list[RecoveryPoint]:
    """All recovery points of a repository, the newest first."""
    found = [_parse_point(ref, commit, cwd=cwd) for ref, commit in git.refs_below(PREFIX, cwd=cwd)]
    return sorted(found, key=lambda point: (point.stored_at, point.id), reverse=True)


def drop(point: RecoveryPoint, *, cwd: str, home: Path) -> None:
    if point.files is not None:
        files.remove_tree(home / "recovered" / point.id, within=home / "recovered")
    git.git("update-ref", "-d", point.ref, point.commit, cwd=cwd)


def restore(plan: WorkspacePlan, point: RecoveryPoint, *, lock: int) -> None:
    """Files as they stood, index as it stood; the branch stands at the HEAD of that moment."""
    git.git("read-tree", "-u", "--reset", point.commit, cwd=plan.path, keep_fds=(lock,))
    git.git("read-tree", point.index_commit or point.head_commit, cwd=plan.path, keep_fds=(lock,))
