"""What all verbs share: the common options, the project they are about, names that complete."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from atoll.cli.output import Output

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from atoll.engine.capsules import Capsule
    from atoll.engine.projects import Project
    from atoll.engine.restore import Restored
    from atoll.engine.session import Session

F = TypeVar("F", bound=Callable[..., int | None])


class Frame:
    """One invocation: how to talk, and which project is meant."""

    def __init__(self, *, output: Output, project: str | None) -> None:
        self.output = output
        self._path = project or os.environ.get("ATOLL_PROJECT") or "."
        self._project: Project | None = None

    def project(self) -> Project:
        if self._project is None:
            from atoll.engine.projects import open_project  # noqa: PLC0415 - not for --help

            self._project = open_project(
                self._path, listen=self.output.listen, warn=self.output.warn
            )
        return self._project

    def session(self) -> Session:
        """For verbs that are about the whole home, in a repository or not."""
        from atoll.engine.session import open_session  # noqa: PLC0415 - not for --help

        return open_session(listen=self.output.listen, warn=self.output.warn)

    def make_room(self, *, everything: bool) -> None:
        """For verbs that free room: they work on a full disk, too."""
        from atoll.engine.session import make_room  # noqa: PLC0415 - not for --help

        make_room(everything=everything)

    def repair(self) -> Restored | None:
        """Makes a lost or damaged database again; None when there is nothing to repair."""
        from atoll.engine import restore  # noqa: PLC0415 - for one verb
        from atoll.engine.session import home_path  # noqa: PLC0415 - likewise

        home = home_path(os.environ)
        if not home.is_dir() or restore.is_read_only(home):
            return None
        done = restore.repair(home)
        if done is not None:
            restore.refresh(self.session())
        return done

    def capsule(self, name: str) -> Capsule:
        return self.project().capsule(name)


class Common(NamedTuple):
    """The common options, as given before the verb or after it."""

    as_json: bool
    project: str | None
    quiet: bool
    verbose: bool


_PROJECT = click.option(
    "--project", metavar="DIR", help="The project; default: ATOLL_PROJECT, or where you are."
)
_TALK = (
    click.option("-v", "--verbose", is_flag=True, help="Show each command run on the host."),
    click.option("-q", "--quiet", is_flag=True, help="No narration."),
    click.option("--json", "as_json", is_flag=True, help="Print one documented JSON object."),
)


def common_options(function: F) -> F:
    verbose, quiet, as_json = _TALK
    return as_json(_PROJECT(quiet(verbose(function))))


def verb(function: F) -> F:
    """Gives a command the common options and a Frame as its first argument."""
    return common_options(_framed(function))


def verb_with_own_project(function: F) -> F:
    """The same, for a verb whose own `--project` means something else: which project is meant is
    said before the verb.
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
            from atoll.engine.narration import tell_commands  # noqa: PLC0415 - seldom wanted

            tell_commands(output.command)
        with output.progress():
            return function(
                Frame(output=output, project=project or before.project), *args, **kwargs
            )

    return wrapped  # type: ignore[return-value]


def complete_capsules(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem  # noqa: PLC0415

    from atoll.model.errors import AtollError  # noqa: PLC0415

    del parameter
    try:
        project = Frame(output=Output(quiet=True), project=context.params.get("project")).project()
        records = [capsule.record for capsule in project.capsules()]
    except AtollError:
        # Outside a project there is nothing to complete, and a shell must not see an error.
        return []
    return [CompletionItem(r.name, help=r.level) for r in records if r.name.startswith(incomplete)]


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
        raise click.UsageError(f"`{text}` is not a run of `{name}`: use its number")
    return int(number)
