"""`atoll ls`: the capsules of this project, or of all projects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.cli import phrases
from atoll.cli.frame import Frame, verb
from atoll.engine import shapes
from atoll.model.state import Run

if TYPE_CHECKING:
    from atoll.engine.capsule.overview import Changed, Summary

_COMMAND_WIDTH = 24


@click.command("ls")
@click.option("-a", "--all", "everything", is_flag=True, help="List the capsules of every project.")
@verb
def command(frame: Frame, *, everything: bool) -> None:
    """List the capsules of this project with their state.

    CHANGED is the number of files written or removed since the capsule was created, without
    dependencies. COMMITS is how far the capsule's branch is ahead (+) and behind (-) the branch it
    was created from.
    """
    projects = frame.home().projects() if everything else [frame.project()]
    found = [one for project in projects for one in project.summaries()]
    columns = ("name", "level", "state", "changed", "commits", "running", "disk", "age")
    frame.output.table(
        "capsules",
        [shapes.summary(one) for one in found],
        ("project", *columns) if everything else columns,
        (((one.project, *_row(one)) if everything else _row(one)) for one in found),
        clip=("running", "project"),
    )
    if not found:
        frame.output.note("no capsules yet\nhint: atoll new NAME")


def _row(one: Summary) -> tuple[str, ...]:
    record = one.capsule
    return (
        record.name,
        record.level,
        "paused" if one.is_paused else str(record.state),
        _changed(one.changed),
        _ahead(one.ahead, one.behind),
        _running(one.runs),
        phrases.disk(one.disk),
        phrases.age(record.created_at),
    )


def _changed(changed: Changed | None) -> str:
    if changed is None:
        return "?"
    return f"{changed.files}{'' if changed.is_complete else '+'}"


def _ahead(ahead: int | None, behind: int | None) -> str:
    if ahead is None or behind is None:
        return "?"
    return " ".join([f"+{ahead}" if ahead else "", f"-{behind}" if behind else ""]).strip() or "0"


def _running(runs: list[Run]) -> str:
    if not runs:
        return "-"
    more = f" (+{len(runs) - 1})" if len(runs) > 1 else ""
    return phrases.command(runs[-1].argv, width=_COMMAND_WIDTH) + more
