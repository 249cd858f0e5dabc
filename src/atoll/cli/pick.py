"""`atoll pick`: the winner of a race."""

from __future__ import annotations

import click

from atoll.cli.frame import Frame, verb
from atoll.engine import shapes
from atoll.model.errors import SpecError
from atoll.model.names import printable


@click.command("pick")
@click.argument("race")
@click.argument("name", required=False)
@click.option(
    "--rule",
    default="",
    metavar="CRITERIA",
    help="Criteria in the order of their importance, such as "
    '"checks, crosstests, bench:lower, diff:lower".',
)
@click.option(
    "--judge",
    default="",
    metavar="COMMAND",
    help="A shell command that ranks the anonymous candidates, as one more criterion.",
)
@click.option(
    "--discard-losers",
    is_flag=True,
    help="Remove the other candidates with their branches; recovery points are kept.",
)
@verb
def command(
    frame: Frame, race: str, name: str | None, *, rule: str, judge: str, discard_losers: bool
) -> int:
    """Pick the winner of RACE: NAME, or the one that a rule picks.

    Criteria are checks, crosstests, skipped, deleted, warnings, diff, files, time, tokens, cost,
    judge, and the figures of checks; `:lower` or `:higher` says what is better. A candidate that
    fails a check or the tests of the base is never picked by a rule. Exit code 1: no candidate may
    be picked.
    """
    if name is not None and (rule or judge):
        raise SpecError("`pick` takes a name, or a rule and a judge", hint="omit one of them")
    results = frame.project().races.require(race).results
    if discard_losers:
        results.require_finished()
    picked = results.pick(name, rule=rule, judge=judge)
    choice = picked.choice
    removed = results.discard_losers() if discard_losers and choice.winner else []
    text = choice.winner or ""
    data = shapes.picked(picked, [one.name for one in removed])
    frame.output.answer("picked", data, text)
    for loser, why in choice.rejected.items():
        frame.output.note(f"not `{loser}`: {printable(why)}")
    if choice.winner is None:
        frame.output.note(
            f"no candidate of `{race}` may be picked\n"
            f"hint: atoll compare {race}, then: atoll pick {race} NAME"
        )
        return 1
    if picked.obstacle:
        frame.output.warn(f"no rule picks `{choice.winner}`: {printable(picked.obstacle)}")
    for one in removed:
        point = "" if one.point is None else f" (atoll recover {one.point.id})"
        frame.output.note(f"removed `{one.name}`{point}")
    frame.output.note(f"picked `{choice.winner}`: {choice.reason}")
    frame.output.note(f"hint: atoll promote {choice.winner}")
    return 0
