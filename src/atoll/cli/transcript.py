"""`atoll transcript`: the whole conversation with an agent."""

from __future__ import annotations

import click

from atoll.cli import phrases
from atoll.cli.agent_events import render_event
from atoll.cli.frame import Frame, name_argument, verb
from atoll.cli.harmless import clean
from atoll.cli.transcript_html import render_html
from atoll.engine import shapes
from atoll.model.errors import SpecError


@click.command("transcript")
@name_argument
@click.option("--html", is_flag=True, help="Print one self-contained HTML page.")
@verb
def command(frame: Frame, name: str, *, html: bool) -> None:
    """Print the conversation with the agent of NAME, turn by turn.

    After a rollback it is the conversation of that moment.
    """
    if html and frame.output.json:
        raise SpecError("`--html` and `--json` are both given", hint="omit one of them")
    capsule = frame.capsule(name)
    adapter = capsule.agent.require().adapter
    turns = capsule.agent.transcript()
    data = shapes.transcript(name, adapter, turns)
    if frame.output.json:
        frame.output.answer("transcript", data, "")
        return
    if html:
        frame.output.answer(
            "transcript", data, render_html(data, shapes.agent(capsule.agent.status()))
        )
        return
    for view, events in turns:
        frame.output.item(
            "transcript", None, f"== turn {view.turn.number}, {phrases.moment(view.turn.at)}\n"
        )
        for event in events:
            frame.output.item("transcript", None, render_event(event))
        if view.verdict is not None:
            reason = clean(view.verdict.reason.encode(errors="replace"))
            said = f": {reason}" if reason else ""
            frame.output.item("transcript", None, f"== {view.verdict.state}{said}\n\n")
