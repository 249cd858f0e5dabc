"""`atoll allow`: change the network rules of a capsule or of all capsules of a project."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.cli.frame import Frame, complete_capsules, verb_with_own_project
from atoll.engine import shapes

if TYPE_CHECKING:
    from atoll.engine.network.rules import Allowed


@click.command("allow")
@click.argument("words", nargs=-1, metavar="[NAME] [RULE...]", shell_complete=complete_capsules)
@click.option(
    "--project", "whole_project", is_flag=True,
    help="Change the rules for all present and future capsules of this project.",
)  # fmt: skip
@click.option("--revoke", is_flag=True, help="Remove the rules.")
@verb_with_own_project
def command(frame: Frame, words: tuple[str, ...], *, whole_project: bool, revoke: bool) -> None:
    """Allow NAME to connect to the given destinations; takes effect immediately. Without a rule,
    list the rules in force.

    A rule is `host[:port]`, `*.suffix[:port]`, an address or CIDR, `host:PORT` for a port on the
    host's loopback, or a preset such as `python`. The default ports are 80 and 443. To use another
    project, put the option before the verb: `atoll --project DIR allow …`.
    """
    if whole_project:
        _change_project(frame, words, revoke=revoke)
        return
    if not words:
        raise click.UsageError("give the name of a capsule, or `--project`")
    name, *rules = words
    capsule = frame.capsule(name)
    for rule in rules:
        if revoke:
            capsule.revoke(rule)
        else:
            capsule.allow(rule)
    _show(frame, capsule.allowed())
    if capsule.network != "allow":
        frame.output.note(f"the network mode of `{name}` is `{capsule.network}`")


def _change_project(frame: Frame, rules: tuple[str, ...], *, revoke: bool) -> None:
    project = frame.project()
    known = {capsule.name for capsule in project.capsules()}
    for rule in rules:
        if rule in known:
            raise click.UsageError(
                f"`{rule}` is a capsule; `--project` applies to all capsules and takes only rules"
            )
        if revoke:
            project.revoke(rule)
        else:
            project.allow(rule)
    allowed = project.allowed()
    _show(frame, allowed)
    if not allowed:
        frame.output.note(f"`{project.name}` has no rules for all capsules")


def _show(frame: Frame, allowed: list[Allowed]) -> None:
    frame.output.table(
        "rules",
        [shapes.rule(rule) for rule in allowed],
        ("rule", "from", "means"),
        ((rule.rule, rule.source, ", ".join(rule.means)) for rule in allowed),
    )
