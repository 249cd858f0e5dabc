"""Notifies the owner that an agent wants a person: by a command, a webhook, or on the desktop.

A separate process delivers a notification, so that a command that records a state never waits, and
a failure is a line in a log.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.engine.project.settings import load_user_file
from atoll.engine.state.session import Session, find_session
from atoll.host import files, programs
from atoll.host.process import Program, stream
from atoll.host.programs import own_environment, python_command
from atoll.model.agent import AgentRecord, AgentState
from atoll.model.errors import AtollError, DriverError
from atoll.model.names import printable
from atoll.model.state import CapsuleRecord

if TYPE_CHECKING:
    from atoll.model.spec import NotifySettings

LOG = "notify.log"
"""Below Atoll's home: the failures of the latest notifications."""
_LOG_BYTES = 64 << 10
_COMMAND_S = 30.0
_WEBHOOK_S = 10.0
_DESKTOP_S = 10.0
_OUTPUT_BYTES = 64 << 10
_DESKTOP = ("DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR")
_TEXT_CHARACTERS = 500


def notify(session: Session, capsule: CapsuleRecord, agent: AgentRecord) -> None:
    """Starts to notify of a new state, if the owner wants to hear of it. Never raises or waits."""
    with suppress(AtollError, OSError):
        settings = _wanted(session, f"agent.{agent.state}")
        if settings is None:
            return
        passed = {name: session.owner[name] for name in _DESKTOP if name in session.owner}
        # Not the task: anybody can read a command line.
        words = (str(session.home), str(capsule.id), str(agent.state))
        argv = python_command("atoll.engine.agent.notifications", *words)
        # No such lock exists: it starts at once.
        none = session.home / "locks" / "none"
        env = {**own_environment(), **passed}
        session.forkserver.watch(str(none), argv, env)


def rings_bell(session: Session) -> bool:
    file = load_user_file(session.owner)
    return file is None or file.notify.bell


def event_of(session: Session, capsule: CapsuleRecord, agent: AgentRecord) -> dict[str, object]:
    """What a command or a webhook gets."""
    return {
        "event": f"agent.{agent.state}",
        "at": time.time(),
        "project": session.store.project_name(capsule.project_id),
        "capsule": capsule.name,
        "agent": agent.adapter,
        "state": str(agent.state),
        "reason": printable(agent.reason[:_TEXT_CHARACTERS]),
        "task": printable(agent.task.prompt[:_TEXT_CHARACTERS]),
    }


def _wanted(session: Session, kind: str) -> NotifySettings | None:
    file = load_user_file(session.owner)
    if file is None or kind not in file.notify.events:
        return None
    found = file.notify
    return found if found.command or found.webhook or found.desktop else None


def main() -> None:
    """`HOME CAPSULE STATE`: delivers one notification in all ways that the settings name."""
    session = find_session(Path(sys.argv[1]))
    file = load_user_file(os.environ)
    if session is None or file is None:
        return
    event = find_event(session, int(sys.argv[2]), AgentState(sys.argv[3]))
    if event is not None:
        deliver(session.home, json.dumps(event), file.notify)


def find_event(session: Session, capsule_id: int, state: AgentState) -> dict[str, object] | None:
    """The event of a state that was recorded a moment ago; None if the capsule is gone."""
    capsule, agent = session.store.capsule(capsule_id), session.store.find_agent(capsule_id)
    if capsule is None or agent is None:
        return None
    # The reason belongs to the recorded state, which may be a later one by now.
    reason = agent.reason if agent.state is state else ""
    return event_of(session, capsule, agent._replace(state=state, reason=reason))


def deliver(home: Path, event: str, settings: NotifySettings) -> None:
    """Each way is tried; failures are written to a log of bounded size."""
    ways = (
        ("command", settings.command, _run_command),
        ("webhook", settings.webhook, _post),
        ("desktop", "notify-send" if settings.desktop else None, _show_on_desktop),
    )
    for name, given, act in ways:
        if given is None:
            continue
        try:
            act(given, event)
        except (AtollError, OSError, ValueError) as error:
            said = error.message if isinstance(error, AtollError) else str(error)
            _note_failure(home, f"{name}: {said}")


def _run_command(command: str, event: str) -> None:
    program = Program(
        ("sh", "-c", command),
        env={name: os.environ[name] for name in _DESKTOP if name in os.environ},
        stdin=event.encode() + b"\n",
    )
    _require_good(f"`{command}`", program, timeout_s=_COMMAND_S)


def _post(url: str, event: str) -> None:
    """Posts to this URL only: a redirect is a failure. Raises DriverError or OSError."""
    from http.client import HTTPException  # noqa: PLC0415 - ssl: only for a webhook
    from urllib.request import HTTPRedirectHandler, Request, build_opener  # noqa: PLC0415

    class NoRedirects(HTTPRedirectHandler):
        def redirect_request(self, *_: object, **__: object) -> None:
            """None: the answer is an error."""

    request = Request(  # noqa: S310 - the settings accept https, and http on loopback
        url, data=event.encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with build_opener(NoRedirects).open(request, timeout=_WEBHOOK_S) as answer:
            answer.read(1)
    except HTTPException as error:
        raise DriverError(f"the server gave no proper answer: {error!r}") from error


def _show_on_desktop(name: str, event: str) -> None:
    found = json.loads(event)
    program = programs.require_program(name)
    title = f"atoll: {found['capsule']} is {found['state']}"
    body = found["reason"] or found["task"]
    env = {name: os.environ[name] for name in _DESKTOP if name in os.environ}
    argv = (program, "--app-name=atoll", "--", title, body[:200])
    _require_good(f"`{name}`", Program(argv, env=env), timeout_s=_DESKTOP_S)


def _require_good(what: str, program: Program, *, timeout_s: float) -> None:
    """Runs it. Raises DriverError with what it said if it fails, or takes too long."""
    done = stream(program, bytes, limit_bytes=_OUTPUT_BYTES, timeout_s=timeout_s)
    if done.is_good:
        return
    how = {"time": f"took more than {timeout_s:.0f} s", "size": "printed too much"}.get(
        done.ended, f"exited with {done.completed.code}"
    )
    said = done.completed.stderr[-300:].decode(errors="replace").strip()
    raise DriverError(f"{what} {how}" + (f": {said}" if said else ""))


def _note_failure(home: Path, text: str) -> None:
    path = home / LOG
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {printable(text[:_TEXT_CHARACTERS])}\n".encode()
    with suppress(OSError, AtollError):
        before = files.read_regular(path, limit_bytes=1 << 20) or b""
        files.write_atomic(path, (before + line)[-_LOG_BYTES:], durable=False)
