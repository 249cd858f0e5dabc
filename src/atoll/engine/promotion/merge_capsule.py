"""Brings work onto a branch that has moved since, in a temporary capsule.

Git merges inside, since what it merges was written by an agent; the result comes out through the
quarantine like every commit of a capsule.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from atoll.drivers import registry
from atoll.engine.capsule import creation, planning
from atoll.engine.capsule.temporary import FreshSpec, Workbench
from atoll.engine.project.settings import load_config
from atoll.engine.run import internal_runs
from atoll.engine.state.leases import workspace_plan
from atoll.engine.state.session import Session
from atoll.host import git
from atoll.host.process import Completed
from atoll.model.errors import DriverError, StateError
from atoll.model.names import BRANCH_PREFIX, NAME_LENGTH, printable, slug
from atoll.model.state import CapsuleRecord, ProjectRecord

_GIT = "git -c core.hooksPath=/dev/null -c commit.gpgSign=false -c rebase.autoStash=false"
_MERGES = {
    "squash": f"{_GIT} cherry-pick --allow-empty --keep-redundant-commits $2",
    "patch": f"{_GIT} cherry-pick --allow-empty --keep-redundant-commits $2",
    "merge": f"{_GIT} merge --quiet --no-ff --no-edit -m merge $2",
    "rebase": f"h=$(git rev-parse HEAD) && git reset --quiet --hard $2 && "
    f"{_GIT} rebase --quiet --onto $h $1",
}
_MERGES["ff"] = _MERGES["rebase"]
"""By way: what runs at the tip of the branch, with the start and the tip of the work."""
_CONFLICTS = ("git", "ls-files", "-z", "--unmerged")
_TIMEOUT_S = 600.0
_SAID_BYTES = 2000
_MOST_NAMES = 99


class MergeSpec(NamedTuple):
    """Work that is brought onto a commit."""

    way: str
    start: str
    tip: str
    """For `squash` and `patch` one commit with the whole work, whose parent is `start`."""
    onto: str
    level: str
    network: str
    identity: Mapping[str, str]
    """Variables with the author and committer of the merge."""


class MergeConflict(NamedTuple):
    paths: tuple[str, ...]


def merge(session: Session, project: ProjectRecord, spec: MergeSpec) -> str | MergeConflict:
    """The merged commit, in the owner's repository. Raises DriverError when git fails otherwise."""
    with Workbench(session, project, stem="merge").open() as bench:
        capsule = bench.make(
            FreshSpec(
                commit=spec.onto, level=spec.level, network=spec.network or None,
                visible=(spec.start, spec.tip),
            )
        )  # fmt: skip
        if (conflict := _merge_inside(session, capsule, spec)) is not None:
            return conflict
        return _bring_out(session, capsule)


def _merge_inside(
    session: Session, capsule: CapsuleRecord, spec: MergeSpec
) -> MergeConflict | None:
    argv = ("/bin/sh", "-c", _MERGES[spec.way], "sh", spec.start, spec.tip)
    done = internal_runs.ask(session, capsule, argv, env=spec.identity, timeout_s=_TIMEOUT_S)
    if done.code == 0:
        return None
    listed = internal_runs.ask(session, capsule, _CONFLICTS, timeout_s=_TIMEOUT_S)
    entries = listed.stdout.decode(errors="surrogateescape").split("\0")
    paths = dict.fromkeys(entry.partition("\t")[2] for entry in entries if entry)
    if listed.code != 0 or not paths:
        raise _failure(spec, done)
    return MergeConflict(tuple(paths))


def _failure(spec: MergeSpec, done: Completed) -> DriverError:
    said = (done.stdout + done.stderr)[-_SAID_BYTES:].decode(errors="replace").strip()
    shown = "".join(f"\n  {printable(line)}" for line in said.splitlines()[-12:])
    return DriverError(f"the work cannot be brought onto {spec.onto[:10]}: git failed{shown}")


def _bring_out(session: Session, capsule: CapsuleRecord) -> str:
    plan = workspace_plan(session, capsule)
    if not plan.is_layered:
        # A worktree's commits are in the owner's repository already.
        found = git.find_ref(f"refs/heads/{capsule.branch}", cwd=plan.repository)
        if found is None:
            raise DriverError("the merged commit has disappeared")
        return found
    exported = registry.layered_driver(plan.driver).export_commits(plan, everything=False)
    if exported is None:
        raise DriverError("the merged commit has disappeared")
    return exported.commit


def keep_conflict(
    session: Session, project: ProjectRecord, name: str, branch: str, spec: MergeSpec
) -> str:
    """Makes a capsule of the owner's that holds the conflict, and returns its name."""
    chosen = _free_name(session, project, name, branch)
    given = {"project.base": spec.onto, "capsule.level": spec.level}
    if spec.network:
        given["capsule.network"] = spec.network
    config = load_config(Path(project.root), session.owner, given=given)
    [plan] = planning.plan_capsules(session, project, [chosen], config)
    plan = plan._replace(base_ref=branch, visible=(spec.start, spec.tip))
    [made] = creation.make_capsules(session, project, [plan])
    _merge_inside(session, made, spec)
    return made.name


def _free_name(session: Session, project: ProjectRecord, name: str, branch: str) -> str:
    taken = {capsule.name for capsule in session.store.capsules(project.id)}
    for number in range(1, _MOST_NAMES):
        end = f"-onto-{slug(branch)[:16].strip('-')}" + (f"-{number}" if number > 1 else "")
        chosen = name[: NAME_LENGTH - len(end)].strip("-") + end
        ref = f"refs/heads/{BRANCH_PREFIX}{chosen}"
        if chosen not in taken and git.find_ref(ref, cwd=project.git_dir) is None:
            return chosen
    raise StateError(f"every name like `{name}-onto-…` is taken", hint="atoll ls")


def hint_of(name: str, way: str) -> str:
    """How the owner resolves a conflict in the capsule that holds it."""
    verb = {"merge": "merge", "rebase": "rebase", "ff": "rebase"}.get(way, "cherry-pick")
    return (
        f"atoll shell {name}, resolve it, git add the files, git {verb} --continue; "
        f"then: atoll promote {name}"
    )
