"""`atoll daemon`: show or stop the background process, or print its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.cli import phrases
from atoll.cli.frame import Frame, verb
from atoll.engine import shapes
from atoll.model.errors import StateError

if TYPE_CHECKING:
    from atoll.model.shapes import DaemonStatusShape


@click.command("daemon")
@click.argument("act", type=click.Choice(["status", "stop", "logs"]), default="status")
@verb
def command(frame: Frame, act: str) -> int:
    """Show or stop the daemon, or print its log.

    The daemon runs the egress proxy, DNS and published ports. It starts on demand and exits when
    idle.
    """
    home = frame.home()
    if act == "logs":
        for line in home.daemon_log():
            frame.output.item("log", shapes.daemon_log(line), f"{line}\n")
        return 0
    try:
        status = home.stop_daemon() if act == "stop" else home.daemon_status()
    except StateError as error:
        frame.output.answer("daemon", shapes.no_daemon(), "not running")
        frame.output.note(f"{error}")
        return 0 if act == "stop" else 1
    shape = shapes.daemon(status, is_running=act != "stop")
    frame.output.answer("daemon", shape, _render(act, status))
    return 0


def _render(act: str, status: DaemonStatusShape) -> str:
    if act == "stop":
        return "stopped"
    since = phrases.moment(status["since"])
    return f"running (pid {status['pid']}) since {since}, capsules: {len(status['capsules'])}"
