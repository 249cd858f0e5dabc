"""The browser window of a capsule: a program of the owner's on the host, with its own profile.

It is known by its process and the moment that started, written down beside the profile: a later
process with the same number is somebody else's.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from atoll.drivers import registry
from atoll.drivers.contracts import BrowserDriver, BrowserRequest
from atoll.engine import profiles
from atoll.engine.session import Session
from atoll.host import files, programs
from atoll.host.process import Companion, launch, wait_until
from atoll.keeper import tree
from atoll.model.errors import DriverError, PrerequisiteError, StateError
from atoll.model.state import Capsule

CHOICE = "ATOLL_BROWSER"
"""The owner's choice: a program, by name or path."""
_NOTE = "window.json"
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
_FAILS_S = 1.5
"""A browser that cannot start says so at once."""
_POLITE_S = 10.0
_KILLED_S = 5.0


class Found(NamedTuple):
    """A browser of the owner's."""

    driver: BrowserDriver
    program: str


class Window(NamedTuple):
    pid: int
    start: int
    """In the kernel's ticks since boot."""
    program: str


def find_browser(session: Session, *, avoid: str, names: tuple[str, ...] = ()) -> Found | None:
    """Of the kinds `names`, the browser that the owner has chosen, or else the first that is
    installed; never a program from below `avoid`.
    """
    chosen, path = session.owner.get(CHOICE, ""), session.owner.get("PATH", os.defpath)
    kinds = names or registry.BROWSERS
    kind = "firefox" if "firefox" in os.path.basename(chosen) else "chromium"
    if chosen and kind in kinds:
        kinds = (kind,)
    else:
        # Chosen for windows only: it cannot be what is looked for.
        chosen = ""
    for name in kinds:
        driver = registry.browser_driver(name)
        program = driver.find_program(path, avoid=avoid, chosen=chosen)
        if program is not None:
            return Found(driver, program)
    return None


def require_browser(session: Session, *, avoid: str) -> Found:
    found = find_browser(session, avoid=avoid)
    if found is None:
        chosen = session.owner.get(CHOICE)
        raise PrerequisiteError(
            f"`{CHOICE}={chosen}` is not a program" if chosen else "no browser is installed",
            hint=registry.browser_driver(registry.BROWSERS[0]).cure(),
        )
    return found


def open_window(session: Session, capsule: Capsule, url: str, *, avoid: str) -> Window:
    """Opens a window with the capsule's profile, or a tab in the one that is open.

    Raises PrerequisiteError where there can be no window, DriverError when the browser fails.
    """
    found = require_browser(session, avoid=avoid)
    for problem in found.driver.check():
        raise PrerequisiteError(problem.what, hint=f"atoll open {capsule.name} --headless")
    if not any(session.owner.get(name) for name in _DISPLAYS):
        raise PrerequisiteError(
            "there is no display to open a window on: neither DISPLAY nor WAYLAND_DISPLAY is set",
            hint=f"atoll open {capsule.name} --headless",
        )
    profile = profiles.require(session, capsule, found.driver.name)
    window = find_window(capsule)
    request = BrowserRequest(found.program, str(profile), url, is_open=window is not None)
    # The owner's own program, with all of their environment but programs of a project: browsers
    # are often started by a script.
    path = programs.trusted_path(session.owner.get("PATH", ""), avoid=(avoid,))
    env = {**session.owner, "PATH": path}
    child = launch(found.driver.plan_window(request), keep_fds=(), env=env)
    if window is None:
        window = _note(capsule, child, found.program)
    has_ended = wait_until(lambda: child.poll() is not None, timeout_s=_FAILS_S)
    if has_ended and child.returncode != 0:
        raise DriverError(f"`{found.program}` ended at once with exit code {child.returncode}")
    return window


def _note(capsule: Capsule, child: Companion, program: str) -> Window:
    process = tree.find_process(child.pid)
    if process is None:
        raise DriverError(f"`{program}` ended at once")
    window = Window(pid=child.pid, start=process.start, program=program)
    content = json.dumps(window._asdict()).encode()
    files.write_atomic(profiles.place_of(capsule) / _NOTE, content, durable=False)
    return window


def find_window(capsule: Capsule) -> Window | None:
    """The window that is open now."""
    path = profiles.place_of(capsule) / _NOTE
    content = files.read_regular(path, limit_bytes=1 << 16)
    if content is None:
        return None
    try:
        window = Window(**json.loads(content))
    except (ValueError, TypeError):
        # Torn by a power cut, which has ended the window, too.
        return None
    return window if _find_process(window) is not None else None


def _find_process(window: Window) -> tree.Process | None:
    process = tree.find_process(window.pid)
    if process is None or process.start != window.start or process.is_dead:
        return None
    return process


def end_window(capsule: Capsule) -> bool:
    """Ends the window; False when there is none. Chromium is quick about it, and may not have
    written down what pages stored in the last half minute.
    """
    window = find_window(capsule)
    process = None if window is None else _find_process(window)
    if window is None or process is None:
        return False
    tree.send_signal(process, signal.SIGTERM, signal.SIGCONT)
    if not wait_until(lambda: _find_process(window) is None, timeout_s=_POLITE_S):
        for member in [*tree.processes_under(process.pid), process]:
            tree.send_signal(member, signal.SIGKILL)
        if not wait_until(lambda: _find_process(window) is None, timeout_s=_KILLED_S):
            raise StateError(
                f"the browser window of `{capsule.name}` does not end", hint=f"kill {window.pid}"
            )
    (profiles.place_of(capsule) / _NOTE).unlink(missing_ok=True)
    return True


@contextmanager
def held_still(session: Session, capsule: Capsule) -> Iterator[None]:
    """The window writes nothing meanwhile; it does not notice."""
    window = find_window(capsule)
    process = None if window is None else _find_process(window)
    if process is None:
        yield
        return
    members = [process, *tree.processes_under(process.pid)]
    key = f"window-{capsule.id}"
    # Known before it is done: else a kill in between would leave them stopped for good.
    session.nursery.thaw_if_killed(key, [member.pid for member in members])
    try:
        for member in members:
            tree.send_signal(member, signal.SIGSTOP)
        yield
    finally:
        for member in reversed(members):
            tree.send_signal(member, signal.SIGCONT)
        session.nursery.thaw_if_killed(key, ())
