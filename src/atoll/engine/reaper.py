"""Puts right what a crash left. Every command calls `settle` first; `gc` calls `collect`.

Whoever holds a lock is alive and is left alone. What is unsettled and unlocked belongs to a
command that died: half-made and half-removed capsules are removed (after their work is saved),
runs without a keeper are swept.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from atoll.drivers import registry
from atoll.engine import removal, runs
from atoll.engine.leases import find_note
from atoll.engine.session import Session
from atoll.host import discovery, files, git, locks, programs, space, views
from atoll.model.errors import AtollError, DriverError, StateError
from atoll.model.names import branch_of
from atoll.model.plan import WorkspacePlan
from atoll.model.state import Capsule, CapsuleState, Project, RecoveryPoint, RunState

_FAILED = "unsettled"
"""A file in a capsule's directory: when it was last tried in vain to put it right."""
_AGAIN_S = 600.0
_LONG_S = 2.0


class Collected(NamedTuple):
    """What a collection found and put right."""

    capsules: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    recovered: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    """Capsules that the database had lost."""


def settle(session: Session, *, at: str = "", patient: bool = False) -> Collected:
    """Cheap when all is well: two queries. What took long and could not be put right is left for
    later, unless `patient`: else one capsule would make every command wait. `at` is where the
    command was given: it stores no work of other projects.
    """
    if session.read_only:
        return Collected()
    ended = [
        run.label
        for run in session.store.unfinished_runs()
        if runs.settle(session, run).state is RunState.ENDED
    ]
    finished, saved = [], []
    for capsule in _unsettled_here(session, at, patient=patient):
        if not patient and _has_just_failed(capsule):
            session.warn(f"`{capsule.name}` is still {capsule.state}\nhint: atoll gc")
            continue
        if not patient and (reason := _find_obstacle(session, capsule)) is not None:
            session.warn(f"`{capsule.name}` is still {capsule.state}: {reason}\nhint: atoll gc")
            continue
        started = time.monotonic()
        try:
            done, point = _finish(session, capsule)
        except (AtollError, OSError) as error:
            if time.monotonic() - started > _LONG_S:
                _note_failure(capsule)
            # One that cannot be put right (its disk is away, its repository is broken) must not
            # keep anyone from the others; it stays as it is, and the next command tries again.
            is_left = any(left.id == capsule.id for left in session.store.unsettled())
            still = f"`{capsule.name}` is still {capsule.state}: " if is_left else ""
            short = space.find_shortage(session.home) if space.is_shortage(error) else None
            session.warn(f"{still}{error}" + (f"\nhint: {short.hint}" if short else ""))
            continue
        finished += [capsule.name] if done else []
        saved += [point.id] if point is not None else []
    return Collected(capsules=tuple(finished), runs=tuple(ended), recovered=tuple(saved))


def _unsettled_here(session: Session, at: str, *, patient: bool) -> list[Capsule]:
    """What a command tries to put right: `gc` everything, others not what belongs to a repository
    that is gone, so that no other project hears of it, and of other projects only what is quick.
    """
    found = session.store.unsettled()
    if not found or patient:
        return found
    place = os.path.realpath(at)
    # No git is asked: nothing is known yet of this place.
    checkout = discovery.find_plain_checkout(place)
    there = {p.id: p for p in session.store.projects() if os.path.isdir(p.git_dir)}

    def is_here(project: Project) -> bool:
        # The root is the checkout that was used last, of those that the repository has.
        is_main = checkout is not None and project.git_dir == os.path.join(checkout, ".git")
        return is_main or programs.is_below(place, [project.root])

    return [
        capsule
        for capsule in found
        if (project := there.get(capsule.project_id)) is not None
        and (is_here(project) or not _has_work_to_store(capsule))
    ]


def _has_work_to_store(capsule: Capsule) -> bool:
    """Whether its removal may still have to copy much."""
    return capsule.state is CapsuleState.REMOVING and removal.is_intact(capsule)


def _find_obstacle(session: Session, capsule: Capsule) -> str | None:
    """Why the work of a capsule is not stored now: on a full disk that would use up the room that
    a command about another capsule may be about to work with.
    """
    if not _has_work_to_store(capsule):
        return None
    short = space.find_shortage(session.home)
    return None if short is None else short.message


def _note_failure(capsule: Capsule) -> None:
    with contextlib.suppress(OSError):
        Path(capsule.directory, _FAILED).touch(mode=0o600)


def _has_just_failed(capsule: Capsule) -> bool:
    try:
        noted = os.stat(Path(capsule.directory, _FAILED)).st_mtime
    except OSError:
        return False
    return 0 <= time.time() - noted < _AGAIN_S


def _finish(session: Session, capsule: Capsule) -> tuple[bool, RecoveryPoint | None]:
    """Removes what a dead command left of a capsule; False when a living one works on it."""
    lock = session.lock_of(capsule)
    if not lock.acquire():
        return False, None
    with lock:
        # Read again under the lock: its holder may have settled it meanwhile.
        for current in session.store.unsettled():
            if current.id == capsule.id:
                return True, removal.finish(session, current)
    return False, None


def collect(
    session: Session, *, dry_run: bool = False, gone: bool = False, bases: bool = False
) -> Collected:
    """Settles, then removes files that no capsule claims. Recovery points are never touched.

    With `bases` also the layers that the next capsule would start from, unless one needs them now.
    With `gone` also the capsules whose repository is missing: only their owner knows whether it
    was deleted or lies on a disk that is not mounted.
    """
    from atoll.engine import restore  # noqa: PLC0415 - for this one verb

    restored = restore.adopt(session, dry_run=dry_run)
    settled = _unsettled(session) if dry_run else settle(session, patient=True)
    removed, recovered = _collect_orphans(session, dry_run=dry_run) if gone else ([], [])
    for directory in _unclaimed(session):
        if directory in restored:
            continue
        removed.append(str(directory))
        if not dry_run:
            kept = _remove_unclaimed(session, directory)
            recovered += [kept] if kept is not None else []
    removed += _collect_layers(session, dry_run=dry_run, bases=bases)
    removed += _collect_trials(session, dry_run=dry_run)
    removed += _collect_objects(session, dry_run=dry_run)
    if not dry_run:
        from atoll.engine import confines  # noqa: PLC0415 - for this one verb

        removed += confines.sweep(session)
    for lock in _dead_locks(session):
        removed.append(str(lock.path))
        if not dry_run:
            lock.release(remove=True)
        else:
            lock.release()
    return Collected(
        capsules=settled.capsules,
        runs=settled.runs,
        files=tuple(removed),
        recovered=(*settled.recovered, *recovered),
        restored=tuple(path.name for path in restored),
    )


def _collect_layers(session: Session, *, dry_run: bool, bases: bool) -> list[str]:
    """Layers that nothing needs, and what was thrown away before."""
    from atoll.engine import upkeep  # noqa: PLC0415 - every command settles, few collect

    keep_s = 0.0 if bases else upkeep.KEEP_BASES_S
    if not dry_run:
        return [f"layer {name}" for name in upkeep.work(session, keep_bases_s=keep_s).layers]
    return [
        str(session.pool(project.id) / "layers" / layer)
        for project in session.store.projects()
        for layer in upkeep.collect(session, project, dry_run=True, keep_bases_s=keep_s)
    ]


def _collect_trials(session: Session, *, dry_run: bool) -> list[str]:
    """What killed commands left that belongs to no capsule and no layer."""
    from atoll.drivers.layers import probes  # noqa: PLC0415 - as above
    from atoll.host import quarantine  # noqa: PLC0415

    for project in [] if dry_run else session.store.projects():
        if os.path.isdir(project.git_dir):
            quarantine.sweep(project.git_dir)
    return [str(path) for path in probes.sweep(session.home, dry_run=dry_run)]


def _collect_objects(session: Session, *, dry_run: bool) -> list[str]:
    """Git LFS objects that were kept for recovery points which do not exist."""
    from atoll.host import kept_objects  # noqa: PLC0415 - as above
    from atoll.host.points import Shelf  # noqa: PLC0415

    removed: list[Path] = []
    for project in session.store.projects():

        def is_busy(name: str, project_id: str = project.id) -> bool:
            if session.store.find_capsule(project_id, name) is not None:
                return True
            return locks.is_locked(session.capsule_lock(project_id, name).path)

        if not os.path.isdir(project.git_dir):
            continue
        # A repository that git cannot read says nothing about its points.
        with contextlib.suppress(DriverError, StateError):
            shelf = Shelf(project.git_dir, session.home)
            removed += kept_objects.sweep(shelf, is_busy=is_busy, dry_run=dry_run)
    return [str(path) for path in removed]


def _unsettled(session: Session) -> Collected:
    """What `settle` would put right."""
    capsules = [c.name for c in session.store.unsettled() if not _is_busy(session, c)]
    ended = [r.label for r in session.store.unfinished_runs() if not runs.is_alive(session, r)]
    return Collected(capsules=tuple(capsules), runs=tuple(ended))


def _collect_orphans(session: Session, *, dry_run: bool) -> tuple[list[str], list[str]]:
    """Capsules whose repository is gone: their work is stored in a stand-in, then they go."""
    from atoll.engine import gone  # noqa: PLC0415 - for this one verb

    removed, recovered = [], []
    for capsule in gone.orphans(session):
        lock = session.lock_of(capsule)
        if not lock.acquire():
            continue
        with lock:
            removed.append(capsule.directory)
            if not dry_run:
                point = removal.finish(session, capsule)
                recovered += [point.id] if point is not None else []
    return removed, recovered


def _unclaimed(session: Session) -> list[Path]:
    """Capsule directories without a capsule: from a lost database, never from a crash."""
    claimed = {capsule.directory for capsule in session.store.capsules()}
    projects = session.home / "projects"
    found = [path for path in projects.glob("*/*") if str(path) not in claimed]
    # A command may be making one right now, between its lease and its first file.
    guarding = {path: session.capsule_lock(path.parent.name, path.name).path for path in found}
    return sorted(path for path in found if not locks.is_locked(guarding[path]))


def _is_busy(session: Session, capsule: Capsule) -> bool:
    return locks.is_locked(session.lock_of(capsule).path)


def _remove_unclaimed(session: Session, directory: Path) -> str | None:
    """Keeps what the directory holds, removes the rest; returns where the work went, if any."""
    lock = session.capsule_lock(directory.parent.name, directory.name)
    if not lock.acquire():
        return None
    with lock:
        _end_unclaimed_runs(directory)
        name = f"{directory.name}/unclaimed-{os.stat(directory).st_ino}"
        plan = find_note(directory) or _plan_of_unclaimed(directory)
        if plan is None and (directory / "workspace").exists():
            # No repository can be found for it, so nobody can tell work from copies: keep it all.
            files.move(directory, session.home / "recovered" / name)
            return str(session.home / "recovered" / name)
        point = None
        if plan is not None:
            driver = registry.workspace_driver(plan.driver)
            # Its keeper may still hold a view.
            views.ask(str(directory), {"end": True})
            point = driver.save(plan, point=name, base=plan.base_commit, home=session.home)
            driver.release(plan, home=session.home, keep_branch=True)
        files.remove_tree(directory, within=session.home)
    return None if point is None else point.id


def _end_unclaimed_runs(directory: Path) -> None:
    """Ends what still runs there, so that nothing is written after it was saved."""
    for run_directory in sorted((directory / "runs").glob("*")):
        runs.end_keeper(str(run_directory), grace_s=runs.GRACE_S)


def _plan_of_unclaimed(directory: Path) -> WorkspacePlan | None:
    """Rebuilds the plan of a worktree from what is on disk."""
    workspace = next((path for path in (directory / "workspace").glob("*")), None)
    if workspace is None or not (workspace / ".git").is_file():
        return None
    try:
        checkout = git.find_checkout(str(workspace))
    except StateError:
        return None
    base = git.find_commit("HEAD", cwd=str(workspace))
    if base is None:
        return None
    return WorkspacePlan(
        driver="worktree",
        repository=checkout.repository,
        checkout=checkout.root,
        path=str(workspace),
        branch=branch_of(directory.name),
        base_commit=base,
    )


def _dead_locks(session: Session) -> Iterator[locks.Lock]:
    """Lock files whose holder died; each is locked until the next one, for no longer: somebody
    may just have made it and want it.
    """
    if session.read_only:
        return
    living = {f"run-{run.token}" for run in session.store.unfinished_runs()}
    for path in sorted([*session.home.glob("*.lock"), *(session.home / "locks").iterdir()]):
        lock = locks.Lock(path)
        if path.name not in living and lock.acquire():
            yield lock
