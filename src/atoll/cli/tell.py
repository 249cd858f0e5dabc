"""`atoll tell`: the next message to an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.cli.frame import Frame, MessageCommand, name_argument, verb
from atoll.cli.spawn import read_text
from atoll.engine import shapes
from atoll.model.errors import SpecError

if TYPE_CHECKING:
    from atoll.engine.agent.budgets import Excess


def render_cure(name: str, excess: Excess) -> str:
    """How an agent that is held by a budget goes on."""
    where = f"atoll tell {name} --budget {excess.cure}"
    return f"hint: {where if excess.cure else '[budget] in your settings'}"


@click.command("tell", cls=MessageCommand)
@name_argument
@click.argument("message", required=False, metavar="[MESSAGE]")
@click.option(
    "--budget", metavar="LIMIT", help="Change what the agent may use, e.g. +5 or tokens=200k."
)
@click.option(
    "--prompt-file", metavar="FILE", help="Read the message from FILE, or from standard input (-)."
)
@verb
def command(
    frame: Frame, name: str, message: str | None, budget: str | None, prompt_file: str | None
) -> None:
    """Send MESSAGE to the agent of NAME: typed into its screen, or as the next turn.

    With --budget alone, an agent that is held by its budget goes on.
    """
    if message is not None and prompt_file is not None:
        raise SpecError("`--prompt-file` and MESSAGE are both given", hint="omit one of them")
    given: str | bytes | None = message if prompt_file is None else read_text(prompt_file)
    if given is None and budget is None:
        raise SpecError("there is no message", hint=f'atoll tell {name} "MESSAGE"')
    agent = frame.capsule(name).agent
    allowed = agent.require().task.budget if budget is None else agent.set_budget(budget)
    sent = None if given is None else agent.tell(given)
    frame.output.answer("message", shapes.sent_message(name, sent, allowed), "")
    if sent is None:
        excess = agent.find_excess()
        frame.output.note(f"changed the budget of `{name}`")
        if excess is not None:
            frame.output.note(
                f"`{name}` is still held: {excess.reason}\n{render_cure(name, excess)}"
            )
    elif sent.is_typed:
        frame.output.note(f"typed into the screen of `{name}`\nhint: atoll attach {name}")
    else:
        frame.output.note(f"sent the message to the agent of `{name}`\nhint: atoll watch {name}")
