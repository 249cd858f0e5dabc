"""`atoll allow`: one more destination for a living capsule."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, name_argument, verb


@click.command("allow")
@name_argument
@click.argument("rules", nargs=-1, metavar="[RULE...]")
@click.option("--revoke", is_flag=True, help="Take the rules back.")
@verb
def command(frame: Frame, name: str, rules: tuple[str, ...], *, revoke: bool) -> None:
    """Lets NAME reach what RULE names, at once; without a rule, shows what it may reach.

    A rule is `host[:port]`, `*.suffix[:port]`, an address or CIDR, `host:PORT` for a port of your
    own loopback, or a preset such as `python`. Without a port it stands for 80 and 443.
    """
    capsule = frame.capsule(name)
    for rule in rules:
        if revoke:
            capsule.revoke(rule)
        else:
            capsule.allow(rule)
    allowed = capsule.allowed()
    frame.output.table(
        "rules",
        [{"rule": rule, "source": source, "means": means} for rule, source, means in allowed],
        ("rule", "from", "means"),
        ((rule, source, ", ".join(means)) for rule, source, means in allowed),
    )
    if capsule.network != "allow":
        frame.output.note(f"`{name}` has the network `{capsule.network}`")
