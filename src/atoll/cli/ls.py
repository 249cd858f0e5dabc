"""`atoll ls`: the capsules of this project."""

from __future__ import annotations

import click

from atoll.cli import phrases, shapes
from atoll.cli.frame import Frame, verb
from atoll.engine import disk_use

_MOST_PORTS = 3


@click.command("ls")
@verb
def command(frame: Frame) -> None:
    """Lists the capsules of this project, as facts: what runs is what lives."""
    capsules = frame.project().capsules()
    living = {capsule.name: capsule.living() for capsule in capsules}
    used = {c.name: disk_use.of_capsule(c.session, c.record) for c in capsules}
    frame.output.table(
        "capsules",
        [shapes.capsule(c.record, runs=living[c.name], used=used[c.name]) for c in capsules],
        ("name", "level", "state", "base", "running", "ports", "age"),
        (
            (
                c.name,
                c.record.level,
                str(c.record.state),
                f"{c.record.base_ref}@{c.record.base_commit[:7]}",
                str(len(living[c.name])),
                _ports(list(c.ports.values())),
                phrases.age(c.record.created_at),
            )
            for c in capsules
        ),
    )
    if not capsules:
        frame.output.note("no capsules yet\nhint: atoll new NAME")


def _ports(numbers: list[int]) -> str:
    """The first few, and how many more there are."""
    more = [f"+{len(numbers) - _MOST_PORTS}"] if len(numbers) > _MOST_PORTS else []
    return ",".join([*map(str, numbers[:_MOST_PORTS]), *more])
