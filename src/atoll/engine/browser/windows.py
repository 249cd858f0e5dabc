"""The browser window of a capsule: a host program with the capsule's own profile.

It is identified by process id and start time, noted beside the profile: process ids are reused.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from atoll.drivers import registry
from atoll.drivers.contracts import BrowserDriver, BrowserRequest
from atoll.engine.state.session import Session
from atoll.host import files, programs
from atoll.host.process import Companion, launch, wait_until
from atoll.keeper import process_tree
from atoll.model.errors import DriverError, PrerequisiteError, StateError
from atoll.model.state import CapsuleRecord

CHOICE = "ATOLL_BROWSER"
"""The browser that the owner chose: a program, by name or path."""
_PLACE = "browser"
_NOTE = "window.json"
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
_FAILS_S = 1.5
"""A browser that cannot start fails within this time."""
_TERMINATE_S = 10.0
_KILL_S = 5.0


def place_of(capsule: CapsuleRecord) -> Path:
    """The directory of all browser profiles of a capsule, and of the note about its window."""
    return Path(capsule.directory, _PLACE)


class FoundBrowser(NamedTuple):
    driver: BrowserDriver
    program: str


class Window(NamedTuple):
    pid: int
    start: int
    """In clock ticks since boot."""
    program: str


def find_browser(
    session: Session, *, avoid: str, names: tuple[str, ...] = ()
) -> FoundBrowser | None:
    """The browser that the owner chose, or the first that is installed, of the drivers `names`
    (default: all). A program below `avoid` is never used.
    """
    chosen, path = session.owner.get(CHOICE, ""), session.owner.get("PATH", os.defpath)
    kinds = names or registry.BROWSERS
    own = (name for name in registry.BROWSERS if registry.browser_driver(name).is_own(chosen))
    # Most browsers that no driver knows are based on that of the first one.
    kind = next(own, registry.BROWSERS[0])
    if chosen and kind in kinds:
        kinds = (kind,)
    else:
        # The choice is for windows and is not one of `names`.
        chosen = ""
    for name in kinds:
        driver = registry.browser_driver(name)
        program = driver.find_program(path, avoid=avoid, chosen=chosen)
        if program is not None:
            return FoundBrowser(driver, program)
    return None


def require_browser(session: Session, *, avoid: str) -> FoundBrowser:
    found = find_browser(session, avoid=avoid)
    if found is None:
        chosen = session.owner.get(CHOICE)
        raise PrerequisiteError(
            f"`{CHOICE}={chosen}` is not a program" if chosen else "no browser is installed",
            hint=registry.browser_driver(registry.BROWSERS[0]).cure(),
        )
    return found


def require_window_browser(session: Session, capsule: CapsuleRecord, *, avoid: str) -> FoundBrowser:
    """The browser to open a window with. Raises PrerequisiteError where no window is possible."""
    found = require_browser(session, avoid=avoid)
    for problem in found.driver.check():
        raise PrerequisiteError(problem.what, hint=f"atoll open {capsule.name} --headless")
    if not any(session.owner.get(name) for name in _DISPLAYS):
        raise PrerequisiteError(
            "there is no display to open a window on: neither DISPLAY nor WAYLAND_DISPLAY is set",
            hint=f"atoll open {capsule.name} --headless",
        )
    return found


def open_window(
    session: Session,
    capsule: CapsuleRecord,
    found: FoundBrowser,
    profile: Path,
    url: str,
    *,
    avoid: str,
) -> Window:
    """Opens a window with this profile, or a tab in the window that is open.

    Raises DriverError when the browser fails.
    """
    window = find_window(capsule)
    request = BrowserRequest(found.program, str(profile), url, is_open=window is not None)
    # It runs on the host with the owner's environment, except programs of the project on PATH:
    # browsers are often started by a script.
    path = programs.trusted_path(session.owner.get("PATH", ""), avoid=(avoid,))
    env = {**session.owner, "PATH": path}
    child = launch(found.driver.plan_window(request), keep_fds=(), env=env)
    if window is None:
        window = _note(capsule, child, found.program)
    has_ended = wait_until(lambda: child.poll() is not None, timeout_s=_FAILS_S)
    if has_ended and child.returncode != 0:
        raise DriverError(f"`{found.program}` ended at once with exit code {child.returncode}")
    return window


def _note(capsule: CapsuleRecord, child: Companion, program: str) -> Window:
    process = process_tree.find_process(child.pid)
    if process is None:
        raise DriverError(f"`{program}` ended at once")
    window = Window(pid=child.pid, start=process.start, program=program)
    content = json.dumps(window._asdict()).encode()
    files.write_atomic(place_of(capsule) / _NOTE, content, durable=False)
    return window


def find_window(capsule: CapsuleRecord) -> Window | None:
    """The window that is open now."""
    path = place_of(capsule) / _NOTE
    content = files.read_regular(path, limit_bytes=1 << 16)
    if content is None:
        return None
    try:
        window = Window(**json.loads(content))
    except (ValueError, TypeError):
        # Written partly before a power cut, which ended the window, too.
        return None
    return window if _find_process(window) is not None else None


def _find_process(window: Window) -> process_tree.TreeProcess | None:
    process = process_tree.find_process(window.pid)
    if process is None or process.start != window.start or process.is_dead:
        return None
    return process


def end_window(capsule: CapsuleRecord) -> bool:
    """Ends the window; False when there is none. Chromium may lose what pages stored in the last
    half minute.
    """
    window = find_window(capsule)
    process = None if window is None else _find_process(window)
    if window is None or process is None:
        return False
    process_tree.send_signal(process, signal.SIGTERM, signal.SIGCONT)
    if not wait_until(lambda: _find_process(window) is None, timeout_s=_TERMINATE_S):
        for member in [*process_tree.processes_under(process.pid), process]:
            process_tree.send_signal(member, signal.SIGKILL)
        if not wait_until(lambda: _find_process(window) is None, timeout_s=_KILL_S):
            raise StateError(
                f"cannot end the browser window of `{capsule.name}`", hint=f"kill {window.pid}"
            )
    (place_of(capsule) / _NOTE).unlink(missing_ok=True)
    return True


@contextmanager
def suspended(session: Session, capsule: CapsuleRecord) -> Iterator[None]:
    """Stops the processes of the window with SIGSTOP, so that they write nothing meanwhile."""
    window = find_window(capsule)
    process = None if window is None else _find_process(window)
    if process is None:
        yield
        return
    members = [process, *process_tree.processes_under(process.pid)]
    key = f"window-{capsule.id}"
    # Announced first: if this process is killed, the fork server continues them.
    session.forkserver.thaw_if_killed(key, [member.pid for member in members])
    try:
        for member in members:
            process_tree.send_signal(member, signal.SIGSTOP)
        yield
    finally:
        for member in reversed(members):
            process_tree.send_signal(member, signal.SIGCONT)
        session.forkserver.thaw_if_killed(key, ())
