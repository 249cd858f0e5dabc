"""`atoll race`: several attempts at one task, compared by evidence."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from atoll.cli import race_table
from atoll.cli.frame import Frame, MessageCommand, common_options, completing, verb
from atoll.cli.spawn import read_text
from atoll.engine import shapes
from atoll.engine.projects import LEVEL_NAMES
from atoll.model import units
from atoll.model.errors import Interrupted, SpecError
from atoll.model.names import printable
from atoll.model.race import RaceRequest, RaceState

if TYPE_CHECKING:
    from atoll.engine.race.races import RaceHandle
    from atoll.engine.race.report import RaceStatus

_FLAGS = frozenset({"--json", "-q", "--quiet", "-v", "--verbose"})
_DEFAULT_STAGE = "local"
_ARGV = "atoll.cli.race.argv"


class RaceContext(click.Context):
    """Without a word for the command that is meant when none is named."""

    @property
    def command_path(self) -> str:
        return super().command_path.strip()


class StartCommand(MessageCommand):
    """`atoll race [OPTIONS] [PROMPT] [-- COMMAND]`."""

    context_class = RaceContext

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[_ARGV] = tuple(args[place + 1 :])
        # Its value is given with `=`, so that a prompt may follow.
        words = [f"--promote={_DEFAULT_STAGE}" if a == "--promote" else a for a in args[:place]]
        return super().parse_args(ctx, words)


class RaceVerb(click.Group):
    """A group whose command `start` is meant when the first word names none."""

    default = "start"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        place = 0
        while place < len(args) and (args[place] in _FLAGS or args[place].startswith("--project")):
            place += 2 if args[place] == "--project" else 1
        if place >= len(args) or args[place] not in self.commands or args[place] == self.default:
            args = [*args[:place], self.default, *args[place:]]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return ("" if name == self.default else name), command, rest


complete_races = completing(lambda p: [(one.name, one.race.spec.task) for one in p.races.all()])
race_argument = click.argument("name", metavar="RACE", shell_complete=complete_races)


@click.group("race", cls=RaceVerb, no_args_is_help=False)
@common_options
@click.pass_context
def command(
    context: click.Context, *, as_json: bool, project: str | None, quiet: bool, verbose: bool
) -> None:
    """Start several attempts at one task, or list, show, resume, stop or remove races."""
    context.obj = context.obj.merged(as_json=as_json, project=project, quiet=quiet, verbose=verbose)


@command.command("start", cls=StartCommand)
@click.argument("words", nargs=-1, metavar="[PROMPT] [-- COMMAND...]", type=click.UNPROCESSED)
@click.option(
    "--agents", multiple=True, metavar="NAME[:N],...",
    help="Agents that attempt PROMPT, as `atoll spawn` takes them; with :N, N of a kind.",
)  # fmt: skip
@click.option(
    "--vary", multiple=True, metavar="NAME=A,B,...",
    help="A candidate for each value of this variable; with several, for each combination.",
)  # fmt: skip
@click.option(
    "-n", "number", default=1, type=click.IntRange(1, 100), metavar="N",
    help="So many of each kind.",
)  # fmt: skip
@click.option(
    "--prompts", metavar="FILE",
    help="A candidate for each prompt in FILE (or -): one per line, or blocks between lines `---`.",
)  # fmt: skip
@click.option(
    "--check", "checks", multiple=True, metavar="NAME|CMD",
    help="A check by name, or a shell command; default: the project's own checks.",
)  # fmt: skip
@click.option("--no-checks", is_flag=True, help="Run no checks.")
@click.option("--no-cross-tests", is_flag=True, help="Do not run tests of candidates on others.")
@click.option(
    "--max", "most", type=click.IntRange(1, 100), metavar="N",
    help="So many at once; default: as many as the machine carries.",
)  # fmt: skip
@click.option("--name", metavar="RACE", help="Name of the race; default: made from PROMPT.")
@click.option("--from", "base", metavar="REF", help="Branch, tag or commit to start from.")
@click.option("--level", metavar="LEVEL", help=f"Isolation level: {', '.join(LEVEL_NAMES)}.")
@click.option("--network", metavar="MODE", help="Network access: none, allow or open.")
@click.option(
    "--limit", "limits", multiple=True, metavar="KEY=VALUE", help="Set a limit, e.g. memory=4G."
)
@click.option("--model", metavar="MODEL", help="Model that the agents use.")
@click.option(
    "--budget", multiple=True, metavar="LIMIT",
    help="Limit what each agent may use: 5usd, tokens=200k, turns=20 or time=30m.",
)  # fmt: skip
@click.option("--timeout", metavar="TIME", help="Stop a candidate after this time; default: 4h.")
@click.option("--rule", default="", metavar="RULE", help="How the winner is picked.")
@click.option("--judge", default="", metavar="CMD", help="Shell command that ranks candidates.")
@click.option(
    "--promote", "promote_to", default="", metavar="=STAGE",
    help="Pick by rule at the end, and promote the winner; default: to `local`.",
)  # fmt: skip
@click.option(
    "--accept", multiple=True, metavar="risky|KIND",
    help="With --promote: accept files that can run code on your machine, all or one kind.",
)  # fmt: skip
@click.option("-d", "--detach", is_flag=True, help="Carry the race on in the background.")
@verb
def start(
    frame: Frame,
    words: tuple[str, ...],
    agents: tuple[str, ...],
    vary: tuple[str, ...],
    number: int,
    prompts: str | None,
    checks: tuple[str, ...],
    most: int | None,
    name: str | None,
    base: str | None,
    level: str | None,
    network: str | None,
    limits: tuple[str, ...],
    model: str | None,
    budget: tuple[str, ...],
    timeout: str | None,
    rule: str,
    judge: str,
    promote_to: str,
    accept: tuple[str, ...],
    *,
    no_checks: bool,
    no_cross_tests: bool,
    detach: bool,
) -> int:
    """Start several attempts at one task, each in a capsule of its own, and check what they leave.

    Agents attempt PROMPT, or COMMAND runs with other variables or prompts. All start from one
    commit, as many at once as the machine carries. What each leaves is committed on its branch and
    checked in a fresh capsule.

    Ctrl-C leaves the race: what runs goes on, and `atoll race resume` carries it on.
    """
    if len(words) > 1:
        raise SpecError("a race has one PROMPT", hint="quote it; a command is given after `--`")
    argv = click.get_current_context().meta.get(_ARGV, ())
    _require_not_mistyped(words, is_meant=bool(agents or argv))
    races = frame.project().races
    request = RaceRequest(
        prompt=words[0] if words else "",
        prompts=() if prompts is None else races.parse_prompts(read_text(prompts), prompts),
        agents=agents,
        argv=argv,
        vary=vary,
        number=number,
        name=name,
        base=base,
        level=level,
        network=network,
        limits=limits,
        checks=checks,
        has_checks=not no_checks,
        most=most,
        budget=budget,
        timeout_s=_parse_timeout(timeout),
        model=model or "",
        rule=rule,
        judge=judge,
        has_cross_tests=not no_cross_tests,
        promote_to=promote_to,
        accept=accept,
    )
    handle = races.start(request)
    if detach:
        return _detach(frame, handle)
    race_table.announce(frame, handle.status())
    return _carry_on(frame, handle)


def _require_not_mistyped(words: tuple[str, ...], *, is_meant: bool) -> None:
    """Raises SpecError for a single word that is no task: it would start agents, which cost."""
    if is_meant or not words or words[0].split() != [words[0]]:
        return
    close = difflib.get_close_matches(words[0], command.commands, n=1)
    suffix = f"; did you mean `{close[0]}`?" if close else ""
    raise SpecError(
        f"`race` has no command `{printable(words[0][:60])}`{suffix}",
        hint="atoll race --help; a PROMPT of one word needs --agents",
    )


def _parse_timeout(text: str | None) -> float | None:
    try:
        return None if text is None else units.parse_duration_s(text)
    except ValueError as error:
        raise SpecError(f"`--timeout {text}`: {error}", hint="--timeout 1h") from error


def _detach(frame: Frame, handle: RaceHandle) -> int:
    handle.carry_on_in_background()
    frame.output.answer("race", shapes.race(handle.status()), handle.name)
    frame.output.note(f"hint: atoll race show {handle.name}, or: atoll race resume {handle.name}")
    return 0


def _carry_on(frame: Frame, handle: RaceHandle) -> int:
    return _follow(frame, handle, handle.carry_on)


def _follow(
    frame: Frame,
    handle: RaceHandle,
    act: Callable[[Callable[[RaceStatus], None]], RaceStatus],
) -> int:
    """Shows a race until it is finished, and what came of it."""
    try:
        with frame.output.showing(race_table.make_live(frame)) as live:
            status = act(live.show_race)
    except (KeyboardInterrupt, Interrupted):
        frame.output.note(
            f"`{handle.name}` is not finished: what runs in its candidates goes on\n"
            f"hint: atoll race resume {handle.name}, or: atoll race stop {handle.name}"
        )
        raise
    return _show_end(frame, status)


def _show_end(frame: Frame, status: RaceStatus) -> int:
    race_table.show(frame, status)
    name = status.race.name
    promotion = status.promotion
    if promotion is not None:
        what = f"`{promotion.winner}`" if promotion.winner else "nothing"
        # Without a winner there is nothing that a `not` could be about.
        is_denied = promotion.winner is not None and not promotion.is_good
        how = "was not promoted to" if is_denied else "was promoted to"
        why = f": {promotion.message}" if promotion.message else ""
        frame.output.note(f"{what} {how} `{promotion.stage}`{why}")
    elif any(one.candidate.tree for one in status.candidates):
        frame.output.note(f"hint: atoll compare {name}, then: atoll pick {name}")
    return 0 if status.is_good else 1


@command.command("ls")
@verb
def ls(frame: Frame) -> None:
    """List the races of this project."""
    found = [one.status() for one in frame.project().races.all()]
    race_table.show_all(frame, found)
    if not found:
        frame.output.note('no races yet\nhint: atoll race "PROMPT" --agents NAME:2')


@command.command("show")
@race_argument
@verb
def show(frame: Frame, name: str) -> None:
    """Show the candidates of RACE: what they do, or what they left."""
    status = frame.project().races.require(name).status()
    race_table.show(frame, status)
    if status.race.state is RaceState.RUNNING and not status.is_carried_on:
        frame.output.note(
            f"nothing carries `{name}` on: candidates that end are neither recorded nor checked\n"
            f"hint: atoll race resume {name}"
        )


@command.command("resume")
@race_argument
@click.option("-d", "--detach", is_flag=True, help="Carry the race on in the background.")
@verb
def resume(frame: Frame, name: str, *, detach: bool) -> int:
    """Carry RACE on where it was left, or watch it while another process does."""
    handle = frame.project().races.require(name)
    if detach:
        return _detach(frame, handle)
    if handle.is_carried_on:
        frame.output.note(f"another process carries `{name}` on: watching it")
    return _carry_on(frame, handle)


@command.command("stop")
@race_argument
@verb
def stop(frame: Frame, name: str) -> int:
    """End RACE: stop what runs in its candidates, and record what they left without checking it."""
    handle = frame.project().races.require(name)
    _follow(frame, handle, handle.stop)
    return 0


@command.command("rm")
@race_argument
@click.option(
    "--force", is_flag=True, help="Stop the race, and store unexported work as recovery points."
)
@verb
def rm(frame: Frame, name: str, *, force: bool) -> None:
    """Remove RACE with the capsules of its candidates, as `atoll rm` does."""
    frame.make_room(everything=True)
    removed = frame.project().races.require(name).remove(force=force)
    race_table.show_removed(frame, name, removed)
