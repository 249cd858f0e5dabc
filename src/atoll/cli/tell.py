"""`atoll tell`: the next message to an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.cli.attach import attach_to
from atoll.cli.frame import Frame, MessageCommand, name_argument, verb
from atoll.cli.spawn import read_text
from atoll.cli.terminal import is_terminal, size
from atoll.engine import shapes
from atoll.model.errors import SpecError

if TYPE_CHECKING:
    from atoll.engine.agent.agents import Agent, SentMessage
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
    "-i", "--interactive", is_flag=True,
    help="Continue on the agent's own screen in this terminal; MESSAGE may be omitted.",
)  # fmt: skip
@click.option(
    "--prompt-file", metavar="FILE", help="Read the message from FILE, or from standard input (-)."
)
@verb
def command(
    frame: Frame,
    name: str,
    message: str | None,
    budget: str | None,
    prompt_file: str | None,
    *,
    interactive: bool,
) -> int:
    """Send MESSAGE to the agent of NAME: typed into its screen, or as the next turn.

    With -i the conversation continues on the agent's own screen. With --budget alone, an agent that
    is held by its budget goes on.
    """
    if message is not None and prompt_file is not None:
        raise SpecError("`--prompt-file` and MESSAGE are both given", hint="omit one of them")
    given: str | bytes | None = message if prompt_file is None else read_text(prompt_file)
    if given is None and budget is None and not interactive:
        raise SpecError("there is no message", hint=f'atoll tell {name} "MESSAGE"')
    capsule = frame.capsule(name)
    agent = capsule.agent
    allowed = agent.require().task.budget if budget is None else agent.set_budget(budget)
    if budget is not None:
        frame.output.note(f"changed the budget of `{name}`")
    sent = _send(agent, given, interactive=interactive)
    if interactive and sent is not None and is_terminal() and not frame.output.json:
        return attach_to(frame, capsule, capsule.require_run())
    frame.output.answer("message", shapes.sent_message(name, sent, allowed), "")
    if given is None and not interactive:
        said = _now(name, agent.find_excess(), sent)
    else:
        said = _sent(name, sent)
    if said:
        frame.output.note(said)
    return 0


def _send(agent: Agent, given: str | bytes | None, *, interactive: bool) -> SentMessage | None:
    if interactive:
        return agent.tell(given or "", screen=size())
    return agent.go_on() if given is None else agent.tell(given)


def _now(name: str, excess: Excess | None, sent: SentMessage | None) -> str:
    if excess is not None:
        return f"`{name}` may not use more: {excess.reason}\n{render_cure(name, excess)}"
    if sent is not None:
        return f"the agent of `{name}` goes on\nhint: atoll watch {name}"
    return ""


def _sent(name: str, sent: SentMessage | None) -> str:
    if sent is None or sent.is_screen:
        return f"the agent of `{name}` has its own screen\nhint: atoll attach {name}"
    if sent.is_typed:
        return f"typed into the screen of `{name}`\nhint: atoll attach {name}"
    return f"sent the message to the agent of `{name}`\nhint: atoll watch {name}"
