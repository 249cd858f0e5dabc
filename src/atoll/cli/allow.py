"""`atoll allow`: one more destination for a living capsule, or for all of a project."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, complete_capsules, verb_with_own_project
from atoll.engine.networks import Allowed


@click.command("allow")
@click.argument("words", nargs=-1, metavar="[NAME] [RULE...]", shell_complete=complete_capsules)
@click.option(
    "--project", "whole_project", is_flag=True,
    help="Every capsule of this project, now and later: then only rules are given.",
)  # fmt: skip
@click.option("--revoke", is_flag=True, help="Take the rules back.")
@verb_with_own_project
def command(frame: Frame, words: tuple[str, ...], *, whole_project: bool, revoke: bool) -> None:
    """Lets NAME reach what RULE names, at once; without a rule, shows what it may reach.

    A rule is `host[:port]`, `*.suffix[:port]`, an address or CIDR, `host:PORT` for a port of your
    own loopback, or a preset such as `python`. Without a port it stands for 80 and 443. Which
    project is meant is said before the verb: `atoll --project DIR allow …`.
    """
    if whole_project:
        _change_project(frame, words, revoke=revoke)
        return
    if not words:
        raise click.UsageError("name a capsule, or say `--project`")
    name, *rules = words
    capsule = frame.capsule(name)
    for rule in rules:
        if revoke:
            capsule.revoke(rule)
        else:
            capsule.allow(rule)
    _show(frame, capsule.allowed())
    if capsule.network != "allow":
        frame.output.note(f"`{name}` has the network `{capsule.network}`")


def _change_project(frame: Frame, rules: tuple[str, ...], *, revoke: bool) -> None:
    project = frame.project()
    known = {capsule.name for capsule in project.capsules()}
    for rule in rules:
        if rule in known:
            raise click.UsageError(
                f"`{rule}` is a capsule: `--project` is for all of them, and takes rules only"
            )
        if revoke:
            project.revoke(rule)
        else:
            project.allow(rule)
    allowed = project.allowed()
    _show(frame, allowed)
    if not allowed:
        frame.output.note(f"no rule is for all capsules of `{project.name}`")


def _show(frame: Frame, allowed: list[Allowed]) -> None:
    frame.output.table(
        "rules",
        [rule._asdict() for rule in allowed],
        ("rule", "from", "means"),
        ((rule.rule, rule.source, ", ".join(rule.means)) for rule in allowed),
    )
