"""Work comes out: a capsule's commits become the branch `atoll/NAME` in the owner's repository.

Objects pass a quarantine; the branch moves by compare-and-swap, only from where Atoll itself left
it. Where it may stand is written down before it moves, so that a crash in between is no stranger.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from atoll.drivers import registry
from atoll.engine.leases import workspace_plan
from atoll.engine.session import Session, find_session
from atoll.host import git
from atoll.host.process import own_environment
from atoll.model.errors import AtollError, DriverError, StateError
from atoll.model.names import printable
from atoll.model.plan import WorkspacePlan
from atoll.model.state import Capsule, CapsuleState, Run


class Exported(NamedTuple):
    branch: str
    commit: str
    moved: bool
    """False when the branch stood there already."""


def export_after_run(session: Session, capsule: Capsule) -> None:
    """Brings out what a run has committed. Costs one read when it has committed nothing.

    What cannot be brought out stays in the capsule and is told; it is no failure of the run.
    """
    if capsule.branch is None:
        return
    try:
        plan = workspace_plan(session, capsule)
        if not plan.pool:
            return
        now = session.store.require_capsule(capsule.project_id, capsule.name)
        tip = registry.layered_driver(plan.driver).tip(plan)
        if tip is not None and _is_out(now, tip, plan):
            return
        export(session, now)
    except AtollError as error:
        hint = f"; {error.hint}" if error.hint else ""
        session.warn(f"the work of `{capsule.name}` was not brought out: {error.message}{hint}")


def _is_out(capsule: Capsule, tip: str, plan: WorkspacePlan) -> bool:
    """Whether the branch holds a commit. It never goes back by itself: it may hold more than the
    capsule does, such as what was not committed there, or what a rollback or a crash took away.
    """
    if not capsule.exported:
        return tip == plan.base_commit
    last: str | None = capsule.exported[-1]
    if len(capsule.exported) > 1:
        # An export was killed before it could tell whether it had moved the branch.
        last = git.find_ref(f"refs/heads/{capsule.branch}", cwd=plan.repository)
    return tip == last or (last is not None and git.is_ancestor(tip, last, cwd=plan.repository))


def export_when_over(session: Session, capsule: Capsule, run: Run) -> None:
    """Has the work of a background run brought out when that ends, whoever is there then."""
    root = str(Path(__file__).parents[2])
    program = (
        f"import sys; sys.path.append({root!r}); from atoll.engine.exports import main; main()"
    )
    argv = [sys.executable, "-I", "-c", program, str(session.home), str(capsule.id)]
    lock = session.run_lock(run.token).path
    session.nursery.watch(str(lock), argv, own_environment())


def main() -> None:
    """`HOME CAPSULE`: brings out what a capsule has committed, if it still exists."""
    session = find_session(Path(sys.argv[1]))
    if session is None:
        return
    for capsule in session.store.capsules():
        if capsule.id == int(sys.argv[2]) and capsule.state is CapsuleState.READY:
            export_after_run(session, capsule)


def export(session: Session, capsule: Capsule, *, everything: bool = False) -> Exported:
    """Raises StateError when it is refused, or when somebody else has moved the branch."""
    plan = workspace_plan(session, capsule)
    branch = capsule.branch
    if branch is None:
        raise StateError(
            f"`{capsule.name}` is the checkout itself: its commits are in it already",
            hint="git log",
        )
    if not plan.pool:
        return _shared(session, capsule, branch, everything=everything)
    driver = registry.layered_driver(plan.driver)
    brought = driver.bring(plan, everything=everything)
    if brought is None:
        raise StateError(
            f"`{capsule.name}` has no branch `{branch}` any more",
            hint=f"atoll run {capsule.name} -- git switch -c {branch}",
        )
    session.reach("export.brought", capsule.name)
    warn_of(session, capsule, brought.notes)
    return place(session, capsule, plan, brought.commit)


def warn_of(session: Session, capsule: Capsule, notes: Sequence[str]) -> None:
    """Says what of the commits could not be brought out whole."""
    for note in notes:
        session.warn(f"`{capsule.name}`: {note}")


def place(session: Session, capsule: Capsule, plan: WorkspacePlan, tip: str) -> Exported:
    """Moves the capsule's branch to a commit that the owner's repository has."""
    branch = str(capsule.branch)
    with git.turn(plan.repository):
        moved = _move(session, capsule, branch, tip, repository=plan.repository)
    return Exported(branch=branch, commit=tip, moved=moved)


def _shared(session: Session, capsule: Capsule, branch: str, *, everything: bool) -> Exported:
    """A worktree's commits are in the owner's repository from the start."""
    if everything:
        raise StateError(
            f"`{capsule.name}` is a worktree: what is not committed cannot be exported",
            hint=f'atoll commit {capsule.name} -m "…"',
        )
    plan = workspace_plan(session, capsule)
    commit = git.find_ref(f"refs/heads/{branch}", cwd=plan.repository)
    if commit is None:
        raise StateError(f"there is no branch `{branch}`", hint="git branch --all")
    return Exported(branch=branch, commit=commit, moved=False)


def _move(session: Session, capsule: Capsule, branch: str, tip: str, *, repository: str) -> bool:
    ref = f"refs/heads/{branch}"
    stands = git.find_ref(ref, cwd=repository)
    now = session.store.require_capsule(capsule.project_id, capsule.name)
    if stands not in (None, tip, *now.exported) and not (
        # Nothing is known of it after a crash; but to go forward can do no harm.
        not now.exported and git.is_ancestor(str(stands), tip, cwd=repository)
    ):
        raise StateError(
            f"the branch `{branch}` was moved to {str(stands)[:10]} by somebody else: "
            "not overwritten",
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
