"""`atoll spawn`: start an agent in a capsule of its own."""

from __future__ import annotations

import os
import sys

import click

from atoll.cli.attach import attach_to
from atoll.cli.frame import Frame, MessageCommand, complete_capsules, verb
from atoll.cli.status import status_option
from atoll.cli.terminal import is_terminal, size
from atoll.engine import shapes
from atoll.engine.capsules import Capsule
from atoll.engine.projects import LEVEL_NAMES, CapsuleSpec, Project
from atoll.model import units
from atoll.model.agent import AgentSpec
from atoll.model.errors import SpecError
from atoll.model.names import printable

_PROMPT_BYTES = (4 << 20) + 1
"""One more than is accepted, so that a longer one is refused and not cut."""


@click.command("spawn", cls=MessageCommand, options_metavar="[OPTIONS]")
@click.argument("words", nargs=-1, metavar="[AGENT] [PROMPT]", type=click.UNPROCESSED)
@click.option(
    "--in", "inside", metavar="NAME", shell_complete=complete_capsules,
    help="Start the agent in this existing capsule.",
)  # fmt: skip
@click.option("--name", metavar="NAME", help="Name of the capsule; default: made from PROMPT.")
@click.option(
    "-n", "number", default=1, type=click.IntRange(1, 100),
    help="Start this many agents with the same task, each in its own capsule.",
)  # fmt: skip
@click.option(
    "-i", "--interactive", is_flag=True,
    help="Show the agent's own screen in this terminal; Ctrl-] detaches.",
)  # fmt: skip
@click.option(
    "--repo", metavar="URL|PATH", help="Use this repository; a URL is cloned below ATOLL_HOME."
)
@click.option(
    "--check", "checks", multiple=True, metavar="CMD",
    help="Shell command that must pass in the capsule for the agent to have finished.",
)  # fmt: skip
@click.option("--model", metavar="MODEL", help="Model that the agent uses.")
@click.option("--effort", metavar="LEVEL", help="Effort of the model, e.g. high.")
@click.option(
    "--budget", multiple=True, metavar="LIMIT",
    help="Limit what the agent may use: 5usd, tokens=200k, turns=20 or time=30m.",
)  # fmt: skip
@click.option("--timeout", metavar="TIME", help="Stop a turn after this time, e.g. 1h.")
@click.option(
    "--prompt-file", metavar="FILE", help="Read the prompt from FILE, or from standard input (-)."
)
@click.option(
    "--no-commit", is_flag=True, help="Leave the agent's uncommitted changes uncommitted."
)
@click.option("--from", "base", metavar="REF", help="Branch, tag or commit to start from.")
@click.option("--level", metavar="LEVEL", help=f"Isolation level: {', '.join(LEVEL_NAMES)}.")
@click.option("--network", metavar="MODE", help="Network access: allow or open.")
@click.option(
    "--limit", "limits", multiple=True, metavar="KEY=VALUE", help="Set a limit, e.g. memory=4G."
)
@click.option("--dirty", is_flag=True, help="Include your uncommitted changes.")
@status_option
@verb
def command(
    frame: Frame,
    words: tuple[str, ...],
    inside: str | None,
    name: str | None,
    number: int,
    repo: str | None,
    checks: tuple[str, ...],
    model: str | None,
    effort: str | None,
    budget: tuple[str, ...],
    timeout: str | None,
    prompt_file: str | None,
    base: str | None,
    level: str | None,
    network: str | None,
    limits: tuple[str, ...],
    *,
    interactive: bool,
    no_commit: bool,
    dirty: bool,
) -> int:
    """Start AGENT on PROMPT in a new capsule that is named after the task.

    AGENT is one of `atoll agents --available`, `script:FILE` for a scripted agent, or `command`
    for a command line after PROMPT, in which {prompt} is replaced; without it, the only agent that
    is installed or your default is used. The agent works in the background, unless -i shows its
    screen.
    """
    project = frame.project() if repo is None else frame.use(repo)
    agent, prompt, argv = _parse_words(project, words, has_file=prompt_file is not None)
    is_passed = any("{prompt}" in word for word in argv)
    if agent == "command" and argv and (prompt or prompt_file is not None) and not is_passed:
        frame.output.warn("the prompt is not used: no word of the command line has {prompt}")
    rows, cols = size()
    spec = AgentSpec(
        agent=agent,
        prompt=prompt if prompt_file is None else read_text(prompt_file),
        command=argv,
        name=name,
        inside=inside,
        number=number,
        is_interactive=interactive,
        model=_parse_choice("--model", model),
        effort=_parse_choice("--effort", effort),
        checks=checks,
        budget=budget,
        timeout_s=_parse_timeout(timeout),
        commits=not no_commit,
        rows=rows,
        cols=cols,
    )
    options = CapsuleSpec(level=level, base=base, network=network, limits=limits, dirty=dirty)
    made = project.spawn(spec, options, on_progress=frame.output.freezing)
    if interactive and is_terminal() and not frame.output.json:
        return attach_to(frame, made[0], made[0].require_run())
    _show(frame, project, made, is_elsewhere=repo is not None)
    return 0


def _show(frame: Frame, project: Project, made: list[Capsule], *, is_elsewhere: bool) -> None:
    agents = [(one, one.agent.require().adapter) for one in made]
    shown = [shapes.spawned(one.record, name, one.find_run(None)) for one, name in agents]
    frame.output.answer("agents", shown, "\n".join(one.name for one in made))
    where = f" --project {project.root}" if is_elsewhere else ""
    for one, name in agents:
        frame.output.note(f"started {name} in `{one.name}`, on branch {one.record.branch}")
    frame.output.note(f"hint: atoll watch {made[0].name}{where}, or: atoll agents{where}")


def _parse_words(
    project: Project, words: tuple[str, ...], *, has_file: bool
) -> tuple[str | None, str, tuple[str, ...]]:
    """The agent, the prompt, and the command line of the agent `command`."""
    if not words:
        return None, "", ()
    # A single word may be either, and a prompt of several words is no agent's name.
    if project.names_agent(words[0]):
        agent, rest = words[0], words[1:]
    else:
        agent, rest = None, words
    if has_file:
        if rest and agent != "command":
            raise SpecError("`--prompt-file` and PROMPT are both given", hint="omit one of them")
        return agent, "", rest
    return agent, (rest[0] if rest else ""), rest[1:]


def read_text(path: str) -> bytes:
    """A prompt in a file, or on standard input. Raises SpecError."""
    try:
        if path == "-":
            return sys.stdin.buffer.read(_PROMPT_BYTES)
        with open(path, "rb") as stream:
            return stream.read(_PROMPT_BYTES)
    except OSError as error:
        shown = printable(os.fspath(path))
        raise SpecError(f"cannot read `{shown}`: {error.strerror}") from error


def _parse_choice(option: str, text: str | None) -> str:
    """Empty when nothing is chosen, which an empty text does not say."""
    if text is not None and not text.strip():
        raise SpecError(f"`{option}` is empty", hint=f"omit `{option}` for the agent's default")
    return text or ""


def _parse_timeout(text: str | None) -> float | None:
    try:
        return None if text is None else units.parse_duration_s(text)
    except ValueError as error:
        raise SpecError(f"`--timeout {text}`: {error}", hint="--timeout 1h") from error
