"""The browser inside a capsule: headless, for its agents.

It is an ordinary background run. Its profile is in the private HOME, and is snapshotted and forked
with it. Its DevTools port is on the capsule's own loopback, which only processes of the capsule
reach. A capsule has at most one, identified by the number of its run.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from functools import partial

from atoll.drivers import registry
from atoll.drivers.contracts import BrowserRequest
from atoll.engine.browser import windows
from atoll.engine.network import service_urls
from atoll.engine.project import levels
from atoll.engine.run import freezer, runs
from atoll.engine.state.leases import isolation_plan
from atoll.engine.state.session import Session
from atoll.host import files, locks, view_client
from atoll.host.process import wait_until
from atoll.keeper.networks import BROWSER_PORT
from atoll.model import browsertools
from atoll.model.enclosure import Enclosure
from atoll.model.errors import DriverError, IsolationError, PrerequisiteError, StateError
from atoll.model.plan import IsolationPlan
from atoll.model.state import CapsuleRecord, Run, RunState, require_outcome

ENDPOINT = f"http://127.0.0.1:{BROWSER_PORT}"
"""The DevTools URL of the browser inside, for processes of the capsule."""
Start = Callable[[runs.RunSpec], Run]
PROFILE = ".atoll/browser"
"""Below the private HOME."""
_NOTE = "inside.json"
_ANSWERS_S = 60.0
_CLOSED_S = 10.0
_CONNECT_S = 5.0
_OUTPUT_BYTES = 600


def variables(session: Session, capsule: CapsuleRecord, inside: Enclosure) -> dict[str, str]:
    """Environment variables with the URL of the browser inside. Those that make tools connect to it
    are set only while it runs: otherwise tools start their own.
    """
    if not inside.has_walls:
        return {}
    is_there = find_inside(session, capsule) is not None
    tools = browsertools.VARIABLES if is_there else ()
    return dict.fromkeys(("ATOLL_BROWSER_URL", *tools), ENDPOINT)


def open_inside(session: Session, capsule: CapsuleRecord, service: str | None, start: Start) -> Run:
    """Opens a page in the browser inside, and starts the browser if necessary.

    Returns when its DevTools port answers. Raises IsolationError if the capsule does not have its
    own network, PrerequisiteError without a browser, StateError when the port is taken, DriverError
    when the browser does not start.
    """
    plan = require_network(session, capsule)
    url = service_urls.url_inside(capsule, service)
    driver = registry.driven_browser()
    dial = partial(_dial, capsule.directory)
    with turn(session, capsule):
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
        request = BrowserRequest(program, f"{plan.home}/{PROFILE}", url)
        argv = driver.plan_headless(request, port=BROWSER_PORT, cwd=plan.workspace)
        run = start(runs.RunSpec(argv=argv, background=True))
        _note(capsule, run)
        _await_answer(session, capsule, run)
    return run


def find_inside(session: Session, capsule: CapsuleRecord) -> Run | None:
    """The run of the browser inside, unless it has ended."""
    content = files.read_regular(windows.place_of(capsule) / _NOTE, limit_bytes=1 << 10)
    try:
        number = json.loads(content or b"null")
    except ValueError:
        return None
    for run in session.store.runs(capsule) if isinstance(number, int) else ():
        if run.number == number and runs.settle(session, run).state is not RunState.ENDED:
            return run
    return None


def close_inside(session: Session, capsule: CapsuleRecord) -> bool:
    """Closes the browser inside through its DevTools port, so that it saves its state; False when
    there is none, or when it does not answer.
    """
    run = find_inside(session, capsule)
    if run is None or freezer.is_paused(capsule):
        return False
    try:
        registry.driven_browser().close(partial(_dial, capsule.directory))
    except OSError:
        return False
    return wait_until(lambda: not runs.is_alive(session, run), timeout_s=_CLOSED_S)


def turn(session: Session, capsule: CapsuleRecord) -> locks.Lock:
    """The lock of the browsers: a second command waits, then finds what the first has opened."""
    lock = locks.Lock(session.home / "locks" / f"browser-{capsule.id}")
    lock.acquire(wait=True)
    return lock


def require_network(session: Session, capsule: CapsuleRecord) -> IsolationPlan:
    if not levels.has_own_network(capsule.level):
        raise IsolationError(
            f"level `{capsule.level}` has the host's own network: every program on this machine "
            "could control a browser in it",
            hint="atoll new NAME --level sandbox",
        )
    return isolation_plan(session, capsule)


def _require_program(session: Session, plan: IsolationPlan) -> str:
    found = windows.find_browser(session, avoid=plan.workspace, names=(registry.DRIVEN,))
    if found is None:
        cure = registry.driven_browser().cure()
        raise PrerequisiteError(
            "neither Chromium nor a browser based on it is installed", hint=cure
        )
    return found.program


def _note(capsule: CapsuleRecord, run: Run) -> None:
    files.make_private_directory(windows.place_of(capsule))
    path = windows.place_of(capsule) / _NOTE
    files.write_atomic(path, json.dumps(run.number).encode(), durable=False)


def _await_answer(session: Session, capsule: CapsuleRecord, run: Run) -> None:
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
    output = b"".join(entry.data for entry in runs.entries(session, run))[-_OUTPUT_BYTES:]
    last = output.decode(errors="replace").strip().rpartition("\n")[2] or "no output"
    raise DriverError(
        f"the browser in `{capsule.name}` did not start "
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
    answer = view_client.ask(directory, {"sockets": [wanted]})
    if answer is None or not answer[1]:
        raise ConnectionRefusedError("the capsule's network has no holder")
    sock = socket.socket(fileno=answer[1][0])
    try:
        sock.settimeout(_CONNECT_S)
        sock.connect(("127.0.0.1", BROWSER_PORT))
    except OSError:
        sock.close()
        raise
    return sock
