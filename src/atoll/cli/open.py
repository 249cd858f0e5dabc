"""`atoll open`: open a capsule's web application in the capsule's own browser."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb
from atoll.engine import shapes


@click.command("open")
@name_argument
@click.argument("service", required=False)
@click.option(
    "--headless",
    is_flag=True,
    help="Run the browser inside the capsule without a window, for agents.",
)
@click.option("--print", "print_only", is_flag=True, help="Print the URL without opening it.")
@verb
def command(
    frame: Frame, name: str, service: str | None, *, headless: bool, print_only: bool
) -> None:
    """Open a service or port of NAME in a browser with the capsule's own profile."""
    browser = frame.capsule(name).browser
    url = browser.url(service, inside=headless)
    if print_only:
        frame.output.answer("opened", shapes.opened(url), url)
        return
    if not headless:
        window = browser.open(service)
        frame.output.answer("opened", shapes.opened(url, pid=window.pid), url)
        return
    run = browser.open_inside(service)
    data = shapes.opened(url, inside=run)
    frame.output.answer("opened", data, str(browser.status().endpoint))
    frame.output.note(
        f"started a browser as {run.label}; only processes inside `{name}` can connect to it\n"
        f"hint: atoll browser settings {name}"
    )
