"""Creation of capsules from plans, which are stored first: after a crash the reaper removes what
they describe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from atoll.drivers import registry
from atoll.drivers.layers.pool import Pool
from atoll.engine.capsule import foreground_runs, parts, removal
from atoll.engine.enclosure import views
from atoll.engine.history import bases, snapshots
from atoll.engine.network import ports, refusals, rules
from atoll.engine.network.egress_log import EgressAttempt
from atoll.engine.project import missing_repository, registries
from atoll.engine.run import internal_runs, runs
from atoll.engine.state.session import Session
from atoll.host import git, locks
from atoll.host.recovery.recovery_points import recovered_tree
from atoll.model import state
from atoll.model.errors import AtollError, DriverError, StateError
from atoll.model.lfs import WITHOUT_LFS
from atoll.model.names import printable
from atoll.model.plan import CapsulePlan
from atoll.model.state import CapsuleState, Outcome, RecoveryPoint

_WITH_LFS = ("-c", "lfs.skipDownloadErrors=true")
"""Options to restore files with: a Git LFS file whose object is missing stays a pointer."""

_MOST_AT_ONCE = 8
_STOP_S = 0.2


def make_capsules(
    session: Session,
    project: state.ProjectRecord,
    plans: Sequence[CapsulePlan],
    *,
    point: RecoveryPoint | None = None,
    on_progress: bases.FreezeProgress | None = None,
) -> list[state.CapsuleRecord]:
    """Makes the planned capsules, each with the work in `point`: all of them, or none."""
    with ExitStack() as stack:
        held = {}
        for plan in plans:
            session.reach("new.planned", plan.name)
            held[plan.name] = stack.enter_context(_locked(session, project, plan.name))
        require_free(session, project, plans)
        if rules.has_egress(plans[0].level, plans[0].isolation):
            registries.refresh(session, plans[0].isolation.allow)
        with bases.with_base(
            session, project, plans, on_progress=on_progress, point=point
        ) as based:
            session.reach("new.frozen", based[0].name)
            made = ports.lease_with_ports(
                session,
                [plan.ports for plan in based],
                lambda found: session.store.lease_capsules(
                    project, list(zip(based, found, strict=True)), parts.leases
                ),
            )
        try:
            _apply_all(
                session,
                made,
                [
                    partial(_apply, session, capsule, plan, held[plan.name].fd, point=point)
                    for capsule, plan in zip(made, based, strict=True)
                ],
                # A capsule on layers is a few small files, and mostly work of the interpreter.
                # Best of 5 to 7 on two busy cores, one by one and with threads: 20 capsules at
                # level `clone` 60 and 90 ms, 100 of them 314 and 497 ms; at level `sandbox` 20
                # capsules 109 and 103 ms, 100 of them 606 and 774 ms.
                is_parallel=bool(based[0].setup) or not based[0].workspace.is_layered,
            )
        except BaseException as error:
            # A StateError means that the branch existed before.
            keep_branch = isinstance(error, StateError)
            for capsule in made:
                removal.announce(session, capsule, keep_branch=keep_branch)
                removal.remove(session, capsule)
            raise
        session.store.set_ready(made)
        for capsule in made:
            session.reach("new.ready", capsule.name)
    return [capsule._replace(state=CapsuleState.READY) for capsule in made]


def _apply_all(
    session: Session,
    capsules: Sequence[state.CapsuleRecord],
    acts: Sequence[Callable[[], None]],
    *,
    is_parallel: bool,
) -> None:
    """Calls all of `acts`, several at once if `is_parallel`. When this raises, none is at work:
    runs of the capsules that are being set up have been stopped.
    """
    if len(acts) == 1 or not is_parallel:
        for act in acts:
            act()
        return
    from concurrent.futures import (  # noqa: PLC0415 - costs as much as a capsule
        FIRST_EXCEPTION,
        ThreadPoolExecutor,
        wait,
    )

    with ThreadPoolExecutor(max_workers=_MOST_AT_ONCE) as pool:
        futures = [pool.submit(act) for act in acts]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in futures:
                if future in done:
                    future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            while wait(futures, timeout=_STOP_S).not_done:
                for capsule in capsules:
                    runs.stop_all(session, capsule)
            raise


def _locked(session: Session, project: state.ProjectRecord, name: str) -> locks.Lock:
    lock = session.capsule_lock(project.id, name)
    if not lock.acquire():
        raise StateError(f"another command is working on `{name}`", hint="atoll ls")
    return lock


def require_free(
    session: Session, project: state.ProjectRecord, plans: Sequence[CapsulePlan]
) -> None:
    taken = {capsule.name for capsule in session.store.capsules(project.id)}
    for plan in plans:
        if plan.name in taken:
            raise StateError(
                f"the capsule `{plan.name}` already exists", hint=f"atoll show {plan.name}"
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
    capsule: state.CapsuleRecord,
    plan: CapsulePlan,
    lock: int,
    *,
    point: RecoveryPoint | None,
) -> None:
    session.reach("new.leased", plan.name)
    for part in parts.registered():
        part.create(session, capsule, plan, lock=lock)
    for command in plan.setup:
        before = refusals.mark(capsule)
        outcome = _run_setup(session, capsule, command)
        if not outcome.good:
            raise SetupError(command, outcome, refusals.since(session, capsule, before))
    if point is not None:
        # After the set-up, which may change the same files.
        _restore(session, capsule, plan, point, lock)
    session.reach("new.setup", plan.name)


def _restore(
    session: Session,
    capsule: state.CapsuleRecord,
    plan: CapsulePlan,
    point: RecoveryPoint,
    lock: int,
) -> None:
    """Restores the files and the index of a recovery point; the branch starts at its HEAD."""
    if not plan.workspace.is_layered:
        driver = registry.shared_driver(plan.workspace.driver)
        missing_repository.warn_of_heads(session, driver.restore(plan.workspace, point, lock=lock))
        return
    _read_tree(session, capsule, point, "-u", "--reset", recovered_tree(point))
    _restore_submodules(session, capsule, plan, point)
    if point.files is not None:
        # Not through the view: there may be many files, and no program inside is needed.
        views.end_view(session, capsule)
        layered = registry.layered_driver(plan.workspace.driver)
        layered.put_back(plan.workspace, Path(point.files))
    _read_tree(session, capsule, point, point.index_commit or point.head_commit)


def _read_tree(
    session: Session, capsule: state.CapsuleRecord, point: RecoveryPoint, *words: str
) -> None:
    """Runs git inside, since set-up commands may have changed the workspace."""
    said = b""
    for options in (_WITH_LFS, WITHOUT_LFS):
        argv = ("git", *options, "read-tree", *words)
        done = internal_runs.ask(session, capsule, argv, states=(CapsuleState.CREATING,))
        if done.code == 0:
            return
        said = done.stderr[-1000:]
    shown = printable(said.decode(errors="replace").strip())
    raise DriverError(f"the point `{point.id}` cannot be restored: {shown}")


def _restore_submodules(
    session: Session, capsule: state.CapsuleRecord, plan: CapsulePlan, point: RecoveryPoint
) -> None:
    """Checks out the submodules that differ between the HEAD and the files of the recovery point,
    which `read-tree` does not do.
    """
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
        done = internal_runs.ask(session, capsule, (*argv, *paths), states=(CapsuleState.CREATING,))
        if done.code != 0:
            names = ", ".join(f"`{printable(path)}`" for path in paths[:3])
            session.warn(
                f"the submodules {names} of `{capsule.name}` are not at the commits that the point "
                "records: these are in your own submodules, below refs/atoll/commits/"
            )


def fork_capsule(
    session: Session,
    project: state.ProjectRecord,
    origin: state.CapsuleRecord,
    plan: CapsulePlan,
    point: state.Snapshot,
) -> state.CapsuleRecord:
    """Makes a capsule that starts from a snapshot of another. It is removed if a step fails.

    Raises StateError for a snapshot that `snapshots.require_complete` refuses.
    """
    with _locked(session, project, plan.name):
        require_free(session, project, [plan])
        pool = Pool(session.pool(project.id))
        with pool.turn(shared=True):
            snapshots.require_complete(pool, origin, point)
            forked = _fork_plan(session, origin, plan, point)
            capsule = ports.lease_with_ports(
                session,
                [forked.ports],
                lambda found: session.store.lease_capsules(
                    project, [(forked, found[0])], parts.leases
                ),
            )[0]
        session.reach("fork.leased", plan.name)
        try:
            session.store.inherit_narrowings(capsule, origin)
            for part in parts.registered():
                part.fork(session, origin, point, capsule)
        except BaseException:
            removal.announce(session, capsule)
            removal.remove(session, capsule)
            raise
        session.store.set_ready([capsule])
        session.reach("fork.ready", plan.name)
    return capsule._replace(state=CapsuleState.READY)


def _fork_plan(
    session: Session, origin: state.CapsuleRecord, plan: CapsulePlan, point: state.Snapshot
) -> CapsulePlan:
    forked = plan._replace(
        level=origin.level, base_ref=origin.base_ref, base_commit=origin.base_commit, setup=()
    )
    for part in parts.registered():
        forked = part.plan_fork(session, origin, point, forked)
    return forked


class SetupError(AtollError):
    """A set-up command of the project file failed; the capsule was removed."""

    exit_code = 1
    kind = "setup"

    def __init__(self, command: str, outcome: Outcome, refused: list[EgressAttempt]) -> None:
        said = f", with this output:\n{outcome.message}" if outcome.message else ""
        count = refusals.count(refused)
        # The capsule is removed, so the hint allows it for the project.
        cure = refusals.allow_command("--project", refused)
        network = f"\nnetwork: {count}" if count else ""
        super().__init__(
            f"the set-up command `{command}` failed with exit code {outcome.shell_code}{said}"
            f"{network}",
            hint=cure or "correct it in atoll.toml, then: atoll trust",
        )


def _run_setup(session: Session, capsule: state.CapsuleRecord, command: str) -> Outcome:
    spec = runs.RunSpec(argv=("/bin/sh", "-c", command), stdin=False)
    states = (CapsuleState.CREATING,)
    inside = foreground_runs.enclosure(session, capsule)
    run = runs.start(session, capsule, inside, spec, states=states)
    result = foreground_runs.follow(session, capsule, run)
    if not result.outcome.good:
        # The log is removed with the capsule: keep the end of the output.
        said = (result.stdout + result.stderr)[-4000:].decode(errors="replace").strip()
        tail = "\n".join(f"  {printable(line)}" for line in said.splitlines()[-12:])
        return result.outcome._replace(message=tail or None)
    return result.outcome
