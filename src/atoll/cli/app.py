"""The root command. Imports a verb's module on use, and maps errors to exit codes."""

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
    "agents": "List agents and what they do, or the agents that can be used.",
    "allow": "Allow a capsule to connect to a destination.",
    "approve": "Approve the tree that waits at a stage of a promotion.",
    "attach": "Attach the terminal to a run.",
    "bench": "Benchmark Atoll on this machine, against comparable tools.",
    "bisect": "Find the snapshot after which a check began to fail.",
    "browser": "Show or reset a capsule's browsers, or print settings for tools.",
    "check": "Run the project's checks on what a capsule has committed.",
    "checkout": "Give a capsule the project's declared ports on 127.0.0.1.",
    "code": "Open a capsule in VS Code or another graphical editor.",
    "commit": "Commit all changes of a capsule to its branch.",
    "compare": "Compare the candidates of a race by what was observed of them.",
    "completion": "Print the completion script for a shell.",
    "daemon": "Show or stop the background process, or print its log.",
    "demo": "Run a demonstration with three capsules of a sample project.",
    "diff": "Show the changes made in a capsule.",
    "edit": "Run your editor, or another host program, on a capsule's files.",
    "export": "Copy a capsule's commits to a branch in your repository.",
    "fork": "Create a capsule from another capsule or one of its snapshots.",
    "doctor": "Check what this host can isolate, and print fixes.",
    "gc": "Remove leftovers of crashed commands and unused data.",
    "graft": "Make a candidate of a race from parts of others.",
    "history": "List what was promoted, when, where to and by which proof.",
    "init": "Inspect the project and write a commented atoll.toml.",
    "levels": "List the isolation levels.",
    "logs": "Show the output of a run.",
    "ls": "List the capsules of this project.",
    "network": "Show the connections that a capsule attempted.",
    "new": "Create capsules.",
    "open": "Open a capsule's web application in the capsule's own browser.",
    "pause": "Freeze all processes of a capsule.",
    "path": "Print the path of a capsule's workspace.",
    "pick": "Pick the winner of a race, by name or by a rule.",
    "ports": "Show the host ports and URLs of a capsule's ports.",
    "promote": "Bring a capsule's commits to your branch and beyond, stage by stage.",
    "ps": "List the processes of a capsule.",
    "race": "Start several attempts at one task, and check what each leaves.",
    "recover": "List and restore recovery points of removed capsules.",
    "resume": "Resume a paused capsule.",
    "rollback": "Restore a capsule to a snapshot.",
    "rm": "Remove capsules without losing work.",
    "run": "Run a command inside a capsule.",
    "schema": "Print the JSON schema of atoll.toml.",
    "secret": "Manage secrets: encrypted values that are granted to capsules.",
    "shell": "Open a shell inside a capsule.",
    "show": "Show details of a capsule, the settings or the base.",
    "snapshot": "Take a snapshot of a capsule.",
    "snapshots": "List the snapshots of a capsule.",
    "spawn": "Start an agent in a capsule of its own.",
    "stop": "Stop runs and all their processes.",
    "tell": "Send the next message to an agent.",
    "transcript": "Print the conversation with an agent.",
    "trust": "Approve the current content of atoll.toml.",
    "try": "Run a command, and roll it back unless the checks pass.",
    "undo": "Take the last promotion back.",
    "untrust": "Revoke the approval of atoll.toml.",
    "verify": "Attack a capsule's isolation from inside, and report the results.",
    "warm": "Prepare the base that new capsules start from.",
    "watch": "Show what an agent does, live or afterwards.",
    "wait": "Wait for a run to end.",
}
"""Verb → one-line help, so that `--help` and completion import no verb module."""

SECTIONS = {
    "Capsules": ("new", "ls", "show", "path", "rm", "recover", "warm", "gc"),
    "Runs": ("run", "shell", "ps", "logs", "attach", "wait", "stop", "pause", "resume"),
    "Agents": ("spawn", "agents", "watch", "tell", "transcript"),
    "Races": ("race", "compare", "pick", "graft"),
    "Checks": ("check", "try", "bisect"),
    "Ports": ("ports", "checkout"),
    "Work": ("diff", "commit", "export", "edit", "code"),
    "Promotion": ("promote", "approve", "undo", "history"),
    "Time": ("snapshot", "snapshots", "rollback", "fork"),
    "Network": ("network", "allow", "open", "browser", "daemon"),
    "Secrets": ("secret",),
    "Project": ("init", "trust", "untrust", "schema"),
    "This machine": ("doctor", "verify", "levels", "bench", "demo", "completion"),
}


class Verbs(click.Group):
    """Imports `atoll.cli.<verb>` when the verb is used."""

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
        # Click's own implementation imports every verb to check whether it is hidden.
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=text) for name, text in words), *options]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            import difflib  # noqa: PLC0415 - only for a typo

            close = difflib.get_close_matches(args[0], VERBS, n=1)
            suffix = f"; did you mean `{close[0]}`?" if close else ""
            raise click.UsageError(f"unknown verb `{args[0]}`{suffix}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, VERBS[name]) for name in verbs])


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Give every AI coding agent its own capsule: an isolated, private copy of a project.",
    subcommand_metavar="VERB [ARGS]...",
    epilog="Start with: atoll new NAME, then: atoll run NAME -- COMMAND",
)
@click.version_option(__version__, prog_name="atoll", message="%(prog)s %(version)s")
@common_options
@click.pass_context
def root(
    context: click.Context, *, as_json: bool, project: str | None, quiet: bool, verbose: bool
) -> None:
    """Stores the options given before the verb."""
    context.obj = Common(as_json=as_json, project=project, quiet=quiet, verbose=verbose)


def run(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code."""
    status.reset()
    words = list(argv)
    own = words[: words.index("--")] if "--" in words else words
    # SIGTERM and SIGHUP are handled like Ctrl-C: unfinished work is undone.
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
        # Click lists the choices of an argument on lines of their own.
        message = " ".join(error.format_message().split())
        return output.usage_error(message, hint=_usage(error, words), as_json=as_json)
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
    """Click exits by itself after shell completion, and on a closed pipe."""
    if output.has_click_lost_reader():
        raise output.ReaderLeft from error
    return error.code if isinstance(error.code, int) else 1


def _end_interrupted(error: Interrupted, *, as_json: bool) -> int:
    """Ignores further signals: the cleanup is done, and only the report is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return output.print_error(error, as_json=as_json)


def _usage(error: click.ClickException, words: Sequence[str]) -> str:
    context = getattr(error, "ctx", None)
    if context is None:
        # Click reports an option without its value as one of no command.
        name = error.option_name if isinstance(error, click.BadOptionUsage) else ""
        return _find_form(name, words) or "atoll --help"
    if context.info_name == "run":
        return "atoll run NAME -- COMMAND"
    return f"{context.command_path} --help"


def _find_form(option: str, words: Sequence[str]) -> str | None:
    """How an option of the verb in a command line is written, such as `--broker HOST`."""
    command: click.Command = root
    path = "atoll"
    for word in words:
        inner = None
        if isinstance(command, click.Group):
            inner = command.get_command(click.Context(command), word)
        if inner is not None:
            command, path = inner, f"{path} {word}"
    for parameter in command.params:
        if option in parameter.opts:
            return f"{option} {parameter.metavar}" if parameter.metavar else f"{path} --help"
    return None


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
        return PrerequisiteError(f"permission denied{place}: {error.strerror}")
    return DriverError(f"system error: {error.strerror or error}{place}")


def _with_place(error: AtollError) -> AtollError:
    """Adds which filesystem is full to the error of a tool that ran out of disk space."""
    if not isinstance(error, DriverError):
        return error
    from atoll.engine.home import Home  # noqa: PLC0415 - rarely needed

    if not Home.is_shortage(error):
        return error
    said = error.message.strip().splitlines()[-1]
    for place in (None, os.curdir):
        if (short := Home.find_shortage(place)) is not None:
            return PrerequisiteError(f"{short.message}: {said}", hint=short.hint)
    # The cleanup has freed space since.
    home = Home.default_path()
    return PrerequisiteError(
        f"not enough disk space, probably in `{home}`: {said}", hint="df -h; df -i"
    )


def _no_room(error: OSError, place: str) -> PrerequisiteError:
    """Names the filesystem, and whether blocks, inodes or a quota are exhausted."""
    from atoll.engine.home import Home  # noqa: PLC0415 - rarely needed

    short = Home.find_shortage(error.filename)
    if short is not None:
        return PrerequisiteError(f"{short.message}{place}", hint=short.hint)
    if error.filename is None:
        # The kernel returns the same errno when a resource other than disk space is exhausted.
        return PrerequisiteError(f"system error: {error.strerror}", hint="df -h; df -i")
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
        hint="run the command again with ATOLL_DEBUG=1 to see the traceback",
    )
