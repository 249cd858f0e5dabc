"""`atoll open`: a capsule's web application in a browser of the capsule's own."""

from __future__ import annotations

import click

from atoll.cli import shapes
from atoll.cli.frame import Frame, name_argument, verb


@click.command("open")
@name_argument
@click.argument("service", required=False)
@click.option("--headless", is_flag=True, help="Inside and without a window, for agents' tools.")
@click.option("--print", "print_only", is_flag=True, help="Print the address, open nothing.")
@verb
def command(
    frame: Frame, name: str, service: str | None, *, headless: bool, print_only: bool
) -> None:
    """Opens SERVICE, or a port, of NAME in a browser with the capsule's own profile."""
    browser = frame.capsule(name).browser
    url = browser.url(service, inside=headless)
    if print_only:
        frame.output.answer("opened", {"url": url, "pid": None, "run": None}, url)
        return
    if not headless:
        window = browser.open(service)
        frame.output.answer("opened", {"url": url, "pid": window.pid, "run": None}, url)
        return
    run = browser.open_inside(service)
    data = {"url": url, "pid": None, "run": shapes.run(run)}
    frame.output.answer("opened", data, str(browser.status().endpoint))
    frame.output.note(
        f"`{name}` has a browser in {run.label}, which only its own processes can reach\n"
        f"hint: atoll browser settings {name}"
    )
