"""Capsules are made from a plan, after the lease is written: whatever interrupts it, the lease
says what to undo.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from atoll.drivers import registry
from atoll.drivers.layers.pool import Pool
from atoll.engine import (
    bases,
    gone,
    inside,
    networks,
    ports,
    profiles,
    refusals,
    registries,
    removal,
    runs,
    snapshots,
    views,
)
from atoll.engine.attempts import Attempt
from atoll.engine.capsules import Capsule
from atoll.engine.leases import note_plan
from atoll.engine.session import Session
from atoll.host import git, locks
from atoll.host.points import recovered_tree
from atoll.model import state
from atoll.model.errors import AtollError, DriverError, StateError
from atoll.model.names import printable
from atoll.model.plan import CapsulePlan
from atoll.model.state import CapsuleState, Outcome, RecoveryPoint

_WITH_LFS = ("-c", "lfs.skipDownloadErrors=true")
"""For a git that restores files: a Git LFS file whose object is nowhere stays a pointer."""
_WITHOUT_LFS = (
    "-c", "filter.lfs.process=", "-c", "filter.lfs.smudge=", "-c", "filter.lfs.required=false",
)  # fmt: skip
"""For a second try: then all of them do."""


def make_capsules(
    session: Session,
    project: state.Project,
    plans: Sequence[CapsulePlan],
    *,
    point: RecoveryPoint | None = None,
    tell: bases.Tell | None = None,
) -> list[state.Capsule]:
    """Carries plans out, each with what `point` holds. If one fails, none is kept."""
    with ExitStack() as stack:
        held = {}
        for plan in plans:
            session.reach("new.planned", plan.name)
            held[plan.name] = stack.enter_context(_locked(session, project, plan.name))
        require_free(session, project, plans)
        if networks.has_own(plans[0].isolation):
            registries.look(session, plans[0].isolation.allow)
        with bases.grounded(session, project, plans, tell=tell, point=point) as grounded:
            session.reach("new.frozen", grounded[0].name)
            made = ports.lease_with_ports(
                session,
                [plan.ports for plan in grounded],
                lambda found: session.store.lease_capsules(
                    project, list(zip(grounded, found, strict=True))
                ),
            )
        try:
            for capsule, plan in zip(made, grounded, strict=True):
                session.reach("new.leased", plan.name)
                _apply(session, capsule, plan, held[plan.name].fd, point=point)
        except BaseException as error:
            # A StateError says that something was there before: it is not ours to remove.
            keep_branch = isinstance(error, StateError)
            for capsule in made:
                removal.announce(session, capsule, keep_branch=keep_branch)
                removal.remove(session, capsule)
            raise
        session.store.set_ready(made)
        for capsule in made:
            session.reach("new.ready", capsule.name)
    return [capsule._replace(state=CapsuleState.READY) for capsule in made]


def _locked(session: Session, project: state.Project, name: str) -> locks.Lock:
    lock = session.capsule_lock(project.id, name)
    if not lock.acquire():
        raise StateError(f"another command is working on `{name}`", hint="atoll ls")
    return lock


def require_free(session: Session, project: state.Project, plans: Sequence[CapsulePlan]) -> None:
    taken = {capsule.name for capsule in session.store.capsules(project.id)}
    for plan in plans:
        if plan.name in taken:
            raise StateError(
                f"there is a capsule `{plan.name}` already", hint=f"atoll show {plan.name}"
            )
        branch = plan.workspace.branch
        refs = plan.refs
        if branch is None or (refs is not None and refs.find(f"refs/heads/{branch}") is None):
            continue
        place = git.checked_out_at(branch, cwd=project.root)
        where = f" and is checked out at `{printable(place)}`" if place else ""
        raise StateError(
            f"the branch `{branch}` exists already{where}",
            hint=f"git branch -m {branch} {branch}-old, or choose another name",
        )


def _apply(
    session: Session,
    capsule: state.Capsule,
    plan: CapsulePlan,
    lock: int,
    *,
    point: RecoveryPoint | None,
) -> None:
    driver = registry.workspace_driver(plan.workspace.driver)
    driver.apply(plan.workspace, lock=lock)
    if plan.workspace.pool:
        note_plan(capsule, plan.workspace)
    session.reach("new.workspace", plan.name)
    registry.isolation_driver(plan.isolation.driver).apply(plan.isolation)
    session.reach("new.isolation", plan.name)
    for command in plan.setup:
        before = refusals.mark(capsule)
        outcome = _run_setup(session, capsule, command)
        if not outcome.good:
            raise SetupError(command, outcome, refusals.since(session, capsule, before))
    if point is not None:
        # After the set-up, which may change what the point holds.
        _restore(session, capsule, plan, point, lock)
    session.reach("new.setup", plan.name)


def _restore(
    session: Session, capsule: state.Capsule, plan: CapsulePlan, point: RecoveryPoint, lock: int
) -> None:
    """Files as they stood, index as it stood; the branch stands at the HEAD of that moment."""
    if not plan.workspace.pool:
        driver = registry.shared_driver(plan.workspace.driver)
        gone.warn_of_heads(session, driver.restore(plan.workspace, point, lock=lock))
        return
    _read_tree(session, capsule, point, "-u", "--reset", recovered_tree(point))
    _restore_submodules(session, capsule, plan, point)
    if point.files is not None:
        # Not through the view: the files may be many, and no program inside is needed.
        views.end_view(session, capsule)
        layered = registry.layered_driver(plan.workspace.driver)
        layered.put_back(plan.workspace, Path(point.files))
    _read_tree(session, capsule, point, point.index_commit or point.head_commit)


def _read_tree(session: Session, capsule: state.Capsule, point: RecoveryPoint, *words: str) -> None:
    """Its own git puts the files there, as a run: the set-up has run before."""
    said = b""
    for options in (_WITH_LFS, _WITHOUT_LFS):
        argv = ("git", *options, "read-tree", *words)
        done = inside.ask(session, capsule, argv, states=(CapsuleState.CREATING,))
        if done.code == 0:
            return
        said = done.stderr[-1000:]
    shown = printable(said.decode(errors="replace").strip())
    raise DriverError(f"the point `{point.id}` cannot be restored: {shown}")


def _restore_submodules(
    session: Session, capsule: state.Capsule, plan: CapsulePlan, point: RecoveryPoint
) -> None:
    """Lets submodules follow that the point has elsewhere than its HEAD: git leaves them alone."""
    before, after = (
        git.gitlinks(commit, cwd=plan.workspace.repository)
        for commit in (point.head_commit, point.commit)
    )
    gone = sorted(before.keys() - after.keys())
    moved = sorted(path for path, commit in after.items() if before.get(path) != commit)
    update = ("git", "submodule", "--quiet", "update", "--init", "--no-fetch", "--recursive", "--")
    for argv, paths in ((("rm", "-rf", "--"), gone), (update, moved)):
        if not paths:
            continue
        done = inside.ask(session, capsule, (*argv, *paths), states=(CapsuleState.CREATING,))
        if done.code != 0:
            names = ", ".join(f"`{printable(path)}`" for path in paths[:3])
            session.warn(
                f"the submodules {names} of `{capsule.name}` are not at the commits that the point "
                "records: these are in your own submodules, below refs/atoll/commits/"
            )


def fork_capsule(
    session: Session,
    project: state.Project,
    origin: state.Capsule,
    plan: CapsulePlan,
    point: state.Snapshot,
) -> state.Capsule:
    """Makes a capsule that starts from a point of another. What fails on the way is undone."""
    with _locked(session, project, plan.name):
        require_free(session, project, [plan])
        with Pool(session.pool(project.id)).turn(shared=True):
            forked = snapshots.fork_plan(session, origin, plan, point.layers)
            capsule = ports.lease_with_ports(
                session,
                [forked.ports],
                lambda found: session.store.lease_capsules(project, [(forked, found[0])]),
            )[0]
        session.reach("fork.leased", plan.name)
        try:
            session.store.inherit_narrowings(capsule, origin)
            profiles.hand_on(session, origin, point.browser, capsule)
            snapshots.begin_fork(session, capsule, former=str(origin.branch))
        except BaseException:
            removal.announce(session, capsule)
            removal.remove(session, capsule)
            raise
        session.store.set_ready([capsule])
        session.reach("fork.ready", plan.name)
    return capsule._replace(state=CapsuleState.READY)


class SetupError(AtollError):
    """A set-up command of the project file said no; the capsule was not kept."""

    exit_code = 1
    kind = "setup"

    def __init__(self, command: str, outcome: Outcome, refused: list[Attempt]) -> None:
        said = f", after saying\n{outcome.message}" if outcome.message else ""
        count = refusals.count(refused)
        # The capsule goes, so that only the project can be allowed something.
        cure = refusals.allow_command("--project", refused)
        network = f"\nnetwork: {count}" if count else ""
        super().__init__(
            f"the set-up command `{command}` failed with exit code {outcome.shell_code}{said}"
            f"{network}",
            hint=cure or "correct it in atoll.toml, then: atoll trust",
        )


def _run_setup(session: Session, capsule: state.Capsule, command: str) -> Outcome:
    handle = Capsule(session=session, record=capsule)
    spec = runs.RunSpec(argv=("/bin/sh", "-c", command), stdin=False)
    states = (CapsuleState.CREATING,)
    run = runs.start(session, capsule, handle.enclosure(), spec, states=states)
    result = handle.follow(run)
    if not result.outcome.good:
        # The capsule goes, and its log with it: the end of what was said is all that stays.
        said = (result.stdout + result.stderr)[-4000:].decode(errors="replace").strip()
        tail = "\n".join(f"  {printable(line)}" for line in said.splitlines()[-12:])
        return result.outcome._replace(message=tail or None)
    return result.outcome
