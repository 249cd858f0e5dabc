"""The root command: verbs are loaded when they are typed, errors become exit codes here only."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click

from atoll.cli import output, status
from atoll.cli.frame import Common, common_options
from atoll.model.errors import AtollError, DriverError, Interrupted, PrerequisiteError
from atoll.version import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

VERBS = {
    "allow": "Let a capsule reach one more destination.",
    "attach": "Watch a run and type to it.",
    "bench": "Measure this machine: workspaces against what others need.",
    "browser": "Show or reset a capsule's browsers, or tell tools of them.",
    "checkout": "Give a capsule the project's own port numbers.",
    "code": "Open a capsule in VS Code or another editor with windows.",
    "commit": "Commit everything in a capsule on its branch.",
    "completion": "Print the completion script for a shell.",
    "daemon": "Show, end or explain the background process.",
    "demo": "See it work: three capsules of a sample project, from nothing.",
    "diff": "Show what a capsule has changed.",
    "edit": "Open your editor, or start another program of yours, in a capsule.",
    "export": "Bring a capsule's commits out as a branch.",
    "fork": "Make a capsule from another one, as it is or was.",
    "doctor": "Measure what this host can isolate, with cures.",
    "gc": "Remove what crashes left behind.",
    "init": "Look at the project and write a commented atoll.toml.",
    "levels": "Show the isolation spectrum.",
    "logs": "Show what a run printed.",
    "ls": "List the capsules of this project.",
    "network": "Show what a capsule wanted to reach.",
    "new": "Make capsules.",
    "open": "Open a capsule's web application in a browser of its own.",
    "pause": "Hold every process of a capsule still.",
    "path": "Print where a capsule's workspace is.",
    "ports": "Show where a capsule's ports are reached.",
    "ps": "List the live processes of a capsule.",
    "recover": "List and restore work that was stored before a removal.",
    "resume": "Let a paused capsule go on.",
    "rollback": "Return a capsule to a snapshot.",
    "rm": "Remove capsules; nothing is lost.",
    "run": "Run a command inside a capsule.",
    "schema": "Print the JSON schema of atoll.toml.",
    "shell": "Open a shell inside a capsule.",
    "show": "Show one capsule, or where each setting came from.",
    "snapshot": "Make a point to which a capsule can return.",
    "snapshots": "Show the time line of a capsule.",
    "stop": "End runs with everything that they started.",
    "trust": "Approve the project file as it is now.",
    "untrust": "Take the approval of the project file back.",
    "verify": "Attack a capsule's walls from inside, and show what held.",
    "warm": "Freeze ahead of time what new capsules start from.",
    "wait": "Wait for a run to end.",
}
"""Verb → one line of help, so that `--help` and completion load no verb."""

SECTIONS = {
    "Capsules": ("new", "ls", "show", "path", "rm", "recover", "warm", "gc"),
    "Runs": ("run", "shell", "ps", "logs", "attach", "wait", "stop", "pause", "resume"),
    "Ports": ("ports", "checkout"),
    "Work": ("diff", "commit", "export", "edit", "code"),
    "Time": ("snapshot", "snapshots", "rollback", "fork"),
    "Network": ("network", "allow", "open", "browser", "daemon"),
    "Project": ("init", "trust", "untrust", "schema"),
    "This machine": ("doctor", "verify", "levels", "bench", "demo", "completion"),
}


class Verbs(click.Group):
    """Loads `atoll.cli.<verb>` when the verb is typed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"atoll.cli.{cmd_name}").command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only for a shell

        words = [item for item in sorted(VERBS.items()) if item[0].startswith(incomplete)]
        # Click's own would load every verb to ask whether it is hidden.
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=text) for name, text in words), *options]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            import difflib  # noqa: PLC0415 - only for a typo

            close = difflib.get_close_matches(args[0], VERBS, n=1)
            suffix = f"; did you mean `{close[0]}`?" if close else ""
            raise click.UsageError(f"there is no verb `{args[0]}`{suffix}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, VERBS[name]) for name in verbs])


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Every AI coding agent its own capsule: a private copy of a project.",
    subcommand_metavar="VERB [ARGS]...",
    epilog="Start with: atoll new NAME, then: atoll run NAME -- COMMAND",
)
@click.version_option(__version__, prog_name="atoll", message="%(prog)s %(version)s")
@common_options
@click.pass_context
def root(
    context: click.Context, *, as_json: bool, project: str | None, quiet: bool, verbose: bool
) -> None:
    """The words that come before a verb."""
    context.obj = Common(as_json=as_json, project=project, quiet=quiet, verbose=verbose)


def run(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code."""
    status.reset()
    words = list(argv)
    own = words[: words.index("--")] if "--" in words else words
    # A killed terminal and a polite kill end a command the way Ctrl-C does: undone, not abandoned.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        code = _run(words or ["--help"], as_json="--json" in own)
    except output.ReaderLeft:
        code = 128 + signal.SIGPIPE
    except output.Unwritable as error:
        code = output.print_error(error, as_json=False)
    for text in status.take_failures():
        output.Output().warn(text)
    return code


def _run(words: list[str], *, as_json: bool) -> int:
    try:
        code = root.main(words, prog_name="atoll", standalone_mode=False)
    except click.ClickException as error:
        return output.usage_error(error.format_message(), hint=_usage(error), as_json=as_json)
    except (KeyboardInterrupt, click.Abort):
        return _end_interrupted(Interrupted(signal.SIGINT), as_json=as_json)
    except Interrupted as error:
        return _end_interrupted(error, as_json=as_json)
    except (output.ReaderLeft, output.Unwritable):
        raise
    except SystemExit as error:
        return _exit_code(error)
    except AtollError as error:
        return output.print_error(_with_place(error), as_json=as_json)
    except OSError as error:
        if (unwritable := output.find_unwritable(error)) is not None:
            raise unwritable from error
        return output.print_error(_explain(error), as_json=as_json)
    except Exception as error:
        return output.print_error(_bug(error), as_json=as_json)
    return code if isinstance(code, int) else 0


def _exit_code(error: SystemExit) -> int:
    """Click ends the program by itself after completion, and when its reader is gone."""
    if output.has_click_lost_reader():
        raise output.ReaderLeft from error
    return error.code if isinstance(error.code, int) else 1


def _end_interrupted(error: Interrupted, *, as_json: bool) -> int:
    """All is undone by now: an impatient second signal must not end it in some other way."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return output.print_error(error, as_json=as_json)


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    if context is None:
        return "atoll --help"
    if context.info_name == "run":
        return "atoll run NAME -- COMMAND"
    return f"{context.command_path} --help"


def _interrupt(number: int, frame: object) -> None:
    del frame
    raise Interrupted(number)


def _explain(error: OSError) -> AtollError:
    place = f" (`{error.filename}`)" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _no_room(error, place)
    if error.errno == errno.EROFS:
        return PrerequisiteError(
            f"the filesystem is read-only{place}",
            hint="mount it for writing, or set ATOLL_HOME to another directory",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return PrerequisiteError(f"no permission{place}: {error.strerror}")
    return DriverError(f"the system said: {error.strerror or error}{place}")


def _with_place(error: AtollError) -> AtollError:
    """A tool that failed for want of room seldom says where: the full filesystem is named."""
    if not isinstance(error, DriverError):
        return error
    from atoll.engine import session  # noqa: PLC0415 - rarely needed

    if not session.is_shortage(error):
        return error
    said = error.message.strip().splitlines()[-1]
    for place in (None, os.curdir):
        if (short := session.find_shortage(place)) is not None:
            return PrerequisiteError(f"{short.message}: {said}", hint=short.hint)
    # What was written so far is gone again.
    home = session.home_path(os.environ)
    return PrerequisiteError(f"too little room, probably in `{home}`: {said}", hint="df -h; df -i")


def _no_room(error: OSError, place: str) -> PrerequisiteError:
    """Names the filesystem, and whether blocks, inodes or a quota are used up."""
    from atoll.engine.session import find_shortage  # noqa: PLC0415 - rarely needed

    short = find_shortage(error.filename)
    if short is not None:
        return PrerequisiteError(f"{short.message}{place}", hint=short.hint)
    if error.filename is None:
        # The kernel gives the same answer when something else than a disk is used up.
        return PrerequisiteError(f"the system said: {error.strerror}", hint="df -h; df -i")
    return PrerequisiteError(f"the disk is full{place}", hint="df -h; df -i; atoll gc")


def _bug(error: Exception) -> DriverError:
    if os.environ.get("ATOLL_DEBUG"):
        raise error
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    line = f"{where.tb_frame.f_code.co_name}:{where.tb_lineno}" if where is not None else "unknown"
    return DriverError(
        f"this is a bug in atoll: {type(error).__name__}: {error} (at {line})",
        hint="run it again with ATOLL_DEBUG=1 for the whole story",
    )
