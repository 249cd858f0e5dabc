"""Cleanup after crashes. Every command calls `settle` first; `gc` calls `collect`.

A capsule whose lock is held belongs to a running command. One that is being created or removed and
is not locked was left by a killed command: its work is stored and it is removed. Runs without a
keeper are recorded as ended.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from atoll.drivers import registry
from atoll.engine.capsule import parts, removal
from atoll.engine.run import runs
from atoll.engine.state.leases import find_note
from atoll.engine.state.session import Session
from atoll.host import disk_space, files, git, locks, programs, view_client
from atoll.model.errors import AtollError, DriverError, StateError
from atoll.model.names import branch_of
from atoll.model.plan import WorkspacePlan
from atoll.model.state import CapsuleRecord, CapsuleState, ProjectRecord, RecoveryPoint, RunState

_FAILED = "unsettled"
"""A file in a capsule's directory: its time is that of the last failed cleanup."""
_AGAIN_S = 600.0
_LONG_S = 2.0


class Collected(NamedTuple):
    """What a cleanup found and removed."""

    capsules: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    recovered: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    """Capsules that the database had lost."""


def settle(session: Session, *, at: str = "", patient: bool = False) -> Collected:
    """Records ended runs, and removes capsules that a killed command left. Costs two queries if
    there are none.

    A cleanup that took long and failed is not retried for a while, unless `patient`: every command
    would wait for it. `at` is the working directory: the work of other projects is not stored.
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
            # A capsule that cannot be removed, for example because its disk is not mounted, must
            # not block the others; the next command tries again.
            is_left = any(left.id == capsule.id for left in session.store.unsettled())
            still = f"`{capsule.name}` is still {capsule.state}: " if is_left else ""
            short = (
                disk_space.find_shortage(session.home) if disk_space.is_shortage(error) else None
            )
            session.warn(f"{still}{error}" + (f"\nhint: {short.hint}" if short else ""))
            continue
        finished += [capsule.name] if done else []
        saved += [point.id] if point is not None else []
    return Collected(capsules=tuple(finished), runs=tuple(ended), recovered=tuple(saved))


def _unsettled_here(session: Session, at: str, *, patient: bool) -> list[CapsuleRecord]:
    """The capsules to clean up: all for `gc`. For other commands none whose repository is missing,
    and of other projects only those that have no work to store.
    """
    found = [c for c in session.store.unsettled() if not _is_in_use(session, c)]
    if not found or patient:
        return found
    place = os.path.realpath(at)
    # Without running git: this directory is not trusted yet.
    checkout = git.find_plain_checkout(place)
    there = {p.id: p for p in session.store.projects() if os.path.isdir(p.git_dir)}

    def is_here(project: ProjectRecord) -> bool:
        # The root is the checkout of the repository that was used last.
        is_main = checkout is not None and project.git_dir == os.path.join(checkout, ".git")
        return is_main or programs.is_below(place, [project.root])

    return [
        capsule
        for capsule in found
        if (project := there.get(capsule.project_id)) is not None
        and (is_here(project) or not _has_work_to_store(capsule))
    ]


def _is_in_use(session: Session, capsule: CapsuleRecord) -> bool:
    """Whether the command that made a temporary capsule for itself is still at work."""
    if not capsule.temporary:
        return False
    return locks.is_locked(session.temporary_lock(capsule.temporary).path)


def _has_work_to_store(capsule: CapsuleRecord) -> bool:
    """Whether its removal may still copy many files."""
    if capsule.temporary:
        return False
    return capsule.state is CapsuleState.REMOVING and removal.is_intact(capsule)


def _find_obstacle(session: Session, capsule: CapsuleRecord) -> str | None:
    """Why the work of a capsule is not stored now: on a full disk that would take the space that
    the current command may need for another capsule.
    """
    if not _has_work_to_store(capsule):
        return None
    short = disk_space.find_shortage(session.home)
    return None if short is None else short.message


def _note_failure(capsule: CapsuleRecord) -> None:
    with contextlib.suppress(OSError):
        Path(capsule.directory, _FAILED).touch(mode=0o600)


def _has_just_failed(capsule: CapsuleRecord) -> bool:
    try:
        noted = os.stat(Path(capsule.directory, _FAILED)).st_mtime
    except OSError:
        return False
    return 0 <= time.time() - noted < _AGAIN_S


def _finish(session: Session, capsule: CapsuleRecord) -> tuple[bool, RecoveryPoint | None]:
    """Removes what a killed command left; False when a running command has the lock."""
    lock = session.lock_of(capsule)
    if not lock.acquire():
        return False, None
    with lock:
        # Read again under the lock: its last holder may have completed the removal.
        for current in session.store.unsettled():
            if current.id == capsule.id and not _is_in_use(session, current):
                return True, removal.finish(session, current)
    return False, None


def collect(
    session: Session, *, dry_run: bool = False, gone: bool = False, bases: bool = False
) -> Collected:
    """Settles, then removes files that no capsule claims. Recovery points are never touched.

    With `bases` also unused layers that the next capsule would start from. With `gone` also the
    capsules whose repository is missing: it may be on a disk that is not mounted.
    """
    from atoll.engine.state import restore  # noqa: PLC0415 - for this one verb

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
    removed += _sweep_parts(session, dry_run=dry_run)
    removed += _collect_layers(session, dry_run=dry_run, bases=bases)
    removed += _collect_trials(session, dry_run=dry_run)
    removed += _collect_objects(session, dry_run=dry_run)
    if not dry_run:
        from atoll.engine.enclosure import cgroup_limits  # noqa: PLC0415 - for this one verb

        removed += cgroup_limits.sweep(session)
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


def _sweep_parts(session: Session, *, dry_run: bool) -> list[str]:
    """Removes what killed commands left of the parts of capsules that exist."""
    removed = []
    for capsule in session.store.capsules():
        lock = session.lock_of(capsule)
        if capsule.state is not CapsuleState.READY:
            continue
        # A dry run changes nothing, not even lock files: the home may be read-only.
        if _is_busy(session, capsule) if dry_run else not lock.acquire():
            continue
        with lock:
            if session.store.capsule(capsule.id) == capsule:
                for part in parts.registered():
                    removed += part.sweep(session, capsule, dry_run=dry_run)
    return removed


def _collect_layers(session: Session, *, dry_run: bool, bases: bool) -> list[str]:
    """Unused layers, and the trash."""
    from atoll.engine.history import upkeep  # noqa: PLC0415 - every command settles, few collect

    keep_s = 0.0 if bases else upkeep.KEEP_BASES_S
    if not dry_run:
        return [f"layer {name}" for name in upkeep.work(session, keep_bases_s=keep_s).layers]
    return [
        str(session.pool(project.id) / "layers" / layer)
        for project in session.store.projects()
        for layer in upkeep.collect(session, project, dry_run=True, keep_bases_s=keep_s)
    ]


def _collect_trials(session: Session, *, dry_run: bool) -> list[str]:
    """Leftovers of killed commands that belong to no capsule and no layer."""
    from atoll.drivers.layers import probes  # noqa: PLC0415 - as above
    from atoll.host.intake import quarantine  # noqa: PLC0415

    for project in [] if dry_run else session.store.projects():
        if not os.path.isdir(project.git_dir):
            continue
        try:
            quarantine.sweep(project.git_dir)
        except DriverError as error:
            # A damaged or read-only repository must not block the cleanup of the others.
            session.warn(f"`{project.git_dir}` is not cleaned up: {error}")
    return [str(path) for path in probes.sweep(session.home, dry_run=dry_run)]


def _collect_objects(session: Session, *, dry_run: bool) -> list[str]:
    """Git LFS objects of recovery points that do not exist."""
    from atoll.host.recovery import kept_lfs_objects  # noqa: PLC0415 - as above
    from atoll.host.recovery.recovery_points import Shelf  # noqa: PLC0415

    removed: list[Path] = []
    for project in session.store.projects():

        def is_busy(name: str, project_id: str = project.id) -> bool:
            if session.store.find_capsule(project_id, name) is not None:
                return True
            return locks.is_locked(session.capsule_lock(project_id, name).path)

        if not os.path.isdir(project.git_dir):
            continue
        # The recovery points of a repository that git cannot read are unknown.
        with contextlib.suppress(DriverError, StateError):
            shelf = Shelf(project.git_dir, session.home)
            removed += kept_lfs_objects.sweep(shelf, is_busy=is_busy, dry_run=dry_run)
    return [str(path) for path in removed]


def _unsettled(session: Session) -> Collected:
    """What `settle` would clean up."""
    capsules = [
        c.name
        for c in session.store.unsettled()
        if not _is_busy(session, c) and not _is_in_use(session, c)
    ]
    ended = [r.label for r in session.store.unfinished_runs() if not runs.is_alive(session, r)]
    return Collected(capsules=tuple(capsules), runs=tuple(ended))


def _collect_orphans(session: Session, *, dry_run: bool) -> tuple[list[str], list[str]]:
    """Removes capsules whose repository is missing; a stand-in repository gets their work."""
    from atoll.engine.project import missing_repository  # noqa: PLC0415 - for this one verb

    removed, recovered = [], []
    for capsule in missing_repository.orphans(session):
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
    """Capsule directories without a row, which only a lost database leaves."""
    claimed = {capsule.directory for capsule in session.store.capsules()}
    projects = session.home / "projects"
    found = [path for path in projects.glob("*/*") if str(path) not in claimed]
    # A command may be creating it right now.
    guarding = {path: session.capsule_lock(path.parent.name, path.name).path for path in found}
    return sorted(path for path in found if not locks.is_locked(guarding[path]))


def _is_busy(session: Session, capsule: CapsuleRecord) -> bool:
    return locks.is_locked(session.lock_of(capsule).path)


def _remove_unclaimed(session: Session, directory: Path) -> str | None:
    """Stores the work in the directory, removes the rest; returns where the work is, if any."""
    lock = session.capsule_lock(directory.parent.name, directory.name)
    if not lock.acquire():
        return None
    with lock:
        _end_unclaimed_runs(directory)
        name = f"{directory.name}/unclaimed-{os.stat(directory).st_ino}"
        plan = find_note(directory) or _plan_of_unclaimed(directory)
        if plan is None and (directory / "workspace").exists():
            # Without a repository work cannot be distinguished from copies: keep all files.
            files.move(directory, session.home / "recovered" / name)
            return str(session.home / "recovered" / name)
        point = None
        if plan is not None:
            driver = registry.workspace_driver(plan.driver)
            # Its keeper may still have the view open.
            view_client.ask(str(directory), {"end": True})
            point = driver.save(plan, point=name, base=plan.base_commit, home=session.home)
            driver.release(plan, home=session.home, keep_branch=True)
        files.remove_tree(directory, within=session.home)
    return None if point is None else point.id


def _end_unclaimed_runs(directory: Path) -> None:
    """Ends the runs there, so that nothing is written after the work was stored."""
    for run_directory in sorted((directory / "runs").glob("*")):
        runs.end_keeper(str(run_directory), grace_s=runs.GRACE_S)


def _plan_of_unclaimed(directory: Path) -> WorkspacePlan | None:
    """The plan of a worktree, as far as it can be read from its files."""
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
    """Lock files that no process holds; each is locked until the next is requested, for no longer:
    a command may be about to acquire it.
    """
    if session.read_only:
        return
    living = {f"run-{run.token}" for run in session.store.unfinished_runs()}
    for path in sorted([*session.home.glob("*.lock"), *(session.home / "locks").iterdir()]):
        lock = locks.Lock(path)
        if path.name not in living and lock.acquire():
            yield lock
