"""`atoll watch`: what an agent does, live or afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.cli.agent_events import render_event
from atoll.cli.agents import render_state
from atoll.cli.frame import Frame, ends_with_interrupt, name_argument, verb
from atoll.cli.tell import render_cure
from atoll.engine import shapes
from atoll.model.agent import WANTS_PERSON, AgentState

if TYPE_CHECKING:
    from atoll.engine.agent.observation import AgentStatus


@click.command("watch")
@name_argument
@click.option(
    "--follow/--no-follow", default=True, help="Whether to wait for what is still to come."
)
@click.option("--last", is_flag=True, help="Show the last turn only.")
@verb
@ends_with_interrupt
def command(frame: Frame, name: str, *, follow: bool, last: bool) -> None:
    """Show what the agent of NAME does: prompts, messages, tool calls and their results.

    It is what the agent reports. The state at the end is Atoll's own, from facts.
    """
    agent = frame.capsule(name).agent

    def signal(status: AgentStatus) -> None:
        wants = follow and status.state in WANTS_PERSON
        frame.output.signal(
            f"atoll: {name} is {status.state}", ring=wants and frame.project().rings_bell
        )

    def show_held(status: AgentStatus) -> None:
        frame.output.note(f"{name}: {render_state(status)}")
        signal(status)
        excess = agent.find_excess() if status.state is AgentState.OVER_BUDGET else None
        if excess is not None:
            frame.output.note(render_cure(name, excess))

    held = show_held if follow else None
    for event in agent.events(follow=follow, last=last, on_held=held):
        frame.output.item("agent-event", shapes.agent_event(event), render_event(event))
    status = agent.settled() if follow else agent.status()
    if frame.output.json:
        frame.output.item("agent", shapes.agent(status), "")
        return
    frame.output.note(f"{name}: {render_state(status)}")
    signal(status)
