"""A capsule's browsers: one inside, with no window, for its agents; one on the host for its owner.

The one inside is an ordinary background run behind the walls, with its profile in the private HOME
and its orders taken on the capsule's own loopback: only what runs in the capsule reaches it, and
whatever carries the HOME carries it. There is one per capsule, known by the number of its run.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from atoll.drivers import registry
from atoll.drivers.contracts import BrowserRequest
from atoll.engine import addresses, freezer, profiles, runs, windows
from atoll.engine.inside import ask
from atoll.engine.leases import isolation_plan, workspace_plan
from atoll.engine.session import Session
from atoll.engine.windows import Window
from atoll.host import files, locks, views
from atoll.host.process import wait_until
from atoll.keeper.networks import BROWSER_PORT
from atoll.model import browsertools
from atoll.model.errors import DriverError, IsolationError, PrerequisiteError, StateError
from atoll.model.plan import Enclosure, IsolationPlan
from atoll.model.state import Capsule, Run, RunState, require_outcome

ENDPOINT = f"http://127.0.0.1:{BROWSER_PORT}"
"""Where the browser inside takes orders, as the capsule's processes see it."""
Start = Callable[[runs.RunSpec], Run]
_PROFILE = ".atoll/browser"
"""Below the private HOME."""
_NOTE = "inside.json"
_ANSWERS_S = 60.0
_CLOSED_S = 10.0
_CONNECT_S = 5.0
_SAID_BYTES = 600


class Status(NamedTuple):
    """What a capsule has of browsers."""

    window: Window | None
    profile: str | None
    """The owner's, on the host."""
    inside: Run | None
    endpoint: str | None
    """None where the capsule has no network of its own."""


class Browser:
    """What can be asked of a capsule's browsers. `start` starts a run in it; nothing else is done
    to it within `alone`.
    """

    def __init__(
        self,
        session: Session,
        capsule: Capsule,
        start: Start,
        alone: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._session = session
        self._capsule = capsule
        self._start = start
        self._alone = alone

    def url(self, service: str | None = None, *, inside: bool = False) -> str:
        """Where a service is found: on the host, that or the first one; inside, or a blank page."""
        if inside:
            _require_network(self._session, self._capsule)
            return addresses.url_inside(self._capsule, service)
        return addresses.url_of(self._session, self._capsule, service)

    def open(self, service: str | None = None) -> Window:
        """Opens a service in the owner's browser, with the capsule's own profile."""
        url = self.url(service)
        with _turn(self._session, self._capsule):
            avoid = workspace_plan(self._session, self._capsule).checkout
            return windows.open_window(self._session, self._capsule, url, avoid=avoid)

    def open_inside(self, service: str | None = None) -> Run:
        """Opens a service in the browser inside; returns when that takes orders."""
        return open_inside(self._session, self._capsule, service, self._start)

    def status(self) -> Status:
        session, capsule = self._session, self._capsule
        profile = profiles.current(session, capsule)
        return Status(
            window=windows.find_window(capsule),
            profile=str(profiles.path_of(capsule, profile)) if profile else None,
            inside=find_inside(session, capsule),
            endpoint=ENDPOINT if isolation_plan(session, capsule).home else None,
        )

    def settings(self, tool: str) -> browsertools.Settings:
        """What a browser tool is told, so that it uses the browser inside."""
        _require_network(self._session, self._capsule)
        return browsertools.settings_of(tool, ENDPOINT)

    def reset(self) -> None:
        """Ends both browsers and removes what they remember. What snapshots hold stays."""
        with self._alone(), _turn(self._session, self._capsule):
            _reset(self._session, self._capsule)


def variables(session: Session, capsule: Capsule, inside: Enclosure) -> dict[str, str]:
    """Where tools find the browser. What makes them use it and no other, only while it is there:
    a tool that starts one of its own shall go on to do so.
    """
    if inside.walls is None:
        return {}
    is_there = find_inside(session, capsule) is not None
    tools = browsertools.VARIABLES if is_there else ()
    return dict.fromkeys(("ATOLL_BROWSER_URL", *tools), ENDPOINT)


def open_inside(session: Session, capsule: Capsule, service: str | None, start: Start) -> Run:
    """Opens a page in the browser inside, which `start` starts when there is none.

    Returns when it takes orders. Raises IsolationError where others could give it some,
    PrerequisiteError without a browser, StateError when its port is taken, DriverError when it
    does not come up.
    """
    plan = _require_network(session, capsule)
    url = addresses.url_inside(capsule, service)
    driver = registry.driven_browser()
    dial = partial(_dial, capsule.directory)
    with _turn(session, capsule):
        if (living := find_inside(session, capsule)) is not None:
            _await_answer(session, capsule, living)
            driver.open_page(dial, url)
            return living
        program = _require_program(session, plan)
        if _is_taken(dial):
            raise StateError(
                f"something in `{capsule.name}` listens on the browser's port {BROWSER_PORT}",
                hint=f"atoll ps {capsule.name}, then atoll stop {capsule.name}",
            )
        request = BrowserRequest(program, f"{plan.home}/{_PROFILE}", url)
        argv = driver.plan_headless(request, port=BROWSER_PORT, cwd=plan.workspace)
        run = start(runs.RunSpec(argv=argv, background=True))
        _note(capsule, run)
        _await_answer(session, capsule, run)
    return run


def find_inside(session: Session, capsule: Capsule) -> Run | None:
    """The run of the browser inside, while it lives."""
    content = files.read_regular(profiles.place_of(capsule) / _NOTE, limit_bytes=1 << 10)
    try:
        number = json.loads(content or b"null")
    except ValueError:
        return None
    for run in session.store.runs(capsule) if isinstance(number, int) else ():
        if run.number == number and runs.settle(session, run).state is not RunState.ENDED:
            return run
    return None


def close_inside(session: Session, capsule: Capsule) -> bool:
    """Has the browser inside write everything down and end; False when there is none, or when it
    does not listen. A signal would end its parts in the wrong order.
    """
    run = find_inside(session, capsule)
    if run is None or freezer.is_paused(capsule):
        return False
    try:
        registry.driven_browser().close(partial(_dial, capsule.directory))
    except OSError:
        return False
    return wait_until(lambda: not runs.is_alive(session, run), timeout_s=_CLOSED_S)


def tell_of_open(session: Session, capsule: Capsule) -> None:
    """Before a point is made: a browser that runs has not written everything down."""
    open_ones = [
        what
        for what, found in (
            ("window", windows.find_window(capsule)),
            ("browser", find_inside(session, capsule)),
        )
        if found is not None
    ]
    if open_ones:
        session.warn(
            f"the {' and the '.join(open_ones)} of `{capsule.name}` is open: what pages stored in "
            "the last half minute may be missing in the snapshot"
        )


def _reset(session: Session, capsule: Capsule) -> None:
    close_inside(session, capsule)
    if (run := find_inside(session, capsule)) is not None:
        runs.stop(session, run)
    windows.end_window(capsule)
    profiles.forget(session, capsule)
    plan = isolation_plan(session, capsule)
    if plan.home:
        ask(session, capsule, ("/bin/rm", "-rf", "--", f"{plan.home}/{_PROFILE}"))


def _turn(session: Session, capsule: Capsule) -> locks.Lock:
    """Of two commands the second finds what the first has opened."""
    lock = locks.Lock(session.home / "locks" / f"browser-{capsule.id}")
    lock.acquire(wait=True)
    return lock


def _require_network(session: Session, capsule: Capsule) -> IsolationPlan:
    plan = isolation_plan(session, capsule)
    if not plan.home:
        raise IsolationError(
            f"level `{capsule.level}` has the host's own network: every program on this machine "
            "could give orders to a browser in it",
            hint="atoll new NAME --level sandbox",
        )
    return plan


def _require_program(session: Session, plan: IsolationPlan) -> str:
    found = windows.find_browser(session, avoid=plan.workspace, names=(registry.DRIVEN,))
    if found is None:
        cure = registry.driven_browser().cure()
        raise PrerequisiteError("no Chromium is installed, or one made from it", hint=cure)
    return found.program


def _note(capsule: Capsule, run: Run) -> None:
    files.make_private_directory(profiles.place_of(capsule))
    path = profiles.place_of(capsule) / _NOTE
    files.write_atomic(path, json.dumps(run.number).encode(), durable=False)


def _await_answer(session: Session, capsule: Capsule, run: Run) -> None:
    driver, dial = registry.driven_browser(), partial(_dial, capsule.directory)
    answers: list[bool] = []

    def is_settled() -> bool:
        is_alive = runs.is_alive(session, run)
        answers[:] = [is_alive and driver.is_answering(dial)]
        return answers[0] or not is_alive

    wait_until(is_settled, timeout_s=_ANSWERS_S, interval_s=0.05)
    if answers[0]:
        return
    ended = runs.stop(session, run)
    said = b"".join(entry.data for entry in runs.entries(session, run))[-_SAID_BYTES:]
    last = said.decode(errors="replace").strip().rpartition("\n")[2] or "it said nothing"
    raise DriverError(
        f"the browser in `{capsule.name}` did not come up "
        f"(exit code {require_outcome(ended).shell_code}): {last}",
        hint=f"atoll logs {capsule.name} {run.number}",
    )


def _is_taken(dial: Callable[[], socket.socket]) -> bool:
    try:
        dial().close()
    except OSError:
        return False
    return True


def _dial(directory: str) -> socket.socket:
    """A connection to the browser's port in a capsule's own network. Raises OSError."""
    wanted = [int(socket.AF_INET), int(socket.SOCK_STREAM)]
    answer = views.ask(directory, {"sockets": [wanted]})
    if answer is None or not answer[1]:
        raise ConnectionRefusedError("nobody holds the capsule's network")
    sock = socket.socket(fileno=answer[1][0])
    try:
        sock.settimeout(_CONNECT_S)
        sock.connect(("127.0.0.1", BROWSER_PORT))
    except OSError:
        sock.close()
        raise
    return sock
