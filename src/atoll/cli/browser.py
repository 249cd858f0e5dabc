"""`atoll browser`: what a capsule's browsers are, how tools use the one inside, a fresh start."""

from __future__ import annotations

import json

import click

from atoll.cli import shapes
from atoll.cli.frame import Frame, name_argument, verb
from atoll.engine.capsules import Capsule
from atoll.model.browsertools import TOOLS


@click.command("browser")
@click.argument("act", type=click.Choice(["status", "settings", "reset"]))
@name_argument
@click.option(
    "--for", "tool", type=click.Choice(TOOLS), default=TOOLS[0], show_default=True,
    help="With `settings`: which tool is told.",
)  # fmt: skip
@verb
def command(frame: Frame, act: str, name: str, tool: str) -> None:
    """Shows the browsers of NAME, prints settings for a tool, or makes them forget everything."""
    capsule = frame.capsule(name)
    if act == "settings":
        settings = capsule.browser.settings(tool)
        data = {"tool": tool, "settings": settings}
        frame.output.answer("browser-settings", data, json.dumps(settings, indent=2))
        return
    if act == "reset":
        capsule.browser.reset()
        frame.output.note(f"the browsers of `{name}` have forgotten everything")
    _tell_status(frame, capsule)


def _tell_status(frame: Frame, capsule: Capsule) -> None:
    status = capsule.browser.status()
    window = "none" if status.window is None else f"pid {status.window.pid}"
    inside = "none" if status.inside is None else f"{status.inside.label} at {status.endpoint}"
    lines = [f"window   {window}", f"profile  {status.profile or 'none'}", f"inside   {inside}"]
    frame.output.answer("browser", shapes.browser(status), "\n".join(lines))
