"""Exports a capsule's commits as the branch `atoll/NAME` in the owner's repository.

Objects pass a quarantine; the branch moves by compare-and-swap, only from the commit where Atoll
left it. Its new position is recorded before it moves, so that a crash in between is recognised.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from atoll.drivers import registry
from atoll.engine.run import runs
from atoll.engine.secret import scan
from atoll.engine.state.leases import workspace_plan
from atoll.engine.state.session import Session, find_session
from atoll.host import git
from atoll.host.programs import own_environment, python_command
from atoll.model.errors import AtollError, DriverError, StateError
from atoll.model.names import printable
from atoll.model.plan import WorkspacePlan
from atoll.model.state import CapsuleRecord, CapsuleState, Run


class Exported(NamedTuple):
    branch: str
    commit: str
    moved: bool
    """False when the branch stood there already."""


def export_after_run(session: Session, capsule: CapsuleRecord) -> None:
    """Exports what a run has committed. Costs one read when it has committed nothing.

    Commits that cannot be exported stay in the capsule with a warning; the run does not fail.
    """
    if capsule.branch is None or capsule.temporary:
        return
    try:
        export_new(session, capsule)
    except AtollError as error:
        hint = f"; {error.hint}" if error.hint else ""
        session.warn(f"the commits of `{capsule.name}` were not exported: {error.message}{hint}")


def export_new(session: Session, capsule: CapsuleRecord) -> None:
    """Exports what is not out yet. Raises what `export` raises."""
    plan = workspace_plan(session, capsule)
    if not plan.is_layered:
        return
    now = session.store.require_capsule(capsule.project_id, capsule.name)
    tip = registry.layered_driver(plan.driver).tip(plan)
    if tip is None or not _is_out(now, tip, plan):
        export(session, now)


def _is_out(capsule: CapsuleRecord, tip: str, plan: WorkspacePlan) -> bool:
    """Whether the branch holds a commit. It never goes back by itself: it may hold more than the
    capsule does, such as what was not committed there, or what a rollback or a crash took away.
    """
    if not capsule.exported:
        return tip == plan.base_commit
    last: str | None = capsule.exported[-1]
    if len(capsule.exported) > 1:
        # An export was killed, perhaps after it had moved the branch.
        last = git.find_ref(f"refs/heads/{capsule.branch}", cwd=plan.repository)
    return tip == last or (last is not None and git.is_ancestor(tip, last, cwd=plan.repository))


def finish_when_over(session: Session, run: Run) -> None:
    """Records the end of a background run and exports its commits as soon as it has ended, in a
    process of its own. If that is killed, the next command records the end.
    """
    start_when_over(session, run, "atoll.engine.capsule.exports", own_environment())


def start_when_over(session: Session, run: Run, module: str, env: Mapping[str, str]) -> None:
    """Starts a module with `HOME RUN`, and with the key of the vault if it needs that, as soon as a
    run has ended. It reads them with `settle_ended`.
    """
    argv = python_command(module, str(session.home), str(run.id))
    lock = session.run_lock(run.token).path
    key = scan.hand_over_key(session, run.capsule_id)
    try:
        session.forkserver.watch(str(lock), argv, env, keep=() if key is None else (key,))
    finally:
        if key is not None:
            os.close(key)


def settle_ended(argv: Sequence[str]) -> tuple[Session, CapsuleRecord, Run] | None:
    """Records the end of the run in `HOME RUN [KEY]`; None if its capsule does not exist any more.

    `KEY` is a descriptor with the key of the vault.
    """
    session = find_session(Path(argv[0]))
    if len(argv) > 2:
        from atoll.engine.secret import vault_keys  # noqa: PLC0415 - for few capsules

        vault_keys.take_over(Path(argv[0]), int(argv[2]))
    if session is not None:
        session.is_detached = True
    run = None if session is None else session.store.find_run(int(argv[1]))
    if session is None or run is None:
        return None
    ended = runs.settle(session, run)
    capsule = session.store.capsule(run.capsule_id)
    if capsule is None or capsule.state is not CapsuleState.READY:
        return None
    return session, capsule, ended


def main() -> None:
    """`HOME RUN [KEY]`: finishes a run that has ended."""
    if (found := settle_ended(sys.argv[1:])) is not None:
        export_after_run(found[0], found[1])


def export(session: Session, capsule: CapsuleRecord, *, everything: bool = False) -> Exported:
    """Raises StateError when it is refused, or when the branch was moved meanwhile."""
    plan = workspace_plan(session, capsule)
    branch = capsule.branch
    if branch is None:
        raise StateError(
            f"`{capsule.name}` uses the checkout itself: there is nothing to export",
            hint="git log",
        )
    if not plan.is_layered:
        return _shared(session, capsule, branch, everything=everything)
    driver = registry.layered_driver(plan.driver)
    search = scan.find_search(session, capsule)
    exported = driver.export_commits(plan, everything=everything, search=search)
    if exported is None:
        raise StateError(
            f"`{capsule.name}` has no branch `{branch}` any more",
            hint=f"atoll run {capsule.name} -- git switch -c {branch}",
        )
    session.reach("export.brought", capsule.name)
    scan.require_clean(capsule, plan.repository, exported.commit, search)
    warn_of(session, capsule, exported.notes)
    return place(session, capsule, plan, exported.commit)


def warn_of(session: Session, capsule: CapsuleRecord, notes: Sequence[str]) -> None:
    """Warns of what could not be exported completely."""
    for note in notes:
        session.warn(f"`{capsule.name}`: {note}")


def place(session: Session, capsule: CapsuleRecord, plan: WorkspacePlan, tip: str) -> Exported:
    """Moves the capsule's branch to a commit that the owner's repository has."""
    branch = str(capsule.branch)
    with git.turn(plan.repository):
        moved = _move(session, capsule, branch, tip, repository=plan.repository)
    return Exported(branch=branch, commit=tip, moved=moved)


def _shared(session: Session, capsule: CapsuleRecord, branch: str, *, everything: bool) -> Exported:
    """A worktree's commits are in the owner's repository from the start."""
    if everything:
        raise StateError(
            f"`{capsule.name}` is a worktree: uncommitted changes cannot be exported",
            hint=f'atoll commit {capsule.name} -m "…"',
        )
    plan = workspace_plan(session, capsule)
    commit = git.find_ref(f"refs/heads/{branch}", cwd=plan.repository)
    if commit is None:
        raise StateError(f"there is no branch `{branch}`", hint="git branch --all")
    return Exported(branch=branch, commit=commit, moved=False)


def _move(
    session: Session, capsule: CapsuleRecord, branch: str, tip: str, *, repository: str
) -> bool:
    ref = f"refs/heads/{branch}"
    stands = git.find_ref(ref, cwd=repository)
    now = session.store.require_capsule(capsule.project_id, capsule.name)
    if stands not in (None, tip, *now.exported) and not (
        # Nothing is known of it after a crash; but to go forward can do no harm.
        not now.exported and git.is_ancestor(str(stands), tip, cwd=repository)
    ):
        raise StateError(
            f"the branch `{branch}` was moved to {str(stands)[:10]} outside Atoll: not overwritten",
            hint=f"git branch -m {branch} {branch}-mine, then: atoll export {capsule.name}",
        )
    if stands != tip and (place := git.checked_out_at(branch, cwd=repository)) is not None:
        raise StateError(
            f"the branch `{branch}` is checked out at `{printable(place)}`: not moved under it",
            hint=f"git switch there to another branch, then: atoll export {capsule.name}",
        )
    session.store.set_exported(capsule, [stands or "", tip])
    session.reach("export.announced", capsule.name)
    if stands != tip:
        try:
            git.move_ref(ref, tip, old=stands, cwd=repository)
        except DriverError as error:
            raise StateError(
                f"the branch `{branch}` could not be moved: {error.message}",
                hint=f"atoll export {capsule.name}",
            ) from error
    session.reach("export.moved", capsule.name)
    session.store.set_exported(capsule, [tip])
    return stands != tip
