"""`atoll completion`: print completion scripts for shells."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from atoll.cli.frame import Frame, verb
from atoll.engine import shapes


@click.command("completion")
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@verb
def command(frame: Frame, shell: str) -> None:
    """Print the completion script for SHELL.

    For bash: eval "$(atoll completion bash)"; zsh likewise; fish: atoll completion fish | source
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for `{shell}`")
    root = click.get_current_context().find_root().command
    script = kind(root, {}, "atoll", "_ATOLL_COMPLETE").source()
    frame.output.answer("completion", shapes.completion(shell, script), script)
