"""Shared by all verbs: common options, the selected project, completion of names."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from atoll.cli.output import Output

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from atoll.engine.capsules import Capsule
    from atoll.engine.home import Home
    from atoll.engine.projects import Project

    Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

F = TypeVar("F", bound=Callable[..., int | None])


class Frame:
    """One invocation: its output and its project."""

    def __init__(self, *, output: Output, project: str | None) -> None:
        self.output = output
        self._path = project or os.environ.get("ATOLL_PROJECT") or "."
        self._project: Project | None = None

    def project(self) -> Project:
        if self._project is None:
            from atoll.cli import prompts  # noqa: PLC0415 - not for --help
            from atoll.engine.projects import open_project  # noqa: PLC0415 - not for --help

            self._project = open_project(
                self._path,
                listen=self.output.listen,
                warn=self.output.warn,
                ask_passphrase=prompts.find_asker(),
            )
        return self._project

    def use(self, where: str) -> Project:
        """Selects the project at a path, or the clone of a URL, instead of `--project`."""
        self._project = self.home().project(where)
        return self._project

    @staticmethod
    def wait(seconds: float) -> None:
        """Between two looks of a verb that repeats its answer."""
        from atoll.engine.home import Home  # noqa: PLC0415 - not for --help

        Home.pause(seconds)

    def home(self) -> Home:
        """For verbs that work on all projects, inside or outside a repository."""
        from atoll.engine.home import open_home  # noqa: PLC0415 - not for --help

        return open_home(listen=self.output.listen, warn=self.output.warn)

    def make_room(self, *, everything: bool) -> None:
        """Frees reserved disk space, so that the verb also works on a full disk."""
        from atoll.engine.home import Home  # noqa: PLC0415 - not for --help

        Home.make_room(everything=everything)

    def capsule(self, name: str) -> Capsule:
        return self.project().capsule(name)


class MessageCommand(click.Command):
    """A command with a text as its argument: a word with a space is never an option, so that a text
    may begin with `-`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # No word of a command line can contain a null character.
        texts = {f"\0{number}": word for number, word in enumerate(args) if _is_text(word)}
        places = {word: place for place, word in texts.items()}
        rest = super().parse_args(ctx, [places.get(word, word) for word in args])
        ctx.params = {name: _restored(value, texts) for name, value in ctx.params.items()}
        return rest


def _is_text(word: str) -> bool:
    name = word.partition("=")[0]
    return word.startswith("-") and any(character.isspace() for character in name)


def _restored(value: object, texts: Mapping[str, str]) -> object:
    if isinstance(value, tuple):
        return tuple(_restored(item, texts) for item in value)
    return texts.get(value, value) if isinstance(value, str) else value


class Common(NamedTuple):
    """The common options, given before or after the verb."""

    as_json: bool
    project: str | None
    quiet: bool
    verbose: bool

    def merged(self, *, as_json: bool, project: str | None, quiet: bool, verbose: bool) -> Common:
        """With the options that were given later."""
        return Common(
            as_json=as_json or self.as_json,
            project=project or self.project,
            quiet=quiet or self.quiet,
            verbose=verbose or self.verbose,
        )


_PROJECT = click.option(
    "--project",
    metavar="DIR",
    help="Project directory; default: ATOLL_PROJECT or the current directory.",
)
_TALK = (
    click.option("-v", "--verbose", is_flag=True, help="Show each command run on the host."),
    click.option("-q", "--quiet", is_flag=True, help="Do not print notes."),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
)


def common_options(function: F) -> F:
    verbose, quiet, as_json = _TALK
    return as_json(_PROJECT(quiet(verbose(function))))


def verb(function: F) -> F:
    """Gives a command the common options and a Frame as its first argument."""
    return common_options(_framed(function))


def verb_with_own_project(function: F) -> F:
    """Like `verb`, for a verb with a `--project` option of its own: the common one is accepted
    only before the verb.
    """
    verbose, quiet, as_json = _TALK
    return as_json(quiet(verbose(_framed(function))))


def _framed(function: F) -> F:
    @functools.wraps(function)
    def wrapped(
        *args: Any,
        as_json: bool,
        quiet: bool,
        verbose: bool,
        project: str | None = None,
        **kwargs: Any,
    ) -> int | None:
        before: Common = click.get_current_context().obj
        output = Output(as_json=as_json or before.as_json, quiet=quiet or before.quiet)
        if verbose or before.verbose:
            from atoll.engine.home import Home  # noqa: PLC0415 - for --verbose

            Home.on_command(output.command)
        with output.progress():
            return function(
                Frame(output=output, project=project or before.project), *args, **kwargs
            )

    return wrapped  # type: ignore[return-value]


def ends_with_interrupt(function: F) -> F:
    """For a verb that goes on until Ctrl-C: that is not an error, and prints nothing."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> int | None:
        try:
            return function(*args, **kwargs)
        except KeyboardInterrupt:
            return 128 + signal.SIGINT

    return wrapped  # type: ignore[return-value]


def completing(find: Callable[[Project], Iterable[tuple[str, str | None]]]) -> Complete:
    """Completes names; `find` returns those of a project, each with its help."""

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # noqa: PLC0415

        from atoll.model.errors import AtollError  # noqa: PLC0415

        del parameter
        chosen = context.params.get("project")
        try:
            found = list(find(Frame(output=Output(quiet=True), project=chosen).project()))
        except AtollError:
            # Outside a project there is nothing to complete.
            return []
        return [CompletionItem(n, help=text) for n, text in found if n.startswith(incomplete)]

    return complete


complete_capsules = completing(lambda p: [(c.name, c.record.level) for c in p.capsules()])


def name_argument(function: F) -> F:
    return click.argument("name", shell_complete=complete_capsules)(function)


def names_argument(function: F) -> F:
    return click.argument("names", nargs=-1, required=True, shell_complete=complete_capsules)(
        function
    )


def run_argument(function: F) -> F:
    return click.argument("run", required=False, metavar="[RUN]")(function)


def parse_run(text: str | None, name: str) -> int | None:
    """`2` or `NAME.2`; None means the latest."""
    if text is None:
        return None
    number = text.removeprefix(f"{name}.")
    if not number.isascii() or not number.isdigit():
        raise click.UsageError(f"`{text}` is not a run of `{name}`: give its number")
    return int(number)
