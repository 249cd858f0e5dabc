"""`atoll ls`: the capsules of this project, or of all projects."""

from __future__ import annotations

import click

from atoll.cli import phrases, shapes
from atoll.cli.frame import Frame, verb
from atoll.engine import overview
from atoll.engine.overview import Changed, Summary
from atoll.model.state import Run

_COMMAND_WIDTH = 24


@click.command("ls")
@click.option("-a", "--all", "everything", is_flag=True, help="Those of every project.")
@verb
def command(frame: Frame, *, everything: bool) -> None:
    """Lists the capsules of this project, as facts: what runs is what lives.

    CHANGED counts files that were written or removed since the capsule was made, without
    dependencies. COMMITS are those that the branch it was made from does not have (+), and those
    that it lacks (-).
    """
    if everything:
        session = frame.session()
        projects = session.store.projects()
    else:
        project = frame.project()
        session, projects = project.session, [project.record]
    found = [one for project in projects for one in overview.summaries(session, project)]
    columns = ("name", "level", "state", "changed", "commits", "running", "disk", "age")
    frame.output.table(
        "capsules",
        [shapes.summary(one) for one in found],
        ("project", *columns) if everything else columns,
        (((one.project, *_row(one)) if everything else _row(one)) for one in found),
        clip=("project", "name", "running"),
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
