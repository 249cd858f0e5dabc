"""Where it is measured: a throw-away place with an Atoll home of its own, which goes in any case.

Law: when the context is over, however it ended, no process, file, worktree or ref is left. What a
killed bench could not remove is removed by the next one.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from atoll.drivers.layers.repository import PIN_PREFIX
from atoll.engine.enclosure import views
from atoll.engine.network import daemon_client
from atoll.engine.projects import Project
from atoll.engine.run import runs
from atoll.engine.state.session import Session
from atoll.host import files, git, kernel, locks, procfs
from atoll.host.process import wait_until
from atoll.model.errors import PrerequisiteError, StateError
from atoll.model.names import BRANCH_PREFIX
from atoll.model.units import render_size

_PREFIX = "atoll-bench-"
_LOCK = ".lock"
_ENDED_S = 60.0
_PATIENCE_S = 10.0
"""What is left after so long is no longer waited for: none of it can lose anything."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def throwaway(parent: Path) -> Iterator[Path]:
    """A directory below `parent`, which is gone afterwards. A lock beside it outlives it."""
    _remove_stale(parent)
    place = parent / f"{_PREFIX}{os.urandom(6).hex()}"
    lock = locks.Lock(place.with_suffix(_LOCK))
    if not lock.acquire():
        raise StateError(f"`{lock.path}` belongs to another process")
    try:
        place.mkdir(mode=0o700)
        yield place
    finally:
        with _undisturbed():
            end_processes(place)
            files.remove_tree(place, within=parent)
            lock.release(remove=True)


def _remove_stale(parent: Path) -> None:
    """Directories that a killed bench left: their locks are free."""
    for path in parent.glob(f"{_PREFIX}*{_LOCK}"):
        lock = locks.Lock(path)
        if path.stat().st_uid == os.geteuid() and lock.acquire():
            place = path.with_suffix("")
            end_processes(place, patience_s=0)
            files.remove_tree(place, within=parent)
            lock.release(remove=True)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """An impatient second Ctrl-C waits until all is removed; then it counts.

    By handlers and not by a mask: any thread may take a signal, and its handler runs in ours.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []

    def note(number: int, frame: object) -> None:
        del frame
        heard.append(number)

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if heard:
        signal.raise_signal(heard[0])


@contextmanager
def open_for(project: Project) -> Iterator[None]:
    """Ends what a project's capsules run, and takes Atoll's refs out of its repository."""
    try:
        yield
    finally:
        with _undisturbed():
            _end_views(project.session)
            with suppress(StateError):
                daemon_client.stop(project.session)
            project.session.forkserver.close()
            await_rest(project.session)
            project.session.store.close()
            _forget_refs(project.record.git_dir)


def _end_views(session: Session) -> None:
    for capsule in session.store.capsules():
        runs.stop_all(session, capsule)
        views.end_view(session, capsule)


def _forget_refs(repository: str) -> None:
    for prefix in (PIN_PREFIX, "refs/atoll/", f"refs/heads/{BRANCH_PREFIX}"):
        for ref, _ in git.refs_below(prefix, cwd=repository):
            git.git("update-ref", "-d", ref, cwd=repository)


def await_rest(session: Session) -> None:
    """Waits for what goes on in the background: it would compete with what is measured next."""
    home = str(session.home)

    def rests() -> bool:
        table = procfs.processes().values()
        return not any("atoll.engine." in p.command and home in p.command for p in table)

    wait_until(rests, timeout_s=_ENDED_S, interval_s=0.01)


def end_processes(place: Path, *, patience_s: float = _PATIENCE_S) -> None:
    """Ends everything that was started for `place`: it would create its home again."""

    def living() -> list[int]:
        table = procfs.processes().values()
        return [p.pid for p in table if f"{place}/" in p.command and "atoll." in p.command]

    if wait_until(lambda: not living(), timeout_s=patience_s):
        return
    for pid in living():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not living(), timeout_s=_ENDED_S)


def require_room(parent: Path, size_bytes: int, count: int) -> None:
    """Raises PrerequisiteError when there is no place for so much, or for so many files."""
    status = os.statvfs(parent)
    free = status.f_bavail * status.f_frsize
    if free < size_bytes:
        raise PrerequisiteError(
            f"the bench needs {render_size(size_bytes)} at `{parent}`, and {render_size(free)} "
            "are free",
            hint="choose a smaller --size, another --place, or --quick",
        )
    # Filesystems without a table of inodes say that there are none.
    if status.f_files and status.f_favail < count:
        raise PrerequisiteError(
            f"the bench needs {count:,} inodes at `{parent}`, and {status.f_favail:,} are free",
            hint="choose a smaller --size, or another --place",
        )


def settle_disk(place: Path) -> None:
    """Has all written that is waiting to be: it must not be written while something is measured."""
    kernel.sync_filesystem(place)
