"""`atoll daemon`: the one background process."""

from __future__ import annotations

import click

from atoll.cli import phrases
from atoll.cli.frame import Frame, verb
from atoll.engine import daemons
from atoll.model.errors import StateError


@click.command("daemon")
@click.argument("act", type=click.Choice(["status", "stop", "logs"]), default="status")
@verb
def command(frame: Frame, act: str) -> int:
    """Shows, ends or explains the daemon: egress, ports out, names.

    It starts by itself when something needs it, and ends when nothing has for a while.
    """
    session = frame.session()
    if act == "logs":
        for line in daemons.log_lines(session.home):
            frame.output.item("log", {"line": line}, f"{line}\n")
        return 0
    try:
        status = daemons.stop(session) if act == "stop" else daemons.status(session)
    except StateError as error:
        frame.output.answer("daemon", {"running": False}, "not running")
        frame.output.note(f"{error}")
        return 0 if act == "stop" else 1
    frame.output.answer("daemon", {"running": act != "stop", **status}, _told(act, status))
    return 0


def _told(act: str, status: dict[str, object]) -> str:
    if act == "stop":
        return "stopped"
    capsules = status.get("capsules")
    count = len(capsules) if isinstance(capsules, list) else 0
    since = phrases.moment(float(str(status["since"])))
    return f"running (pid {status['pid']}) since {since}, capsules: {count}"
