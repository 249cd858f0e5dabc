"""`atoll agents`: what agents do, as facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.cli import phrases
from atoll.cli.frame import Frame, ends_with_interrupt, verb
from atoll.cli.harmless import clean
from atoll.cli.output import stdout_is_terminal
from atoll.cli.tables import cut
from atoll.cli.terminal import size
from atoll.engine import shapes
from atoll.model import units
from atoll.model.agent import WANTS_PERSON, AgentState, is_news
from atoll.model.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.engine.agent.observation import AgentStatus
    from atoll.engine.agent.selection import AvailableAgent
    from atoll.engine.home import Home
    from atoll.engine.projects import Project

    Known = Mapping[int, tuple[AgentState, str]]
    """The states that were shown last, by the capsule's id, which is one of all projects."""

_EVERY_S = 2.0
_TASK_WIDTH = 32
_LINE_WIDTH = 48
_STATE_WIDTH = 52
_LINES_BESIDE_ROWS = 6
"""The header with its rule, empty lines, and the line that says how many agents are left out."""
_COLUMNS = ("capsule", "agent", "status", "since", "task", "turns", "tokens", "cost", "changed")


@click.command("agents")
@click.option("-a", "--all", "everything", is_flag=True, help="List the agents of every project.")
@click.option(
    "--available", is_flag=True, help="List the agents that Atoll knows, and what each lacks."
)
@click.option(
    "-w",
    "--watch",
    is_flag=True,
    help="Show the table live until Ctrl-C; the bell rings when an agent wants you.",
)
@verb
@ends_with_interrupt
def command(frame: Frame, *, everything: bool, available: bool, watch: bool) -> None:
    """List the agents of this project with what they do, as facts.

    STATUS follows from processes, output, model traffic and checks, never from what an agent says:
    starting, working, waiting, idle, finished, failed, over-budget or lost.
    """
    if available:
        _show_available(frame)
        return
    place = frame.home() if everything else _project(frame)
    found = place.agents()
    if not watch:
        _show(frame, found, everything=everything)
        return
    before = _known(found)
    while True:
        if stdout_is_terminal() and not frame.output.json:
            frame.output.clear()
        _show(frame, found, everything=everything, most=_most_rows(frame))
        _signal(frame, place, found, before)
        before = _known(found)
        frame.wait(_EVERY_S)
        found = place.agents()


def _project(frame: Frame) -> Project:
    try:
        return frame.project()
    except StateError as error:
        raise StateError(error.message, hint="atoll agents --all") from error


def _known(found: list[AgentStatus]) -> Known:
    return {one.agent.capsule_id: (one.state, one.reason) for one in found}


def _signal(frame: Frame, place: Home | Project, found: list[AgentStatus], before: Known) -> None:
    """Rings when an agent wants a person, and says in the terminal's title how many do."""
    wanting = [one for one in found if one.state in WANTS_PERSON]
    none = (AgentState.STARTING, "")
    is_new = any(
        is_news(before.get(one.agent.capsule_id, none), (one.state, one.reason)) for one in wanting
    )
    frame.output.signal(
        f"atoll: {len(wanting)} of {len(found)} agents want you" if wanting else "atoll agents",
        ring=is_new and place.rings_bell,
    )


def _most_rows(frame: Frame) -> int | None:
    """How many agents a repeated table shows at once; None: all."""
    if frame.output.json or not stdout_is_terminal():
        return None
    return max(1, size()[0] - _LINES_BESIDE_ROWS)


def _show(
    frame: Frame, found: list[AgentStatus], *, everything: bool, most: int | None = None
) -> None:
    shown = found[:most]
    is_cut = stdout_is_terminal()
    columns = (*(("project",) if everything else ()), *_COLUMNS, "last line")
    frame.output.table(
        "agents",
        [shapes.agent(one) for one in found],
        columns,
        [(*((one.project,) if everything else ()), *_row(one, is_cut=is_cut)) for one in shown],
        clip=("last line", "task", "status", "project"),
        drop=("last line", "task"),
    )
    if len(shown) < len(found):
        frame.output.note(f"… {len(found) - len(shown)} more: atoll agents")
    if not found:
        frame.output.note('no agents yet\nhint: atoll spawn AGENT "PROMPT"')


def _row(one: AgentStatus, *, is_cut: bool) -> tuple[str, ...]:
    changed, state = one.changed, render_state(one)
    return (
        one.capsule,
        one.agent.adapter,
        cut(state, _STATE_WIDTH) if is_cut else state,
        phrases.age(one.since),
        _clipped(one.agent.task.prompt, _TASK_WIDTH) or "-",
        str(one.turns),
        render_count(one.tokens),
        render_cost(one.cost_usd, has_usage=bool(one.usage)),
        "?" if changed is None else f"{changed.files}{'' if changed.is_complete else '+'}",
        _clipped(one.line, _LINE_WIDTH) or "-",
    )


def render_state(one: AgentStatus) -> str:
    """The state, with the whole reason if there is one."""
    reason = _line(one.reason)
    return f"{one.state}: {reason}" if reason else str(one.state)


def _clipped(text: str, width: int) -> str:
    """One line of hostile text."""
    return cut(_line(text[: width * 8]), width)


def _line(text: str) -> str:
    return " ".join(clean(text.encode(errors="replace")).split())


def render_count(number: int) -> str:
    for scale, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= scale:
            return f"{number / scale:.1f}{unit}"
    return str(number)


def render_cost(cost_usd: float | None, *, has_usage: bool) -> str:
    if not has_usage:
        return "-"
    return "?" if cost_usd is None else units.render_usd(cost_usd)


def _show_available(frame: Frame) -> None:
    found = frame.project().available_agents()
    frame.output.table(
        "available-agents",
        [shapes.available_agent(one) for one in found],
        ("name", "agent", "version", "login", "to use it"),
        [_available_row(one) for one in found],
    )


def _available_row(one: AvailableAgent) -> tuple[str, ...]:
    version = (one.version or "-") if one.program else "not installed"
    return (one.name, one.title, version, one.login, one.cure or "-")
