"""`atoll browser`: show or reset a capsule's browsers, print settings for tools."""

from __future__ import annotations

import json

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.engine import shapes
from atoll.engine.capsules import Capsule
from atoll.model.browsertools import TOOLS


@click.command("browser")
@click.argument("act", type=click.Choice(["status", "settings", "reset"]))
@name_argument
@click.option(
    "--for", "tool", type=click.Choice(TOOLS), default=TOOLS[0], show_default=True,
    help="With `settings`: the tool to print settings for.",
)  # fmt: skip
@verb
def command(frame: Frame, act: str, name: str, tool: str) -> None:
    """Show the browsers of NAME, print settings for a tool, or delete the browser data."""
    capsule = frame.capsule(name)
    if act == "settings":
        settings = capsule.browser.settings(tool)
        data = shapes.browser_settings(tool, settings)
        frame.output.answer("browser-settings", data, json.dumps(settings, indent=2))
        return
    if act == "reset":
        capsule.browser.reset()
        frame.output.note(f"deleted the browser data of `{name}`")
    _show_status(frame, capsule)


def _show_status(frame: Frame, capsule: Capsule) -> None:
    status = capsule.browser.status()
    window = "none" if status.window is None else f"pid {status.window.pid}"
    inside = "none" if status.inside is None else f"{status.inside.label} at {status.endpoint}"
    lines = [f"window   {window}", f"profile  {status.profile or 'none'}", f"inside   {inside}"]
    frame.output.answer("browser", shapes.browser(status), "\n".join(lines))
