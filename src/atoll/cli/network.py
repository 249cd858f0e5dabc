"""`atoll network`: show the connections that a capsule attempted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.cli import phrases
from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.output import render_size
from atoll.engine import shapes

if TYPE_CHECKING:
    from atoll.engine.network.egress_log import EgressAttempt

_MOST_RULES = 8


@click.command("network")
@name_argument
@click.option("-f", "--follow", is_flag=True, help="Print new attempts until Ctrl-C.")
@click.option("--refused", is_flag=True, help="Show only refused attempts.")
@click.option(
    "-n", "count", default=100, type=click.IntRange(0), help="Number of latest attempts; 0 for all."
)
@verb
def command(frame: Frame, name: str, count: int, *, follow: bool, refused: bool) -> None:
    """List the connection attempts of NAME, oldest first."""
    capsule = frame.capsule(name)
    asked: dict[str, None] = {}
    for attempt in capsule.attempts(count=count or None, follow=follow):
        if attempt.allowed and refused:
            continue
        frame.output.item("connection", shapes.connection(attempt), _line(attempt))
        if attempt.ask:
            asked.pop(attempt.ask, None)
            asked[attempt.ask] = None
    now = {rule for allowed in capsule.allowed() for rule in (allowed.rule, *allowed.means)}
    rules = [rule for rule in asked if rule not in now][-_MOST_RULES:]
    if rules:
        frame.output.note(
            f"hint: atoll allow {name} {' '.join(rules)}\n"
            f"hint: atoll allow --project {' '.join(rules)}  (every capsule of this project)"
        )


def _line(attempt: EgressAttempt) -> str:
    what = "failed " if attempt.failed else "allowed" if attempt.allowed else "refused"
    size = f"{render_size(attempt.sent)} out, {render_size(attempt.received)} in"
    detail = size if attempt.allowed and not attempt.failed else attempt.why
    if attempt.via == "broker" and detail is size:
        # What was requested is known of brokered hosts only.
        detail = f"{attempt.why}, {size}"
    times = f" ({attempt.times} times)" if attempt.times > 1 else ""
    where = f"{attempt.place}:{attempt.port}" if attempt.port else attempt.place
    return f"{phrases.moment(attempt.at)}  {what}  {attempt.via:<7}  {where}  {detail}{times}\n"
